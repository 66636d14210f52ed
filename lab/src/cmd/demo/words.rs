//! The text of the demo: every number has a unit, simulated numbers are called simulated.

use super::closed_loop::ClosedLoop;
use super::explain::{Explained, split};
use super::folder::Folder;
use super::replay::{NOTICEABLE_GAIN, Replay, summary_of};
use super::source::{DataSource, DemoTruth};
use super::{Fit, Taken};
use lab_kit::output::{table, table_of};
use std::path::Path;
use topology::Cluster;

/// Options that complete the topology of one host to a cluster.
pub const IMPORT_FLAGS: [&str; 8] =
    ["--gpu-model", "H100", "--nic-gbit-per-s", "400", "--count", "4", "--name", "h100"];

/// A paragraph, every line indented by `indent`.
fn wrap(text: &str, indent: usize) -> String {
    console::wrap(&format!("{}{text}", " ".repeat(indent)), indent)
}

fn heading(n: usize, text: &str) -> String {
    format!("\n{n}. {text}\n")
}

/// The origin of the bandwidths, in a sentence.
pub fn nature(truth: &DemoTruth) -> String {
    match truth {
        DemoTruth::Published { .. } => {
            "Real measurements: published NCCL bus bandwidths of four 8x H100 hosts (BandPilot), all-reduce of 16 MiB."
                .into()
        }
        DemoTruth::Simulated(_) => "SIMULATED bus bandwidths of four 8x H100 hosts, all-reduce of 16 MiB: linkwise's \
                                     physics with seeded irregularity and noise. Nothing here was measured."
            .into(),
    }
}

/// `measured` or `SIMULATED`.
pub fn kind(truth: &DemoTruth) -> &'static str {
    if truth.is_simulated() { "SIMULATED" } else { "measured" }
}

/// The first lines: the seed and the source of the bandwidths.
pub fn opening(found: &DataSource, seed: u64) -> String {
    let what = match found {
        DataSource::Published(folder) => format!("real published H100 measurements, from {}", folder.display()),
        DataSource::Simulated(why) => format!("a SIMULATED cluster ({why})"),
    };
    format!("linkwise-lab demo, seed {seed}\n{}", wrap(&format!("Bandwidths: {what}"), 0))
}

/// Step 1: the import command and its result.
pub fn cluster(cluster: &Cluster, folder: &Folder) -> String {
    let path = |name: &str| folder.show(name);
    let mut out = heading(1, "A cluster from the output of nvidia-smi topo -m on one host");
    out += &format!("  $ linkwise topology import {} \\\n", path("hgx-h100.topo.txt"));
    out += &format!("      {} \\\n      -o {}\n", IMPORT_FLAGS.join(" "), path("cluster.yaml"));
    let drawn = draw::text(cluster);
    // Only the beginning of the drawing; the report shows all of it.
    drawn
        .lines()
        .take_while(|l| !l.starts_with("hgx-h100:"))
        .for_each(|l| out += &format!("{}\n", format!("  {l}").trim_end()));
    out.trim_end().to_owned() + "\n"
}

/// Step 2: the content of the store.
pub fn taken(taken: &Taken, truth: &DemoTruth, folder: &Folder) -> String {
    let mut out = heading(2, &format!("Measurements in {} ({})", folder.show("demo.db"), kind(truth)));
    out += &wrap(&format!("{}.", taken.how), 2);
    out + &wrap(&format!("{} readings inside hosts, {} across hosts.", taken.intra, taken.multi), 2)
}

/// Step 3: the model's errors on rows that it has not learned.
pub fn fit(fit: &Fit, truth: &DemoTruth) -> String {
    let held = &fit.held_out;
    let mut out = heading(3, "A model: the physics times a learned correction (Gaussian processes)");
    out += &wrap(&format!("Fitted in {:.2} s; readings distrusted as outliers: {}.", fit.seconds, fit.distrusted), 2);
    out + &wrap(
        &format!(
            "On {} {} multi-host rows that it has not seen: median error {:.1} %, R² {:.3}; {:.0} % of them lie within \
             one predicted deviation, {:.0} % within two.",
            held.rows.len(),
            kind(truth),
            held.median_error_pct,
            held.r2,
            100.0 * held.within.0,
            100.0 * held.within.1
        ),
        2,
    )
}

/// The comparison as a head and rows, the same as in the report.
pub fn comparison_table(replay: &Replay) -> (Vec<String>, Vec<Vec<String>>) {
    let head = ["method", "mean", "5th pct", "worst", "requests"].map(str::to_owned).to_vec();
    let rows = replay.methods.iter().filter_map(|m| {
        let s = summary_of(m)?;
        let pct = |v: f64| format!("{v:.1} %");
        Some(vec![m.name.clone(), pct(s.mean), pct(s.p5), pct(s.worst), s.requests.to_string()])
    });
    (head, rows.collect())
}

