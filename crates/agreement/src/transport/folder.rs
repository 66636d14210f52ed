//! Transport through a folder that all processes share. It needs no port, but is slow: shared file systems take tens of milliseconds and more.
//!
//! ```text
//! FOLDER/job-<token>/comm-<id>/<process>-<ordinal>      an announcement
//! FOLDER/job-<token>/box-<process>/<from>-<number>      a message, removed by its reader
//! ```
//!
//! An earlier job has another token and so another folder. If its token was the same, its leftover announcements duplicate ranks, so the communicator
//! does not agree and stays at AUTO. Files are written under a temporary name and renamed, so readers see complete files; unreadable files are
//! skipped. While the folder is unusable, messages are lost; communication continues once it is back.
//!
//! Another user may make the job's folder first, or put files into it. So the folder, its sub-folders and every file must belong to this process's
//! user and be writable by that user alone. They are opened below a folder that is held open, never through a link, and the held folder is compared
//! with its path at every poll. Every file ends with a tag under a key made from the job's token, so a file of another writer is ignored.
//!
//! Every function uses the file system and waits for it: where others wait for the caller, run it in [`super::Background`].

use super::{Endpoint, TransportEvent};
use crate::roster::{Announcement, ProcessId, RANKS_MAX, assemble};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::auth::{GroupKey, TAG_BYTES};
use wire::{FRAME_BYTES_MAX, Reader, Writer};

/// Interval of reading the folder while messages flow. Each poll lists one or two folders on a server that every process of the job uses.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest interval while idle; the interval doubles with each idle poll.
const POLL_INTERVAL_IDLE: Duration = Duration::from_millis(160);
/// Limit on messages read per poll.
const MESSAGES_MAX: usize = 4096;
/// Permission bits that folders and files must not have: write access for group or others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// One process's end of the channel. See the module documentation.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    /// The job's folder and this process's inbox, while they are usable.
    held: Option<Held>,
    key: GroupKey,
    process: ProcessId,
    number: u64,
    /// Communicators whose roster is incomplete.
    pending: BTreeMap<u64, PendingRoster>,
    /// The folder was unusable at the last poll.
    unusable: bool,
    notes: Vec<String>,
    schedule: PollSchedule,
}

