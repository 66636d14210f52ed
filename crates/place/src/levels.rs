//! Network levels in requests: maximum number of switches of a tier, required and preferred levels, spreading.
//!
//! Limits on switches become regions: sets of free GPUs inside which every choice keeps the limit. With a limit of one
//! switch, every switch has a region. With a limit of several, every combination of switches has one, or only the most
//! promising combinations if there are many.

use crate::request::{Constraints, Refusal, Request, Split};
use crate::search::hosts::choose;
use std::collections::BTreeMap;
use topology::{Allocation, Cluster, GPUS_PER_HOST_MAX, HostId, diagnose};

/// Maximum number of combinations of switches that are all searched.
const COMBINATIONS_MAX: u128 = 64;
/// Number of regions searched if there are more combinations, or more hosts than [`crate::threshold::AUTO_HOSTS_MAX`].
const REGIONS_MAX: usize = 12;
/// Name of the level of single hosts in requests.
const HOST: &str = "host";

/// A level of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Single hosts.
    Host,
    /// Switches of a tier.
    Tier(usize),
}

impl Level {
    /// The level of a name: `host` or the name of a tier; case does not matter.
    fn of(cluster: &Cluster, name: &str) -> Result<Level, Refusal> {
        let tiers = &cluster.network.tiers;
        if name.eq_ignore_ascii_case(HOST) {
            return Ok(Level::Host);
        }
        let at = tiers.iter().position(|t| t.name.eq_ignore_ascii_case(name));
        at.map(Level::Tier).ok_or_else(|| {
            let known: Vec<&str> = std::iter::once(HOST).chain(tiers.iter().map(|t| t.name.as_str())).collect();
            let near = diagnose::did_you_mean(name, known.iter().copied());
            Refusal::UnknownLevel {
                name: name.chars().take(60).collect(),
                near: near.map_or(String::new(), |n| format!("; did you mean `{n}`?")),
                known: known.join(", "),
            }
        })
    }
}

/// The levels that a request names.
pub(crate) struct Levels {
    /// Tiers and the maximum number of switches of each, highest tier first.
    limits: Vec<(usize, usize)>,
    one_host: bool,
    prefer: Option<Level>,
    pub spread: Option<Level>,
}

/// One of [`Request::attempts`].
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    /// Tiers and the maximum number of switches of each, highest tier first.
    limits: Vec<(usize, usize)>,
    one_host: bool,
    /// Maximum number of GPUs per host.
    each: Option<usize>,
}

impl Constraints {
    /// The levels that the request names; refused if the cluster has no such level.
    pub(crate) fn levels(&self, cluster: &Cluster) -> Result<Levels, Refusal> {
        let of = |name: &Option<String>| name.as_deref().map(|n| Level::of(cluster, n)).transpose();
        let mut limits = Vec::new();
        if let Some(max) = self.switches_max {
            match of(&self.switch_tier)? {
                Some(Level::Tier(t)) => limits.push((t, max)),
                // One non-blocking switch connects all hosts: every limit on switches is kept.
                None if cluster.network.tiers.is_empty() => {}
                None => limits.push((0, max)),
                Some(Level::Host) => {
                    let known: Vec<&str> = cluster.network.tiers.iter().map(|t| t.name.as_str()).collect();
                    let (name, known) = (HOST.to_owned(), known.join(", "));
                    return Err(Refusal::UnknownLevel { name, known, near: "; limit hosts with `hosts_max`".into() });
                }
            }
        }
        let required = of(&self.require_level)?;
        if let Some(Level::Tier(t)) = required {
            limits.push((t, 1));
        }
        limits.sort_by_key(|l| (std::cmp::Reverse(l.0), l.1));
        Ok(Levels {
            limits,
            one_host: required == Some(Level::Host),
            prefer: of(&self.prefer_level)?,
            spread: of(&self.spread)?,
        })
    }
}

impl Request {
    /// True if an allocation satisfies all constraints of the request on the whole choice: counts, pods, switches,
    /// levels.
    pub fn accepts(&self, cluster: &Cluster, a: &Allocation) -> bool {
        let Ok(levels) = self.constraints.levels(cluster) else { return false };
        self.accepts_counts(&a.counts())
            && (!levels.one_host || a.host_count() <= 1)
            && levels.limits.iter().all(|&(tier, max)| cluster.switches_spanned(tier, a) <= max)
    }

