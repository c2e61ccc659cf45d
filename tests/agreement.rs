//! Fronts that know nothing of each other agree where every prompt is at home: two processes, one after
//! its restart, and one with a smaller fleet on all that is left.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(10);
const ENGINES: usize = 6;
const PROMPTS: usize = 300;
/// Connections of a client: some of them reach each shard.
const CONNECTIONS: usize = 8;

#[test]
fn two_processes_agree_on_every_home() {
    let engines = engines();
    let backwards: Vec<SocketAddr> = engines.iter().rev().copied().collect();
    let (one, two) = (Front::start(&engines, 1), Front::start(&backwards, 2));
    let homes = one.homes();
    assert_eq!(homes, two.homes());
    let distinct: HashSet<&String> = homes.iter().collect();
    assert_eq!(distinct.len(), ENGINES, "every engine is home to some prompt");
}

#[test]
fn a_restart_keeps_every_home() {
    let engines = engines();
    let before = Front::start(&engines, 2);
    let homes = before.homes();
    drop(before);
    assert_eq!(homes, Front::start(&engines, 2).homes());
}

#[test]
fn an_engine_less_moves_its_own_prompts_alone() {
    let mut engines = engines();
    let all = Front::start(&engines, 1).homes();
    let gone = engines.remove(2).to_string();
    let less = Front::start(&engines, 1).homes();
    let mut heirs = HashSet::new();
    for (prompt, (before, after)) in all.iter().zip(&less).enumerate() {
        assert_ne!(*after, gone);
        if *before == gone {
            heirs.insert(after);
        } else {
            assert_eq!(before, after, "prompt {prompt} moved though its home is still there");
        }
    }
    assert!(heirs.len() > 1, "what was at home there is shared out, not handed to {heirs:?}");
}

/// `warmfront serve` as a process. Ports are the kernel's choice and read from the log.
struct Front {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
}

