//! Servers with several ranks behind one port: each request names the one that it is for, and no other.

use std::net::SocketAddr;

use warmfront::counters::stats::Count;
use warmfront::policy::Policy;

use crate::client::{chat, post};
use crate::engine::{Engine, HELLO, Request, refusing};
use crate::front::{Front, Options, republish};
use crate::recorded::recording;

const NAME: &str = "x-data-parallel-rank";

/// A front whose endpoints have these addresses and are these ranks.
fn front(endpoints: &[(SocketAddr, Option<u16>)], change: impl FnOnce(&mut Options)) -> Front {
    let addresses: Vec<SocketAddr> = endpoints.iter().map(|(address, _)| *address).collect();
    let front = Front::with(&addresses, change);
    rank(&front, endpoints);
    front
}

fn rank(front: &Front, endpoints: &[(SocketAddr, Option<u16>)]) {
    republish(front, |snapshot| {
        let ranks = endpoints.iter().map(|(_, rank)| *rank);
        snapshot.endpoints.iter_mut().flatten().zip(ranks).for_each(|(endpoint, rank)| endpoint.rank = rank);
    });
}

fn named(request: &Request) -> Vec<String> {
    request.head.all(NAME).into_iter().map(str::to_owned).collect()
}

fn with_field(request: &str, field: &str) -> String {
    let (line, rest) = request.split_once("\r\n").unwrap();
    format!("{line}\r\nx-before: 1\r\n{field}\r\n{rest}")
}

fn text(request: impl AsRef<[u8]>) -> String {
    String::from_utf8(request.as_ref().to_vec()).unwrap()
}

