//! Skewed all-to-all of the real NCCL library between hosts in network namespaces: NCCL's sockets and this plugin, interleaved, beside the theory.
//!
//! ```sh
//! cargo build -p nccl-net && cargo run -p nccl-net --example bench_net -- --hosts 2x4 --rails 4 --mbit 100 --rounds 7
//! cargo run -p nccl-net --example bench_net -- --cases zipf --arms linkwise --fault cut:1 --repetitions 24 --rounds 1
//! ```
//!
//! Theory: the bytes of the busiest host over all its rails, with the overhead of TCP and Ethernet; no schedule is faster. A repetition's time is that of
//! its slowest rank; the first of a run, which sets up connections, does not count. Every byte is checked. `--fault cut:R` loses every packet of rail R of
//! host 0 in the middle of a run, `slow:R` gives it a quarter of its rate, `heal` undoes it after a third of the time that is left.

mod arms;
mod cases;

use arms::spec;
use cases::theory;
use nccl_bench::Bench;
use netns::NetBox;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Ethernet and IP overhead of a full TCP segment at the box's MTU of 1500: 1514 bytes carry 1448.
const OVERHEAD: f64 = 1514.0 / 1448.0;

struct Options {
    hosts: usize,
    local: usize,
    rails: usize,
    mbit: u32,
    mb: f64,
    repetitions: u32,
    rounds: usize,
    version: String,
    cases: Vec<String>,
    arms: Vec<String>,
    fault: Option<(String, usize)>,
    plugin: PathBuf,
    shape: String,
    results: Option<PathBuf>,
    tag: String,
    nice: i32,
}

fn options() -> Result<Options, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let plugin = program.ancestors().nth(2).map(|d| d.join("liblinkwise_nccl_net.so")).unwrap_or_default();
    let words = |t: &str| t.split(',').map(str::to_owned).collect::<Vec<_>>();
    let mut o = Options {
        hosts: 2,
        local: 4,
        rails: 4,
        mbit: 100,
        mb: 6.0,
        repetitions: 4,
        rounds: 3,
        version: "2.28.9".into(),
        cases: words("uniform,hot-destination,hot-source,hot-pair,zipf"),
        arms: words("sockets,linkwise"),
        fault: None,
        plugin,
        shape: "rails".into(),
        results: None,
        tag: String::new(),
        nice: 0,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().ok_or(format!("{arg} needs a value"))?;
        let number = || value.parse::<f64>().map_err(|e| format!("{arg} {value}: {e}"));
        match arg.as_str() {
            "--hosts" => {
                let (h, l) = value.split_once('x').ok_or("--hosts takes HOSTSxGPUS")?;
                o.hosts = h.parse().map_err(|e| format!("{e}"))?;
                o.local = l.parse().map_err(|e| format!("{e}"))?;
            }
            "--rails" => o.rails = number()? as usize,
            "--mbit" => o.mbit = number()? as u32,
            "--mb" => o.mb = number()?,
            "--repetitions" => o.repetitions = number()? as u32,
            "--rounds" => o.rounds = number()? as usize,
            "--version" => o.version = value,
            "--cases" => o.cases = words(&value),
            "--arms" => o.arms = words(&value),
            "--plugin" => o.plugin = value.into(),
            "--shape" => o.shape = value,
            "--results" => o.results = Some(value.into()),
            "--tag" => o.tag = value,
            "--nice" => o.nice = number()? as i32,
            "--fault" => {
                let (kind, rail) = value.split_once(':').ok_or("--fault takes cut:RAIL or slow:RAIL")?;
                o.fault = Some((kind.into(), rail.parse().map_err(|e| format!("{e}"))?));
            }
            _ => return Err(format!("`{arg}` is not an option")),
        }
    }
    Ok(o)
}

