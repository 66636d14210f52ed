//! Files: reads with a size limit, writes that are all or nothing, locks that stay valid when a file is replaced.
//!
//! Every reader of linkwise uses [`read_limited`] or [`read_text`], so no input fills the memory, not even a pipe. Every writer uses
//! [`write_atomic`], so a killed process leaves either the old file or the new one. Permissions of written files follow the umask.

mod lock;
mod read;
mod write;

pub use lock::FileLock;
pub use read::{read_limited, read_text};
pub use write::{copy_atomic, write_atomic};

use std::path::PathBuf;

/// Why a file could not be read or written. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// An error of the operating system.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// A verb: `read`, `write`, `lock`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The path is a folder; a file was expected.
    #[error("{} is a folder, a file was expected", .0.display())]
    Folder(PathBuf),
    /// The file is larger than the limit for its kind.
    #[error("cannot read {}: the file is larger than {}, the limit for its kind", path.display(), size(*size_max))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit, bytes.
        size_max: usize,
    },
    /// The file is not UTF-8 text.
    #[error("cannot read {}: it is not UTF-8 text (first bad byte at {valid_up_to})", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8.
        valid_up_to: usize,
    },
}

/// A limit in the largest binary unit that represents it exactly.
fn size(bytes: usize) -> String {
    match bytes {
        b if b > 0 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b > 0 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}
