//! The journal of finished launches, next to the policy file, from which an interrupted run continues.
//!
//! One JSON object per line: first the settings of the run, then one line per launch. A run with other settings cannot
//! continue the journal. The plan follows the first launch; a run that continues with more time keeps that plan.

use super::launch::Launch;
use super::readings::LaunchSite;
use crate::ProfileError;
use files::read_limited;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Largest journal, bytes.
const BYTES_MAX: usize = 256 << 20;
/// The version of the format.
pub const VERSION: u32 = 3;
/// Longest accepted launch of a record, seconds.
const SECONDS_MAX: f64 = 1e7;

/// The settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalHeader {
    /// Names the format; [`VERSION`].
    pub linkwise_tune_samples: u32,
    /// The command.
    pub command: Vec<String>,
    /// Its background command.
    pub beside: Option<String>,
    /// The collective that the arms are of.
    pub collective: String,
    /// The arms.
    pub arms: Vec<String>,
    /// Sizes, bytes.
    pub sizes: Vec<u64>,
    /// True if calls during computation are measured as well.
    pub overlap: bool,
    /// Readings of each arm and size.
    pub iterations: u32,
    /// Discarded readings of each launch.
    pub warmup: u32,
    /// Largest number of turns.
    pub rounds: u32,
    /// Start of the run, seconds since 1970; of its first part if it was interrupted.
    pub started_unix_s: u64,
}

/// The result of one launch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchRecord {
    /// The parameters of the launch.
    pub launch: Launch,
    /// Duration of the launch, seconds.
    pub seconds: f64,
    /// Microseconds by size in bytes.
    pub times_us: BTreeMap<u64, Vec<f64>>,
    /// True if the program compared its results and all were right.
    pub is_checked: bool,
    /// Why there are no times.
    pub failure: Option<String>,
    /// True if the program compared its results and found wrong ones.
    pub is_wrong: bool,
    /// The site of the launch.
    pub place: LaunchSite,
}

/// The plan, without the parts that follow from the first launch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournaledPlan {
    /// Turns.
    pub turns: u32,
    /// Readings of one launch.
    pub iterations: u32,
    /// Sizes, bytes, rising.
    pub sizes: Vec<u64>,
}

/// A line after the first.
#[derive(Debug, Clone, PartialEq)]
pub enum JournalLine {
    /// A launch.
    Launch(Box<LaunchRecord>),
    /// The plan.
    Plan(JournaledPlan),
}

/// Start of the plan's line. No launch's line begins with it.
const PLAN: &str = "{\"turns\":";

impl LaunchRecord {
    /// Checks the values: the file may have been edited.
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

/// The lines of a journal after its header, with their numbers.
pub type Numbered = Vec<(usize, JournalLine)>;

/// An open journal.
pub struct Journal {
    file: File,
    path: PathBuf,
}

/// The path of a file next to a policy file.
pub fn sibling(policy: &Path, ending: &str) -> PathBuf {
    let mut name = policy.file_name().unwrap_or_default().to_os_string();
    name.push(ending);
    policy.with_file_name(name)
}

/// The path of the journal of a policy file.
pub fn path_of(policy: &Path) -> PathBuf {
    sibling(policy, ".samples.jsonl")
}

impl Journal {
    /// Opens or creates the journal. Returns its lines with their numbers; the header is that of the run's first part.
    ///
    /// # Errors
    /// The journal belongs to a run with other settings, is not a journal, or cannot be written.
    pub fn open(
        path: &Path,
        head: &JournalHeader,
        is_anew: bool,
    ) -> Result<(Journal, JournalHeader, Numbered), ProfileError> {
        let fail = |e: &dyn std::fmt::Display| ProfileError::file("write", path, e);
        let found = match path.exists() && !is_anew {
            true => read(path, head)?,
            false => None,
        };
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(found.is_some()).truncate(found.is_none());
        let mut journal = Journal { file: options.open(path).map_err(|e| fail(&e))?, path: path.to_owned() };
        match found {
            Some((head, lines, is_whole)) => {
                if !is_whole {
                    journal.write("")?; // ends a line that an interruption cut off
                }
                Ok((journal, head, lines))
            }
            None => {
                journal.write(&serde_json::to_string(head).map_err(|e| fail(&e))?)?;
                Ok((journal, head.clone(), Vec::new()))
            }
        }
    }

    /// Appends a launch. The line is on disk when the function returns.
    pub fn add(&mut self, entry: &LaunchRecord) -> Result<(), ProfileError> {
        let line = serde_json::to_string(entry).map_err(|e| ProfileError::file("write", &self.path, e))?;
        self.write(&line)
    }

    /// Appends the plan.
    pub fn add_plan(&mut self, plan: &JournaledPlan) -> Result<(), ProfileError> {
        let line = serde_json::to_string(plan).map_err(|e| ProfileError::file("write", &self.path, e))?;
        self.write(&line)
    }

