//! Places gangs: asks the server, checks its choice, writes the claims.

use super::choice::{assigned, by_hand, checked, offer, partitioned};
use super::doubt::Doubt;
use super::{ASK_AGAIN, Controller, PAUSE, TICK, micros};
use crate::ask::{AskError, Choice};
use crate::claim;
use crate::device::Device;
use crate::gang::Key;
use crate::hash::fnv64;
use crate::node;
use crate::plan::{Plan, Wanted};
use crate::room::{self, Room};
use crate::world::id;
use crate::write::{Grant, WriteError, Writer};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Choices of one gang that have no room on their nodes before it waits.
const CHOICES_MAX: usize = 8;
/// Time in which a gang after a failure is passed by others: a failure of this gang alone must not keep them waiting.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// The server's words for too few free GPUs.
const NO_ROOM: [&str; 3] = ["not_enough_free", "pods_do_not_fit", "no_split"];

/// When a gang that was not placed is asked for again.
#[derive(Debug)]
pub(super) struct Refusal {
    /// What was free then, if more free GPUs can help; then any change of them asks at once.
    free: Option<u64>,
    until: Instant,
    /// Room is being made for it: nothing may pass.
    alone: bool,
}

impl Controller {
    /// Places the first gang that can be placed; true if one was.
    pub(super) async fn place(&mut self, writer: &Writer<'_>, plan: &Plan) -> bool {
        let now = Instant::now();
        self.avoided.retain(|_, until| *until > now);
        self.refused.retain(|gang, _| plan.wanted.iter().any(|w| w.gang == *gang));
        let (version, free) = free_now(plan);
        let mut blocked: Option<i32> = None;
        for wanted in &plan.wanted {
            if blocked.is_some_and(|priority| wanted.priority <= priority) {
                continue;
            }
            let refused = self.refused.get(&wanted.gang).filter(|r| Instant::now() < r.until);
            if let Some(refused) = refused.filter(|r| r.free.is_none_or(|free| free == version)) {
                if refused.alone {
                    blocked = blocked.or(Some(wanted.priority));
                } else if refused.free.is_some() {
                    blocked = blocked.or(self.blocks(plan, wanted));
                }
                continue;
            }
            self.pulse.beat();
            let unplaced = match self.place_one(writer, plan, wanted, free).await {
                Ok(()) => {
                    self.refused.remove(&wanted.gang);
                    return true;
                }
                Err(unplaced) => unplaced,
            };
            let refusal = |free, wait, alone| Refusal { free, until: Instant::now() + wait, alone };
            match unplaced {
                Unplaced::NoRoom(message) => {
                    let making = self.make_room(writer, plan, wanted).await;
                    let alone = making.is_ok().then_some(wanted.priority);
                    blocked = blocked.or(alone).or_else(|| self.blocks(plan, wanted));
                    self.refused.insert(wanted.gang.clone(), refusal(Some(version), ASK_AGAIN, alone.is_some()));
                    let message = making.unwrap_or_else(|more| format!("{message}{more}"));
                    self.say(&wanted.waits(message)).await;
                }
                Unplaced::Waits { message, written } => {
                    self.refused.insert(wanted.gang.clone(), refusal(None, ASK_AGAIN, false));
                    self.log_once(format!("{}: {message}", wanted.gang));
                    self.say(&wanted.waits(message)).await;
                    // What was written is not in this plan: its GPUs must not be given again.
                    if written {
                        return true;
                    }
                }
                Unplaced::Failed(message) => {
                    self.refused.insert(wanted.gang.clone(), refusal(None, AFTER_FAILURE, false));
                    (self.log)(&format!("{}: {message}", wanted.gang));
                    tokio::time::sleep(PAUSE).await;
                    return true;
                }
            }
        }
        false
    }

