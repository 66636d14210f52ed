//! Where the published data lie.

use std::path::PathBuf;

/// The folder of the published data where the user names none: `LINKWISE_DATA`, else `../shared/data` from the current folder.
pub fn data_folder() -> Option<PathBuf> {
    if let Some(d) = std::env::var_os("LINKWISE_DATA") {
        return Some(PathBuf::from(d)).filter(|d| d.is_dir());
    }
    // Unit tests run in their crate's folder.
    let beside = if cfg!(test) { concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data") } else { "../shared/data" };
    Some(PathBuf::from(beside)).filter(|d| d.is_dir())
}

/// The folder of the published placement tables for a test, or none with a visible line.
#[cfg(test)]
pub fn published_tables(test: &str) -> Option<PathBuf> {
    let dir = data_folder().map(|d| d.join("bandpilot")).filter(|d| d.is_dir());
    if dir.is_none() {
        eprintln!("SKIP {test}: no data folder (set LINKWISE_DATA)");
    }
    dir
}
