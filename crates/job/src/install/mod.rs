//! `linkwise doctor install`: checks one host's installation. Every check looks at one thing, changes nothing, and ends in PASS, FAIL or SKIP with
//! what was found and what to do.
//!
//! The host is an argument ([`HostView`]), so that tests show checks a broken one: a folder instead of `/`, and their own variables.

mod devices;
mod elf;
mod nccl;
mod plugin;

use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit of one program that a check starts.
const PROGRAM_LIMIT: Duration = Duration::from_secs(15);
/// Largest library that is searched for words, bytes; NCCL's has some hundred MB.
const LIBRARY_BYTES_MAX: u64 = 2 << 30;
/// Longest text of a file below /proc or /sys, bytes.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As needed.
    Pass,
    /// Jobs would fail or run without the plugin.
    Fail,
    /// The host does not have what this check looks at.
    Skip,
}

/// One line of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was checked, such as `plugin` or `NCCL 2.28.9`.
    pub check: String,
    /// The result.
    pub verdict: Verdict,
    /// What was found, and where.
    pub found: String,
    /// What to do; only with [`Verdict::Fail`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    fn new(check: &str, verdict: Verdict, found: impl Into<String>) -> Check {
        Check { check: check.into(), verdict, found: found.into(), remedy: None }
    }

    fn pass(check: &str, found: impl Into<String>) -> Check {
        Check::new(check, Verdict::Pass, found)
    }

    fn skip(check: &str, found: impl Into<String>) -> Check {
        Check::new(check, Verdict::Skip, found)
    }

    fn fail(check: &str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { remedy: Some(remedy.into()), ..Check::new(check, Verdict::Fail, found) }
    }
}

/// The host that is checked.
pub struct HostView<'a> {
    /// `/`, or the folder that a test shows instead of it.
    pub root: PathBuf,
    /// The environment of this process.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// NCCL libraries to check besides those found.
    pub nccl: Vec<PathBuf>,
}

impl HostView<'_> {
    /// A path below the root: `at("proc/modules")`.
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A variable that is set and not empty.
    fn variable(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|v| !v.is_empty())
    }

    /// The text of a small file without its last newline; `None` if it cannot be read.
    fn text(&self, path: &str) -> Option<String> {
        files::read_text(&self.at(path), TEXT_BYTES_MAX).ok().map(|t| t.trim_end().to_owned())
    }

    /// The names in a folder, sorted; empty if there is none.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// All checks of an installation on this host, in the order of the answer. Starts programs (`ldconfig`, `python3`, `nvidia-smi` and linkwise's own
/// check program), each for a minute at most.
pub fn checks(host: &HostView) -> Vec<Check> {
    let mut all = Vec::new();
    let plugin = plugin::checks(host, &mut all);
    nccl::checks(host, plugin.as_ref(), &mut all);
    devices::driver(host, &mut all);
    devices::rdma(host, &mut all);
    devices::shared_memory(host, &mut all);
    all
}

/// What a program printed.
struct Said {
    /// Exit code; `None` if a signal ended the program.
    code: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn last_line(&self) -> &str {
        fn last(text: &str) -> Option<&str> {
            text.lines().rfind(|l| !l.trim().is_empty())
        }
        last(&self.err).or_else(|| last(&self.out)).unwrap_or("it printed nothing")
    }
}

/// Runs a program to its end.
///
/// # Errors
/// A sentence: it cannot be started, or did not end within [`PROGRAM_LIMIT`].
fn run(program: &Path, args: &[&str]) -> Result<Said, String> {
    let line = measure::nccl_tests::CommandLine {
        program: program.display().to_string(),
        args: args.iter().map(|a| (*a).to_owned()).collect(),
        ..Default::default()
    };
    let ended = measure::process::run(&line, PROGRAM_LIMIT, "").map_err(|e| e.to_string())?;
    Ok(Said { code: ended.status.code(), out: ended.stdout, err: ended.stderr })
}
