//! The words that the processes of a host share: who has joined, which buffers are posted, and the counters of every ring.
//!
//! The first process makes the memory ([`wire::memory`]) and names it in a file of the job's folder. Every process locks a file of its own there; the
//! lock ends with the process, which is how the others see that it died.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path as FilePath, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wire::memory::Memory;
use wire::pipe::Words;

/// Maximum number of GPUs of a host.
pub const RANKS_MAX: usize = 16;
/// Maximum number of GPUs on a path.
pub const NODES_MAX: usize = 4;
/// Maximum number of paths of a host.
pub const PATHS_MAX: usize = 4096;
/// Maximum size of a chunk, bytes.
pub const CHUNK_BYTES_MAX: usize = 16 << 20;
/// Maximum number of chunks of a ring.
pub const SLOTS_MAX: usize = 64;
/// Messages from one GPU to another that may be open at a time.
pub const OPEN_MESSAGES_MAX: usize = 8;
const POLL: Duration = Duration::from_micros(200);

/// The GPUs that bytes pass, from the sender to the receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// Ranks, each once; at least two.
    pub nodes: Vec<usize>,
}

/// What all processes of the host must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Number of GPUs, one process each.
    pub ranks: usize,
    /// The paths that may be used.
    pub paths: Vec<Path>,
    /// Size of a chunk.
    pub chunk_bytes: usize,
    /// Chunks of staging memory per path and peer GPU: how far the sender may run ahead.
    pub slots: usize,
}

impl Shape {
    /// What is wrong with the shape, if anything.
    pub fn fault(&self) -> Option<String> {
        let bad = |p: &Path| {
            let n = &p.nodes;
            !(2..=NODES_MAX).contains(&n.len())
                || n.iter().any(|r| *r >= self.ranks)
                || n.iter().enumerate().any(|(i, r)| n[..i].contains(r))
        };
        if !(2..=RANKS_MAX).contains(&self.ranks) {
            return Some(format!("{} GPUs; 2 to {RANKS_MAX} are supported", self.ranks));
        }
        if self.paths.len() > PATHS_MAX {
            return Some(format!("{} paths; at most {PATHS_MAX} are supported", self.paths.len()));
        }
        if let Some(i) = self.paths.iter().position(bad) {
            return Some(format!(
                "path {i} is not a row of 2 to {NODES_MAX} different GPUs: {:?}",
                self.paths[i].nodes
            ));
        }
        let fits = (1..=CHUNK_BYTES_MAX).contains(&self.chunk_bytes) && (1..=SLOTS_MAX).contains(&self.slots);
        (!fits).then(|| format!("{} chunks of {} bytes per ring", self.slots, self.chunk_bytes))
    }

    /// The rings in the memory of a GPU: path and place on the path, in the order in which they lie there.
    pub fn rings_of(&self, rank: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.paths.iter().enumerate().flat_map(move |(p, path)| {
            (1..path.nodes.len() - 1).filter(move |h| path.nodes[*h] == rank).map(move |h| (p, h))
        })
    }

    /// Bytes of staging memory of a GPU.
    pub fn staging_bytes(&self, rank: usize) -> usize {
        self.rings_of(rank).count() * self.ring_bytes()
    }

    fn ring_bytes(&self) -> usize {
        self.slots * self.chunk_bytes
    }

    /// Place of a ring in its GPU's staging memory, bytes.
    pub fn ring_offset(&self, path: usize, place: usize) -> usize {
        let rank = self.paths[path].nodes[place];
        let before = self.rings_of(rank).take_while(|r| *r != (path, place)).count();
        before * self.ring_bytes()
    }
}

/// The stage of a rank that has left.
const LEFT: u64 = u64::MAX;

/// Places of the words. The header has one: the rank that died first, plus 1.
const HEADER: usize = 1;
const RANK_WORDS: usize = 2 + 8;
const MESSAGE_WORDS: usize = 5 + 8;
const RING_WORDS: usize = 2;
const SLOT_WORDS: usize = 3;
const RINGS_PER_PATH: usize = NODES_MAX - 2;

/// A chunk in a ring: of which message, where in it, and its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Number of the message from sender to receiver.
    pub message: u64,
    /// Place in the message, bytes.
    pub offset: u64,
    /// Size, bytes.
    pub bytes: u64,
}

/// The shared words, seen by one process.
#[derive(Debug)]
pub struct Control {
    memory: Memory,
    shape: Shape,
    folder: PathBuf,
    _own_lock: File,
}

