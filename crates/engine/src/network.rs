//! What differs between two networks of one cluster: what a model has learned of one of them need not hold on the other.

use predict::{BandwidthModel, Model};
use std::collections::{BTreeMap, HashMap};
use topology::{Cluster, HostId, Rails, count};

/// Most hosts that a sentence names.
const NAMED_MAX: usize = 3;

/// The differences between the networks of two states of a cluster, a few words each; empty if there are none. Hosts are compared by name, and
/// only those of both clusters. O(hosts x tiers).
pub fn network_changes(before: &Cluster, after: &Cluster) -> Vec<String> {
    let mut out = Vec::new();
    if before.network.class != after.network.class {
        out.push(format!("the class is {}, it was {}", after.network.class.words(), before.network.class.words()));
    }
    tiers(before, after, &mut out);
    if before.network.rails != after.network.rails {
        out.push(format!("the rails are {}, they were {}", rails(after.network.rails), rails(before.network.rails)));
    }
    let (a, b) = (host_links(before, after), host_links(after, before));
    if a != b {
        let differ = a.iter().filter(|l| b.get(l.0) != Some(l.1)).count();
        let new = b.keys().filter(|pair| !a.contains_key(*pair)).count();
        out.push(format!("{} changed", count(differ + new, "host link")));
    }
    for t in &after.types {
        let nics = |t: &topology::HostType| -> Vec<f64> { t.nics.iter().map(|n| n.line_rate.gb_per_s()).collect() };
        let old = before.types.iter().find(|o| o.name == t.name);
        if old.is_some_and(|o| nics(o) != nics(t)) {
            out.push(format!("the NICs of {} have other rates", t.name));
        }
    }
    out
}

/// The switches that the readings of a model show and the cluster file lacks: a sentence, and the line that adds them to
/// the file; none if there are none. O(hosts).
pub(crate) fn found_switches(cluster: &Cluster, model: &Model) -> Option<(String, String)> {
    let found = model.with_found_switches().filter(|_| cluster.tiers().is_empty())?;
    let below: Vec<Vec<HostId>> = (0..found.switch_count(0)).map(|s| found.hosts_below(0, s).collect()).collect();
    let most = below.iter().map(Vec::len).max()?;
    let example = below.iter().find(|s| s.len() == most)?;
    let (last, others) = below.split_last()?;
    let in_order = below.iter().flatten().copied().eq(found.host_ids());
    let switches = if in_order && others.iter().all(|s| s.len() == most) && last.len() <= most {
        format!("hosts_per_switch: {most}")
    } else {
        let one =
            |(i, s): (usize, &Vec<HostId>)| format!("{{name: leaf-{i}, hosts: '{}'}}", found.host_list(s.clone()));
        format!("switches: [{}]", below.iter().enumerate().map(one).collect::<Vec<_>>().join(", "))
    };
    let sentence = format!(
        "the readings show {} of up to {} that the cluster file lacks: {} share one",
        count(below.len(), "switch"),
        count(most, "host"),
        found.host_list(example.clone())
    );
    Some((sentence, format!("tiers: [{{name: leaf, {switches}}}]")))
}

fn tiers(before: &Cluster, after: &Cluster, out: &mut Vec<String>) {
    let names = |c: &Cluster| -> Vec<String> { c.tiers().iter().map(|t| t.name.clone()).collect() };
    let (old, new) = (names(before), names(after));
    out.extend(old.iter().filter(|n| !new.contains(n)).map(|n| format!("tier {n} is gone")));
    out.extend(new.iter().filter(|n| !old.contains(n)).map(|n| format!("tier {n} is new")));
    for (i, t) in after.tiers().iter().enumerate() {
        let Some(j) = old.iter().position(|n| *n == t.name) else { continue };
        let (was, is) = (before.tiers()[j].oversubscription, t.oversubscription);
        if was != is {
            out.push(format!("tier {} has an oversubscription of {is}:1, it was {was}:1", t.name));
        }
        let moved = moved(before, j, after, i);
        if !moved.is_empty() {
            let some: Vec<&str> = moved.iter().take(NAMED_MAX).copied().collect();
            let (some, more) = (some.join(", "), if moved.len() > NAMED_MAX { ", ..." } else { "" });
            let verb = if moved.len() == 1 { "is" } else { "are" };
            let hosts = count(moved.len(), "host");
            out.push(format!("{hosts} {verb} below another {} switch ({some}{more})", t.name));
        }
    }
}

