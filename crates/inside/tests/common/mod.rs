//! Runs traffic between emulated GPUs of one host, whose links have scaled-down rates: one process per GPU, every byte checked.
#![allow(dead_code)] // the test and the example use their own parts

use nccl_bench::BenchError;
use nccl_bench::emulation::Emulation;
use route::{Demand, Planner, RoutingNetwork, Rule, builtin};
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A kind of traffic. The busiest link of the optimum needs [`Run::theory_s`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Every pair the same.
    Uniform,
    /// One pair 16 times the others.
    HotPair,
    /// One receiver 8 times the others.
    HotDestination,
    /// One sender 8 times the others.
    HotSource,
    /// The k-th pair in a fixed mixed order 1/k.
    Zipf,
}

impl Traffic {
    /// All kinds.
    pub const ALL: [Traffic; 5] =
        [Traffic::Uniform, Traffic::HotPair, Traffic::HotDestination, Traffic::HotSource, Traffic::Zipf];

    /// The name in tables and arguments.
    pub fn name(self) -> &'static str {
        ["uniform", "hot-pair", "hot-destination", "hot-source", "zipf"][self as usize]
    }

    fn weight(self, ranks: usize, i: usize, j: usize) -> f64 {
        match self {
            _ if i == j => 0.0,
            Traffic::HotPair if (i, j) == (0, 1) => 16.0,
            Traffic::HotDestination if j == 0 => 8.0,
            Traffic::HotSource if i == 0 => 8.0,
            // 37 has no factor in common with the squares of 4 and 8.
            Traffic::Zipf => 1.0 / (1 + (i * ranks + j) * 37 % (ranks * ranks)) as f64,
            _ => 1.0,
        }
    }
}

/// Who gets which share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// The direct link; without one, the path with the fewest GPUs.
    Direct,
    /// Equal shares over the direct link and every path over one peer GPU.
    Stripe,
    /// linkwise's plan.
    Plan,
}

impl Arm {
    /// All arms.
    pub const ALL: [Arm; 3] = [Arm::Direct, Arm::Stripe, Arm::Plan];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        ["direct", "stripe", "plan"][self as usize]
    }
}

/// One host with scaled-down links, and the bytes of a kind of traffic.
#[derive(Debug)]
pub struct Run {
    net: RoutingNetwork,
    demand: Demand,
    /// Emulated bytes per real byte, and emulated rate per real rate.
    scale: f64,
    /// The least time of any walk over the links, seconds.
    pub theory_s: f64,
}

/// Chunks of a ring.
const SLOTS: usize = 12;

/// What a run measured.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Seconds of every round, from the first rank's begin to the last one's end.
    pub rounds_s: Vec<f64>,
    /// Bytes that differ from what was sent.
    pub wrong: u64,
    /// Bytes that were compared.
    pub checked: u64,
}

impl Run {
    /// `cluster`: `mesh4` or `cube8`. `link_mbit`: the emulated rate of the slowest link. `seconds`: what the optimum shall take.
    pub fn new(cluster: &str, traffic: Traffic, link_mbit: f64, seconds: f64) -> Run {
        let net = RoutingNetwork::of(&builtin::cluster(cluster).unwrap(), &Default::default()).unwrap();
        let ranks = net.rank_count();
        let slowest = links(&net).map(|(_, _, rate)| rate).fold(f64::INFINITY, f64::min);
        let scale = link_mbit * 1e6 / 8.0 / (slowest * 1e9);
        let of = |unit: f64| {
            let bytes = (0..ranks * ranks).map(|p| (traffic.weight(ranks, p / ranks, p % ranks) * unit) as u64);
            Demand::from_rows(ranks, bytes.collect()).unwrap()
        };
        let trial = 1e9;
        let demand = of(trial * seconds / route::exact::any_path_optimum_s(&net, &of(trial)).unwrap());
        let theory_s = route::exact::any_path_optimum_s(&net, &demand).unwrap();
        Run { net, demand, scale, theory_s }
    }

    /// Number of GPUs.
    pub fn ranks(&self) -> usize {
        self.net.rank_count()
    }

    /// (sender, receiver, index of the path between the two, real bytes).
    fn shares(&self, arm: Arm) -> Vec<(usize, usize, usize, u64)> {
        let (net, demand) = (&self.net, &self.demand);
        let plan = match arm {
            Arm::Direct => Planner::default().plan_rule(net, demand, Rule::Direct).unwrap(),
            Arm::Plan => Planner::default().plan(net, demand).unwrap(),
            Arm::Stripe => {
                let short = |i: usize, j: usize| {
                    (0..net.path_count(i, j)).filter(move |p| self.nodes(i, j, *p).len() <= 3).collect::<Vec<_>>()
                };
                let equal = |(i, j, bytes): (usize, usize, u64)| {
                    let paths = if short(i, j).is_empty() { vec![0] } else { short(i, j) };
                    let n = paths.len() as u64;
                    paths.into_iter().map(move |p| (i, j, p, bytes / n))
                };
                return demand.pairs().flat_map(equal).collect();
            }
        };
        plan.flows(net, demand).map(|f| (f.src, f.dst, f.path, f.bytes)).collect()
    }

