//! What is asked for, and why it may be refused.

use topology::{Allocation, Bytes, HostId};

/// A request for GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// How many GPUs, 1 or more; with `pods` their sum.
    pub gpus: usize,
    /// The GPUs to choose from.
    pub free: Allocation,
    /// The message size to optimise for.
    pub size: Bytes,
    /// GPUs of each pod; a pod lies on one host, several may share a host. Empty: any split will do.
    pub pods: Vec<usize>,
    /// What else must hold.
    pub constraints: Constraints,
    /// Jobs that run beside this one.
    pub jobs: Vec<Job>,
    /// How jobs share what they share.
    pub contention: Contention,
    /// What a GB/s that running jobs lose counts against one that the new job gets; 0: they do not matter.
    pub loss_weight: f64,
}

impl Request {
    /// `gpus` of the free GPUs, nothing else asked.
    pub fn new(gpus: usize, free: Allocation, size: Bytes) -> Self {
        Request {
            gpus,
            free,
            size,
            pods: Vec::new(),
            constraints: Constraints::default(),
            jobs: Vec::new(),
            contention: Contention::default(),
            loss_weight: 0.0,
        }
    }
}

/// What the chosen GPUs must satisfy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints {
    /// Only these hosts; empty: all.
    pub only_hosts: Vec<HostId>,
    /// Not these hosts.
    pub excluded_hosts: Vec<HostId>,
    /// Only hosts whose GPUs are of this model or whose type has this name.
    pub gpu_type: Option<String>,
    /// Fewest GPUs on any host that takes part; 0 and 1 ask nothing.
    pub gpus_per_host_min: usize,
    /// Most hosts.
    pub hosts_max: Option<usize>,
    /// No NIC may be shared with a running job.
    pub exclusive_nics: bool,
}

/// A job that runs while the new one will.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name.
    pub id: String,
    /// Its GPUs.
    pub gpus: Allocation,
    /// The bus bandwidth that it uses, GB/s; None: what the model expects of it alone.
    pub demand_gb_per_s: Option<f64>,
}

/// How jobs share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contention {
    /// BandPilot's virtual merge: jobs that span hosts and meet on one share the smaller bandwidth of the two merged sets in proportion
    /// to their demands.
    #[default]
    Merge,
    /// Flows of all jobs over the NICs and links that they share, max-min fair.
    Physical,
}

/// Why a request cannot be met. `code` is stable for scripts.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// `gpus` is 0.
    #[error("a request needs at least one GPU")]
    NoGpus,
    /// Not enough GPUs are free.
    #[error("{wanted} GPUs are wanted and {free} are free")]
    NotEnough {
        /// Asked for.
        wanted: usize,
        /// There.
        free: usize,
    },
    /// The search space is beyond what exact search takes.
    #[error(
        "exact search would combine {combinations} candidates (limit {limit}); use --search threshold \
         (or auto, the default), or offer fewer hosts with --free"
    )]
    TooLarge {
        /// Count vectors times masks.
        combinations: u128,
        /// The limit.
        limit: u64,
    },
}

impl Refusal {
    /// Stable code for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::NoGpus => "no_gpus",
            Refusal::NotEnough { .. } => "not_enough_free",
            Refusal::TooLarge { .. } => "too_large_for_exact",
        }
    }
}
