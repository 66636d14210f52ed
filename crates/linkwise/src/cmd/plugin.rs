//! `linkwise plugin`: the path of the NCCL plugin, and the interfaces that each NCCL release finds in it.
//!
//! A separate program, `linkwise-plugin-check`, loads the library, because a loaded library may crash and the command
//! line has no `unsafe` code.

use crate::plugin_library::{self, CHECK};
use console::Failure;
use console::Format;
use serde_json::{Value, json};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// The commands of `linkwise plugin`.
#[derive(clap::Subcommand)]
pub enum Plugin {
    /// Print the path of the library that NCCL loads
    Path,
    /// Load the library as NCCL would, through every interface, and show what each release sees
    Check(CheckArgs),
}

/// Arguments of `linkwise plugin check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    /// The library [default: that of this installation]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(command: Plugin) -> Result<(), Failure> {
    match command {
        Plugin::Path => {
            console::print(&format!("{}\n", plugin_library::find()?.display()));
            Ok(())
        }
        Plugin::Check(args) => check(&args),
    }
}

/// Versions of the interfaces that the plugin exports.
const TUNERS: RangeInclusive<u32> = 2..=6;
const PROFILERS: RangeInclusive<u32> = 4..=7;

/// Interfaces that each NCCL release uses: releases, tuner and profiler version (of those that the plugin exports), and
/// what the plugin can do there.
const RELEASES: [(&str, Option<u32>, Option<u32>, &str); 8] = [
    ("2.19, 2.20", None, None, "nothing: tuner v1 is not exported"),
    ("2.21", Some(2), None, "observe, profile without channel counts (1)"),
    ("2.22, 2.23", Some(3), None, "observe, profile (1)"),
    ("2.24 to 2.27.2", Some(4), None, "observe, profile (1)"),
    ("2.27.3 to 2.27.7", Some(4), Some(4), "observe, profile, kernel times (2)"),
    ("2.28", Some(5), Some(5), "observe, profile, adaptive, kernel times"),
    ("2.29", Some(5), Some(6), "observe, profile, adaptive, kernel times"),
    ("2.30 (from 2.31: profiler v7)", Some(6), Some(6), "the same (from 2.31 kernel times on request)"),
];

/// Footnotes of the table.
const NOTES: [&str; 2] = [
    "(1) adaptive stays at AUTO: NCCL does not tell communicators apart",
    "(2) adaptive with graphs = none only: NCCL does not tell which calls are captured into CUDA graphs",
];

fn check(args: &CheckArgs) -> Result<(), Failure> {
    let library = match &args.library {
        Some(path) => path.canonicalize().map_err(|e| Failure::file("open", path, e))?,
        None => plugin_library::find()?,
    };
    let (seen, status) = drive(&library)?;
    let set = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
    let mode = set("LINKWISE_MODE").unwrap_or_else(|| "off".into());
    let off = mode.eq_ignore_ascii_case("off") && set("LINKWISE_CONFIG").is_none();
    let wrong = wrong(&seen, status, off);
    match args.format {
        Format::Json => {
            console::print_json(
                &json!({"library": library, "interfaces": seen, "sound": wrong.is_empty(), "wrong": wrong}),
            )?;
        }
        Format::Text => console::print(&text(&library, &seen, &mode)),
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failure::impossible(format!("{} must not be loaded into a job: {}", library.display(), wrong.join("; "))))
}

fn text(library: &Path, seen: &[Value], mode: &str) -> String {
    let mut table = console::table(&["NCCL", "tuner", "profiler", "what it can do"], ..0);
    for (releases, tuner, profiler, can) in RELEASES {
        let cell = |interface: &str, version: Option<u32>| match version {
            None => "-".to_string(),
            Some(v) if found(seen, interface, v).is_some() => format!("v{v}"),
            Some(v) => format!("v{v} missing"),
        };
        table.add_row([releases.into(), cell("tuner", tuner), cell("profiler", profiler), can.into()]);
    }
    let mut out = format!("{}\n{}", library.display(), console::text_of(&table));
    NOTES.iter().for_each(|note| out += &console::wrap(note, 4));
    for v in seen {
        let what = match (v["success"] == true, v["context"] == true) {
            (false, _) => "returned an error: NCCL would fail the collective",
            (true, false) => "loaded, does nothing",
            (true, true) => "loaded, takes part",
        };
        let changed = if v["changed"] == true { ", changed a cost table" } else { "" };
        let revived = if v["revived"] == true { ", REVIVED AN UNAVAILABLE ENTRY" } else { "" };
        let interface = v["interface"].as_str().unwrap_or("?");
        out += &format!("{interface} v{} in mode {mode}: {what}{changed}{revived}\n", v["version"]);
    }
    out + "The plugin does not export v7 of the tuner interface (2.32.6): 2.32 takes v6.\n"
}

fn found<'a>(seen: &'a [Value], interface: &str, version: u32) -> Option<&'a Value> {
    seen.iter().find(|v| v["interface"] == interface && v["version"] == version)
}

/// Every rule that the plugin breaks. `off`: true if the plugin runs in mode off.
fn wrong(seen: &[Value], status: ExitStatus, off: bool) -> Vec<String> {
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

/// Runs the check program on the library. Returns one object per interface and the program's exit status.
fn drive(library: &Path) -> Result<(Vec<Value>, ExitStatus), Failure> {
    let program = job::plugin::next_to_command(CHECK, &["", "../libexec"]).ok_or_else(|| {
        Failure::impossible(format!("{CHECK} is not next to the command; build it with `cargo build -p nccl-plugin`"))
    })?;
    let out = Command::new(&program).arg(library).output().map_err(|e| Failure::file("start", &program, e))?;
    let said = String::from_utf8_lossy(&out.stderr);
    let lines: Vec<Value> =
        String::from_utf8_lossy(&out.stdout).lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    if lines.is_empty() {
        let reason = said.lines().last().unwrap_or("it said nothing").to_string();
        return Err(Failure::impossible(format!("{} cannot be used: {reason} ({})", library.display(), out.status)));
    }
    for line in said.lines() {
        eprintln!("{line}");
    }
    Ok((lines, out.status))
}
