//! Where a command writes what it made.

use console::Failure;
use std::path::Path;

/// Writes to a file or to standard output.
pub fn put(text: &str, output: Option<&Path>) -> Result<(), Failure> {
    match output {
        None => console::print(text),
        Some(path) => files::write_atomic(path, text)?,
    }
    Ok(())
}
