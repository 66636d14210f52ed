//! Reads files with a size limit, writes files all or nothing, and locks files that other processes may replace.
//!
//! Every reader of linkwise uses [`read_limited`] or [`read_text`], so that no input, not even a pipe, fills the
//! memory. Every writer uses [`write_atomic`], so that a killed process leaves the old file or the new one. The umask
//! sets the permissions of written files.

mod lock;
mod read;
mod write;

pub use lock::FileLock;
pub use read::{open_regular, read_limited, read_regular_text, read_text};
pub use write::{copy_atomic, write_atomic};

use std::path::PathBuf;

/// Reason why a file could not be read or written. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// An error of the operating system.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The failed operation: `read`, `write`, `lock`.
        doing: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The path is a folder; a file was expected.
    #[error("{} is a folder, a file was expected", .0.display())]
    Folder(PathBuf),
    /// The path is a pipe, a device or a socket; a regular file was expected.
    #[error("{} is no regular file", .0.display())]
    NotRegular(PathBuf),
    /// The file is larger than the limit for its kind.
    #[error("cannot read {}: the file is larger than {}, the limit for its kind", path.display(), size(*size_max))]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Limit, bytes.
        size_max: usize,
    },
    /// The file is not UTF-8 text.
    #[error("cannot read {}: it is not UTF-8 text (first bad byte at {valid_up_to})", path.display())]
    NotUtf8 {
        /// Path of the file.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8.
        valid_up_to: usize,
    },
}

/// A size in the largest binary unit that represents it exactly.
fn size(bytes: usize) -> String {
    match bytes {
        b if b > 0 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b > 0 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}
