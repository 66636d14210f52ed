//! `linkwise tune characterize`: measures how good AUTO is, and how simultaneous computation changes the result.

use super::read_text;
use autotune::characterize::{Amplification, Characterization, amplifications};
use console::{Failure, Format, print, print_json, table, text_of};
use std::path::PathBuf;

/// Arguments of `linkwise tune characterize`.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  linkwise tune characterize one-host.json two-hosts.json

A file is a policy file of `linkwise tune profile`, or a sweep: JSON of milliseconds by kind (`sequential`, `overlap`), size and arm. With \
several files, the gaps of the others are compared with those of the first. `linkwise-lab characterize` shows published data.")]
pub struct Args {
    /// Policy files or sweeps
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let read = |path: &PathBuf| -> Result<Characterization, Failure> {
        let name = path.display().to_string();
        Characterization::read(&name, &read_text(path)?).map_err(|e| Failure::file("read", path, e))
    };
    let all: Vec<Characterization> = args.files.iter().map(read).collect::<Result<_, _>>()?;
    if args.format == Format::Json {
        let rows: Vec<_> = all.iter().map(|t| serde_json::json!({"topology": t.name, "rows": t.rows()})).collect();
        return print_json(&serde_json::json!({"topologies": rows, "amplification": amplifications(&all)}));
    }
    print(&text(&all));
    Ok(())
}

fn text(all: &[Characterization]) -> String {
    let mut out = String::new();
    for t in all {
        let mut rows = table(&Characterization::HEAD, 1..);
        rows.add_rows(t.cells());
        out += &format!("{}\n{}{}\n\n", t.name, text_of(&rows), t.summary());
    }
    if let Some((first, _)) = all.split_first().filter(|(_, others)| !others.is_empty()) {
        let mut rows = table(&Amplification::HEAD, 3..);
        rows.add_rows(amplifications(all).iter().map(Amplification::cells));
        out += &format!("Amplification: AUTO's gap held against {}\n{}", first.name, text_of(&rows));
    }
    out
}