    /// Seconds that the busiest link needs, computed.
    pub fn congestion_s(&self, arm: Arm) -> f64 {
        let mut loads = vec![0.0; self.net.links.len()];
        for (i, j, path, bytes) in self.shares(arm) {
            self.net.path(i, j, path).for_each(|l| loads[l as usize] += bytes as f64);
        }
        let seconds = loads.iter().zip(self.net.seconds_per_byte()).filter(|(b, _)| **b > 0.0).map(|(b, s)| b * s);
        seconds.fold(0.0, f64::max)
    }

    fn nodes(&self, i: usize, j: usize, path: usize) -> Vec<usize> {
        let links = self.net.path(i, j, path).map(|l| &self.net.links[l as usize]);
        [i].into_iter().chain(links.filter(|l| l.from != l.to).map(|l| l.to as usize)).collect()
    }

    fn spec(&self, arm: Arm, rounds: usize, chunk: usize, folder: &Path) -> String {
        let mut text = format!("ranks {}\nchunk {chunk}\nslots {SLOTS}\nrounds {rounds}\n", self.ranks());
        let _ = writeln!(text, "folder {}", folder.display());
        let mut sends = String::new();
        let (mut count, mut pair) = (0, None);
        for (i, j, path, bytes) in self.shares(arm) {
            let bytes = (bytes as f64 * self.scale) as u64;
            let nodes: Vec<String> = self.nodes(i, j, path).iter().map(usize::to_string).collect();
            let _ = writeln!(text, "path {}", nodes.join(" "));
            if pair.replace((i, j)) != Some((i, j)) {
                let _ = write!(sends, "\nsend {i} {j}");
            }
            let _ = write!(sends, " {count}:{bytes}");
            count += 1;
        }
        text + sends.trim_start() + "\n"
    }

    /// Runs the rounds, the first of which is not counted. `Err`: a reason that concerns this machine.
    pub fn run(&self, program: &Path, arm: Arm, rounds: usize, chunk: usize) -> Result<Outcome, BenchError> {
        let job = Job::start(self, program, arm, rounds + 1, chunk)?;
        let mut outcome = Outcome::default();
        let mut ends = vec![(f64::INFINITY, 0.0f64); rounds + 1];
        for (rank, child) in job.children.into_iter().enumerate() {
            let out = child.0.wait_with_output_here();
            assert!(out.status.success(), "rank {rank}: {}", String::from_utf8_lossy(&out.stderr));
            for line in String::from_utf8_lossy(&out.stdout).lines() {
                let words: Vec<f64> = line.split_whitespace().skip(1).map(|w| w.parse().unwrap()).collect();
                let [round, begin, end, checked, wrong] = words[..] else { panic!("{line}") };
                let e = &mut ends[round as usize];
                *e = (e.0.min(begin), e.1.max(end));
                outcome.checked += checked as u64;
                outcome.wrong += wrong as u64;
            }
        }
        outcome.rounds_s = ends[1..].iter().map(|e| e.1 - e.0).collect();
        Ok(outcome)
    }
}

/// The processes of a run.
pub struct Job {
    /// By rank.
    pub children: Vec<Owned>,
    _folder: tempfile::TempDir,
}

/// A process that ends with its owner.
pub struct Owned(pub Process);

/// A started process.
pub struct Process(Option<Child>);

impl Process {
    /// Waits for its end.
    pub fn wait_with_output_here(mut self) -> std::process::Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
    /// Ends it at once.
    pub fn kill(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Job {
    /// Starts one process per GPU.
    pub fn start(run: &Run, program: &Path, arm: Arm, rounds: usize, chunk: usize) -> Result<Job, BenchError> {
        let folder = tempfile::tempdir().unwrap();
        let emulation = Emulation::get_or_compile(&std::env::current_exe().unwrap().with_file_name("emulation"))?;
        let file = folder.path().join("spec");
        std::fs::write(&file, run.spec(arm, rounds, chunk, folder.path())).unwrap();
        let rate = |(from, to, gb_per_s): (u32, u32, f64)| format!("{from}>{to}:{}", gb_per_s * 8e3 * run.scale);
        let rates: Vec<String> = links(&run.net).map(rate).collect();
        let gpus: Vec<String> = (0..run.ranks()).map(|g| format!("0000:{:02x}:00.0", 16 + g)).collect();
        let start = |rank: usize| {
            let child = Command::new(program)
                .args([file.as_os_str(), rank.to_string().as_ref(), rank.to_string().as_ref()])
                .env("LD_PRELOAD", &emulation.preload)
                .env("LINKWISE_EMU_PLAY", "nothing")
                .env("LINKWISE_EMU_BUS_IDS", gpus.join(","))
                .env("LINKWISE_EMU_LINK_MBIT", rates.join(","))
                .env("LINKWISE_EMU_SHARED_MEMORY", folder.path())
                .env_remove("CUDA_VISIBLE_DEVICES")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn();
            Owned(Process(Some(child.unwrap())))
        };
        let children = (0..run.ranks()).map(start).collect();
        Ok(Job { children, _folder: folder })
    }
}

/// The links between GPUs: from, to, GB/s.
fn links(net: &RoutingNetwork) -> impl Iterator<Item = (u32, u32, f64)> + '_ {
    let ranks = net.rank_count() as u32;
    let between = net.links.iter().filter(move |l| l.from < ranks && l.to < ranks && l.from != l.to);
    between.filter(|l| l.capacity_gb_per_s > 0.0).map(|l| (l.from, l.to, l.capacity_gb_per_s))
}

/// The middle one.
pub fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
