//! Drives the NCCL plugin through every interface that it exports, with `linkwise-plugin-check`, and judges what it did. That program is a separate one
//! because a loaded library may crash, and the command line has no `unsafe` code.

use crate::JobError;
use crate::plugin::installed;
use serde_json::Value;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file name of the program.
pub const PROGRAM: &str = "linkwise-plugin-check";
/// Time limit of one run: a library that hangs while it is loaded.
const LIMIT: Duration = Duration::from_secs(60);

/// Versions of the interfaces that the plugin exports.
const TUNERS: RangeInclusive<u32> = 2..=6;
const PROFILERS: RangeInclusive<u32> = 4..=7;

/// NCCL releases that use the same interfaces of the plugin.
#[derive(Debug, Clone, Copy)]
pub struct ReleaseRow {
    /// First release: minor and patch of 2.x.
    from: (i64, i64),
    /// The releases, for a table.
    pub releases: &'static str,
    /// The tuner's version, of those that the plugin exports.
    pub tuner: Option<u32>,
    /// The profiler's version.
    pub profiler: Option<u32>,
    /// What the plugin can do there.
    pub can: &'static str,
}

const fn row(
    from: (i64, i64),
    releases: &'static str,
    tuner: Option<u32>,
    profiler: Option<u32>,
    can: &'static str,
) -> ReleaseRow {
    ReleaseRow { from, releases, tuner, profiler, can }
}

/// Interfaces by release.
pub static RELEASES: [ReleaseRow; 8] = [
    row((0, 0), "2.19, 2.20", None, None, "nothing: tuner v1 is not exported"),
    row((21, 0), "2.21", Some(2), None, "observe, profile without channel counts (1)"),
    row((22, 0), "2.22, 2.23", Some(3), None, "observe, profile (1)"),
    row((24, 0), "2.24 to 2.27.2", Some(4), None, "observe, profile (1)"),
    row((27, 3), "2.27.3 to 2.27.7", Some(4), Some(4), "observe, profile, kernel times (2)"),
    row((28, 0), "2.28", Some(5), Some(5), "observe, profile, adaptive, kernel times"),
    row((29, 0), "2.29", Some(5), Some(6), "observe, profile, adaptive, kernel times"),
    row((30, 0), "2.30 (from 2.31: profiler v7)", Some(6), Some(6), "the same (from 2.31 kernel times on request)"),
];

/// The row of a release, from the number that `ncclGetVersion` gives (22809 is 2.28.9). `None` for releases other than 2.x.
pub fn release(number: i64) -> Option<&'static ReleaseRow> {
    // Before 2.9 the number was 2000 + 100 * minor + patch.
    let at = (number / 100 % 100, number % 100);
    match number {
        20_900..30_000 => RELEASES.iter().rev().find(|r| r.from <= at),
        2_000..3_000 => RELEASES.first(),
        _ => None,
    }
}

/// A release as people write it: 2.28.9.
pub fn release_name(number: i64) -> String {
    match number {
        0..10_000 => format!("{}.{}.{}", number / 1000, number / 100 % 10, number % 100),
        _ => format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100),
    }
}

/// What the program saw.
#[derive(Debug)]
pub struct Seen {
    /// The number of the NCCL library that was loaded first.
    pub nccl: Option<i64>,
    /// One object per interface.
    pub interfaces: Vec<Value>,
    /// Every rule that the plugin broke; empty if it is sound.
    pub wrong: Vec<String>,
    /// What the plugin printed.
    pub log: String,
}

impl Seen {
    /// The object of an interface.
    pub fn interface(&self, name: &str, version: u32) -> Option<&Value> {
        found(&self.interfaces, name, version)
    }
}

fn found<'a>(seen: &'a [Value], interface: &str, version: u32) -> Option<&'a Value> {
    seen.iter().find(|v| v["interface"] == interface && v["version"] == version)
}

/// The program of this installation.
///
/// # Errors
/// [`JobError::CheckNotInstalled`], [`JobError::Unpack`].
pub fn program() -> Result<PathBuf, JobError> {
    installed(PROGRAM, &["", "../libexec"])?.ok_or(JobError::CheckNotInstalled)
}

