//! Through a folder that all processes see. Slow (file systems between hosts take tens of milliseconds and more), but it needs no port.
//!
//! ```text
//! FOLDER/job-<token>/comm-<id>/<process>-<ordinal>      an announcement
//! FOLDER/job-<token>/box-<process>/<from>-<number>      a message, removed by who reads it
//! ```
//!
//! What an earlier job left behind is not seen, for it had another token; where it had the same one its announcements are of no use to anybody:
//! ranks that are there twice never agree. Files appear whole, under their names, or not at all; what cannot be read is skipped. The job's folder
//! belongs to its owner alone. While it cannot be used nothing arrives, and when it is there again everything goes on.

use super::{Endpoint, Event};
use crate::roster::{Announcement, ProcessId, RANKS_MAX, assemble};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::{FRAME_BYTES_MAX, Reader, Writer};

/// How often the folder is looked at while something happens. Each look lists a folder or two, on a server that every process of the job asks.
const LOOK: Duration = Duration::from_millis(20);
/// And while nothing does: the time doubles from look to look.
const LOOK_IDLE: Duration = Duration::from_millis(160);
/// Most messages read at once.
const MESSAGES_MAX: usize = 4096;
/// What others may do in the job's folder: nothing that changes it.
const OTHERS_WRITE: u32 = 0o022;

/// See the module.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    process: ProcessId,
    number: u64,
    /// Communicators whose roster is not complete.
    waiting: BTreeMap<u64, Waiting>,
    /// The folder cannot be used.
    lost: bool,
    notes: Vec<String>,
    looks: Looks,
}

/// When to look.
#[derive(Debug)]
struct Looks {
    next: Instant,
    pause: Duration,
}

impl Looks {
    /// After a look that found something, or nothing.
    fn looked(&mut self, now: Instant, found: bool) {
        self.pause = if found { LOOK } else { (2 * self.pause).min(LOOK_IDLE) };
        self.next = now + self.pause;
    }

    /// Something was said: an answer may come.
    fn expect(&mut self, now: Instant) {
        self.pause = LOOK;
        self.next = self.next.min(now + LOOK);
    }
}

#[derive(Debug, Default)]
struct Waiting {
    /// Of this process.
    own: Vec<Announcement>,
    /// Of everybody, by the names of their files. They never change, once they are whole.
    seen: BTreeMap<String, Announcement>,
}

impl Folder {
    /// In `root`, which is created if need be, for a job without a token. An error says what to do.
    pub fn new(root: &Path, process: ProcessId) -> io::Result<Self> {
        Folder::of_job(root, b"", process)
    }

    /// In `root`, for the job of this token.
    pub fn of_job(root: &Path, token: &[u8], process: ProcessId) -> io::Result<Self> {
        let job = root.join(format!("job-{:016x}", wire::bytes::hash(token)));
        let looks = Looks { next: Instant::now(), pause: LOOK };
        let (waiting, notes) = (BTreeMap::new(), Vec::new());
        let folder = Folder { root: job, process, number: 0, waiting, lost: false, notes, looks };
        folder.open().map_err(|e| {
            let what = "choose a folder that every process of the job can write to, and nobody else";
            io::Error::new(e.kind(), format!("{}: {e}; {what}", root.display()))
        })?;
        Ok(folder)
    }

