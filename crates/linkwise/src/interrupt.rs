//! Ctrl-C during long commands.

use console::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};

/// From now on, Ctrl-C or SIGTERM prints this line and ends the command with all processes that it started. Signals
/// ignored at the start (`nohup`, background jobs of a shell) stay ignored.
pub fn say_what_is_kept(kept: impl Fn() -> String + Send + 'static) -> Result<(), Failure> {
    let signals = job::signals::heeded(&[SIGINT, SIGTERM]);
    console::on_interrupt(&signals, kept).map_err(|e| Failure::input(format!("cannot catch Ctrl-C: {e}")))
}
