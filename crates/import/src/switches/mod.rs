//! Reads the switches above the hosts of a site from any of four sources, and builds the cluster's network.

mod defects;
mod ibnet;
mod slurm_conf;
mod slurm_yaml;
mod topograph;
mod tree;

pub use ibnet::read as read_ibnetdiscover;
pub use slurm_conf::read as read_slurm_conf;
pub use slurm_yaml::read as read_slurm_yaml;
pub use topograph::{of_labels, read as read_topograph};

use std::collections::{BTreeMap, HashMap};
use topology::{
    HOSTS_MAX, Host, HostId, NamedSwitch, NamedSwitches, Network, NetworkClass, Rails, Switches, Tier, names,
};

/// Maximum size of a file of switches, bytes: `ibnetdiscover` prints about 100 bytes per port.
pub const FILE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of switches in one file.
pub const SWITCHES_MAX: usize = 100_000;
/// Maximum number of tiers in a file.
pub const TIERS_MAX: usize = topology::switches::TIERS_MAX;

/// A switch, or a group of switches that counts as one, with the hosts below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WiredSwitch {
    pub name: String,
    /// Names of its hosts as in the file, sorted so that `n9` comes before `n10`.
    pub hosts: Vec<String>,
}

/// One layer of switches.
#[derive(Clone, Debug, PartialEq)]
pub struct WiredTier {
    pub name: String,
    pub switches: Vec<WiredSwitch>,
    /// Bandwidth below over bandwidth above; `None` if the file does not state it.
    pub oversubscription: Option<f64>,
}

/// The network that a file describes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wiring {
    /// Tiers, nearest to the hosts first. Empty for a single switch.
    pub tiers: Vec<WiredTier>,
    /// All hosts of the file, in file order.
    pub hosts: Vec<String>,
    /// Class of the network; `None` if the file does not state it.
    pub class: Option<NetworkClass>,
    pub rails: Option<Rails>,
    /// Rates of ports in Gbit/s by host and device name, if the file states them.
    pub port_gbit_per_s: BTreeMap<(String, String), f64>,
    /// One sentence per inference.
    pub notes: Vec<String>,
}

/// Reason why a wiring gives no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WiringError {
    #[error("host `{host}` is below no switch of {file}; add it there, or leave it out of --hosts")]
    Unwired { host: String, file: String },
    #[error("{0}")]
    Tiers(String),
    #[error("--oversubscription names tier `{name}`, the file has {known}")]
    UnknownTier { name: String, known: String },
}

/// Values that complete the network of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkOptions {
    /// Oversubscription by name of the tier; the name `""` means all tiers.
    pub oversubscription: Vec<(String, f64)>,
}

impl Wiring {
    /// The network of these hosts, and notes. Ignores hosts of the file that the cluster lacks. `file`: its name in
    /// messages. O(hosts x tiers).
    pub fn network(
        &self,
        hosts: &[Host],
        class: NetworkClass,
        options: &NetworkOptions,
        file: &str,
    ) -> Result<(Network, Vec<String>), WiringError> {
        let mut notes = Vec::new();
        let by_name: HashMap<&str, HostId> = hosts
            .iter()
            .enumerate()
            .flat_map(|(i, h)| [(h.name.as_str(), HostId(i as u32)), (names::slurm::node_name(h), HostId(i as u32))])
            .collect();
        let known = self.tiers.iter().map(|t| format!("`{}`", t.name)).collect::<Vec<_>>();
        for (name, _) in options.oversubscription.iter().filter(|(n, _)| !n.is_empty()) {
            if !self.tiers.iter().any(|t| t.name == *name) {
                let known = if known.is_empty() { "no tier".to_owned() } else { known.join(", ") };
                return Err(WiringError::UnknownTier { name: name.clone(), known });
            }
        }
        let strangers = self.hosts.iter().filter(|h| !by_name.contains_key(h.as_str())).count();
        if strangers > 0 {
            notes.push(format!("{strangers} hosts of {file} are not in this cluster and are left out"));
        }
        let mut tiers = Vec::new();
        for t in &self.tiers {
            let mut below = vec![false; hosts.len()];
            let mut switches = Vec::new();
            for s in &t.switches {
                let ids: Vec<HostId> = s.hosts.iter().filter_map(|h| by_name.get(h.as_str()).copied()).collect();
                ids.iter().for_each(|h| below[h.index()] = true);
                if !ids.is_empty() {
                    switches.push(NamedSwitch { name: s.name.clone(), hosts: ids });
                }
            }
            if let Some(h) = below.iter().position(|b| !b) {
                return Err(WiringError::Unwired { host: hosts[h].name.clone(), file: file.into() });
            }
            if switches.len() < 2 {
                notes.push(format!("tier {}: all hosts are below one switch, so it is left out", t.name));
                continue;
            }
            let by_user = options.oversubscription.iter().rev().find(|(n, _)| *n == t.name || n.is_empty());
            let oversubscription = match (by_user, t.oversubscription) {
                (Some((_, o)), _) => *o,
                (None, Some(o)) => o,
                (None, None) => {
                    notes.push(format!(
                        "{file} does not tell how much bandwidth leaves a switch of tier {}: taken as non-blocking (--oversubscription {}=2)",
                        t.name, t.name
                    ));
                    1.0
                }
            };
            let named =
                NamedSwitches::new(switches).map_err(|e| WiringError::Tiers(format!("tier {}: {e}", t.name)))?;
            tiers.push(Tier { name: t.name.clone(), switches: Switches::Named(named), oversubscription });
        }
        let network = Network { class, tiers, rails: self.rails, host_links: Vec::new() };
        network.check(hosts).map_err(WiringError::Tiers)?;
        Ok((network, notes))
    }
}

/// Name of a tier; tier 0 is nearest to the hosts.
fn tier_name(tier: usize) -> String {
    match tier {
        0 => "leaf".into(),
        1 => "spine".into(),
        2 => "core".into(),
        n => format!("tier-{}", n + 1),
    }
}

/// Sorts names so that `n9` comes before `n10`, and removes duplicates.
pub fn sort_hosts(hosts: &mut Vec<String>) {
    hosts.sort_by_cached_key(|h| natural(h));
    hosts.dedup();
}

/// The name as alternating texts and numbers, the key of the sort.
fn natural(name: &str) -> (Vec<(String, u64)>, String) {
    let mut out: Vec<(String, u64)> = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, after) = rest.split_at(digits);
        let end = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        let (number, after) = after.split_at(end);
        out.push((text.into(), number.parse().unwrap_or(0)));
        rest = after;
    }
    (out, name.into())
}

/// Expands a host list in Slurm's notation.
fn expand(list: &str) -> Result<Vec<String>, String> {
    names::hostlist::expand(list, HOSTS_MAX).map_err(|e| e.to_string())
}
