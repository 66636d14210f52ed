//! Helpers for tests of endpoints.

use agreement::roster::Announcement;
use agreement::{Endpoint, ProcessId, Rendezvous, TransportEvent};
use std::time::{Duration, Instant};

/// Far longer than any step here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A process number that no other test process uses.
pub fn unique(n: u64) -> ProcessId {
    u64::from(std::process::id()) << 32 | n
}

pub fn announcement(comm: u64, rank: i32, size: u32, process: ProcessId) -> Announcement {
    Announcement { comm, rank, size, host: 1, process, ordinal: 0, settings: 9 }
}

/// A rendezvous at a free TCP port. The port stays bound while this process lives, so that it is not given away; it can still be bound by its number.
pub fn tcp() -> Rendezvous {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
    let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&held, true).unwrap();
    bind(&held, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let at: std::net::SocketAddr = getsockname(&held).unwrap().try_into().unwrap();
    std::mem::forget(held);
    Rendezvous::Tcp { host: "127.0.0.1".into(), port: at.port() }
}

/// Polls all ends until `done`, at most [`PATIENCE`].
pub fn until(
    mut ends: Vec<&mut dyn Endpoint>,
    mut done: impl FnMut(&[Vec<TransportEvent>]) -> bool,
) -> Vec<Vec<TransportEvent>> {
    let mut events: Vec<Vec<TransportEvent>> = ends.iter().map(|_| Vec::new()).collect();
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE && !done(&events) {
        for (end, got) in ends.iter_mut().zip(&mut events) {
            end.poll(Duration::from_millis(2), got);
        }
    }
    events
}
