//! Builds tiers from switches that name their children, as in both topology files of Slurm.

use super::{TIERS_MAX, WiredSwitch, WiredTier, Wiring, sort_hosts, tier_name};
use std::collections::{BTreeMap, HashMap};
use topology::Rails;

/// A switch of the file.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    pub name: String,
    /// Line number in the file, from 1.
    pub line: usize,
    /// Switches below it.
    pub children: Vec<String>,
    /// Hosts below it.
    pub nodes: Vec<String>,
}

/// An error in an entry: line, message and remedy.
pub struct Wrong {
    pub line: usize,
    pub message: String,
    pub remedy: &'static str,
}

const ONE_PARENT: &str = "give each switch one parent; switches with the same children count as one";

/// The tiers of these switches. Leaves with the same hosts form the rails of one group. O(switches x tiers + hosts x
/// tiers).
pub fn tiers(entries: &[Entry]) -> Result<Wiring, Wrong> {
    let wrong = |line, message: String, remedy| Wrong { line, message, remedy };
    let mut wiring = Wiring::default();
    let mut index: HashMap<&str, usize> = HashMap::new();
    for (i, e) in entries.iter().enumerate() {
        if index.insert(&e.name, i).is_some() {
            return Err(wrong(e.line, format!("switch `{}` is defined twice", e.name), "give each switch one line"));
        }
        if e.children.is_empty() == e.nodes.is_empty() {
            let message = match e.nodes.is_empty() {
                true => format!("switch `{}` has neither Nodes nor Switches", e.name),
                false => format!("switch `{}` has both Nodes and Switches", e.name),
            };
            return Err(wrong(e.line, message, "Slurm wants exactly one of them"));
        }
    }
    let stands_for = representatives(entries, &index);
    let mut parallel: Vec<Vec<usize>> = vec![Vec::new(); entries.len()];
    (0..entries.len()).filter(|&i| !entries[i].nodes.is_empty()).for_each(|i| parallel[stands_for[i]].push(i));
    // Parents, children and heights.
    let mut parent: Vec<Option<usize>> = vec![None; entries.len()];
    for (i, e) in entries.iter().enumerate().filter(|(i, _)| stands_for[*i] == *i) {
        for child in &e.children {
            let Some(&c) = index.get(child.as_str()) else {
                let message = format!("switch `{}` names `{child}`, which is no switch of the file", e.name);
                return Err(wrong(e.line, message, "add a line for it, or correct the name"));
            };
            let c = stands_for[c];
            match parent[c] {
                Some(p) if p != i => {
                    let message = format!("switch `{child}` is below `{}` and below `{}`", entries[p].name, e.name);
                    return Err(wrong(e.line, message, ONE_PARENT));
                }
                _ => parent[c] = Some(i),
            }
        }
    }
    let leaves: Vec<usize> =
        (0..entries.len()).filter(|&i| stands_for[i] == i && !entries[i].nodes.is_empty()).collect();
    let mut height = vec![0usize; entries.len()];
    for &leaf in &leaves {
        let (mut at, mut h) = (leaf, 0);
        while let Some(p) = parent[at] {
            h += 1;
            if h > TIERS_MAX {
                let message =
                    format!("switch `{}` is below more than {TIERS_MAX} others, or below itself", entries[leaf].name);
                return Err(wrong(entries[leaf].line, message, "Slurm's tree has no cycles"));
            }
            height[p] = height[p].max(h);
            at = p;
        }
    }
    // Every switch has nodes or switches below it, so a switch without a leaf below it is below itself.
    let below_itself = |&i: &usize| stands_for[i] == i && entries[i].nodes.is_empty() && height[i] == 0;
    if let Some(i) = (0..entries.len()).find(below_itself) {
        let message = format!("switch `{}` has no leaf switch below it, because it is below itself", entries[i].name);
        return Err(wrong(entries[i].line, message, "Slurm's tree has no cycles"));
    }
    let mut leaf_of: HashMap<&str, usize> = HashMap::new();
    for &leaf in &leaves {
        for node in &entries[leaf].nodes {
            if let Some(other) = leaf_of.insert(node, leaf).filter(|o| *o != leaf) {
                let message = format!("`{node}` is below `{}` and below `{}`", entries[other].name, entries[leaf].name);
                let remedy = "put each node below one leaf switch; rails are leaves with the same nodes";
                return Err(wrong(entries[leaf].line, message, remedy));
            }
        }
        wiring.hosts.extend(entries[leaf].nodes.iter().cloned());
    }
    let mut seen = std::collections::HashSet::new();
    wiring.hosts.retain(|h| seen.insert(h.clone()));
    if wiring.hosts.is_empty() {
        return Err(wrong(1, "no switch has a node".into(), "leaf switches have Nodes=, for instance Nodes=n[0-15]"));
    }
    rails(entries, &leaves, &parallel, &mut wiring);
    // The switch of each leaf at each tier: the highest one above the leaf that is not higher than the tier.
    let top = leaves.iter().map(|&l| chain(l, &parent).last().map_or(0, |t| height[t])).max().unwrap_or(0);
    for tier in 0..=top.min(TIERS_MAX - 1) {
        let mut sets: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for &leaf in &leaves {
            let at = chain(leaf, &parent).take_while(|s| height[*s] <= tier).last().unwrap_or(leaf);
            sets.entry(at).or_default().extend(entries[leaf].nodes.iter().cloned());
        }
        let switches: Vec<WiredSwitch> = sets
            .into_iter()
            .map(|(s, mut hosts)| {
                sort_hosts(&mut hosts);
                WiredSwitch { name: entries[s].name.clone(), hosts }
            })
            .collect();
        if switches.len() > 1 {
            wiring.tiers.push(WiredTier { name: tier_name(tier), switches, oversubscription: None });
        }
    }
    let roots = leaves.iter().filter_map(|&l| chain(l, &parent).last()).collect::<std::collections::BTreeSet<_>>();
    if roots.len() > 1 {
        let names: Vec<&str> = roots.iter().take(4).map(|r| entries[*r].name.as_str()).collect();
        wiring.notes.push(format!(
            "no switch joins {} ({} trees): a layer above them is taken to join all",
            names.join(", "),
            roots.len()
        ));
    }
    Ok(wiring)
}

