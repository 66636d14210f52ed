//! Turns: how deciders that keep losing races queue up, without keeping anybody else from writing.
//!
//! Two that decide on the same snapshot mostly want the same GPUs: one commits, the other must search again. With many, one of them could
//! lose for long. A client that lost a few races takes a turn: it waits until no other has one, and then competes only with those who have
//! not lost yet. Releases, drains and observations need no turn, and a turn locks no table.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest wait for a turn. Then the decision goes on without one: turns make for fairness, commits for correctness.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How often a waiting decider looks.
const POLL: Duration = Duration::from_millis(2);

/// Where turns are taken; usable from any thread.
pub trait Turns: Send + Sync {
    /// Waits for a turn, at most a minute.
    fn take(&self) -> Turn;
}

/// A turn, until it is dropped.
pub struct Turn {
    _held: Option<File>,
}

/// Turns through a lock on a file beside the state. Not on the state itself: closing any handle of a file gives up all locks that SQLite
/// has on it in the process.
pub(super) struct TurnFile(pub PathBuf);

impl Turns for TurnFile {
    fn take(&self) -> Turn {
        // Each turn opens the file anew, so that threads exclude each other as processes do.
        let Ok(file) = OpenOptions::new().create(true).truncate(false).write(true).open(&self.0) else {
            return Turn { _held: None };
        };
        let start = Instant::now();
        while start.elapsed() < WAIT_MAX {
            match file.try_lock() {
                Ok(()) => return Turn { _held: Some(file) },
                Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(POLL),
                Err(std::fs::TryLockError::Error(_)) => break,
            }
        }
        Turn { _held: None }
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
        let turns = TurnFile(folder.join("s-turn"));
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
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
