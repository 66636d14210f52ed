//! Writes to the API. Every write needs the lease. A write of a decision has the resourceVersion that the decision has read. A touch has no
//! resourceVersion: it writes a new value, which makes a new version, so that earlier writes that arrive later fail.

use crate::claim::{self, Need};
use crate::device::Device;
use crate::leader::Leadership;
use crate::names::{GATE, GPUS, JOB, REASON, RELEASED, TERM};
use crate::pulse::Pulse;
use crate::world::{Id, World, id};
use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, DeleteParams, EvictParams, Patch, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Writes of one gang in flight.
const IN_FLIGHT: usize = 8;
/// Longest time of a write.
const DEADLINE: Duration = Duration::from_secs(15);

/// Why a write was not done, or is not known to be done.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The lease is lost; nothing was sent.
    #[error("another controller leads")]
    NotLeader,
    /// The object was changed since the decision. The next plan sees it.
    #[error("{0} was changed meanwhile")]
    Changed(String),
    /// The object does not exist any more.
    #[error("{0} is gone")]
    Gone(String),
    /// The API refused: missing rights, a policy, an invalid object.
    #[error("{what}: {said}")]
    Refused {
        /// The object.
        what: String,
        /// HTTP status.
        code: u16,
        /// The API's words.
        said: String,
    },
    /// No answer: the write may have happened. The next plan sees it.
    #[error("{0}: no answer from the API")]
    Silent(String),
}

/// A claim with the devices that it gets.
pub struct Grant<'a> {
    /// The claim.
    pub claim: &'a ResourceClaim,
    /// What it asks for.
    pub need: &'a Need,
    /// The devices, all of one node.
    pub devices: Vec<&'a Device>,
}

/// Writes on behalf of the leader.
pub struct Writer<'a> {
    /// The API.
    pub client: Client,
    /// The lease.
    pub leadership: &'a Leadership,
    /// Every write is a beat.
    pub pulse: Arc<Pulse>,
    /// Requests sent so far.
    pub calls: AtomicU64,
}

/// What a fence did.
#[derive(Debug, Default)]
pub struct Fenced {
    /// Objects with a new version.
    pub touched: u64,
    /// Objects that the API refuses to touch. The leader can write no decision on them either.
    pub refused: Vec<String>,
    /// Claims that could not be touched, and why: an earlier write of theirs may still come.
    pub open_claims: BTreeMap<Id, String>,
    /// Pods of the same kind.
    pub open_pods: BTreeMap<Id, String>,
}

type Outcome<T> = Result<T, WriteError>;

