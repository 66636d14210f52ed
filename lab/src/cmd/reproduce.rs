//! `linkwise-lab reproduce`: the papers' tables and figures, published numbers next to linkwise's.

use crate::reproduce::{Effort, bandpilot, litegd};
use console::Failure;
use lab_kit::published::data_folder;
use std::path::PathBuf;

/// Arguments of `linkwise-lab reproduce`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  linkwise-lab reproduce bandpilot table-2\n  linkwise-lab reproduce litegd table-1 --per-k 2\n  \
    linkwise-lab reproduce bandpilot            (lists the items)"
)]
pub struct Args {
    /// The paper
    #[arg(value_enum)]
    paper: Paper,
    /// Tables and figures, or `all`; without an item: list them
    items: Vec<String>,
    /// Folder with the published tables (docs/data.md)
    #[arg(long)]
    truth: Option<PathBuf>,
    /// Random availabilities per number of GPUs
    #[arg(long, default_value_t = 10)]
    per_k: usize,
    /// Independent repetitions
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Skip items that train a network, or train it on fewer sizes
    #[arg(long)]
    quick: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Paper {
    /// BandPilot (arXiv 2506.15595)
    Bandpilot,
    /// LiteGD
    Litegd,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let known: &[(&str, &str)] = match args.paper {
        Paper::Bandpilot => &bandpilot::ITEMS,
        Paper::Litegd => &litegd::ITEMS,
    };
    if args.items.is_empty() {
        for (name, what) in known {
            console::print(&console::wrap(&format!("{name:<12} {what}"), 13));
        }
        return Ok(());
    }
    let folder = args.truth.or_else(|| data_folder().map(|d| d.join("bandpilot"))).filter(|d| d.is_dir());
    let folder = folder
        .ok_or_else(|| Failure::input("no published tables found; name their folder with --truth (docs/data.md)"))?;
    let effort = Effort {
        per_k: args.per_k.clamp(1, 1000),
        seeds: (args.seed..args.seed.saturating_add(args.seeds.max(1))).collect(),
        quick: args.quick,
        ..Effort::default()
    };
    let all: Vec<String> = known.iter().map(|i| i.0.to_owned()).collect();
    let items = if args.items.iter().any(|i| i == "all") { all } else { args.items };
    let dir = folder.display().to_string();
    for item in items {
        let text = match args.paper {
            Paper::Bandpilot => bandpilot::reproduce(&item, &dir, &effort)?,
            Paper::Litegd => litegd::reproduce(&item, &dir, &effort)?,
        };
        // Tables already fit the line; sentences may be longer.
        let lines = text.lines().map(|line| match line.chars().count() <= console::text_width() {
            true => format!("{line}\n"),
            false => console::wrap(line, 2),
        });
        console::print(&format!("{}\n", lines.collect::<String>()));
    }
    Ok(())
}
