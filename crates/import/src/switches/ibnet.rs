//! The output of `ibnetdiscover`: one block per switch, with one line per port and its peer.
//!
//! ```text
//! Switch  65 "S-2c5eab0300b87b40"   # "MF0;LEAF-04:MQM9701/U1" enhanced port 0 lid 73 lmc 0
//! [1]     "H-e09d7303007a4bd8"[1](e09d7303007a4bd8)   # "gpu-01 mlx5_5" lid 647 4xNDR
//! [35]    "S-2c5eab0300c26280"[32]                    # "MF0;SPINE-02:MQM9701/U1" lid 236 4xNDR
//! ```
//!
//! A switch with hosts is a leaf. Leaves that share hosts form one group: the rails of these hosts, if each device is
//! on a switch of its own. The switches one step further up join groups into larger ones, and so on. Oversubscription
//! is a ratio of cable bandwidth: the hosts of a group over its uplinks.

use super::{FILE_BYTES_MAX, SWITCHES_MAX, TIERS_MAX, WiredSwitch, WiredTier, Wiring, sort_hosts, tier_name};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use topology::{HOSTS_MAX, NetworkClass, Rails, ReadError};

const RERUN: &str = "run `ibnetdiscover` on a host of the fabric and keep its whole output";
/// Minimum share of ports on the rail of their device.
const ON_RAIL_MIN: f64 = 0.9;
/// A group whose oversubscription is this many times the median is noted.
const UNEVEN: f64 = 1.25;

struct Port<'t> {
    /// Id of the other end: `H-...` or `S-...`.
    peer: &'t str,
    description: &'t str,
    gbit_per_s: f64,
}

struct Switch<'t> {
    id: &'t str,
    name: &'t str,
    ports: Vec<Port<'t>>,
}

/// A device of a host on a leaf switch.
struct Attached<'t> {
    /// Id of the adapter.
    id: &'t str,
    host: &'t str,
    device: &'t str,
    switch: usize,
    gbit_per_s: f64,
}

