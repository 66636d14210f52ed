//! The folder of the published data.

use std::path::PathBuf;

/// The folder of the published data: `LINKWISE_DATA`, else `../shared/data` next to the workspace. Without it the test
/// prints a SKIP line.
pub fn data(test: &str) -> Option<PathBuf> {
    let default = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let dir = std::env::var_os("LINKWISE_DATA").map_or(default, PathBuf::from);
    if dir.join("topologies").is_dir() {
        return Some(dir);
    }
    eprintln!("SKIP {test}: no data folder (set LINKWISE_DATA)");
    None
}
