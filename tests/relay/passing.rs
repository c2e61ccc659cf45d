//! What passes, and that it passes unchanged.

use crate::client::post;
use crate::engine::{Engine, HELLO};
use crate::front::Front;

#[test]
fn a_request_and_its_reply() {
    let engine = Engine::answering(HELLO);
    let front = Front::start(&[engine.address]);
    let mut client = front.connect();
    for _ in 0..3 {
        let reply = client.ask(post("/v1/chat/completions", "{\"a\":1}"));
        assert_eq!((reply.status, reply.text().as_str()), (200, "{}"));
    }
    let requests = engine.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!(requests[0].text(), "{\"a\":1}");
    front.settles();
}
