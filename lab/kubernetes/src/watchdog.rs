//! Ends the processes of a control plane when their owner dies, however it dies.
//!
//! A shell of a session of its own reads from a pipe that only the owner holds. When the owner ends, the pipe ends, and the shell kills what the list
//! names. A process is killed only if its command line has the folder of the control plane, so a number that was given again harms no one else.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = r#"
cat >/dev/null
while read -r pid; do
  tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF "$1" && kill -9 "$pid"
done <"$1/pids"
rm -rf "$1"
"#;

/// The watchdog of a folder.
#[derive(Debug)]
pub struct Watchdog {
    shell: Child,
    list: PathBuf,
}

impl Watchdog {
    /// Starts the shell.
    pub fn of(folder: &Path) -> std::io::Result<Watchdog> {
        let list = folder.join("pids");
        std::fs::write(&list, "")?;
        let shell = Command::new("setsid")
            .args(["sh", "-c", SCRIPT, "sh"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Watchdog { shell, list })
    }

    /// Adds a process.
    pub fn watch(&self, pid: u32) -> std::io::Result<()> {
        writeln!(std::fs::File::options().append(true).open(&self.list)?, "{pid}")
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
