//! As many clients as there are places; the others wait where the kernel keeps them.

use std::time::Duration;

use crate::client::{Client, get};
use crate::engine::Engine;
use crate::front::{Front, shared};
use crate::on_both_drivers;

on_both_drivers!(beyond_the_most_connections_clients_wait_for_a_place);

const MOST: usize = 8;
const CROWD: usize = 60;

fn beyond_the_most_connections_clients_wait_for_a_place(driver: &str) {
    let _room = shared();
    let engine = Engine::start();
    let front = Front::start(driver, engine.address, &format!("connections_max = {MOST}"));
    let (accepted, descriptors) = (front.accepted(), front.descriptors());
    let mut crowd: Vec<Client> = (0..CROWD).map(|_| front.connect()).collect();
    for client in &mut crowd {
        client.send(get("/v1/quick"));
    }
    for client in &mut crowd[..MOST] {
        assert_eq!(client.reply().status, 200);
    }
    assert!(crowd[MOST].is_silent(Duration::from_millis(300)), "served beyond the most connections");
    assert_eq!(front.accepted() - accepted, MOST);
    // Nor are they taken and put aside.
    let open = front.descriptors() - descriptors;
    assert!(open <= 2 * MOST + 4, "{open} descriptors more for {MOST} clients");
    // Each that leaves makes room for one.
    for leaving in 0..CROWD - MOST {
        crowd.remove(0);
        assert_eq!(crowd[MOST - 1].reply().status, 200, "after {leaving} have left");
        assert!(front.descriptors() - descriptors <= 2 * MOST + 8);
    }
    assert_eq!(front.accepted() - accepted, CROWD);
}
