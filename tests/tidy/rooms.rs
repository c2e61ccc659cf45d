//! Which room may know which, and what the pure rooms may not touch.

use crate::source::Source;

/// The rooms from top to bottom and what each may name: rooms of later rows only, so that the whole goes down.
const ROOMS: &[(&str, &[(&str, &str)])] = &[
    ("main", &[("cli", "the binary is its command line")]),
    (
        "cli",
        &[
            ("replay", "`warmfront replay`"),
            ("demo", "`warmfront demo`"),
            ("engine", "`warmfront engine`"),
            ("control", "`serve` starts it; `check` and `explain` ask engines and fleets as it does"),
            ("shard", "`serve` starts them"),
            ("publish", "`serve` makes what control and shards meet in"),
            ("succession", "`serve` may take another process's place"),
            ("exchange", "`serve` turns configuration into its rules"),
            ("config", "every command reads it"),
            ("kvevents", "`doctor` hears whether engines tell"),
            ("counters", "`serve` makes them"),
            ("snapshot", "`serve` begins with an empty one"),
            ("policy", "names of policies are values of a flag"),
            ("fleet", "`explain` chooses on a fleet without load"),
            ("scan", "`check` says which vector instructions it uses"),
            ("calendar", "`doctor` reads the dates of engines' answers"),
            ("limits", "`check` says what they come to on this machine"),
        ],
    ),
    (
        "replay",
        &[
            ("demo", "chats have the demo's lengths, drawn with its dice"),
            ("engine", "what it replays against"),
            ("policy", "the product's policies choose by their own code"),
            ("counters", "counted as shards count"),
            ("index", "`warm` looks prompts up in a real one"),
            ("snapshot", "pools are sealed in one"),
            ("fleet", "its engines as endpoints"),
            ("ring", "jumps go over the same one as `prefix-hash`"),
            ("scan", "which part of a prompt makes a key"),
            ("config", "how often engines are scraped"),
            ("calendar", "times in lines of an access log"),
        ],
    ),
    ("demo", &[("engine", "its fleet is simulated; the front runs as a process of its own")]),
    ("engine", &[]),
    (
        "control",
        &[
            ("publish", "writes snapshots"),
            ("succession", "starts a process in its place"),
            ("exchange", "a reload makes rules for the data plane"),
            ("config", "what the fleet is made of"),
            ("counters", "metrics, foreign load, slots at rest"),
            ("snapshot", "builds them"),
            ("policy", "`/explain` chooses as a shard would"),
            ("index", "makes it, and says who has a cache"),
            ("ring", "builds them when membership changes"),
            ("prefix", "`/explain` makes the key as a shard would"),
            ("kvevents", "listens to engines"),
            ("mirror", "keeps what they say that they hold"),
            ("template", "reads how models' prompts are written"),
            ("vocabulary", "and what text their tokens are"),
            ("fleet", "endpoints and their health"),
            ("scan", "`/explain` scans as a shard would"),
            ("calendar", "times in lines of the access log"),
            ("bout", "how often a trouble is said"),
            ("resolver", "where engines are"),
            ("want", "what is no engine's fault"),
            ("limits", "most endpoints, longest answers"),
        ],
    ),
    (
        "shard",
        &[
            ("driver", "the kernel"),
            ("publish", "reads the snapshot once a turn"),
            ("exchange", "one for each request"),
            ("counters", "its own statistics, the shared loads"),
            ("snapshot", "hands it to exchanges"),
            ("fleet", "upstream connections are kept by endpoint"),
            ("slots", "its connections"),
            ("config", "which driver is asked for, which of its listeners are in each other's way"),
        ],
    ),
    ("succession", &[]),
    (
        "driver",
        &[
            ("slots", "its sockets"),
            ("bout", "that the kernel refuses is said seldom"),
            ("want", "what is no engine's fault"),
            ("limits", "size of the receive buffer"),
        ],
    ),
    ("publish", &[("snapshot", "what is published"), ("exchange", "its rules are"), ("atomics", "its flags")]),
    (
        "exchange",
        &[
            ("config", "the networks that may see a choice, what rules are made from"),
            ("counters", "counts at the choice, releases at the end"),
            ("snapshot", "what it chooses from"),
            ("policy", "chooses"),
            ("prefix", "makes the key"),
            ("fleet", "names the endpoint to connect to"),
            ("scan", "looks into the body"),
            ("index", "notes what a choice leaves in a cache"),
            ("http", "reads and writes heads and framing"),
            ("calendar", "dates of its own answers"),
            ("limits", "deadlines and sizes"),
        ],
    ),
    (
        "config",
        &[
            ("policy", "`[routing]` is read into its settings"),
            ("kvevents", "where engines publish events"),
            ("scan", "part of those settings"),
            ("limits", "`[limits]`, and what values are possible"),
        ],
    ),
    (
        "mirror",
        &[
            ("kvevents", "what an engine says of its cache"),
            ("scan", "cuts the text of its blocks as prompts are cut"),
            ("vocabulary", "what text token ids stand for"),
            ("limits", "most blocks, longest chain"),
        ],
    ),
    (
        "kvevents",
        &[
            ("resolver", "where engines publish"),
            ("want", "what is no engine's fault"),
            ("limits", "sizes of messages"),
        ],
    ),
    (
        "counters",
        &[
            ("fleet", "holds the loads, is asked for endpoints"),
            ("limits", "most endpoints"),
            ("atomics", "shards raise and lower them together"),
        ],
    ),
    (
        "snapshot",
        &[
            ("policy", "pools"),
            ("fleet", "endpoints"),
            ("scan", "what bodies are scanned for"),
            ("index", "is shared by all"),
            ("ring", "of one pool"),
        ],
    ),
    (
        "policy",
        &[
            ("ring", "homes"),
            ("index", "who holds how much of a prompt"),
            ("fleet", "endpoints and loads"),
            ("scan", "what a policy needs to know of a body"),
            ("limits", "most endpoints, heaviest weight"),
        ],
    ),
    (
        "index",
        &[
            ("fleet", "names the endpoint"),
            ("limits", "most endpoints"),
            ("atomics", "shards and control write it together"),
            ("pages", "memory that is met in no order"),
        ],
    ),
    ("ring", &[("limits", "most points")]),
    ("prefix", &[("scan", "the hash it has made of a prompt")]),
    ("fleet", &[("limits", "most endpoints"), ("atomics", "loads are shared")]),
    (
        "template",
        &[
            ("scan", "the form that is read off a template"),
            ("vocabulary", "part of the form"),
            ("limits", "time and length of what a template writes"),
        ],
    ),
    ("scan", &[("vocabulary", "what text token ids stand for"), ("limits", "size of a block, longest chain")]),
    ("vocabulary", &[("limits", "longest file, largest token")]),
    ("http", &[("limits", "most bytes of a head")]),
    ("slots", &[]),
    ("calendar", &[]),
    ("resolver", &[]),
    ("bout", &[]),
    ("want", &[]),
    ("atomics", &[]),
    ("pages", &[]),
    ("limits", &[]),
];

