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

use nccl_bench::bytes::{BytesCall, BytesSpec, HostPlace, Traffic};
use nccl_bench::{Bench, SimulatedNode};
use netns::NetBox;
use rand::{RngExt, SeedableRng};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use topology::{Cluster, Host, HostId, catalog};

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

/// Bytes from rank to rank, scaled so that the busiest host sends or receives `mb` megabytes.
fn matrix(o: &Options, case: &str) -> Vec<Vec<u64>> {
    let n = o.hosts * o.local;
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let host = |r: usize| r / o.local;
    let first = |r: usize| r.is_multiple_of(o.local) && host(r) < 2;
    let mut m = vec![vec![0.0; n]; n];
    for (i, row) in m.iter_mut().enumerate() {
        for (j, v) in row.iter_mut().enumerate().filter(|(j, _)| host(*j) != host(i)) {
            *v = match case {
                "hot-destination" => {
                    if first(j) {
                        8.0
                    } else {
                        0.4
                    }
                }
                "hot-source" => {
                    if first(i) {
                        8.0
                    } else {
                        0.4
                    }
                }
                "hot-pair" => {
                    if first(i) && first(j) {
                        40.0
                    } else {
                        0.2
                    }
                }
                "zipf" => rng.random_range(1e-3..1.0f64).powf(-1.0 / 0.9),
                _ => 1.0,
            };
        }
    }
    let of = |h: usize, sends: bool| -> f64 {
        let pairs = (0..n).flat_map(|i| (0..n).map(move |j| (i, j)));
        pairs.filter(|(i, j)| host(if sends { *i } else { *j }) == h).map(|(i, j)| m[i][j]).sum()
    };
    let top = (0..o.hosts).flat_map(|h| [of(h, true), of(h, false)]).fold(0.0, f64::max);
    m.iter().map(|r| r.iter().map(|v| (v / top * o.mb * 1e6) as u64 / 4 * 4).collect()).collect()
}

/// The least time of a case, seconds: on rails, the bytes of the busiest host over all its rails; without a switch, the optimum of a linear program
/// over all walks (`crates/route`).
fn theory(o: &Options, case: &str, netbox: &NetBox) -> Result<f64, String> {
    let rate = f64::from(o.mbit) * 1e6 / 8.0 / OVERHEAD;
    if o.shape == "rails" {
        return Ok(o.mb * 1e6 / (rate * o.rails as f64));
    }
    let mut cluster = route::builtin::cluster("mesh4")
        .filter(|_| o.hosts <= 4 && o.local == 1)
        .ok_or("without a switch: 3x1 or 4x1")?;
    let kind = cluster.types.first_mut().ok_or("no host type")?;
    let n = kind.gpu_count();
    let cell = |i: usize, j: usize| match netbox.nic_to(i, j) {
        Some(_) if i != j => topology::Bandwidth::from_gb_per_s(rate / 1e6),
        _ => topology::Bandwidth::ZERO,
    };
    kind.p2p = Some((0..n).map(|i| (0..n).map(|j| cell(i, j)).collect()).collect());
    let net = route::RoutingNetwork::of(&cluster, &route::RoutingOptions::default()).map_err(|e| e.to_string())?;
    let mut demand = route::Demand::new(n).map_err(|e| e.to_string())?;
    for (i, row) in matrix(o, case).iter().enumerate() {
        for (j, bytes) in row.iter().enumerate() {
            demand.set(i, j, *bytes).map_err(|e| e.to_string())?;
        }
    }
    // The network's rates are in units of 1000 of the box's.
    route::exact::any_path_optimum_s(&net, &demand).map(|s| s * 1e3).map_err(|e| e.to_string())
}

