//! What programs at a terminal share: failures with exit codes, clusters by name, tables, standard output.

mod cluster;
mod failure;
mod format;
mod gpus;
mod output;
mod table;
mod time;

pub use cluster::load_cluster;
pub use failure::Failure;
pub use format::{DrawnFormat, Format, PageFormat};
pub use gpus::gpus_in_short;
pub use output::{exit_code, exit_quietly_on_closed_pipes, print, print_json, say};
pub use table::{WIDTH_WITHOUT_TERMINAL, table, text_of};
pub use time::now_unix_s;