/// The gains over packing, one sentence each.
pub fn gains(replay: &Replay, truth: &DemoTruth) -> Vec<String> {
    let mut out = Vec::new();
    let n = replay.decided.len();
    out.push(format!(
        "{} of {n} requests get more than {NOTICEABLE_GAIN} times the {} bandwidth of the packed choice, and {} that of \
         the even split; {} get less than the packed choice, by more than 1 %.",
        replay.gaining(NOTICEABLE_GAIN),
        kind(truth),
        replay.gaining_over_even(NOTICEABLE_GAIN),
        replay.losing()
    ));
    if let (Some(d), Some(packed)) = (replay.most_gained(), replay.most_gained().and_then(|d| d.answer.packed.as_ref()))
    {
        out.push(format!(
            "Largest gain: {} GPUs as {} instead of {}, {:.0} instead of {:.0} GB/s ({}): {:.2} times as much.",
            d.k,
            split(&d.answer.choice.allocation),
            split(&packed.allocation),
            d.chosen_gb_per_s,
            d.packed_gb_per_s,
            kind(truth),
            d.gain()
        ));
    }
    if replay.left_out > 0 {
        out.push(format!("{} requests are left out: a candidate of theirs has no true row.", replay.left_out));
    }
    out.push(format!("An answer takes {:.0} us (median).", replay.elapsed_us_median()));
    out
}

/// Step 4: the methods side by side.
pub fn comparison(replay: &Replay, truth: &DemoTruth) -> String {
    let title = format!("{} requests under random availability ({})", replay.decided.len(), kind(truth));
    let mut out = heading(4, &title);
    out += &wrap("Bandwidth of the choice over that of the best possible one (GBE):", 2);
    let (head, rows) = comparison_table(replay);
    out += &table(&head, 1, rows);
    gains(replay, truth).iter().for_each(|s| out += &wrap(s, 2));
    out
}

/// The choices of the explained request as a head and rows, the same as in the report.
pub fn choices_table(explained: &Explained, truth: &DemoTruth) -> (Vec<String>, Vec<Vec<String>>) {
    let head = ["choice", "split", "predicted", kind(truth), "GPUs"].map(str::to_owned).to_vec();
    let row = |r: &super::explain::ExplainedChoice| {
        vec![
            r.who.clone(),
            r.split.clone(),
            format!("{:.0} ± {:.0} GB/s", r.predicted.0, r.predicted.1),
            r.truth.map_or("–".into(), |t| format!("{t:.0} GB/s")),
            r.gpus.clone(),
        ]
    };
    (head, explained.rows.iter().map(row).collect())
}

/// Step 5: one decision, explained.
pub fn explained(explained: Option<&Explained>, truth: &DemoTruth) -> String {
    let mut out = heading(5, &format!("One decision: where packing loses most ({})", kind(truth)));
    let Some(e) = explained else { return out + &wrap("No request could be judged.", 2) };
    out += &wrap(&e.request, 2);
    e.reasons.iter().for_each(|r| out += &wrap(r, 2));
    let (head, rows) = choices_table(e, truth);
    out + &table_of(&head, 2..4, rows)
}

/// Step 6: the closed loop.
pub fn closed_loop(told: &ClosedLoop, truth: &DemoTruth) -> String {
    let mut out = heading(6, "The loop, closed: a NIC drops to half its rate (SIMULATED)");
    told.sentences(truth).iter().for_each(|s| out += &wrap(s, 2));
    let (head, rows) = told.table();
    out += &table_of(&head, 1..3, rows);
    told.verdict.iter().for_each(|s| out += &wrap(s, 2));
    out
}

/// Step 7: the path of the report, and the commands that continue by hand.
pub fn closing(report: &Path, truth: &DemoTruth, folder: &Folder) -> String {
    let path = |name: &str| folder.show(name);
    let (cluster, store, model) = (path("cluster.yaml"), path("demo.db"), "model.json");
    let mut out = heading(7, &format!("The report ({}): {}", kind(truth), report.display()));
    out += "  The same by hand, from the store:\n";
    out += &format!("  $ linkwise fit --cluster {cluster} --store {store} -o {model}\n");
    out += &format!("  $ linkwise place --cluster {cluster} --model {model} --gpus 8\n");
    out += "  The state and the readings of the loop:\n";
    out += &format!("  $ linkwise cluster show --state {}\n", path("loop.state"));
    out + &format!("  $ linkwise doctor --cluster {cluster} --store {}\n", path("loop.db"))
}

impl Folder {
    /// The path of one of the demo's files, for display.
    fn show(&self, name: &str) -> String {
        self.claim(name).map_or_else(|_| name.to_owned(), |p| p.display().to_string())
    }
}
