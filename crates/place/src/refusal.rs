//! Refusals of requests.

use crate::request::{JOBS_MAX, PODS_MAX};

/// The reason why a request cannot be met. `code` is stable for scripts.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// `gpus` is 0.
    #[error("a request needs at least one GPU")]
    NoGpus,
    /// Not enough GPUs are free.
    #[error("{wanted} GPUs are requested and {free} are free")]
    NotEnough {
        /// GPUs requested.
        wanted: usize,
        /// GPUs free.
        free: usize,
    },
    /// The search space is too large for exact search.
    #[error(
        "exact search would combine {} candidates (limit {limit}); use --search threshold \
         (or auto, the default), or offer fewer hosts with --free",
        many(*.combinations)
    )]
    TooLarge {
        /// Number of count vectors times masks; [`u128::MAX`] if it is at least that.
        combinations: u128,
        /// Limit of that number.
        limit: u64,
    },
    /// A pod has no GPUs.
    #[error("pod {pod} has 0 GPUs; every pod needs at least one, leave out pods without GPUs")]
    EmptyPod {
        /// Index of the pod, from 0.
        pod: usize,
    },
    /// The GPUs of the pods do not add up to those of the request.
    #[error("the pods hold {pods} GPUs together, but {gpus} are asked for; leave out `gpus` or make them equal")]
    PodsSum {
        /// GPUs of all pods.
        pods: usize,
        /// GPUs of the request.
        gpus: usize,
    },
    /// A kind of groups is invalid.
    #[error("the group `{kind}` {why}")]
    BadGroup {
        /// Name of the kind.
        kind: String,
        /// The fault, in words.
        why: String,
    },
    /// The product of the groups' sizes differs from the number of GPUs.
    #[error("the sizes of the groups multiply to {product}, but {gpus} GPUs are asked for; make them equal")]
    GroupsProduct {
        /// Product of the sizes.
        product: usize,
        /// GPUs of the request.
        gpus: usize,
    },
    /// The request has more than [`PODS_MAX`] pods.
    #[error("{pods} pods are requested; at most {} are allowed", PODS_MAX)]
    TooManyPods {
        /// Number of pods.
        pods: usize,
    },
    /// A pod fits on no host.
    #[error("a pod needs {pod} GPUs on one host, but no host has more than {largest} usable; make the pod smaller")]
    PodTooLarge {
        /// GPUs of the pod.
        pod: usize,
        /// Largest number of usable GPUs on any host.
        largest: usize,
    },
    /// Enough GPUs are free, but the pods do not fit on the hosts.
    #[error(
        "{usable} GPUs on {hosts} hosts are usable, but the {pods} pods do not fit on them{limits}; \
         use smaller pods, relax the limits, or wait until more is free"
    )]
    PodsDoNotFit {
        /// Number of pods.
        pods: usize,
        /// Number of GPUs that satisfy the constraints.
        usable: usize,
        /// Number of hosts with usable GPUs.
        hosts: usize,
        /// The limits on hosts, in words.
        limits: String,
    },
    /// The pods have too many different sizes to examine every packing.
    #[error("{pods} pods of {sizes} sizes can be packed in too many ways; use fewer different sizes")]
    PodsTooMixed {
        /// Number of pods.
        pods: usize,
        /// Number of different sizes.
        sizes: usize,
    },
    /// No split over the hosts keeps the limits.
    #[error(
        "{usable} GPUs on {hosts} hosts are usable, but no split of {wanted} over them keeps the limits{limits}; \
         relax them, or wait until more is free"
    )]
    NoSplit {
        /// GPUs requested.
        wanted: usize,
        /// Number of GPUs that satisfy the constraints.
        usable: usize,
        /// Number of hosts with usable GPUs.
        hosts: usize,
        /// The limits on hosts, in words.
        limits: String,
    },
    /// The limits on hosts allow fewer GPUs than requested, for every split.
    #[error("{gpus} GPUs are requested, but {}", tight_limits(*gpus, *hosts, *most, *each, *whole, *fit))]
    LimitsTooTight {
        /// GPUs requested.
        gpus: usize,
        /// Maximum number of hosts; None: no limit.
        hosts: Option<usize>,
        /// Usable GPUs of the fullest hosts, up to the limit.
        most: usize,
        /// Maximum number of GPUs per host, if limited.
        each: Option<usize>,
        /// GPUs of the largest hosts of the cluster, up to the limit, if all were free.
        whole: usize,
        /// Number of hosts that hold the request; None if all hosts together do not.
        fit: Option<usize>,
    },
    /// No host has the minimum number of GPUs per host.
    #[error(
        "at least {least} GPUs per host are asked for, but {}",
        match *largest {
            _ if *gpus < *least => format!("the request is for {gpus}"),
            0 => "no host has a usable GPU".to_owned(),
            n => format!("no host has more than {n} {}; ask for at most {n}", if *free { "usable now" } else { "GPUs" }),
        }
    )]
    HostsTooSmall {
        /// GPUs requested.
        gpus: usize,
        /// Minimum number of GPUs per host.
        least: usize,
        /// Largest number of usable GPUs on a host.
        largest: usize,
        /// True if a host of the cluster has that many GPUs, some of which are unusable.
        free: bool,
    },
    /// The request allows no GPU on any host.
    #[error("at most 0 GPUs per host are allowed; leave the limit out for any number")]
    NoGpusPerHost,
    /// The request allows at most 0 switches.
    #[error("at most 0 switches are allowed; every host is below one, leave the limit out for any number")]
    NoSwitchesAllowed,
    /// The cluster does not have the level.
    #[error("`{name}` is no level of this cluster; its levels are {known}{near}")]
    UnknownLevel {
        /// Name of the level.
        name: String,
        /// The levels of the cluster, in words.
        known: String,
        /// The nearest name, in words; may be empty.
        near: String,
    },
    /// No set of switches of the tier within the limit has enough usable GPUs.
    #[error(
        "{gpus} GPUs do not fit below {max} {tier} switch{}: the fullest {} {largest} usable GPUs; {}",
        if *max == 1 { "" } else { "es" },
        if *max == 1 { "has" } else { "have together" },
        nearest_switches(*needed, tier, *largest)
    )]
    SwitchesTooSmall {
        /// GPUs requested.
        gpus: usize,
        /// Name of the tier.
        tier: String,
        /// Number of switches allowed.
        max: usize,
        /// Usable GPUs below the fullest switches, up to the limit.
        largest: usize,
        /// Number of switches that hold the request; None if all switches together do not.
        needed: Option<usize>,
    },
    /// No host has enough usable GPUs.
    #[error(
        "{gpus} GPUs do not fit on one host: the freest has {largest} usable GPUs; ask for {largest}, or for a higher level{higher}"
    )]
    HostTooSmall {
        /// GPUs requested.
        gpus: usize,
        /// Largest number of usable GPUs on a host.
        largest: usize,
        /// The level above hosts, in words; may be empty.
        higher: String,
    },
    /// The number of GPUs is not a multiple of the count per host.
    #[error(
        "{gpus} GPUs cannot be divided into {per_host} per host; the nearest are {}",
        multiples(*gpus, *per_host)
    )]
    PerHostDoesNotDivide {
        /// GPUs requested.
        gpus: usize,
        /// Requested GPUs per host.
        per_host: usize,
    },
    /// Too few hosts have the requested number of usable GPUs.
    #[error(
        "{gpus} GPUs at {per_host} per host need {wanted} hosts with {per_host} usable GPUs, and {there} have them; {}",
        nearest_per_host(*nearest, *gpus, *per_host, *there)
    )]
    PerHostDoesNotFit {
        /// GPUs requested.
        gpus: usize,
        /// Requested GPUs per host.
        per_host: usize,
        /// Number of hosts needed.
        wanted: usize,
        /// Number of hosts with enough usable GPUs.
        there: usize,
        /// The largest smaller count per host that fits.
        nearest: Option<usize>,
    },
    /// No host satisfies the constraints.
    #[error("no host of the cluster {what}")]
    NoHostMatches {
        /// The constraint, in words, and the cluster's values.
        what: String,
    },
    /// The constraints exclude too many of the free GPUs.
    #[error("{wanted} GPUs are requested; {free} are free, but the constraints leave {usable} ({dropped}); relax them")]
    ConstraintsLeaveTooFew {
        /// GPUs requested.
        wanted: usize,
        /// GPUs free.
        free: usize,
        /// Free GPUs that are usable.
        usable: usize,
        /// The constraints, each with the number of GPUs that it excluded.
        dropped: String,
    },
    /// The cluster does not have the host or GPU.
    #[error("{what} names host number {host}, but the cluster has {hosts} hosts")]
    UnknownHost {
        /// The field that names it.
        what: String,
        /// Id of the host or GPU.
        host: u32,
        /// Number of hosts of the cluster.
        hosts: usize,
    },
    /// The host does not have the GPUs.
    #[error("{what} names GPUs of host `{host}` that it does not have: {gpus}")]
    UnknownGpu {
        /// The field that names them.
        what: String,
        /// The host.
        host: String,
        /// The GPUs.
        gpus: String,
    },
    /// The free GPUs of the request include a GPU of a running job.
    #[error("GPU {gpu} is free and also held by running job `{job}`; take it out of `free` or end the job")]
    JobGpuIsFree {
        /// The job.
        job: String,
        /// The GPU.
        gpu: String,
    },
    /// Two running jobs use the same GPU.
    #[error("running jobs `{a}` and `{b}` both hold GPU {gpu}; a GPU belongs to one job")]
    JobsOverlap {
        /// One job.
        a: String,
        /// The other.
        b: String,
        /// The GPU.
        gpu: String,
    },
    /// Two running jobs have the same name.
    #[error("two running jobs are named `{id}`; every job needs its own name")]
    DuplicateJob {
        /// Name of the jobs.
        id: String,
    },
    /// A running job has no GPUs.
    #[error("running job `{id}` holds no GPU; leave it out")]
    EmptyJob {
        /// The job.
        id: String,
    },
    /// The request names more than [`JOBS_MAX`] running jobs.
    #[error("the request names {jobs} running jobs; at most {} are allowed", JOBS_MAX)]
    TooManyJobs {
        /// Number of jobs.
        jobs: usize,
    },
    /// A demand is negative or not finite.
    #[error("running job `{id}` has a demand of {demand_gb_per_s} GB/s; give a finite number of at least 0")]
    BadDemand {
        /// The job.
        id: String,
        /// The given value.
        demand_gb_per_s: f64,
    },
    /// A duty cycle is out of range.
    #[error(
        "running job `{id}` has a duty cycle of {duty}; give the share of the time in which it communicates, 0 to 1"
    )]
    BadDuty {
        /// The job.
        id: String,
        /// The given value.
        duty: f64,
    },
    /// A weight is out of range.
    #[error(
        "`loss_weight` is {loss_weight}; give a finite number of at least 0 (0: what running jobs lose does not matter)"
    )]
    BadLossWeight {
        /// The given value.
        loss_weight: f64,
    },
    /// The request allows at most 0 hosts.
    #[error("at most 0 hosts are allowed; a job needs one, leave the limit out for any number")]
    NoHostsAllowed,
    /// The search does not support a part of the request.
    #[error("search `{search}` finds no choice with {what}; `--search exact` examines all choices if they are few")]
    Unsupported {
        /// The search.
        search: &'static str,
        /// The part of the request, in words.
        what: &'static str,
    },
    /// The search would judge too many candidates.
    #[error(
        "search `{search}` would judge {evaluations} candidates one step after another (limit {limit}); \
         offer fewer GPUs with --free, or use another --search"
    )]
    SearchTooLarge {
        /// The search.
        search: &'static str,
        /// Number of candidates.
        evaluations: u128,
        /// Limit of that number.
        limit: u64,
    },
    /// Hosts of the only choice have no network between them.
    #[error(
        "{gpus} GPUs need {hosts} hosts, but {}; ask for GPUs that fit on one host, or on hosts with NICs, or add the NICs \
         to the cluster file",
        if without.is_empty() { "no rail connects them".to_owned() } else { format!("the cluster file has no NIC of {without}") }
    )]
    NoNetwork {
        /// GPUs requested.
        gpus: usize,
        /// Number of hosts of the choice.
        hosts: usize,
        /// The hosts without NICs, as a host list.
        without: String,
    },
    /// A search that ignores pods and limits on hosts found only allocations that break them.
    #[error("search `{search}` found no allocation that keeps the request's pods and limits; use search `exact`")]
    SearchBreaksLimits {
        /// Name of the search.
        search: &'static str,
    },
}

