//! One launch of the program with one arm forced.

use super::nccl_tests;
use ::report::one_line;
use ::tune::Arm;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use wait_timeout::ChildExt;

/// Largest output of a program in one launch, bytes.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;
/// How long to wait for the output pipes after the program has ended.
const GRACE: Duration = Duration::from_secs(2);

/// The parameters of a launch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// The arm's name.
    pub arm: String,
    /// Sizes, bytes, rising.
    pub sizes: Vec<u64>,
    /// True if computation runs at the same time.
    pub is_overlapped: bool,
    /// Requested readings of each size.
    pub iterations: u32,
    /// Readings of each size before these, which are discarded.
    pub warmup: u32,
    /// Whether the program checks its results, if it can. The check takes time.
    pub is_checked: bool,
}

/// The variables that force an arm. `None` removes a variable, so that NCCL decides.
pub fn arm_environment(arm: Arm) -> [(&'static str, Option<String>); 4] {
    let word = |w: &str| Some(w.to_owned());
    let (algorithm, protocol) = match arm.forced {
        None => (None, None),
        Some((a, p)) => (word(a.capitals()), word(p.capitals())),
    };
    let channels = arm.channels.map(|c| c.to_string());
    [
        ("NCCL_ALGO", algorithm),
        ("NCCL_PROTO", protocol),
        ("NCCL_MIN_NCHANNELS", channels.clone()),
        ("NCCL_MAX_NCHANNELS", channels),
    ]
}

/// Why a launch gave no times.
#[derive(Debug, Clone, PartialEq)]
pub enum LaunchError {
    /// The program cannot be started, did not end in time, or failed.
    Program {
        /// The error, with the end of the program's output.
        why: String,
        /// Standard output of the program.
        output: String,
    },
    /// The background command does not run, so the launch would not be overlapped.
    Background(String),
}

impl From<String> for LaunchError {
    fn from(why: String) -> LaunchError {
        LaunchError::Program { why, output: String::new() }
    }
}

/// The command that computes during a launch.
struct BackgroundCommand<'a> {
    line: &'a str,
    group: Group,
    said: mpsc::Receiver<Printed>,
}

