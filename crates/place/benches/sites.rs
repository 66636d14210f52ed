//! Cost of a decision on sites of 32 and of 10,240 GPUs: one switch, leaves and spines, switches that only the readings show, rails, one or four host types; without jobs and
//! among 94 running jobs, with both models of contention. Median, 90th percentile and maximum over [`REQUESTS`] requests with other free
//! GPUs, each the least of [`REPEATS`] runs, and the mean
//! processor time of all runs, which does not depend on other programs; readings are simulated.
//!
//! `cargo bench --profile dev --workspace --bench sites -- [WORD...] [--answers FILE]`: only cases whose names contain every word (`k=64`: 64
//! GPUs only); the
//! answers of every request go to a file, one line each, so that two versions of the program can be compared.

use place::{Contention, Job, Request};
use predict::{BandwidthModel, FitOptions, Kind, Model, fit};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, Host, Network, Rails, Tier, catalog};

const SIZE: Bytes = Bytes::gib(1);
/// Requests of every line of the table.
const REQUESTS: usize = 20;
/// Repetitions of every request; the least time is the cost on an otherwise idle core.
const REPEATS: usize = 3;
/// GPUs of the requests.
const ASKED: [usize; 7] = [8, 16, 32, 64, 256, 1024, 4096];
/// Running jobs of the larger sites; smaller sites have one for every four hosts.
const JOBS: usize = 94;
/// Hosts below one switch that the file does not have.
const BELOW_HIDDEN: usize = 16;
/// Readings between hosts from which the model learns.
const READINGS: usize = 100;
const MIXED: [&str; 4] = ["hgx-h100", "a800", "dgx1-v100", "rtx4090"];

/// A site: its name, hosts, host types, and network.
fn sites() -> Vec<(String, Cluster)> {
    let mut out = Vec::new();
    for hosts in [4, 1280] {
        let (leaf, spine) = if hosts == 4 { (2, 4) } else { (16, 256) };
        let tiers = || vec![Tier::regular("leaf", leaf, 2.0), Tier::regular("spine", spine, 2.0)];
        for (types, kinds) in [("h100", 1), ("mixed", 4)] {
            let networks = [
                ("flat", Network::default()),
                ("tiers", Network { tiers: tiers(), ..Network::default() }),
                ("rails", Network { tiers: tiers(), rails: Some(Rails::Joined), ..Network::default() }),
                ("separate", Network { rails: Some(Rails::Separate), ..Network::default() }),
                // The file has no switch; the readings show some.
                ("found", Network::default()),
            ];
            let asked = |n: &&str| kinds == 1 || !n.ends_with("s") || *n == "tiers";
            for (network, n) in networks.into_iter().filter(|n| asked(&n.0) && (hosts > 4 || n.0 != "found")) {
                let name = format!("{}-{types}-{network}", hosts * 8);
                out.push((name.clone(), cluster(&name, hosts, kinds, n)));
            }
        }
    }
    out
}

fn cluster(name: &str, hosts: usize, kinds: usize, network: Network) -> Cluster {
    let types = MIXED.iter().take(kinds).map(|t| catalog::host_type(t).expect("in the catalog")).collect();
    let host = |i: usize| Host { name: format!("n{i}"), host_type: i % kinds, ..Host::default() };
    Cluster { name: name.into(), types, hosts: (0..hosts).map(host).collect(), network }
}