/// Reads the fabric. `only`: the hosts of the cluster; without it, hosts with few ports count as storage and
/// management. O(text).
pub fn read(text: &str, file: &str, only: Option<&BTreeSet<String>>) -> Result<Wiring, ReadError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(topology::read::too_large(file, FILE_BYTES_MAX));
    }
    let switches = switches(text, file)?;
    if switches.is_empty() {
        return Err(ReadError::in_file(file, "no block of a switch (`Switch 65 \"S-...\"`)", RERUN));
    }
    let mut wiring = Wiring { class: Some(NetworkClass::Infiniband), ..Wiring::default() };
    let (attached, unnamed) = attached(&switches);
    if unnamed > 0 {
        wiring.notes.push(format!(
            "{} without the name of a host (a NIC's own description instead of `HOST DEVICE`) left out",
            topology::count(unnamed, "port")
        ));
    }
    let compute = compute_hosts(&attached, only, &mut wiring.notes);
    let attached: Vec<&Attached<'_>> = attached.iter().filter(|a| compute.contains(a.host)).collect();
    if attached.is_empty() {
        let remedy = match only {
            Some(_) => "are the names in --hosts those of the ports' descriptions?",
            None => RERUN,
        };
        return Err(ReadError::in_file(file, "no port of a switch leads to a host of the cluster", remedy));
    }
    wiring.hosts = compute.iter().map(|h| (*h).to_owned()).collect();
    sort_hosts(&mut wiring.hosts);
    if wiring.hosts.len() > HOSTS_MAX {
        return Err(ReadError::in_file(
            file,
            format!("more than {HOSTS_MAX} hosts"),
            "name those of the cluster with --hosts",
        ));
    }
    same_names(&attached, file)?;
    missing_blocks(&attached, text, &mut wiring.notes);
    rates(&attached, &mut wiring);
    // Leaf switches that share hosts are one group.
    let mut groups = Sets::new(switches.len());
    let mut first_of_host: HashMap<&str, usize> = HashMap::new();
    let mut leaves: BTreeSet<usize> = BTreeSet::new();
    for a in &attached {
        leaves.insert(a.switch);
        groups.join(*first_of_host.entry(a.host).or_insert(a.switch), a.switch);
    }
    wiring.rails = rails(&attached, &mut groups, &mut wiring.notes);
    let hosts_of = |sets: &mut Sets| {
        let mut out: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        attached.iter().for_each(|a| {
            out.entry(sets.of(a.switch)).or_default().insert(a.host.to_owned());
        });
        out
    };
    // Join groups upwards, level by level.
    let index: HashMap<&str, usize> = switches.iter().enumerate().map(|(i, s)| (s.id, i)).collect();
    let mut level: BTreeSet<usize> = leaves.clone();
    let mut seen = leaves.clone();
    // Most ports without a host name belong to hosts.
    let counts = |p: &Port<'_>| is_host_port(p) && host_of(p).is_none_or(|(h, _)| compute.contains(h));
    let host_gbit = |s: usize| -> f64 { switches[s].ports.iter().filter(|p| counts(p)).map(|p| p.gbit_per_s).sum() };
    let mut down: BTreeMap<usize, f64> = BTreeMap::new();
    for &s in &leaves {
        *down.entry(s).or_default() += host_gbit(s);
    }
    for tier in 0..TIERS_MAX {
        let up_of = |s: usize| {
            switches[s]
                .ports
                .iter()
                .filter_map(|p| Some((*index.get(p.peer)?, p.gbit_per_s)))
                .filter(|(p, _)| !seen.contains(p))
        };
        let sets = hosts_of(&mut groups);
        let mut upper: BTreeSet<usize> = BTreeSet::new();
        let mut ratio: Vec<(f64, usize)> = Vec::new();
        let (mut below, mut above): (BTreeMap<usize, f64>, BTreeMap<usize, f64>) = (BTreeMap::new(), BTreeMap::new());
        let mut into: BTreeMap<usize, f64> = BTreeMap::new();
        for &s in &level {
            *below.entry(groups.of(s)).or_default() += down.get(&s).copied().unwrap_or(0.0);
            for (p, gbit) in up_of(s) {
                upper.insert(p);
                *above.entry(groups.of(s)).or_default() += gbit;
                *into.entry(p).or_default() += gbit;
            }
        }
        for (g, b) in &below {
            if let Some(a) = above.get(g).filter(|a| **a > 0.0) {
                ratio.push(((b / a).max(1.0), *g));
            }
        }
        if sets.len() > 1 {
            let switches_of = |g: usize, groups: &mut Sets| {
                leaves.iter().filter(|&&l| groups.of(l) == g).copied().collect::<Vec<_>>()
            };
            let mut wired: Vec<WiredSwitch> = Vec::new();
            for (g, hosts) in &sets {
                let members = switches_of(*g, &mut groups);
                let name = match &members[..] {
                    [one] => switches[*one].name.to_owned(),
                    [first, rest @ ..] => format!("{}+{}", switches[*first].name, rest.len()),
                    [] => format!("{}-{g}", tier_name(tier)),
                };
                let mut hosts: Vec<String> = hosts.iter().cloned().collect();
                sort_hosts(&mut hosts);
                wired.push(WiredSwitch { name, hosts });
            }
            let usual = median(&mut ratio.iter().map(|r| r.0).collect::<Vec<_>>());
            let worst = ratio.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0));
            if let (Some(usual), Some((worst, group))) =
                (usual, worst.filter(|w| usual.is_some_and(|u| w.0 > UNEVEN * u)))
            {
                let n = ratio.iter().filter(|r| r.0 > UNEVEN * usual).count();
                let leaf = leaves.iter().find(|l| groups.of(**l) == group);
                wiring.notes.push(format!(
                    "tier {}: {} with fewer uplinks than the others, up to {}:1 ({}); the file states one ratio for all",
                    tier_name(tier),
                    topology::count(n, "group"),
                    two_digits(worst),
                    leaf.map_or("", |l| switches[*l].name)
                ));
            }
            unique_names(&mut wired);
            wiring.tiers.push(WiredTier {
                name: tier_name(tier),
                switches: wired,
                oversubscription: usual.map(two_digits),
            });
            if let Some(o) = wiring.tiers.last().and_then(|t| t.oversubscription) {
                wiring.notes.push(format!(
                    "tier {}: {o}:1 by the cables (median of {} groups; host ports over uplinks)",
                    tier_name(tier),
                    ratio.len()
                ));
            }
        }
        if upper.is_empty() || sets.len() <= 1 {
            if sets.len() > 1 {
                wiring.notes.push(format!("{} groups of hosts are not joined by any switch of the file", sets.len()));
            }
            break;
        }
        for &s in &level {
            for (p, _) in up_of(s).collect::<Vec<_>>() {
                groups.join(s, p);
            }
        }
        seen.extend(upper.iter().copied());
        level = upper;
        down = into;
    }
    Ok(wiring)
}

