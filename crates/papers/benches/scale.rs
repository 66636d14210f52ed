//! Cost of a decision from 32 to 10,240 GPUs: median and 99th percentile over 310 requests, and the memory of the process.
//!
//! Mixed clusters of four host types, half of the GPUs free, drawn anew for every request; 31 sizes of job from 2 GPUs to all free
//! ones, evenly on a logarithmic scale, ten requests each. Every size and model runs in a process of its own, so that its peak memory
//! (VmHWM) is its own. Divan has no 99th percentile, therefore this is a separate program.

use predict::{FitOptions, Kind, Model, fit};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::time::Instant;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, Host, Network, catalog};

const SIZE: Bytes = Bytes::gib(1);
/// GPUs of the clusters.
const GPUS: [usize; 4] = [32, 256, 1024, 10_240];
/// Targets, milliseconds: bound and gp.
const AIMS_MS: [[f64; 2]; 4] = [[0.1, 0.5], [2.0, 2.0], [4.0, 4.0], [10.0, 10.0]];
/// Repetitions of every request; the least time is the cost on an otherwise idle core.
const REPEATS: usize = 3;
const SAMPLES: usize = 100;
const TYPES: [&str; 4] = ["rtx4090", "dgx1-v100", "a6000", "a800"];

fn mixed(gpus: usize) -> Cluster {
    let types: Vec<_> = TYPES.iter().map(|t| catalog::host_type(t).expect("in the catalog")).collect();
    let hosts = (0..gpus / 8).map(|i| Host { name: format!("n{i}"), host_type: i % 4, ..Host::default() }).collect();
    Cluster { name: format!("mixed-{gpus}"), types, hosts, network: Network::default() }
}

/// A number between -1 and 1 that depends on its arguments alone.
fn noise(a: u64, b: u64) -> f64 {
    let h = (a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b.wrapping_add(0x51)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    ((h ^ h >> 32) >> 11 & 0xfffff) as f64 / f64::from(1 << 19) - 1.0
}

/// Readings: on every host each count's first GPUs, 3 % apart between hosts; and `samples` between hosts, physics bent by 10 %.
fn readings(cluster: &Cluster, samples: usize) -> Vec<Measurement> {
    let physics = fabric::Fabric::new(cluster);
    let row = |a: Allocation, v: f64| {
        Measurement::new(a, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(v), Source::Simulated)
    };
    let mut out = Vec::new();
    for h in cluster.host_ids() {
        for c in 2..=8 {
            let m = GpuMask::first(c);
            let v = physics.intra_busbw(h, m, Collective::AllReduce, SIZE).gb_per_s();
            out.push(row(Allocation::new([(h, m)]), v * (1.0 + 0.03 * noise(u64::from(h.0), c as u64))));
        }
    }
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let first: Vec<_> = cluster.usable().parts().iter().copied().take(64).collect();
    let usable = Allocation::new(first);
    let from = out.len();
    while out.len() < from + samples {
        let k = 2 + place::baselines::below(&mut rng, usable.gpu_count() / 2);
        let Some(a) = place::baselines::random(&usable, k, &mut rng).filter(|a| a.host_count() > 1) else { continue };
        let bent = 1.0 + 0.05 * ((a.counts()[0] % 3) as f64 - 1.0) + 0.02 * noise(out.len() as u64, 7);
        let v = physics.estimate(&a, Collective::AllReduce, SIZE).busbw.gb_per_s() * bent;
        out.push(row(a, v));
    }
    out
}

fn requests(cluster: &Cluster) -> Vec<place::Request> {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let all = cluster.usable();
    let free = cluster.gpu_count() / 2;
    (0..31)
        .flat_map(|i| [2.0 * (free as f64 / 2.0).powf(f64::from(i) / 30.0); 10])
        .map(|k| {
            let free = place::baselines::random(&all, free, &mut rng).expect("enough");
            place::Request::new((k.round() as usize).min(free.gpu_count()), free, SIZE)
        })
        .collect()
}

fn model(cluster: &Cluster, kind: &str, samples: usize) -> Model {
    let kind = match kind {
        "gp" => Kind::Gp,
        "bandpilot" => Kind::Learned(&papers::network::kinds::TRANSFORMER),
        _ => Kind::Bound,
    };
    fit(cluster, &readings(cluster, samples), &FitOptions::of(kind)).expect("fits").0
}

fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").trim().parse::<f64>().ok()).map_or(f64::NAN, |kb| kb / 1e3)
}

/// Processor time of this process so far, seconds, to 10 ms.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks = |i: usize| after_name.split_whitespace().nth(i).and_then(|w| w.parse::<f64>().ok()).unwrap_or(f64::NAN);
    (ticks(11) + ticks(12)) / 100.0
}

