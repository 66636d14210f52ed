//! A job whose ranks are processes of a C program in `tests/program`, each perhaps in a host of its own, in step through shared memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Far longer than any step takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
const RANKS_MAX: usize = 16;
const CALLS_MAX: usize = 1 << 18;
/// Bytes before the first rank's counters, and of each rank's.
const HEAD: u64 = 16;
const COUNTERS: u64 = 32;

/// See the module documentation. The processes end with this value.
pub struct Job {
    folder: tempfile::TempDir,
    program: PathBuf,
    shared: File,
    ranks: usize,
    processes: Vec<(usize, Child)>,
}

impl Job {
    /// Ranks of `rank.c`.
    pub fn new(test: &str, ranks: usize) -> Option<Self> {
        Job::of(test, ranks, "rank.c")
    }

    pub fn of(test: &str, ranks: usize, source: &str) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let program = super::compiled(test, folder.path(), source)?;
        let shared =
            File::options().create(true).truncate(true).read(true).write(true).open(folder.path().join("shared"));
        let shared = shared.unwrap();
        shared.set_len(HEAD + COUNTERS * RANKS_MAX as u64 + (RANKS_MAX * CALLS_MAX) as u64).unwrap();
        shared.write_all_at(&u64::MAX.to_le_bytes(), 0).unwrap();
        Some(Job { folder, program, shared, ranks, processes: Vec::new() })
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a rank that makes a call every `pause`. `inside` puts the command into its host.
    pub fn start(
        &mut self,
        rank: usize,
        pause: Duration,
        settings: &[(&str, &str)],
        inside: impl FnOnce(Command) -> Command,
    ) {
        let mut command = Command::new(&self.program);
        let shared = self.folder().join("shared");
        command.arg(super::library()).arg(shared).arg(rank.to_string()).arg(self.ranks.to_string());
        command.arg(pause.as_micros().to_string());
        super::with_settings(&mut command, settings);
        let log = File::options().create(true).append(true).open(self.folder().join(format!("log{rank}"))).unwrap();
        let child = inside(command).stdin(Stdio::null()).stderr(log).spawn().unwrap();
        self.processes.push((rank, child));
    }

    fn number(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        self.shared.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// Calls that a rank has begun.
    pub fn begun(&self, rank: usize) -> u64 {
        self.number(HEAD + COUNTERS * rank as u64)
    }

    /// The longest time that a call of the rank spent in the plugin.
    pub fn longest(&self, rank: usize) -> Duration {
        Duration::from_micros(self.number(HEAD + COUNTERS * rank as u64 + 8))
    }

    pub fn has_ended(&self, rank: usize) -> bool {
        self.number(HEAD + COUNTERS * rank as u64 + 16) == 1
    }

    /// NCCL's mask of profiler events at the rank's last call.
    pub fn mask(&self, rank: usize) -> u64 {
        self.number(HEAD + COUNTERS * rank as u64 + 24)
    }

    /// The rank makes no calls of its own: the others do not wait for it.
    pub fn never_wait_for(&self, rank: usize) {
        self.shared.write_all_at(&(1u64 << 40).to_le_bytes(), HEAD + COUNTERS * rank as u64).unwrap();
    }

    /// The entry of the cost table that a rank took, by call.
    pub fn arms(&self, rank: usize) -> Vec<u8> {
        let mut all = vec![0; (self.begun(rank) as usize).min(CALLS_MAX)];
        let at = HEAD + COUNTERS * RANKS_MAX as u64 + (rank * CALLS_MAX) as u64;
        self.shared.read_exact_at(&mut all, at).unwrap();
        all
    }

    pub fn log(&self, rank: usize) -> String {
        std::fs::read_to_string(self.folder().join(format!("log{rank}"))).unwrap_or_default()
    }

    /// Waits until something is so.
    ///
    /// # Panics
    /// It is not so for [`PATIENCE`], or a rank has failed.
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            self.check();
            assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}; {}", self.log(0));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn check(&mut self) {
        for i in 0..self.processes.len() {
            let (rank, child) = &mut self.processes[i];
            if let Some(status) = child.try_wait().unwrap().filter(|s| !s.success()) {
                let rank = *rank;
                panic!("rank {rank}: {status}: {}", self.log(rank));
            }
        }
    }

    /// All ranks make the same number of calls and end their communicator.
    pub fn end_communicator(&self) {
        if self.number(0) != u64::MAX {
            return; // some have ended it already
        }
        let farthest = self.processes.iter().map(|(r, _)| self.begun(*r)).max().unwrap_or(0);
        self.shared.write_all_at(&(farthest + 100).to_le_bytes(), 0).unwrap();
    }

    /// Ends the processes as programs end, and waits for them.
    pub fn finish(&mut self) {
        self.end_communicator();
        self.shared.write_all_at(&1u64.to_le_bytes(), 8).unwrap();
        let begin = Instant::now();
        while self.processes.iter_mut().any(|(_, c)| c.try_wait().unwrap().is_none()) {
            assert!(begin.elapsed() < PATIENCE, "the ranks do not end: {}", self.log(0));
            std::thread::sleep(Duration::from_millis(10));
        }
        self.check();
    }

    /// A rank's process.
    pub fn process(&mut self, rank: usize) -> &mut Child {
        &mut self.processes.iter_mut().find(|(r, _)| *r == rank).unwrap().1
    }

    /// The first call in which two ranks took different entries.
    pub fn difference(&self) -> Option<usize> {
        let all: Vec<Vec<u8>> = self.processes.iter().map(|(r, _)| self.arms(*r)).collect();
        let least = all.iter().map(Vec::len).min().unwrap_or(0);
        (0..least).find(|call| all.iter().any(|a| a[*call] != all[0][*call]))
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for (_, child) in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
