//! Holds the tree to its rules. Each rule stands here with its reason, each exception in a table with its
//! own; an exception that nothing needs any more is a fault as well.

#![allow(clippy::string_slice, reason = "cuts lie at ASCII bytes, in files of our own")]

mod promises;
mod rooms;
mod source;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use source::{Source, tokens};

/// Longest file, without its tests: longer ones hold more than one thought.
const FILE_LINES_MAX: usize = 400;
/// Longest line of a comment, where rustfmt breaks code; rows of tables aside.
const COMMENT_COLUMNS_MAX: usize = 120;
/// Longest function.
const FUNCTION_LINES_MAX: usize = 70;

/// Files that are longer for now, and how long they may be.
const LONG_FILES: &[(&str, usize, &str)] = &[];

/// Functions that are longer for now.
const LONG_FUNCTIONS: &[(&str, &str, &str)] = &[];

/// Where `unsafe` may stand.
const UNSAFE_FILES: &[(&str, &str)] = &[
    ("src/driver/socket.rs", "TCP_INFO has no safe wrapper"),
    ("src/driver/uring/ring.rs", "operations name memory by address, the kernel's queues are memory shared with it"),
    ("src/driver/uring/buffers.rs", "the kernel writes into these buffers and reads the list of them by address"),
    ("src/pages.rs", "the kernel is told by address which memory shall have large pages"),
    ("src/index/rows/prefetch.rs", "instructions that prefetch take an address"),
    ("src/driver/uring/outbox.rs", "the kernel is told of bytes by address"),
    ("tests/orderings.rs", "loom's cell tells a race where a value would only tell bad luck"),
    ("tests/fleet/wedged.rs", "ptrace is the one way to stop one thread of another process"),
    ("src/scan/kernel/avx2.rs", "vector instructions of some CPUs"),
    ("src/scan/kernel/avx512.rs", "vector instructions of some CPUs"),
    ("src/scan/kernel/neon.rs", "vector instructions of some CPUs"),
    ("src/scan/kernel/table.rs", "calls what is compiled for some CPUs only on those"),
    ("bench/peers/src/net.rs", "a package of its own: its relay is the floor, with nothing between it and the kernel"),
    ("bench/peers/src/process.rs", "pins its children between fork and exec"),
];

/// What may be expected, because the line before has made sure of it.
const EXPECTATIONS: &[(&str, &str)] =
    &[("src/slots.rs", ".expect(\"grown above\")"), ("src/driver/uring/buffers.rs", ".expect(\"a few megabytes\")")];

/// Signs of work not done.
const UNFINISHED: &[(&[&str], &str)] = &[
    (&["todo", "!"], "write it, or answer an error that says what is missing"),
    (&["unimplemented", "!"], "write it, or answer an error that says what is missing"),
    (&["dbg", "!"], "take it out; what operators need goes through tracing"),
    (&["#", "[", "ignore"], "mend the test or delete it: one that never runs holds nothing"),
];

/// What ends a process on a value nobody expected.
const PANICS: &[(&[&str], &str)] = &[
    (&[".", "unwrap", "(", ")"], "hostile bytes never panic: handle the other case"),
    (&["panic", "!"], "hostile bytes never panic: answer an error, or assert what would be our own mistake"),
    (&["unreachable", "!"], "give the other case an answer: a wrong proof would end the process"),
    (&["println", "!"], "it ends the process where the reader has left: write, and go on without him"),
    (&["eprintln", "!"], "it ends the process where the reader has left: write, and go on without him"),
    (&["eprint", "!"], "it ends the process where the reader has left: write, and go on without him"),
];

/// Runtimes that `bench/runtimes` compares with. Warmfront has drivers of its own instead.
const COMPARATORS: &[&str] = &["monoio", "glommio", "compio"];

/// Names that say nothing of what is inside.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "manager", "managers", "helper", "helpers", "misc"];

#[test]
fn imports_go_down_only() {
    report(rooms::directions(&sources(&["src"])));
}

#[test]
fn pure_rooms_have_no_clock_thread_or_descriptor() {
    report(rooms::impurities(&sources(&["src"])));
}