fn is_host_port(p: &Port<'_>) -> bool {
    p.peer.starts_with("H-") && !p.description.contains("Aggregation Node")
}

/// The blocks of switches. Other blocks (`Ca`, `Rt`) only repeat their data.
fn switches<'t>(text: &'t str, file: &str) -> Result<Vec<Switch<'t>>, ReadError> {
    let mut out: Vec<Switch<'t>> = Vec::new();
    let mut index: HashMap<&str, usize> = HashMap::new();
    let (mut in_switch, mut in_adapter) = (false, false);
    for (i, line) in text.lines().enumerate() {
        let wrong = |message: String| ReadError::at_line(file, text, i + 1, 1, line.chars().count(), message, RERUN);
        if line.starts_with("Switch") {
            let id = quoted(line).ok_or_else(|| wrong("a switch without its id in quotes".into()))?;
            if index.insert(id, out.len()).is_some() {
                return Err(wrong(format!("switch {} has two blocks: two outputs in one file?", short(id))));
            }
            if out.len() >= SWITCHES_MAX {
                return Err(wrong(format!("more than {SWITCHES_MAX} switches")));
            }
            let description = line.split_once('#').and_then(|(_, r)| quoted(r)).unwrap_or("");
            out.push(Switch { id, name: switch_name(description, id), ports: Vec::new() });
            (in_switch, in_adapter) = (true, false);
        } else if line.starts_with('[') && in_switch {
            let peer = quoted(line).ok_or_else(|| wrong("a port without the id of its other end in quotes".into()))?;
            let comment = line.split_once('#').map_or("", |(_, r)| r);
            let description = quoted(comment).unwrap_or("");
            let gbit_per_s = comment.split_whitespace().rev().find_map(gbit).unwrap_or(0.0);
            if let Some(s) = out.last_mut() {
                s.ports.push(Port { peer, description, gbit_per_s });
            }
        } else if line.starts_with('[') && in_adapter && quoted(line).is_none() {
            return Err(wrong("a port without the id of its other end in quotes: is the output cut off?".into()));
        } else if line.trim().is_empty() || line.starts_with("Ca") || line.starts_with("Rt") {
            (in_switch, in_adapter) = (false, !line.trim().is_empty());
        }
    }
    Ok(out)
}

