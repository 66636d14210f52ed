//! Turns: a queue for clients whose commits failed several times. The queue blocks no other writes.
//!
//! Two clients that decide on the same snapshot mostly choose the same GPUs: one commits, the other must search again.
//! With many clients, one client could fail repeatedly. A client that failed a few times takes a turn: it waits until
//! no other client has one, and then competes only with clients that have no turn. Releases, drains and observations
//! need no turn, and a turn locks no table.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for a turn. After this time the decision continues without a turn: turns only provide fairness, and the
/// commit ensures correctness.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Interval at which a waiting client tries again.
const POLL: Duration = Duration::from_millis(2);

/// The source of turns; usable from any thread.
pub trait Turns: Send + Sync {
    /// Waits for a turn, at most a minute.
    fn take(&self) -> Turn;
}

/// A turn; it ends when the value is dropped.
pub struct Turn {
    _held: Option<Box<dyn Send>>,
}

/// Turns through a lock on a file next to the state. The state itself cannot be locked: closing any handle of a file releases all locks
/// of the process on it, SQLite's included.
pub(super) struct TurnFile(pub PathBuf);

impl Turns for TurnFile {
    fn take(&self) -> Turn {
        // Each turn opens the file again, so that threads exclude each other like processes.
        let Ok(file) = OpenOptions::new().create(true).truncate(false).write(true).open(&self.0) else {
            return Turn { _held: None };
        };
        let start = Instant::now();
        while start.elapsed() < WAIT_MAX {
            match file.try_lock() {
                Ok(()) => return Turn { _held: Some(Box::new(file)) },
                Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(POLL),
                Err(std::fs::TryLockError::Error(_)) => break,
            }
        }
        Turn { _held: None }
    }
}

/// Turns of the threads of one process, for a state without a file. Clients of several servers compete one per server.
#[derive(Default)]
pub(super) struct TurnQueue(Arc<Taken>);

#[derive(Default)]
struct Taken {
    taken: Mutex<bool>,
    given_back: Condvar,
}

struct Held(Arc<Taken>);

impl Drop for Held {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.given_back.notify_one();
    }
}

impl Turns for TurnQueue {
    fn take(&self) -> Turn {
        let taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.given_back.wait_timeout_while(taken, WAIT_MAX, |taken| *taken);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *taken {
            return Turn { _held: None };
        }
        *taken = true;
        Turn { _held: Some(Box::new(Held(self.0.clone()))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_thread_at_a_time_has_a_turn() {
        let folder = std::env::temp_dir().join(format!("linkwise-turn-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let both: [&dyn Turns; 2] = [&TurnFile(folder.join("s-turn")), &TurnQueue::default()];
        for turns in both {
            let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
            std::thread::scope(|s| {
                for _ in 0..8 {
                    s.spawn(|| {
                        for _ in 0..4 {
                            let _turn = turns.take();
                            most.fetch_max(1 + inside.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    });
                }
            });
            assert_eq!(most.load(Ordering::SeqCst), 1);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
