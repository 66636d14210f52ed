//! Names of namespaces, which say to which process a box belongs, and the removal of boxes.

use crate::{NetBoxError, programs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The names of all boxes' namespaces begin with this.
const BEGIN: &str = "lwbox.";

/// The folder with a file per named namespace.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from("/run/netns")
}

/// A process: its number, and its start in ticks since boot, because numbers are used again.
fn process_start(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in brackets, may contain anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    (state != "Z").then(|| fields.nth(18)?.parse().ok())?
}

/// A prefix for the names of a new box of this process.
pub(crate) fn new_prefix() -> Result<String, NetBoxError> {
    static BOXES: AtomicU32 = AtomicU32::new(0);
    let pid = std::process::id();
    let start = process_start(pid);
    let start = start.ok_or(NetBoxError::Unavailable { reason: "/proc does not show this process".into() })?;
    Ok(format!("{BEGIN}{pid}.{start}.{}", BOXES.fetch_add(1, Ordering::Relaxed)))
}

/// True if the namespace belongs to a box whose owner does not run any more.
fn is_dead(name: &str) -> bool {
    let mut numbers = name.strip_prefix(BEGIN).into_iter().flat_map(|rest| rest.split('.'));
    let (Some(pid), Some(start)) = (numbers.next(), numbers.next()) else { return false };
    let (Ok(pid), Ok(start)) = (pid.parse(), start.parse::<u64>()) else { return false };
    process_start(pid) != Some(start)
}

/// Removes the boxes of processes that do not run any more, with the processes inside of these boxes. Every new box does it, too.
pub fn remove_dead() {
    let Ok(entries) = std::fs::read_dir(folder()) else { return };
    let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
    remove(&names.filter(|n| is_dead(n)).collect::<Vec<_>>());
}

/// Removes namespaces and ends the processes in them. What does not exist is skipped.
pub(crate) fn remove(namespaces: &[String]) {
    let there: Vec<&String> = namespaces.iter().filter(|n| Path::new(&folder()).join(n).exists()).collect();
    for name in &there {
        let pids = programs::run("ip", &["netns", "pids", name], "").unwrap_or_default();
        for pid in pids.split_whitespace().filter(|p| p.parse() != Ok(std::process::id())) {
            // A process that has ended meanwhile is no error.
            let _ = programs::run("kill", &["-KILL", pid], "");
        }
    }
    for name in there {
        let _ = programs::run("ip", &["netns", "del", name], "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_dead_if_its_process_does_not_run_or_is_another_one_with_the_same_number() {
        let mine = format!("{}.host0", new_prefix().unwrap());
        assert!(!is_dead(&mine));
        let pid = std::process::id();
        assert!(is_dead(&format!("{BEGIN}{pid}.1.0.host0")), "an earlier process");
        assert!(is_dead(&format!("{BEGIN}4194305.1.0.host0")), "above the kernel's limit");
        for foreign in ["mine", "lwbox.", "lwbox.x.1", "lwbox.12", "other.1.1.0"] {
            assert!(!is_dead(foreign), "{foreign}");
        }
    }
}
