//! Which gangs end so that one of higher priority can start.
//!
//! Gated pods cause no preemption by the stock scheduler, so the controller does what it would: gangs of lower priority are evicted, whole, because a gang
//! without a pod has nothing to do. Only gangs that linkwise placed, in namespaces that it places, and never for a pod whose class says
//! `preemptionPolicy: Never`. Disruption budgets are kept.
//!
//! The state is in the pods: those with a time of deletion are ending, and a later leader waits for them as this one does.

use crate::claim::{self, own_job};
use crate::device::Held;
use crate::gang;
use crate::node::{self, Amounts};
use crate::plan::{self, Plan, Wanted};
use crate::room::{Room, candidates_without};
use crate::settings::Settings;
use crate::world::{Id, World, id};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Time after which a pod that should be gone is not awaited any more: its node may be dead.
const GONE_S: i64 = 60;

/// A gang that is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its decision.
    pub job: String,
    /// Its pods that live.
    pub pods: Vec<Id>,
    /// Its priority.
    pub priority: i32,
}

/// How a gang without room gets some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Pods that are ending already have enough.
    Wait,
    /// By the end of these gangs.
    Evict(Vec<Victim>),
    /// Not by priority.
    None,
}

/// A decision that holds GPUs.
struct Holder {
    victim: Victim,
    /// All of its pods are ending.
    ending: bool,
    /// A pod of it should be gone long ago.
    stuck: bool,
    /// Some of its pods are ending: a later eviction was refused.
    in_pieces: bool,
    /// When it was released, the youngest pod.
    since: String,
}

/// A gang without room, and what is known.
pub struct Case<'a> {
    /// What the API said.
    pub world: &'a World,
    /// The settings.
    pub settings: &'a Settings,
    /// The plan of this world.
    pub plan: &'a Plan,
    /// The gang.
    pub wanted: &'a Wanted,
    /// Its gated pods with GPUs, in the order of `wanted`.
    pub pods: &'a [&'a Pod],
    /// Nodes that are not for the gang.
    pub avoid: &'a BTreeSet<String>,
    /// Decisions that cannot be evicted now.
    pub spared: &'a BTreeSet<String>,
    /// False: linkwise's server gives the GPU with this UUID to no gang, whatever ends.
    pub gives: &'a dyn Fn(&str) -> bool,
    /// The time.
    pub now: Timestamp,
}

/// What must end for a gang, as little as possible: gangs in pieces first, then the least important, then the youngest, and none that is not needed.
/// O(log(gangs) + victims) looks at all nodes and devices; none where no gang is less important or ending.
pub fn way(case: &Case<'_>) -> Way {
    let never = |p: &&Pod| p.spec.as_ref().and_then(|s| s.preemption_policy.as_deref()) == Some("Never");
    if case.pods.iter().any(never) {
        return Way::None;
    }
    let holders = holders(case.world, case.plan, case.now);
    let may = |h: &&Holder| {
        !h.ending
            && !h.stuck
            && h.victim.priority < case.wanted.priority
            && !case.spared.contains(&h.victim.job)
            && h.victim.pods.iter().all(|p| case.settings.places(&p.0))
    };
    let mut may: Vec<&Holder> = holders.iter().filter(may).collect();
    let mut gone: BTreeSet<&str> = holders.iter().filter(|h| h.ending).map(|h| h.victim.job.as_str()).collect();
    if may.is_empty() && gone.is_empty() {
        return Way::None;
    }
    let fits = |gone: &BTreeSet<&str>| fits(case, gone);
    if fits(&gone) {
        return if gone.is_empty() { Way::None } else { Way::Wait };
    }
    may.sort_by_key(|h| (!h.in_pieces, h.victim.priority, Reverse(h.since.clone())));
    let with = |n: usize| gone.iter().copied().chain(may[..n].iter().map(|h| h.victim.job.as_str())).collect();
    if may.is_empty() || !fits(&with(may.len())) {
        return Way::None;
    }
    let (mut less, mut enough) = (0, may.len());
    while enough - less > 1 {
        let middle = usize::midpoint(less, enough);
        *(if fits(&with(middle)) { &mut enough } else { &mut less }) = middle;
    }
    gone = with(enough);
    let mut victims = Vec::new();
    for holder in may[..enough].iter().rev() {
        gone.remove(holder.victim.job.as_str());
        if !fits(&gone) {
            gone.insert(&holder.victim.job);
            victims.push(holder.victim.clone());
        }
    }
    victims.reverse();
    Way::Evict(victims)
}

