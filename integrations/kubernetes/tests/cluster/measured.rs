//! The same trace of gangs placed by linkwise and by the stock scheduler: rates, latencies, writes, predicted bandwidth, waiting, fragmentation.
//!
//! The bandwidths are **predictions** of linkwise's cold model (NCCL's own decisions on the links of the cluster file), for both placements alike. A pod
//! runs for its time from when it is bound, also if the others of its gang wait: this favours the stock scheduler, whose gangs start in parts.

use crate::calls::{Calls, quantile};
use crate::common::*;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use lab_kubernetes::{DRIVER, Kubelet, Life, gpu_name, node_name};
use linkwise_kubernetes::names::{GANG, GATE};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A gang of the trace.
#[derive(Clone, Debug)]
struct Job {
    name: String,
    /// GPUs of every pod.
    pods: Vec<usize>,
    /// When it comes, from the begin.
    at: Duration,
    /// How long its pods run.
    seconds: f64,
}

#[derive(Debug, Default)]
struct Figures {
    seconds: f64,
    pods: usize,
    waits: Vec<f64>,
    predicted: Vec<f64>,
    /// Share of the free GPUs that are on partly used nodes, at every look.
    broken: Vec<f64>,
}

fn number(name: &str, none: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(none)
}

/// A trace: gangs of eight shapes, two pods on average, in random order.
fn trace(gangs: usize, pods_a_minute: usize, prefix: &str) -> Vec<Job> {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut below = |n: u64| random.next_u64() % n;
    let shapes: [&[usize]; 8] = [&[1], &[2], &[4], &[8], &[4, 4], &[8, 8], &[2, 2, 2, 2], &[8, 8, 8, 8]];
    let mut at = Duration::ZERO;
    (0..gangs)
        .map(|i| {
            at += Duration::from_millis(below(2 * 60_000 * 2 / pods_a_minute.max(1) as u64));
            let pods = shapes[below(8) as usize].to_vec();
            Job { name: format!("{prefix}{i}"), pods, at, seconds: 2.0 + below(7000) as f64 / 1000.0 }
        })
        .collect()
}

/// Claims of others that hold 2, 4 or 6 GPUs of so many percent of the nodes: a site in use.
async fn hold(lab: &Lab, percent: usize) {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let mut below = |n: usize| (random.next_u64() % n as u64) as usize;
    for node in 0..lab.nodes {
        let (is_held, gpus) = (below(100) < percent, 2 + 2 * below(3));
        let mut all: Vec<usize> = (0..lab.gpus).collect();
        (0..gpus).for_each(|i| all.swap(i, i + below(lab.gpus - i)));
        if !is_held {
            continue;
        }
        let (name, pool) = (format!("held-{node}"), node_name(node));
        make(&lab.claims("b"), gpu_claim(&name, gpus)).await;
        let device =
            |g: &usize| json!({"request": "gpu", "driver": DRIVER, "pool": pool, "device": gpu_name(*g, lab.gpus)});
        let results: Vec<_> = all[..gpus].iter().map(device).collect();
        let status = json!({"status": {"allocation": {"allocationTimestamp": "2026-01-01T00:00:00Z", "devices": {"results": results},
            "nodeSelector": linkwise_kubernetes::claim::on(&pool)}}});
        lab.claims("b").patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    }
}

#[test]
#[ignore = "slow: `make bench-kubernetes` runs it"]
fn a_trace_is_placed_by_linkwise_and_by_the_stock_scheduler() {
    let name = "a_trace_is_placed_by_linkwise_and_by_the_stock_scheduler";
    let nodes = number("LINKWISE_TEST_KUBERNETES_NODES", 16);
    let gangs = number("LINKWISE_TEST_KUBERNETES_GANGS", 100);
    let rate = number("LINKWISE_TEST_KUBERNETES_PODS_A_MINUTE", 240);
    let held = number("LINKWISE_TEST_KUBERNETES_HELD", 0);
    let Some(lab) = Lab::start(name, nodes) else { return };
    let handle = lab.runtime.handle().clone();
    let _kubelet = handle.block_on(async { Kubelet::start(lab.client.clone(), Life::Forever) });
    handle.block_on(hold(&lab, held));
    println!(
        "{nodes} nodes of 8 simulated GPUs, of which {held} % have GPUs held by others; {gangs} gangs, {rate} pods a minute come; Kubernetes {}",
        lab.plane.release()
    );
    for (prefix, gated) in [("s", false), ("w", true)] {
        let calls = Arc::new(Calls::default());
        let _in = handle.enter(); // the client makes a task
        let controller = gated.then(|| Controller::start(&lab, calls.client(lab.acting.clone()), lab.settings()));
        let mut f = play(&lab, &trace(gangs, rate, prefix), gated);
        let mean = |v: &[f64]| if v.is_empty() { 0.0 } else { v.iter().sum::<f64>() / v.len() as f64 };
        println!(
            "{}: {:.0} pods a minute; gangs bound after mean {:.2} s, median {:.2} s, longest {:.2} s; predicted busbw of {} gangs over 1 GPU mean {:.1} GB/s, \
             lowest tenth up to {:.1} GB/s; free GPUs on partly used nodes {:.0} %",
            if gated { "linkwise " } else { "scheduler" },
            60.0 * f.pods as f64 / f.seconds,
            mean(&f.waits),
            quantile(&mut f.waits.clone(), 0.5),
            quantile(&mut f.waits.clone(), 1.0),
            f.predicted.len(),
            mean(&f.predicted),
            quantile(&mut f.predicted, 0.1),
            100.0 * mean(&f.broken),
        );
        if let Some(c) = &controller {
            let of = &c.counters;
            let placed = of.placed.load(Relaxed).max(1);
            let ms = |total: u64, n: u64| total as f64 / 1000.0 / n.max(1) as f64;
            let [median, most] = calls.write_ms();
            println!(
                "linkwise : {} decisions for {placed} gangs, {:.1} ms each, longest {:.1} ms; claims {:.1} ms, release {:.1} ms a gang; a write median {median:.1} ms, \
                 99 % within {most:.1} ms; leaders {}",
                of.asked.load(Relaxed),
                ms(of.ask_us.load(Relaxed), of.asked.load(Relaxed)),
                of.ask_us_max.load(Relaxed) as f64 / 1000.0,
                ms(of.allocate_us.load(Relaxed), placed),
                ms(of.release_us.load(Relaxed), placed),
                of.terms.load(Relaxed),
            );
            println!(
                "linkwise : requests a gang of {:.1} pods: {}",
                f.pods as f64 / gangs as f64,
                calls.of_a_gang(placed)
            );
            handle.block_on(until("the jobs are released", || async { lab.linkwise.jobs().is_empty().then_some(()) }));
        }
    }
}

