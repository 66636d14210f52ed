//! Runs the server on a cluster file that another container writes: starts it once the file is there, and again when the file changes.

use crate::pulse::{Pulse, PulseArgs};
use clap::Args;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Time that the server has for the requests that run.
const STOP: Duration = Duration::from_secs(30);
/// Time in which the server answers a probe.
const ANSWER: Duration = Duration::from_secs(5);
/// Maximum size of the file, bytes.
const FILE_BYTES_MAX: usize = 64 << 20;

/// Arguments of `with-cluster`.
#[derive(Args, Clone, Debug)]
pub struct WithCluster {
    /// The cluster file
    #[arg(long)]
    pub file: PathBuf,
    /// The state of the server; it is made if it is missing
    #[arg(long)]
    pub state: PathBuf,
    /// The file for probes.
    #[command(flatten)]
    pub pulse: PulseArgs,
    /// File to write while the server answers, for the readiness of a pod: `--pulse` is written while there is no cluster file, too
    #[arg(long, value_name = "FILE")]
    pub ready: Option<PathBuf>,
    /// Where the server listens, for `--pulse` and `--ready`
    #[arg(long, default_value = "127.0.0.1:7878", value_name = "ADDRESS")]
    pub listens: SocketAddr,
    /// The command `linkwise`, and more arguments for `serve`
    #[arg(last = true, required = true)]
    pub linkwise: Vec<String>,
}

/// Runs until `stop` says so or the server ends by itself; its exit code.
pub fn run(a: &WithCluster, stop: &dyn Fn() -> bool) -> ExitCode {
    let Some((program, more)) = a.linkwise.split_first() else { return ExitCode::from(2) };
    let mut running: Option<(Child, Vec<u8>)> = None;
    let (pulse, ready) = (Pulse::new(&a.pulse), Pulse::at(a.ready.clone()));
    loop {
        if pulse.is_on() || ready.is_on() {
            let serves = running.is_some() && answers(a.listens);
            if serves {
                ready.beat();
            }
            if serves || running.is_none() {
                pulse.beat();
            }
        }
        if stop() {
            return match running {
                Some((child, _)) => end(child),
                None => ExitCode::SUCCESS,
            };
        }
        if let Some((child, _)) = &mut running
            && let Ok(Some(status)) = child.try_wait()
        {
            eprintln!("the server has ended: {status}");
            return ExitCode::from(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1).max(1));
        }
        let read = files::read_limited(&a.file, FILE_BYTES_MAX).unwrap_or_default();
        let is_new = !read.is_empty() && running.as_ref().is_none_or(|(_, seen)| *seen != read);
        if is_new {
            if let Some((child, _)) = running.take() {
                eprintln!("{} has changed: the server starts again", a.file.display());
                end(child);
            }
            match start(program, more, a) {
                Ok(child) => running = Some((child, read)),
                Err(e) => {
                    eprintln!("error: {program}: {e}");
                    return ExitCode::from(2);
                }
            }
        }
        std::thread::sleep(LOOK);
    }
}

/// True if a server answers, or closes the connection because it speaks TLS.
fn answers(at: SocketAddr) -> bool {
    let ask = || -> std::io::Result<()> {
        let mut s = TcpStream::connect_timeout(&at, ANSWER)?;
        s.set_read_timeout(Some(ANSWER))?;
        s.write_all(b"GET /healthz HTTP/1.0\r\n\r\n")?;
        let _ = s.read(&mut [0; 16])?;
        Ok(())
    };
    ask().is_ok()
}

/// Takes the file into the state, if there is one, and starts the server. If the state refuses the file, as for a host that is gone while a job holds
/// it, the server starts with the cluster that the state has; the next change of the file tries again.
fn start(program: &str, more: &[String], a: &WithCluster) -> std::io::Result<Child> {
    let mut serve = Command::new(program);
    serve.arg("serve").arg("--state").arg(&a.state).args(more).stdin(Stdio::null());
    let mut take = Command::new(program);
    take.args(["cluster", "update", "--cluster"]).arg(&a.file).arg("--state").arg(&a.state).stdin(Stdio::null());
    if !exists(&a.state) || take.status()?.success() {
        serve.arg("--cluster").arg(&a.file);
    } else {
        eprintln!("the state keeps its cluster until the reason above is gone");
    }
    serve.spawn()
}

fn exists(state: &Path) -> bool {
    state.to_string_lossy().contains("://") || state.exists()
}

/// Asks the server to end, and kills it after [`STOP`].
fn end(mut child: Child) -> ExitCode {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let begin = Instant::now();
    while begin.elapsed() < STOP {
        if let Ok(Some(status)) = child.try_wait() {
            return if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Ends the loop also when an assertion fails.
    struct Stop<'a>(&'a AtomicBool);

    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_server_starts_with_the_file_and_again_when_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let program = at("linkwise");
        // Writes its arguments down, and serves until it is asked to end.
        let log = at("log");
        let script = format!(
            "#!/bin/sh\necho \"$*\" >> {}\n[ \"$1\" = cluster ] && exit 0\ntouch {}\ntrap 'exit 0' TERM\nwhile :; do sleep 0.05; done\n",
            log.display(),
            at("site.db").display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        // Something answers there all the time, also before the server runs.
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let listens = other.local_addr().unwrap();
        std::thread::spawn(move || other.incoming().for_each(drop));
        let a = WithCluster {
            file: at("cluster.json"),
            state: at("site.db"),
            pulse: PulseArgs { pulse: Some(at("pulse")) },
            ready: Some(at("ready")),
            listens,
            linkwise: vec![program.display().to_string()],
        };
        let stopped = AtomicBool::new(false);
        let lines = |n: usize| {
            let begin = Instant::now();
            loop {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                if text.lines().count() >= n || begin.elapsed() > Duration::from_secs(60) {
                    return text;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        std::thread::scope(|s| {
            let _at_the_end = Stop(&stopped);
            let run = s.spawn(|| run(&a, &|| stopped.load(Ordering::Relaxed)));
            let appears = |name: &str| {
                let begin = Instant::now();
                while !at(name).exists() && begin.elapsed() < Duration::from_secs(60) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                assert!(at(name).exists(), "{name}");
            };
            // The loop is alive while it waits for the file, and not ready.
            appears("pulse");
            assert!(!at("ready").exists());
            std::fs::write(&a.file, "one").unwrap();
            assert!(lines(1).starts_with("serve --state"), "{}", lines(1));
            std::fs::write(&a.file, "two").unwrap();
            let text = lines(3);
            let words: Vec<&str> = text.lines().map(|l| l.split(' ').next().unwrap_or("")).collect();
            assert_eq!(words, ["serve", "cluster", "serve"], "{text}");
            appears("ready");
            stopped.store(true, Ordering::Relaxed);
            run.join().unwrap();
        });
    }
}