    /// The job's folder and this process's inbox are there and nobody else's.
    fn open(&self) -> io::Result<()> {
        create(&self.root)?;
        let mode = fs::symlink_metadata(&self.root)?;
        if !mode.is_dir() || mode.permissions().mode() & OTHERS_WRITE != 0 {
            let what = format!("{} can be changed by others", self.root.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, what));
        }
        create(&self.inbox(self.process))
    }

    fn inbox(&self, process: ProcessId) -> PathBuf {
        self.root.join(format!("box-{process:016x}"))
    }

    fn room(&self, comm: u64) -> PathBuf {
        self.root.join(format!("comm-{comm:016x}"))
    }

    /// Complete or not there at all: written under another name, then renamed.
    fn write(&self, folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
        let part = folder.join(format!(".{name}.part"));
        let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, folder.join(name)));
        written.inspect_err(|_| drop(fs::remove_file(&part)))
    }

    /// Whether the folder is there; where it has vanished, again.
    fn is_there(&mut self) -> bool {
        let found = match fs::symlink_metadata(self.inbox(self.process)) {
            Ok(_) => Ok(()),
            Err(_) => self.open(),
        };
        let note = match (&found, self.lost) {
            (Err(e), false) => format!("nothing goes through the meeting folder {}: {e}", self.root.display()),
            (Ok(()), true) => format!("the meeting folder {} is there again", self.root.display()),
            _ => return found.is_ok(),
        };
        if self.notes.len() < super::NOTES_MAX {
            self.notes.push(note);
        }
        self.lost = found.is_err();
        !self.lost
    }

    fn look_for_rosters(&mut self, events: &mut Vec<Event>) {
        let mut done = Vec::new();
        let mut waiting = std::mem::take(&mut self.waiting);
        for (comm, w) in &mut waiting {
            let room = self.room(*comm);
            let names: BTreeSet<String> = names(&room, RANKS_MAX + 1).into_iter().collect();
            for a in &w.own {
                let name = format!("{:016x}-{}", a.process, a.ordinal);
                if !names.contains(&name) {
                    let mut bytes = Writer::default();
                    a.write(&mut bytes);
                    let _ = create(&room).and_then(|()| self.write(&room, &name, &bytes.0));
                }
            }
            w.seen.retain(|name, _| names.contains(name));
            for name in names {
                if !w.seen.contains_key(&name)
                    && let Some(a) = announcement(&room.join(&name), *comm)
                {
                    w.seen.insert(name, a);
                }
            }
            let all: Vec<Announcement> = w.seen.values().cloned().collect();
            match assemble(&all) {
                None => continue,
                Some(Ok(roster)) => events.push(Event::Complete(roster)),
                Some(Err(why)) => events.push(Event::Never { comm: *comm, why }),
            }
            done.push(*comm);
        }
        done.iter().for_each(|comm| drop(waiting.remove(comm)));
        self.waiting = waiting;
    }

    fn look_for_messages(&mut self, events: &mut Vec<Event>) {
        let inbox = self.inbox(self.process);
        for name in names(&inbox, MESSAGES_MAX) {
            let path = inbox.join(&name);
            let from = name.split_once('-').and_then(|(p, _)| ProcessId::from_str_radix(p, 16).ok());
            if let (Some(from), Some(body)) = (from, read(&path)) {
                events.push(Event::Message { from, body });
            }
            let _ = fs::remove_file(&path);
        }
    }
}

fn create(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Names of whole files, sorted: messages of one sender in the order in which they were sent. What is no file (a pipe would keep its reader) is
/// not there.
fn names(folder: &Path, most: usize) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_file()));
    let mut names: Vec<String> =
        files.filter_map(|e| e.file_name().into_string().ok()).filter(|n| !n.starts_with('.')).take(most).collect();
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
        self.waiting.entry(announcement.comm).or_default().own.push(announcement);
        self.looks.expect(Instant::now());
    }

    fn forget(&mut self, comm: u64) {
        self.waiting.remove(&comm);
        let room = self.room(comm);
        for name in names(&room, RANKS_MAX) {
            if name.starts_with(&format!("{:016x}-", self.process)) {
                let _ = fs::remove_file(room.join(name));
            }
        }
        let _ = fs::remove_dir(room); // the last one out
    }

    fn send(&mut self, to: ProcessId, body: &[u8]) {
        if body.len() > FRAME_BYTES_MAX {
            return;
        }
        self.number += 1;
        let name = format!("{:016x}-{:016x}", self.process, self.number);
        let _ = self.write(&self.inbox(to), &name, body); // lost where it cannot be written: whoever needs an answer asks again
        self.looks.expect(Instant::now());
    }

    fn poll(&mut self, most: Duration, events: &mut Vec<Event>) {
        let until = Instant::now() + most;
        loop {
            if Instant::now() >= self.looks.next {
                if self.is_there() {
                    self.look_for_messages(events);
                    self.look_for_rosters(events);
                }
                self.looks.looked(Instant::now(), !events.is_empty());
            }
            let left = until.saturating_duration_since(Instant::now());
            if !events.is_empty() || left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(self.looks.next.saturating_duration_since(Instant::now())));
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
        let _ = fs::remove_dir(&self.root); // the last one out; the folder around it is the user's
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_rarer_while_nothing_happens_and_frequent_again_when_something_does() {
        let mut now = Instant::now();
        let mut looks = Looks { next: now, pause: LOOK };
        let mut pauses_ms = Vec::new();
        for found in [true, false, false, false, false, true, false] {
            looks.looked(now, found);
            pauses_ms.push((looks.next - now).as_millis());
            now = looks.next;
        }
        assert_eq!(pauses_ms, [20, 40, 80, 160, 160, 20, 40]);
        looks.looked(now, false);
        looks.expect(now);
        assert_eq!((looks.next, looks.pause), (now + LOOK, LOOK));
    }

    #[test]
    fn polling_more_often_reads_the_folder_no_more_often() {
        let folder = tempfile::tempdir().unwrap();
        let mut end = Folder::new(folder.path(), 1).unwrap();
        let mut events = Vec::new();
        end.poll(Duration::ZERO, &mut events);
        end.send(1, b"to myself");
        // The next look is far off: whoever polls does not see what is there already.
        end.looks.next = Instant::now() + Duration::from_secs(3600);
        for _ in 0..20 {
            end.poll(Duration::from_millis(1), &mut events);
        }
        assert_eq!(events, []);
        end.looks.next = Instant::now();
        end.poll(Duration::ZERO, &mut events);
        assert_eq!(events, [Event::Message { from: 1, body: b"to myself".to_vec() }]);
    }
}
