//! Transport through a folder that all processes share. It needs no port, but is slow: shared file systems take tens of milliseconds and more.
//!
//! ```text
//! FOLDER/job-<token>/comm-<id>/<process>-<ordinal>      an announcement
//! FOLDER/job-<token>/box-<process>/<from>-<number>      a message, removed by its reader
//! ```
//!
//! An earlier job has another token and so another folder. If its token was the same, its leftover announcements duplicate ranks, so the communicator
//! does not agree and stays at AUTO. Files are written under a temporary name and renamed, so readers see complete files; unreadable files are
//! skipped. Only the owner may access the job's folder. While the folder is unusable, messages are lost; communication continues once it is back.
//!
//! Every function uses the file system and waits for it: where others wait for the caller, run it in [`super::Background`].

use super::{Endpoint, TransportEvent};
use crate::roster::{Announcement, ProcessId, RANKS_MAX, assemble};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::{FRAME_BYTES_MAX, Reader, Writer};

/// Interval of reading the folder while messages flow. Each poll lists one or two folders on a server that every process of the job uses.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest interval while idle; the interval doubles with each idle poll.
const POLL_INTERVAL_IDLE: Duration = Duration::from_millis(160);
/// Limit on messages read per poll.
const MESSAGES_MAX: usize = 4096;
/// Permission bits that the job's folder must not have: write access for group or others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// One process's end of the channel. See the module documentation.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    process: ProcessId,
    number: u64,
    /// Communicators whose roster is incomplete.
    pending: BTreeMap<u64, PendingRoster>,
    /// The folder was unusable at the last poll.
    unusable: bool,
    notes: Vec<String>,
    schedule: PollSchedule,
}

/// When to read the folder next.
#[derive(Debug)]
struct PollSchedule {
    next: Instant,
    pause: Duration,
}

impl PollSchedule {
    /// Sets the next poll, depending on whether this one found something.
    fn after_poll(&mut self, now: Instant, found: bool) {
        self.pause = if found { POLL_INTERVAL } else { (2 * self.pause).min(POLL_INTERVAL_IDLE) };
        self.next = now + self.pause;
    }

    /// After a message was sent: an answer may come soon.
    fn expect_answer(&mut self, now: Instant) {
        self.pause = POLL_INTERVAL;
        self.next = self.next.min(now + POLL_INTERVAL);
    }
}

#[derive(Debug, Default)]
struct PendingRoster {
    /// Announcements of this process.
    own: Vec<Announcement>,
    /// All announcements by file name. A complete file never changes.
    seen: BTreeMap<String, Announcement>,
}

impl Folder {
    /// Uses `root`, created if missing, for a job without a token.
    ///
    /// # Errors
    /// The folder cannot be used; the message says what to do.
    pub fn new(root: &Path, process: ProcessId) -> io::Result<Self> {
        Folder::for_job(root, b"", process)
    }

    /// The same as [`new`](Folder::new), for the job with this token.
    pub fn for_job(root: &Path, token: &[u8], process: ProcessId) -> io::Result<Self> {
        let job = root.join(format!("job-{:016x}", wire::bytes::hash(token)));
        let schedule = PollSchedule { next: Instant::now(), pause: POLL_INTERVAL };
        let (pending, notes) = (BTreeMap::new(), Vec::new());
        let folder = Folder { root: job, process, number: 0, pending, unusable: false, notes, schedule };
        folder.open().map_err(|e| {
            let what = "choose a folder that only the job's user can write to, on every host of the job";
            io::Error::new(e.kind(), format!("{}: {e}; {what}", root.display()))
        })?;
        Ok(folder)
    }

    /// Creates the job's folder and this process's inbox, and checks that only the owner may write to the folder.
    fn open(&self) -> io::Result<()> {
        create(&self.root)?;
        let mode = fs::symlink_metadata(&self.root)?;
        if !mode.is_dir() || mode.permissions().mode() & WRITABLE_BY_OTHERS != 0 {
            let what = format!("{} can be written by other users", self.root.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, what));
        }
        create(&self.inbox(self.process))
    }

    fn inbox(&self, process: ProcessId) -> PathBuf {
        self.root.join(format!("box-{process:016x}"))
    }

    fn comm_folder(&self, comm: u64) -> PathBuf {
        self.root.join(format!("comm-{comm:016x}"))
    }

    /// Writes a file atomically: under a temporary name, then renamed.
    fn write(&self, folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
        let part = folder.join(format!(".{name}.part"));
        let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, folder.join(name)));
        written.inspect_err(|_| drop(fs::remove_file(&part)))
    }

    /// Checks the folder, creates it again if it has vanished, and reports a change of its state once.
    fn is_usable(&mut self) -> bool {
        let found = match fs::symlink_metadata(self.inbox(self.process)) {
            Ok(_) => Ok(()),
            Err(_) => self.open(),
        };
        let note = match (&found, self.unusable) {
            (Err(e), false) => format!("the rendezvous folder {} is unusable: {e}", self.root.display()),
            (Ok(()), true) => format!("the rendezvous folder {} is usable again", self.root.display()),
            _ => return found.is_ok(),
        };
        if self.notes.len() < super::NOTES_MAX {
            self.notes.push(note);
        }
        self.unusable = found.is_err();
        !self.unusable
    }

    fn read_rosters(&mut self, events: &mut Vec<TransportEvent>) {
        let mut done = Vec::new();
        let mut pending = std::mem::take(&mut self.pending);
        for (comm, w) in &mut pending {
            let comm_folder = self.comm_folder(*comm);
            let names: BTreeSet<String> = names(&comm_folder, RANKS_MAX + 1).into_iter().collect();
            for a in &w.own {
                let name = format!("{:016x}-{}", a.process, a.ordinal);
                if !names.contains(&name) {
                    let mut bytes = Writer::default();
                    a.write(&mut bytes);
                    let _ = create(&comm_folder).and_then(|()| self.write(&comm_folder, &name, &bytes.0));
                }
            }
            w.seen.retain(|name, _| names.contains(name));
            for name in names {
                if !w.seen.contains_key(&name)
                    && let Some(a) = announcement(&comm_folder.join(&name), *comm)
                {
                    w.seen.insert(name, a);
                }
            }
            let all: Vec<Announcement> = w.seen.values().cloned().collect();
            match assemble(&all) {
                None => continue,
                Some(Ok(roster)) => events.push(TransportEvent::Complete(roster)),
                Some(Err(reason)) => events.push(TransportEvent::Disagreed { comm: *comm, reason }),
            }
            done.push(*comm);
        }
        done.iter().for_each(|comm| drop(pending.remove(comm)));
        self.pending = pending;
    }

    fn read_messages(&mut self, events: &mut Vec<TransportEvent>) {
        let inbox = self.inbox(self.process);
        for name in names(&inbox, MESSAGES_MAX) {
            let path = inbox.join(&name);
            let from = name.split_once('-').and_then(|(p, _)| ProcessId::from_str_radix(p, 16).ok());
            if let (Some(from), Some(body)) = (from, read(&path)) {
                events.push(TransportEvent::Message { from, body });
            }
            let _ = fs::remove_file(&path);
        }
    }
}

