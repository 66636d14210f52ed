//! What to do next: a function of the world.
//!
//! The state of a gang is in its objects, so a leader that knows nothing of the past goes on:
//!
//! | gated pods | next |
//! |---|---|
//! | fewer than the gang has, or with other gates, or with claims that are not made | wait |
//! | no claim allocated | place: all pods together |
//! | all claims allocated by one decision | release: no claim can fail any more |
//! | some claims allocated, and no pod of the decision released | undo |
//! | some pods of the decision released | release the others: a removed gate cannot come back |
//!
//! Released pods that are not all bound within the deadline start again ([`Step::Restart`]). An allocation whose pods are gone is let go.

use crate::claim::{self, Need};
use crate::device::{Held, Inventory};
use crate::gang::{self, Key, Owner, Size};
use crate::names::{GATE, JOB, ON_DEADLINE, RELEASED};
use crate::owner::Pods;
use crate::settings::Settings;
use crate::world::{Id, World, id};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Age of an owner's size at which the object is read again.
pub const SIZE_AGE_MAX: Duration = Duration::from_secs(20);

/// A change of a gang or a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// All claims of the decision are allocated: pin the pods and remove their gates.
    Release {
        /// The gang.
        gang: Key,
        /// The decision; none: pods without GPUs.
        job: Option<String>,
        /// The gated pods, each with its node; none: any node.
        pods: Vec<(Id, Option<String>)>,
    },
    /// Take the allocations of a decision back; no pod of it was released.
    Undo {
        /// The gang.
        gang: Key,
        /// Why, in words.
        why: String,
        /// The gated pods.
        pods: Vec<Id>,
        /// The claims.
        claims: Vec<Id>,
    },
    /// Remove linkwise's entry: the pods have reserved the claim, or the claim goes with its allocation.
    LetGo(Id),
    /// Take an allocation back that no pod uses.
    Free(Id),
    /// Evict the pods of a decision, because not all were bound in time. Their owner makes new ones, which wait at the gate.
    Restart {
        /// The gang.
        gang: Key,
        /// The decision.
        job: String,
        /// Its pods.
        pods: Vec<Id>,
        /// Nodes of the pods that were not bound.
        nodes: BTreeSet<String>,
    },
}

/// A pod that waits for GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The pod.
    pub pod: Id,
    /// Its claims for GPUs.
    pub claims: Vec<(Id, Need)>,
    /// Number of GPUs.
    pub gpus: usize,
}

/// A gang that waits for GPUs, complete and without another gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The gang.
    pub gang: Key,
    /// Priority of its pods, the highest.
    pub priority: i32,
    /// Creation of its oldest pod.
    pub since: Option<Timestamp>,
    /// Its gated pods with GPUs.
    pub pods: Vec<Want>,
}

impl Wanted {
    /// The gang as one that waits.
    pub fn waits(&self, message: String) -> Waiting {
        Waiting { gang: self.gang.clone(), pods: self.pods.iter().map(|p| p.pod.clone()).collect(), message }
    }
}

/// A gang that cannot be placed yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The gang.
    pub gang: Key,
    /// Its gated pods.
    pub pods: Vec<Id>,
    /// What is awaited, one line.
    pub message: String,
}

/// All that is to be done.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Changes, in order.
    pub steps: Vec<Step>,
    /// Gangs to place, most urgent first: by priority, then age.
    pub wanted: Vec<Wanted>,
    /// Gangs that wait.
    pub waiting: Vec<Waiting>,
    /// Owners whose size is to be read.
    pub unknown: BTreeSet<(Owner, Id)>,
    /// What an operator must know: devices in two claims, foreign allocations.
    pub alarms: Vec<String>,
    /// Decisions that hold GPUs, with the claims of each.
    pub jobs: BTreeMap<String, Vec<Id>>,
    /// The GPUs.
    pub inventory: Inventory,
    /// Who holds them.
    pub held: Held,
}

