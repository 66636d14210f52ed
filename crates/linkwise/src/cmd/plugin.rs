//! `linkwise plugin`: the path of the NCCL plugin, and the interfaces that each NCCL release finds in it.
//!
//! A separate program, `linkwise-plugin-check`, loads the library, because a loaded library may crash and the command
//! line has no `unsafe` code.

use crate::plugin_library;
use console::Failure;
use console::Format;
use job::plugin_check::{self, Seen};
use serde_json::json;
use std::path::{Path, PathBuf};

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
    let seen = plugin_check::drive(&library, None).map_err(Failure::impossible)?;
    for line in seen.log.lines() {
        eprintln!("{line}");
    }
    let wrong = &seen.wrong;
    match args.format {
        Format::Json => {
            let (interfaces, sound) = (&seen.interfaces, wrong.is_empty());
            console::print_json(
                &json!({"library": library, "interfaces": interfaces, "sound": sound, "wrong": wrong}),
            )?;
        }
        Format::Text => console::print(&text(&library, &seen)),
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failure::impossible(format!("{} must not be loaded into a job: {}", library.display(), wrong.join("; "))))
}

fn text(library: &Path, seen: &Seen) -> String {
    let mode = std::env::var("LINKWISE_MODE").ok().filter(|v| !v.is_empty()).unwrap_or_else(|| "off".into());
    let mut table = console::table(&["NCCL", "tuner", "profiler", "what it can do"], ..0);
    for row in &plugin_check::RELEASES {
        let cell = |interface: &str, version: Option<u32>| match version {
            None => "-".to_string(),
            Some(v) if seen.interface(interface, v).is_some() => format!("v{v}"),
            Some(v) => format!("v{v} missing"),
        };
        table.add_row([row.releases.into(), cell("tuner", row.tuner), cell("profiler", row.profiler), row.can.into()]);
    }
    let mut out = format!("{}\n{}", library.display(), console::text_of(&table));
    NOTES.iter().for_each(|note| out += &console::wrap(note, 4));
    for v in &seen.interfaces {
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
