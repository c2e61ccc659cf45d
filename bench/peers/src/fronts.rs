//! How each front is started: one worker, no logs, upstream connections kept, nothing buffered that need not be. This
//! file has every invocation and configuration of a front.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::content::Pace;
use crate::scenario::Scenario;

pub use crate::report::DIRECT;
pub const RELAY: &str = "relay";
pub const RELAY_HOLD: &str = "relay-hold";
pub const HAPROXY: &str = "haproxy";
pub const NGINX: &str = "nginx";
pub const WARMFRONT: &str = "warmfront";
pub const WARMFRONT_URING: &str = "warmfront-uring";

/// The same front with long opaque replies copied like any other.
pub const WARMFRONT_COPY: &str = "warmfront-copy";
pub const WARMFRONT_URING_COPY: &str = "warmfront-uring-copy";
/// One shard that may run on any core, and two: what a second one costs.
pub const WARMFRONT_FREE: &str = "warmfront-free";
pub const WARMFRONT_URING_FREE: &str = "warmfront-uring-free";
pub const WARMFRONT_TWO: &str = "warmfront-two";
pub const WARMFRONT_URING_TWO: &str = "warmfront-uring-two";
/// The same front by another binary: the state before a change.
pub const WARMFRONT_BEFORE: &str = "warmfront-before";
pub const WARMFRONT_URING_BEFORE: &str = "warmfront-uring-before";
/// The same front by other policies: one that looks at no prompt, as it runs without prompts anyway, and the default.
pub const WARMFRONT_BLIND: &str = "warmfront-blind";
pub const WARMFRONT_URING_BLIND: &str = "warmfront-uring-blind";
pub const WARMFRONT_WARM: &str = "warmfront-warm";
pub const WARMFRONT_URING_WARM: &str = "warmfront-uring-warm";
pub const ALL: [&str; 19] = [
    DIRECT,
    RELAY,
    RELAY_HOLD,
    HAPROXY,
    NGINX,
    WARMFRONT,
    WARMFRONT_URING,
    WARMFRONT_COPY,
    WARMFRONT_URING_COPY,
    WARMFRONT_FREE,
    WARMFRONT_URING_FREE,
    WARMFRONT_TWO,
    WARMFRONT_URING_TWO,
    WARMFRONT_BEFORE,
    WARMFRONT_URING_BEFORE,
    WARMFRONT_BLIND,
    WARMFRONT_URING_BLIND,
    WARMFRONT_WARM,
    WARMFRONT_URING_WARM,
];
/// Each front with the one that it is compared to, to say what a change costs.
pub const CHANGES: [(&str, &str); 2] = [(WARMFRONT, WARMFRONT_BEFORE), (WARMFRONT_URING, WARMFRONT_URING_BEFORE)];
/// Fronts that tell something only in scenarios of prompts.
const OF_PROMPTS: [&str; 3] = [RELAY_HOLD, WARMFRONT_BLIND, WARMFRONT_URING_BLIND];
const FIRST_OF_OURS: usize = 5;
pub const DEFAULT: [&str; 7] = [DIRECT, RELAY, RELAY_HOLD, HAPROXY, NGINX, WARMFRONT, WARMFRONT_URING];

/// Our own binaries.
pub struct Ours {
    pub now: PathBuf,
    pub before: Option<PathBuf>,
}

impl Ours {
    fn of(&self, front: &str) -> Result<&Path, String> {
        let before = CHANGES.iter().any(|(_, before)| *before == front);
        let missing = "name the binary to compare with by --before".to_string();
        let path = if before { self.before.as_deref().ok_or(missing)? } else { &self.now };
        let words = || format!("{} is not built (cargo build --release, or name it with --warmfront)", path.display());
        path.is_file().then_some(path).ok_or_else(words)
    }
}

