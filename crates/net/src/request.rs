//! Requests of a connection: what the program's thread polls. A poll of an unfinished request is an atomic load and a look at the clock;
//! now and then it looks at the sockets, too.

use crate::limits::GROUPED_MAX;
use crate::sender::RequestId;
use crate::shared::Thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

const FREE: u32 = 0;
const POSTED: u32 = 1;
const DONE: u32 = 2;
const FAILED: u32 = 3;

/// Result of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Pending,
    /// Bytes of each message.
    Done([u64; GROUPED_MAX]),
    /// The connection is broken.
    Failed,
}

#[derive(Debug, Default)]
pub struct Request {
    state: AtomicU32,
    sizes: [AtomicU64; GROUPED_MAX],
    /// Number of messages.
    count: AtomicU32,
    thread: Option<Arc<Thread>>,
}

impl Request {
    /// Reports progress. After `Done` the request is free again.
    pub fn poll(&self) -> Progress {
        match self.state.load(Ordering::Acquire) {
            DONE => {
                let sizes = std::array::from_fn(|i| self.sizes.get(i).map_or(0, |s| s.load(Ordering::Relaxed)));
                self.state.store(FREE, Ordering::Release);
                Progress::Done(sizes)
            }
            FAILED => Progress::Failed,
            _ => {
                self.thread.iter().for_each(|t| t.polled());
                Progress::Pending
            }
        }
    }

    /// Number of messages: 1, or that of a grouped receive.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed) as usize
    }
}

/// The requests of one connection.
#[derive(Debug)]
pub struct Pool {
    all: Box<[Request]>,
    next: AtomicUsize,
}

impl Pool {
    /// `thread`: the I/O thread that a poll of an unfinished request may help.
    pub(crate) fn new(size: usize, thread: Option<Arc<Thread>>) -> Self {
        let request = |_| Request { thread: thread.clone(), ..Request::default() };
        Pool { all: (0..size).map(request).collect(), next: AtomicUsize::new(0) }
    }

    /// A free request; `None` if all are in use.
    pub fn take(&self, count: usize) -> Option<RequestId> {
        let from = self.next.load(Ordering::Relaxed);
        for k in 0..self.all.len() {
            let i = (from + k) % self.all.len();
            let r = self.all.get(i)?;
            if r.state.compare_exchange(FREE, POSTED, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                r.count.store(count as u32, Ordering::Relaxed);
                self.next.store(i + 1, Ordering::Relaxed);
                return Some(i as RequestId);
            }
        }
        None
    }

    pub fn get(&self, id: RequestId) -> Option<&Request> {
        self.all.get(id as usize)
    }

    pub(crate) fn done(&self, id: RequestId, sizes: &[u64; GROUPED_MAX]) {
        let Some(r) = self.get(id) else { return };
        r.sizes.iter().zip(sizes).for_each(|(to, s)| to.store(*s, Ordering::Relaxed));
        let _ = r.state.compare_exchange(POSTED, DONE, Ordering::Release, Ordering::Relaxed);
    }

    /// Fails every request that is not done.
    pub(crate) fn fail_all(&self) {
        for r in &self.all {
            let _ = r.state.compare_exchange(POSTED, FAILED, Ordering::Release, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_taken_done_once_and_free_again() {
        let pool = Pool::new(2, None);
        let (a, b) = (pool.take(1).unwrap(), pool.take(3).unwrap());
        assert_eq!((pool.take(1), pool.get(b).unwrap().count()), (None, 3));
        assert_eq!(pool.get(a).unwrap().poll(), Progress::Pending);
        pool.done(a, &[7; GROUPED_MAX]);
        assert_eq!(pool.get(a).unwrap().poll(), Progress::Done([7; GROUPED_MAX]));
        assert_eq!(pool.take(1), Some(a));
        pool.fail_all();
        assert_eq!(pool.get(b).unwrap().poll(), Progress::Failed);
        pool.done(b, &[0; GROUPED_MAX]);
        assert_eq!(pool.get(b).unwrap().poll(), Progress::Failed);
    }
}