/// A number of candidates in words.
fn many(candidates: u128) -> String {
    const COUNTED_MAX: u128 = 1_000_000_000_000_000;
    if candidates > COUNTED_MAX { "more than 10^15".into() } else { candidates.to_string() }
}

impl Refusal {
    /// Stable code for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::NoGpus => "no_gpus",
            Refusal::NotEnough { .. } => "not_enough_free",
            Refusal::TooLarge { .. } => "too_large_for_exact",
            Refusal::EmptyPod { .. } => "empty_pod",
            Refusal::PodsSum { .. } => "pods_sum",
            Refusal::BadGroup { .. } => "bad_group",
            Refusal::GroupsProduct { .. } => "groups_product",
            Refusal::TooManyPods { .. } => "too_many_pods",
            Refusal::PodTooLarge { .. } => "pod_too_large",
            Refusal::PodsDoNotFit { .. } => "pods_do_not_fit",
            Refusal::PodsTooMixed { .. } => "pods_too_mixed",
            Refusal::NoSplit { .. } => "no_split",
            Refusal::NoHostMatches { .. } => "no_host_matches",
            Refusal::LimitsTooTight { .. } => "limits_too_tight",
            Refusal::HostsTooSmall { .. } => "hosts_too_small",
            Refusal::NoGpusPerHost => "no_gpus_per_host",
            Refusal::NoSwitchesAllowed => "no_switches_allowed",
            Refusal::UnknownLevel { .. } => "unknown_level",
            Refusal::SwitchesTooSmall { .. } => "switches_too_small",
            Refusal::HostTooSmall { .. } => "host_too_small",
            Refusal::PerHostDoesNotDivide { .. } => "per_host_does_not_divide",
            Refusal::PerHostDoesNotFit { .. } => "per_host_does_not_fit",
            Refusal::ConstraintsLeaveTooFew { .. } => "constraints_leave_too_few",
            Refusal::UnknownHost { .. } => "unknown_host",
            Refusal::UnknownGpu { .. } => "unknown_gpu",
            Refusal::JobGpuIsFree { .. } => "job_gpu_is_free",
            Refusal::JobsOverlap { .. } => "jobs_overlap",
            Refusal::DuplicateJob { .. } => "duplicate_job",
            Refusal::EmptyJob { .. } => "empty_job",
            Refusal::TooManyJobs { .. } => "too_many_jobs",
            Refusal::BadDemand { .. } => "bad_demand",
            Refusal::BadDuty { .. } => "bad_duty",
            Refusal::BadLossWeight { .. } => "bad_loss_weight",
            Refusal::NoHostsAllowed => "no_hosts_allowed",
            Refusal::NoNetwork { .. } => "no_network",
            Refusal::SearchBreaksLimits { .. } => "search_breaks_limits",
            Refusal::Unsupported { .. } => "unsupported_by_search",
            Refusal::SearchTooLarge { .. } => "too_large_for_search",
        }
    }

    /// True if the request itself is invalid. Otherwise another time, cluster or search may meet it.
    pub fn is_malformed(&self) -> bool {
        match self {
            Refusal::NotEnough { .. }
            | Refusal::PerHostDoesNotFit { .. }
            | Refusal::SwitchesTooSmall { .. }
            | Refusal::HostTooSmall { .. }
            | Refusal::LimitsTooTight { .. }
            | Refusal::HostsTooSmall { .. }
            | Refusal::TooLarge { .. }
            | Refusal::PodTooLarge { .. }
            | Refusal::PodsDoNotFit { .. }
            | Refusal::PodsTooMixed { .. }
            | Refusal::NoSplit { .. }
            | Refusal::NoHostMatches { .. }
            | Refusal::ConstraintsLeaveTooFew { .. }
            | Refusal::Unsupported { .. }
            | Refusal::SearchTooLarge { .. }
            | Refusal::NoNetwork { .. }
            | Refusal::SearchBreaksLimits { .. } => false,
            Refusal::NoGpus
            | Refusal::PerHostDoesNotDivide { .. }
            | Refusal::NoGpusPerHost
            | Refusal::NoSwitchesAllowed
            | Refusal::UnknownLevel { .. }
            | Refusal::EmptyPod { .. }
            | Refusal::PodsSum { .. }
            | Refusal::BadGroup { .. }
            | Refusal::GroupsProduct { .. }
            | Refusal::TooManyPods { .. }
            | Refusal::UnknownHost { .. }
            | Refusal::UnknownGpu { .. }
            | Refusal::JobGpuIsFree { .. }
            | Refusal::JobsOverlap { .. }
            | Refusal::DuplicateJob { .. }
            | Refusal::EmptyJob { .. }
            | Refusal::TooManyJobs { .. }
            | Refusal::BadDemand { .. }
            | Refusal::BadDuty { .. }
            | Refusal::BadLossWeight { .. }
            | Refusal::NoHostsAllowed => true,
        }
    }
}

