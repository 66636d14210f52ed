//! Rates learned from readings. The cluster file's rates of NICs and switches are the prior.
//!
//! [`LearnedRates`] holds what the readings show: per host type the rate of its NICs; per tier the rate of its uplinks
//! and the share of bandwidth that flows across the tier keep; and the parts slower than others of their kind (rail,
//! switch with its hosts, host, NIC). A [`RatedCluster`] is the cluster file at these rates. The physics and the
//! searches compute with it, so each rate enters the physics' minimum. Types, tiers, switches and hosts are identified
//! by name, because indices change when the cluster file changes.

use fabric::Crossings;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use topology::switches::{NamedSwitch, NamedSwitches, Switches};
use topology::{Bandwidth, Cluster, HostId, Tier};

/// Range of the factor of a host type's NICs. Files are wrong by up to a factor of ten (Gbit/s for GB/s).
pub(crate) const NIC_FACTOR: (f64, f64) = (0.05, 20.0);
/// Range of the factor of a tier's uplinks.
pub(crate) const UPLINK_FACTOR: (f64, f64) = (0.1, 10.0);
/// Range of the share of bandwidth that flows keep when they cross a tier.
pub(crate) const KEPT: (f64, f64) = (0.2, 1.0);
/// Range of the factor of that share at a single switch.
pub(crate) const KEPT_OF_SWITCH: (f64, f64) = (0.5, 2.0);
/// Maximum number of slow parts in a model.
pub const SLOW_PARTS_MAX: usize = 64;

/// A part of the network that can be slower than others of its kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "part")]
pub enum Part {
    /// The NICs of one index on all hosts.
    Rail {
        /// Index of the NIC on its host.
        nic: u8,
    },
    /// The NICs of all hosts below a switch.
    Switch {
        /// Name of the tier.
        tier: String,
        /// Name of the switch.
        switch: String,
    },
    /// The NICs of one index on the hosts below a switch.
    SwitchRail {
        /// Name of the tier.
        tier: String,
        /// Name of the switch.
        switch: String,
        /// Index of the NIC on its host.
        nic: u8,
    },
    /// All NICs of a host.
    Host {
        /// Name of the host.
        host: String,
    },
    /// One NIC.
    Nic {
        /// Name of its host.
        host: String,
        /// Index of the NIC on its host.
        nic: u8,
    },
}

impl Part {
    /// Hosts of the part, each with a mask of its NICs; empty if the cluster does not have the part. O(hosts).
    pub(crate) fn nics(&self, cluster: &Cluster) -> Vec<(HostId, u32)> {
        let named = |name: &str| cluster.host_ids().find(|h| cluster.host(*h).name == name);
        match self {
            Part::Rail { nic } => cluster.host_ids().map(|h| (h, bit(*nic))).collect(),
            Part::Host { host } => named(host).map(|h| (h, u32::MAX)).into_iter().collect(),
            Part::Nic { host, nic } => named(host).map(|h| (h, bit(*nic))).into_iter().collect(),
            Part::Switch { tier, switch } => below(cluster, tier, switch).map(|h| (h, u32::MAX)).collect(),
            Part::SwitchRail { tier, switch, nic } => below(cluster, tier, switch).map(|h| (h, bit(*nic))).collect(),
        }
    }

    /// True for a part that several hosts share: a rail or a switch.
    pub fn is_shared(&self) -> bool {
        matches!(self, Part::Rail { .. } | Part::Switch { .. } | Part::SwitchRail { .. })
    }

    /// Name for people: `rail 3`, `the hosts below leaf-a`, `the NICs of n3`, `NIC mlx5_2 of n3`.
    pub fn name(&self, cluster: &Cluster) -> String {
        match self {
            Part::Rail { nic } => format!("rail {nic}"),
            Part::Switch { switch, .. } => format!("the hosts below {switch}"),
            Part::SwitchRail { switch, nic, .. } => format!("rail {nic} below {switch}"),
            Part::Host { host } => format!("the NICs of {host}"),
            Part::Nic { host, nic } => {
                let type_of = cluster.hosts.iter().find(|h| h.name == *host).map(|h| &cluster.types[h.host_type]);
                let name = type_of.and_then(|t| t.nics.get(usize::from(*nic))).map(|n| n.name.clone());
                format!("NIC {} of {host}", name.filter(|n| !n.is_empty()).unwrap_or_else(|| nic.to_string()))
            }
        }
    }
}

