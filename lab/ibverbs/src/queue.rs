//! Completion queues and their channels.

use rustix::event::EventfdFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use verbs::abi::Completion;

pub fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

/// A channel: a descriptor that counts events, and the queues they are of (as addresses of their C structures).
#[derive(Debug)]
pub struct Channel {
    pub event: OwnedFd,
    ready: Mutex<VecDeque<usize>>,
}

impl Channel {
    pub fn new() -> io::Result<Self> {
        Ok(Channel {
            event: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?,
            ready: Mutex::default(),
        })
    }

    fn tell(&self, queue: usize) {
        lock(&self.ready).push_back(queue);
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// The queue of the next event. Blocks as its descriptor does.
    pub fn next(&self) -> Option<usize> {
        let mut count = [0; 8];
        rustix::io::read(&self.event, &mut count).ok()?;
        lock(&self.ready).pop_front()
    }
}

#[derive(Debug, Default)]
struct Inner {
    done: VecDeque<Completion>,
    armed: bool,
    overrun: bool,
}

/// A completion queue.
#[derive(Debug)]
pub struct Queue {
    inner: Mutex<Inner>,
    channel: Option<Arc<Channel>>,
    /// Address of the C structure.
    address: usize,
    entries: usize,
}

impl Queue {
    pub fn new(channel: Option<Arc<Channel>>, address: usize, entries: usize) -> Self {
        Queue { inner: Mutex::default(), channel, address, entries }
    }

    pub fn push(&self, c: Completion) {
        let mut inner = lock(&self.inner);
        if inner.done.len() >= self.entries {
            inner.overrun = true;
            return;
        }
        inner.done.push_back(c);
        let tell = std::mem::take(&mut inner.armed);
        drop(inner);
        if let Some(channel) = self.channel.as_ref().filter(|_| tell) {
            channel.tell(self.address);
        }
    }

    pub fn arm(&self) {
        lock(&self.inner).armed = true;
    }

    /// Fills `to`; -1 after an overrun: completions were lost.
    pub fn poll(&self, to: &mut [Completion]) -> i32 {
        let mut inner = lock(&self.inner);
        if inner.overrun {
            return -1;
        }
        let n = inner.done.len().min(to.len());
        to.iter_mut().zip(inner.done.drain(..n)).for_each(|(to, c)| *to = c);
        n as i32
    }
}
