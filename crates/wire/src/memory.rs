//! Memory shared by two processes: an unnamed file whose size is sealed. The only module of this crate with `unsafe`.
//!
//! Another process could truncate a mapped file; reading behind its end then kills the job with SIGBUS. So only files whose size the kernel
//! guarantees are mapped: memfds, sealed against shrinking, with ordinary pages. The pages are allocated at creation.
#![allow(unsafe_code)]

use crate::pipe::Words;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::{fmt, io};

/// File system type of a memfd with ordinary pages (tmpfs).
const TMPFS_MAGIC: u64 = 0x0102_1994;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Why another process's memory is not mapped.
#[derive(Debug)]
pub enum MemoryError {
    /// It differs from what [`Memory::new`] makes.
    Unfit(&'static str),
    /// A system call failed.
    Kernel(io::Error),
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryError::Unfit(why) => write!(f, "shared memory refused: {why}"),
            MemoryError::Kernel(e) => write!(f, "shared memory refused: {e}"),
        }
    }
}

impl std::error::Error for MemoryError {}

impl<E: Into<io::Error>> From<E> for MemoryError {
    fn from(e: E) -> Self {
        MemoryError::Kernel(e.into())
    }
}

/// Mapped words.
pub struct Memory {
    at: NonNull<AtomicU64>,
    words: usize,
    /// Held by the process that made the memory until it is handed over.
    file: Option<OwnedFd>,
}

// SAFETY: the words are atomics, usable from any thread; the mapping belongs to this value and is undone only when it is dropped.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} words)", self.words)
    }
}

impl Memory {
    /// Allocates `words` zeroed words, sealed, to be handed over with [`file`](Memory::file).
    pub fn new(words: usize) -> io::Result<Self> {
        let file = rustix::fs::memfd_create("linkwise", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let bytes = bytes_of(words)?;
        rustix::fs::ftruncate(&file, bytes)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let at = map(file.as_fd(), words)?;
        Ok(Memory { at, words, file: Some(file) })
    }

    /// Maps memory that another process made with [`Memory::new`]. Fails unless it is sealed, of ordinary pages and exactly `words` long.
    pub fn from_peer(file: BorrowedFd<'_>, words: usize) -> Result<Self, MemoryError> {
        // Only memfds have seals; the call fails on other files.
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| MemoryError::Unfit("it is not a memfd"))?;
        if !seals.contains(SEALS) {
            return Err(MemoryError::Unfit("its size is not sealed"));
        }
        if rustix::fs::fstatfs(file)?.f_type as u64 != TMPFS_MAGIC {
            return Err(MemoryError::Unfit("its pages are not ordinary ones"));
        }
        if rustix::fs::fstat(file)?.st_size as u64 != bytes_of(words)? {
            return Err(MemoryError::Unfit("its size is wrong"));
        }
        Ok(Memory { at: map(file, words)?, words, file: None })
    }

    /// The file descriptor to hand over.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|f| f.as_fd())
    }

    /// Closes the file descriptor after the hand-over; the mapping stays.
    pub fn close_file(&mut self) {
        self.file = None;
    }
}

fn bytes_of(words: usize) -> io::Result<u64> {
    let bytes = words.checked_mul(size_of::<AtomicU64>()).filter(|b| *b > 0 && *b <= isize::MAX as usize);
    bytes.map(|b| b as u64).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}

fn map(file: BorrowedFd<'_>, words: usize) -> io::Result<NonNull<AtomicU64>> {
    let bytes = bytes_of(words)? as usize;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses overlaps no memory in use.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0)? };
    NonNull::new(at.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

impl Words for Memory {
    type Cell = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `at` is the page-aligned start of a mapping of `words` times 8 bytes that lives as long as `self`.
        // The file behind it keeps at least that size: checked, and sealed against shrinking. Any bytes are a valid
        // `AtomicU64`. Both processes access them as atomics. Stores of a process that uses plain writes cannot be
        // distinguished from atomic stores of the same values.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.words) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `map` made; references into it end with `self`.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.words * size_of::<AtomicU64>()) };
    }
}

#[cfg(all(test, not(miri)))] // Miri does not support memfd
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn unfit(file: impl AsFd, words: usize) -> String {
        Memory::from_peer(file.as_fd(), words).unwrap_err().to_string()
    }

    #[test]
    fn both_sides_see_the_same_words_and_neither_can_truncate_them() {
        let a = Memory::new(1024).unwrap();
        let b = Memory::from_peer(a.file().unwrap(), 1024).unwrap();
        a.words()[1023].store(7, Ordering::Relaxed);
        assert_eq!(b.words()[1023].load(Ordering::Relaxed), 7);
        assert!(rustix::fs::ftruncate(a.file().unwrap(), 0).is_err(), "sealed");
        assert!(rustix::fs::ftruncate(a.file().unwrap(), 1 << 20).is_err(), "sealed");
    }

    #[test]
    fn a_file_that_could_be_truncated_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = || {
            let file = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::ftruncate(&file, 8192).unwrap();
            file
        };
        assert!(unfit(memfd(), 1024).contains("not sealed"));
        let half = memfd();
        rustix::fs::fcntl_add_seals(&half, SealFlags::GROW).unwrap();
        assert!(unfit(half, 1024).contains("not sealed"));
        let short = memfd();
        rustix::fs::fcntl_add_seals(&short, SEALS).unwrap();
        assert!(unfit(&short, 1025).contains("size is wrong"));
        assert!(Memory::from_peer(short.as_fd(), 1024).is_ok());
        assert!(unfit(tempfile::tempfile().unwrap(), 1).contains("not a memfd"));
        let (pipe, _other) = std::io::pipe().unwrap();
        assert!(unfit(pipe, 1).contains("not a memfd"));
        let read_only =
            std::fs::File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&short))).unwrap();
        assert!(unfit(read_only, 1024).contains("refused"), "cannot be written");
    }
}
