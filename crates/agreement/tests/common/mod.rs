//! What tests of endpoints share.

use agreement::roster::Announcement;
use agreement::{Endpoint, Event, Meeting, ProcessId};
use std::time::{Duration, Instant};

/// Nothing here takes so long, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A number that no other process has.
pub fn unique(n: u64) -> ProcessId {
    u64::from(std::process::id()) << 32 | n
}

pub fn announcement(comm: u64, rank: i32, size: u32, process: ProcessId) -> Announcement {
    Announcement { comm, rank, size, host: 1, process, ordinal: 0, settings: 9 }
}

/// A port of this host that nobody is given by chance while this process lives: it is bound, and whoever asks for it by its number may listen.
pub fn tcp() -> Meeting {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
    let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&held, true).unwrap();
    bind(&held, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let at: std::net::SocketAddr = getsockname(&held).unwrap().try_into().unwrap();
    std::mem::forget(held);
    Meeting::Tcp { host: "127.0.0.1".into(), port: at.port() }
}

/// Polls them until `done`, at most [`PATIENCE`].
pub fn until(mut ends: Vec<&mut dyn Endpoint>, mut done: impl FnMut(&[Vec<Event>]) -> bool) -> Vec<Vec<Event>> {
    let mut events: Vec<Vec<Event>> = ends.iter().map(|_| Vec::new()).collect();
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE && !done(&events) {
        for (end, got) in ends.iter_mut().zip(&mut events) {
            end.poll(Duration::from_millis(2), got);
        }
    }
    events
}