/// Loads `library`, after the NCCL library `after` if one is given, and drives all its interfaces.
///
/// # Errors
/// [`JobError::CheckNotInstalled`]; [`JobError::Unusable`] with the loader's reason.
pub fn drive(library: &Path, after: Option<&Path>) -> Result<Seen, JobError> {
    let mut args = Vec::new();
    if let Some(nccl) = after {
        args.extend(["--after".to_owned(), nccl.display().to_string()]);
    }
    args.push(library.display().to_string());
    let ended = run(args)?;
    let lines: Vec<Value> = ended.stdout.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    let (versions, interfaces): (Vec<Value>, Vec<Value>) = lines.into_iter().partition(|v| v["nccl"].is_i64());
    if interfaces.is_empty() {
        let why = ended.stderr.lines().last().unwrap_or("it said nothing").chars().take(300).collect();
        return Err(JobError::Unusable { library: library.into(), why, status: ended.status });
    }
    let mode = std::env::var("LINKWISE_MODE").ok().filter(|v| !v.is_empty()).unwrap_or_else(|| "off".into());
    let configured = std::env::var_os("LINKWISE_CONFIG").is_some_and(|v| !v.is_empty());
    let off = mode.eq_ignore_ascii_case("off") && !configured;
    let wrong = wrong(&interfaces, ended.status, off);
    let nccl = versions.first().and_then(|v| v["nccl"].as_i64());
    Ok(Seen { nccl, interfaces, wrong, log: ended.stderr })
}

/// Loads libraries, and nothing else; the number of the first one's NCCL release, if it is an NCCL library.
///
/// # Errors
/// As [`drive`].
pub fn load(libraries: &[&Path]) -> Result<Option<i64>, JobError> {
    let mut args = vec!["--load".to_owned()];
    args.extend(libraries.iter().map(|l| l.display().to_string()));
    let ended = run(args)?;
    if !ended.status.success() {
        let why = ended.stderr.lines().last().unwrap_or("it said nothing").chars().take(300).collect();
        let library = libraries.last().map_or_else(PathBuf::new, |l| l.to_path_buf());
        return Err(JobError::Unusable { library, why, status: ended.status });
    }
    let lines = ended.stdout.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    Ok(lines.filter_map(|v| v["nccl"].as_i64()).next())
}

fn run(args: Vec<String>) -> Result<measure::process::Ended, JobError> {
    let program = program()?;
    let line = measure::nccl_tests::CommandLine { program: program.display().to_string(), args, ..Default::default() };
    measure::process::run(&line, LIMIT, "").map_err(|e| JobError::CheckProgram { program, why: e.to_string() })
}

/// Every rule that the plugin breaks. `off`: true if the plugin runs in mode off.
fn wrong(seen: &[Value], status: std::process::ExitStatus, off: bool) -> Vec<String> {
    let mut all = Vec::new();
    for v in seen {
        let name = format!("{} v{}", v["interface"].as_str().unwrap_or("?"), v["version"]);
        let mut says = |what: &str| all.push(format!("{name} {what}"));
        if v["success"] != true {
            says("returned an error");
        }
        if v["revived"] == true {
            says("revived what NCCL had ruled out");
        }
        if off && v["changed"] == true {
            says("changed a cost table in mode off");
        }
    }
    // The check program also fails if a rule is broken. Its status is reported only if a signal ended it or no rule
    // above explains it.
    if !status.success() && (status.code().is_none() || all.is_empty()) {
        all.push(format!("the program that drove it ended early: {status}"));
    }
    for (interface, versions) in [("tuner", TUNERS), ("profiler", PROFILERS)] {
        let missing = versions.filter(|v| found(seen, interface, *v).is_none());
        all.extend(missing.map(|v| format!("{interface} v{v} is missing")));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_the_row_of_its_number() {
        for (number, name, tuner, profiler) in [
            (2708, "2.7.8", None, None),
            (21903, "2.19.3", None, None),
            (22105, "2.21.5", Some(2), None),
            (22305, "2.23.5", Some(3), None),
            (22702, "2.27.2", Some(4), None),
            (22703, "2.27.3", Some(4), Some(4)),
            (22809, "2.28.9", Some(5), Some(5)),
            (23206, "2.32.6", Some(6), Some(6)),
        ] {
            let row = release(number).unwrap();
            assert_eq!((release_name(number).as_str(), row.tuner, row.profiler), (name, tuner, profiler));
        }
        assert!(release(0).is_none() && release(-5).is_none() && release(30_001).is_none());
    }
}
