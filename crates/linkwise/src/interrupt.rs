//! Ctrl-C during commands that take long.

use console::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};

/// From now on Ctrl-C (and SIGTERM) ends the command with this line, and what it started with it. Signals that were ignored when it
/// began (`nohup`, a shell's background jobs) stay so.
pub fn say_what_is_kept(kept: impl Fn() -> String + Send + 'static) -> Result<(), Failure> {
    let signals = job::signals::heeded(&[SIGINT, SIGTERM]);
    console::on_interrupt(&signals, kept).map_err(|e| Failure::input(format!("cannot catch Ctrl-C: {e}")))
}