fn spec(o: &Options, case: &str, arm: &str, netbox: &NetBox) -> Result<BytesSpec, String> {
    let t = catalog::host_type("hgx-h100").ok_or("no host type")?;
    let cluster = Cluster { name: "bench".into(), types: vec![t], ..Cluster::default() };
    let mut s = BytesSpec::new(cluster, Vec::new(), o.version.parse()?);
    let rails: Vec<&str> = (0..netbox.nics(0)).map(|r| netbox.interface(0, r)).collect();
    for h in 0..o.hosts {
        s.cluster.hosts.push(Host { name: format!("host{h}"), ..Host::default() });
        let gpus = (0..o.local as u8).collect();
        s.nodes.push(SimulatedNode { host: HostId(h as u32), gpus, nvlink_domain: None });
        let nice = o.nice.to_string();
        let prefix = ["nice", "-n", &nice, "ip", "netns", "exec", netbox.namespace(h)].map(str::to_owned).to_vec();
        let own: Vec<&str> = (0..netbox.nics(h)).map(|r| netbox.interface(h, r)).collect();
        let env = vec![("LINKWISE_NET_RAILS".into(), own.join(","))];
        s.places.push(HostPlace { prefix, env, ..HostPlace::default() });
    }
    s.env.push(("NCCL_DEBUG".into(), "INFO".into()));
    s.interfaces = if o.shape == "rails" { rails.join(",") } else { "mgmt".into() };
    match arm {
        "sockets" => {}
        "sockets-best" => {
            s.env.push(("NCCL_SOCKET_NTHREADS".into(), "2".into()));
            s.env.push(("NCCL_NSOCKS_PERTHREAD".into(), "4".into()));
        }
        "linkwise" | "linkwise-alone" | "linkwise-direct" | "linkwise-greedy" | "source-rail" | "stripe" => {
            if o.shape == "rails" {
                s.interfaces = rails[0].into();
            } else {
                s.env.push(("LINKWISE_NET_RELAY".into(), if arm == "linkwise-direct" { "0" } else { "1" }.into()));
                s.env.push(("LINKWISE_TOKEN".into(), "bench".into()));
            }
            // What sites have without adaptive paths: every message on the rail of its device, or in equal parts over all rails.
            let plan = match arm {
                "source-rail" => Some("* * home 1\n"),
                "stripe" => Some("* * * 1\n"),
                _ => None,
            };
            if let Some(text) = plan {
                let file = std::env::temp_dir().join(format!("bench-net-{}-{arm}", std::process::id()));
                std::fs::write(&file, text).map_err(|e| e.to_string())?;
                s.env.push(("LINKWISE_NET_PLAN".into(), file.display().to_string()));
            } else if arm == "linkwise-greedy" {
                s.env.push(("LINKWISE_NET_PLAN".into(), "off".into()));
            }
            s.net_plugin = Some(o.plugin.clone());
            s.env.push(("LINKWISE_NET".into(), "tcp".into()));
            s.env.push(("LINKWISE_NET_SHARE".into(), if arm == "linkwise-alone" { "0" } else { "1" }.into()));
        }
        _ => {
            return Err(format!(
                "`{arm}` is none of sockets, sockets-best, source-rail, stripe, linkwise, linkwise-alone, linkwise-direct, linkwise-greedy"
            ));
        }
    }
    s.calls.push(BytesCall { repetitions: o.repetitions, ..BytesCall::new(Traffic::SendRecv(matrix(o, case))) });
    Ok(s)
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
    let done: std::collections::HashMap<String, (Vec<f64>, u64)> = before
        .lines()
        .filter_map(|l| serde_json::from_str::<(String, Vec<f64>, u64)>(l).ok())
        .map(|(k, t, w)| (k, (t, w)))
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
        let mut wrong = 0;
        for round in 0..o.rounds {
            for (a, arm) in o.arms.iter().enumerate() {
                let key = format!("{} {case} {arm} {round}", o.tag);
                if let Some((before, w)) = done.get(&key) {
                    times[a].extend_from_slice(before);
                    wrong += w;
                    continue;
                }
                let spec = spec(&o, case, arm, &netbox)?;
                let stop = AtomicBool::new(false);
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
                let counted = &all[1.min(all.len() - 1)..];
                times[a].extend_from_slice(counted);
                if let Some(path) = &o.results {
                    let line = serde_json::json!([key, counted, wrong_now]);
                    let mut file =
                        std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(|e| e.to_string())?;
                    writeln!(file, "{line}").map_err(|e| e.to_string())?;
                }
            }
        }
        let text: Vec<String> =
            o.arms.iter().zip(&times).map(|(a, t)| format!("{a} {:.2}", stats::median_or(t, f64::NAN))).collect();
        println!("{case:16} theory {theory:.3} s   {}   wrong bytes {wrong}", text.join("   "));
    }
    Ok(())
}