/// The multiples of a count nearest to a number of GPUs, in words, or the counts that divide that number.
fn multiples(gpus: usize, each: usize) -> String {
    if each == 0 {
        return "1 or more per host".to_owned();
    }
    let below = gpus / each * each;
    let dividing: Vec<String> =
        (1..=topology::GPUS_PER_HOST_MAX).filter(|n| gpus.is_multiple_of(*n)).map(|n| n.to_string()).collect();
    let numbers = if below == 0 { each.to_string() } else { format!("{below} or {}", below + each) };
    format!("{numbers} GPUs, or {} per host", dividing.join(", "))
}

/// The capacity of the hosts that a request allows, and the change that would make the request fit, in words.
fn tight_limits(
    gpus: usize,
    hosts: Option<usize>,
    most: usize,
    each: Option<usize>,
    whole: usize,
    fit: Option<usize>,
) -> String {
    let of_each = each.map(|n| format!(" at {n} per host at most")).unwrap_or_default();
    let held = match hosts {
        Some(1) => "1 host holds".to_owned(),
        Some(n) => format!("{n} hosts hold"),
        None => "the hosts hold".to_owned(),
    };
    let now = if whole >= gpus { " of the usable GPUs" } else { " GPUs" };
    let fits = fit.map(|n| format!("allow {n} hosts, or "));
    let wait = if whole >= gpus { ", or wait until more is free" } else { "" };
    format!("{held} at most {most}{now}{of_each}; {}ask for {most}{wait}", fits.unwrap_or_default())
}

fn nearest_per_host(nearest: Option<usize>, gpus: usize, per_host: usize, there: usize) -> String {
    let smaller = nearest.map(|n| format!("{n} per host ({} hosts) fits", gpus / n));
    let fewer = (there > 0).then(|| format!("{} GPUs at {per_host} per host fit", there * per_host));
    let known: Vec<String> = smaller.into_iter().chain(fewer).collect();
    if known.is_empty() { "wait until more is free".to_owned() } else { known.join("; ") }
}

fn nearest_switches(needed: Option<usize>, tier: &str, largest: usize) -> String {
    let more = needed.map(|n| format!("{n} {tier} switches hold them; "));
    format!("{}or ask for {largest} GPUs", more.unwrap_or_default())
}