impl Writer<'_> {
    fn term(&self) -> Outcome<String> {
        self.leadership.term().map(|t| t.to_string()).ok_or(WriteError::NotLeader)
    }

    /// One write, with the lease checked before and a deadline. A fault of the server (5xx) says nothing: the write may be in etcd, or come later.
    async fn write<T>(&self, what: String, write: impl Future<Output = Result<T, kube::Error>>) -> Outcome<T> {
        match self.answer(what, write).await {
            Err(WriteError::Refused { what, code: 500.., .. }) => Err(WriteError::Silent(what)),
            other => other,
        }
    }

    async fn answer<T>(&self, what: String, write: impl Future<Output = Result<T, kube::Error>>) -> Outcome<T> {
        self.term()?;
        self.pulse.beat();
        self.calls.fetch_add(1, Ordering::Relaxed);
        match tokio::time::timeout(DEADLINE, write).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(kube::Error::Api(e))) => Err(match e.code {
                404 => WriteError::Gone(what),
                409 => WriteError::Changed(what),
                code => WriteError::Refused { what, code, said: e.message.clone() },
            }),
            Ok(Err(_)) | Err(_) => Err(WriteError::Silent(what)),
        }
    }

    fn claims(&self, namespace: &str) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    async fn patch_claim(&self, of: &ResourceClaim, status: bool, patch: Patch<Value>) -> Outcome<ResourceClaim> {
        let (namespace, name) = id(of);
        let (api, params) = (self.claims(&namespace), crate::names::as_linkwise());
        let what = format!("claim {namespace}/{name}");
        if status {
            self.write(what, api.patch_status(&name, &params, &patch)).await
        } else {
            self.write(what, api.patch(&name, &params, &patch)).await
        }
    }

    async fn patch_pod(&self, of: &Id, patch: Value) -> Outcome<Pod> {
        let api = self.pods(&of.0);
        self.write(
            format!("pod {}/{}", of.0, of.1),
            api.patch(&of.1, &crate::names::as_linkwise(), &Patch::Merge(patch)),
        )
        .await
    }

    /// Allocates the claims of a gang. After an error some may be allocated; the next plan takes them back. Two writes a claim.
    ///
    /// # Errors
    /// The first one.
    pub async fn allocate(&self, grants: &[Grant<'_>], job: &str, reason: &str, world: &mut World) -> Outcome<()> {
        let term = self.term()?;
        let now = crate::say::now_seconds();
        // The futures are made before the stream: a stream's closure could not borrow the claims.
        let prepare = grants.iter().map(|g| {
            let mut patch = claim::prepare(g.claim, job, &term);
            patch["metadata"]["annotations"][REASON] = json!(reason);
            self.patch_claim(g.claim, false, Patch::Merge(patch))
        });
        // All claims are tried before an error counts, so that the world has every answer.
        let prepared = keep(together(prepare.collect()).await, |c| world.claims.put(c))?;
        let allocate = grants.iter().zip(&prepared).map(|(g, claim)| {
            let node = g.devices.first().map_or("", |d| d.node.as_str());
            let patch = claim::allocate(claim, g.need, node, &g.devices, job, &now);
            self.patch_claim(claim, true, Patch::Merge(patch))
        });
        keep(together(allocate.collect()).await, |c| world.claims.put(c)).map(drop)
    }

    /// Pins pods to their nodes and removes linkwise's gate, in one write a pod.
    ///
    /// # Errors
    /// The first one; the next plan releases the others.
    pub async fn release(
        &self,
        pods: &[(Id, Option<String>, Option<String>)],
        job: Option<&str>,
        reason: &str,
        world: &mut World,
    ) -> Outcome<()> {
        let term = self.term()?;
        let now = crate::say::now_seconds();
        let release = pods.iter().filter_map(|(pod, node, gpus)| {
            let of = world.pods.get(pod)?;
            let patch = released(of, node.as_deref(), gpus.as_deref(), job, reason, &term, &now);
            Some(self.patch_pod(pod, patch))
        });
        let released = together(release.collect()).await;
        keep(released, |p| world.pods.put(p)).map(drop)
    }

    /// Takes the allocations of gated pods back. The pods are touched first: a release by an earlier leader then fails, or is seen.
    ///
    /// # Errors
    /// The first one; the next plan goes on.
    pub async fn undo(&self, pods: &[Id], claims: &[Id], why: &str, world: &mut World) -> Outcome<()> {
        let mark = self.mark()?;
        for pod in pods {
            let Some(of) = world.pods.get(pod) else { continue };
            let patch = json!({"metadata": {"resourceVersion": of.resource_version(),
                "annotations": {TERM: mark, REASON: format!("taken back: {why}")}}});
            let touched = self.patch_pod(pod, patch).await?;
            world.pods.put(touched);
        }
        for claim in claims {
            let Some(of) = world.claims.get(claim).cloned() else { continue };
            let freed = self.patch_claim(&of, true, Patch::Merge(claim::deallocate(&of))).await?;
            world.claims.put(freed);
        }
        Ok(())
    }

    /// Removes linkwise's entry from a claim.
    ///
    /// # Errors
    /// The write was not done.
    pub async fn let_go(&self, claim: &Id, world: &mut World) -> Outcome<()> {
        let Some(of) = world.claims.get(claim).cloned() else { return Ok(()) };
        let now = self.patch_claim(&of, true, Patch::Strategic(claim::let_go(&of))).await?;
        world.claims.put(now);
        Ok(())
    }

    /// Takes back an allocation that no pod uses, and the finalizer.
    ///
    /// # Errors
    /// The write was not done.
    pub async fn free(&self, claim: &Id, world: &mut World) -> Outcome<()> {
        let Some(of) = world.claims.get(claim).cloned() else { return Ok(()) };
        let freed = self.patch_claim(&of, true, Patch::Merge(claim::deallocate(&of))).await?;
        let now = self.patch_claim(&freed, false, Patch::Merge(claim::forget(&freed))).await?;
        world.claims.put(now);
        Ok(())
    }

    /// Evicts a pod, unless it was replaced; `only_asks`: nothing is done. A disruption budget may refuse. A fault of the server (5xx) refuses, too: that is
    /// its answer for a pod with two budgets, and an eviction that comes late ends the same pod.
    ///
    /// # Errors
    /// The eviction was refused, or is not known to be done.
    pub async fn evict(&self, pod: &Id, world: &World, only_asks: bool) -> Outcome<()> {
        let Some(of) = world.pods.get(pod) else { return Ok(()) };
        let preconditions = Preconditions { uid: of.uid(), resource_version: None };
        let options = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let post_options = PostParams { dry_run: only_asks, ..PostParams::default() };
        let params = EvictParams { delete_options: Some(options), post_options };
        let api = self.pods(&pod.0);
        match self.answer(format!("pod {}/{}", pod.0, pod.1), api.evict(&pod.1, &params)).await {
            Err(WriteError::Changed(_) | WriteError::Gone(_)) => Ok(()), // replaced, or gone
            other => other.map(drop),
        }
    }

    /// A text that no other touch has. The API server writes nothing, and makes no new version, if an object has the value already.
    fn mark(&self) -> Outcome<String> {
        Ok(format!("{}.{:x}", self.term()?, jiff::Timestamp::now().as_nanosecond()))
    }

    /// Touches every object that an earlier decision could still write, of an earlier leader ([`crate::leader`]), in the namespaces that are placed.
    /// One write per claim of a gated pod, and per gated pod whose claims are allocated.
    ///
    /// # Errors
    /// Another controller leads.
    pub async fn fence(&self, world: &mut World, places: impl Fn(&str) -> bool) -> Outcome<Fenced> {
        let placed = |id: &Id| places(&id.0);
        let named = |p: &Pod| -> Vec<Id> {
            let namespace = p.namespace().unwrap_or_default();
            claim::names(p).into_iter().flatten().map(|n| (namespace.clone(), n)).collect()
        };
        let is_gated = |p: &&Pod| crate::gang::is_gated(p) && placed(&id(*p));
        let mut claims: BTreeSet<Id> =
            world.pods.all().filter(is_gated).flat_map(named).filter(|c| world.claims.get(c).is_some()).collect();
        claims.extend(world.claims.all().filter(|c| claim::is_kept(c)).map(id).filter(placed));
        let mut fenced = Fenced::default();
        self.touch(world, &claims, &BTreeSet::new(), &mut fenced).await?;
        // The answers may show allocations that the lists did not have.
        let is_kept = |id: &Id| world.claims.get(id).is_some_and(claim::is_kept);
        let pods: BTreeSet<Id> =
            world.pods.all().filter(is_gated).filter(|p| named(p).iter().any(is_kept)).map(id).collect();
        self.touch(world, &BTreeSet::new(), &pods, &mut fenced).await?;
        Ok(fenced)
    }

    /// Touches claims, then pods: a write on the way to one of them fails. The answers are the objects as they are now. Nothing may be decided on those
    /// that stay open.
    ///
    /// # Errors
    /// Another controller leads.
    pub async fn touch(
        &self,
        world: &mut World,
        claims: &BTreeSet<Id>,
        pods: &BTreeSet<Id>,
        fenced: &mut Fenced,
    ) -> Outcome<()> {
        let patch = json!({"metadata": {"annotations": {TERM: self.mark()?}}});
        let objects: Vec<ResourceClaim> = claims.iter().filter_map(|c| world.claims.get(c)).cloned().collect();
        let touch_claim = |c| self.patch_claim(c, false, Patch::Merge(patch.clone()));
        let touched = together(objects.iter().map(touch_claim).collect()).await;
        for (of, claim) in objects.iter().map(id).zip(touched) {
            match fenced.count(claim)? {
                Touched::Now(claim) => world.claims.put(claim),
                Touched::Never => {}
                Touched::Open(why) => drop(fenced.open_claims.insert(of, why)),
            }
        }
        let touched = together(pods.iter().map(|p| self.patch_pod(p, patch.clone())).collect()).await;
        for (of, pod) in pods.iter().zip(touched) {
            match fenced.count(pod)? {
                Touched::Now(pod) => world.pods.put(pod),
                Touched::Never => {}
                Touched::Open(why) => drop(fenced.open_pods.insert(of.clone(), why)),
            }
        }
        Ok(())
    }
}