/// The text between the first two quotes.
fn quoted(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once('"')?;
    rest.split_once('"').map(|(inner, _)| inner)
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The name in `MF0;NAME:MODEL/U1`, or the whole description, or the id.
fn switch_name<'t>(description: &'t str, id: &'t str) -> &'t str {
    let name = description.split_once(';').map_or(description, |(_, r)| r);
    let name = name.split_once(':').map_or(name, |(n, _)| n).trim();
    let usable = |c: char| !c.is_whitespace() && !c.is_control() && !"[]{},".contains(c);
    if !name.is_empty() && name.len() <= 64 && name.chars().all(usable) { name } else { id }
}

/// The rate of a link word such as `4xNDR` in Gbit/s: lanes times rate per lane.
fn gbit(word: &str) -> Option<f64> {
    let (lanes, rate) = word.split_once('x')?;
    let lanes: f64 = lanes.parse().ok().filter(|l| [1.0, 2.0, 4.0, 8.0, 12.0].contains(l))?;
    let lane = match rate {
        "SDR" => 2.5,
        "DDR" => 5.0,
        "QDR" | "FDR10" => 10.0,
        "FDR" => 14.0,
        "EDR" => 25.0,
        "HDR" => 50.0,
        "NDR" => 100.0,
        "XDR" => 200.0,
        _ => return None,
    };
    Some(lanes * lane)
}

/// Host and device, if the description has the form `HOST DEVICE`.
fn host_of<'t>(p: &Port<'t>) -> Option<(&'t str, &'t str)> {
    let mut words = p.description.split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(host), Some(device), None) => Some((host, device)),
        _ => None,
    }
}

/// The devices of hosts on switches, and the number of ports without a host name.
fn attached<'t>(switches: &[Switch<'t>]) -> (Vec<Attached<'t>>, usize) {
    let (mut out, mut unnamed) = (Vec::new(), 0);
    for (switch, s) in switches.iter().enumerate() {
        for p in s.ports.iter().filter(|p| is_host_port(p)) {
            match host_of(p) {
                Some((host, device)) => {
                    out.push(Attached { id: p.peer, host, device, switch, gbit_per_s: p.gbit_per_s })
                }
                None => unnamed += 1,
            }
        }
    }
    (out, unnamed)
}

/// The hosts of the cluster: those in `only`; without it, hosts with at least half as many ports as the host with most.
fn compute_hosts<'t>(
    attached: &[Attached<'t>],
    only: Option<&BTreeSet<String>>,
    notes: &mut Vec<String>,
) -> BTreeSet<&'t str> {
    let mut ports: BTreeMap<&str, usize> = BTreeMap::new();
    attached.iter().for_each(|a| *ports.entry(a.host).or_default() += 1);
    let most = ports.values().max().copied().unwrap_or(0);
    let counts = |host: &str, n: usize| match only {
        Some(names) => names.contains(host),
        None => 2 * n >= most,
    };
    let (keep, out): (Vec<_>, Vec<_>) = ports.into_iter().partition(|(h, n)| counts(h, *n));
    if let (Some((first, _)), None) = (out.first(), only) {
        notes.push(format!(
            "{} with less than half of the ports of others ({first}{}) taken for storage or management and left out (--hosts names the hosts)",
            topology::count(out.len(), "host"),
            if out.len() > 1 { ", ..." } else { "" }
        ));
    }
    keep.into_iter().map(|k| k.0).collect()
}

