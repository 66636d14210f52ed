//! The status files of running jobs ([`read_folder`]): the plugin writes one per process that leads a communicator, where the setting `status` names
//! a folder. They are untrusted: files and fields have limits.

#![allow(missing_docs, reason = "an item whose name says everything needs no comment")]

use crate::JobError;
use ::report::one_line;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Largest file, bytes: 256 communicators and 1,024 arms take about 400 KB.
pub const FILE_BYTES_MAX: usize = 4 << 20;
/// Largest sum of all files of a folder, bytes.
pub const FOLDER_BYTES_MAX: u64 = 64 << 20;
/// Limit on files of a folder.
pub const FILES_MAX: usize = 8192;
/// A file that is older than this belongs to a process that has ended, or hangs. The plugin writes every 2 s.
pub const STALE_S: u64 = 15;

/// The arm in use for one collective and size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotStatus {
    pub collective: String,
    /// The middle of the sizes, bytes.
    pub size_bytes: u64,
    pub arm: String,
    pub because: String,
}

/// One rank of a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommStatus {
    pub comm: String,
    /// -1 if NCCL does not provide it.
    pub rank: i64,
    pub ranks: u32,
    pub nodes: u32,
    /// The process leads the communicator.
    pub leads: bool,
    pub calls: u64,
    /// The epoch in force.
    pub epoch: u64,
    pub waits: u64,
    pub longest_wait_us: u64,
    /// A call waits now, for this long.
    pub waiting_us: Option<u64>,
    /// Dropped records.
    pub dropped: u64,
    /// Ranks that have not answered their leader.
    pub silent: Vec<i64>,
    pub slots: Vec<SlotStatus>,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStatus {
    /// The form of the file.
    pub linkwise_status: u32,
    /// When it was written, seconds since 1970.
    pub at_unix_s: u64,
    /// Hash that the job's processes share.
    pub job: String,
    pub host: String,
    pub host_name: String,
    pub pid: u64,
    pub mode: String,
    pub policy: String,
    pub site_tuner: Option<String>,
    /// All ranks are back at AUTO.
    pub stopped: bool,
    /// Exploring has ended.
    pub frozen: bool,
    /// Changes of an arm so far.
    pub changes: u64,
    /// Communicators and arms beyond the limits of the file.
    pub left_out: u64,
    pub comms: Vec<CommStatus>,
}

impl ProcessStatus {
    /// Reads a file's text.
    ///
    /// # Errors
    /// A sentence: another form, or a text that is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut status: ProcessStatus =
            serde_json::from_str(text).map_err(|e| format!("not a status file of linkwise ({e})"))?;
        if status.linkwise_status != 1 {
            return Err(format!("form {}, but this version reads form 1", status.linkwise_status));
        }
        // Texts go to terminals.
        let clean = |t: &mut String, most: usize| *t = one_line(t, most);
        for (text, most) in [
            (&mut status.job, 16),
            (&mut status.host, 16),
            (&mut status.host_name, 64),
            (&mut status.mode, 32),
            (&mut status.policy, 64),
        ] {
            clean(text, most);
        }
        status.site_tuner.iter_mut().for_each(|t| clean(t, 64));
        for c in &mut status.comms {
            clean(&mut c.comm, 16);
            for s in &mut c.slots {
                clean(&mut s.collective, 32);
                clean(&mut s.arm, 32);
                clean(&mut s.because, 200);
            }
        }
        Ok(status)
    }

    /// Seconds since it was written.
    pub fn age_s(&self, now_unix_s: u64) -> u64 {
        now_unix_s.saturating_sub(self.at_unix_s)
    }
}

/// The status files of a folder, by host and process; and those that cannot be read, with the reason. A file that is replaced meanwhile is read as it
/// was or as it is.
///
/// # Errors
/// A folder that cannot be read; too many files.
pub fn read_folder(folder: &Path) -> Result<(Vec<ProcessStatus>, Vec<String>), JobError> {
    let io = |source| JobError::Io { path: folder.into(), source };
    let (mut all, mut broken) = (Vec::new(), Vec::new());
    let (mut count, mut bytes) = (0, 0u64);
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let entry = entry.map_err(io)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !(name.starts_with("status-") && name.ends_with(".json")) {
            continue;
        }
        count += 1;
        if count > FILES_MAX {
            return Err(JobError::TooManyTraces { max: FILES_MAX });
        }
        bytes = bytes.saturating_add(entry.metadata().map_or(0, |m| m.len()));
        if bytes > FOLDER_BYTES_MAX {
            broken.push(format!("the files have more than {FOLDER_BYTES_MAX} bytes; the rest is not read"));
            break;
        }
        let text = files::read_regular_text(&entry.path(), FILE_BYTES_MAX).map_err(|e| e.to_string());
        match text.and_then(|t| ProcessStatus::parse(&t).map_err(|e| format!("{name}: {e}"))) {
            Ok(status) => all.push(status),
            Err(why) => broken.push(one_line(&why, 200)),
        }
    }
    all.sort_by(|a, b| (&a.job, &a.host_name, a.pid).cmp(&(&b.job, &b.host_name, b.pid)));
    broken.sort();
    Ok((all, broken))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"linkwise_status":1,"at_unix_s":100,"job":"0a","host":"0b","host_name":"n0","pid":7,"mode":"adaptive","policy":"adaptive","site_tuner":null,"stopped":false,"frozen":false,"changes":2,"left_out":0,"comms":[{"comm":"0c","rank":0,"ranks":8,"nodes":1,"leads":true,"calls":9,"epoch":3,"waits":1,"longest_wait_us":50,"waiting_us":null,"dropped":0,"silent":[3],"slots":[{"collective":"AllReduce","size_bytes":1048576,"arm":"RING/LL","because":"faster\u001b[31m"}]}]}"#;

    #[test]
    fn files_are_read_cleaned_and_sorted_and_broken_ones_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("status-0b-9.json", TEXT.replace("\"pid\":7", "\"pid\":9")),
            ("status-0b-7.json", TEXT.into()),
            ("status-0b-8.json", TEXT[..90].into()),
            ("status-0b-6.json", TEXT.replace("status\":1", "status\":2")),
            ("linkwise-0b-7.prom", "x".into()),
            (".status-0b-7.json.new", "{".into()),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, folder.path().join("status-f.json"), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();
        let (all, broken) = read_folder(folder.path()).unwrap();
        assert_eq!(all.iter().map(|p| p.pid).collect::<Vec<_>>(), [7, 9]);
        assert!(!all[0].comms[0].slots[0].because.contains('\u{1b}'), "no escapes");
        assert_eq!((all[0].age_s(103), all[0].age_s(99)), (3, 0));
        assert_eq!(broken.len(), 3, "{broken:?}");
        assert!(broken[0].contains("status-f.json is no regular file"), "{broken:?}");
        assert!(broken[1].contains("form 2") && broken[2].contains("not a status file"), "{broken:?}");
        assert!(read_folder(&folder.path().join("none")).is_err());
    }
}