/// Rooms that a test can run through without a descriptor or a sleep. The same bytes, `now` and snapshot
/// make the same answer there.
const PURE: &[&str] = &[
    "exchange",
    "counters",
    "index",
    "mirror",
    "snapshot",
    "policy",
    "ring",
    "prefix",
    "fleet",
    "template",
    "scan",
    "vocabulary",
    "http",
    "slots",
    "calendar",
    "limits",
];

/// What they may not name, and what to do instead.
const IMPURE: &[(&str, &str)] = &[
    ("std::net::TcpStream", SOCKETS),
    ("std::net::TcpListener", SOCKETS),
    ("std::net::UdpSocket", SOCKETS),
    ("std::net::ToSocketAddrs", SOCKETS),
    ("std::os", SOCKETS),
    ("rustix", SOCKETS),
    ("libc", SOCKETS),
    ("std::fs", "read files in config or cli, and pass what they hold"),
    ("std::env", "read the environment in cli, and pass what it holds"),
    ("std::process", "only the command line starts and ends processes"),
    ("std::time::Instant", CLOCK),
    ("std::time::SystemTime", CLOCK),
    ("std::thread", "shard and control start threads"),
    ("tokio", RUNTIME),
    ("hyper", RUNTIME),
    ("axum", RUNTIME),
    ("tracing", "count it, or answer it: lines in a request's path cost more than the request"),
];

