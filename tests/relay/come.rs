//! Clients that have come before anything else happens.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use warmfront::driver::socket;

/// Nobody waits longer for that.
const PATIENCE: Duration = Duration::from_secs(20);

/// Has clients connect, and waits until the kernel has taken in that they did. It may leave the last packet of a
/// handshake to a thread of its own: whatever `connect` said, nobody has come by then, and is reset where the listener
/// closes. What is sent on one CPU is taken in in its order: behind a byte that was acknowledged all before it was.
pub fn until_come<T: Send>(connect: impl FnOnce() -> T + Send) -> T {
    let come = || {
        // A thread of its own, since those that it starts would be pinned as it is.
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        assert!(cores.first().is_some_and(|core| core_affinity::set_for_current(*core)), "no core to run on");
        let clients = connect();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut last = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        last.write_all(b".").unwrap();
        let begun = Instant::now();
        // The first byte of all is the handshake's.
        while socket::acknowledged(last.as_fd()).unwrap() < 2 {
            assert!(begun.elapsed() < PATIENCE, "what was sent is not acknowledged");
            std::thread::yield_now();
        }
        clients
    };
    std::thread::scope(|scope| scope.spawn(come).join().unwrap())
}