/// Hosts below a switch; empty if the cluster does not have the switch.
fn below<'c>(cluster: &'c Cluster, tier: &str, switch: &str) -> impl Iterator<Item = HostId> + 'c {
    let t = cluster.tiers().iter().position(|t| t.name == tier);
    let found = t.and_then(|t| Some((t, (0..cluster.switch_count(t)).find(|s| cluster.switch_name(t, *s) == switch)?)));
    found.into_iter().flat_map(|(t, s)| cluster.hosts_below(t, s))
}

fn bit(nic: u8) -> u32 {
    1u32.checked_shl(u32::from(nic)).unwrap_or(0)
}

/// A slow part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlowPart {
    /// The part.
    #[serde(flatten)]
    pub part: Part,
    /// Remaining share of the part's rate, 0 to 1.
    pub factor: f64,
    /// Number of multi-host readings that the part slows.
    pub readings: u32,
}

/// Learned rates of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierRates {
    /// Factor of the rate of the tier's uplinks.
    pub uplinks: f64,
    /// Share of bandwidth that flows keep when they cross the tier.
    pub kept: f64,
}

impl TierRates {
    /// The rates in the cluster file.
    pub(crate) const TOLD: TierRates = TierRates { uplinks: 1.0, kept: 1.0 };
}

/// Learned corrections of a cluster's rates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LearnedRates {
    /// By name of the host type: factor of the line rates of its NICs. Absent types have the rates of the cluster file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nics: BTreeMap<String, f64>,
    /// By name of the tier. Absent tiers have the rates of the cluster file.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tiers: BTreeMap<String, TierRates>,
    /// By name of the tier and of the switch: factor of the share of bandwidth that flows from or to the switch keep when
    /// they cross the tier. Absent switches have the share of the tier.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kept_of_switches: BTreeMap<String, BTreeMap<String, f64>>,
    /// Names of the hosts below each switch that the readings show, where the cluster file has no switches; empty if
    /// they show none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<Vec<String>>,
    /// Parts slower than others of their kind, in the order found: the part with the largest gain first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowPart>,
}

/// Name of the tier of [`LearnedRates::switches`].
pub(crate) const FOUND_TIER: &str = "found";

impl LearnedRates {
    /// True if the readings correct no rate of the cluster file.
    pub fn is_empty(&self) -> bool {
        *self == LearnedRates::default()
    }

    /// These rates with only the slow parts that `keep` accepts: the site as if the others were repaired.
    pub(crate) fn with_slow_parts(&self, keep: impl Fn(&Part) -> bool) -> LearnedRates {
        LearnedRates { slow: self.slow.iter().filter(|s| keep(&s.part)).cloned().collect(), ..self.clone() }
    }

    /// These rates after hosts got new names, by old name.
    pub(crate) fn renamed(mut self, names: &BTreeMap<String, String>) -> LearnedRates {
        for s in &mut self.slow {
            if let Part::Host { host } | Part::Nic { host, .. } = &mut s.part
                && let Some(new) = names.get(host)
            {
                host.clone_from(new);
            }
        }
        for host in self.switches.iter_mut().flatten() {
            if let Some(new) = names.get(host) {
                host.clone_from(new);
            }
        }
        self
    }

