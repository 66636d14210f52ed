//! `linkwise slurm squeue` and `linkwise slurm status`.

use super::Site;
use crate::cmd::open;
use crate::slurm_programs::{self, PROGRAM_TIME_MAX};
use console::{Failure, Format, now_unix_s, table, text_of};
use serde_json::json;
use slurm::{mirror, queue};
use std::path::PathBuf;
use topology::{Allocation, count};

/// Arguments of `linkwise slurm squeue`.
#[derive(clap::Args)]
pub struct Squeue {
    #[command(flatten)]
    site: Site,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Runs `linkwise slurm squeue`.
pub fn squeue(a: &Squeue) -> Result<(), Failure> {
    let engine = a.site.engine_of_books()?;
    let suspected = match a.site.state {
        Some(_) => slurm::suspected(&a.site.engine()?, now_unix_s()).unwrap_or_default(),
        None => Allocation::default(),
    };
    let nodes = slurm_programs::nodes(PROGRAM_TIME_MAX).map_err(Failure::input)?;
    let records = slurm_programs::jobs(PROGRAM_TIME_MAX).map_err(Failure::input)?;
    let rows = queue::rows(&engine, &nodes, &records, &suspected, now_unix_s());
    match a.format {
        Format::Json => console::print_json(&json!({ "jobs": rows }))?,
        Format::Text if rows.is_empty() => console::print("no job with GPUs runs or waits\n"),
        Format::Text => {
            let mut t = table(&["job", "state", "GPUs", "on", "GB/s", "packed GB/s", "waits for"], 2..3);
            let figure = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.1}"));
            for r in &rows {
                t.add_row([
                    r.job.to_string(),
                    r.state.clone(),
                    r.gpus.to_string(),
                    r.on.clone().unwrap_or_else(|| "none now".into()),
                    figure(r.busbw_gb_per_s),
                    figure(r.packed_gb_per_s),
                    r.reason.clone(),
                ]);
            }
            console::print(&text_of(&t));
            console::print(
                "GB/s: predicted for the GPUs of a running job, and for those that a waiting one would get now\n",
            );
        }
    }
    Ok(())
}

/// Arguments of `linkwise slurm status`.
#[derive(clap::Args)]
pub struct Status {
    /// State file: its suspected GPUs and drains
    #[arg(long)]
    state: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Runs `linkwise slurm status`.
pub fn status(a: &Status) -> Result<(), Failure> {
    let plugin = slurm_programs::output("scontrol", &["show", "bbstat"], PROGRAM_TIME_MAX).map_err(Failure::input)?;
    let plugin = plugin.lines().find(|l| l.starts_with("linkwise ")).unwrap_or("linkwise: the plugin is not loaded");
    let nodes = slurm_programs::nodes(PROGRAM_TIME_MAX).map_err(Failure::input)?;
    let out: Vec<_> = nodes.iter().filter(|n| mirror::is_out(&n.state)).collect();
    let (mut suspects, mut drained, mut kept) = (Vec::new(), Vec::new(), String::new());
    if let Some(path) = &a.state {
        let engine = open::state(path)?;
        let failed = |e: engine::EngineError| Failure::input(e.with_remedy());
        let status = engine.status().map_err(failed)?;
        let left_out = slurm::suspected(&engine, now_unix_s()).map_err(|e| Failure::input(e.message))?;
        kept = engine.cluster().gpu_list(&left_out);
        suspects = status.suspects;
        drained = status.drained.into_iter().filter(|d| !d.reason.starts_with(mirror::DRAIN)).collect();
    }
    if a.format == Format::Json {
        let node = |n: &&slurm::books::Node| json!({"node": n.name, "state": n.state});
        return console::print_json(&json!({
            "plugin": plugin,
            "nodes_out": out.iter().map(node).collect::<Vec<_>>(),
            "kept_out": kept,
            "suspects": suspects,
            "drained_by_linkwise": drained,
        }));
    }
    let mut text = format!("{plugin}\n{} with GPUs, {} out of service\n", count(nodes.len(), "node"), out.len());
    out.iter().for_each(|n| text += &format!("  {}: {}\n", n.name, n.state));
    for s in &suspects {
        let probability = 100.0 * s.probability;
        text += &format!("suspected: {} ({probability:.0} %, at {:.0} % of its rate)\n", s.component, 100.0 * s.factor);
    }
    if !kept.is_empty() {
        text += &format!("kept out of jobs: {kept}\n");
    }
    for d in &drained {
        text += &format!("drained: {} ({})\n", d.gpus.names().collect::<Vec<_>>().join(" "), d.reason);
    }
    console::print(&text);
    Ok(())
}