/// A number between -1 and 1 that depends on its arguments alone.
fn noise(a: u64, b: u64) -> f64 {
    let h = (a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b.wrapping_add(0x51)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    ((h ^ h >> 32) >> 11 & 0xfffff) as f64 / f64::from(1 << 19) - 1.0
}

/// Readings inside every host, 3 % apart between hosts, and between hosts of the first 64: physics bent by up to 7 %.
fn model(cluster: &Cluster) -> Model {
    let hides = cluster.name.ends_with("found");
    let mut hidden = cluster.clone();
    if hides {
        hidden.network.tiers = vec![Tier::regular("leaf", BELOW_HIDDEN, 1.0)];
    }
    let physics = fabric::Fabric::new(&hidden);
    let physics = physics.with_crossings(fabric::Crossings::new(vec![if hides { 0.7 } else { 1.0 }]).map(Arc::new));
    let row = |a: Allocation, v: f64| {
        Measurement::new(a, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(v), Source::Simulated)
    };
    let mut rows = Vec::new();
    for h in cluster.host_ids() {
        for c in 2..=8 {
            let m = GpuMask::first(c);
            let v = physics.intra_busbw(h, m, Collective::AllReduce, SIZE).gb_per_s();
            rows.push(row(Allocation::new([(h, m)]), v * (1.0 + 0.03 * noise(u64::from(h.0), c as u64))));
        }
    }
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let near = Allocation::new(cluster.usable().parts().iter().copied().take(64));
    let between = rows.len() + READINGS;
    while rows.len() < between {
        // As a campaign does: half of the runs on neighbouring hosts.
        let below = Allocation::new(near.parts()[..BELOW_HIDDEN.min(near.host_count())].iter().copied());
        let of = if hides && rows.len() % 2 == 0 { &below } else { &near };
        let k = 2 + place::baselines::below(&mut rng, of.gpu_count() / 2);
        let Some(a) = place::baselines::random(of, k, &mut rng).filter(|a| a.host_count() > 1) else { continue };
        let v = physics.estimate(&a, Collective::AllReduce, SIZE).busbw.gb_per_s();
        let bent = 1.0 + 0.05 * ((a.counts()[0] % 3) as f64 - 1.0) + 0.02 * noise(rows.len() as u64, 7);
        if v > 0.0 {
            rows.push(row(a, v * bent));
        }
    }
    let model = fit(cluster, &rows, &FitOptions::of(Kind::Gp)).expect("fits").0;
    assert!(!hides || model.with_found_switches().is_some(), "the readings show no switch");
    model
}

/// Requests for `k` GPUs with half of the GPUs free; of the others, jobs on two to nine hosts hold a part.
fn requests(cluster: &Cluster, k: usize, contention: Option<Contention>) -> Vec<Request> {
    let mut rng = ChaCha8Rng::seed_from_u64(k as u64);
    let all = cluster.usable();
    let jobs = JOBS.min(cluster.hosts.len() / 4);
    let mut one = || {
        let free = place::baselines::random(&all, all.gpu_count() / 2, &mut rng).expect("enough");
        let mut taken = Allocation::new(all.parts().iter().map(|&(h, m)| (h, m.minus(free.mask(h)))));
        let mut request = Request::new(k.min(free.gpu_count()), free, SIZE);
        for id in 0..if contention.is_some() { jobs } else { 0 } {
            // Neighbouring hosts: jobs share hosts with each other and with the free GPUs.
            let (hosts, parts) = (2 + place::baselines::below(&mut rng, 8), taken.parts());
            let from = place::baselines::below(&mut rng, parts.len().saturating_sub(hosts).max(1));
            let lowest = |&(h, m): &(_, GpuMask)| (h, GpuMask::from_indices(m.iter().take(m.count().div_ceil(2))));
            let gpus = Allocation::new(parts[from..].iter().take(hosts).map(lowest));
            taken = Allocation::new(taken.parts().iter().map(|&(h, m)| (h, m.minus(gpus.mask(h)))));
            request.jobs.push(Job { id: format!("j{id}"), gpus, duty: 1.0, demand_gb_per_s: None });
        }
        request.contention = contention.unwrap_or_default();
        request
    };
    (0..REQUESTS).map(|_| one()).collect()
}

/// Processor time of this process so far, seconds.
fn cpu_s() -> f64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|w| w.parse::<f64>().ok()).map_or(f64::NAN, |ns| ns * 1e-9)
}

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let file = words.iter().position(|w| w == "--answers").map(|i| words.drain(i..).nth(1).expect("a file"));
    let mut answers = String::new();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!(
        "decisions: {REQUESTS} requests, each the least of {REPEATS} runs, gp; ms; load of the machine {}",
        load.trim()
    );
    println!(
        "{:<36} {:>6} {:>9} {:>9} {:>9} {:>9} {:>11}",
        "case", "GPUs", "median", "p90", "max", "mean CPU", "evaluations"
    );
    for (site, cluster) in sites() {
        let mut known = None;
        for (jobs, contention) in
            [("alone", None), ("merge", Some(Contention::Merge)), ("physical", Some(Contention::Physical))]
        {
            for k in ASKED {
                let case = format!("{site} {jobs}");
                let asked = words
                    .iter()
                    .all(|w| case.contains(w.as_str()) || w.strip_prefix("k=").is_some_and(|w| w == k.to_string()));
                if !asked || 2 * k > cluster.gpu_count() {
                    continue;
                }
                let model = known.get_or_insert_with(|| model(&cluster));
                let requests = requests(&cluster, k, contention);
                let (mut times, mut evaluations, mut cpu) = (Vec::new(), 0, 0.0);
                for (i, r) in requests.iter().enumerate() {
                    let begun = cpu_s();
                    let once = |_| {
                        let start = Instant::now();
                        let answer = place::answer(&cluster, model, r);
                        (start.elapsed().as_secs_f64() * 1e3, answer)
                    };
                    let runs: Vec<_> = (0..REPEATS).map(once).collect();
                    cpu += (cpu_s() - begun) * 1e3 / (REPEATS * REQUESTS) as f64;
                    times.push(runs.iter().map(|r| r.0).fold(f64::INFINITY, f64::min));
                    match &runs[0].1 {
                        Ok(a) => {
                            evaluations += a.evaluations;
                            let rule = a.rule.as_ref().map(|r| cluster.gpu_list(&r.allocation));
                            let gpus = |s: &place::exact::Scored| (cluster.gpu_list(&s.allocation), s.score_gb_per_s);
                            let others: Vec<_> = a.runner_ups.iter().map(gpus).collect();
                            writeln!(
                                answers,
                                "{case} {k} {i}: {:?} sd {} alone {} shared {} price {:?} bottleneck {:?} rule {rule:?} others {others:?} ranks {:?}",
                                gpus(&a.choice),
                                a.choice.prediction.std_gb_per_s,
                                a.effect.alone_gb_per_s,
                                a.effect.shared_gb_per_s,
                                a.price,
                                a.bottleneck,
                                a.host_order
                            )
                            .expect("text");
                        }
                        Err(e) => writeln!(answers, "{case} {k} {i}: {e}").expect("text"),
                    }
                }
                times.sort_by(f64::total_cmp);
                let at = |q: f64| stats::nearest_quantile_of_sorted(&times, q);
                let mean = evaluations as usize / REQUESTS;
                println!(
                    "{case:<36} {k:>6} {:>9.3} {:>9.3} {:>9.3} {cpu:>9.3} {mean:>11}",
                    at(0.5),
                    at(0.9),
                    times[REQUESTS - 1]
                );
            }
        }
    }
    if let Some(file) = file {
        std::fs::write(file, answers).expect("writes");
    }
}
