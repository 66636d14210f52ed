//! The free GPUs that a request may use, after the constraints on single hosts and GPUs.
//!
//! Constraints on the whole choice (pods, minimum GPUs per host, maximum number of hosts) are in [`crate::shape`].

use crate::request::{Constraints, EQUAL_HOSTS_FACTOR, Refusal, Request, Split};
use std::collections::{HashMap, HashSet};
use topology::{Allocation, Cluster, GpuMask, HostId, HostType};

/// Maximum number of host types that a message lists.
const TYPES_LISTED_MAX: usize = 8;

/// True if `name` is the name of the host type, its GPU model, or consecutive words of the model (`H100` or `H100 80GB` of
/// `NVIDIA H100 80GB HBM3`). Case does not matter.
pub fn is_of_type(ty: &HostType, name: &str) -> bool {
    let words = |s: &str| -> Vec<String> {
        let split = |c: char| c.is_whitespace() || c == '-';
        s.split(split).filter(|w| !w.is_empty()).map(str::to_ascii_lowercase).collect()
    };
    let (wanted, model) = (words(name), words(&ty.gpu_model));
    ty.name.eq_ignore_ascii_case(name.trim())
        || (!wanted.is_empty() && model.windows(wanted.len()).any(|w| w == wanted))
}

impl Request {
    /// The GPUs to choose from: the free GPUs that satisfy every constraint on hosts and GPUs. GPUs of running jobs are
    /// never among them, because [`Request::check`], which runs first, refuses a request that offers one.
    ///
    /// Under `exclusive_nics`, GPUs whose nearest NIC is also used by a running job on their host are removed; hosts
    /// without NICs are unaffected. Idempotent: a request whose `free` is already narrowed gives the same set. Cost:
    /// O(hosts + jobs' GPUs x NICs).
    pub fn usable(&self, cluster: &Cluster) -> Result<Allocation, Refusal> {
        self.check(cluster)?;
        let free = self.free.gpu_count();
        let too_few = |usable: usize| usable < self.gpus;
        if too_few(free) {
            return Err(Refusal::NotEnough { wanted: self.gpus, free });
        }
        if self.constraints.allow_every_gpu() {
            self.check_host_limits(cluster, &self.free)?;
            return Ok(self.free.clone());
        }
        let (usable, dropped) = self.constrained(cluster);
        if too_few(usable.gpu_count()) {
            return Err(Refusal::ConstraintsLeaveTooFew {
                wanted: self.gpus,
                free,
                usable: usable.gpu_count(),
                dropped: dropped?,
            });
        }
        self.check_host_limits(cluster, &usable)?;
        Ok(usable)
    }

    /// Checks whether the limits on hosts can be met by any split, from the counts alone, before any search. O(hosts
    /// log hosts) with such limits.
    fn check_host_limits(&self, cluster: &Cluster, usable: &Allocation) -> Result<(), Refusal> {
        let c = &self.constraints;
        let (least, hosts) = (c.gpus_per_host_min.max(1), c.hosts_max.filter(|m| *m < self.gpus));
        if least == 1 && hosts.is_none() && c.gpus_per_host_max.is_none() {
            return Ok(());
        }
        let each = c.gpus_per_host_max.unwrap_or(usize::MAX);
        let sorted = |counts: &mut dyn Iterator<Item = usize>| -> Vec<usize> {
            let mut counts: Vec<usize> = counts.filter(|n| *n >= least).map(|n| n.min(each)).collect();
            counts.sort_unstable_by(|a, b| b.cmp(a));
            counts
        };
        let first = |counts: &[usize]| counts.iter().take(hosts.unwrap_or(usize::MAX)).sum::<usize>();
        let now = sorted(&mut usable.parts().iter().map(|p| p.1.count()));
        let whole = sorted(&mut cluster.host_ids().map(|h| cluster.type_of(h).gpu_count()));
        if now.is_empty() || self.gpus < least {
            let largest = usable.parts().iter().map(|p| p.1.count()).max().unwrap_or(0);
            return Err(Refusal::HostsTooSmall { gpus: self.gpus, least, largest, free: !whole.is_empty() });
        }
        let most = first(&now);
        if most >= self.gpus {
            return Ok(());
        }
        let mut sum = 0;
        let fit = now.iter().position(|n| {
            sum += n;
            sum >= self.gpus
        });
        let fit = fit.map(|i| i + 1);
        let each = c.gpus_per_host_max;
        Err(Refusal::LimitsTooTight { gpus: self.gpus, hosts, most, each, whole: first(&whole), fit })
    }

