//! Files: reads that are limited in size, writes that are all or nothing, locks that outlive a replaced file.
//!
//! Every reader of linkwise goes through [`read_limited`] or [`read_text`], so that no input, a pipe included, fills the memory. Every
//! writer goes through [`write_atomic`], so that a process that is killed leaves the old file or the new one. Permissions of written
//! files follow the umask.

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
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// A verb: `read`, `write`, `lock`.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A folder stands where a file was expected.
    #[error("{} is a folder, a file was expected", .0.display())]
    Folder(PathBuf),
    /// The file is larger than its kind may be.
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

/// A limit in the largest binary unit that states it exactly.
fn size(bytes: usize) -> String {
    match bytes {
        b if b > 0 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b > 0 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}