#[test]
fn what_is_promised_is_tested() {
    report(promises::broken(Path::new(env!("CARGO_MANIFEST_DIR")), &sources(&["src", "tests"])));
}

#[test]
fn files_are_short() {
    let sources = sources(&["src"]);
    let mut faults = Vec::new();
    for source in &sources {
        let exception = LONG_FILES.iter().find(|(path, ..)| *path == source.path);
        let most = exception.map_or(FILE_LINES_MAX, |(_, most, _)| *most);
        let (path, length) = (&source.path, source.length);
        if length > most {
            faults
                .push(format!("{path}:1: {length} lines without tests, at most {most}: split it by what it is about"));
        } else if exception.is_some() && length <= FILE_LINES_MAX {
            faults.push(format!("{path}:1: {length} lines are few enough: take it off LONG_FILES"));
        }
    }
    faults.extend(absent("LONG_FILES", LONG_FILES.iter().map(|(path, ..)| *path), &sources));
    report(faults);
}

#[test]
fn functions_are_short() {
    let (mut faults, mut used) = (Vec::new(), Vec::new());
    for source in &sources(&["src"]) {
        for (line, name, length) in source.functions().into_iter().filter(|(.., length)| *length > FUNCTION_LINES_MAX) {
            match LONG_FUNCTIONS.iter().position(|(path, function, _)| (*path, *function) == (&source.path, name)) {
                Some(place) => used.push(place),
                None => faults.push(format!(
                    "{}:{line}: `{name}` has {length} lines, at most {FUNCTION_LINES_MAX}: split it",
                    source.path
                )),
            }
        }
    }
    let unused = LONG_FUNCTIONS.iter().enumerate().filter(|(place, _)| !used.contains(place));
    faults.extend(unused.map(|(_, (path, name, _))| format!("{path}:1: no long `{name}`: take it off LONG_FUNCTIONS")));
    report(faults);
}

#[test]
fn comments_fit_a_screen() {
    let mut faults = Vec::new();
    for source in sources(&["src"]) {
        for (number, line) in (1..).zip(source.text.lines()) {
            let (columns, words) = (line.chars().count(), line.trim_start());
            let is_table = words.trim_start_matches(['/', '!', ' ']).starts_with('|');
            if columns > COMMENT_COLUMNS_MAX && words.starts_with("//") && !is_table {
                faults.push(format!("{}:{number}: a comment of {columns} columns: break it", source.path));
            }
        }
    }
    report(faults);
}

#[test]
fn unsafe_stands_where_it_may() {
    let sources = sources(&["src", "tests", "bench"]);
    let mut faults = Vec::new();
    for source in &sources {
        let allowed = UNSAFE_FILES.iter().any(|(path, _)| *path == source.path);
        let found = lines_with(&source.code, &["unsafe"]);
        let silenced = lines_with(&source.code, &["unsafe_code"]);
        if allowed && found.is_empty() {
            faults.push(format!("{}:1: holds no unsafe code: take it off UNSAFE_FILES", source.path));
        }
        for line in found.into_iter().chain(silenced).filter(|_| !allowed) {
            faults.push(format!(
                "{}:{line}: unsafe code: use a safe wrapper, or put the file on UNSAFE_FILES with its reason",
                source.path
            ));
        }
    }
    faults.extend(absent("UNSAFE_FILES", UNSAFE_FILES.iter().map(|(path, _)| *path), &sources));
    report(faults);
}

#[test]
fn nothing_is_left_unfinished() {
    let sources = sources(&["src", "tests", "bench"]);
    report(sources.iter().flat_map(|source| forbidden(source, &source.code, UNFINISHED)).collect());
}

