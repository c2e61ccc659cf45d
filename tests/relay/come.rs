//! Clients whose connections the kernel has queued before the test goes on.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use warmfront::driver::socket;

/// Longest wait for that.
const PATIENCE: Duration = Duration::from_secs(20);

/// Has clients connect, and waits until the kernel has queued their connections for the listener. The kernel may handle
/// the last packet of a handshake in a thread of its own: even after `connect` succeeded the connection may not be
/// queued yet, and is reset if the listener closes. Packets sent on one CPU are handled in order: once a byte is
/// acknowledged, so is all that was sent before it.
pub fn until_come<T: Send>(connect: impl FnOnce() -> T + Send) -> T {
    let come = || {
        // In a thread of its own: pinning it to a CPU pins the threads that it starts as well.
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        assert!(cores.first().is_some_and(|core| core_affinity::set_for_current(*core)), "no core to run on");
        let clients = connect();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut last = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        last.write_all(b".").unwrap();
        let begun = Instant::now();
        // The first byte acknowledged is the handshake's.
        while socket::acknowledged(last.as_fd()).unwrap() < 2 {
            assert!(begun.elapsed() < PATIENCE, "what was sent is not acknowledged");
            std::thread::yield_now();
        }
        clients
    };
    std::thread::scope(|scope| scope.spawn(come).join().unwrap())
}
