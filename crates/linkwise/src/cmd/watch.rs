//! `linkwise watch FOLDER`: shows what the plugin does in running jobs, from their status files.

use console::{Failure, Format, duration, now_unix_s, print, print_screen, table, text_of, wrap};
use job::status::{CommStatus, ProcessStatus, STALE_S, read_folder};
use serde_json::json;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;
use topology::{Bytes, count};

/// Arguments of `linkwise watch`.
#[derive(clap::Args)]
#[command(after_help = "\
Reads the files that the plugin writes every 2 s where LINKWISE_STATUS (or status in the settings file) names the folder: one per process that \
leads a communicator. The same folder has Prometheus text (linkwise-*.prom) for node_exporter's text collector, and waiting-*.json after a \
call has waited for more than 1 s.")]
pub struct Args {
    /// Folder of the status files
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Show it once, instead of again and again
    #[arg(long)]
    once: bool,
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = console::number::real)]
    interval: f64,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Most rows of arms that are shown.
const ROWS_MAX: usize = 40;
const INTERVAL_S_MAX: f64 = 3600.0;

pub fn run(args: Args) -> Result<(), Failure> {
    if !(0.1..=INTERVAL_S_MAX).contains(&args.interval) {
        return Err(Failure::input(format!("--interval: 0.1 to {INTERVAL_S_MAX} s were expected")));
    }
    let clears = std::io::stdout().is_terminal() && args.format == Format::Text && !args.once;
    loop {
        let (processes, broken) = read_folder(&args.folder).map_err(Failure::input)?;
        if processes.is_empty() && args.once {
            let why = broken.first().map_or(String::new(), |b| format!(" ({b})"));
            return Err(Failure::impossible(format!(
                "{} has no status file{why}; set LINKWISE_STATUS to it in the job",
                args.folder.display()
            )));
        }
        let now = now_unix_s() as u64;
        match args.format {
            Format::Text => {
                let screen = text(&processes, &broken, now);
                if clears {
                    print_screen(&screen)
                } else {
                    print(&screen)
                };
            }
            Format::Json => {
                print(&format!("{}\n", json!({ "at_unix_s": now, "processes": processes, "broken": broken })));
            }
        }
        if args.once {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs_f64(args.interval));
    }
}

fn text(processes: &[ProcessStatus], broken: &[String], now: u64) -> String {
    let mut out = String::new();
    let comms = || processes.iter().flat_map(|p| p.comms.iter().map(move |c| (p, c)));
    let live = processes.iter().filter(|p| p.age_s(now) <= STALE_S).count();
    let led = comms().filter(|(_, c)| c.leads).count();
    // Any number may stand in a file.
    let all = |counts: &mut dyn Iterator<Item = u64>| counts.fold(0, u64::saturating_add);
    let longest = comms().map(|(_, c)| c.longest_wait_us).max().unwrap_or(0);
    let mut said = format!(
        "{} {}, {} {} stopped writing; {} led here, {} of arms, {}, the longest {:.1} ms, {} dropped records",
        count(live, "process"),
        if live == 1 { "writes its status" } else { "write their status" },
        processes.len() - live,
        if processes.len() - live == 1 { "has" } else { "have" },
        count(led, "communicator"),
        count(all(&mut processes.iter().map(|p| p.changes)) as usize, "change"),
        count(all(&mut comms().map(|(_, c)| c.waits)) as usize, "wait"),
        longest as f64 / 1e3,
        all(&mut comms().map(|(_, c)| c.dropped))
    );
    if let Some(tuner) = processes.iter().find_map(|p| p.site_tuner.as_ref()) {
        let _ = write!(said, "; AUTO is the answer of the site's tuner {tuner}");
    }
    out += &wrap(&said, 2);
    for (p, c) in comms().filter(|(p, c)| c.waiting_us.is_some() && p.age_s(now) <= STALE_S) {
        out += &wrap(&waiting(p, c), 2);
    }
    let shown: Vec<_> = comms().filter(|(_, c)| c.leads || c.rank == 0).collect();
    let rows = shown.iter().map(|(p, c)| {
        vec![
            c.comm.clone(),
            p.host_name.clone(),
            p.pid.to_string(),
            state(p, now),
            c.ranks.to_string(),
            c.calls.to_string(),
            c.epoch.to_string(),
            c.waits.to_string(),
        ]
    });
    out += &listed(&["communicator", "host", "pid", "state", "ranks", "calls", "epoch", "waits"], 4..8, rows.collect());
    let arms = shown.iter().flat_map(|(_, c)| {
        c.slots
            .iter()
            .map(|s| vec![c.comm.clone(), s.collective.clone(), Bytes(s.size_bytes).to_string(), s.arm.clone()])
    });
    let arms: Vec<_> = arms.collect();
    if arms.is_empty() {
        out += "No arm has been chosen: everything is at AUTO.\n";
    } else {
        out += &listed(&["communicator", "collective", "size", "arm"], 0..0, arms);
    }
    for why in broken.iter().take(5) {
        out += &wrap(&format!("note: {why}"), 2);
    }
    out
}

/// A table of at most [`ROWS_MAX`] rows.
fn listed(head: &[&str], numbers: std::ops::Range<usize>, mut rows: Vec<Vec<String>>) -> String {
    let more = rows.len().saturating_sub(ROWS_MAX);
    rows.truncate(ROWS_MAX);
    let mut t = table(head, numbers);
    t.add_rows(rows);
    let mut out = text_of(&t);
    if more > 0 {
        let _ = writeln!(out, "{more} more rows are in --format json");
    }
    out
}

fn state(p: &ProcessStatus, now: u64) -> String {
    match (p.age_s(now) > STALE_S, p.stopped, p.frozen) {
        (true, ..) => format!("ended or hangs, {} ago", duration(p.age_s(now) as f64)),
        (_, true, _) => "stopped".into(),
        (_, _, true) => "frozen".into(),
        _ => p.mode.clone(),
    }
}

/// One sentence about a call that waits.
fn waiting(p: &ProcessStatus, c: &CommStatus) -> String {
    let silent: Vec<String> = c.silent.iter().map(ToString::to_string).collect();
    let who = match silent.is_empty() {
        true if c.leads => String::new(),
        true => "; its leader's file names the silent ranks".into(),
        false => format!("; silent ranks: {}", silent.join(", ")),
    };
    format!(
        "WAITING: a call of rank {} of communicator {} on {} (pid {}) has been waiting for {} at epoch {}{who}",
        c.rank,
        c.comm,
        p.host_name,
        p.pid,
        duration(c.waiting_us.unwrap_or(0) as f64 / 1e6),
        c.epoch
    )
}
