//! What makes a cluster the same cluster for a store or a state, and what changed where it grew or shrank.
//!
//! Files keep hosts by name, so a file fits every cluster in which a name means the same hardware: same cluster name, same type name and
//! GPU count of a host. The order of hosts and types, drained GPUs, NIC health and rates may change without any trace. Hosts may come
//! and go: what is known of the others stays. A cluster of which fewer than half of the hosts are known is another cluster: names such as
//! `n0` are common.

use crate::digest::fnv64;
use serde::Serialize;
use std::collections::BTreeMap;
use topology::{Cluster, HostId};

/// The identity in text, one host a line; what [`fingerprint`] digests and what differences are told from.
pub fn identity(cluster: &Cluster) -> String {
    let mut s = format!("{}\n", cluster.name);
    for h in cluster.host_ids() {
        s.push_str(&format!("{} is {}\n", cluster.host(h).name, type_text(cluster, h)));
    }
    s
}

/// What a host is: `hgx-h100 with 8 GPUs`.
pub(crate) fn type_text(cluster: &Cluster, host: HostId) -> String {
    let t = cluster.type_of(host);
    format!("{} with {} GPUs", t.name, t.gpu_count())
}

/// Sixteen hexadecimal digits of the identity.
pub fn fingerprint(identity: &str) -> String {
    format!("{:016x}", fnv64([identity]))
}

/// Hosts that came, went or became other hardware, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostChanges {
    /// New ones.
    pub added: Vec<String>,
    /// Gone ones.
    pub removed: Vec<String>,
    /// Hosts of another type than before, or with another number of GPUs.
    pub retyped: Vec<String>,
}

impl HostChanges {
    /// Are all hosts as they were?
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.retyped.is_empty()
    }

    /// In words: `1 host added (n64), 2 removed (n0, n7)`.
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

/// How a cluster is related to the one that a file is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kinship {
    /// The same hosts, in whatever order.
    Same,
    /// The same cluster, with other hosts than before.
    Changed(HostChanges),
    /// Another cluster: the first difference in words.
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
    fn hosts_come_and_go_and_change_and_half_of_them_must_stay() {
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
