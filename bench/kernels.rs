//! What a scan costs by what the body holds and by the instructions it runs on: `cargo bench --bench kernels`.
//!
//! Each body is read to its end, its whole conversation hashed, as one piece; p50 of scans timed alone. Before the
//! clock runs, every kernel's facts are compared with the portable one's, in one piece and in several, and no scan may
//! allocate. Rows with `first user` make KubeAI's key and skip everything after it up to `model`, which comes last.

#[path = "bodies.rs"]
mod bodies;
#[path = "words.rs"]
mod words;

use std::hint::black_box;
use std::time::Instant;

use warmfront::scan::{Kernel, Needs, Plan, PrefixHash, PrefixMode, Progress, Scan};

use bodies::{KINDS, Kind};

/// Different bodies of one kind take about this much memory in all, at least four of them: none is in a core's first
/// cache when its turn comes.
const BODIES_BYTES: usize = 2 << 20;

/// A row: what its bodies hold, and what is made of them.
struct Row {
    kind: Kind,
    prefix: PrefixMode,
    /// Whether the prompt is cut into blocks, as `warm` does.
    chain: bool,
}

fn rows() -> Vec<Row> {
    let row = |prefix, chain| move |kind| Row { kind, prefix, chain };
    let prose = [2 << 10, 128 << 10].map(Kind::prose);
    let whole = KINDS.map(row(PrefixMode::Conversation, false)).into_iter();
    let blocks = prose.map(row(PrefixMode::Conversation, true));
    whole.chain(blocks).chain(prose.map(row(PrefixMode::FirstUser, false))).collect()
}

impl Row {
    fn name(&self) -> String {
        let made = match (self.prefix, self.chain) {
            (PrefixMode::FirstUser, _) => ", first user",
            (_, true) => ", blocks",
            _ => "",
        };
        format!("{}{made}", self.kind.name)
    }

    fn scan(&self, scan: &mut Scan, body: &[u8], piece_bytes: usize) -> (Option<PrefixHash>, u64) {
        let plan = Plan {
            prefix: self.prefix,
            prefix_chars: 100,
            prefix_bytes: u32::MAX,
            chain: self.chain,
            ..Plan::default()
        };
        let whole = if self.prefix == PrefixMode::Conversation { Needs::WHOLE } else { Needs::NONE };
        scan.begin(self.kind.api, &plan, Needs::MODEL | Needs::PREFIX | whole);
        for piece in body.chunks(piece_bytes) {
            match scan.push(piece) {
                Progress::More => {}
                Progress::Enough { .. } => return (scan.facts().prefix(), scan.facts().prompt_bytes()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(scan.finish(), Progress::Done);
        (scan.facts().prefix(), scan.facts().prompt_bytes())
    }

    /// Figures of the row, one for each kernel, in µs.
    fn time(&self, kernels: &[&'static Kernel], rounds: usize) -> Vec<f64> {
        // One more than a multiple of the number of kernels: body by body in turn, every kernel gets to all of them.
        let bytes = self.kind.bytes;
        let bodies = self.kind.bodies((BODIES_BYTES / bytes).max(4).next_multiple_of(kernels.len()) + 1);
        let mut scans: Vec<Box<Scan>> = kernels.iter().map(|kernel| Box::new(Scan::with(kernel))).collect();
        self.check(&mut scans, &bodies);
        let rounds = (rounds * (128 << 10) / bytes).clamp(rounds / 8, rounds * 4);
        let mut nanos = vec![Vec::with_capacity(rounds); kernels.len()];
        for round in 0..rounds {
            // One kernel after the other, so that other work on the machine meets all of them alike; each on another
            // body, or only the first would find it cold.
            for (place, (scan, nanos)) in scans.iter_mut().zip(&mut nanos).enumerate() {
                let body = &bodies[(round * kernels.len() + place) % bodies.len()];
                let begun = Instant::now();
                black_box(self.scan(scan, black_box(body), usize::MAX));
                nanos.push(begun.elapsed().as_nanos() as u64);
            }
        }
        let median = |nanos: &mut Vec<u64>| *nanos.select_nth_unstable(rounds / 2).1 as f64 / 1_000.0;
        nanos.iter_mut().map(median).collect()
    }

    /// Checks that every kernel finds the same facts however the body is cut, without an allocation.
    fn check(&self, scans: &mut [Box<Scan>], bodies: &[Vec<u8>]) {
        let mut portable = Scan::with(Kernel::portable());
        let expected: Vec<_> = bodies.iter().map(|body| self.scan(&mut portable, body, usize::MAX)).collect();
        assert!(expected.iter().all(|(prefix, _)| prefix.is_some()));
        for scan in scans {
            // A chain's links get their room once.
            for body in bodies {
                self.scan(scan, body, usize::MAX);
            }
            let allocations = allocation_counter::measure(|| {
                for (body, expected) in bodies.iter().zip(&expected) {
                    for piece_bytes in [usize::MAX, 16 << 10, 1_448] {
                        assert_eq!(self.scan(scan, body, piece_bytes), *expected, "{}", self.name());
                    }
                }
            });
            assert_eq!(allocations.count_total, 0, "a scan allocates");
        }
    }
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--test");
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let kernels: Vec<&'static Kernel> = Kernel::available().collect();
    let names = kernels.iter().map(|kernel| format!("{:>10}", kernel.name())).collect::<Vec<_>>().join(" |");
    println!("\nA scan to the body's end in µs (p50, each timed alone, none allocates), by kernel.\n");
    println!("| {:18} | {:>9} |{names} |", "body", "bytes");
    println!("|:-------------------|----------:|{}", "----------:|".repeat(kernels.len()));
    for row in rows().iter().filter(|row| row.name().contains(&filter)) {
        let figures = row.time(&kernels, if quick { 40 } else { 2_000 });
        let figures = figures.iter().map(|figure| format!("{figure:10.2}")).collect::<Vec<_>>().join(" |");
        println!("| {:18} | {:9} |{figures} |", row.name(), row.kind.bytes);
    }
}
