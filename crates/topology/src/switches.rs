//! The switches above the hosts: tiers, the hosts below each switch, and the share of a job below one switch.
//!
//! A tier divides the hosts into sets, one per switch. [`Switches::Regular`] counts hosts in the order of the cluster
//! file and needs no table. [`Switches::Named`] holds arbitrary sets and a table from host to switch. Both answer
//! [`Cluster::switch_of`] in O(1). [`crate::Cluster::check`] checks the rules: each host is below exactly one switch of
//! each tier, and all hosts of a switch are below the same switch of the next tier.

use crate::allocation::{Allocation, HOSTS_MAX, HostId};
use crate::cluster::Cluster;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Maximum number of tiers of a network.
pub const TIERS_MAX: usize = 8;
/// Table entry of a host without a switch.
const NO_SWITCH: u32 = u32::MAX;

/// One layer of switches above the hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "TierRecord", into = "TierRecord")]
pub struct Tier {
    /// `leaf`, `spine`, ...
    pub name: String,
    /// The hosts below each switch.
    pub switches: Switches,
    /// Ratio of the bandwidth below a switch to the bandwidth above it; 1.0 is non-blocking.
    pub oversubscription: f64,
}

impl Tier {
    /// A tier whose switches have `hosts_per_switch` hosts each, in the order of the cluster's hosts.
    pub fn regular(name: impl Into<String>, hosts_per_switch: usize, oversubscription: f64) -> Self {
        Tier { name: name.into(), switches: Switches::Regular { hosts_per_switch }, oversubscription }
    }
}

/// The hosts below each switch of a tier.
#[derive(Clone, Debug, PartialEq)]
pub enum Switches {
    /// Switch `s` has `hosts_per_switch` hosts from host `s * hosts_per_switch` on. The last switch may have fewer.
    Regular {
        /// Hosts below one switch.
        hosts_per_switch: usize,
    },
    /// Switches with names and arbitrary sets of hosts.
    Named(NamedSwitches),
}

/// A switch with a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedSwitch {
    /// Name, unique in the tier.
    pub name: String,
    /// Its hosts, ascending.
    pub hosts: Vec<HostId>,
}

/// Named switches and the table from host to switch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NamedSwitches {
    list: Vec<NamedSwitch>,
    /// Index of each host's switch, or [`NO_SWITCH`].
    of_host: Vec<u32>,
}

impl NamedSwitches {
    /// From a list of switches. Fails for a host below two switches, a switch without hosts, and an empty or duplicate
    /// name. O(hosts log hosts).
    pub fn new(switches: impl IntoIterator<Item = NamedSwitch>) -> Result<Self, SwitchError> {
        let mut list: Vec<NamedSwitch> = switches.into_iter().collect();
        let mut of_host: Vec<u32> = Vec::new();
        for (s, switch) in list.iter_mut().enumerate() {
            switch.hosts.sort_unstable();
            if switch.hosts.is_empty() {
                return Err(SwitchError::NoHosts { switch: s });
            }
            for &host in &switch.hosts {
                if host.index() >= HOSTS_MAX {
                    return Err(SwitchError::UnknownHost { switch: s, host });
                }
                if of_host.len() <= host.index() {
                    of_host.resize(host.index() + 1, NO_SWITCH);
                }
                let before = std::mem::replace(&mut of_host[host.index()], s as u32);
                if before != NO_SWITCH {
                    return Err(SwitchError::TwoSwitches { host, first: before as usize, second: s });
                }
            }
        }
        let mut names: Vec<(&str, usize)> = list.iter().enumerate().map(|(s, n)| (n.name.as_str(), s)).collect();
        names.sort_unstable();
        if let Some(w) = names.windows(2).find(|w| w[0].0 == w[1].0) {
            return Err(SwitchError::SameName { first: w[0].1, second: w[1].1 });
        }
        Ok(NamedSwitches { list, of_host })
    }

    /// The switches, in the order of the file.
    pub fn list(&self) -> &[NamedSwitch] {
        &self.list
    }
}