struct Member<'a> {
    id: Id,
    pod: &'a Pod,
    gated: bool,
    /// Claims for GPUs with their needs.
    claims: Vec<(&'a ResourceClaim, Need)>,
}

impl Member<'_> {
    fn bound(&self) -> bool {
        self.pod.spec.as_ref().is_some_and(|s| s.node_name.is_some())
    }

    fn job(&self) -> Option<&str> {
        self.pod.annotations().get(JOB).map(String::as_str)
    }
}

/// True if no container of the pod runs any more, or ever will.
pub fn is_over(pod: &Pod) -> bool {
    matches!(phase(pod), Some("Succeeded" | "Failed"))
}

fn phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}

/// The plan. O((pods + claims + devices) log).
pub fn plan(world: &World, settings: &Settings, now: Timestamp, at: Instant) -> Plan {
    let mut inventory = Inventory::of(world.slices.all(), &settings.driver);
    let mut alarms = Vec::new();
    for rule in world.rules.all() {
        let (selector, taint) = (&rule.data["spec"]["deviceSelector"], &rule.data["spec"]["taint"]);
        let effect = taint["effect"].as_str().unwrap_or("");
        // A rule without a selector matches no device.
        if matches!(effect, "NoSchedule" | "NoExecute") && !selector.is_null() {
            // Fields of versions before 1.35: a class and CEL expressions would have to be evaluated.
            let more = selector.as_object().into_iter().flatten();
            let more =
                more.filter(|(field, v)| !["driver", "pool", "device"].contains(&field.as_str()) && !v.is_null());
            if let Some((field, _)) = more.into_iter().next() {
                alarms.push(format!(
                    "DeviceTaintRule {} is not obeyed: linkwise does not read `{field}`; select by driver, pool and device",
                    rule.name_any()
                ));
                continue;
            }
            let fits = |field: &str, is: &str| selector[field].is_null() || selector[field] == is;
            let reason = format!(
                "has the taint {}:{effect} of the rule {}",
                taint["key"].as_str().unwrap_or(""),
                rule.name_any()
            );
            let which = |d: &crate::device::Device| {
                fits("driver", &d.place.driver) && fits("pool", &d.place.pool) && fits("device", &d.place.name)
            };
            inventory.take_out(which, &reason);
        }
    }
    let held = Held::of(world.claims.all(), &inventory);
    alarms.extend(doubles(&held));
    let mut plan = Plan { alarms, inventory, held, ..Plan::default() };
    for c in world.claims.all() {
        if let Some(job) = claim::job(c) {
            plan.jobs.entry(job.to_owned()).or_default().push(id(c));
        }
    }
    let mut users: HashMap<Id, Vec<&Pod>> = HashMap::new();
    let mut gangs: BTreeMap<Key, Vec<&Pod>> = BTreeMap::new();
    for pod in world.pods.all() {
        for name in claim::names(pod).into_iter().flatten() {
            users.entry((pod.namespace().unwrap_or_default(), name)).or_default().push(pod);
        }
        if gang::is_gated(pod) || pod.annotations().contains_key(JOB) || pod.metadata.deletion_timestamp.is_none() {
            gangs.entry(gang::of(pod).0).or_default().push(pod);
        }
    }
    gangs.retain(|key, _| settings.places(&key.namespace));
    gangs.retain(|_, pods| pods.iter().any(|p| gang::is_gated(p) || p.annotations().contains_key(JOB)));
    for (key, pods) in &gangs {
        of_gang(&mut plan, world, settings, now, at, key, pods, &users);
    }
    for c in world.claims.all().filter(|c| claim::is_kept(c)) {
        let (namespace, name) = id(c);
        if !settings.places(&namespace) {
            plan.alarms.push(format!(
                "claim {namespace}/{name} keeps its GPUs: linkwise gave them, and places pods of this namespace no more"
            ));
            continue;
        }
        let pods = users.get(&id(c)).map(Vec::as_slice).unwrap_or_default();
        let live = || pods.iter().filter(|p| !is_over(p));
        let bound = live().any(|p| p.spec.as_ref().is_some_and(|s| s.node_name.is_some()));
        if (bound && claim::is_used(c))
            || (live().count() == 0 && (claim::is_used(c) || c.metadata.deletion_timestamp.is_some()))
        {
            plan.steps.push(Step::LetGo(id(c)));
        } else if live().count() == 0 {
            plan.steps.push(Step::Free(id(c)));
        }
    }
    plan.wanted.sort_by(|a, b| b.priority.cmp(&a.priority).then(a.since.cmp(&b.since)).then(a.gang.cmp(&b.gang)));
    plan
}