const SOCKETS: &str = "the driver holds sockets: take bytes as an argument, answer an action";
const CLOCK: &str = "take `now` as an argument";
const RUNTIME: &str = "only control and the simulated engine run on it";

/// Names of other rooms that the table does not allow, and rows that nothing needs.
pub fn directions(sources: &[&Source]) -> Vec<String> {
    let mut faults = table_faults();
    let mut used = Vec::new();
    let rooms: Vec<&str> = sources.iter().map(|source| source.room()).collect();
    for source in sources.iter().filter(|source| source.room() != "lib") {
        let Some((room, allowed)) = ROOMS.iter().find(|(room, _)| *room == source.room()) else {
            faults.push(format!("{}:1: a new room: give it a row in ROOMS in tests/tidy/rooms.rs", source.path));
            continue;
        };
        for (line, path) in source.paths() {
            let Some(other) = other_room(source, &path).filter(|other| other != room && rooms.contains(other)) else {
                continue;
            };
            if allowed.iter().any(|(name, _)| *name == other) {
                used.push((*room, other));
            } else {
                faults.push(format!(
                    "{}:{line}: {room} may not know {other}: pass what it needs as an argument, move the code, or add \
                     the edge to ROOMS in tests/tidy/rooms.rs with its reason",
                    source.path
                ));
            }
        }
    }
    for (room, allowed) in ROOMS {
        for (other, _) in allowed.iter().filter(|(other, _)| rooms.contains(room) && rooms.contains(other)) {
            if !used.contains(&(room, other)) {
                faults.push(format!("tests/tidy/rooms.rs:1: {room} does not name {other} any more: delete that edge"));
            }
        }
    }
    faults
}

/// What clocks, threads and sockets the pure rooms name.
pub fn impurities(sources: &[&Source]) -> Vec<String> {
    let mut faults = Vec::new();
    for source in sources.iter().filter(|source| PURE.contains(&source.room())) {
        for (line, path) in source.paths() {
            for (banned, instead) in IMPURE {
                // `use std::time` would let `time::Instant` pass unseen, so it counts as well.
                let banned_path: Vec<&str> = banned.split("::").collect();
                if path.starts_with(&banned_path) || banned_path.starts_with(&path) {
                    let (file, room) = (&source.path, source.room());
                    faults.push(format!("{file}:{line}: {} in the pure room {room}: {instead}", path.join("::")));
                }
            }
        }
    }
    faults
}

/// The room that a path leads to, if it leads through the crate's root.
fn other_room<'a>(source: &'a Source, path: &[&'a str]) -> Option<&'a str> {
    let depth = source.path.trim_start_matches("src/").trim_end_matches("/mod.rs").split('/').count();
    let up = path.iter().take_while(|word| **word == "super").count();
    match path.first() {
        Some(&("crate" | "warmfront")) => path.get(1).copied(),
        Some(&"super") if up == depth => path.get(up).copied(),
        _ => None,
    }
}

/// The table must go down itself.
fn table_faults() -> Vec<String> {
    let mut faults = Vec::new();
    let place = |name: &str| ROOMS.iter().position(|(room, _)| *room == name);
    for (at, (room, allowed)) in ROOMS.iter().enumerate() {
        for (other, _) in allowed.iter().filter(|(other, _)| place(other).is_none_or(|below| below <= at)) {
            faults.push(format!("tests/tidy/rooms.rs:1: ROOMS: {room} names {other}, which has no row below it"));
        }
    }
    faults
}