/// One size and model, in this process: prints `median p99 least cpu candidates fit_s peak_mb`, where the first two are of first answers,
/// the third is the median of the least of [`REPEATS`], and the fourth the mean processor time of an answer.
fn child(gpus: usize, kind: &str) {
    let cluster = mixed(gpus);
    let start = Instant::now();
    let model = model(&cluster, kind, SAMPLES);
    let (search, repeats) = if kind == "bandpilot" { ("bandpilot", 1) } else { ("auto", REPEATS) };
    let mut registry = place::Registry::shipped();
    papers::register_searches(&mut registry).expect("names are free");
    let search = registry.search(search, 0).expect("a search");
    let fit_s = start.elapsed().as_secs_f64();
    let mut times = Vec::new();
    let mut candidates = Vec::new();
    let mut least = Vec::new();
    let all = requests(&cluster);
    let cpu = cpu_s();
    for r in &all {
        let once = || {
            let start = Instant::now();
            let a = place::answer_with(search.as_ref(), &cluster, &model, r).expect("an answer");
            (start.elapsed().as_secs_f64() * 1e3, a.evaluations)
        };
        let (first, evaluations) = once();
        candidates.push(evaluations as f64);
        times.push(first);
        least.push((1..repeats).fold(first, |t, _| t.min(once().0)));
    }
    let cpu_ms = (cpu_s() - cpu) * 1e3 / (all.len() * repeats) as f64;
    least.sort_by(f64::total_cmp);
    let least = stats::nearest_quantile_of_sorted(&least, 0.5);
    times.sort_by(f64::total_cmp);
    candidates.sort_by(f64::total_cmp);
    println!(
        "{} {} {} {cpu_ms} {} {fit_s} {}",
        stats::nearest_quantile_of_sorted(&times, 0.5),
        stats::nearest_quantile_of_sorted(&times, 0.99),
        least,
        stats::nearest_quantile_of_sorted(&candidates, 0.5),
        peak_mb()
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if let [flag, gpus, kind] = args.as_slice()
        && flag == "--child"
    {
        return child(gpus.parse().expect("a number"), kind);
    }
    println!("decisions: {} requests, half of the GPUs free, four host types, one core", 310);
    println!(
        "{:>7} {:>9} {:>10} {:>10} {:>10} {:>10} {:>8} {:>7} {:>10} {:>8} {:>8}",
        "GPUs",
        "model",
        "median ms",
        "p99 ms",
        "of best 3",
        "mean CPU",
        "aim ms",
        "of aim",
        "candidates",
        "fit s",
        "peak MB"
    );
    let exe = std::env::current_exe().expect("this program");
    let mut curve: Vec<(usize, usize, f64)> = Vec::new();
    for (i, gpus) in GPUS.into_iter().enumerate() {
        // The papers' search with its network, at sizes where it answers within minutes.
        let kinds: &[&str] = if gpus == 32 { &["bound", "gp", "bandpilot"] } else { &["bound", "gp"] };
        for (j, kind) in kinds.iter().enumerate() {
            let out = std::process::Command::new(&exe)
                .args(["--child", &gpus.to_string(), kind])
                .stderr(std::process::Stdio::inherit())
                .output()
                .expect("runs");
            let text = String::from_utf8_lossy(&out.stdout);
            let v: Vec<f64> = text.split_whitespace().filter_map(|w| w.parse().ok()).collect();
            let [median, p99, least, cpu, candidates, fit_s, peak] = v[..] else { panic!("{kind} {gpus}: {text}") };
            let aim = AIMS_MS[i].get(j).copied().unwrap_or(f64::NAN);
            println!(
                "{gpus:>7} {kind:>9} {median:>10.3} {p99:>10.3} {least:>10.3} {cpu:>10.3} {aim:>8} {:>7.2} {candidates:>10} {fit_s:>8.2} {peak:>8.1}",
                median / aim
            );
            curve.push((gpus, j, median));
        }
    }
    for (j, kind) in ["bound", "gp"].into_iter().enumerate() {
        println!("\ngrowth of {kind}: each # is a factor of 1.5 over 10 µs; exponent of the step from the size before");
        let mut before: Option<(usize, f64)> = None;
        for (gpus, _, ms) in curve.iter().filter(|c| c.1 == j) {
            let bars = ((ms / 0.01).ln() / 1.5f64.ln()).max(0.0) as usize;
            let exponent = before
                .map_or(String::new(), |(g, m)| format!("  n^{:.2}", (ms / m).ln() / (*gpus as f64 / g as f64).ln()));
            println!("{gpus:>7} {} {ms:.3} ms{exponent}", "#".repeat(bars));
            before = Some((*gpus, *ms));
        }
    }
}
