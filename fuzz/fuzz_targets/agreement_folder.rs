//! A rendezvous folder with any files: announcements and messages half written, of wrong names, of strangers.
#![no_main]

use agreement::transport::Folder;
use agreement::{Announcement, Endpoint, TransportEvent};
use libfuzzer_sys::fuzz_target;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;
use wire::Writer;
use wire::auth::GroupKey;

/// In memory where there is such a file system.
static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let shared = Path::new("/dev/shm");
    let folder = if shared.is_dir() { shared.to_path_buf() } else { std::env::temp_dir() };
    folder.join(format!("linkwise-fuzz-{}", std::process::id()))
});
const SIZE: u32 = 2;

fuzz_target!(|bytes: &[u8]| {
    let mut end = Folder::for_job(&ROOT, b"token", 1).unwrap();
    let mine = Announcement { comm: 5, rank: 0, size: SIZE, host: 1, process: 1, ordinal: 0, settings: 9 };
    end.announce(mine.clone());
    let job = std::fs::read_dir(&*ROOT).unwrap().next().unwrap().unwrap().path();
    let folders = [job.join("comm-0000000000000005"), job.join("box-0000000000000001"), job.clone()];
    std::fs::create_dir_all(&folders[0]).unwrap();
    let key = GroupKey::new(b"token", b"folder");
    let mut rest = bytes;
    // Three bytes of head: where, and the lengths of name and content.
    while let Some((head, after)) = rest.split_first_chunk::<3>() {
        let (name, after) = after.split_at(usize::from(head[1] & 63).min(after.len()));
        let (content, next) = after.split_at(usize::from(head[2]).min(after.len()));
        rest = next;
        let folder = &folders[usize::from(head[0]) % 3];
        // One kind has the name and the form of a real announcement, with the given numbers.
        let mut w = Writer::default();
        let sealed;
        let (name, content) = match head[0] >> 4 {
            0 => {
                let number = |i: usize| content.get(i).copied().unwrap_or(0);
                let process = u64::from(number(0) & 3);
                let theirs = Announcement { rank: i32::from(number(1) & 3), process, host: 2, ..mine.clone() };
                theirs.write(&mut w);
                sealed = key.seal(process, 5, &w.0);
                (format!("{process:016x}-0").into_bytes(), sealed.as_slice())
            }
            _ => (name.to_vec(), content),
        };
        if !name.is_empty() && !name.iter().any(|b| matches!(b, 0 | b'/')) && name != b"." && name != b".." {
            let _ = std::fs::write(folder.join(OsStr::from_bytes(&name)), content);
        }
    }
    let mut events = Vec::new();
    end.poll(Duration::ZERO, &mut events);
    for event in events {
        match event {
            TransportEvent::Complete(roster) => {
                assert!(roster.comm == 5 && roster.members.len() == SIZE as usize, "{roster:?}");
                assert!(roster.members.iter().zip(0..).all(|(m, rank)| m.rank == rank), "{roster:?}");
            }
            TransportEvent::Disagreed { comm, .. } => assert_eq!(comm, 5),
            // An announcement in the wrong folder may be longer than the input.
            TransportEvent::Message { body, .. } => assert!(body.len() <= bytes.len() + 100),
        }
    }
    std::fs::remove_dir_all(&*ROOT).unwrap();
});
