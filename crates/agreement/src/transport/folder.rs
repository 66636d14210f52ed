//! Through a folder that all processes see. Slow (file systems between hosts take tens of milliseconds and more), but it needs no port.
//!
//! ```text
//! FOLDER/comm-<id>/<process>-<ordinal>      an announcement
//! FOLDER/box-<process>/<from>-<number>      a message, removed by who reads it
//! ```

use super::{Endpoint, Event};
use crate::roster::{Announcement, ProcessId, RANKS_MAX, assemble};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::{FRAME_BYTES_MAX, Reader, Writer};

/// How often the folder is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Most messages read at once.
const MESSAGES_MAX: usize = 4096;

/// See the module.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    process: ProcessId,
    number: u64,
    /// Communicators whose roster is not complete, with this process's announcements.
    waiting: BTreeMap<u64, Vec<Announcement>>,
}

impl Folder {
    /// In `root`, which is created if need be.
    pub fn new(root: &Path, process: ProcessId) -> std::io::Result<Self> {
        fs::create_dir_all(root.join(format!("box-{process:016x}")))?;
        Ok(Folder { root: root.into(), process, number: 0, waiting: BTreeMap::new() })
    }

    fn inbox(&self, process: ProcessId) -> PathBuf {
        self.root.join(format!("box-{process:016x}"))
    }

    fn room(&self, comm: u64) -> PathBuf {
        self.root.join(format!("comm-{comm:016x}"))
    }

    /// Complete or not there at all: written under another name, then renamed.
    fn write(&self, folder: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let part = folder.join(format!(".{name}.part"));
        fs::write(&part, bytes).and_then(|()| fs::rename(&part, folder.join(name)))
    }

    fn look_for_rosters(&mut self, events: &mut Vec<Event>) {
        let mut done = Vec::new();
        for (comm, own) in &self.waiting {
            let room = self.room(*comm);
            for a in own {
                let name = format!("{:016x}-{}", a.process, a.ordinal);
                if !room.join(&name).exists() {
                    let mut w = Writer::default();
                    a.write(&mut w);
                    let _ = fs::create_dir_all(&room).and_then(|()| self.write(&room, &name, &w.0));
                }
            }
            let all: Vec<Announcement> = names(&room, RANKS_MAX + 1)
                .iter()
                .filter_map(|n| read(&room.join(n)))
                .filter_map(|bytes| {
                    let mut r = Reader::new(&bytes);
                    let a = Announcement::read(&mut r).ok()?;
                    r.end().ok().map(|()| a)
                })
                .filter(|a| a.comm == *comm)
                .collect();
            match assemble(&all) {
                None => continue,
                Some(Ok(roster)) => events.push(Event::Complete(roster)),
                Some(Err(why)) => events.push(Event::Never { comm: *comm, why }),
            }
            done.push(*comm);
        }
        for comm in done {
            self.waiting.remove(&comm);
        }
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

/// Names of whole files, sorted: messages of one sender in the order in which they were sent.
fn names(folder: &Path, most: usize) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|e| e.file_name().into_string().ok()).filter(|n| !n.starts_with('.')).take(most).collect();
    names.sort();
    names
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(FRAME_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= FRAME_BYTES_MAX).then_some(bytes)
}

impl Endpoint for Folder {
    fn announce(&mut self, announcement: Announcement) {
        self.waiting.entry(announcement.comm).or_default().push(announcement);
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
    }

    fn poll(&mut self, most: Duration, events: &mut Vec<Event>) {
        let until = Instant::now() + most;
        loop {
            self.look_for_messages(events);
            self.look_for_rosters(events);
            let left = until.saturating_duration_since(Instant::now());
            if !events.is_empty() || left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(LOOK));
        }
    }

    fn close(&mut self, _: Duration) {
        let inbox = self.inbox(self.process);
        for name in names(&inbox, usize::MAX) {
            let _ = fs::remove_file(inbox.join(name));
        }
        let _ = fs::remove_dir(inbox);
        let _ = fs::remove_dir(&self.root);
    }
}