    /// What to try in turn: preferred levels from the strictest to none, and within each as few GPUs per host as
    /// possible if GPUs are to be spread over hosts. The first attempt with an answer counts.
    pub(crate) fn attempts(&self, cluster: &Cluster) -> Result<Vec<Attempt>, Refusal> {
        let Levels { limits, one_host, prefer, spread } = self.constraints.levels(cluster)?;
        let mut tries = Vec::new();
        let mut add = |limits, one_host| tries.push(Attempt { limits, one_host, each: None });
        if let Some(prefer) = prefer {
            let first = if let Level::Tier(t) = prefer { t } else { 0 };
            if prefer == Level::Host {
                add(limits.clone(), true);
            }
            (first..cluster.network.tiers.len()).for_each(|t| add(with(&limits, (t, 1)), one_host));
        }
        add(limits, one_host);
        if spread == Some(Level::Host) {
            let each: Vec<usize> = (1..=GPUS_PER_HOST_MAX.min(self.gpus)).filter(|n| self.fits_with(*n)).collect();
            let of = |t: &Attempt| each.iter().map(|n| Attempt { each: Some(*n), ..t.clone() }).collect::<Vec<_>>();
            tries = tries.iter().flat_map(of).chain(tries.last().cloned()).collect();
        }
        Ok(tries)
    }

    /// True if at most `each` GPUs per host may be enough, by the numbers of free GPUs alone. O(hosts log hosts).
    fn fits_with(&self, each: usize) -> bool {
        let c = &self.constraints;
        let largest_pod = self.pods.iter().copied().max().unwrap_or(0);
        let mut free: Vec<usize> = self.free.parts().iter().map(|p| p.1.count().min(each)).collect();
        free.retain(|n| *n >= c.gpus_per_host_min);
        if matches!(c.split, Split::Equal | Split::PerHost(_)) {
            free.retain(|n| *n == each);
        }
        free.sort_unstable_by(|a, b| b.cmp(a));
        each >= largest_pod && free.iter().take(c.hosts_max.unwrap_or(usize::MAX)).sum::<usize>() >= self.gpus
    }

    /// The requests to search in an attempt. The free GPUs of each keep the limits on switches, and
    /// [`Split::EqualIfFeasible`] is decided. The free GPUs of this request must be usable.
    pub(crate) fn regions(&self, cluster: &Cluster, attempt: &Attempt) -> Result<Vec<Request>, Refusal> {
        let mut of_attempt = self.clone();
        if let Some(each) = attempt.each {
            let c = &mut of_attempt.constraints;
            c.gpus_per_host_max = Some(c.gpus_per_host_max.map_or(each, |m| m.min(each)));
            if c.split == Split::Equal {
                c.split = Split::PerHost(each);
            }
        }
        of_attempt.regions_within(cluster, &attempt.limits, attempt.one_host)
    }

    fn regions_within(
        &self,
        cluster: &Cluster,
        limits: &[(usize, usize)],
        one_host: bool,
    ) -> Result<Vec<Request>, Refusal> {
        let mut base = self.clone();
        if one_host {
            let largest = self.free.parts().iter().map(|p| p.1.count()).max().unwrap_or(0);
            if largest < self.gpus {
                let higher = cluster.network.tiers.first().map_or(String::new(), |t| format!(", `{}`", t.name));
                return Err(Refusal::HostTooSmall { gpus: self.gpus, largest, higher });
            }
            base.constraints.hosts_max = Some(1);
        }
        let mut areas = vec![base.free.clone()];
        for &(tier, max) in limits {
            let mut next = Vec::new();
            let mut refused = None;
            for area in &areas {
                match below(cluster, area, tier, max, self.gpus) {
                    Ok(found) => next.extend(found),
                    Err(e) => refused = Some(e),
                }
            }
            if next.is_empty()
                && let Some(e) = refused
            {
                return Err(e);
            }
            areas = next;
        }
        let mut out = Vec::new();
        let mut refused = None;
        for free in areas {
            match (Request { free, ..base.clone() }).decided_split() {
                Ok(r) => out.push(r),
                Err(e) => refused = refused.or(Some(e)),
            }
        }
        if out.iter().any(|r| r.constraints.split == Split::Equal) {
            out.retain(|r| r.constraints.split == Split::Equal);
        }
        match refused {
            Some(e) if out.is_empty() => Err(e),
            _ => Ok(out),
        }
    }
}