/// Plays a trace to its end.
fn play(lab: &Lab, trace: &[Job], gated: bool) -> Figures {
    let handle = lab.runtime.handle().clone();
    let begin = Instant::now();
    let mut figures = Figures::default();
    let others = handle.block_on(lab.claims("b").list(&ListParams::default())).unwrap().items;
    let mut next = 0;
    let mut made: BTreeMap<&str, Instant> = BTreeMap::new();
    let mut bound: BTreeSet<String> = BTreeSet::new();
    while figures.waits.len() < trace.len() || !made.is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(300 + 10 * trace.len() as u64), "the trace does not end");
        while let Some(job) = trace.get(next).filter(|j| j.at <= begin.elapsed()) {
            handle.block_on(async {
                for (i, gpus) in job.pods.iter().enumerate() {
                    let of = format!("{}-{i}", job.name);
                    make(&lab.claims("a"), gpu_claim(&of, *gpus)).await;
                    let gates = if gated { json!([{"name": GATE}]) } else { json!([]) };
                    let mut p = pod(&of, &job.name, job.pods.len(), Some(&of), json!({"schedulingGates": gates}));
                    p["metadata"]["annotations"] = json!({"lab/seconds": job.seconds.to_string()});
                    make(&lab.pods("a"), p).await;
                }
            });
            made.insert(&job.name, Instant::now());
            next += 1;
        }
        let pods = handle.block_on(lab.pods("a").list(&ListParams::default())).unwrap().items;
        let claims = handle.block_on(lab.claims("a").list(&ListParams::default())).unwrap().items;
        let mut by_gang: BTreeMap<String, Vec<&Pod>> = BTreeMap::new();
        for pod in &pods {
            by_gang.entry(pod.labels()[GANG].clone()).or_default().push(pod);
        }
        let mut used = vec![0_usize; lab.nodes];
        for device in claims.iter().chain(&others).flat_map(devices) {
            let node: usize = device[1..].split('/').next().unwrap().parse().unwrap();
            used[node] += 1;
        }
        let free: usize = used.iter().map(|u| lab.gpus - u).sum();
        if free > 0 && next > 0 {
            let partly: usize = used.iter().filter(|u| **u > 0).map(|u| lab.gpus - u).sum();
            figures.broken.push(partly as f64 / free as f64);
        }
        let open: Vec<_> = trace.iter().filter(|j| made.contains_key(j.name.as_str())).collect();
        for job in open {
            let pods = by_gang.get(&job.name).map(Vec::as_slice).unwrap_or_default();
            let all = |done: &dyn Fn(&Pod) -> bool| pods.len() == job.pods.len() && pods.iter().all(|p| done(p));
            if all(&|p| p.spec.as_ref().unwrap().node_name.is_some()) && bound.insert(job.name.clone()) {
                figures.waits.push(made[job.name.as_str()].elapsed().as_secs_f64());
                figures.pods += pods.len();
                figures.seconds = begin.elapsed().as_secs_f64();
                let own: BTreeSet<String> = claims
                    .iter()
                    .filter(|c| c.name_any().rsplit_once('-').is_some_and(|(gang, _)| gang == job.name))
                    .flat_map(devices)
                    .collect();
                if own.len() > 1 {
                    figures.predicted.push(predicted(lab, &own));
                }
            }
            if all(&linkwise_kubernetes::plan::is_over) {
                handle.block_on(async {
                    for i in 0..job.pods.len() {
                        let of = format!("{}-{i}", job.name);
                        delete_pod(lab, "a", &of).await;
                        let _ = lab.claims("a").delete(&of, &Default::default()).await;
                    }
                });
                made.remove(job.name.as_str());
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    figures
}

/// The server's prediction for devices, GB/s.
fn predicted(lab: &Lab, devices: &BTreeSet<String>) -> f64 {
    let name = |device: &String| {
        let (node, device) = device.split_once('/').unwrap();
        let index = (0..8).find(|g| lab_kubernetes::gpu_name(*g, 8) == device).unwrap();
        format!("{node}:{index}")
    };
    let gpus: Vec<String> = devices.iter().map(name).collect();
    let answer = lab.linkwise.ask("POST", "/v1/explain", &json!({ "gpus": gpus }).to_string());
    answer["predicted_busbw_gb_per_s"].as_f64().unwrap_or_else(|| panic!("{answer}"))
}