fn doubles(held: &Held) -> Vec<String> {
    let double = |(place, claims): &(crate::device::Place, [String; 2])| {
        format!(
            "device {}/{} is in two claims, {} and {}: delete one of them",
            place.pool, place.name, claims[0], claims[1]
        )
    };
    held.doubles.iter().map(double).collect()
}

#[allow(clippy::too_many_arguments)] // the parts of one function
fn of_gang(
    plan: &mut Plan,
    world: &World,
    settings: &Settings,
    now: Timestamp,
    at: Instant,
    key: &Key,
    pods: &[&Pod],
    users: &HashMap<Id, Vec<&Pod>>,
) {
    let mut members: Vec<Member> = Vec::new();
    let mut wait: Option<String> = None;
    for pod in pods.iter().copied().filter(|p| !is_over(p) && p.metadata.deletion_timestamp.is_none()) {
        let mut member = Member { id: id(pod), pod, gated: gang::is_gated(pod), claims: Vec::new() };
        for name in claim::names(pod) {
            let found = name.as_ref().and_then(|n| world.claims.get(&(key.namespace.clone(), n.clone())));
            let Some(found) = found else {
                if member.gated {
                    let which = name.map_or_else(String::new, |n| format!(" {n}"));
                    wait.get_or_insert(format!("waits for the claim{which} of pod {}", member.id.1));
                }
                continue;
            };
            match claim::need(found, &settings.device_class) {
                Ok(Some(need)) => member.claims.push((found, need)),
                Ok(None) => {}
                Err(why) if member.gated => {
                    wait.get_or_insert(format!("claim {} {why}", found.name_any()));
                }
                Err(_) => {}
            }
        }
        members.push(member);
    }
    restarts(plan, settings, now, key, &members);
    let gated: Vec<&Member> = members.iter().filter(|m| m.gated).collect();
    if gated.is_empty() {
        return;
    }
    let ids = || gated.iter().map(|m| m.id.clone()).collect::<Vec<Id>>();
    // A decision of which a pod was released can only go on.
    let committed: BTreeSet<&str> = members.iter().filter(|m| !m.gated).filter_map(Member::job).collect();
    let allocated =
        |m: &&&Member, job: &str| !m.claims.is_empty() && m.claims.iter().all(|(c, _)| claim::job(c) == Some(job));
    for job in committed.iter().copied() {
        let rest: Vec<&&Member> = gated.iter().filter(|m| allocated(m, job)).collect();
        if !rest.is_empty() {
            release(plan, key, Some(job), &rest);
        }
    }
    let gated: Vec<&Member> =
        gated.iter().filter(|m| !committed.iter().any(|job| allocated(m, job))).copied().collect();
    if gated.is_empty() {
        return;
    }
    let jobs: BTreeSet<Option<&str>> =
        gated.iter().flat_map(|m| m.claims.iter().map(|(c, _)| claim::job(c).filter(|_| claim::is_kept(c)))).collect();
    let ours: Vec<Id> = gated
        .iter()
        .flat_map(|m| m.claims.iter())
        .filter(|(c, _)| claim::job(c).is_some() && claim::is_kept(c))
        .map(|(c, _)| id(*c))
        .collect();
    // Kept without a job: somebody changed the annotation.
    let is_foreign = |c: &ResourceClaim| claim::is_allocated(c) && (!claim::is_kept(c) || claim::job(c).is_none());
    let foreign = gated.iter().flat_map(|m| m.claims.iter()).find(|(c, _)| is_foreign(c));
    if let Some((c, _)) = foreign {
        let name = c.name_any();
        plan.alarms.push(format!(
            "claim {}/{name} of the gated {key} was allocated by another program than linkwise",
            key.namespace
        ));
        wait.get_or_insert(format!(
            "claim {name} was allocated by another program; delete the pod, or remove the allocation"
        ));
    }
    // A decision whose claims are all allocated was taken for a complete gang.
    let settled = jobs.len() == 1 && jobs.first().is_some_and(Option::is_some);
    if wait.is_none() && !settled {
        let other = || gated.iter().find_map(|m| gang::gates(m.pod).find(|g| *g != GATE).map(|g| (m, g)));
        let succeeded = pods.iter().filter(|p| phase(p) == Some("Succeeded")).count();
        wait = complete(plan, world, at, key, &members, succeeded)
            .err()
            .or_else(|| other().map(|(m, g)| format!("waits for the gate {g} of pod {}", m.id.1)));
    }
    if !ours.is_empty() && (wait.is_some() || jobs.len() > 1) {
        let why = wait.clone().unwrap_or_else(|| "only some of its claims are allocated".into());
        plan.steps.push(Step::Undo { gang: key.clone(), why, pods: ids(), claims: ours });
        return;
    }
    if let Some(message) = wait {
        plan.waiting.push(Waiting { gang: key.clone(), pods: ids(), message });
        return;
    }
    if let Some((c, _)) =
        gated.iter().flat_map(|m| &m.claims).find(|(c, _)| users.get(&id(*c)).is_some_and(|u| u.len() > 1))
    {
        let message = format!("claim {} is shared by several pods; give every pod its own", c.name_any());
        plan.waiting.push(Waiting { gang: key.clone(), pods: ids(), message });
        return;
    }
    match jobs.first() {
        None => release(plan, key, None, &gated.iter().collect::<Vec<_>>()),
        Some(Some(job)) => {
            let wrong = gated.iter().flat_map(|m| &m.claims).find_map(|(c, need)| {
                let why = claim::check(c, need, &plan.inventory).err()?;
                Some(format!("claim {} {why}", c.name_any()))
            });
            let double = || {
                let mine = |c: &String| ours.iter().any(|o| format!("{}/{}", o.0, o.1) == *c);
                let (place, _) = plan.held.doubles.iter().find(|(_, claims)| claims.iter().any(mine))?;
                Some(format!("device {}/{} is in another claim, too", place.pool, place.name))
            };
            match wrong.or_else(double) {
                Some(why) => plan.steps.push(Step::Undo { gang: key.clone(), why, pods: ids(), claims: ours.clone() }),
                None => release(plan, key, Some(*job), &gated.iter().collect::<Vec<_>>()),
            }
        }
        Some(None) => plan.wanted.push(Wanted {
            gang: key.clone(),
            priority: gated.iter().filter_map(|m| m.pod.spec.as_ref()?.priority).max().unwrap_or(0),
            since: gated.iter().filter_map(|m| m.pod.creation_timestamp()).map(|t| t.0).min(),
            pods: gated
                .iter()
                .filter(|m| !m.claims.is_empty())
                .map(|m| Want {
                    pod: m.id.clone(),
                    claims: m.claims.iter().map(|(c, need)| (id(*c), need.clone())).collect(),
                    gpus: m.claims.iter().map(|(_, n)| n.gpus).sum(),
                })
                .collect(),
        }),
    }
}