fn with(limits: &[(usize, usize)], more: (usize, usize)) -> Vec<(usize, usize)> {
    let mut all = limits.to_vec();
    all.push(more);
    all.sort_by_key(|l| (std::cmp::Reverse(l.0), l.1));
    all
}

/// The free GPUs below at most `max` switches of a tier, for combinations that hold `gpus`.
fn below(
    cluster: &Cluster,
    free: &Allocation,
    tier: usize,
    max: usize,
    gpus: usize,
) -> Result<Vec<Allocation>, Refusal> {
    let mut by_switch: BTreeMap<usize, (usize, Vec<HostId>)> = BTreeMap::new();
    for &(h, m) in free.parts() {
        let s = by_switch.entry(cluster.switch_of(tier, h)).or_default();
        s.0 += m.count();
        s.1.push(h);
    }
    let mut switches: Vec<(usize, Vec<HostId>)> = by_switch.into_values().collect();
    if switches.len() <= max {
        return Ok(vec![free.clone()]);
    }
    // Fullest switches first.
    switches.sort_by_key(|s| std::cmp::Reverse(s.0));
    let largest: usize = switches.iter().take(max).map(|s| s.0).sum();
    if largest < gpus {
        let mut sum = 0;
        let needed = switches.iter().position(|s| {
            sum += s.0;
            sum >= gpus
        });
        let tier = cluster.network.tiers[tier].name.clone();
        return Err(Refusal::SwitchesTooSmall { gpus, tier, max, largest, needed: needed.map(|n| n + 1) });
    }
    let holds = |set: &[usize]| set.iter().map(|i| switches[*i].0).sum::<usize>() >= gpus;
    let mut sets = Vec::new();
    if choose(switches.len(), max) <= COMBINATIONS_MAX && free.host_count() <= crate::threshold::AUTO_HOSTS_MAX {
        combinations(switches.len(), max, &mut Vec::new(), &mut sets);
        sets.retain(|s| holds(s));
    } else {
        // Switches of nearly equal fullness: those with the most spare GPUs and those with the fewest; the same among
        // the hosts that can give `each` GPUs, so that equal counts are possible.
        let width = REGIONS_MAX / 2;
        sets = windows(switches.iter().map(|s| s.0), max, gpus, width);
        for each in (2..=GPUS_PER_HOST_MAX.min(gpus)).rev().filter(|n| gpus.is_multiple_of(*n)) {
            let give = |s: &(usize, Vec<HostId>)| s.1.iter().filter(|h| free.mask(**h).count() >= each).count() * each;
            for set in windows(switches.iter().map(give), max, gpus, 2) {
                if sets.len() < REGIONS_MAX && !sets.contains(&set) {
                    sets.push(set);
                }
            }
        }
    }
    let area = |set: Vec<usize>| {
        let hosts = set.iter().flat_map(|i| &switches[*i].1);
        Allocation::new(hosts.map(|h| (*h, free.mask(*h))))
    };
    Ok(sets.into_iter().map(area).collect())
}

/// Runs of `max` places in the order of their sizes, largest first, that together hold `wanted`: the first and the last
/// of them, at most `most`. Each as ascending indices.
fn windows(sizes: impl Iterator<Item = usize>, max: usize, wanted: usize, most: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<(usize, usize)> = sizes.enumerate().map(|(i, size)| (size, i)).collect();
    order.sort_by_key(|o| (std::cmp::Reverse(o.0), o.1));
    let holds = |w: &&[(usize, usize)]| w.iter().map(|o| o.0).sum::<usize>() >= wanted;
    let mut found: Vec<&[(usize, usize)]> = order.windows(max).filter(holds).collect();
    while found.len() > most {
        found.remove(most / 2);
    }
    let indices = |w: &[(usize, usize)]| {
        let mut set: Vec<usize> = w.iter().map(|o| o.1).collect();
        set.sort_unstable();
        set
    };
    found.into_iter().map(indices).collect()
}

/// Every set of `k` numbers below `n`.
fn combinations(n: usize, k: usize, chosen: &mut Vec<usize>, out: &mut Vec<Vec<usize>>) {
    if chosen.len() == k {
        out.push(chosen.clone());
        return;
    }
    let from = chosen.last().map_or(0, |l| l + 1);
    for i in from..n {
        chosen.push(i);
        combinations(n, k, chosen, out);
        chosen.pop();
    }
}
