//! The requests of a replay.

use place::Job;
use place::baselines::{below, random};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use topology::{Allocation, Cluster};
use truths::Truth;

/// One request of the replay.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Requested GPUs.
    pub k: usize,
    /// Free GPUs.
    pub free: Allocation,
    /// Jobs on the other GPUs.
    pub jobs: Vec<Job>,
}

/// Load on the GPUs that are not free (BandPilot, version 4: one job on all of them).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// No communicating job; methods do not see the load
    #[default]
    None,
    /// A job that does not communicate; methods see it
    Idle,
    /// A job that uses 25 to 75 % of its bandwidth
    Common,
    /// A job that uses all of its bandwidth
    Intensive,
}

impl Load {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Load::None => "none",
            Load::Idle => "idle",
            Load::Common => "common",
            Load::Intensive => "intensive",
        }
    }
}

/// For k from 2 to all GPUs (or `k_max`), `per_k` random availabilities each: the number of free GPUs is uniform
/// between k and all, then a random subset of that size.
pub fn scenarios(cluster: &Cluster, per_k: usize, seed: u64) -> Vec<Scenario> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5ce7_a210);
    let all = cluster.usable();
    let n = all.gpu_count();
    let mut out = Vec::new();
    for k in 2..=n {
        for _ in 0..per_k {
            let free = k + below(&mut rng, n - k + 1);
            let free = random(&all, free, &mut rng).unwrap_or_default();
            out.push(Scenario { k, free, jobs: Vec::new() });
        }
    }
    out
}

/// Puts one job on all GPUs that are not free. `false` if the job's bandwidth has no row: the request must be left out.
pub fn load(truth: &dyn Truth, all: &Allocation, scenario: &mut Scenario, load: Load, seed: u64) -> bool {
    if load == Load::None {
        return true;
    }
    let taken = all.parts().iter().map(|&(h, m)| (h, m.minus(scenario.free.mask(h))));
    let gpus = Allocation::new(taken.filter(|t| !t.1.is_empty()));
    if gpus.is_empty() {
        return true;
    }
    let Some(alone) = truth.busbw_gb_per_s(&gpus) else { return false };
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x10ad);
    let part = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let duty = match load {
        Load::None | Load::Idle => 0.0,
        Load::Common => 0.25 + 0.5 * part,
        Load::Intensive => 1.0,
    };
    scenario.jobs.push(Job { id: "background".into(), gpus, demand_gb_per_s: Some(alone * duty), duty: 1.0 });
    true
}