    /// The priority up to which nothing may pass a refused gang: it waited long, and would fit if all GPUs were free.
    fn blocks(&self, plan: &Plan, wanted: &Wanted) -> Option<i32> {
        let age = jiff::Timestamp::now().duration_since(wanted.since?).as_secs();
        let long = u64::try_from(age).is_ok_and(|age| age >= self.settings.pass_seconds);
        let pods: Vec<&Pod> = wanted.pods.iter().filter_map(|w| self.world.pods.get(&w.pod)).collect();
        let fits =
            || room::candidates_if_empty(&self.world, &pods).is_ok_and(|room| fits_empty(plan, wanted, &room.of_pod));
        (long && fits()).then_some(wanted.priority)
    }

    /// Nodes that kube-scheduler refused for a gang.
    pub(super) fn avoided(&self, gang: &Key) -> BTreeSet<String> {
        self.avoided.keys().filter(|(of, _)| of == gang).map(|(_, node)| node.clone()).collect()
    }

    async fn place_one(
        &mut self,
        writer: &Writer<'_>,
        plan: &Plan,
        wanted: &Wanted,
        free: usize,
    ) -> Result<(), Unplaced> {
        let total: usize = wanted.pods.iter().map(|p| p.gpus).sum();
        if free < total {
            // Before the nodes are looked at: on a full site many gangs wait.
            return Err(Unplaced::NoRoom(format!("needs {total} GPUs; {free} are free in all")));
        }
        let pods: Vec<Pod> = wanted.pods.iter().filter_map(|w| self.world.pods.get(&w.pod).cloned()).collect();
        let claims: Vec<Vec<ResourceClaim>> = wanted
            .pods
            .iter()
            .map(|w| w.claims.iter().filter_map(|(c, _)| self.world.claims.get(c).cloned()).collect())
            .collect();
        let pods: Vec<&Pod> = pods.iter().collect();
        let avoid = self.avoided(&wanted.gang);
        let room = room::candidates(&self.world, &pods, &avoid).map_err(Unplaced::NoRoom)?;
        let job = job_name(wanted, &claims);
        let (job, choice, devices) = self.choose(plan, wanted, &pods, &room, &job).await?;
        let mut grants = Vec::new();
        for ((want, claims), mut devices) in wanted.pods.iter().zip(&claims).zip(devices) {
            for ((_, need), claim) in want.claims.iter().zip(claims) {
                let rest = devices.split_off(need.gpus.min(devices.len()));
                grants.push(Grant { claim, need, devices: std::mem::replace(&mut devices, rest) });
            }
        }
        let doubt = Doubt {
            claims: claims.iter().flatten().map(id).collect(),
            devices: grants.iter().flat_map(|g| &g.devices).map(|d| d.place.clone()).collect(),
            job: Some(job.clone()),
            ..Doubt::default()
        };
        let begin = Instant::now();
        match writer.allocate(&grants, &job, &choice.reason, &mut self.world).await {
            Ok(()) => {
                self.counters.placed.fetch_add(1, Ordering::Relaxed);
                self.counters.allocate_us.fetch_add(micros(begin), Ordering::Relaxed);
                (self.log)(&format!("{} placed as {job}: {}", wanted.gang, choice.reason));
                Ok(())
            }
            // What was written is taken back by the next plan, and the server's job with it.
            Err(WriteError::Refused { what, code, said }) if code != 429 => {
                Err(Unplaced::Waits { message: format!("the API refuses: {what}: {said}"), written: true })
            }
            Err(e) => {
                if matches!(e, WriteError::Silent(_)) {
                    self.doubt(e.to_string(), doubt);
                }
                Err(Unplaced::Failed(e.to_string()))
            }
        }
    }