    /// The cluster with the switches that the readings show, if its file has none. Hosts that were unknown then have
    /// switches of their own. O(hosts).
    pub(crate) fn with_switches<'c>(&self, cluster: &'c Cluster) -> Cow<'c, Cluster> {
        if self.switches.is_empty() || !has_one_switch(cluster) {
            return Cow::Borrowed(cluster);
        }
        let number = self.switches.iter().enumerate().flat_map(|(i, s)| s.iter().map(move |n| (n.as_str(), i)));
        let number: HashMap<&str, usize> = number.collect();
        let mut below: BTreeMap<(usize, u32), Vec<HostId>> = BTreeMap::new();
        for h in cluster.host_ids() {
            let key = number.get(cluster.host(h).name.as_str()).map_or((usize::MAX, h.0), |s| (*s, 0));
            below.entry(key).or_default().push(h);
        }
        let named = below.into_values().map(|hosts| NamedSwitch { name: cluster.host_list(hosts.clone()), hosts });
        let Ok(switches) = NamedSwitches::new(named) else { return Cow::Borrowed(cluster) };
        let tier = Tier { name: FOUND_TIER.into(), switches: Switches::Named(switches), oversubscription: 1.0 };
        let mut with = cluster.clone();
        with.network.tiers = vec![tier];
        Cow::Owned(with)
    }

    /// Checks rates read from a file.
    pub(crate) fn check(&self) -> Result<(), String> {
        let within = |v: f64, range: (f64, f64)| v.is_finite() && v >= 0.5 * range.0 && v <= 2.0 * range.1;
        let known = self.switches.iter().map(Vec::len).sum::<usize>();
        if known > topology::HOSTS_MAX || self.switches.iter().any(Vec::is_empty) {
            return Err("a switch without hosts, or too many hosts".into());
        }
        let fine = self.nics.values().all(|f| within(*f, NIC_FACTOR))
            && self.kept_of_switches.values().flat_map(BTreeMap::values).all(|f| within(*f, KEPT_OF_SWITCH))
            && self.tiers.values().all(|t| within(t.uplinks, UPLINK_FACTOR) && t.kept > 0.0 && t.kept <= 1.0)
            && self.slow.iter().all(|s| s.factor.is_finite() && (0.0..=1.0).contains(&s.factor));
        if self.slow.len() > SLOW_PARTS_MAX {
            return Err(format!("it knows {} slow parts; at most {SLOW_PARTS_MAX} are supported", self.slow.len()));
        }
        if fine { Ok(()) } else { Err("a learned rate is out of range".into()) }
    }

    /// The cluster at these rates. O(hosts x slow parts).
    pub(crate) fn on(&self, cluster: &Cluster) -> RatedCluster {
        let cluster = self.with_switches(cluster);
        let mut rated = cluster.clone().into_owned();
        for s in &self.slow {
            slow_down(&mut rated, &s.part.nics(&cluster), s.factor);
        }
        let mut site = RatedCluster::new(rated);
        site.set_shared(&cluster, self);
        site
    }

    /// The rates of a tier, by its name.
    fn tier(&self, name: &str) -> TierRates {
        self.tiers.get(name).copied().unwrap_or(TierRates::TOLD)
    }
}

/// True if the file of a cluster places all hosts below a single switch.
pub(crate) fn has_one_switch(cluster: &Cluster) -> bool {
    let network = &cluster.network;
    network.tiers.is_empty() && network.host_links.is_empty() && network.rails.is_none()
}

/// Multiplies the health of the given NICs of hosts by `factor`.
pub(crate) fn slow_down(cluster: &mut Cluster, nics: &[(HostId, u32)], factor: f64) {
    for &(h, which) in nics {
        let n = cluster.type_of(h).nics.len();
        let health = &mut cluster.hosts[h.index()].nic_health;
        health.resize(n, 1.0);
        health.iter_mut().enumerate().filter(|(i, _)| which >> i & 1 == 1).for_each(|(_, f)| *f *= factor);
    }
}

/// A cluster at its learned rates.
#[derive(Clone, Debug)]
pub struct RatedCluster {
    /// The hosts, NICs and switches at these rates.
    pub cluster: Cluster,
    /// By host: a number shared by all hosts of equal type and equal NIC health.
    kinds: Vec<u32>,
    /// What flows lose above switches; None if nothing.
    crossings: Option<Arc<Crossings>>,
    /// True if all hosts are below a single switch, so that positions in the network are equivalent.
    one_switch: bool,
}

