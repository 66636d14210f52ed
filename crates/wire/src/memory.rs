//! Memory that two processes share: a file without a name whose size is sealed. The one place of this crate with `unsafe`.
//!
//! A file that another process hands over could be cut short while it is mapped, and reading behind its end would kill the job (SIGBUS). So only
//! a file is mapped that the kernel itself holds to its size: a memfd, sealed against shrinking, of ordinary pages. The pages are allocated when it
//! is made.
#![allow(unsafe_code)]

use crate::pipe::Words;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::{fmt, io};

/// What a memfd of ordinary pages is, to the kernel.
const TMPFS_MAGIC: u64 = 0x0102_1994;
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Why memory of another process is not used.
#[derive(Debug)]
pub enum Refused {
    /// It is not what [`Memory::new`] makes.
    Unfit(&'static str),
    /// The kernel said no.
    Kernel(io::Error),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Unfit(why) => write!(f, "shared memory refused: {why}"),
            Refused::Kernel(e) => write!(f, "shared memory refused: {e}"),
        }
    }
}

impl std::error::Error for Refused {}

impl<E: Into<io::Error>> From<E> for Refused {
    fn from(e: E) -> Self {
        Refused::Kernel(e.into())
    }
}

/// Mapped words.
pub struct Memory {
    at: NonNull<AtomicU64>,
    words: usize,
    /// Kept by who made it, until it is handed over.
    file: Option<OwnedFd>,
}

// SAFETY: the words are atomics, which any thread may use; the mapping belongs to this value and is undone only when it is dropped.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} words)", self.words)
    }
}

impl Memory {
    /// So many zeroed words, sealed, to be handed over with [`file`](Memory::file).
    pub fn new(words: usize) -> io::Result<Self> {
        let file = rustix::fs::memfd_create("linkwise", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let bytes = bytes_of(words)?;
        rustix::fs::ftruncate(&file, bytes)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let at = map(file.as_fd(), words)?;
        Ok(Memory { at, words, file: Some(file) })
    }

    /// Maps what another process made with [`Memory::new`], if it is that: sealed, of ordinary pages, and of just this many words.
    pub fn of_peer(file: BorrowedFd<'_>, words: usize) -> Result<Self, Refused> {
        // Only memfds have seals; on other files this fails.
        let seals = rustix::fs::fcntl_get_seals(file).map_err(|_| Refused::Unfit("it is no memfd"))?;
        if !seals.contains(SEALS) {
            return Err(Refused::Unfit("its size is not sealed"));
        }
        if rustix::fs::fstatfs(file)?.f_type as u64 != TMPFS_MAGIC {
            return Err(Refused::Unfit("it is not of ordinary pages"));
        }
        if rustix::fs::fstat(file)?.st_size as u64 != bytes_of(words)? {
            return Err(Refused::Unfit("it has another size"));
        }
        Ok(Memory { at: map(file, words)?, words, file: None })
    }

    /// The file, to hand it over.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|f| f.as_fd())
    }

    /// Closes the file, once it was handed over; the words stay.
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
    // SAFETY: a new mapping at a place of the kernel's choice touches no memory that anything else uses.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0)? };
    NonNull::new(at.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

impl Words for Memory {
    type Cell = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `at` is the page-aligned start of a mapping of `words` times 8 bytes that lives as long as `self`. The file behind it holds that
        // many bytes for ever: checked, and sealed against shrinking. Any bytes are a valid `AtomicU64`, and both processes use them as atomics
        // alone; one that does not cannot be told from one that stores those values.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.words) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: just the mapping that `map` made; references into it end with `self`.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.words * size_of::<AtomicU64>()) };
    }
}

#[cfg(all(test, not(miri)))] // Miri knows no memfd
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn unfit(file: impl AsFd, words: usize) -> String {
        Memory::of_peer(file.as_fd(), words).unwrap_err().to_string()
    }

    #[test]
    fn both_sides_see_the_same_words_and_nobody_can_cut_them_short() {
        let a = Memory::new(1024).unwrap();
        let b = Memory::of_peer(a.file().unwrap(), 1024).unwrap();
        a.words()[1023].store(7, Ordering::Relaxed);
        assert_eq!(b.words()[1023].load(Ordering::Relaxed), 7);
        assert!(rustix::fs::ftruncate(a.file().unwrap(), 0).is_err(), "sealed");
        assert!(rustix::fs::ftruncate(a.file().unwrap(), 1 << 20).is_err(), "sealed");
    }

    #[test]
    fn a_file_that_could_be_cut_short_is_refused() {
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
        assert!(unfit(&short, 1025).contains("another size"));
        assert!(Memory::of_peer(short.as_fd(), 1024).is_ok());
        assert!(unfit(tempfile::tempfile().unwrap(), 1).contains("no memfd"));
        let (pipe, _other) = std::io::pipe().unwrap();
        assert!(unfit(pipe, 1).contains("no memfd"));
        let read_only =
            std::fs::File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&short))).unwrap();
        assert!(unfit(read_only, 1024).contains("refused"), "cannot be written");
    }
}
