//! Every search by its name, one file per idea.
//!
//! | floor | files |
//! |---|---|
//! | exact, and for clusters of any size | [`crate::exact`], [`oracle`], [`crate::threshold`] |
//! | the papers' | [`eha`], [`pts`], [`bandpilot`], [`bandpilot_v4`], [`litegd`] |
//! | what people get today, by topology alone | [`random`], [`numa`], [`topo`], [`topo_greedy`], [`slurm`] |
//! | baselines that see bandwidth | [`bw_greedy`], [`cascore`] |
//!
//! A search sees the request through an [`Objective`] and judges every step in one batch. All but `exact` return one allocation:
//! that is what their sources describe.

pub mod bandpilot;
pub mod bandpilot_v4;
pub mod bw_greedy;
pub mod cascore;
pub mod eha;
mod hosts;
mod links;
pub mod litegd;
mod neighbours;
pub mod numa;
pub mod oracle;
pub mod pts;
pub mod random;
pub mod slurm;
pub mod topo;
pub mod topo_greedy;

use crate::exact::{Found, Scored, TIE};
use crate::objective::Objective;
use crate::request::{Refusal, Request};
use predict::{Candidates, Part};
use topology::{Allocation, Cluster};

pub use bandpilot::BandPilot;
pub use bandpilot_v4::BandPilotV4;
pub use bw_greedy::BwGreedy;
pub use cascore::CasCore;
pub use eha::Eha;
pub use litegd::LiteGd;
pub use oracle::Oracle;
pub use pts::Pts;
pub use random::Random;

/// Most candidates that one stage of a search of this folder judges: beyond it is refused before the stage begins. About 1,400 free GPUs for
/// those whose work grows with their square, a second with the bound and 100 MB for all pairs in one batch.
pub const EVALUATIONS_MAX: u64 = 1_000_000;

/// A way to choose GPUs.
///
/// A search maximises [`Objective::scores`] over the allocations that satisfy the request; deterministic, a seed is part of the search.
pub trait Search: Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// The best `keep` allocations that it finds, best first.
    fn search(&self, objective: &Objective, keep: usize) -> Result<Found, Refusal>;
}

/// Exact enumeration.
pub struct Exact;

impl Search for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }
    fn search(&self, objective: &Objective, keep: usize) -> Result<Found, Refusal> {
        crate::exact::search(objective, keep)
    }
}

/// A choice by topology alone, which never asks the model.
pub struct Rule {
    name: &'static str,
    choose: fn(&Cluster, &Allocation, usize) -> Option<Allocation>,
}

impl Search for Rule {
    fn name(&self) -> &'static str {
        self.name
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<Found, Refusal> {
        let free = admit(objective, self.name)?;
        let k = objective.request.gpus;
        let chosen = (self.choose)(objective.cluster, &free, k);
        Ok(one(objective, chosen.ok_or_else(|| not_enough(objective.request, &free))?, objective.evaluations()))
    }
}

/// The rules.
const RULES: [Rule; 6] = [
    Rule { name: "default", choose: numa::choose },
    Rule { name: "topo", choose: topo::choose },
    Rule { name: "topo-v4", choose: topo::choose_v4 },
    Rule { name: "topo-greedy", choose: topo_greedy::choose },
    Rule { name: "slurm-bestfit", choose: slurm::best_fit },
    Rule { name: "slurm-topo", choose: slurm::tree },
];

/// Names that [`by_name`] knows, with what each is.
pub const NAMES: &[(&str, &str)] = &[
    ("auto", "exact where few enough combinations exist, threshold beyond"),
    ("exact", "every count vector with the GPUs that can matter"),
    ("threshold", "the best above thresholds of intra and NIC bandwidth, for clusters of any size"),
    (
        "oracle",
        "exact for any model, also with other jobs: every subset where few GPUs are free, else every split with every GPU set that can matter",
    ),
    ("bandpilot", "BandPilot: the better of eha and pts"),
    (
        "bandpilot-v4",
        "BandPilot's newer form: coarse stage over hosts and pods, pts only where past requests say that it helps",
    ),
    ("eha", "BandPilot's equilibrium-driven heuristic: one host if one fits, else the fewest hosts, evenly filled"),
    ("pts", "BandPilot's pruned tree search: drops the GPU that hurts most, one by one"),
    ("litegd", "LiteGD's bidirectional tree search with insertion: the better of dropping and adding GPUs one by one"),
    ("random", "free GPUs, drawn evenly"),
    ("default", "nearest by NUMA node, then by host; the freest first"),
    ("topo", "the best-connected GPUs by link labels on one host, else the fewest hosts, the freest first"),
    ("topo-v4", "the best-connected set of the fewest hosts, filled greedily by link labels"),
    ("topo-greedy", "grows from the best-linked pair by link labels"),
    ("slurm-bestfit", "Slurm's cons_tres: tightest run of nodes, tightest node"),
    ("slurm-topo", "Slurm's topology/tree: lowest switch that fits, tightest leaf first"),
    ("bw-greedy", "grows from the best pair by predicted bandwidths of pairs"),
    ("cascore", "compact host sets, re-ranked by what running jobs leave"),
];