/// Is the gang complete? Only pods that live count: those of an earlier wave or try have ended. The error is what is awaited.
fn complete(
    plan: &mut Plan,
    world: &World,
    at: Instant,
    key: &Key,
    members: &[Member],
    succeeded: usize,
) -> Result<(), String> {
    let mut sizes = members.iter().map(|m| gang::of(m.pod).1).collect::<Vec<_>>();
    sizes.dedup();
    let pods = match &sizes[..] {
        [Size::Known(n)] => Pods { at_once: *n, in_all: None, launcher: true },
        [Size::InAll(n)] => Pods { at_once: *n, in_all: Some(*n), launcher: true },
        [Size::Of(owner, name)] => {
            let of = (*owner, (key.namespace.clone(), name.clone()));
            let told = world.sizes.get(&of);
            if told.is_none_or(|t| at.duration_since(t.at) > SIZE_AGE_MAX) {
                plan.unknown.insert(of);
            }
            match told {
                None => return Err(format!("reads the size of {key}")),
                Some(told) => told.size.clone().map_err(|why| format!("{key} {why}"))?,
            }
        }
        [Size::Fault(why)] => return Err(format!("a pod {why}")),
        _ => return Err("the pods give different sizes of the gang; give all pods the same".into()),
    };
    let (present, size) =
        (members.iter().filter(|m| pods.launcher || !gang::is_launcher(m.pod)).count(), pods.awaited(succeeded));
    if present >= size {
        return Ok(());
    }
    let ended = if succeeded > 0 { format!("; {succeeded} have succeeded") } else { String::new() };
    Err(format!("{present} of {size} pods exist{ended}"))
}