    /// Asks until the choice has room on its nodes: the decision's name, the choice, and its devices by pod.
    async fn choose<'p>(
        &mut self,
        plan: &'p Plan,
        wanted: &Wanted,
        pods: &[&Pod],
        room: &Room,
        job: &str,
    ) -> Result<(String, Choice, Vec<Vec<&'p Device>>), Unplaced> {
        let usable = plan.inventory.devices().filter(|d| d.out.is_none() && plan.held.is_free(d));
        let mut free: Vec<&Device> = usable.filter(|d| room.left.contains_key(&d.node)).collect();
        let unknown = free.iter().filter(|d| self.server.name(&d.uuid).is_none()).count();
        if unknown > 0 && self.named.is_some_and(|at| at.elapsed() > TICK) {
            self.named = None; // read the names again at the next round
        }
        free.retain(|d| self.server.name(&d.uuid).is_some());
        let gpus: Vec<usize> = wanted.pods.iter().map(|p| p.gpus).collect();
        let total: usize = gpus.iter().sum();
        let asked: Vec<node::Amounts> = pods.iter().map(|p| node::requests(p)).collect();
        let one = room.is_one();
        if !one {
            // The server knows no nodes of single pods: a node offers no more GPUs than the pods that may run on it ask for.
            let mut most: BTreeMap<&str, usize> = BTreeMap::new();
            for (nodes, n) in room.of_pod.iter().zip(&gpus) {
                nodes.iter().for_each(|node| *most.entry(node).or_default() += n);
            }
            offer(&mut free, &most);
        }
        let mut fitted = false;
        for attempt in 0..CHOICES_MAX {
            if free.len() < total {
                let more = if unknown > 0 {
                    format!("; the server does not know the UUIDs of {unknown} more")
                } else {
                    String::new()
                };
                return Err(Unplaced::NoRoom(format!(
                    "needs {total} GPUs; {} are free where its pods can run{more}",
                    free.len()
                )));
            }
            let names: Vec<String> = free.iter().filter_map(|d| self.server.name(&d.uuid).map(str::to_owned)).collect();
            let begin = Instant::now();
            self.counters.asked.fetch_add(1, Ordering::Relaxed);
            let job = if attempt == 0 { job.to_owned() } else { format!("{job}.{attempt}") };
            self.known.insert(job.clone()); // the answer may be lost
            self.pulse.beat();
            let choice = self.server.allocate(&job, &gpus, &names).await;
            let us = micros(begin);
            self.counters.ask_us.fetch_add(us, Ordering::Relaxed);
            self.counters.ask_us_max.fetch_max(us, Ordering::Relaxed);
            let choice = match choice {
                Ok(choice) => choice,
                Err(AskError::Refused { code, detail, .. }) if NO_ROOM.contains(&code.as_str()) => {
                    return Err(Unplaced::NoRoom(format!("linkwise's server: {detail}")));
                }
                Err(e @ AskError::Refused { .. }) => {
                    return Err(Unplaced::Waits { message: e.to_string(), written: false });
                }
                Err(e) => return Err(Unplaced::Failed(e.to_string())),
            };
            let devices = match checked(plan, &free, &gpus, &choice) {
                Ok(devices) => devices,
                Err(message) => {
                    let _ = self.server.release(&job).await;
                    return Err(Unplaced::Waits { message, written: false });
                }
            };
            let devices = if one { Some(devices) } else { assigned(devices, &room.of_pod) };
            let Some(devices) = devices else {
                let _ = self.server.release(&job).await;
                let most = if fitted { None } else { by_hand(&free, &gpus, &room.of_pod) };
                let Some(most) = most else {
                    return Err(Unplaced::NoRoom(
                        "its pods select different nodes, and no choice of free GPUs has each pod on one of its own; give \
                         all pods the same node selectors, or wait for free GPUs"
                            .into(),
                    ));
                };
                offer(&mut free, &most);
                fitted = true;
                continue;
            };
            let mut left = room.left.clone();
            let mut full: BTreeSet<String> = BTreeSet::new();
            for (devices, asked) in devices.iter().zip(&asked) {
                let Some(node) = devices.first().map(|d| d.node.clone()) else { continue };
                let has = left.entry(node.clone()).or_default();
                if node::lacks(has, &node::Amounts::new(), asked).is_some() {
                    full.insert(node);
                    continue;
                }
                for (what, n) in asked {
                    *has.entry(what.clone()).or_default() -= n;
                }
            }
            if full.is_empty() {
                match partitioned(plan, wanted, &devices) {
                    Ok(None) => return Ok((job, choice, devices)),
                    Ok(Some(devices)) => {
                        let names =
                            devices.iter().flatten().filter_map(|d| self.server.name(&d.uuid).map(str::to_owned));
                        let names: Vec<String> = names.collect();
                        let recorded = async {
                            self.server.release(&job).await?;
                            self.server.record(&job, &names).await
                        };
                        return match recorded.await {
                            Ok(()) => Ok((job, choice, devices)),
                            Err(e) => Err(Unplaced::Failed(e.to_string())),
                        };
                    }
                    Err(node) => {
                        let _ = self.server.release(&job).await;
                        free.retain(|d| d.node != node);
                        continue;
                    }
                }
            }
            // Offer these nodes only as many GPUs as their room has pods for.
            let _ = self.server.release(&job).await;
            for node in full {
                let fitting: usize =
                    devices.iter().filter(|d| d.first().is_some_and(|d| d.node == node)).map(Vec::len).sum();
                let most = fitting.saturating_sub(gpus.iter().copied().min().unwrap_or(1));
                let mut kept = 0;
                free.retain(|d| {
                    kept += usize::from(d.node == node);
                    d.node != node || kept <= most
                });
            }
        }
        Err(Unplaced::NoRoom(format!("{CHOICES_MAX} choices had too little CPU, memory or pods on their nodes")))
    }
}