    fn write(&mut self, line: &str) -> Result<(), ProfileError> {
        let done = self.file.write_all(format!("{line}\n").as_bytes()).and_then(|()| self.file.sync_data());
        done.map_err(|e| ProfileError::file("write", &self.path, e))
    }
}

/// The error of a journal's line, with a remedy.
pub fn bad_line(path: &Path, line: usize, what: &dyn std::fmt::Display) -> ProfileError {
    let remedy = "move the file away, or start over with --restart";
    ProfileError::input(format!("{}:{line}: {}; {remedy}", path.display(), ::report::one_line(&what.to_string(), 300)))
}

/// Header, the other lines, and whether the last line is complete.
type Found = (JournalHeader, Numbered, bool);

/// The content of a journal; `None` without a launch. Skips a last line that an interruption cut off, also inside a
/// character.
fn read(path: &Path, wanted: &JournalHeader) -> Result<Option<Found>, ProfileError> {
    let bytes = read_limited(path, BYTES_MAX)?;
    let is_whole = bytes.ends_with(b"\n");
    let bad = |line: usize, e: &dyn std::fmt::Display| bad_line(path, line, e);
    let lines = bytes.split(|b| *b == b'\n').enumerate().map(|(i, l)| (i + 1, l));
    let mut lines = lines.filter(|l| !l.1.trim_ascii().is_empty());
    let (_, first) = lines.next().ok_or_else(|| bad(1, &"the journal is empty"))?;
    let head = serde_json::from_slice(first);
    let head: JournalHeader = head.map_err(|e| bad(1, &format!("not the journal of a profile ({e})")))?;
    if lines.clone().next().is_none() && is_whole {
        return Ok(None);
    }
    if (JournalHeader { started_unix_s: wanted.started_unix_s, ..head.clone() }) != *wanted {
        return Err(bad(1, &"it belongs to a run with other arms, sizes, counts or another command"));
    }
    let mut found = Vec::new();
    for (number, bytes) in lines {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) if e.error_len().is_none() => continue, // ends within a character
            Err(e) => return Err(bad(number, &e)),
        };
        match line(text) {
            Ok(line) => {
                if let JournalLine::Launch(entry) = &line {
                    entry.check().map_err(|e| bad(number, &e))?;
                }
                found.push((number, line));
            }
            Err(e) if e.is_eof() => {}
            Err(e) => return Err(bad(number, &e)),
        }
    }
    Ok(Some((head, found, is_whole)))
}

fn line(text: &str) -> Result<JournalLine, serde_json::Error> {
    if text.starts_with(PLAN) {
        return serde_json::from_str(text).map(JournalLine::Plan);
    }
    serde_json::from_str(text).map(|entry| JournalLine::Launch(Box::new(entry)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> JournalHeader {
        JournalHeader {
            linkwise_tune_samples: VERSION,
            command: vec!["prüfe".into()],
            beside: None,
            collective: "all_reduce".into(),
            arms: vec!["AUTO".into()],
            sizes: vec![8],
            overlap: false,
            iterations: 5,
            warmup: 0,
            rounds: 1,
            started_unix_s: 7,
        }
    }

    fn entry(failure: &str) -> LaunchRecord {
        let (arm, sizes) = ("AUTO".to_owned(), vec![8]);
        let launch = Launch { arm, sizes, is_overlapped: false, iterations: 5, warmup: 0, is_checked: true };
        let failure = Some(failure.to_owned());
        let (times_us, place) = (BTreeMap::new(), LaunchSite::default());
        LaunchRecord { launch, seconds: 1.0, times_us, is_checked: false, failure, is_wrong: false, place }
    }

    #[test]
    fn a_journal_that_was_cut_off_anywhere_in_a_line_is_continued() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.samples.jsonl");
        let (mut journal, ..) = Journal::open(&path, &head(), true).unwrap();
        journal.add(&entry("erster")).unwrap();
        journal.add_plan(&JournaledPlan { turns: 1, iterations: 5, sizes: vec![8] }).unwrap();
        let whole = std::fs::read(&path).unwrap().len();
        journal.add(&entry("größer als ö")).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        // Cut the last line at every byte, also inside its two-byte letters.
        for cut in whole + 1..bytes.len() - 1 {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let (mut journal, _, found) = Journal::open(&path, &head(), false).unwrap_or_else(|e| panic!("{cut}: {e}"));
            assert_eq!(found.len(), 2, "{cut}: a launch and the plan are whole");
            // Cut off again before a line was added, and after another launch.
            assert_eq!(Journal::open(&path, &head(), false).unwrap().2.len(), 2, "{cut}");
            journal.add(&entry("später")).unwrap();
            assert_eq!(Journal::open(&path, &head(), false).unwrap().2.len(), 3, "{cut}");
        }
    }
}
