//! The nccl-tests backend: command lines, execution, and readers of its text and JSON output.

mod json;
mod launch;
mod report;
mod run;
mod text;

pub use json::parse_json;
pub use launch::{CommandLine, LaunchOptions, Launcher, command_line};
pub use report::{NcclTestsRank, NcclTestsReport, NcclTestsRow, NcclTestsTiming, ParseError};
pub use run::NcclTests;
pub use text::parse_text;