#[test]
fn the_product_does_not_panic_on_what_it_reads() {
    let sources = sources(&["src"]);
    let mut faults: Vec<String> =
        sources.iter().flat_map(|source| forbidden(source, &source.product, PANICS)).collect();
    let mut used = Vec::new();
    for source in &sources {
        for line in lines_with(&source.product, &[".", "expect", "("]) {
            // rustfmt may have put the message on the next line.
            let text: String = source.text.lines().skip(line - 1).take(2).map(str::trim).collect();
            match EXPECTATIONS.iter().position(|(path, what)| *path == source.path && text.contains(what)) {
                Some(place) => used.push(place),
                None => faults.push(format!(
                    "{}:{line}: `expect`: handle the other case, or put it on EXPECTATIONS where the code before makes sure",
                    source.path
                )),
            }
        }
    }
    let unused = EXPECTATIONS.iter().enumerate().filter(|(place, _)| !used.contains(place));
    faults.extend(unused.map(|(_, (path, what))| format!("{path}:1: no `{what}`: take it off EXPECTATIONS")));
    report(faults);
}

#[test]
fn every_dependency_says_what_for() {
    let mut faults = Vec::new();
    for path in files(&["."], "Cargo.toml") {
        let text = std::fs::read_to_string(root().join(&path)).unwrap();
        let mut listed = false;
        for (number, line) in text.lines().enumerate() {
            if line.starts_with('[') {
                listed = line.trim_end().ends_with("dependencies]");
            } else if listed && line.contains('=') && !line.starts_with('#') && !says_why(line) {
                faults.push(format!("{path}:{}: behind the dependency say what it is for: `# ...`", number + 1));
            }
        }
    }
    report(faults);
}

/// The lock file is read rather than `cargo tree` asked: it lists dependencies of every feature, platform
/// and test, and needs no registry.
#[test]
fn comparators_stay_out_of_the_product() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let packages: Vec<&str> = lock.split("[[package]]").skip(1).collect();
    let name = |package: &str| package.split('"').nth(1).map(str::to_owned).unwrap_or_default();
    for comparator in COMPARATORS {
        assert!(packages.iter().any(|package| name(package) == *comparator), "{comparator} is compared with nowhere");
    }
    let (mut reached, mut next) = (vec!["warmfront".to_owned()], 0);
    while let Some(from) = reached.get(next).cloned() {
        next += 1;
        // Versions apart: where two stand in the file, the dependencies of both are taken.
        for package in packages.iter().filter(|package| name(package) == from) {
            let listed = package.split_once("dependencies = [").map_or("", |(_, list)| list);
            let names = listed.split('"').skip(1).step_by(2).filter_map(|entry| entry.split(' ').next());
            reached.extend(
                names.filter(|name| !reached.iter().any(|seen| seen == name)).map(str::to_owned).collect::<Vec<_>>(),
            );
        }
    }
    assert!(reached.len() > 50, "only {reached:?} seen: Cargo.lock reads otherwise than expected");
    let inside = reached.iter().filter(|name| COMPARATORS.iter().any(|comparator| name.starts_with(comparator)));
    let fault = |name: &String| format!("Cargo.toml:1: warmfront depends on {name}: it is for bench/runtimes alone");
    report(inside.map(fault).collect());
}

/// Whether a comment of some words follows; a `#` in quotes is none.
fn says_why(line: &str) -> bool {
    let mut quoted = false;
    let comment = line.find(|sign| {
        quoted ^= sign == '"';
        sign == '#' && !quoted
    });
    comment.is_some_and(|at| line[at + 1..].trim().len() >= 10)
}

#[test]
fn names_say_what_is_inside() {
    let mut faults = Vec::new();
    for source in sources(&["src", "tests", "bench"]) {
        if source.path.split(['/', '.']).any(|part| EMPTY_NAMES.contains(&part)) {
            faults.push(format!("{}:1: name it after what is inside", source.path));
        }
        for pair in tokens(&source.code).windows(2) {
            if pair[0].text == "mod" && EMPTY_NAMES.contains(&pair[1].text) {
                let (path, line, name) = (&source.path, pair[1].line, pair[1].text);
                faults.push(format!("{path}:{line}: `mod {name}`: name it after what is inside"));
            }
        }
    }
    report(faults);
}