/// Why a gang was not placed.
enum Unplaced {
    /// It waits until GPUs or nodes are free.
    NoRoom(String),
    /// This gang is refused, and others need not be: missing rights, a policy, a choice that breaks the rules.
    Waits {
        /// Why, in words.
        message: String,
        /// True if claims may be written: the plan is no longer true.
        written: bool,
    },
    /// The API or the server does not answer, or the lease is lost.
    Failed(String),
}

/// The name of a decision: the same for the same claims at the same versions, so that a repeated question has the same answer, and another one after any
/// write.
fn job_name(wanted: &Wanted, claims: &[Vec<ResourceClaim>]) -> String {
    let parts = claims.iter().flatten().flat_map(|c| [c.uid(), c.resource_version()]);
    let bytes = parts.flat_map(|part| part.unwrap_or_default().into_bytes().into_iter().chain([0]));
    claim::job_name(&wanted.gang.namespace, &wanted.gang.name, fnv64(bytes))
}

/// A number that changes with the free GPUs, and how many they are.
fn free_now(plan: &Plan) -> (u64, usize) {
    let free = plan.inventory.devices().filter(|d| d.out.is_none() && plan.held.is_free(d));
    let free: Vec<&Device> = free.collect();
    (fnv64(free.iter().flat_map(|d| d.uuid.bytes())), free.len())
}

/// Would the gang fit on its nodes if every GPU were free? First fit, largest pods first.
fn fits_empty(plan: &Plan, wanted: &Wanted, of_pod: &[Arc<BTreeSet<String>>]) -> bool {
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for d in plan.inventory.devices().filter(|d| d.out.is_none()) {
        *nodes.entry(&d.node).or_default() += 1;
    }
    let mut pods: Vec<(usize, &BTreeSet<String>)> =
        wanted.pods.iter().map(|p| p.gpus).zip(of_pod.iter().map(|n| &**n)).collect();
    pods.sort_by_key(|(n, of)| (std::cmp::Reverse(*n), of.len()));
    pods.into_iter().all(|(n, of)| match nodes.iter_mut().find(|(node, left)| **left >= n && of.contains(**node)) {
        Some((_, left)) => {
            *left -= n;
            true
        }
        None => false,
    })
}
