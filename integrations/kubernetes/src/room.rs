//! Where the pods of a gang may run, and what is left there.

use crate::gang;
use crate::names::JOB;
use crate::node;
use crate::world::World;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Where the pods of a gang may run.
#[derive(Clone, Debug, Default)]
pub struct Room {
    /// What is left on each node where one of them may run.
    pub left: BTreeMap<String, node::Amounts>,
    /// Nodes of every pod, in order. Pods with the same wishes share a set.
    pub of_pod: Vec<Arc<BTreeSet<String>>>,
}

impl Room {
    /// True if all pods may run on the same nodes.
    pub fn is_one(&self) -> bool {
        self.of_pod.windows(2).all(|w| Arc::ptr_eq(&w[0], &w[1]) || w[0] == w[1])
    }
}

/// Nodes where each pod of a gang may run and has room by itself; or the reasons against, by number of nodes. O(nodes x different pods).
pub fn candidates(world: &World, pods: &[&Pod], avoid: &BTreeSet<String>) -> Result<Room, String> {
    rooms(world, pods, avoid, &used(world, |_| false))
}

/// The same if no pod ran anywhere.
pub fn candidates_if_empty(world: &World, pods: &[&Pod]) -> Result<Room, String> {
    rooms(world, pods, &BTreeSet::new(), &HashMap::new())
}

/// The same without some pods.
pub fn candidates_without(
    world: &World,
    pods: &[&Pod],
    avoid: &BTreeSet<String>,
    gone: impl Fn(&Pod) -> bool,
) -> Result<Room, String> {
    rooms(world, pods, avoid, &used(world, gone))
}

fn rooms(
    world: &World,
    pods: &[&Pod],
    avoid: &BTreeSet<String>,
    used: &HashMap<String, node::Amounts>,
) -> Result<Room, String> {
    // Most gangs have pods of one kind.
    let mut kinds: Vec<(&Pod, node::Amounts)> = Vec::new();
    let mut kind_of = Vec::new();
    for pod in pods {
        let asked = node::requests(pod);
        let same = kinds.iter().position(|(other, a)| *a == asked && node::is_like(pod, other));
        kind_of.push(same.unwrap_or(kinds.len()));
        if same.is_none() {
            kinds.push((pod, asked));
        }
    }
    let mut left = BTreeMap::new();
    let mut good = vec![BTreeSet::new(); kinds.len()];
    let mut bad: Vec<BTreeMap<String, usize>> = vec![BTreeMap::new(); kinds.len()];
    let none = node::Amounts::new();
    for n in world.nodes.all() {
        let name = n.name_any();
        let mut allocatable = node::allocatable(n);
        let taken = used.get(&name).unwrap_or(&none);
        for (i, (pod, asked)) in kinds.iter().enumerate() {
            let small = || node::lacks(&allocatable, taken, asked).map(|what| format!("has too little {what}"));
            let avoided = || avoid.contains(&name).then(|| "was refused by kube-scheduler".to_owned());
            match node::refuses(n, pod).or_else(small).or_else(avoided) {
                Some(why) => *bad[i].entry(why).or_default() += 1,
                None => drop(good[i].insert(name.clone())),
            }
        }
        if good.iter().any(|g| g.contains(&name)) {
            for (what, n) in taken {
                *allocatable.entry(what.clone()).or_default() -= n;
            }
            left.insert(name, allocatable);
        }
    }
    if let Some(i) = good.iter().position(BTreeSet::is_empty) {
        let mut bad: Vec<(&String, &usize)> = bad[i].iter().collect();
        bad.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        let shown: Vec<String> =
            bad.iter().take(3).map(|(why, n)| format!("{why} ({n} node{})", if **n == 1 { "" } else { "s" })).collect();
        if shown.is_empty() {
            return Err("there are no nodes".into());
        }
        let which = if kinds.len() == 1 { "its pods".into() } else { format!("pod {}", kinds[i].0.name_any()) };
        return Err(format!("no node can run {which}: {}", shown.join(", ")));
    }
    let good: Vec<Arc<BTreeSet<String>>> = good.into_iter().map(Arc::new).collect();
    Ok(Room { left, of_pod: kind_of.into_iter().map(|k| Arc::clone(&good[k])).collect() })
}

/// What pods use of each node: those that run there, and released ones whose claims are there. Without those that are `gone`.
fn used(world: &World, gone: impl Fn(&Pod) -> bool) -> HashMap<String, node::Amounts> {
    let mut used: HashMap<String, node::Amounts> = HashMap::new();
    for pod in world.pods.all().filter(|p| !crate::plan::is_over(p) && !gang::is_gated(p) && !gone(p)) {
        let bound = pod.spec.as_ref().and_then(|s| s.node_name.clone());
        if let Some(node) = bound.or_else(|| pinned(pod)) {
            node::add(used.entry(node).or_default(), &node::requests(pod));
        }
    }
    used
}

/// The node to which linkwise pinned a pod.
fn pinned(pod: &Pod) -> Option<String> {
    pod.annotations().get(JOB)?;
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
    terms
        .iter()
        .flat_map(|t| t.match_fields.iter().flatten())
        .find(|f| f.key == "metadata.name")?
        .values
        .as_ref()?
        .first()
        .cloned()
}