impl RatedCluster {
    /// The cluster at the rates of its file. O(hosts).
    fn new(cluster: Cluster) -> RatedCluster {
        let kinds = RatedCluster::kinds_of(&cluster);
        let one_switch = has_one_switch(&cluster);
        RatedCluster { cluster, kinds, crossings: None, one_switch }
    }

    /// By host: a number shared by all hosts of equal type and equal NIC health. O(hosts).
    pub fn kinds_of(cluster: &Cluster) -> Vec<u32> {
        let mut seen: HashMap<(usize, Vec<u64>), u32> = HashMap::new();
        let alike =
            |t: usize| (0..t).find(|o| crate::shares::alike(&cluster.types[*o], &cluster.types[t])).unwrap_or(t);
        let type_of: Vec<usize> = (0..cluster.types.len()).map(alike).collect();
        let kind = |h: &topology::Host| {
            let ill = h.nic_health.iter().any(|f| *f != 1.0);
            let health = if ill { h.nic_health.iter().map(|f| f.to_bits()).collect() } else { Vec::new() };
            let next = seen.len() as u32;
            *seen.entry((type_of[h.host_type], health)).or_insert(next)
        };
        cluster.hosts.iter().map(kind).collect()
    }

    /// Sets the rates of host types and tiers; `told` is the cluster file. Slow parts are unchanged. O(types x NICs +
    /// tiers).
    pub(crate) fn set_shared(&mut self, told: &Cluster, rates: &LearnedRates) {
        for (from, to) in told.types.iter().zip(&mut self.cluster.types) {
            let factor = rates.nics.get(&from.name).copied().unwrap_or(1.0);
            for (a, b) in from.nics.iter().zip(&mut to.nics) {
                b.line_rate = Bandwidth::from_gb_per_s(a.line_rate.gb_per_s() * factor);
            }
        }
        for (from, to) in told.network.tiers.iter().zip(&mut self.cluster.network.tiers) {
            to.oversubscription = from.oversubscription / rates.tier(&from.name).uplinks;
        }
        let kept = Crossings::new(told.tiers().iter().map(|t| rates.tier(&t.name).kept).collect());
        let of_tier = |t: usize| match rates.kept_of_switches.get(&told.tiers()[t].name) {
            None => Vec::new(),
            Some(known) => {
                let factor = |s| known.get(told.switch_name(t, s).as_ref()).copied().unwrap_or(1.0);
                (0..told.switch_count(t)).map(factor).collect()
            }
        };
        let of_switches = || (0..told.tiers().len()).map(of_tier).collect();
        self.crossings = match rates.kept_of_switches.is_empty() {
            true => kept,
            false => kept.map(|c| c.with_switches(of_switches())),
        }
        .map(Arc::new);
    }

    /// By host: the number of its kind (see [`RatedCluster::kinds_of`]).
    pub fn kinds(&self) -> &[u32] {
        &self.kinds
    }

    /// The number of a host's kind (see [`RatedCluster::kinds_of`]).
    pub(crate) fn kind(&self, host: HostId) -> u32 {
        self.kinds[host.index()]
    }

    /// True if the position of a host in the network does not affect bandwidth.
    pub(crate) fn is_one_switch(&self) -> bool {
        self.one_switch
    }

    /// The same without a copy.
    pub(crate) fn crossings_ref(&self) -> Option<&Crossings> {
        self.crossings.as_deref()
    }

    /// What flows lose above switches; None if nothing.
    pub(crate) fn crossings(&self) -> Option<Arc<Crossings>> {
        self.crossings.clone()
    }

    /// Share of bandwidth that the slowest flow between these hosts keeps. O(hosts x tiers).
    pub(crate) fn kept(&self, hosts: &[(HostId, topology::GpuMask)]) -> f64 {
        self.crossings.as_ref().map_or(1.0, |c| c.worst(&self.cluster, hosts))
    }
}
