//! What finished launches said, kept beside the policy file so that a run that was cut off goes on.
//!
//! One JSON object per line: first what the run is (a run with other settings does not go on from it), then one line per launch. The
//! plan is not among them: it follows from the first launch.

use super::launch::Launch;
use crate::cmd::shared::read_text;
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Largest journal, bytes.
const BYTES_MAX: usize = 256 << 20;
/// The version of the format.
pub const VERSION: u32 = 2;
/// Longest launch that an entry may tell of, seconds.
const SECONDS_MAX: f64 = 1e7;

/// What a run is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Names the format; [`VERSION`].
    pub linkwise_tune_samples: u32,
    /// The command.
    pub command: Vec<String>,
    /// What ran beside it.
    pub beside: Option<String>,
    /// The collective that the arms are of.
    pub collective: String,
    /// The arms.
    pub arms: Vec<String>,
    /// Sizes, bytes.
    pub sizes: Vec<u64>,
    /// Beside computation as well.
    pub overlap: bool,
    /// Samples of each arm and size.
    pub iterations: u32,
    /// Thrown away in each launch.
    pub warmup: u32,
    /// Turns, at most.
    pub rounds: u32,
    /// Start, seconds since 1970; of the first part, if the run was cut off.
    pub started_unix_s: u64,
}

/// What one launch said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// What was launched.
    pub launch: Launch,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Microseconds by size in bytes.
    pub times_us: BTreeMap<u64, Vec<f64>>,
    /// Why there are none.
    pub failure: Option<String>,
    /// NCCL's version, if said.
    pub nccl_version: Option<String>,
    /// Ranks and hosts, if said.
    pub ranks_and_hosts: Option<(u32, u32)>,
}

impl Entry {
    /// A file may hold anything.
    fn check(&self) -> Result<(), String> {
        if !(0.0..=SECONDS_MAX).contains(&self.seconds) {
            return Err(format!("a launch of {} s", self.seconds));
        }
        let sound = |t: &f64| t.is_finite() && *t > 0.0 && *t <= ::tune::ledger::TIME_US_MAX;
        match self.times_us.values().flatten().find(|t| !sound(t)) {
            Some(t) => Err(format!("a time of {t} us")),
            None => Ok(()),
        }
    }
}

/// Launches, each with its line.
pub type Numbered = Vec<(usize, Entry)>;

/// An open journal.
pub struct Journal {
    file: File,
    path: PathBuf,
}

/// The name of a file that stands beside a policy file.
pub fn beside(policy: &Path, ending: &str) -> PathBuf {
    let mut name = policy.file_name().unwrap_or_default().to_os_string();
    name.push(ending);
    policy.with_file_name(name)
}

/// The journal's name beside a policy file.
pub fn path_of(policy: &Path) -> PathBuf {
    beside(policy, ".samples.jsonl")
}

impl Journal {
    /// Opens or begins the journal. Returns what it holds, each launch with its line; the head is that of the run's first part.
    ///
    /// # Errors
    /// It belongs to a run with other settings, holds something else, or cannot be written.
    pub fn open(path: &Path, head: &Head, is_anew: bool) -> Result<(Journal, Head, Numbered), Failure> {
        let fail = |e: &dyn std::fmt::Display| Failure::file("write", path, e);
        let found = match path.exists() && !is_anew {
            true => read(path, head)?,
            false => None,
        };
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(found.is_some()).truncate(found.is_none());
        let mut journal = Journal { file: options.open(path).map_err(|e| fail(&e))?, path: path.to_owned() };
        match found {
            Some((head, entries, is_whole)) => {
                if !is_whole {
                    journal.write("")?; // ends a line that was cut off
                }
                Ok((journal, head, entries))
            }
            None => {
                journal.write(&serde_json::to_string(head).map_err(|e| fail(&e))?)?;
                Ok((journal, head.clone(), Vec::new()))
            }
        }
    }

    /// Adds a launch; it is on disk when this returns.
    pub fn add(&mut self, entry: &Entry) -> Result<(), Failure> {
        let line = serde_json::to_string(entry).map_err(|e| Failure::file("write", &self.path, e))?;
        self.write(&line)
    }

    fn write(&mut self, line: &str) -> Result<(), Failure> {
        let done = self.file.write_all(format!("{line}\n").as_bytes()).and_then(|()| self.file.sync_data());
        done.map_err(|e| Failure::file("write", &self.path, e))
    }
}

/// What is wrong with a line of a journal, and what to do.
pub fn bad_line(path: &Path, line: usize, what: &dyn std::fmt::Display) -> Failure {
    let remedy = "move the file away, or start over with --restart";
    Failure::input(format!("{}:{line}: {}; {remedy}", path.display(), crate::report::one_line(&what.to_string(), 300)))
}

/// Head, entries, and whether the last line is whole.
type Found = (Head, Numbered, bool);

/// What a journal holds; `None` for one of any run that has no launch yet. A line that was cut off by a kill is passed over.
fn read(path: &Path, wanted: &Head) -> Result<Option<Found>, Failure> {
    let text = read_text(path, BYTES_MAX)?;
    let is_whole = text.ends_with('\n');
    let bad = |line: usize, e: &dyn std::fmt::Display| bad_line(path, line, e);
    let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l)).filter(|l| !l.1.trim().is_empty());
    let (_, first) = lines.next().ok_or_else(|| bad(1, &"the journal is empty"))?;
    let head: Head = serde_json::from_str(first).map_err(|e| bad(1, &format!("not the journal of a profile ({e})")))?;
    if lines.clone().next().is_none() && is_whole {
        return Ok(None);
    }
    if (Head { started_unix_s: wanted.started_unix_s, ..head.clone() }) != *wanted {
        return Err(bad(1, &"it belongs to a run with other arms, sizes, counts or another command"));
    }
    let count = text.lines().count();
    let mut entries = Vec::new();
    for (line, words) in lines {
        match serde_json::from_str::<Entry>(words) {
            Ok(entry) => {
                entry.check().map_err(|e| bad(line, &e))?;
                entries.push((line, entry));
            }
            Err(e) if e.is_eof() && (line < count || !is_whole) => {}
            Err(e) => return Err(bad(line, &e)),
        }
    }
    Ok(Some((head, entries, is_whole)))
}
