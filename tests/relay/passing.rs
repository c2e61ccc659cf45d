//! What passes, and that it passes unchanged.

use std::io::{Read, Write};

use crate::engine::Engine;
use crate::front::Front;

const HELLO: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";

fn post(path: &str, body: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

#[test]
fn a_request_and_its_reply() {
    let engine = Engine::answering(HELLO);
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    for _ in 0..3 {
        client.write_all(post("/v1/chat/completions", "{\"a\":1}").as_bytes()).unwrap();
        let mut reply = [0; 512];
        let len = client.read(&mut reply).unwrap();
        let text = String::from_utf8_lossy(&reply[..len]);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\n{}"), "{text}");
    }
    let requests = engine.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests[0].ends_with(b"\r\n\r\n{\"a\":1}"), "{}", String::from_utf8_lossy(&requests[0]));
    front.settles();
}