/// Breaks a rail a third into the run's traffic, and heals it when half of the rest is over.
fn disturb(o: &Options, netbox: &NetBox, theory: f64, stop: &AtomicBool) {
    let Some((kind, rail)) = &o.fault else { return };
    let counter = || {
        let path = format!("/sys/class/net/{}/statistics/tx_bytes", netbox.interface(0, *rail));
        let mut cat = std::process::Command::new("cat");
        cat.arg(path);
        let out = netbox.exec(0, cat).output().ok();
        out.and_then(|o| String::from_utf8_lossy(&o.stdout).trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let begin = counter();
    while counter() < begin + 200_000 && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let nap = |seconds: f64| {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let run = theory * 1.2 * f64::from(o.repetitions);
    nap(run / 3.0);
    let done = if kind == "slow" { netbox.rate(0, *rail, o.mbit / 4) } else { netbox.cut(0, *rail) };
    eprintln!("{kind} of rail {rail}: {done:?}");
    nap(run / 3.0);
    let done = if kind == "slow" { netbox.rate(0, *rail, o.mbit) } else { netbox.heal(0, *rail) };
    eprintln!("heal of rail {rail}: {done:?}");
}

/// Processor time of the processes that this one has waited for, in seconds.
fn children_cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    // Fields 16 and 17 in ticks of 10 ms; the first two are before the parenthesis.
    fields.skip(13).take(2).filter_map(|f| f.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn main() -> Result<(), String> {
    let o = options()?;
    let made = match o.shape.as_str() {
        "rails" => NetBox::rails(o.hosts, o.rails, o.mbit),
        "ring" => NetBox::ring(o.hosts, o.mbit),
        "mesh" => NetBox::mesh(o.hosts, o.mbit),
        other => return Err(format!("`{other}` is none of rails, ring, mesh")),
    };
    let netbox = match made {
        Ok(mut b) => {
            if o.shape != "rails" {
                b.add_management().map_err(|e| e.to_string())?;
            }
            b
        }
        Err(e @ netns::NetBoxError::Unavailable { .. }) => {
            println!("SKIP bench_net: {e}");
            return Ok(());
        }
        Err(e) => return Err(e.to_string()),
    };
    let bench = Bench::new().map_err(|e| e.to_string())?;
    // What an earlier run measured: a run that was cut off goes on.
    let before = o.results.as_ref().and_then(|p| std::fs::read_to_string(p).ok()).unwrap_or_default();
    let done: std::collections::HashMap<String, (Vec<f64>, u64, f64)> = before
        .lines()
        .filter_map(|l| serde_json::from_str::<(String, Vec<f64>, u64, f64)>(l).ok())
        .map(|(k, t, w, c)| (k, (t, w, c)))
        .collect();
    println!(
        "{}: {} hosts with {} ranks and {} rails of {} Mbit/s; {} MB out of the busiest host; NCCL {}; times in theories",
        o.shape,
        o.hosts,
        o.local,
        netbox.nics(0),
        o.mbit,
        o.mb,
        o.version
    );
    for case in &o.cases {
        let theory = theory(&o, case, &netbox)?;
        let mut times = vec![Vec::new(); o.arms.len()];
        let mut cpu = vec![Vec::new(); o.arms.len()];
        let mut wrong = 0;
        for round in 0..o.rounds {
            for (a, arm) in o.arms.iter().enumerate() {
                let key = format!("{} {case} {arm} {round}", o.tag);
                if let Some((before, w, c)) = done.get(&key) {
                    times[a].extend_from_slice(before);
                    cpu[a].push(*c);
                    wrong += w;
                    continue;
                }
                let spec = spec(&o, case, arm, &netbox)?;
                let stop = AtomicBool::new(false);
                let cpu_before = children_cpu_s();
                let report = std::thread::scope(|s| {
                    s.spawn(|| disturb(&o, &netbox, theory, &stop));
                    let report = bench.run_bytes(&spec);
                    stop.store(true, Ordering::Relaxed);
                    report
                });
                let report = match report {
                    Ok(r) => r,
                    Err(e) => {
                        println!("{case} {arm} round {round}: {}", e.to_string().lines().next().unwrap_or_default());
                        continue;
                    }
                };
                let wrong_now = report.wrong_bytes();
                wrong += wrong_now;
                let slowest = |k: u32| {
                    let of = report.results.iter().filter(|r| r.repetition == k).map(|r| r.seconds);
                    of.fold(0.0, f64::max) / theory
                };
                let all: Vec<f64> = (0..o.repetitions).map(slowest).collect();
                if o.fault.is_some() || std::env::var_os("BENCH_ALL").is_some() {
                    let text: Vec<String> = all.iter().map(|t| format!("{t:.2}")).collect();
                    println!("{case} {arm} round {round}: {}", text.join(" "));
                    report.log.lines().filter(|l| l.contains("NET/linkwise:")).for_each(|l| println!("  {l}"));
                }
                let moved: u64 = cases::matrix(&o, case)?.iter().flatten().sum();
                let cpu_now = (children_cpu_s() - cpu_before) / (moved as f64 * f64::from(o.repetitions) / 1e9);
                cpu[a].push(cpu_now);
                let counted = &all[1.min(all.len() - 1)..];
                times[a].extend_from_slice(counted);
                if let Some(path) = &o.results {
                    let line = serde_json::json!([key, counted, wrong_now, cpu_now]);
                    let mut file =
                        std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(|e| e.to_string())?;
                    writeln!(file, "{line}").map_err(|e| e.to_string())?;
                }
            }
        }
        let text: Vec<String> =
            o.arms.iter().zip(&times).map(|(a, t)| format!("{a} {:.2}", stats::median_or(t, f64::NAN))).collect();
        println!("{case:16} theory {theory:.3} s   {}   wrong bytes {wrong}", text.join("   "));
        if std::env::var_os("BENCH_CPU").is_some() {
            let text: Vec<String> =
                o.arms.iter().zip(&cpu).map(|(a, c)| format!("{a} {:.2}", stats::median_or(c, f64::NAN))).collect();
            println!("{:16} processor seconds per GB, start and kernels included: {}", "", text.join("   "));
        }
    }
    Ok(())
}
