//! Writes without an answer. Such a write may be done, or come late, so its objects are touched before anything else is decided on them: the late write then
//! fails. Until the API takes the touches, the objects are left alone and no gang gets the GPUs that the write would give. Other gangs go on.
//!
//! A new leader has the same doubt about each object that it cannot touch ([`of_fence`]). Which GPUs a late write of the earlier leader gives is known to
//! the server, which gave them to the earlier leader's decision: its job stays in the server's state as long as the doubt. The claim names the job, because an
//! allocation is sent only after the API took the claim's metadata, and while the lease is held.

use super::Controller;
use crate::device::Place;
use crate::plan::{Plan, Step, Wanted};
use crate::world::{Id, World, id};
use crate::write::{Fenced, Writer};
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Pauses between two tries to touch the same objects: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(60)];

/// What a write without an answer may still change.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// The write.
    pub what: String,
    /// Claims that it changes.
    pub claims: BTreeSet<Id>,
    /// Pods that it changes.
    pub pods: BTreeSet<Id>,
    /// GPUs that it gives.
    pub devices: BTreeSet<Place>,
    /// The decision that it gives them to.
    pub job: Option<String>,
    /// When the objects are touched again, and the pause before.
    pub next: Option<(Instant, Duration)>,
}

impl Doubt {
    /// The objects of a step; none if a late write of it changes no decision.
    pub fn of(step: &Step) -> Doubt {
        let (claims, pods) = match step {
            Step::Release { pods, .. } => (Vec::new(), pods.iter().map(|(p, _)| p.clone()).collect()),
            Step::Undo { pods, claims, .. } => (claims.clone(), pods.clone()),
            Step::LetGo(claim) | Step::Free(claim) => (vec![claim.clone()], Vec::new()),
            // An eviction ends the pod with this uid only.
            Step::Restart { .. } => (Vec::new(), Vec::new()),
        };
        Doubt { claims: claims.into_iter().collect(), pods: pods.into_iter().collect(), ..Doubt::default() }
    }

    fn is_in(&self, step: &Step) -> bool {
        let of = Doubt::of(step);
        !self.claims.is_disjoint(&of.claims) || !self.pods.is_disjoint(&of.pods)
    }

    fn is_of(&self, wanted: &Wanted) -> bool {
        let claims = || wanted.pods.iter().flat_map(|p| &p.claims);
        wanted.pods.iter().any(|p| self.pods.contains(&p.pod)) || claims().any(|(c, _)| self.claims.contains(c))
    }
}

/// The objects that a fence could not touch.
pub(super) fn of_fence(world: &World, fenced: Fenced) -> Vec<Doubt> {
    let next = Some((Instant::now() + PAUSES[0], PAUSES[0]));
    let names = |pod: &Pod, claim: &Id| {
        let (namespace, _) = id(pod);
        namespace == claim.0 && crate::claim::names(pod).into_iter().flatten().any(|n| n == claim.1)
    };
    let of_claim = |(claim, what): (Id, String)| Doubt {
        pods: world.pods.all().filter(|p| names(p, &claim)).map(id).collect(),
        job: world.claims.get(&claim).and_then(|c| crate::claim::own_job(&c.metadata)).map(str::to_owned),
        claims: BTreeSet::from([claim]),
        what,
        next,
        ..Doubt::default()
    };
    let of_pod = |(pod, what)| Doubt { pods: BTreeSet::from([pod]), what, next, ..Doubt::default() };
    let claims = fenced.open_claims.into_iter().map(of_claim);
    claims.chain(fenced.open_pods.into_iter().map(of_pod)).collect()
}

impl Controller {
    /// Remembers a write without an answer.
    pub(super) fn doubt(&mut self, what: String, doubt: Doubt) {
        if !doubt.claims.is_empty() || !doubt.pods.is_empty() {
            self.doubts.push(Doubt { what, ..doubt });
        }
    }

    /// Touches the objects of every doubt whose pause is over. What the API took is no doubt any more.
    pub(super) async fn settle(&mut self, writer: &Writer<'_>) {
        let now = Instant::now();
        let is_due = |d: &Doubt| d.next.is_none_or(|(at, _)| at <= now);
        let (due, later): (Vec<Doubt>, Vec<Doubt>) = std::mem::take(&mut self.doubts).into_iter().partition(is_due);
        self.doubts = later;
        for mut doubt in due {
            let mut fenced = Fenced::default();
            match writer.touch(&mut self.world, &doubt.claims, &doubt.pods, &mut fenced).await {
                Ok(()) if fenced.is_whole() => {
                    (self.log)(&format!("{}; {} objects touched", doubt.what, fenced.touched));
                }
                _ => {
                    for why in fenced.open_claims.values().chain(fenced.open_pods.values()) {
                        self.log_once(format!("{}; not touched: {why}", doubt.what));
                    }
                    let pause = doubt.next.map_or(PAUSES[0], |(_, pause)| (pause * 2).min(PAUSES[1]));
                    doubt.next = Some((Instant::now() + pause, pause));
                    self.doubts.push(doubt);
                }
            }
        }
    }

    /// Takes out of a plan what is in doubt.
    pub(super) fn leave_alone(&self, plan: &mut Plan) {
        for doubt in &self.doubts {
            plan.inventory.take_out(|d| doubt.devices.contains(&d.place), &doubt.what);
            plan.steps.retain(|s| !doubt.is_in(s));
            for wanted in plan.wanted.extract_if(.., |w| doubt.is_of(w)) {
                plan.waiting.push(wanted.waits(format!("{}; a touch of the same objects is awaited", doubt.what)));
            }
        }
    }

    /// True if a write that gives GPUs to this decision may still come.
    pub(super) fn is_in_doubt(&self, job: &str) -> bool {
        self.doubts.iter().any(|d| d.job.as_deref() == Some(job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> BTreeSet<Id> {
        names.iter().map(|n| ("a".to_owned(), (*n).to_owned())).collect()
    }

    #[test]
    fn only_steps_on_the_same_objects_are_in_doubt() {
        let of = |name: &str| ("a".to_owned(), name.to_owned());
        let doubt = Doubt { claims: ids(&["c0", "c1"]), pods: ids(&["p0"]), ..Doubt::default() };
        assert!(doubt.is_in(&Step::LetGo(of("c1"))) && doubt.is_in(&Step::Free(of("c0"))));
        assert!(!doubt.is_in(&Step::LetGo(of("c2"))) && !doubt.is_in(&Step::Free(of("p0"))));
        let gang = crate::gang::Key { namespace: "a".into(), kind: "gang", name: "g".into() };
        let release = |pod: &str| Step::Release { gang: gang.clone(), job: None, pods: vec![(of(pod), None)] };
        assert!(doubt.is_in(&release("p0")) && !doubt.is_in(&release("p1")));
        let undo = |claim: &str| Step::Undo {
            gang: gang.clone(),
            why: "x".into(),
            pods: vec![of("p7")],
            claims: vec![of(claim)],
        };
        assert!(doubt.is_in(&undo("c0")) && !doubt.is_in(&undo("c7")));
        let restart = Step::Restart { gang, job: "j".into(), pods: vec![of("p0")], nodes: BTreeSet::new() };
        assert!(!doubt.is_in(&restart), "an eviction that comes late ends the same pod");
    }
}
