//! One launch of the program with one arm forced.

use super::nccl_tests;
use ::tune::Arm;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use wait_timeout::ChildExt;

/// Most of the output that is kept, bytes.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;
/// How long to wait for the pipes of a program that has ended.
const GRACE: Duration = Duration::from_secs(2);

/// What a launch needs to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// The arm's name.
    pub arm: String,
    /// Sizes, bytes, rising.
    pub sizes: Vec<u64>,
    /// Whether computation runs beside it.
    pub is_overlapped: bool,
    /// Samples that it should give of each size.
    pub iterations: u32,
    /// And before them, to be thrown away.
    pub warmup: u32,
    /// Whether results are checked, where the program can: it takes time.
    pub is_checked: bool,
}

/// The variables that force an arm; no value: the variable is removed, so that NCCL decides.
pub fn arm_environment(arm: Arm) -> [(&'static str, Option<String>); 4] {
    let word = |w: &str| Some(w.to_owned());
    let (algorithm, protocol) = match arm.forced {
        None => (None, None),
        Some((a, p)) => (word(a.word()), word(p.word())),
    };
    let channels = arm.channels.map(|c| c.to_string());
    [
        ("NCCL_ALGO", algorithm),
        ("NCCL_PROTO", protocol),
        ("NCCL_MIN_NCHANNELS", channels.clone()),
        ("NCCL_MAX_NCHANNELS", channels),
    ]
}

/// Runs it to its end and returns its standard output. A run over the time limit is killed with all that it started.
///
/// # Errors
/// In words: it cannot be started, did not end in time, or failed (with the end of what it said).
pub fn run(command: &[String], launch: &Launch, beside: Option<&str>, timeout: Duration) -> Result<String, String> {
    let arm: Arm = launch.arm.parse()?;
    let words = nccl_tests::words(command, launch);
    let program = words.first().ok_or("no command")?;
    let _beside = match beside.filter(|_| launch.is_overlapped) {
        Some(line) => Some(Group::start(guarded(&["sh".into(), "-c".into(), line.to_owned()]), false)?),
        None => None,
    };
    let mut to_run = guarded(&words);
    for (name, value) in arm_environment(arm) {
        match value {
            Some(v) => to_run.env(name, v),
            None => to_run.env_remove(name),
        };
    }
    to_run
        .env("LINKWISE_MODE", "off") // linkwise's own plugin, should the environment load it
        .env(nccl_tests::VARIABLE, nccl_tests::options(launch).join(" "))
        .env("LINKWISE_ARM", &launch.arm)
        .env("LINKWISE_SIZE_BYTES", launch.sizes.first().copied().unwrap_or(0).to_string())
        .env("LINKWISE_ITERATIONS", launch.iterations.to_string())
        .env("LINKWISE_WARMUP", launch.warmup.to_string())
        .env("LINKWISE_OVERLAP", if launch.is_overlapped { "1" } else { "0" });
    let mut group = Group::start(to_run, true).map_err(|e| format!("cannot start `{program}`: {e}"))?;
    let (out, err) = (drain(group.child.stdout.take()), drain(group.child.stderr.take()));
    let status = match group.child.wait_timeout(timeout) {
        Ok(Some(status)) => status,
        Ok(None) => return Err(format!("no end within {:.1} s; it was killed (--timeout)", timeout.as_secs_f64())),
        Err(e) => return Err(format!("cannot wait for `{program}`: {e}")),
    };
    let text =
        |r: &mpsc::Receiver<Vec<u8>>| String::from_utf8_lossy(&r.recv_timeout(GRACE).unwrap_or_default()).into_owned();
    let (stdout, stderr) = (text(&out), text(&err));
    if !status.success() {
        let lines: Vec<&str> = stderr.lines().chain(stdout.lines()).filter(|l| !l.trim().is_empty()).collect();
        let tail = lines.iter().rev().take(2).rev().copied().collect::<Vec<_>>().join(" | ");
        return Err(format!("`{program}` ended with {status}: {}", crate::report::one_line(&tail, 200)));
    }
    Ok(stdout)
}

/// A started program in a process group of its own; whatever happens it ends with all that it started.
struct Group {
    child: Child,
    /// Our end of its standard input; kept apart, because waiting for a child closes what it still holds.
    _leash: Option<ChildStdin>,
}

impl Drop for Group {
    fn drop(&mut self) {
        // The shell's own `kill` reaches the whole group; the standard library reaches only the child. The group may outlive
        // its first process, so it is asked even when that has ended.
        let group = format!("kill -s KILL -- -{}", self.child.id());
        let mut kill = Command::new("sh");
        let _ = kill.args(["-c", &group]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the words with a guard beside them: when our end of its standard input closes, be it because we were killed, the guard kills the
/// whole group. The words take the shell's place, so their exit status is their own.
const GUARD: &str = r#"exec 3<&0; { read -r _ <&3; kill -s KILL -- -$$; } >/dev/null 2>&1 & exec "$@" 3<&- </dev/null"#;

fn guarded(words: &[String]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", GUARD, "linkwise"]).args(words);
    command
}

impl Group {
    fn start(mut command: Command, is_heard: bool) -> Result<Group, String> {
        let pipe = || if is_heard { Stdio::piped() } else { Stdio::null() };
        let group = command.process_group(0).stdin(Stdio::piped());
        let mut child = group.stdout(pipe()).stderr(pipe()).spawn().map_err(|e| e.to_string())?;
        Ok(Group { _leash: child.stdin.take(), child })
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let mut limited = pipe.take(OUTPUT_BYTES_MAX);
            let _ = limited.read_to_end(&mut bytes);
            let _ = std::io::copy(&mut limited.into_inner(), &mut std::io::sink()); // never let the program block
        }
        let _ = send.send(bytes);
    });
    receive
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(arm: &str, sizes: &[u64]) -> Launch {
        let (arm, sizes) = (arm.to_owned(), sizes.to_vec());
        Launch { arm, sizes, is_overlapped: false, iterations: 10, warmup: 5, is_checked: true }
    }

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn an_arm_is_forced_by_its_variables_and_auto_by_none() {
        let names = |arm: &str| arm_environment(arm.parse().unwrap()).map(|(_, v)| v.unwrap_or("-".into())).join(" ");
        assert_eq!(names("TREE/LL128@4"), "TREE LL128 4 4");
        assert_eq!(names("AUTO"), "- - - -");
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_with_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let script = format!("(sleep 2; touch {}) & sleep 60", mark.display());
        let start = std::time::Instant::now();
        let e = run(&strings(&["/bin/sh", "-c", &script]), &launch("AUTO", &[8]), None, Duration::from_millis(300));
        assert!(e.unwrap_err().contains("no end within 0.3 s"));
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(2_200));
        assert!(!mark.exists(), "a grandchild went on");
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let e = run(&strings(&["/bin/sh", "-c", "echo out of GPUs >&2; exit 3"]), &launch("AUTO", &[8]), None, GRACE);
        let e = e.unwrap_err();
        assert!(e.contains("exit status: 3") && e.contains("out of GPUs"), "{e}");
        let e = run(&strings(&["/no/such/program"]), &launch("AUTO", &[8]), None, GRACE).unwrap_err();
        assert!(e.contains("/no/such/program"), "{e}");
    }
}