/// What a front is started with.
pub struct Setup<'a> {
    pub scenario: &'a Scenario,
    pub listen: u16,
    pub admin: u16,
    pub upstreams: [u16; 2],
    /// An empty directory of this start.
    pub dir: &'a Path,
    pub ours: &'a Ours,
}

/// Whether a front takes part in a scenario.
pub fn takes_part(front: &str, scenario: &Scenario) -> bool {
    match front {
        DIRECT => scenario.rate > 0,
        front if OF_PROMPTS.contains(&front) => scenario.by_prompt,
        _ => true,
    }
}

/// Returns the program of a front, or says what is missing.
pub fn program(front: &str, ours: &Ours) -> Result<PathBuf, String> {
    match front {
        DIRECT | RELAY | RELAY_HOLD => std::env::current_exe().map_err(|error| error.to_string()),
        HAPROXY | NGINX => {
            let paths = ["/usr/sbin", "/usr/local/sbin", "/usr/bin", "/usr/local/bin"];
            let found = paths.iter().map(|dir| Path::new(dir).join(front)).find(|path| path.is_file());
            found.ok_or(format!("{front} is not installed (Debian: apt-get install {front})"))
        }
        front if is_ours(front) => ours.of(front).map(Path::to_path_buf),
        _ => Err(format!("no such front; there are {}", ALL.join(", "))),
    }
}

/// Name and version, for the record.
pub fn version(front: &str, ours: &Ours) -> String {
    let flag = match front {
        HAPROXY | NGINX => "-v",
        front if is_ours(front) => "--version",
        _ => return String::new(),
    };
    let Ok(output) = program(front, ours)
        .and_then(|program| Command::new(program).arg(flag).output().map_err(|error| error.to_string()))
    else {
        return String::new();
    };
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_string()
}

fn is_ours(front: &str) -> bool {
    ALL[FIRST_OF_OURS..].contains(&front)
}

/// Whether a front is not held to the one core of fronts.
pub fn runs_anywhere(front: &str) -> bool {
    [WARMFRONT_FREE, WARMFRONT_URING_FREE, WARMFRONT_TWO, WARMFRONT_URING_TWO].contains(&front)
}

/// The command that starts a front in the foreground; its configuration is written first.
pub fn command(front: &str, setup: &Setup) -> Result<Command, String> {
    let program = program(front, setup.ours)?;
    let mut command = Command::new(if runs_anywhere(front) { "taskset".into() } else { program.clone() });
    if runs_anywhere(front) {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        command.args(["--cpu-list", &format!("0-{}", cores - 1)]).arg(program);
    }
    let [first, second] = setup.upstreams;
    match front {
        RELAY | RELAY_HOLD => {
            command.args(["relay", "--listen", &setup.listen.to_string()]);
            command.args(["--upstreams", &format!("{first},{second}")]);
            if front == RELAY_HOLD {
                command.arg("--hold");
            }
        }
        HAPROXY => {
            command.arg("-db").arg("-f").arg(write(setup, "haproxy.cfg", &haproxy(setup))?);
        }
        NGINX => {
            let config = write(setup, "nginx.conf", &nginx(setup))?;
            command.arg("-p").arg(setup.dir).arg("-c").arg(config).args(["-e", "stderr"]);
        }
        front if is_ours(front) => {
            let driver = if front.starts_with(WARMFRONT_URING) { "uring" } else { "epoll" };
            let shards = if [WARMFRONT_TWO, WARMFRONT_URING_TWO].contains(&front) { "2" } else { "1" };
            let policy = match front {
                WARMFRONT_WARM | WARMFRONT_URING_WARM => "warm",
                WARMFRONT_BLIND | WARMFRONT_URING_BLIND => "round-robin",
                _ if setup.scenario.by_prompt => "prefix-hash",
                _ => "round-robin",
            };
            command.arg("serve").arg("--config").arg(write(setup, "warmfront.toml", &warmfront(setup, front))?);
            command.args(["--shards", shards, "--driver", driver, "--policy", policy]);
            command.args(["--listen", &format!("127.0.0.1:{}", setup.listen)]);
            command.args(["--admin", &format!("127.0.0.1:{}", setup.admin)]);
            for port in setup.upstreams {
                command.args(["--upstream", &format!("http://127.0.0.1:{port}")]);
            }
        }
        _ => return Err(format!("{front} cannot be started")),
    }
    Ok(command)
}