/// A prefix has a home, and the home is one rank.
#[test]
fn requests_with_one_prefix_go_to_one_rank_and_name_it() {
    let engine = Engine::answering(HELLO);
    let ranks: Vec<_> = (0..3).map(|rank| (engine.address, Some(rank))).collect();
    let front = front(&ranks, |options| options.settings.policy = Policy::PrefixHash);
    let mut seen = [0; 3];
    for prompt in 0..12 {
        let asked: Vec<Vec<String>> = (0..4)
            .map(|turn| {
                let request = text(chat("tiny-llama", &format!("prompt {prompt}")));
                // Whatever rank the client itself names.
                let own =
                    [("", 0), ("X-Data-Parallel-Rank: 7", 1), ("x-data-parallel-rank:1\r\nx-data-parallel-rank: 2", 1)];
                let (field, before) = own[turn % 3];
                let request = if before == 0 { request } else { with_field(&request, field) };
                assert_eq!(front.ask(&request).status, 200);
                let got = engine.requests().pop().unwrap();
                assert_eq!(got.head.all("x-before").len(), before);
                assert_eq!(got.body, request.split_once("\r\n\r\n").unwrap().1.as_bytes());
                named(&got)
            })
            .collect();
        let [rank] = asked[0].as_slice() else { panic!("{asked:?}") };
        assert!(asked.iter().all(|one| one == &asked[0]), "{asked:?}");
        seen[rank.parse::<usize>().unwrap()] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    front.settles();
}

/// If no endpoint has ranks, the rank that a client names passes as it came.
#[test]
fn without_ranks_what_a_client_names_passes() {
    let engine = Engine::answering(HELLO);
    let front = front(&[(engine.address, None)], |_| {});
    let request = with_field(&text(post("/v1/chat/completions", "{}")), "X-Data-Parallel-Rank: 3");
    assert_eq!(front.ask(request).status, 200);
    let got = engine.requests().pop().unwrap();
    assert_eq!(named(&got), ["3"]);
    let names: Vec<&str> = got.head.fields.iter().map(|(name, _)| name.as_str()).collect();
    let place = |name: &str| names.iter().position(|other| other.eq_ignore_ascii_case(name)).unwrap();
    assert_eq!(place(NAME), place("x-before") + 1, "{names:?}");
    front.settles();
}

/// All ranks of a server are behind the port that refused: with two tries the second one goes to another server, and no
/// client notices.
#[test]
fn who_cannot_be_reached_cannot_by_another_rank() {
    let (dead, engine) = (refusing(), Engine::answering(HELLO));
    let mut endpoints: Vec<_> = (0..4).map(|rank| (dead, Some(rank))).collect();
    endpoints.extend((0..2).map(|rank| (engine.address, Some(rank))));
    let front = front(&endpoints, |options| options.rules.limits.connect_tries_max = 2);
    for _ in 0..24 {
        assert_eq!(front.ask(post("/v1/chat/completions", "{}")).status, 200);
    }
    assert!(front.count(Count::ConnectFailed) > 0);
    let asked = engine.requests();
    assert!(asked.iter().all(|request| matches!(named(request).as_slice(), [rank] if ["0", "1"].contains(&&**rank))));
    assert!(["0", "1"].iter().all(|rank| asked.iter().any(|request| named(request) == [*rank])));
    front.settles();
}

/// The next endpoint gets what the client named if it has no ranks, and its own number if it has.
#[test]
fn a_further_try_names_what_is_for_it() {
    let (dead, engine) = (refusing(), Engine::answering(HELLO));
    let request = with_field(&text(post("/v1/chat/completions", "{\"a\":1}")), "X-Data-Parallel-Rank: 11");
    for (rank, expected) in [(None, "11"), (Some(12), "12")] {
        let front = front(&[(dead, Some(0)), (dead, Some(63)), (engine.address, rank)], |_| {});
        for _ in 0..6 {
            assert_eq!(front.ask(&request).status, 200);
            let got = engine.requests().pop().unwrap();
            assert_eq!(
                (named(&got), got.text(), got.head.all("x-before").len()),
                (vec![expected.into()], "{\"a\":1}".into(), 1)
            );
        }
        assert!(front.count(Count::ConnectFailed) > 0);
        front.settles();
    }
}

/// A full queue is that of one rank: another of the same server may take the request.
#[test]
fn what_one_rank_is_too_busy_for_goes_to_another() {
    let busy = recording("rejected-plain.response");
    let engine = Engine::run(move |mut connection| {
        while let Some(request) = connection.request() {
            let answer = if named(&request) == ["0"] { busy.clone() } else { HELLO.into() };
            connection.send(&answer);
        }
    });
    let front = front(&[(engine.address, Some(0)), (engine.address, Some(1))], |_| {});
    for _ in 0..8 {
        assert_eq!(front.ask(post("/v1/chat/completions", "{}")).status, 200);
    }
    assert!(front.count(Count::RetriedBusy) > 0);
    front.settles();
}

/// If no rank of a server takes a request, the one further try is left for another server.
#[test]
fn what_no_rank_of_a_server_takes_goes_to_another_server() {
    let scales = r#"{"error":"The model is currently scaling. Please try again later."}"#;
    for (told, after) in [("no healthy upstream", Count::RetriedConnect), (scales, Count::RetriedBusy)] {
        let answer = format!("HTTP/1.1 503 Service Unavailable\r\ncontent-length: {}\r\n\r\n{told}", told.len());
        let (taking_none, engine) = (Engine::answering(answer), Engine::answering(HELLO));
        let ranks: Vec<_> = (0..8).map(|rank| (taking_none.address, Some(rank))).collect();
        let all: Vec<_> = ranks.iter().copied().chain([(engine.address, None)]).collect();
        let among_all = front(&all, |_| {});
        // So that the budget for retries has enough saved up.
        for _ in 0..10 {
            assert_eq!(among_all.ask(post("/v1/completions", "{}")).status, 200, "{told}");
        }
        assert!(among_all.count(after) > 0);
        among_all.settles();

        // Without another server the engine's own words reach the client, and it was asked once.
        let alone = front(&ranks, |_| {});
        let before = taking_none.executions();
        let reply = alone.ask(post("/v1/completions", "{}"));
        assert_eq!((reply.status, reply.text()), (503, told.to_owned()));
        assert_eq!((taking_none.executions(), alone.count(after)), (before + 1, 0), "{told}");
        alone.settles();
    }
}

/// The request's head came when its server was one endpoint, before it was given ranks.
#[test]
fn a_request_that_came_before_ranks_did_names_one() {
    let engine = Engine::answering(HELLO);
    let endpoints = |rank| [(engine.address, rank)];
    let front = front(&endpoints(None), |options| options.settings.policy = Policy::PrefixHash);
    let request = with_field(&text(chat("tiny-llama", "hello")), "X-Data-Parallel-Rank: 3");
    let body = request.split_once("\r\n\r\n").unwrap().1.to_owned();
    let (first, rest) = request.split_at(request.find("hello").unwrap() + 2);
    let mut client = front.connect();
    client.send(first);
    front.until("it is counted", |front| front.count(Count::Accepted) > 0);
    std::thread::sleep(std::time::Duration::from_millis(50));
    rank(&front, &endpoints(Some(10)));
    std::thread::sleep(std::time::Duration::from_millis(50));
    client.send(rest);
    assert_eq!(client.reply().status, 200);
    let got = engine.requests().pop().unwrap();
    assert_eq!((named(&got), got.text()), (vec!["10".to_owned()], body));
    // And the other way round.
    let mut client = front.connect();
    client.send(first);
    std::thread::sleep(std::time::Duration::from_millis(50));
    rank(&front, &endpoints(None));
    std::thread::sleep(std::time::Duration::from_millis(50));
    client.send(rest);
    assert_eq!(client.reply().status, 200);
    assert_eq!(named(engine.requests().last().unwrap()), ["3"]);
    front.settles();
}
