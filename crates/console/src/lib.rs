//! Parts that all terminal programs share: failures with exit codes, clusters by name, numbers in options, tables, progress, times, standard output.

mod cluster;
mod failure;
mod format;
mod help;
mod interrupt;
pub mod number;
mod output;
mod progress;
mod table;
mod text;
mod time;

pub use cluster::load_cluster;
pub use failure::Failure;
pub use format::{DrawnFormat, Format, PageFormat};
pub use help::fit_help;
pub use interrupt::on_interrupt;
pub use output::{exit_code, exit_quietly_on_closed_pipes, print, print_json, print_screen, say};
pub use progress::Progress;
pub use table::{WIDTH_WITHOUT_TERMINAL, table, text_of};
pub use text::{list_cell, text_width, wrap};
pub use time::{duration, moment, now_unix_s};