/// What became of a touch.
enum Touched<T> {
    /// The object as it is now.
    Now(T),
    /// The object is gone, or refuses this controller's writes.
    Never,
    /// It may be touched later; why not now.
    Open(String),
}

impl Fenced {
    /// True if every object was touched, or never can be.
    pub fn is_whole(&self) -> bool {
        self.open_claims.is_empty() && self.open_pods.is_empty()
    }

    fn count<T>(&mut self, outcome: Outcome<T>) -> Outcome<Touched<T>> {
        match outcome {
            Ok(object) => {
                self.touched += 1;
                Ok(Touched::Now(object))
            }
            // The watch tells it.
            Err(WriteError::Gone(_)) => Ok(Touched::Never),
            Err(e @ WriteError::Refused { code: 403 | 422, .. }) => {
                self.refused.push(e.to_string());
                Ok(Touched::Never)
            }
            Err(e @ WriteError::NotLeader) => Err(e),
            // A fault of the API, too many requests: of this object, or of all.
            Err(e) => Ok(Touched::Open(e.to_string())),
        }
    }
}

/// Some futures at a time, answers in order.
pub(crate) async fn together<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    stream::iter(futures).buffered(IN_FLIGHT).collect().await
}

/// All answers into the world; an error, [`WriteError::Silent`] before all others: after it nothing may be decided without a fence.
fn keep<T: Clone>(outcomes: Vec<Outcome<T>>, mut put: impl FnMut(T)) -> Outcome<Vec<T>> {
    let mut done = Vec::new();
    let mut failed = None;
    for outcome in outcomes {
        match outcome {
            Ok(object) => {
                put(object.clone());
                done.push(object);
            }
            Err(e @ WriteError::Silent(_)) => failed = Some(e),
            Err(e) => {
                failed.get_or_insert(e);
            }
        }
    }
    failed.map_or(Ok(done), Err)
}

