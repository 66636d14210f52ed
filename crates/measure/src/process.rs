//! Runs a program to its end within a time limit.

use crate::backend::BackendError;
use crate::nccl_tests::CommandLine;
use rustix::process::{Pid, Signal};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use wait_timeout::ChildExt;

/// Maximum length of each output, bytes; the rest is not read.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;
/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);

/// A program that ended.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The last three lines of standard error followed by standard output, joined by ` | `.
    pub fn last_words(&self) -> String {
        let last: Vec<&str> = self.stderr.lines().chain(self.stdout.lines()).filter(|l| !l.trim().is_empty()).collect();
        last.iter().rev().take(3).rev().copied().collect::<Vec<_>>().join(" | ")
    }
}

/// Runs a command to its end. Threads read standard output and error, so a full pipe never blocks the command. A command
/// over the time limit gets SIGTERM, then SIGKILL. If the program cannot be started, the error is fatal; it ends with
/// `hint` if the program is searched on PATH.
pub fn run(line: &CommandLine, timeout: Duration, hint: &str) -> Result<Ended, BackendError> {
    let mut command = Command::new(&line.program);
    command.args(&line.args).envs(line.env.iter().cloned());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| {
        let hint = if Path::new(&line.program).components().count() > 1 { "" } else { hint };
        BackendError::Fatal(format!("cannot start `{}`: {e}{hint}", line.program))
    })?;
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let status = match child.wait_timeout(timeout) {
        Ok(Some(status)) => status,
        Ok(None) => {
            terminate(&mut child);
            return Err(BackendError::Point(format!("still running after {} s", timeout.as_secs_f64())));
        }
        Err(e) => {
            terminate(&mut child);
            return Err(BackendError::Fatal(format!("cannot wait for `{}`: {e}", line.program)));
        }
    };
    // Does not wait for the end of the pipe: a remaining process may hold it open.
    let text = |r: &mpsc::Receiver<Vec<u8>>| {
        let bytes = r.recv_timeout(GRACE).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(Ended { status, stdout: text(&out), stderr: text(&err) })
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        }
        let _ = send.send(bytes);
    });
    receive
}

/// Sends SIGTERM to a launcher, which then ends its remote processes; sends SIGKILL if it does not exit; reaps it.
fn terminate(child: &mut Child) {
    let asked = rustix::process::kill_process(Pid::from_child(child), Signal::TERM);
    if !(asked.is_ok() && matches!(child.wait_timeout(GRACE), Ok(Some(_)))) {
        let _ = child.kill();
    }
    let _ = child.wait();
}
