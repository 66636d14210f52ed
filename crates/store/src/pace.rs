//! Writes that leave others their turn.

use std::time::{Duration, Instant};

/// Longest pause between two parts of a model's text.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Does a short write, and waits for as long as it took, at most [`PAUSE_MAX`]: the writes of others, also of other processes, get at least every other
/// turn.
///
/// # Errors
/// Those of the write.
pub fn with_a_pause<E>(write: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    let begun = Instant::now();
    write()?;
    std::thread::sleep(begun.elapsed().min(PAUSE_MAX));
    Ok(())
}