fn release(plan: &mut Plan, key: &Key, job: Option<&str>, members: &[&&Member]) {
    let node = |m: &Member| {
        let (c, need) = m.claims.first()?;
        claim::check(c, need, &plan.inventory).ok()
    };
    let pods = members.iter().map(|m| (m.id.clone(), node(m))).collect();
    plan.steps.push(Step::Release { gang: key.clone(), job: job.map(str::to_owned), pods });
}

/// Decisions of the gang whose pods are not all bound after the deadline.
fn restarts(plan: &mut Plan, settings: &Settings, now: Timestamp, key: &Key, members: &[Member]) {
    let mut by_job: BTreeMap<&str, Vec<&Member>> = BTreeMap::new();
    for m in members.iter().filter(|m| !m.gated) {
        if let Some(job) = m.job() {
            by_job.entry(job).or_default().push(m);
        }
    }
    for (job, pods) in by_job {
        let late = |m: &&&Member| {
            let released: Option<Timestamp> = m.pod.annotations().get(RELEASED).and_then(|t| t.parse().ok());
            let since = released.map(|t| now.duration_since(t).as_secs());
            !m.bound() && since.is_some_and(|s| u64::try_from(s).is_ok_and(|s| s >= settings.start_deadline_seconds))
        };
        let late: Vec<&&Member> = pods.iter().filter(late).collect();
        if late.is_empty() {
            continue;
        }
        if late[0].pod.annotations().get(ON_DEADLINE).is_some_and(|d| d == "wait") {
            let message = format!(
                "{} of {} pods are not bound {} s after their release; kube-scheduler's event on them says why",
                late.len(),
                pods.len(),
                settings.start_deadline_seconds
            );
            let pods = late.iter().map(|m| m.id.clone()).collect();
            plan.waiting.push(Waiting { gang: key.clone(), pods, message });
            continue;
        }
        let node = |m: &&&Member| {
            let (c, need) = m.claims.first()?;
            claim::check(c, need, &plan.inventory).ok()
        };
        let nodes = late.iter().filter_map(node).collect();
        let pods = pods.iter().map(|m| m.id.clone()).collect();
        plan.steps.push(Step::Restart { gang: key.clone(), job: job.to_owned(), pods, nodes });
    }
}

#[cfg(test)]
mod tests;
