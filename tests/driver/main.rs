//! What both drivers promise ([`warmfront::driver`]): each behaviour is tested on each of them, over real loopback
//! sockets. The far end is a plain socket that the test itself reads and writes.
//!
//! `scripts` has both play the same seeded scripts: `WARMFRONT_DRIVER_SEED` plays one, `WARMFRONT_DRIVER_SCRIPTS` says
//! how many.

#[path = "../relay/alone.rs"]
mod alone;
mod peer;
#[path = "../relay/random.rs"]
mod random;
#[path = "../fleet/stops.rs"]
mod stops;
mod turns;
#[path = "../relay/untested.rs"]
mod untested;

use warmfront::driver::epoll::Epoll;
use warmfront::driver::uring::Uring;

/// Has each of these tests run once on each driver.
macro_rules! on_both_drivers {
    ($($name:ident)*) => {
        mod on_epoll {
            $(#[test]
            fn $name() {
                super::$name(crate::epoll());
            })*
        }
        mod on_uring {
            $(#[test]
            fn $name() {
                if let Some(driver) = crate::uring_or_say_why() {
                    super::$name(driver);
                }
            })*
        }
    };
}

/// The same, each in a process of its own.
macro_rules! alone_on_both_drivers {
    ($($name:ident)*) => {
        mod on_epoll {
            $(#[test]
            fn $name() {
                let name = concat!(module_path!(), "::", stringify!($name));
                crate::alone::alone(crate::test_name(name), || super::$name(crate::epoll));
            })*
        }
        mod on_uring {
            $(#[test]
            fn $name() {
                if crate::uring_or_say_why().is_some() {
                    let name = concat!(module_path!(), "::", stringify!($name));
                    crate::alone::alone(crate::test_name(name), || super::$name(crate::uring));
                }
            })*
        }
    };
}

mod arriving;
mod breaking;
mod bulk;
mod ending;
mod leaving;
mod line;
mod pausing;
mod play;
mod scale;
mod scripts;
mod sending;
mod splicing;

fn epoll() -> Epoll {
    Epoll::new().unwrap()
}

fn uring() -> Uring {
    Uring::new().unwrap()
}

/// A ring with room for few completions at a time: the kernel has to keep the others back.
fn narrow_uring(operations: u32, completions: u32) -> Uring {
    let driver = Uring::with_queues(&[(operations, completions)]).unwrap();
    assert_eq!(driver.queue_sizes(), (operations, completions));
    driver
}

/// A ring, or `None` if this kernel gives none.
fn uring_or_say_why() -> Option<Uring> {
    untested::has_ring("the io_uring driver").then(uring)
}

/// The name by which the test binary knows a test: its path without the crate.
fn test_name(path: &str) -> &str {
    path.split_once("::").map_or(path, |(_, name)| name)
}