/// Refuses two adapters with one name: their hosts would count as one host.
fn same_names(attached: &[&Attached<'_>], file: &str) -> Result<(), ReadError> {
    let mut ids: HashMap<(&str, &str), &str> = HashMap::new();
    for a in attached {
        if let Some(other) = ids.insert((a.host, a.device), a.id).filter(|other| *other != a.id) {
            return Err(ReadError::in_file(
                file,
                format!("two adapters are named `{} {}`: {} and {}", a.host, a.device, short(other), short(a.id)),
                "give each host a node description of its own, or name the hosts of the cluster with --hosts",
            ));
        }
    }
    Ok(())
}

/// Adds a note if some adapters of the switches' ports have no block: the output may be cut off. Outputs without any such block are complete.
fn missing_blocks(attached: &[&Attached<'_>], text: &str, notes: &mut Vec<String>) {
    let blocks: BTreeSet<&str> = text.lines().filter(|l| l.starts_with("Ca")).filter_map(quoted).collect();
    let missing: BTreeSet<&str> = attached.iter().map(|a| a.id).filter(|id| !blocks.contains(id)).collect();
    if let (Some(first), false) = (missing.first(), blocks.is_empty()) {
        notes.push(format!(
            "{} of the switches' ports without a block of their own ({}{}): is the output cut off?",
            topology::count(missing.len(), "adapter"),
            short(first),
            if missing.len() > 1 { ", ..." } else { "" }
        ));
    }
}

/// Records the rates of ports. Adds a note on ports slower than the median.
fn rates(attached: &[&Attached<'_>], wiring: &mut Wiring) {
    for a in attached.iter().filter(|a| a.gbit_per_s > 0.0) {
        wiring.port_gbit_per_s.insert((a.host.into(), a.device.into()), a.gbit_per_s);
    }
    let mut all: Vec<f64> = wiring.port_gbit_per_s.values().copied().collect();
    let Some(usual) = median(&mut all) else { return };
    let slow: Vec<String> = wiring
        .port_gbit_per_s
        .iter()
        .filter(|(_, g)| **g < 0.99 * usual)
        .map(|((h, d), g)| format!("{h} {d} ({g} Gbit/s)"))
        .collect();
    if let Some(first) = slow.first() {
        wiring.notes.push(format!(
            "{} slower than {usual} Gbit/s: {first}{}",
            topology::count(slow.len(), "port"),
            if slow.len() > 1 { ", ..." } else { "" }
        ));
    }
}

/// The rails, if the hosts of a group have each device on a switch of its own, the same switch for all hosts.
fn rails(attached: &[&Attached<'_>], groups: &mut Sets, notes: &mut Vec<String>) -> Option<Rails> {
    let mut of_device: BTreeMap<(usize, &str), BTreeMap<usize, usize>> = BTreeMap::new();
    let mut of_host: BTreeMap<&str, (usize, BTreeSet<usize>)> = BTreeMap::new();
    for a in attached {
        *of_device.entry((groups.of(a.switch), a.device)).or_default().entry(a.switch).or_default() += 1;
        let h = of_host.entry(a.host).or_default();
        h.0 += 1;
        h.1.insert(a.switch);
    }
    if of_host.values().all(|(_, s)| s.len() == 1) {
        return None;
    }
    let on_rail: usize = of_device.values().filter_map(|s| s.values().max()).sum();
    let one_each = of_host.values().filter(|(ports, s)| *ports == s.len()).count();
    let share = on_rail as f64 / attached.len() as f64;
    if share < ON_RAIL_MIN || (one_each as f64) < ON_RAIL_MIN * of_host.len() as f64 {
        notes.push(
            "hosts reach several leaf switches, but not one with each device: these switches count as one".into(),
        );
        return None;
    }
    let off = attached.len() - on_rail;
    let exception =
        if off > 0 { format!("; {off} ports are on another rail than their device's") } else { String::new() };
    notes.push(format!(
        "each device of a host is on a leaf switch of its own: rails, which meet above{exception} (--rails)"
    ));
    Some(Rails::Joined)
}

fn unique_names(switches: &mut [WiredSwitch]) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for s in switches {
        while !seen.insert(s.name.clone()) {
            s.name.push('\'');
        }
    }
}

fn two_digits(v: f64) -> f64 {
    (v * 100.0).round() / 100.0
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Disjoint sets of switches.
struct Sets(Vec<usize>);

impl Sets {
    fn new(n: usize) -> Self {
        Sets((0..n).collect())
    }
    fn of(&mut self, mut i: usize) -> usize {
        while self.0[i] != i {
            self.0[i] = self.0[self.0[i]];
            i = self.0[i];
        }
        i
    }
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.of(a), self.of(b));
        self.0[a.max(b)] = a.min(b);
    }
}