/// Room for the scenario's connections on both sides and a little more: what a front reserves for each possible
/// connection would otherwise be charged to none of them.
fn connections(setup: &Setup) -> usize {
    setup.scenario.connections + 500
}

/// HAProxy for long messages, as its manual has it: bodies of known length are spliced, which is off by default and
/// costs it less at 1 MB, both ways, and a buffer holds what the relay reads at once. It does not splice chunked
/// streams, and idle ones hold no buffer. Pipes are for a few long bodies at once: by default it asks for the
/// descriptors of two pipes for every fourth connection, which with 8,000 idle ones are more than a machine may give.
fn haproxy(setup: &Setup) -> String {
    let [first, second] = setup.upstreams;
    format!(
        "global
    nbthread 1
    maxconn {connections}
    maxpipes 128
    tune.bufsize 65536
defaults
    mode http
    option splice-request
    option splice-response
    option http-no-delay
    http-reuse always
    timeout connect 5s
    timeout client 10m
    timeout server 10m
    timeout http-keep-alive 10m
frontend bench
    bind 127.0.0.1:{listen} backlog 4096
    default_backend engines
backend engines
    balance roundrobin
    server a 127.0.0.1:{first}
    server b 127.0.0.1:{second}
",
        connections = connections(setup),
        listen = setup.listen,
    )
}

/// A body buffer of 1 MB: with nginx's 16 KB a long prompt would go through a file, and unbuffered requests in 16 KB
/// steps cost it twice as much. A long reply is read in pieces as long as the relay's, not in pages; short ones and
/// streams keep the page, of which each holds one.
fn nginx(setup: &Setup) -> String {
    let [first, second] = setup.upstreams;
    let reply_buffer = match setup.scenario.pace {
        Pace::Speech => "proxy_buffer_size 64k; proxy_buffers 8 64k;",
        _ => "",
    };
    format!(
        "daemon off;
worker_processes 1;
user root;
pid {dir}/nginx.pid;
error_log stderr error;
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    client_max_body_size 64m;
    keepalive_requests 1000000000;
    keepalive_timeout 10m;
    upstream engines {{
        server 127.0.0.1:{first};
        server 127.0.0.1:{second};
        keepalive 1024;
        keepalive_requests 1000000000;
        keepalive_timeout 10m;
    }}
    server {{
        listen 127.0.0.1:{listen} backlog=4096;
        location / {{
            proxy_pass http://engines;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_buffering off; {reply_buffer}
            client_body_buffer_size 1m;
            proxy_read_timeout 10m;
        }}
    }}
}}
",
        dir = setup.dir.display(),
        // nginx drops connections that await a request once fewer than a sixteenth are free.
        connections = 3 * connections(setup),
        listen = setup.listen,
    )
}

/// The whole conversation is the prefix: what a choice by prompt costs at most.
fn warmfront(setup: &Setup, front: &str) -> String {
    let mut config = String::new();
    if runs_anywhere(front) {
        config += "[serve]\npin = false\n";
    }
    if setup.scenario.by_prompt {
        config += "[routing]\npolicy = \"prefix-hash\"\nprefix = \"conversation\"\nprefix_bytes = 4194304\n";
    }
    if [WARMFRONT_COPY, WARMFRONT_URING_COPY].contains(&front) {
        config += "[limits]\nsplice_bytes_min = 1000000000000\n";
    }
    config
}

fn write(setup: &Setup, name: &str, text: &str) -> Result<PathBuf, String> {
    let path = setup.dir.join(name);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
