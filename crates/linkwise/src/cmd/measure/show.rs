//! The summary at the end of `linkwise measure`.

use super::tables::Imported;
use crate::brief::{above_links, gb};
use console::{table, text_of, wrap};
use measure::CampaignSummary;
use measure::campaign::StageEstimate;
use store::Source;
use topology::count;

/// Everything that one run did.
#[derive(Default, serde::Serialize)]
pub struct Answer {
    /// Path of the store.
    pub store: String,
    /// Name of the cluster.
    pub cluster: String,
    /// Imported files.
    pub imports: Vec<Imported>,
    /// The campaign, if one ran.
    pub campaign: Option<CampaignAnswer>,
    /// Rows written by `--export`.
    pub exported: Option<usize>,
    /// Measurements in the store after the run.
    pub measurements: usize,
    /// Simulated ones among them.
    pub simulated: usize,
}

/// Result of the campaign.
#[derive(serde::Serialize)]
pub struct CampaignAnswer {
    /// Source of the readings.
    pub source: Source,
    /// Points of the plan.
    pub points_planned: usize,
    /// Cost of the plan before this run, by stage.
    pub planned: Vec<StageEstimate>,
    /// True if every point has a reading.
    pub finished: bool,
    /// True if the campaign was finished before this run.
    pub nothing_to_do: bool,
    /// Duration of this run.
    pub wall_seconds: f64,
    /// GPU minutes of this run.
    pub gpu_minutes: f64,
    /// Readings taken by this run.
    pub readings_taken: usize,
    /// Figures by stage.
    #[serde(flatten)]
    pub summary: CampaignSummary,
}

/// The answer as one JSON object.
pub fn json(answer: &Answer) -> String {
    serde_json::to_string_pretty(answer).unwrap_or_default() + "\n"
}

pub fn text(answer: &Answer) -> String {
    let mut out = String::new();
    for i in &answer.imports {
        let mut head = format!("{}: {}, {} added, {} known already", i.file, count(i.rows, "row"), i.added, i.already);
        if i.suspect > 0 {
            head += &format!(", {} far from comparable ones (suspect)", i.suspect);
        }
        if i.without_bandwidth > 0 {
            head += &format!(", {} of 0 GB/s (rejected: stored, never used)", i.without_bandwidth);
        }
        out += &wrap(&head, 2);
        if let Some(above) = &i.above_links {
            let (n, gpus) = (above.readings, &above.first_gpus);
            let got = gb(above.first_gb_per_s);
            let what = match n {
                1 => format!("{got} GB/s on {gpus}"),
                n => format!("{n} readings, the first {got} GB/s on {gpus}"),
            };
            out.push_str(&wrap(&format!("note: {what}: {}", above_links(above.links_allow_gb_per_s)), 2));
        }
    }
    if let Some(c) = &answer.campaign {
        out.push_str(&campaign(c));
    }
    if let Some(n) = answer.exported {
        out.push_str(&format!("{} exported\n", count(n, "measurement")));
    }
    let holds = match (answer.measurements, answer.simulated) {
        (n, 0) => count(n, "measurement"),
        (n, simulated) if n == simulated => count(n, "simulated measurement"),
        (n, simulated) => format!("{} ({simulated} simulated)", count(n, "measurement")),
    };
    out.push_str(&format!("{} holds {holds} of cluster {}\n", answer.store, answer.cluster));
    out
}

fn campaign(c: &CampaignAnswer) -> String {
    let simulated = c.source == Source::Simulated;
    let header = ["stage", "points", "taken", "failed", "outliers", "rejected", "suspect", "run s", "GPU\nmin"];
    let mut stages = table(&header, 1..);
    for s in c.summary.stages.iter().filter(|s| s.points + s.failed > 0) {
        stages.add_row([
            s.name.clone(),
            s.points.to_string(),
            s.readings_taken.to_string(),
            s.failed.to_string(),
            s.outliers.to_string(),
            s.rejected.to_string(),
            s.suspect.to_string(),
            format!("{:.0}", s.run_seconds),
            format!("{:.1}", s.gpu_minutes),
        ]);
    }
    let out = text_of(&stages);
    let end = match c {
        _ if c.nothing_to_do => "the campaign was finished before; nothing was measured".to_owned(),
        _ if c.summary.stopped_by_budget => {
            "the budget ended before the plan; the same command with a new budget goes on".to_owned()
        }
        _ if !c.finished => {
            format!("{} gave no reading; the same command tries again", count(c.summary.failed(), "point"))
        }
        _ => "the campaign is finished".to_owned(),
    };
    let (word, note) = match simulated {
        true => ("simulated reading", "run s and GPU min are simulated\n"),
        false => ("reading", ""),
    };
    out + note + &format!("{} in {:.1} s; {end}\n", count(c.readings_taken, word), c.wall_seconds)
}
