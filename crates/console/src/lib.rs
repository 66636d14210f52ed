//! What programs at a terminal share: failures with exit codes, clusters by name, tables, standard output.

mod cluster;
mod failure;
mod format;
mod output;
mod table;
mod text;
mod time;

pub use cluster::load_cluster;
pub use failure::Failure;
pub use format::{DrawnFormat, Format, PageFormat};
pub use output::{exit_code, exit_quietly_on_closed_pipes, print, print_json, say};
pub use table::{WIDTH_WITHOUT_TERMINAL, table, text_of};
pub use text::{list_cell, text_width, wrap};
pub use time::now_unix_s;
