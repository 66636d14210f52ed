//! Finished seeds on disk, so that a long evaluation can be resumed.

use crate::evaluation::Settings;
use crate::evaluation::methods::MethodSpec;
use crate::evaluation::replay::SeedResult;
use console::Failure;
use files::{read_text, write_atomic};
use std::path::Path;
use truths::Truth;

/// Largest file of one seed.
const FILE_BYTES_MAX: usize = 256 << 20;

/// The file name of one seed's result. It contains everything that the result depends on, including the program's
/// version.
pub fn name(truth: &dyn Truth, methods: &[MethodSpec], settings: &Settings, seed: u64) -> String {
    let all = format!(
        "{} {} {:?} {:?} {:?} {methods:?} {settings:?} {seed}",
        env!("CARGO_PKG_VERSION"),
        truth.description(),
        truth.size(),
        truth.collective(),
        truth.cluster(),
    );
    let hash = store::digest::fnv64_of_bytes(all.bytes());
    let safe: String = truth.name().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    format!("{safe}-{seed}-{hash:016x}.json")
}

/// The stored result, if there is a readable one.
pub fn read(dir: &Path, name: &str) -> Option<SeedResult> {
    let path = dir.join(name);
    if !path.exists() {
        return None;
    }
    serde_json::from_str(&read_text(&path, FILE_BYTES_MAX).ok()?).ok()
}

/// Stores a result.
pub fn write(dir: &Path, name: &str, result: &SeedResult) -> Result<(), Failure> {
    std::fs::create_dir_all(dir).map_err(|e| Failure::file("make the folder", dir, e))?;
    Ok(write_atomic(&dir.join(name), serde_json::to_string(result).map_err(Failure::input)?)?)
}