/// The index of the first switch with the same set below it, for each switch: such switches count as one. Equal leaves
/// make their parents equal, so the function works upwards.
fn representatives(entries: &[Entry], index: &HashMap<&str, usize>) -> Vec<usize> {
    let mut stands_for: Vec<usize> = (0..entries.len()).collect();
    let mut first_leaf: HashMap<Vec<&str>, usize> = HashMap::new();
    for (i, e) in entries.iter().enumerate().filter(|(_, e)| !e.nodes.is_empty()) {
        let mut key: Vec<&str> = e.nodes.iter().map(String::as_str).collect();
        key.sort_unstable();
        key.dedup();
        stands_for[i] = *first_leaf.entry(key).or_insert(i);
    }
    for _ in 0..TIERS_MAX {
        let mut first: HashMap<Vec<usize>, usize> = HashMap::new();
        let mut next = stands_for.clone();
        for (i, e) in entries.iter().enumerate().filter(|(_, e)| e.nodes.is_empty()) {
            // An unknown child is reported later.
            let mut key: Vec<usize> =
                e.children.iter().filter_map(|c| index.get(c.as_str()).map(|&c| stands_for[c])).collect();
            key.sort_unstable();
            key.dedup();
            next[i] = if key.len() == 1 && key[0] == i { i } else { *first.entry(key).or_insert(i) };
        }
        if next == stands_for {
            break;
        }
        stands_for = next;
    }
    stands_for
}

/// A switch and its ancestors, lowest first, up to the maximum depth.
fn chain(leaf: usize, parent: &[Option<usize>]) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(Some(leaf), |s| parent[*s]).take(TIERS_MAX + 1)
}

/// Marks the network as rails if all hosts are below the same number of leaves, two or more. Adds a note, also if the
/// numbers differ.
fn rails(entries: &[Entry], leaves: &[usize], parallel: &[Vec<usize>], wiring: &mut Wiring) {
    let counts: Vec<usize> = leaves.iter().map(|&l| parallel[l].len()).collect();
    let (least, most) = (counts.iter().min().copied().unwrap_or(1), counts.iter().max().copied().unwrap_or(1));
    if most < 2 {
        return;
    }
    let widest = leaves.iter().rev().max_by_key(|&&l| parallel[l].len()).copied().unwrap_or(0);
    let names: Vec<&str> = parallel[widest].iter().take(3).map(|&i| entries[i].name.as_str()).collect();
    if least == most {
        wiring.rails = Some(Rails::Joined);
        wiring.notes.push(format!(
            "each host is below {most} leaf switches ({}, ...): taken as rails, NIC i on switch i, which meet above (--rails)",
            names.join(", ")
        ));
    } else {
        wiring.notes.push(format!("leaf switches with the same hosts ({}, ...) count as one", names.join(", ")));
    }
}