/// Reason why [`NamedSwitches::new`] refuses its switches. The fields give switches as indices into the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// A switch without hosts.
    #[error("switch {switch} has no hosts")]
    NoHosts {
        /// The switch.
        switch: usize,
    },
    /// A host below two switches of one tier, or twice below one.
    #[error("host {} is below switch {first} and below switch {second}", host.0)]
    TwoSwitches {
        /// The host.
        host: HostId,
        /// The switch that names the host first.
        first: usize,
        /// The switch that names the host again.
        second: usize,
    },
    /// A host id beyond the largest cluster.
    #[error("switch {switch} has host {}, which does not exist", host.0)]
    UnknownHost {
        /// The switch.
        switch: usize,
        /// The host.
        host: HostId,
    },
    /// Two switches of one tier with the same name.
    #[error("switches {first} and {second} have the same name")]
    SameName {
        /// One switch.
        first: usize,
        /// The other switch.
        second: usize,
    },
}

impl Switches {
    /// Index of the switch above a host. O(1).
    #[inline]
    pub fn of(&self, host: HostId) -> usize {
        match self {
            Switches::Regular { hosts_per_switch } => host.index() / (*hosts_per_switch).max(1),
            Switches::Named(n) => n.of_host.get(host.index()).map_or(NO_SWITCH as usize, |s| *s as usize),
        }
    }
    /// Number of switches above `hosts` hosts. O(1).
    pub fn count(&self, hosts: usize) -> usize {
        match self {
            Switches::Regular { hosts_per_switch } => hosts.div_ceil((*hosts_per_switch).max(1)),
            Switches::Named(n) => n.list.len(),
        }
    }
    /// The hosts below one switch of a cluster of `hosts` hosts, ascending; empty for a switch that does not exist. O(1) to begin.
    pub fn hosts(&self, switch: usize, hosts: usize) -> SwitchHosts<'_> {
        match self {
            Switches::Regular { hosts_per_switch } => {
                let n = (*hosts_per_switch).max(1);
                let first = switch.saturating_mul(n).min(hosts);
                SwitchHosts::Run(first as u32..first.saturating_add(n).min(hosts) as u32)
            }
            Switches::Named(n) => SwitchHosts::List(n.list.get(switch).map_or(&[][..], |s| &s.hosts[..]).iter()),
        }
    }
    /// Name of a switch. Without a name of its own: name of the tier and number of the switch.
    pub fn name<'a>(&'a self, tier: &str, switch: usize) -> Cow<'a, str> {
        match self {
            Switches::Named(n) if switch < n.list.len() => Cow::Borrowed(&n.list[switch].name),
            _ => Cow::Owned(format!("{tier} {switch}")),
        }
    }
}

/// The hosts below a switch, ascending.
#[derive(Clone, Debug)]
pub enum SwitchHosts<'a> {
    /// Consecutive host ids.
    Run(std::ops::Range<u32>),
    /// Arbitrary host ids.
    List(std::slice::Iter<'a, HostId>),
}

impl Iterator for SwitchHosts<'_> {
    type Item = HostId;
    #[inline]
    fn next(&mut self) -> Option<HostId> {
        match self {
            SwitchHosts::Run(r) => r.next().map(HostId),
            SwitchHosts::List(l) => l.next().copied(),
        }
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            SwitchHosts::Run(r) => r.size_hint(),
            SwitchHosts::List(l) => l.size_hint(),
        }
    }
}
impl ExactSizeIterator for SwitchHosts<'_> {}

/// How the rails of a rail-optimised fabric meet. In such a fabric NIC `i` of each host below a switch of the lowest tier goes to
/// rail switch `i`, so that a "switch" of this tier is one switch for each NIC index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Rails {
    /// The rails meet in the layer above, over the uplinks of the rail switches.
    Joined,
    /// No path joins the rails: NICs of different index do not reach each other.
    Separate,
}