fn create(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Names of complete regular files, sorted, so that messages of one sender are in order. Other types are ignored: opening a pipe would block.
fn names(folder: &Path, limit: usize) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file()));
    let mut names: Vec<String> =
        files.filter_map(|e| e.file_name().into_string().ok()).filter(|n| !n.starts_with('.')).take(limit).collect();
    names.sort();
    names
}

fn announcement(path: &Path, comm: u64) -> Option<Announcement> {
    let bytes = read(path)?;
    let mut r = Reader::new(&bytes);
    let a = Announcement::read(&mut r).ok().filter(|a| a.comm == comm)?;
    let own_name = format!("{:016x}-{}", a.process, a.ordinal);
    (r.end().is_ok() && path.ends_with(own_name)).then_some(a)
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(FRAME_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= FRAME_BYTES_MAX).then_some(bytes)
}

impl Endpoint for Folder {
    fn announce(&mut self, announcement: Announcement) {
        self.pending.entry(announcement.comm).or_default().own.push(announcement);
        self.schedule.expect_answer(Instant::now());
    }

    fn forget(&mut self, comm: u64) {
        self.pending.remove(&comm);
        let comm_folder = self.comm_folder(comm);
        for name in names(&comm_folder, RANKS_MAX) {
            if name.starts_with(&format!("{:016x}-", self.process)) {
                let _ = fs::remove_file(comm_folder.join(name));
            }
        }
        let _ = fs::remove_dir(comm_folder); // succeeds for the last process
    }

    fn send(&mut self, to: ProcessId, body: &[u8]) {
        if body.len() > FRAME_BYTES_MAX {
            return;
        }
        self.number += 1;
        let name = format!("{:016x}-{:016x}", self.process, self.number);
        let _ = self.write(&self.inbox(to), &name, body); // if it cannot be written the message is lost, and the sender repeats it
        self.schedule.expect_answer(Instant::now());
    }

    fn poll(&mut self, timeout: Duration, events: &mut Vec<TransportEvent>) {
        let until = Instant::now() + timeout;
        loop {
            if Instant::now() >= self.schedule.next {
                if self.is_usable() {
                    self.read_messages(events);
                    self.read_rosters(events);
                }
                self.schedule.after_poll(Instant::now(), !events.is_empty());
            }
            let left = until.saturating_duration_since(Instant::now());
            if !events.is_empty() || left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(self.schedule.next.saturating_duration_since(Instant::now())));
        }
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn close(&mut self, _: Duration) {
        let inbox = self.inbox(self.process);
        for name in names(&inbox, usize::MAX) {
            let _ = fs::remove_file(inbox.join(name));
        }
        let _ = fs::remove_dir(inbox);
        let _ = fs::remove_dir(&self.root); // succeeds for the last process; the folder above belongs to the user
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_rarer_while_idle_and_frequent_again_after_activity() {
        let mut now = Instant::now();
        let mut schedule = PollSchedule { next: now, pause: POLL_INTERVAL };
        let mut pauses_ms = Vec::new();
        for found in [true, false, false, false, false, true, false] {
            schedule.after_poll(now, found);
            pauses_ms.push((schedule.next - now).as_millis());
            now = schedule.next;
        }
        assert_eq!(pauses_ms, [20, 40, 80, 160, 160, 20, 40]);
        schedule.after_poll(now, false);
        schedule.expect_answer(now);
        assert_eq!((schedule.next, schedule.pause), (now + POLL_INTERVAL, POLL_INTERVAL));
    }

    #[test]
    fn frequent_polls_do_not_read_the_folder_more_often() {
        let folder = tempfile::tempdir().unwrap();
        let mut end = Folder::new(folder.path(), 1).unwrap();
        let mut events = Vec::new();
        end.poll(Duration::ZERO, &mut events);
        end.send(1, b"to myself");
        // The next poll is far off, so the message that is already there stays unread.
        end.schedule.next = Instant::now() + Duration::from_secs(3600);
        for _ in 0..20 {
            end.poll(Duration::from_millis(1), &mut events);
        }
        assert_eq!(events, []);
        end.schedule.next = Instant::now();
        end.poll(Duration::ZERO, &mut events);
        assert_eq!(events, [TransportEvent::Message { from: 1, body: b"to myself".to_vec() }]);
    }
}