/// Hosts of both clusters that are below another switch: a switch is the one to which most of its hosts went. Names of switches do not count.
fn moved<'a>(before: &Cluster, old: usize, after: &'a Cluster, new: usize) -> Vec<&'a str> {
    let index = before.host_index();
    let both: Vec<(HostId, usize, usize)> = after
        .host_ids()
        .filter_map(|h| {
            let was = *index.get(after.host(h).name.as_str())?;
            Some((h, before.switch_of(old, was), after.switch_of(new, h)))
        })
        .collect();
    let mut together: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    both.iter().for_each(|(_, was, is)| *together.entry((*was, *is)).or_default() += 1);
    // Largest first, so that each switch finds the one that has most of its hosts, and each is found once.
    let mut pairs: Vec<((usize, usize), usize)> = together.into_iter().collect();
    pairs.sort_by_key(|(pair, n)| (std::cmp::Reverse(*n), *pair));
    let (mut same, mut taken) = (HashMap::new(), std::collections::HashSet::new());
    for ((was, is), _) in pairs {
        if !same.contains_key(&was) && taken.insert(is) {
            same.insert(was, is);
        }
    }
    let other = |(_, was, is): &&(HostId, usize, usize)| same.get(was) != Some(is);
    both.iter().filter(other).map(|(h, ..)| after.host(*h).name.as_str()).collect()
}

/// The rates of pairs of hosts of both clusters, by name.
fn host_links(c: &Cluster, other: &Cluster) -> BTreeMap<(String, String), u64> {
    let known = other.host_index();
    let link = |l: &topology::HostLink| {
        let (a, b) = (&c.host(l.a).name, &c.host(l.b).name);
        let pair = if a <= b { (a.clone(), b.clone()) } else { (b.clone(), a.clone()) };
        (known.contains_key(a.as_str()) && known.contains_key(b.as_str()))
            .then_some((pair, l.rate.gb_per_s().to_bits()))
    };
    c.network.host_links.iter().filter_map(link).collect()
}

fn rails(r: Option<Rails>) -> &'static str {
    match r {
        None => "none",
        Some(Rails::Joined) => "joined",
        Some(Rails::Separate) => "separate",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::Tier;

    fn site(hosts_per_leaf: usize, oversubscription: f64) -> Cluster {
        let mut c = topology::catalog::cluster("h100").expect("a cluster of the catalogue");
        c.network.tiers = vec![Tier::regular("leaf", hosts_per_leaf, oversubscription)];
        c
    }

    #[test]
    fn a_network_differs_by_its_tiers_their_rates_the_hosts_below_and_the_rails() {
        assert!(network_changes(&site(2, 2.0), &site(2, 2.0)).is_empty());
        assert_eq!(
            network_changes(&site(2, 2.0), &site(2, 4.0)),
            ["tier leaf has an oversubscription of 4:1, it was 2:1"]
        );
        let mut other = site(2, 2.0);
        other.network.tiers.clear();
        other.network.rails = Some(Rails::Separate);
        assert_eq!(
            network_changes(&site(2, 2.0), &other),
            ["tier leaf is gone", "the rails are separate, they were none"]
        );
        assert_eq!(network_changes(&other, &site(2, 2.0))[0], "tier leaf is new");
    }

    #[test]
    fn the_order_of_hosts_and_hosts_that_came_are_no_change_but_a_host_below_another_switch_is() {
        let before = site(2, 2.0);
        let mut reordered = before.clone();
        reordered.hosts.rotate_left(2);
        assert!(network_changes(&before, &reordered).is_empty(), "the same pairs");
        let mut swapped = before.clone();
        swapped.hosts.swap(1, 2);
        assert_eq!(network_changes(&before, &swapped), ["2 hosts are below another leaf switch (n2, n1)"]);
        let mut link = before.clone();
        let rate = topology::Bandwidth::from_gb_per_s(10.0);
        link.network.host_links.push(topology::HostLink { a: HostId(0), b: HostId(1), rate });
        assert_eq!(network_changes(&before, &link), ["1 host link changed"]);
    }
}