impl<'a> BackgroundCommand<'a> {
    fn start(line: &'a str) -> Result<BackgroundCommand<'a>, LaunchError> {
        let words = ["sh".into(), "-c".into(), line.to_owned()];
        let cannot =
            |e| LaunchError::Background(format!("cannot start the background command `{}`: {e}", one_line(line, 80)));
        let mut group = Group::start(guarded(&words)).map_err(cannot)?;
        drop(drain(group.child.stdout.take()));
        let said = drain(group.child.stderr.take());
        Ok(BackgroundCommand { line, group, said })
    }

    /// Checks that the command still runs: at the beginning and at the end of a launch.
    fn check(&mut self) -> Result<(), LaunchError> {
        let status = match self.group.child.try_wait() {
            Ok(None) => return Ok(()),
            Ok(Some(status)) => status.to_string(),
            Err(e) => e.to_string(),
        };
        self.group.kill();
        let said = self.said.recv_timeout(GRACE).unwrap_or_default().text();
        Err(LaunchError::Background(format!(
            "background command `{}` (--background) exited ({status}) before the measurement ended: {}; give a command that computes until it is killed",
            one_line(self.line, 80),
            last_lines(&said, "")
        )))
    }
}

fn last_lines(stderr: &str, stdout: &str) -> String {
    let lines: Vec<&str> = stderr.lines().chain(stdout.lines()).filter(|l| !l.trim().is_empty()).collect();
    let tail = lines.iter().rev().take(2).rev().copied().collect::<Vec<_>>().join(" | ");
    if tail.is_empty() { "it printed nothing".into() } else { one_line(&tail, 200) }
}

/// Runs the program to its end and returns its standard output. A launch over the time limit is killed. Processes that
/// the program leaves behind are killed, too.
pub fn run(
    command: &[String],
    launch: &Launch,
    background: Option<&str>,
    timeout: Duration,
) -> Result<String, LaunchError> {
    let arm: Arm = launch.arm.parse()?;
    let words = nccl_tests::words(command, launch);
    let program = words.first().ok_or_else(|| "no command".to_owned())?;
    let mut background = background.filter(|_| launch.is_overlapped).map(BackgroundCommand::start).transpose()?;
    background.iter_mut().try_for_each(BackgroundCommand::check)?;
    let mut to_run = guarded(&words);
    for (name, value) in arm_environment(arm) {
        match value {
            Some(v) => to_run.env(name, v),
            None => to_run.env_remove(name),
        };
    }
    to_run
        .env("LINKWISE_MODE", "off") // disables linkwise's own plugin if the environment loads it
        .env(nccl_tests::VARIABLE, nccl_tests::options(launch).join(" "))
        .env("LINKWISE_ARM", &launch.arm)
        .env("LINKWISE_SIZE_BYTES", launch.sizes.first().copied().unwrap_or(0).to_string())
        .env("LINKWISE_ITERATIONS", launch.iterations.to_string())
        .env("LINKWISE_WARMUP", launch.warmup.to_string())
        .env("LINKWISE_OVERLAP", if launch.is_overlapped { "1" } else { "0" });
    let mut group = Group::start(to_run).map_err(|e| format!("cannot start `{program}`: {e}"))?;
    let (out, err) = (drain(group.child.stdout.take()), drain(group.child.stderr.take()));
    let status = group.child.wait_timeout(timeout);
    background.iter_mut().try_for_each(BackgroundCommand::check)?;
    // Processes that are left behind may hold the pipes open: the output is complete only after they are killed.
    group.kill();
    let printed = |r: &mpsc::Receiver<Printed>| r.recv_timeout(GRACE).unwrap_or_default();
    let (out, err) = (printed(&out), printed(&err));
    let why = match status {
        Ok(Some(status)) if status.success() && !out.is_cut => return Ok(out.text()),
        Ok(Some(status)) if status.success() => {
            format!("`{program}` printed more than {} MiB; have it print less", OUTPUT_BYTES_MAX >> 20)
        }
        Ok(Some(status)) => format!("`{program}` ended with {status}: {}", last_lines(&err.text(), &out.text())),
        Ok(None) => format!("no end within {:.1} s; it was killed (--timeout)", timeout.as_secs_f64()),
        Err(e) => format!("cannot wait for `{program}`: {e}"),
    };
    Err(LaunchError::Program { why, output: out.text() })
}

/// A program in its own process group. The whole group is killed when the value is dropped.
struct Group {
    child: Child,
    /// linkwise's end of the program's standard input. It is stored here because waiting for a child closes the ends
    /// that the child still holds.
    _leash: Option<ChildStdin>,
    is_killed: bool,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Group {
    /// Kills the whole group, once: afterwards another group may get its number.
    fn kill(&mut self) {
        if std::mem::replace(&mut self.is_killed, true) {
            return;
        }
        // The group may outlive its first process, so it is killed even if that process has ended.
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the command under a watchdog. The watchdog kills the whole process group when linkwise's end of its standard
/// input closes, which also happens when linkwise is killed. The command replaces the shell, so the exit status is that
/// of the command.
const GUARD: &str = r#"exec 3<&0; { read -r _ <&3; kill -s KILL -- -$$; } >/dev/null 2>&1 & exec "$@" 3<&- </dev/null"#;

fn guarded(words: &[String]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", GUARD, "linkwise"]).args(words);
    command
}

impl Group {
    fn start(mut command: Command) -> Result<Group, String> {
        let group = command.process_group(0).stdin(Stdio::piped());
        let mut child = group.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(|e| e.to_string())?;
        Ok(Group { _leash: child.stdin.take(), child, is_killed: false })
    }
}

/// The output of a pipe.
#[derive(Default)]
struct Printed {
    bytes: Vec<u8>,
    /// True if the program printed more than the limit.
    is_cut: bool,
}

impl Printed {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Printed> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut printed = Printed::default();
        if let Some(pipe) = pipe {
            let mut limited = pipe.take(OUTPUT_BYTES_MAX);
            let _ = limited.read_to_end(&mut printed.bytes);
            let more = std::io::copy(&mut limited.into_inner(), &mut std::io::sink()); // keep reading, so that the program does not block
            printed.is_cut = more.is_ok_and(|n| n > 0);
        }
        let _ = send.send(printed);
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

    fn why(said: Result<String, LaunchError>) -> String {
        match said {
            Err(LaunchError::Program { why, .. }) => why,
            other => panic!("{other:?}"),
        }
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
        assert!(why(e).contains("no end within 0.3 s"));
        assert!(start.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(2_200));
        assert!(!mark.exists(), "a grandchild was not killed");
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let e = run(&strings(&["/bin/sh", "-c", "echo out of GPUs >&2; exit 3"]), &launch("AUTO", &[8]), None, GRACE);
        let e = why(e);
        assert!(e.contains("exit status: 3") && e.contains("out of GPUs"), "{e}");
        let e = why(run(&strings(&["/no/such/program"]), &launch("AUTO", &[8]), None, GRACE));
        assert!(e.contains("/no/such/program"), "{e}");
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_launch_without_its_background_command_fails() {
        let program = strings(&["/bin/sh", "-c", "sleep 0.5; echo linkwise_step_time_us=5"]);
        let overlapped = Launch { is_overlapped: true, ..launch("AUTO", &[8]) };
        for (line, words) in [("no-such-program-at-all", "no-such-program-at-all"), ("sleep 0.1", "it printed nothing")]
        {
            let Err(LaunchError::Background(e)) = run(&program, &overlapped, Some(line), LONG) else {
                panic!("{line} passed")
            };
            assert!(e.contains(words) && e.contains("before the measurement"), "{e}");
        }
        assert_eq!(run(&program, &overlapped, Some("sleep 60"), LONG).unwrap(), "linkwise_step_time_us=5\n");
        // A launch alone runs without the background command.
        assert!(run(&program, &launch("AUTO", &[8]), Some("no-such-program-at-all"), LONG).is_ok());
    }

    #[test]
    fn output_is_complete_although_a_process_left_behind_holds_the_pipe() {
        let script = "echo linkwise_step_time_us=7; sleep 60 & exit 0";
        let said = run(&strings(&["/bin/sh", "-c", script]), &launch("AUTO", &[8]), None, LONG);
        assert_eq!(said.unwrap(), "linkwise_step_time_us=7\n");
    }

    #[test]
    fn more_output_than_is_kept_is_refused_and_not_cut() {
        let script = "head -c 16777217 /dev/zero | tr '\\0' 'x'";
        let e = why(run(&strings(&["/bin/sh", "-c", script]), &launch("AUTO", &[8]), None, LONG));
        assert!(e.contains("more than 16 MiB"), "{e}");
    }
}