/// The rules would hold for anything if the reading were blind.
#[test]
fn code_is_told_from_what_is_not() {
    let text = r####"
use std::{thread, time::{self, Instant as Now}}; // unsafe
/* unsafe /* nested */ dbg!() */
fn one<'a>(text: &'a str) -> [u8; 2] {
    let s = "todo!() \" } {"; let r = r#"} " unsafe"#; let c = ['{', '\'', '"', '√'];
    crate::fleet::Loads::default(); super::ring::build::<u8>()
}
#[cfg(test)]
#[allow(dead_code)]
mod tests {
    fn two() { x.unwrap() }
}
fn three();
"####;
    let source = Source::of("src/shard/timers.rs".into(), text.into());
    assert_eq!((source.room(), source.length), ("shard", text.lines().count() - 5));
    assert_eq!((source.code.len(), source.product.len()), (text.len(), text.len()));
    assert_eq!(source.functions(), [(4, "one", 4)]);
    assert!(
        lines_with(&source.code, &["unsafe"]).is_empty() && forbidden(&source, &source.code, UNFINISHED).is_empty()
    );
    assert_eq!(lines_with(&source.code, &[".", "unwrap"]), [11]);
    assert!(forbidden(&source, &source.product, PANICS).is_empty());
    let paths: Vec<String> = source.paths().iter().map(|(line, path)| format!("{line} {}", path.join("::"))).collect();
    let expected = [
        "2 std::thread",
        "2 std::time",
        "2 std::time::Instant",
        "6 crate::fleet::Loads::default",
        "6 super::ring::build",
    ];
    assert_eq!(paths, expected);
    assert!(says_why("x = \"1#2\" # finds line ends") && !says_why("x = \"1 # in quotes, no comment\""));
}

/// Where these words and signs stand one behind the other, as faults.
fn forbidden(source: &Source, code: &str, list: &[(&[&str], &str)]) -> Vec<String> {
    let found = |(words, what): &(&[&str], &str)| {
        let fault = |line| format!("{}:{line}: `{}`: {what}", source.path, words.concat());
        lines_with(code, words).into_iter().map(fault).collect::<Vec<_>>()
    };
    list.iter().flat_map(found).collect()
}

fn lines_with(code: &str, words: &[&str]) -> Vec<usize> {
    let tokens = tokens(code);
    let here = tokens.windows(words.len()).filter(|run| run.iter().map(|token| token.text).eq(words.iter().copied()));
    here.map(|run| run[0].line).collect()
}

/// Entries of a table whose file is gone.
fn absent<'a>(table: &str, paths: impl Iterator<Item = &'a str>, sources: &[&Source]) -> Vec<String> {
    let gone = paths.filter(|path| !sources.iter().any(|source| source.path == *path));
    gone.map(|path| format!("{path}:1: there is no such file: take it off {table}")).collect()
}

fn report(faults: Vec<String>) {
    assert!(faults.is_empty(), "{} to mend:\n{}\n", faults.len(), faults.join("\n"));
}

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

/// All there are, read once for all rules.
fn sources(below: &[&str]) -> Vec<&'static Source> {
    static ALL: LazyLock<Vec<Source>> = LazyLock::new(|| {
        files(&["src", "tests", "bench"], ".rs").into_iter().map(|path| Source::read(&root(), path)).collect()
    });
    let is_below = |source: &&Source| below.iter().any(|directory| Path::new(&source.path).starts_with(directory));
    let sources: Vec<&Source> = ALL.iter().filter(is_below).collect();
    assert!(sources.len() > 3, "no sources under {below:?}");
    sources
}

/// Files whose name ends so, in order; build outputs and dot-files aside.
fn files(below: &[&str], end: &str) -> Vec<String> {
    let mut found = Vec::new();
    below.iter().for_each(|directory| collect(&root().join(directory), end, &mut found));
    found.sort();
    found
}

fn collect(directory: &Path, end: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            collect(&path, end, found);
        } else if path.is_file() && name.ends_with(end) {
            let relative = path.strip_prefix(root()).unwrap();
            found.push(relative.to_string_lossy().trim_start_matches("./").to_owned());
        }
    }
}
