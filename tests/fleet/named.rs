//! Host names of which each address is an engine (`each_address`), in a whole front.

use crate::engine::Engine;
use crate::front::Front;
use crate::reloading::config;
use crate::until;

/// Look-ups go on from the start to the end: a name that nobody knows is told of until it is configured no longer.
#[test]
fn a_name_that_cannot_be_followed_is_told_of_until_it_goes() {
    let engine = Engine::start();
    let often = "[control]\nresolve_interval_ms = 100\n";
    let alone = config(often, &[&engine]);
    let named = format!("{alone}[[upstream]]\nurl = \"http://nowhere.invalid.:1\"\neach_address = true\n");
    let front = Front::start("auto", &[], &named);
    let unfollowed = || front.metric("warmfront_host_names_unfollowed");
    until("a name that is not followed", || unfollowed() == 1.0);
    front.until_said("cannot follow a host name: no engine of its is known yet");
    assert_eq!(front.connect().post().status, 200, "the engine beside it serves");
    front.write(&alone);
    assert_eq!(front.reload().0, 200);
    until("no such name any more", || unfollowed() == 0.0);
    assert_eq!(front.stop(), Some(0));
}