impl Cluster {
    /// The tiers of switches, nearest to the hosts first. Empty for one non-blocking switch.
    #[inline]
    pub fn tiers(&self) -> &[Tier] {
        &self.network.tiers
    }
    /// Index of the switch of a tier above a host. O(1).
    #[inline]
    pub fn switch_of(&self, tier: usize, host: HostId) -> usize {
        self.network.tiers[tier].switches.of(host)
    }
    /// The switches above a host, of the highest tier first. Hosts sorted by this are adjacent below every switch.
    /// O(tiers).
    pub fn switches_above(&self, host: HostId) -> [usize; TIERS_MAX] {
        let tiers = self.network.tiers.len();
        let mut above = [0; TIERS_MAX];
        (0..tiers).for_each(|t| above[tiers - 1 - t] = self.switch_of(t, host));
        above
    }
    /// Number of switches of a tier. O(1).
    pub fn switch_count(&self, tier: usize) -> usize {
        self.network.tiers[tier].switches.count(self.hosts.len())
    }
    /// The hosts below one switch of a tier, ascending. O(1) to begin.
    pub fn hosts_below(&self, tier: usize, switch: usize) -> SwitchHosts<'_> {
        self.network.tiers[tier].switches.hosts(switch, self.hosts.len())
    }
    /// The hosts of each switch of a tier, in the order of the switches.
    pub fn switches(&self, tier: usize) -> impl ExactSizeIterator<Item = SwitchHosts<'_>> + '_ {
        (0..self.switch_count(tier)).map(move |s| self.hosts_below(tier, s))
    }
    /// Name of a switch: `leaf-a`, or `leaf 3` for a switch without a name.
    pub fn switch_name(&self, tier: usize, switch: usize) -> Cow<'_, str> {
        let t = &self.network.tiers[tier];
        t.switches.name(&t.name, switch)
    }
    /// The switches of a tier above an allocation, each with the number of the allocation's GPUs below it, ascending by
    /// switch. O(h) for h hosts of the allocation, O(h log h) if its hosts alternate between switches.
    pub fn gpus_below(&self, tier: usize, allocation: &Allocation) -> Vec<(usize, usize)> {
        let switches = &self.network.tiers[tier].switches;
        let mut below: Vec<(usize, usize)> = Vec::new();
        for &(host, mask) in allocation.parts() {
            let s = switches.of(host);
            match below.last_mut() {
                Some(last) if last.0 == s => last.1 += mask.count(),
                _ => below.push((s, mask.count())),
            }
        }
        if !below.is_sorted_by(|a, b| a.0 < b.0) {
            below.sort_unstable();
            below.dedup_by(|b, a| {
                a.0 == b.0 && {
                    a.1 += b.1;
                    true
                }
            });
        }
        below
    }
    /// Number of switches of a tier above an allocation. Same cost as [`Cluster::gpus_below`].
    pub fn switches_spanned(&self, tier: usize, allocation: &Allocation) -> usize {
        self.gpus_below(tier, allocation).len()
    }
    /// Largest share of an allocation's GPUs below one switch of a tier, 0 to 1; 1 for an empty allocation. Same cost
    /// as [`Cluster::gpus_below`].
    pub fn largest_share_below_one_switch(&self, tier: usize, allocation: &Allocation) -> f64 {
        let most = self.gpus_below(tier, allocation).into_iter().map(|b| b.1).max();
        most.map_or(1.0, |m| m as f64 / allocation.gpu_count() as f64)
    }
    /// Ratio of the bandwidth of the hosts below a switch of this tier to the bandwidth of its uplinks: the product of
    /// the oversubscriptions up to this tier, because every lower tier also limits the bandwidth.
    pub fn oversubscription_up_to(&self, tier: usize) -> f64 {
        self.network.tiers[..=tier].iter().map(|t| t.oversubscription).product()
    }
}

/// The name of the level of single hosts in requests, which no tier may have.
const RESERVED_NAME: &str = "host";

