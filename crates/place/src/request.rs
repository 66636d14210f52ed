//! Requests for GPUs, and their checks.

use crate::groups::Group;
use crate::merge::MergeRule;
use crate::policy::Slack;
pub use crate::refusal::Refusal;
use std::collections::{HashMap, HashSet};
use topology::{Allocation, Bytes, Cluster, GpuId, GpuMask, HostId};

/// Maximum number of pods of a request.
pub const PODS_MAX: usize = 1 << 16;
/// Maximum number of running jobs that a request names.
pub const JOBS_MAX: usize = 1 << 14;

/// A request for GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Number of GPUs, 1 or more; with `pods` the sum of the pods.
    pub gpus: usize,
    /// The GPUs to choose from.
    pub free: Allocation,
    /// The message size to optimise for.
    pub size: Bytes,
    /// GPUs of each pod. A pod lies on one host; several pods may share a host. Empty: any split is allowed.
    pub pods: Vec<usize>,
    /// Kinds of groups of ranks; the first is the lowest digit of a rank. Empty: all ranks communicate with all.
    pub groups: Vec<Group>,
    /// Further constraints.
    pub constraints: Constraints,
    /// Running jobs.
    pub jobs: Vec<Job>,
    /// How jobs share links.
    pub contention: Contention,
    /// Weight of bandwidth lost by running jobs relative to the new job's; 0 ignores it.
    pub loss_weight: f64,
    /// The bandwidth that the answer may give up for fewer hosts, fewer switches, an even split and entirely free
    /// hosts.
    pub slack: Slack,
}

impl Request {
    /// A request for `gpus` of the free GPUs without further constraints.
    pub fn new(gpus: usize, free: Allocation, size: Bytes) -> Self {
        Request {
            gpus,
            free,
            size,
            pods: Vec::new(),
            groups: Vec::new(),
            constraints: Constraints::default(),
            jobs: Vec::new(),
            contention: Contention::default(),
            loss_weight: 0.0,
            slack: Slack::default(),
        }
    }

    /// Checks the request: hosts and GPUs exist, the pods add up, limits are kept, numbers are finite and in range,
    /// jobs share no GPU with each other or with the free GPUs. O(pods + hosts of free GPUs, jobs and constraints).
    pub fn check(&self, cluster: &Cluster) -> Result<(), Refusal> {
        if self.gpus == 0 {
            return Err(Refusal::NoGpus);
        }
        if self.pods.len() > PODS_MAX {
            return Err(Refusal::TooManyPods { pods: self.pods.len() });
        }
        if let Some(pod) = self.pods.iter().position(|p| *p == 0) {
            return Err(Refusal::EmptyPod { pod });
        }
        let sum = self.pods.iter().fold(0usize, |s, p| s.saturating_add(*p));
        if !self.pods.is_empty() && sum != self.gpus {
            return Err(Refusal::PodsSum { pods: sum, gpus: self.gpus });
        }
        self.check_groups()?;
        if self.constraints.hosts_max == Some(0) {
            return Err(Refusal::NoHostsAllowed);
        }
        if self.constraints.gpus_per_host_max == Some(0) {
            return Err(Refusal::NoGpusPerHost);
        }
        if self.constraints.switches_max == Some(0) {
            return Err(Refusal::NoSwitchesAllowed);
        }
        self.constraints.levels(cluster)?;
        if let Split::PerHost(each) = self.constraints.split
            && (each == 0 || !self.gpus.is_multiple_of(each))
        {
            return Err(Refusal::PerHostDoesNotDivide { gpus: self.gpus, per_host: each });
        }
        if !(self.loss_weight >= 0.0 && self.loss_weight.is_finite()) {
            return Err(Refusal::BadLossWeight { loss_weight: self.loss_weight });
        }
        known(cluster, &self.free, "`free`")?;
        let c = &self.constraints;
        for (hosts, what) in [(&c.only_hosts, "`only_hosts`"), (&c.excluded_hosts, "`excluded_hosts`")] {
            hosts.iter().try_for_each(|h| known_host(cluster, *h, what))?;
        }
        self.check_jobs(cluster)
    }

    fn check_jobs(&self, cluster: &Cluster) -> Result<(), Refusal> {
        if self.jobs.len() > JOBS_MAX {
            return Err(Refusal::TooManyJobs { jobs: self.jobs.len() });
        }
        let mut ids = HashSet::new();
        let mut held: HashMap<HostId, Vec<(GpuMask, &str)>> = HashMap::new();
        for j in &self.jobs {
            let id = || j.id.clone();
            if !ids.insert(j.id.as_str()) {
                return Err(Refusal::DuplicateJob { id: id() });
            }
            if j.gpus.is_empty() {
                return Err(Refusal::EmptyJob { id: id() });
            }
            if let Some(d) = j.demand_gb_per_s.filter(|d| !(*d >= 0.0 && d.is_finite())) {
                return Err(Refusal::BadDemand { id: id(), demand_gb_per_s: d });
            }
            if !(0.0..=1.0).contains(&j.duty) {
                return Err(Refusal::BadDuty { id: id(), duty: j.duty });
            }
            known(cluster, &j.gpus, &format!("job `{}`", j.id))?;
            for &(host, mask) in j.gpus.parts() {
                let gpu = |m: u32| cluster.gpu_name(GpuId { host, gpu: m.trailing_zeros() as u8 });
                let both = self.free.mask(host).0 & mask.0;
                if both != 0 {
                    return Err(Refusal::JobGpuIsFree { job: id(), gpu: gpu(both) });
                }
                let there = held.entry(host).or_default();
                if let Some((m, other)) = there.iter().find(|(m, _)| m.0 & mask.0 != 0) {
                    return Err(Refusal::JobsOverlap { a: (*other).to_owned(), b: id(), gpu: gpu(m.0 & mask.0) });
                }
                there.push((mask, &j.id));
            }
        }
        Ok(())
    }
}

