//! Matches the hosts and host types of a cluster with those that a model learned, by name and never by position in the
//! file.
//!
//! A Gaussian process numbers hosts and gives each host type a feature. Cluster files change: types are listed in
//! another order, unused types are added, hosts are added, removed and renamed. The numbers stay with the names. A host
//! with a new name gets a new number, which has no effect until the host is measured.

use crate::features::{TYPES_MAX, feature_count};
use crate::shares::alike;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use topology::{Cluster, HOSTS_MAX, HostId};

/// The names that a model learned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Learned {
    /// By feature: the names of the host types that share it; they are the same hardware.
    types: Vec<BTreeSet<String>>,
    /// By number: the names of the host and of its type.
    hosts: Vec<(String, String)>,
    /// The types of the cluster at the fit, in the order of its file.
    order: Vec<String>,
}

/// The names that a model learned, as indices in one cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    learned: Learned,
    /// By type of the cluster: its feature; `None` without one.
    feature_of_type: Vec<Option<u8>>,
    gpus_of_type: Vec<u8>,
    fit_type: Vec<u16>,
    /// By host of the cluster: its number; `NO_NUMBER` without one.
    number_of_host: Vec<u32>,
}

/// Marks a host without a number, because none is left.
pub(crate) const NO_NUMBER: u32 = u32::MAX;

impl Learned {
    /// The names of the cluster at the fit. Types without hosts are ignored. The numbers follow the order of names, not
    /// that of the file.
    fn of(cluster: &Cluster) -> Learned {
        let used: BTreeSet<usize> = cluster.hosts.iter().map(|h| h.host_type).collect();
        let by_name: BTreeMap<&str, usize> = used.iter().map(|t| (cluster.types[*t].name.as_str(), *t)).collect();
        let mut groups: Vec<(usize, BTreeSet<String>)> = Vec::new();
        for (name, t) in by_name {
            match groups.iter_mut().find(|g| alike(&cluster.types[g.0], &cluster.types[t])) {
                Some(group) => group.1.insert(name.to_owned()),
                None => {
                    groups.push((t, BTreeSet::from([name.to_owned()])));
                    true
                }
            };
        }
        Learned {
            types: groups.into_iter().map(|g| g.1).collect(),
            hosts: cluster.host_ids().map(|h| host_and_type(cluster, h)).collect(),
            order: cluster.types.iter().map(|t| t.name.clone()).collect(),
        }
    }
}

impl Learned {
    /// These names after hosts got new names, by old name.
    pub(crate) fn renamed(mut self, names: &BTreeMap<String, String>) -> Learned {
        for (host, _) in &mut self.hosts {
            if let Some(new) = names.get(host) {
                host.clone_from(new);
            }
        }
        self
    }

    /// Checks names read from a file.
    pub(crate) fn check(&self) -> Result<(), String> {
        let most = |n: usize, most: usize, what: &str| match n <= most {
            true => Ok(()),
            false => Err(format!("it knows {n} {what}; at most {most} are supported")),
        };
        most(self.hosts.len(), HOSTS_MAX, "hosts")?;
        most(self.types.len(), usize::from(u8::MAX), "host types")
    }
}

fn host_and_type(cluster: &Cluster, h: HostId) -> (String, String) {
    (cluster.host(h).name.clone(), cluster.type_of(h).name.clone())
}

impl Names {
    /// The names of the cluster at the fit.
    pub(crate) fn new(cluster: &Cluster) -> Names {
        Names::of(Learned::of(cluster), cluster)
    }

    /// The learned names as indices in `cluster`. O(hosts + types²).
    pub(crate) fn of(mut learned: Learned, cluster: &Cluster) -> Names {
        let named = |t: usize| learned.types.iter().position(|g| g.contains(&cluster.types[t].name));
        let feature = |t: usize| {
            // Hardware that is known under another name counts as known.
            let like = |o: &usize| alike(&cluster.types[*o], &cluster.types[t]);
            named(t).or_else(|| (0..cluster.types.len()).filter(like).find_map(named))
        };
        let feature_of_type = (0..cluster.types.len()).map(|t| feature(t).map(|f| f as u8)).collect();
        let place = |name: &String| learned.order.iter().position(|o| o == name).map_or(u16::MAX, |t| t as u16);
        let fit_type = cluster.types.iter().map(|t| place(&t.name)).collect();
        let mut number: HashMap<(String, String), u32> = learned.hosts.iter().cloned().zip(0..).collect();
        let number_of_host = cluster
            .host_ids()
            .map(|h| {
                let key = host_and_type(cluster, h);
                *number.entry(key.clone()).or_insert_with(|| {
                    if learned.hosts.len() >= HOSTS_MAX {
                        return NO_NUMBER;
                    }
                    learned.hosts.push(key);
                    learned.hosts.len() as u32 - 1
                })
            })
            .collect();
        let gpus_of_type = cluster.types.iter().map(|t| t.gpu_count() as u8).collect();
        Names { learned, feature_of_type, gpus_of_type, fit_type, number_of_host }
    }

    /// The same names for another cluster.
    pub(crate) fn on(self, cluster: &Cluster) -> Names {
        Names::of(self.learned, cluster)
    }

    /// The names for a model file.
    pub(crate) fn learned(&self) -> &Learned {
        &self.learned
    }

    /// Number of features of a split.
    pub(crate) fn width(&self) -> usize {
        feature_count(self.learned.types.len())
    }

    /// Index of a type among the features of types; `None` if the type has no feature.
    pub(crate) fn feature_of(&self, host_type: u16) -> Option<usize> {
        let several = self.learned.types.len() >= 2;
        self.feature_of_type[usize::from(host_type)].map(usize::from).filter(|f| several && *f < TYPES_MAX)
    }

    /// Number of GPUs on a host of the type.
    pub(crate) fn gpus_of(&self, host_type: u16) -> u8 {
        self.gpus_of_type[usize::from(host_type)]
    }

    /// The number of a host in the Gaussian process.
    pub(crate) fn number_of(&self, host: HostId) -> u32 {
        self.number_of_host[host.index()]
    }

    /// Index of a type in the cluster of the fit; beyond all indices for a type that the fit did not include.
    pub(crate) fn fit_type(&self, host_type: u16) -> u16 {
        self.fit_type[usize::from(host_type)]
    }

    /// True if every type has the same index as in the cluster of the fit.
    pub(crate) fn types_are_in_place(&self) -> bool {
        self.fit_type.iter().enumerate().all(|(t, f)| t == usize::from(*f))
    }
}
