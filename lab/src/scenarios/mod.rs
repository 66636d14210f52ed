//! `linkwise-lab evaluate --scenarios FILE`: answers the requests of a file again and judges the answers by the same
//! truth.

mod judge;
mod reader;
mod replay;
mod report;
#[cfg(test)]
mod tests;

use crate::ground_truth::{PublicCode, public_code};
use console::Failure;
use console::Format;
use files::read_text;
use measure::design::DesignKind;
use std::path::PathBuf;
use topology::Cluster;

/// Options of a replay.
#[derive(Clone, Debug)]
pub struct ScenarioArgs {
    /// Requests with the choices of other methods, JSON Lines.
    pub file: PathBuf,
    /// The folder with the tables of the truth; `None`: the file's folder.
    pub truth: Option<PathBuf>,
    /// Readings over several hosts that the model learns from.
    pub samples: usize,
    /// Their sampling design.
    pub design: DesignKind,
    /// Seeds, each with its own readings.
    pub seeds: Vec<u64>,
    /// Output format.
    pub format: Format,
}

pub fn run(args: &ScenarioArgs) -> Result<(), Failure> {
    let text = read_text(&args.file, reader::FILE_BYTES_MAX)?;
    let clusters: Vec<(&str, Cluster)> =
        ["h100", "het4mix", "het-4mix"].into_iter().filter_map(|n| Some((n, public_code::cluster(n)?))).collect();
    let cluster_of = |name: &str| {
        let found = clusters.iter().find(|(n, _)| *n == name).map(|(_, c)| c);
        found.ok_or_else(|| format!("`{name}` is not a cluster of these files; known: h100, het4mix"))
    };
    let groups = reader::parse(&text, &args.file.display().to_string(), &cluster_of).map_err(Failure::input)?;
    let own = args.file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
    let dir = args.truth.as_deref().unwrap_or(own);
    let mut reports = Vec::new();
    for (name, scenarios) in &groups {
        let cluster = cluster_of(name).map_err(Failure::input)?.clone();
        let mut truth = PublicCode::load(dir, cluster)?;
        let inside = truth.measured_inside(dir)?;
        let recovered = truth.recover(scenarios);
        let settings = replay::Settings { samples: args.samples, design: args.design };
        let mut replays = Vec::new();
        for seed in &args.seeds {
            replays.push(replay::replay(&truth, &inside, scenarios, &settings, *seed).map_err(Failure::impossible)?);
        }
        reports.push(report::report(&truth, scenarios, &replays, &settings, &args.seeds, recovered));
    }
    match args.format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&reports).map_err(Failure::input)?),
        Format::Text => reports.iter().for_each(report::print),
    }
    Ok(())
}
