//! Finds stops: texts that a template looks for in a content.

use memchr::memmem;

/// Most bytes of a stop that are looked for: the beginning of a longer one counts as the whole.
const STOP_MAX: usize = 32;

/// Looks for stops in a text that arrives in runs.
#[derive(Default)]
pub(super) struct Search {
    /// The end of the text so far, in which a stop may have begun.
    last: [u8; STOP_MAX - 1],
    length: usize,
    found: bool,
}

impl Search {
    /// Whether a stop was found.
    pub fn has_found(&self) -> bool {
        self.found
    }

    /// Looks at a further run.
    pub fn look(&mut self, stops: &[Box<[u8]>], run: &[u8]) {
        if self.found || stops.is_empty() || run.is_empty() {
            return;
        }
        self.found = has_stop(stops, run) || self.is_across(stops, run);
        // Keeps the end of all that was seen.
        if let Some(tail) = run.last_chunk() {
            (self.last, self.length) = (*tail, STOP_MAX - 1);
            return;
        }
        let kept = self.length.min(STOP_MAX - 1 - run.len());
        self.last.copy_within(self.length - kept..self.length, 0);
        self.length = kept + run.len();
        if let Some(slot) = self.last.get_mut(kept..self.length) {
            slot.copy_from_slice(run);
        }
    }

    /// Whether a stop begins before this run and ends in it.
    fn is_across(&self, stops: &[Box<[u8]>], run: &[u8]) -> bool {
        let last = self.last.get(..self.length).unwrap_or_default();
        let mut firsts = stops.iter().map(|stop| stop.first());
        if firsts.all(|first| first.is_some_and(|first| !last.contains(first))) {
            return false;
        }
        let mut seam = [0; 2 * (STOP_MAX - 1)];
        let head = run.get(..STOP_MAX - 1).unwrap_or(run);
        seam.iter_mut().zip(last.iter().chain(head)).for_each(|(slot, byte)| *slot = *byte);
        has_stop(stops, seam.get(..last.len() + head.len()).unwrap_or_default())
    }
}

/// Whether a stop is in a run. Most stops begin with a bracket or the like: these are found by that byte, all in one
/// pass.
fn has_stop(stops: &[Box<[u8]>], run: &[u8]) -> bool {
    stops.iter().enumerate().any(|(place, stop)| match stop.first() {
        Some(&first) if first.is_ascii_punctuation() => {
            let is_searched = stops.iter().take(place).any(|other| other.first() == Some(&first));
            !is_searched && memchr::memchr_iter(first, run).any(|at| begins(stops, run.get(at..).unwrap_or_default()))
        }
        _ => memmem::find(run, begin_of(stop)).is_some(),
    })
}

/// Whether a text begins with a stop.
#[inline]
fn begins(stops: &[Box<[u8]>], text: &[u8]) -> bool {
    // Most texts that begin like a stop differ in the second byte.
    let second = text.get(1);
    stops.iter().any(|stop| (stop.get(1) == second || stop.len() == 1) && text.starts_with(begin_of(stop)))
}

/// Returns the part of a stop that is looked for.
fn begin_of(stop: &[u8]) -> &[u8] {
    stop.get(..STOP_MAX).unwrap_or(stop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_found_however_a_text_arrives() {
        let long = "<".to_owned() + &"y".repeat(2 * STOP_MAX);
        let sets: [&[&str]; 6] =
            [&["</think>"], &["<a>", "<ab", "x-y"], &["[", "]]"], &["é"], &["ab", "<"], &["q-q", &long]];
        let pieces = [
            "<",
            "/think>",
            "</thin",
            "k>",
            "a",
            "b",
            ">",
            "x-",
            "y",
            "[",
            "]",
            "\u{e9}",
            "q",
            "-q",
            "hello, world. ",
            &long,
        ];
        let (mut state, mut found) = (1u64, 0);
        let mut draw = |of: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % of
        };
        for round in 0..20_000 {
            let stops: Vec<Box<[u8]>> = sets[round % sets.len()].iter().map(|stop| stop.as_bytes().into()).collect();
            let text: String = (0..draw(8)).map(|_| pieces[draw(pieces.len())]).collect();
            let mut begins = stops.iter().map(|stop| &stop[..stop.len().min(STOP_MAX)]);
            let expected = begins.any(|begin| text.as_bytes().windows(begin.len()).any(|part| part == begin));
            let (mut search, mut rest) = (Search::default(), text.as_bytes());
            while !rest.is_empty() {
                let (run, more) = rest.split_at((1 + draw(70)).min(rest.len()));
                search.look(&stops, run);
                rest = more;
            }
            assert_eq!(search.found, expected, "{text}");
            found += u32::from(expected);
        }
        assert!(found > 2_000 && found < 18_000, "{found}");
    }
}
