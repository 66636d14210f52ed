//! The identity of a cluster: decides whether a store or a state belongs to it, and lists added, removed and changed hosts.
//!
//! Files identify hosts by name. A file therefore fits every cluster in which a name stands for the same hardware: same
//! cluster name, same type name and GPU count of a host. The order of hosts and types, drained GPUs, NIC health and
//! rates are not part of the identity. Hosts may be added and removed: the data of the other hosts stay valid. A
//! cluster with fewer than half of the file's hosts counts as a different cluster, because names such as `n0` are
//! common.

use crate::digest::fnv64;
use serde::Serialize;
use std::collections::BTreeMap;
use topology::{Cluster, HostId};

/// The identity as text, one host per line. [`fingerprint`] digests this text, and [`compare`] finds the differences in it.
pub fn identity(cluster: &Cluster) -> String {
    let mut s = format!("{}\n", cluster.name);
    for h in cluster.host_ids() {
        s.push_str(&format!("{} is {}\n", cluster.host(h).name, type_text(cluster, h)));
    }
    s
}

/// The hardware of a host as text: `hgx-h100 with 8 GPUs`.
pub(crate) fn type_text(cluster: &Cluster, host: HostId) -> String {
    let t = cluster.type_of(host);
    format!("{} with {} GPUs", t.name, t.gpu_count())
}

/// A digest of the identity: sixteen hexadecimal digits.
pub fn fingerprint(identity: &str) -> String {
    format!("{:016x}", fnv64([identity]))
}

/// Names of the hosts that were added, removed or changed their hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostChanges {
    /// Added hosts.
    pub added: Vec<String>,
    /// Removed hosts.
    pub removed: Vec<String>,
    /// Hosts whose type or number of GPUs changed.
    pub retyped: Vec<String>,
}

impl HostChanges {
    /// True if no host changed.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.retyped.is_empty()
    }

    /// The changes as text: `1 host added (n64), 2 hosts removed (n0, n7)`.
    pub fn text(&self) -> String {
        let named = |what: &str, hosts: &[String]| {
            let some: Vec<&str> = hosts.iter().take(3).map(String::as_str).collect();
            let more = if hosts.len() > some.len() { ", ..." } else { "" };
            let s = if hosts.len() == 1 { "" } else { "s" };
            format!("{} host{s} {what} ({}{more})", hosts.len(), some.join(", "))
        };
        let all = [("added", &self.added), ("removed", &self.removed), ("of another type", &self.retyped)];
        let told: Vec<String> = all.iter().filter(|(_, h)| !h.is_empty()).map(|(what, h)| named(what, h)).collect();
        told.join(", ")
    }
}

/// The relation between a cluster and the cluster of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kinship {
    /// The same hosts, in any order.
    Same,
    /// The same cluster with added, removed or changed hosts.
    Changed(HostChanges),
    /// A different cluster, with the first difference as text.
    Other(String),
}

/// Compares the identity in a file with that of a cluster.
pub fn compare(stored: &str, given: &str) -> Kinship {
    let (name_a, a) = hosts(stored);
    let (name_b, b) = hosts(given);
    let mut changes = HostChanges::default();
    for (host, kind) in &a {
        match b.get(host) {
            None => changes.removed.push((*host).into()),
            Some(other) if other != kind => changes.retyped.push((*host).into()),
            Some(_) => {}
        }
    }
    changes.added = b.keys().filter(|h| !a.contains_key(*h)).map(|h| (*h).into()).collect();
    let kept = a.len() - changes.removed.len() - changes.retyped.len();
    if name_a != name_b {
        let hosts = if changes.is_empty() { String::new() } else { format!(" and {}", changes.text()) };
        return Kinship::Other(format!("the names differ{hosts}"));
    }
    match changes.is_empty() {
        true => Kinship::Same,
        false if 2 * kept < a.len() || kept == 0 => {
            Kinship::Other(format!("{kept} of {} hosts are the same: {}", a.len(), changes.text()))
        }
        false => Kinship::Changed(changes),
    }
}

/// The cluster's name, and every host with its type.
fn hosts(identity: &str) -> (&str, BTreeMap<&str, &str>) {
    let mut lines = identity.lines();
    let name = lines.next().unwrap_or("");
    (name, lines.filter_map(|l| l.split_once(" is ")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_may_be_added_removed_and_changed_if_half_of_them_stay() {
        let four = "c\na is x with 8 GPUs\nb is x with 8 GPUs\nd is x with 8 GPUs\ne is x with 8 GPUs\n";
        let reordered = "c\ne is x with 8 GPUs\nd is x with 8 GPUs\nb is x with 8 GPUs\na is x with 8 GPUs\n";
        assert_eq!(compare(four, reordered), Kinship::Same);
        let other = "c\nf is x with 8 GPUs\nb is y with 8 GPUs\nd is x with 8 GPUs\ne is x with 8 GPUs\n";
        let Kinship::Changed(c) = compare(four, other) else { panic!("half of the hosts are the same") };
        assert_eq!(c.text(), "1 host added (f), 1 host removed (a), 1 host of another type (b)");
        let few = "c\ne is x with 8 GPUs\n";
        assert!(matches!(compare(four, few), Kinship::Other(why) if why.starts_with("1 of 4 hosts")));
        assert!(matches!(compare(four, &four.replacen('c', "z", 1)), Kinship::Other(why) if why == "the names differ"));
    }
}
