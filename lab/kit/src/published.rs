//! The folder of the published data.

use std::path::PathBuf;

/// The default folder of the published data: `LINKWISE_DATA`, else `../shared/data` relative to the current folder.
pub fn data_folder() -> Option<PathBuf> {
    folder("../shared/data")
}

/// The default folder for unit tests, which run in their crate's folder.
pub fn data_folder_of_tests() -> Option<PathBuf> {
    folder(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data"))
}

fn folder(beside: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("LINKWISE_DATA").map_or_else(|| PathBuf::from(beside), PathBuf::from);
    Some(folder).filter(|d| d.is_dir())
}

/// The folder of the published placement tables for a test; `None` after a line that says the test is skipped.
pub fn published_tables(test: &str) -> Option<PathBuf> {
    let dir = data_folder_of_tests().map(|d| d.join("bandpilot")).filter(|d| d.is_dir());
    if dir.is_none() {
        eprintln!("SKIP {test}: no data folder (set LINKWISE_DATA)");
    }
    dir
}