fn known_host(cluster: &Cluster, h: HostId, what: &str) -> Result<(), Refusal> {
    let hosts = cluster.hosts.len();
    if h.index() < hosts { Ok(()) } else { Err(Refusal::UnknownHost { what: what.to_owned(), host: h.0, hosts }) }
}

fn known(cluster: &Cluster, a: &Allocation, what: &str) -> Result<(), Refusal> {
    for &(h, m) in a.parts() {
        known_host(cluster, h, what)?;
        let strange = m.minus(cluster.type_of(h).all_gpus());
        if !strange.is_empty() {
            let host = cluster.host(h).name.clone();
            return Err(Refusal::UnknownGpu { what: what.to_owned(), host, gpus: strange.to_string() });
        }
    }
    Ok(())
}

/// Constraints on the chosen GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints {
    /// Only these hosts; empty: all hosts.
    pub only_hosts: Vec<HostId>,
    /// Not these hosts.
    pub excluded_hosts: Vec<HostId>,
    /// Only hosts whose GPUs are of this model or whose type has this name.
    pub gpu_type: Option<String>,
    /// Minimum number of GPUs on every host that takes part; 0 and 1 mean no limit.
    pub gpus_per_host_min: usize,
    /// Maximum number of hosts.
    pub hosts_max: Option<usize>,
    /// True if no NIC may be shared with a running job.
    pub exclusive_nics: bool,
    /// How the GPUs are divided among hosts.
    pub split: Split,
    /// Maximum number of GPUs on any host.
    pub gpus_per_host_max: Option<usize>,
    /// Maximum number of switches of a tier.
    pub switches_max: Option<usize>,
    /// The tier of `switches_max`; None: the one nearest to the hosts.
    pub switch_tier: Option<String>,
    /// All GPUs below one switch of this tier, or on one host for the level `host`.
    pub require_level: Option<String>,
    /// All GPUs below one switch of this level if possible, otherwise below one switch of the lowest higher tier where
    /// that is possible.
    pub prefer_level: Option<String>,
    /// As few GPUs as possible below any one switch of this tier, or on any one host for the level `host`.
    pub spread: Option<String>,
}

/// How the GPUs of a job are divided among its hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Split {
    /// Any counts.
    #[default]
    Any,
    /// Equal counts if they take at most [`EQUAL_HOSTS_FACTOR`] times the smallest number of hosts that hold the job;
    /// otherwise any counts. The default of requests from people and programs.
    EqualIfFeasible,
    /// Equal counts on every host that takes part.
    Equal,
    /// This number of GPUs on every host that takes part.
    PerHost(usize),
}

impl Split {
    /// The split that a request states: any counts, or a count per host. A request with neither gets equal counts if
    /// feasible. `Err`: a request with both.
    pub fn of(uneven: bool, per_host: Option<usize>) -> Result<Split, &'static str> {
        match (uneven, per_host) {
            (true, Some(_)) => Err("`uneven` allows any counts and `per_host` names one; leave one of them out"),
            (true, None) => Ok(Split::Any),
            (false, Some(each)) => Ok(Split::PerHost(each)),
            (false, None) => Ok(Split::EqualIfFeasible),
        }
    }
}

/// Equal counts are preferred up to this multiple of the smallest number of hosts: 26 GPUs on hosts of 8 are 7+7+6+6,
/// not 13 hosts of 2.
pub const EQUAL_HOSTS_FACTOR: usize = 2;

/// A running job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Name of the job.
    pub id: String,
    /// GPUs of the job.
    pub gpus: Allocation,
    /// The bus bandwidth that it uses while it communicates, GB/s; None: the model's prediction without other jobs.
    pub demand_gb_per_s: Option<f64>,
    /// Share of time in which it communicates, 0 to 1; scales the demand with which it contends.
    pub duty: f64,
}

/// How jobs share bandwidth.
#[derive(Clone, Copy, Debug, Default)]
pub enum Contention {
    /// BandPilot's virtual merge: jobs that span hosts and meet on one share the smaller bandwidth of the two merged sets in proportion
    /// to their demands.
    #[default]
    Merge,
    /// Virtual merge by a rule that the caller registers ([`crate::Registry::add_merge_rule`]).
    MergeBy(&'static MergeRule),
    /// Flows of all jobs over the NICs and links that they share, max-min fair.
    Physical,
}

impl Contention {
    /// The default contention: with tiers of switches the flows, since jobs that share no host may share uplinks;
    /// otherwise the merge.
    pub fn of(cluster: &topology::Cluster) -> Contention {
        if cluster.tiers().is_empty() { Contention::Merge } else { Contention::Physical }
    }

    /// Name in files and flags.
    pub fn name(self) -> &'static str {
        match self {
            Contention::Merge => "merge",
            Contention::MergeBy(rule) => rule.name,
            Contention::Physical => "physical",
        }
    }
}

/// Equal if the names are equal: a registry holds every name once.
impl PartialEq for Contention {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Contention {}