    /// The remaining GPUs, and a text with the number of GPUs that each constraint removed; `Err` if a constraint
    /// leaves no host of the whole cluster.
    fn constrained(&self, cluster: &Cluster) -> (Allocation, Result<String, Refusal>) {
        let c = &self.constraints;
        let only: HashSet<HostId> = c.only_hosts.iter().copied().collect();
        let excluded: HashSet<HostId> = c.excluded_hosts.iter().copied().collect();
        let of_type: Vec<bool> =
            cluster.types.iter().map(|t| c.gpu_type.as_deref().is_none_or(|n| is_of_type(t, n))).collect();
        let busy = if c.exclusive_nics { self.busy_nics(cluster) } else { HashMap::new() };
        let mut lost = [0usize; 3];
        let parts = self.free.parts().iter().map(|&(h, m)| {
            let named = (only.is_empty() || only.contains(&h)) && !excluded.contains(&h);
            if !named {
                lost[0] += m.count();
                return (h, GpuMask::EMPTY);
            }
            if !of_type[cluster.host(h).host_type] {
                lost[1] += m.count();
                return (h, GpuMask::EMPTY);
            }
            let Some(taken) = busy.get(&h) else { return (h, m) };
            let ty = cluster.type_of(h);
            let alone = GpuMask::from_indices(m.iter().filter(|g| ty.nearest_nics(*g) & taken == 0));
            lost[2] += m.minus(alone).count();
            (h, alone)
        });
        let usable = Allocation::new(parts.collect::<Vec<_>>());
        let mut words = Vec::new();
        for (n, why) in
            lost.iter().zip(["are on hosts that are not allowed", "are of another type", "share NICs with jobs"])
        {
            if *n > 0 {
                words.push(format!("{n} {why}"));
            }
        }
        let kept = |h: HostId| (only.is_empty() || only.contains(&h)) && !excluded.contains(&h);
        let mut hosts = cluster.host_ids().filter(|h| kept(*h)).peekable();
        let dropped = if hosts.peek().is_none() {
            Err(no_host("is allowed: every host of `only_hosts` is also in `excluded_hosts`, or all are excluded"))
        } else if !hosts.any(|h| of_type[cluster.host(h).host_type]) {
            Err(no_host(&type_in_words(cluster, c.gpu_type.as_deref().unwrap_or(""))))
        } else {
            Ok(words.join(", "))
        };
        (usable, dropped)
    }

    /// NICs near the GPUs of running jobs, by host.
    fn busy_nics(&self, cluster: &Cluster) -> HashMap<HostId, u32> {
        let mut busy: HashMap<HostId, u32> = HashMap::new();
        for &(h, m) in self.jobs.iter().flat_map(|j| j.gpus.parts()) {
            *busy.entry(h).or_default() |= cluster.type_of(h).nics_touched(m);
        }
        busy
    }
}

impl Request {
    /// The same request with [`Split::EqualIfFeasible`] decided for its free GPUs; refused if no equal counts per host
    /// are possible.
    pub(crate) fn decided_split(mut self) -> Result<Request, Refusal> {
        if self.constraints.split == Split::EqualIfFeasible {
            // Pods named in a request fix the counts.
            let equal = (self.pods.is_empty() || !self.groups.is_empty()) && self.equal_counts_fit();
            self.constraints.split = if equal { Split::Equal } else { Split::Any };
        }
        if let Split::PerHost(each) = self.constraints.split {
            let of = |n: usize| self.free.parts().iter().filter(|p| p.1.count() >= n).count();
            let (wanted, there) = (self.gpus / each.max(1), of(each));
            if there < wanted {
                let fits = |n: &usize| *n < each && self.gpus.is_multiple_of(*n) && of(*n) >= self.gpus / n;
                let nearest = (1..each).rev().find(fits);
                return Err(Refusal::PerHostDoesNotFit { gpus: self.gpus, per_host: each, wanted, there, nearest });
            }
        }
        Ok(self)
    }

    /// The smallest number of free hosts that holds the request; None if all hosts together do not hold it. O(hosts log
    /// hosts).
    pub(crate) fn fewest_hosts(&self) -> Option<usize> {
        let mut free: Vec<usize> = self.free.parts().iter().map(|p| p.1.count()).collect();
        free.sort_unstable_by(|a, b| b.cmp(a));
        let mut sum = 0;
        let at = free.iter().position(|n| {
            sum += n;
            sum >= self.gpus
        })?;
        Some(at + 1)
    }

    /// True if equal counts fit on the free GPUs without many more hosts than needed. O(hosts log hosts + counts x
    /// hosts).
    fn equal_counts_fit(&self) -> bool {
        let Some(fewest) = self.fewest_hosts() else { return false };
        let mut free: Vec<usize> = self.free.parts().iter().map(|p| p.1.count()).collect();
        free.sort_unstable_by(|a, b| b.cmp(a));
        let counts = self.counts_allowed();
        let most = (EQUAL_HOSTS_FACTOR * fewest).min(self.constraints.hosts_max.unwrap_or(usize::MAX));
        (fewest..=most.min(free.len()).min(self.gpus)).any(|hosts| {
            let each = self.gpus / hosts;
            self.gpus.is_multiple_of(hosts) && each < 32 && counts >> each & 1 == 1 && free[hosts - 1] >= each
        })
    }
}

impl Constraints {
    /// True if every free GPU is allowed.
    pub fn allow_every_gpu(&self) -> bool {
        self.only_hosts.is_empty() && self.excluded_hosts.is_empty() && self.gpu_type.is_none() && !self.exclusive_nics
    }
}

fn no_host(what: &str) -> Refusal {
    Refusal::NoHostMatches { what: what.to_owned() }
}

fn type_in_words(cluster: &Cluster, wanted: &str) -> String {
    let wanted: String = wanted.chars().take(60).collect();
    let mut types: Vec<String> =
        cluster.types.iter().take(TYPES_LISTED_MAX).map(|t| format!("{} ({})", t.name, t.gpu_model)).collect();
    if cluster.types.len() > TYPES_LISTED_MAX {
        types.push(format!("and {} more", cluster.types.len() - TYPES_LISTED_MAX));
    }
    format!(
        "that is allowed is of type `{wanted}` or has GPUs of that model; the cluster's types are {}",
        types.join(", ")
    )
}