/// The search of a name. `seed` is for those that draw lots.
pub fn by_name(name: &str, seed: u64) -> Option<Box<dyn Search>> {
    Some(match name {
        "auto" => Box::new(crate::threshold::Auto),
        "exact" => Box::new(Exact),
        "threshold" => Box::new(crate::threshold::Threshold),
        "oracle" => Box::new(Oracle),
        "bandpilot" => Box::new(BandPilot),
        "bandpilot-v4" => Box::new(bandpilot_v4::Serving::default()),
        "eha" => Box::new(Eha),
        "pts" => Box::new(Pts),
        "litegd" => Box::new(LiteGd),
        "random" => Box::new(Random { seed }),
        "bw-greedy" => Box::new(BwGreedy),
        "cascore" => Box::new(CasCore),
        _ => Box::new(RULES.into_iter().find(|r| r.name == name)?),
    })
}

/// The GPUs that a search may choose from, if it can serve the request at all: all but `exact` and `oracle` choose any split of k GPUs.
fn admit(objective: &Objective, search: &'static str) -> Result<Allocation, Refusal> {
    let r = objective.request;
    if r.asks_shape() {
        let what = match (&r.constraints.hosts_max, r.constraints.gpus_per_host_min) {
            _ if !r.pods.is_empty() => "pods",
            (_, 2..) => "a least number of GPUs per host",
            _ => "a most number of hosts",
        };
        return Err(Refusal::Unsupported { search, what });
    }
    r.usable(objective.cluster)
}

fn not_enough(request: &Request, free: &Allocation) -> Refusal {
    Refusal::NotEnough { wanted: request.gpus, free: free.gpu_count() }
}

/// Refuses what would judge more than [`EVALUATIONS_MAX`] candidates.
fn affordable(search: &'static str, evaluations: u128) -> Result<(), Refusal> {
    if evaluations > u128::from(EVALUATIONS_MAX) {
        return Err(Refusal::SearchTooLarge { search, evaluations, limit: EVALUATIONS_MAX });
    }
    Ok(())
}

/// An allocation with what the model expects of it and what it is worth.
pub fn scored(objective: &Objective, allocation: Allocation) -> Scored {
    let parts: Vec<Part> = allocation.parts().iter().map(|&(h, m)| objective.part(h, m)).collect();
    Scored {
        elsewhere: false,
        prediction: objective.model.predict(objective.request.size, &parts),
        score_gb_per_s: objective.effect(&parts).score(objective.request.loss_weight),
        allocation,
    }
}

/// What a search that found `allocation` returns. `before`: evaluations of the objective when it began.
fn one(objective: &Objective, allocation: Allocation, before: u64) -> Found {
    let evaluations = objective.evaluations() - before;
    Found { best: vec![scored(objective, allocation)], evaluations }
}

/// The largest score; the first of those that tie. A score that is no number loses against any that is one.
fn argmax(scores: &[f64]) -> Option<usize> {
    let beats =
        |v: f64, best: f64| if best.is_finite() { v > best + TIE * best.abs() } else { v > best || best.is_nan() };
    let mut best: Option<usize> = None;
    for (i, v) in scores.iter().enumerate() {
        if best.is_none_or(|b| beats(*v, scores[b])) {
            best = Some(i);
        }
    }
    best
}

/// The best of some allocations, in one batch; the first of those that tie.
fn better(objective: &Objective, allocations: &[Allocation]) -> Option<usize> {
    let candidates = Candidates::of(objective.table(), allocations);
    let mut scores = Vec::new();
    objective.scores(&candidates, &mut scores);
    argmax(&scores)
}