#[derive(Debug)]
struct Held {
    job: OwnedFd,
    inbox: OwnedFd,
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
        let key = GroupKey::new(token, b"folder");
        let mut folder =
            Folder { root: job, held: None, key, process, number: 0, pending, unusable: false, notes, schedule };
        folder.open().map_err(|e| {
            let what = "choose a folder that only the job's user can write to, on every host of the job";
            io::Error::new(e.kind(), format!("{}: {e}; {what}", root.display()))
        })?;
        Ok(folder)
    }

    /// Opens the job's folder and this process's inbox; creates what is missing.
    fn open(&mut self) -> io::Result<()> {
        self.held = None;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root).or_else(|e| match e.kind() {
            ErrorKind::AlreadyExists => Ok(()), // not a folder: the next line says so
            _ => Err(e),
        })?;
        let job = open_folder(CWD, &self.root)?;
        let inbox = folder_in(&job, &inbox_name(self.process))?;
        self.held = Some(Held { job, inbox });
        Ok(())
    }

    /// Writes a sealed file atomically: under a temporary name, then renamed.
    fn write(&self, folder: impl AsFd, name: &str, to: ProcessId, bytes: &[u8]) -> io::Result<()> {
        let part = format!(".{name}.part");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let _ = rustix::fs::unlinkat(&folder, &part, AtFlags::empty()); // of an earlier attempt
        let file = rustix::fs::openat(&folder, &part, flags, Mode::RUSR | Mode::WUSR)?;
        let sealed = self.key.seal(self.process, to, bytes);
        let written = fs::File::from(file).write_all(&sealed);
        let moved = written.and_then(|()| Ok(rustix::fs::renameat(&folder, &part, &folder, name)?));
        moved.inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&folder, &part, AtFlags::empty());
        })
    }

    /// The content of a sealed file of this user.
    fn read(&self, folder: impl AsFd, name: &str, from: ProcessId, to: ProcessId) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(folder, name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_ours_alone(&stat) {
            return None;
        }
        let mut bytes = Vec::new();
        fs::File::from(file).take((FRAME_BYTES_MAX + TAG_BYTES) as u64 + 1).read_to_end(&mut bytes).ok()?;
        let body = self.key.open(from, to, &bytes)?;
        (body.len() <= FRAME_BYTES_MAX).then(|| body.to_vec())
    }

    /// Checks the folder, creates it again if it has vanished, and reports a change of its state once.
    fn is_usable(&mut self) -> bool {
        let found = if self.is_in_place() { Ok(()) } else { self.open() };
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

    /// The held folders are those at their paths, and still belong to this user alone.
    fn is_in_place(&self) -> bool {
        let Some(held) = &self.held else { return false };
        let same = |there: rustix::io::Result<Stat>, held: &OwnedFd| match (there, rustix::fs::fstat(held)) {
            (Ok(there), Ok(held)) => {
                (there.st_dev, there.st_ino) == (held.st_dev, held.st_ino) && is_ours_alone(&there)
            }
            _ => false,
        };
        let at = |folder: &OwnedFd, name: &str| rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        same(rustix::fs::lstat(&self.root), &held.job) && same(at(&held.job, &inbox_name(self.process)), &held.inbox)
    }

    fn announcement(&self, folder: &OwnedFd, name: &str, comm: u64) -> Option<Announcement> {
        let from = ProcessId::from_str_radix(name.split_once('-')?.0, 16).ok()?;
        let bytes = self.read(folder, name, from, comm)?;
        let mut r = Reader::new(&bytes);
        let a = Announcement::read(&mut r).ok().filter(|a| a.comm == comm)?;
        (r.end().is_ok() && name == announcement_name(&a)).then_some(a)
    }

    fn read_rosters(&mut self, events: &mut Vec<TransportEvent>) {
        let mut done = Vec::new();
        let Some(held) = &self.held else { return };
        let mut pending = std::mem::take(&mut self.pending);
        for (comm, w) in &mut pending {
            let Ok(folder) = folder_in(&held.job, &comm_name(*comm)) else { continue };
            let names: BTreeSet<String> = names(&folder, RANKS_MAX + 1).into_iter().collect();
            for a in &w.own {
                let name = announcement_name(a);
                if !names.contains(&name) {
                    let mut bytes = Writer::default();
                    a.write(&mut bytes);
                    let _ = self.write(&folder, &name, *comm, &bytes.0);
                }
            }
            w.seen.retain(|name, _| names.contains(name));
            for name in names {
                if !w.seen.contains_key(&name)
                    && let Some(a) = self.announcement(&folder, &name, *comm)
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
        let Some(held) = &self.held else { return };
        for name in names(&held.inbox, MESSAGES_MAX) {
            let from = name.split_once('-').and_then(|(p, _)| ProcessId::from_str_radix(p, 16).ok());
            if let Some(from) = from
                && let Some(body) = self.read(&held.inbox, &name, from, self.process)
            {
                events.push(TransportEvent::Message { from, body });
            }
            let _ = rustix::fs::unlinkat(&held.inbox, &name, AtFlags::empty());
        }
    }
}

fn inbox_name(process: ProcessId) -> String {
    format!("box-{process:016x}")
}

fn comm_name(comm: u64) -> String {
    format!("comm-{comm:016x}")
}

fn announcement_name(a: &Announcement) -> String {
    format!("{:016x}-{}", a.process, a.ordinal)
}

/// The owner is this process's user, who alone may write.
fn is_ours_alone(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & WRITABLE_BY_OTHERS == 0
}

/// Opens a folder of this user, not through a link.
fn open_folder(below: impl AsFd, path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    let path = path.as_ref();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(below, path, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&folder)?;
    let refused = |what: String| Err(io::Error::new(ErrorKind::PermissionDenied, what));
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return refused(format!("{} belongs to user {}", path.display(), stat.st_uid));
    }
    if !is_ours_alone(&stat) {
        return refused(format!("{} can be written by other users", path.display()));
    }
    Ok(folder)
}

/// Opens a folder below another one, and creates it if it is missing.
fn folder_in(below: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(below, name, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => open_folder(below, name),
        Err(e) => Err(e.into()),
    }
}

/// Names of complete regular files, sorted, so that messages of one sender are in order. Other types are ignored: opening a pipe would block.
fn names(folder: &OwnedFd, limit: usize) -> Vec<String> {
    let entries = Dir::read_from(folder).into_iter().flatten().flatten();
    let is_file = |t: FileType| matches!(t, FileType::RegularFile | FileType::Unknown); // `read` looks again
    let files = entries.filter(|e| is_file(e.file_type()));
    let mut names: Vec<String> = files
        .filter_map(|e| e.file_name().to_str().ok().map(str::to_string))
        .filter(|n| !n.starts_with('.'))
        .take(limit)
        .collect();
    names.sort();
    names
}

impl Endpoint for Folder {
    fn announce(&mut self, announcement: Announcement) {
        self.pending.entry(announcement.comm).or_default().own.push(announcement);
        self.schedule.expect_answer(Instant::now());
    }

    fn forget(&mut self, comm: u64) {
        self.pending.remove(&comm);
        let Some(held) = &self.held else { return };
        let Ok(folder) = open_folder(&held.job, comm_name(comm)) else { return };
        for name in names(&folder, RANKS_MAX) {
            if name.starts_with(&format!("{:016x}-", self.process)) {
                let _ = rustix::fs::unlinkat(&folder, name, AtFlags::empty());
            }
        }
        let _ = rustix::fs::unlinkat(&held.job, comm_name(comm), AtFlags::REMOVEDIR); // succeeds for the last process
    }

    fn send(&mut self, to: ProcessId, body: &[u8]) {
        if body.len() > FRAME_BYTES_MAX {
            return;
        }
        self.number += 1;
        let name = format!("{:016x}-{:016x}", self.process, self.number);
        // If it cannot be written the message is lost, and the sender repeats it.
        if let Some(inbox) = self.held.as_ref().and_then(|h| open_folder(&h.job, inbox_name(to)).ok()) {
            let _ = self.write(inbox, &name, to, body);
        }
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
        if let Some(held) = self.held.take() {
            for name in names(&held.inbox, usize::MAX) {
                let _ = rustix::fs::unlinkat(&held.inbox, name, AtFlags::empty());
            }
            let _ = rustix::fs::unlinkat(&held.job, inbox_name(self.process), AtFlags::REMOVEDIR);
        }
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