/// The patch that releases a pod: its node in every term of the required node affinity, which may only become narrower, and the gates without ours.
fn released(
    pod: &Pod,
    node: Option<&str>,
    gpus: Option<&str>,
    job: Option<&str>,
    reason: &str,
    term: &str,
    now: &str,
) -> Value {
    let gates: Vec<Value> = crate::gang::gates(pod).filter(|g| *g != GATE).map(|g| json!({"name": g})).collect();
    let mut annotations = json!({TERM: term, RELEASED: now});
    if let (Some(job), Some(gpus)) = (job, gpus) {
        annotations[JOB] = json!(job);
        annotations[GPUS] = json!(gpus);
        annotations[REASON] = json!(reason);
    }
    let mut patch = json!({
        "metadata": {"resourceVersion": pod.resource_version(), "annotations": annotations},
        "spec": {"schedulingGates": gates},
    });
    if let Some(node) = node {
        let required = pod
            .spec
            .as_ref()
            .and_then(|s| s.affinity.as_ref()?.node_affinity.as_ref())
            .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        let mut terms = json!(required.map(|r| r.node_selector_terms.clone()).unwrap_or_default());
        let pin = claim::on(node)["nodeSelectorTerms"][0]["matchFields"][0].clone();
        match terms.as_array_mut().filter(|t| !t.is_empty()) {
            Some(terms) => {
                for term in terms {
                    let mut fields = term["matchFields"].as_array().cloned().unwrap_or_default();
                    fields.push(pin.clone());
                    term["matchFields"] = json!(fields);
                }
            }
            None => terms = json!([{"matchFields": [pin]}]),
        }
        patch["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": terms}}});
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_without_an_answer_counts_more_than_one_that_was_refused() {
        let changed = || Err::<u8, _>(WriteError::Changed("a".into()));
        let silent = || Err(WriteError::Silent("b".into()));
        for outcomes in [vec![changed(), silent(), Ok(1)], vec![silent(), changed(), Ok(1)]] {
            let mut seen = Vec::new();
            let kept = keep(outcomes, |n| seen.push(n));
            assert!(matches!(kept, Err(WriteError::Silent(_))), "{kept:?}");
            assert_eq!(seen, [1]);
        }
        assert!(matches!(keep(vec![changed(), Ok(1)], drop), Err(WriteError::Changed(_))));
    }

    #[test]
    fn the_node_is_added_to_every_term_and_other_gates_stay() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"resourceVersion": "7"}, "spec": {"containers": [],
            "schedulingGates": [{"name": "a"}, {"name": GATE}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "k", "operator": "Exists"}]}, {"matchFields": [{"key": "metadata.name",
                "operator": "NotIn", "values": ["n9"]}]}]}}}}}))
        .unwrap();
        let patch =
            released(&pod, Some("n1"), Some("n1:[0]"), Some("k8s:a:g:1"), "one GPU", "3", "2026-01-01T00:00:00Z");
        assert_eq!(patch["spec"]["schedulingGates"], json!([{"name": "a"}]));
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let terms = &patch["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        assert_eq!(terms[0]["matchExpressions"][0]["key"], "k");
        assert_eq!(terms[0]["matchFields"][0]["values"], json!(["n1"]));
        assert_eq!(terms[1]["matchFields"].as_array().unwrap().len(), 2);
        let bare = released(&Pod::default(), None, None, None, "", "3", "t");
        assert!(bare["spec"].get("affinity").is_none() && bare["metadata"]["annotations"].get(JOB).is_none());
    }
}
