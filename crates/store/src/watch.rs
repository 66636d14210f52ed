//! A watcher of transactions: what a program that records times sees of them. Without one, nothing is measured.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// A transaction that ended.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    /// True if it held the write lock.
    pub writes: bool,
    /// `sqlite` or `postgresql`.
    pub system: &'static str,
    /// Its first moment.
    pub start: SystemTime,
    /// Its time, with the wait for the lock and the commit.
    pub took: Duration,
    /// False if it failed or was refused.
    pub done: bool,
}

static WATCHER: OnceLock<fn(&Transaction)> = OnceLock::new();

/// Calls `watcher` after every transaction of this process, on its thread. The first call counts.
pub fn on_transaction(watcher: fn(&Transaction)) {
    let _ = WATCHER.set(watcher);
}

/// Runs a transaction for the watcher.
pub(crate) fn watched<T, E>(system: &'static str, writes: bool, run: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let Some(watcher) = WATCHER.get() else { return run() };
    let (start, clock) = (SystemTime::now(), Instant::now());
    let result = run();
    watcher(&Transaction { writes, system, start, took: clock.elapsed(), done: result.is_ok() });
    result
}