/// Checks the tiers of a cluster of `hosts` hosts. The error states the first broken rule. `name` returns the name of a
/// host. O(tiers x hosts).
pub(crate) fn check(tiers: &[Tier], hosts: usize, name: &dyn Fn(HostId) -> String) -> Result<(), String> {
    if tiers.len() > TIERS_MAX {
        return Err(format!("the network has {} tiers; at most {TIERS_MAX} are supported", tiers.len()));
    }
    for (i, tier) in tiers.iter().enumerate() {
        let t = &tier.name;
        // Requests name levels in any case.
        if t.eq_ignore_ascii_case(RESERVED_NAME) {
            return Err(format!("a tier is named `{t}`, which means single hosts in requests (--require-level host)"));
        }
        if tiers[..i].iter().any(|lower| lower.name.eq_ignore_ascii_case(t)) {
            return Err(format!("two tiers are named `{t}`"));
        }
        if !(tier.oversubscription >= 1.0 && tier.oversubscription <= 1000.0) {
            return Err(format!(
                "tier `{t}` has an oversubscription of {}; 1 is non-blocking, 2 means half",
                tier.oversubscription
            ));
        }
        match &tier.switches {
            Switches::Regular { hosts_per_switch: n } if *n == 0 || *n > HOSTS_MAX => {
                return Err(format!("tier `{t}` has {n} hosts per switch"));
            }
            Switches::Regular { .. } => {}
            Switches::Named(named) => {
                let below_none = |h: &usize| named.of_host.get(*h).is_none_or(|s| *s == NO_SWITCH);
                if let Some(h) = (0..hosts).find(below_none) {
                    return Err(format!("host `{}` is below no switch of tier `{t}`", name(HostId(h as u32))));
                }
                if named.of_host.len() > hosts {
                    return Err(format!("tier `{t}` has host {}, but the cluster has {hosts} hosts", hosts));
                }
            }
        }
        if let Some(lower) = i.checked_sub(1).map(|l| &tiers[l]) {
            check_nested(lower, tier, hosts, name)?;
        }
    }
    Ok(())
}

/// Checks that the hosts of every switch of `lower` are below one switch of `upper`.
fn check_nested(lower: &Tier, upper: &Tier, hosts: usize, name: &dyn Fn(HostId) -> String) -> Result<(), String> {
    if let (Switches::Regular { hosts_per_switch: l }, Switches::Regular { hosts_per_switch: u }) =
        (&lower.switches, &upper.switches)
        && u < l
    {
        return Err(format!(
            "tier `{}` has {u} hosts per switch, fewer than the tier below it ({l}); tiers go upwards from the hosts",
            upper.name
        ));
    }
    let mut above: Vec<Option<HostId>> = vec![None; lower.switches.count(hosts)];
    for h in (0..hosts as u32).map(HostId) {
        let switch = lower.switches.of(h);
        let first = *above[switch].get_or_insert(h);
        let (a, b) = (upper.switches.of(first), upper.switches.of(h));
        if a != b {
            return Err(format!(
                "tier `{}` divides the hosts of one switch of the tier below: `{}` and `{}` are both below `{}`, but \
                 below `{}` and `{}`",
                upper.name,
                name(first),
                name(h),
                lower.switches.name(&lower.name, switch),
                upper.switches.name(&upper.name, a),
                upper.switches.name(&upper.name, b)
            ));
        }
    }
    Ok(())
}

/// A tier in JSON, with either `hosts_per_switch` or `switches`.
#[derive(Serialize, Deserialize)]
struct TierRecord {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hosts_per_switch: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    switches: Option<Vec<NamedSwitch>>,
    oversubscription: f64,
}

impl From<Tier> for TierRecord {
    fn from(t: Tier) -> Self {
        let (hosts_per_switch, switches) = match t.switches {
            Switches::Regular { hosts_per_switch } => (Some(hosts_per_switch), None),
            Switches::Named(n) => (None, Some(n.list)),
        };
        TierRecord { name: t.name, hosts_per_switch, switches, oversubscription: t.oversubscription }
    }
}

impl TryFrom<TierRecord> for Tier {
    type Error = String;
    fn try_from(r: TierRecord) -> Result<Self, String> {
        let switches = match (r.hosts_per_switch, r.switches) {
            (Some(hosts_per_switch), None) => Switches::Regular { hosts_per_switch },
            (None, Some(list)) => Switches::Named(NamedSwitches::new(list).map_err(|e| e.to_string())?),
            _ => return Err(format!("tier `{}` has not exactly one of `hosts_per_switch` and `switches`", r.name)),
        };
        Ok(Tier { name: r.name, switches, oversubscription: r.oversubscription })
    }
}