fn holders(world: &World, plan: &Plan, now: Timestamp) -> Vec<Holder> {
    let mut by_job: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in world.pods.all().filter(|p| !plan::is_over(p)) {
        if let Some(job) = own_job(&pod.metadata) {
            by_job.entry(job).or_default().push(pod);
        }
    }
    let holders = by_job.into_iter().filter(|(job, pods)| {
        // Gated pods of a decision are released or taken back by the next plan.
        plan.jobs.contains_key(*job) && !pods.iter().any(|p| gang::is_gated(p))
    });
    let holder = |(job, pods): (&str, Vec<&Pod>)| Holder {
        ending: pods.iter().all(|p| is_ending(p, now)),
        in_pieces: pods.iter().any(|p| is_ending(p, now)),
        stuck: pods.iter().any(|p| p.metadata.deletion_timestamp.is_some() && !is_ending(p, now)),
        since: pods
            .iter()
            .filter_map(|p| p.annotations().get(crate::names::RELEASED))
            .max()
            .cloned()
            .unwrap_or_default(),
        victim: Victim {
            job: job.to_owned(),
            priority: pods.iter().map(|p| priority(p)).max().unwrap_or(0),
            pods: pods.iter().filter(|p| p.metadata.deletion_timestamp.is_none()).map(|p| id(*p)).collect(),
        },
    };
    holders.map(holder).collect()
}

fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0)
}

/// True if the pod is deleted and may still end. The time of deletion is when its grace is over.
fn is_ending(pod: &Pod, now: Timestamp) -> bool {
    pod.metadata.deletion_timestamp.as_ref().is_some_and(|t| now.duration_since(t.0).as_secs() < GONE_S)
}

/// Is there a place for every pod of the gang when these decisions are gone? First fit, largest pods first, on the fullest node: a yes has a placement.
fn fits(case: &Case<'_>, gone: &BTreeSet<&str>) -> bool {
    let Case { world, plan, wanted, pods, .. } = *case;
    let is_gone = |job: Option<&str>| job.is_some_and(|j| gone.contains(j));
    let Ok(room) = candidates_without(world, pods, case.avoid, |p| is_gone(own_job(&p.metadata))) else { return false };
    let held = Held::of(world.claims.all().filter(|c| !is_gone(claim::job(c))), &plan.inventory);
    let mut free: BTreeMap<&str, usize> = BTreeMap::new();
    for d in plan.inventory.devices().filter(|d| d.out.is_none() && held.is_free(d) && (case.gives)(&d.uuid)) {
        *free.entry(&d.node).or_default() += 1;
    }
    let Room { mut left, of_pod } = room;
    let asked: Vec<Amounts> = pods.iter().map(|p| node::requests(p)).collect();
    let mut order: Vec<usize> = (0..wanted.pods.len().min(pods.len())).collect();
    order.sort_by_key(|i| (of_pod[*i].len(), Reverse(wanted.pods[*i].gpus)));
    for i in order {
        let gpus = wanted.pods[i].gpus;
        let has = |n: &&String| {
            let left = left.get(*n)?;
            let gpus_left = free.get(n.as_str()).copied().filter(|free| *free >= gpus)?;
            node::lacks(left, &Amounts::new(), &asked[i]).is_none().then_some(gpus_left)
        };
        let Some(on) = of_pod[i].iter().filter(|n| has(n).is_some()).min_by_key(|n| has(n)) else { return false };
        *free.entry(on).or_default() -= gpus;
        for (what, n) in &asked[i] {
            *left.entry(on.clone()).or_default().entry(what.clone()).or_default() -= n;
        }
    }
    true
}

#[cfg(test)]
mod tests;