impl Front {
    fn start(upstreams: &[SocketAddr], shards: usize) -> Front {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warmfront"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--policy", "prefix-hash"]);
        // The homes do not depend on a front's shards and drivers.
        let driver = if shards == 1 { "epoll" } else { "auto" };
        command.args(["--shards", &shards.to_string(), "--driver", driver]);
        upstreams.iter().for_each(|address| {
            command.args(["--upstream", &format!("http://{address}")]);
        });
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let unknown = ([0, 0, 0, 0], 0).into();
        // From here on the process ends with the value, whatever fails.
        let mut front = Front { child, address: unknown, admin: unknown };
        let said = front.said();
        front.admin = logged(&said, " admin=");
        front.address = logged(&said, " listening=[");
        front.until_learnt(upstreams.len());
        front
    }

    /// Its log, line by line; read to the end, so that it never waits for us.
    fn said(&mut self) -> mpsc::Receiver<String> {
        let log = BufReader::new(self.child.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || log.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line))));
        lines
    }

    /// Waits until every engine answers its probes and is known to serve the model: a key holds its name.
    fn until_learnt(&self, engines: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut client = Client::connect(self.admin);
            let (_, body) = client.ask("GET /endpoints HTTP/1.1\r\nhost: localhost\r\n", b"");
            let fleet: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let up = fleet["endpoints"].as_array().unwrap().iter().filter(|engine| engine["health"] == "up").count();
            let pools = fleet["pools"].as_array().unwrap();
            let served = |pool: &serde_json::Value| {
                pool["model"] == "tiny" && pool["endpoints"].as_array().is_some_and(|members| members.len() == engines)
            };
            if up == engines && pools.len() == 1 && pools.iter().all(served) {
                return;
            }
            assert!(Instant::now() < deadline, "the front does not learn its fleet: {fleet}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The home of every prompt. One is asked after the other, so that no load moves any.
    fn homes(&self) -> Vec<String> {
        let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| Client::connect(self.address)).collect();
        let mut home = |place: usize| {
            let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-warmfront-explain: 1\r\n";
            let (head, _) = clients[place % CONNECTIONS].ask(head, &prompt(place));
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            let line = head.lines().find_map(|line| line.strip_prefix("x-warmfront-explain: "));
            let words: Vec<&str> = line.unwrap_or_else(|| panic!("not explained: {head}")).split(' ').collect();
            assert_eq!(words[1], "reason=home", "{head}");
            words[0].strip_prefix("endpoint=").unwrap().to_owned()
        };
        (0..PROMPTS).map(&mut home).collect()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address behind `mark` in the first line that holds it.
fn logged(lines: &mpsc::Receiver<String>, mark: &str) -> SocketAddr {
    let mut seen = Vec::new();
    while let Ok(line) = lines.recv_timeout(PATIENCE) {
        if let Some((_, after)) = line.split_once(mark) {
            return after.split([' ', ',', ']']).next().unwrap().parse().unwrap();
        }
        seen.push(line);
    }
    panic!("`{mark}` was not logged: {seen:#?}");
}

/// Bodies in the shapes that clients write; what differs between prompts stands in the first user message.
fn prompt(place: usize) -> Vec<u8> {
    let text = match place % 3 {
        0 => format!("Question {place}: which block is warm?"),
        1 => format!("Frage {place}: \\u00fcber \\\"Bl\\u00f6cke\\\"\\n\\ud83d\\ude00 und é"),
        _ => format!("Summarise {place}: {}", "the engine keeps what it has seen. ".repeat(1_000)),
    };
    let user = match place % 2 {
        0 => format!(r#"{{"role":"user","content":"{text}"}}"#),
        _ => format!(r#"{{"role":"user","content":[{{"type":"text","text":"{text}"}}]}}"#),
    };
    let messages = match place % 5 {
        0 => format!(r#"[{{"role":"system","content":"Be brief."}},{user}]"#),
        1 => format!(r#"[{user},{{"role":"assistant","content":"Yes."}},{{"role":"user","content":"And then?"}}]"#),
        _ => format!("[{user}]"),
    };
    match place % 4 {
        0 => format!(r#"{{"model":"tiny","messages":{messages},"max_tokens":8}}"#),
        _ => format!(r#"{{"messages":{messages},"model":"tiny"}}"#),
    }
    .into()
}

/// One connection, kept from request to request.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream: BufReader::new(stream) }
    }

    /// Sends a request whose head lacks its length; answers head and body of the reply.
    fn ask(&mut self, head: &str, body: &[u8]) -> (String, Vec<u8>) {
        let mut request = format!("{head}content-length: {}\r\n\r\n", body.len()).into_bytes();
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request).unwrap();
        message(&mut self.stream).expect("a reply")
    }
}

/// Head, its names in lower case, and body of the next message; `None` at the connection's end.
fn message(stream: &mut BufReader<TcpStream>) -> Option<(String, Vec<u8>)> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok().filter(|&read| read > 0)? <= 2 {
            break;
        }
        if let Some((name, value)) = line.split_once(": ").filter(|_| !head.is_empty()) {
            let name = name.to_ascii_lowercase();
            length = if name == "content-length" { value.trim().parse().unwrap() } else { length };
            line = format!("{name}: {value}");
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// Engines that answer the least that a front asks of one.
fn engines() -> Vec<SocketAddr> {
    let engine = |_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || answer(BufReader::new(stream)));
            }
        });
        address
    };
    (0..ENGINES).map(engine).collect()
}

fn answer(mut stream: BufReader<TcpStream>) {
    let _ = stream.get_mut().set_nodelay(true);
    while let Some((head, _)) = message(&mut stream) {
        let body = match head.split(' ').nth(1) {
            Some("/health" | "/metrics") => "",
            Some("/v1/models") => r#"{"object":"list","data":[{"id":"tiny","object":"model"}]}"#,
            _ => "{}",
        };
        let reply = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.get_mut().write_all(reply.as_bytes()).is_err() {
            return;
        }
    }
}