fn words_of(shape: &Shape) -> usize {
    let messages = shape.ranks * shape.ranks * OPEN_MESSAGES_MAX * MESSAGE_WORDS;
    HEADER
        + shape.ranks * RANK_WORDS
        + messages
        + shape.paths.len() * RINGS_PER_PATH * (RING_WORDS + shape.slots * SLOT_WORDS)
}

fn wait<T>(until: Instant, what: &str, mut f: impl FnMut() -> io::Result<Option<T>>) -> io::Result<T> {
    loop {
        if let Some(t) = f()? {
            return Ok(t);
        }
        if Instant::now() > until {
            return Err(io::Error::new(io::ErrorKind::TimedOut, what.to_string()));
        }
        std::thread::sleep(POLL);
    }
}

fn lock_path(folder: &FilePath, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank}"))
}

impl Control {
    /// Joins the job of a folder that all its processes can write, and waits for the memory. Rank 0 makes it.
    pub fn join(folder: &FilePath, rank: usize, shape: &Shape, until: Instant) -> io::Result<Control> {
        let own_lock = File::options().create(true).truncate(false).write(true).open(lock_path(folder, rank))?;
        own_lock.try_lock().map_err(|e| match e {
            TryLockError::Error(e) => e,
            TryLockError::WouldBlock => io::Error::other(format!("rank {rank} has joined already")),
        })?;
        let words = words_of(shape);
        let name = folder.join("control");
        let memory = if rank == 0 {
            let memory = Memory::new(words)?;
            let fd = memory.file().map_or(-1, |f| f.as_raw_fd());
            let new = folder.join("control.new");
            std::fs::write(&new, format!("/proc/{}/fd/{fd}", std::process::id()))?;
            std::fs::rename(new, &name)?;
            memory
        } else {
            let path = wait(until, "rank 0 has not joined", || match std::fs::read_to_string(&name) {
                Ok(text) => Ok(Some(text)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(e) => Err(e),
            })?;
            let file = File::options().read(true).write(true).open(path)?;
            let differs =
                |e: wire::memory::MemoryError| io::Error::other(format!("the processes differ in their paths: {e}"));
            Memory::from_peer(std::os::fd::AsFd::as_fd(&file), words).map_err(differs)?
        };
        Ok(Control { memory, shape: shape.clone(), folder: folder.to_path_buf(), _own_lock: own_lock })
    }

    fn at(&self, place: usize) -> &AtomicU64 {
        &self.memory.words()[place]
    }

    fn rank_at(&self, rank: usize, word: usize) -> &AtomicU64 {
        self.at(HEADER + rank * RANK_WORDS + word)
    }

    /// Rank says that it has come so far (numbers grow), with its staging memory.
    pub fn arrive(&self, rank: usize, stage: u64, handle: Option<&[u8; 64]>) {
        if let Some(h) = handle {
            put_handle(h, |i| self.rank_at(rank, 2 + i));
        }
        self.rank_at(rank, 0).store(stage, Ordering::Release);
    }

    /// The rank has finished: its end is no failure.
    pub fn leave(&self, rank: usize) {
        self.rank_at(rank, 0).store(LEFT, Ordering::Release);
    }

    /// Whether every rank has come so far.
    pub fn all_arrived(&self, stage: u64) -> bool {
        (0..self.shape.ranks).all(|r| self.rank_at(r, 0).load(Ordering::Acquire) >= stage)
    }

    /// The staging memory of a rank that has arrived.
    pub fn staging(&self, rank: usize) -> [u8; 64] {
        get_handle(|i| self.rank_at(rank, 2 + i))
    }

    /// The words of a message: number + 1 when it is posted, place, size, announced bytes + 1, bytes that came directly; then the handle.
    fn message(&self, src: usize, dst: usize, number: u64, word: usize) -> &AtomicU64 {
        let slot = (src * self.shape.ranks + dst) * OPEN_MESSAGES_MAX + number as usize % OPEN_MESSAGES_MAX;
        self.at(HEADER + self.shape.ranks * RANK_WORDS + slot * MESSAGE_WORDS + word)
    }

    /// The receiver posts a buffer: its allocation, the place in it, and its size.
    pub fn post(&self, (src, dst, number): (usize, usize, u64), handle: &[u8; 64], offset: u64, bytes: u64) {
        let at = |word| self.message(src, dst, number, word);
        for (word, value) in [(1, offset), (2, bytes), (3, 0), (4, 0)] {
            at(word).store(value, Ordering::Relaxed);
        }
        put_handle(handle, |i| at(5 + i));
        at(0).store(number + 1, Ordering::Release);
    }

    /// The buffer that the receiver has posted for a message: allocation, place, size.
    pub fn posted(&self, (src, dst, number): (usize, usize, u64)) -> Option<([u8; 64], u64, u64)> {
        let at = |word| self.message(src, dst, number, word);
        (at(0).load(Ordering::Acquire) == number + 1)
            .then(|| (get_handle(|i| at(5 + i)), at(1).load(Ordering::Relaxed), at(2).load(Ordering::Relaxed)))
    }

    /// The sender says how many bytes the message has.
    pub fn announce(&self, (src, dst, number): (usize, usize, u64), bytes: u64) {
        self.message(src, dst, number, 3).store(bytes + 1, Ordering::Release);
    }

    /// The sender says how many bytes have arrived over the direct link.
    pub fn add_direct(&self, (src, dst, number): (usize, usize, u64), bytes: u64) {
        self.message(src, dst, number, 4).fetch_add(bytes, Ordering::Release);
    }

    /// Bytes of the message, if announced, and those that came directly.
    pub fn arrived(&self, (src, dst, number): (usize, usize, u64)) -> (Option<u64>, u64) {
        let direct = self.message(src, dst, number, 4).load(Ordering::Acquire);
        (self.message(src, dst, number, 3).load(Ordering::Acquire).checked_sub(1), direct)
    }

    fn ring(&self, path: usize, place: usize, word: usize) -> &AtomicU64 {
        let messages = self.shape.ranks * self.shape.ranks * OPEN_MESSAGES_MAX * MESSAGE_WORDS;
        let size = RING_WORDS + self.shape.slots * SLOT_WORDS;
        let ring = path * RINGS_PER_PATH + place - 1;
        self.at(HEADER + self.shape.ranks * RANK_WORDS + messages + ring * size + word)
    }

    /// Chunks of a ring that were filled.
    pub fn filled(&self, path: usize, place: usize) -> u64 {
        self.ring(path, place, 0).load(Ordering::Acquire)
    }
    /// Chunks of a ring that are free again.
    pub fn freed(&self, path: usize, place: usize) -> u64 {
        self.ring(path, place, 1).load(Ordering::Acquire)
    }
    /// Announces the next chunk of a ring. One process fills a ring.
    pub fn fill(&self, path: usize, place: usize, chunk: Chunk) {
        let n = self.ring(path, place, 0).load(Ordering::Relaxed);
        let slot = RING_WORDS + n as usize % self.shape.slots * SLOT_WORDS;
        for (i, value) in [chunk.message, chunk.offset, chunk.bytes].into_iter().enumerate() {
            self.ring(path, place, slot + i).store(value, Ordering::Relaxed);
        }
        self.ring(path, place, 0).store(n + 1, Ordering::Release);
    }
    /// Gives the oldest chunk of a ring back. One process empties a ring.
    pub fn free(&self, path: usize, place: usize) {
        self.ring(path, place, 1).fetch_add(1, Ordering::Release);
    }
    /// Chunk `n` of a ring, which has been filled and not given back.
    pub fn chunk(&self, path: usize, place: usize, n: u64) -> Chunk {
        let slot = RING_WORDS + n as usize % self.shape.slots * SLOT_WORDS;
        let word = |i| self.ring(path, place, slot + i).load(Ordering::Relaxed);
        Chunk { message: word(0), offset: word(1), bytes: word(2) }
    }

    /// The rank whose process ended first, if a process has said so: the others end because of it.
    pub fn known_dead(&self) -> Option<usize> {
        (self.at(0).load(Ordering::Acquire) as usize).checked_sub(1)
    }

    /// Looks for a rank whose process has ended, and tells the others.
    pub fn find_dead(&self, own: usize) -> Option<usize> {
        let found = (0..self.shape.ranks).filter(|r| *r != own).find(|r| {
            let free = |f: File| f.try_lock_shared().is_ok();
            let ended = File::open(lock_path(&self.folder, *r)).is_ok_and(free);
            ended && self.rank_at(*r, 0).load(Ordering::Acquire) != LEFT // it says so before its lock ends
        })?;
        let first = self.at(0).compare_exchange(0, found as u64 + 1, Ordering::AcqRel, Ordering::Acquire);
        Some(first.map_or_else(|known| (known as usize).saturating_sub(1), |_| found))
    }
}

fn put_handle<'a>(handle: &[u8; 64], at: impl Fn(usize) -> &'a AtomicU64) {
    for (i, eight) in handle.as_chunks::<8>().0.iter().enumerate() {
        at(i).store(u64::from_le_bytes(*eight), Ordering::Relaxed);
    }
}

fn get_handle<'a>(at: impl Fn(usize) -> &'a AtomicU64) -> [u8; 64] {
    let mut handle = [0; 64];
    for (i, eight) in handle.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *eight = at(i).load(Ordering::Relaxed).to_le_bytes();
    }
    handle
}
