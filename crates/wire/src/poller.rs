//! Waits for many connections at a cost of those that are ready (epoll), not of those that are open.

use crate::link::Link;
use crate::socket::Listener;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 256;

/// Listeners and links under keys that the caller chooses.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        Ok(Poller { epoll: epoll::create(CreateFlags::CLOEXEC)? })
    }

    pub fn add_listener(&self, listener: &Listener, key: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, listener.fd(), EventData::new_u64(key), EventFlags::IN)?)
    }

    /// Reports the link when it is readable; with `writable` also when it becomes writable.
    pub fn add_link(&self, link: &Link, key: u64, writable: bool) -> io::Result<()> {
        let flags = if writable { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        Ok(epoll::add(&self.epoll, link.fd(), EventData::new_u64(key), flags)?)
    }

    /// Also reports the link when it becomes writable, or no longer does.
    pub fn set_writable_wanted(&self, link: &Link, key: u64, wanted: bool) {
        let flags = if wanted { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        let _ = epoll::modify(&self.epoll, link.fd(), EventData::new_u64(key), flags);
    }

    /// Must precede the end of a link: a forked child may hold its socket open, which would then be reported for ever.
    pub fn remove_link(&self, link: &Link) {
        let _ = epoll::delete(&self.epoll, link.fd());
    }

    /// Stops reporting a listener.
    pub fn remove_listener(&self, listener: &Listener) {
        let _ = epoll::delete(&self.epoll, listener.fd());
    }

    /// Waits at most `timeout` and appends the keys of what is ready. Interrupted: returns early.
    pub fn wait(&self, timeout: Duration, ready: &mut Vec<u64>) {
        let timeout =
            Timespec { tv_sec: timeout.as_secs().min(3600) as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
        let mut events = Vec::with_capacity(EVENTS_MAX);
        if epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).is_ok() {
            ready.extend(events.iter().map(|e| e.data.u64()));
        }
    }
}
