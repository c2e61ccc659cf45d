//! A front that is told to end amid a crowd.

use rustix::process::Signal;

use crate::client::{Client, get};
use crate::crowd::Crowd;
use crate::engine::Engine;
use crate::front::{Front, alone, room_for};
use crate::on_both_drivers;

on_both_drivers!(who_had_asked_is_answered_at_the_end);

/// On each of two shards more than a ring's queue has entries.
const IDLE: usize = 4_000;
/// Of whom so many ask once more, and so many others come.
const ASK: usize = 400;
const COME: usize = 300;

fn who_had_asked_is_answered_at_the_end(driver: &str) {
    let _room = alone();
    let count = room_for(IDLE);
    let engine = Engine::start();
    let front = Front::of_shards(2, driver, engine.address, "", None);
    let idle = Crowd::gather(&front, count, get("/health").as_bytes());
    // While it is stopped nothing is read, nor anybody accepted: all of it has come when the drain begins.
    front.signal(Signal::STOP);
    idle.send(ASK.min(count), get("/v1/quick").as_bytes());
    let mut coming: Vec<Client> = (0..COME).map(|_| front.connect()).collect();
    coming.iter_mut().for_each(|client| client.send(get("/v1/quick")));
    front.signal(Signal::TERM);
    front.signal(Signal::CONT);
    for (at, client) in coming.iter_mut().enumerate() {
        assert_eq!(client.reply().status, 200, "{at} of those who came");
        assert!(client.ends(), "{at} of those who came was reset");
    }
    for (at, got) in idle.read().enumerate() {
        let got = got.unwrap_or_else(|| panic!("{at} was reset"));
        let replies = memchr::memmem::find_iter(&got, "HTTP/1.1 200").count();
        assert_eq!(replies, 1 + usize::from(at < ASK), "{at}: {:?}", String::from_utf8_lossy(&got));
    }
}
