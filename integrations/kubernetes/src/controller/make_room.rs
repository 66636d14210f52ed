//! Ends gangs: those of lower priority ([`crate::preempt`]), and those that did not start whole. No gang is left in pieces: all pods of a gang are counted
//! against their disruption budgets together and asked for before the first one is evicted.

use super::{AVOID, Controller, tell};
use crate::budget::{self, Budgets};
use crate::gang::Key;
use crate::plan::{Plan, Wanted};
use crate::preempt::{Case, Victim, Way, way};
use crate::say;
use crate::world::Id;
use crate::write::{WriteError, Writer};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, ListParams};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Choices of victims that budgets refuse before the gang waits.
const CHOICES_MAX: usize = 8;
/// Longest time of a list of the budgets of a namespace.
const DEADLINE: Duration = Duration::from_secs(10);
/// Time after which a gang whose restart was refused is asked for again.
const RESTART_AGAIN: Duration = Duration::from_secs(10);

impl Controller {
    /// Makes room for a gang by priority: what the gang waits for then.
    ///
    /// # Errors
    /// No room can be made; more words on why.
    pub(super) async fn make_room(
        &mut self,
        writer: &Writer<'_>,
        plan: &Plan,
        wanted: &Wanted,
    ) -> Result<String, String> {
        if !self.settings.preempt {
            return Err(String::new());
        }
        let mut is_fresh = false;
        let mut budgets = BTreeMap::new();
        let mut spared = BTreeSet::new();
        let mut refused = String::new();
        for _ in 0..CHOICES_MAX {
            let victims = match self.way(plan, wanted, &spared) {
                Way::None => return Err(refused),
                Way::Wait => return Ok("waits for pods that are ending: then it has room".into()),
                Way::Evict(victims) => victims,
            };
            if !is_fresh {
                // Before anything ends: what the server gives now.
                self.server.read_names().await.map_err(|e| format!("; {e}"))?;
                (self.named, is_fresh) = (Some(Instant::now()), true);
                continue;
            }
            for namespace in victims.iter().flat_map(|v| &v.pods).map(|p| &p.0) {
                if !budgets.contains_key(namespace) {
                    let found = self.budgets(namespace).await.map_err(|e| format!("; {e}"))?;
                    budgets.insert(namespace.clone(), found);
                }
            }
            let mut left = Budgets::of(budgets.values().flatten().cloned());
            let mut unwilling = Vec::new();
            for victim in &victims {
                match self.refuses(writer, &mut left, &victim.pods).await {
                    Ok(None) => {}
                    Ok(Some(why)) => unwilling.push((victim.job.clone(), why)),
                    Err(e) => return Err(format!("; {e}")),
                }
            }
            let Some((_, why)) = unwilling.first() else {
                return self.preempt(writer, wanted, &victims).await.map_err(|e| format!("; {e}"));
            };
            refused = format!("; a gang of lower priority stays: {why}");
            spared.extend(unwilling.into_iter().map(|(job, _)| job));
        }
        Err(refused)
    }

    fn way(&self, plan: &Plan, wanted: &Wanted, spared: &BTreeSet<String>) -> Way {
        let pods: Vec<&Pod> = wanted.pods.iter().filter_map(|w| self.world.pods.get(&w.pod)).collect();
        way(&Case {
            world: &self.world,
            settings: &self.settings,
            plan,
            wanted,
            pods: &pods,
            avoid: &self.avoided(&wanted.gang),
            spared,
            gives: &|uuid| self.server.gives(uuid),
            now: jiff::Timestamp::now(),
        })
    }

    async fn budgets(&self, namespace: &str) -> Result<Vec<PodDisruptionBudget>, String> {
        self.pulse.beat();
        let of: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(DEADLINE, of.list(&ListParams::default())).await {
            Ok(Ok(list)) => Ok(list.items),
            Ok(Err(e)) => Err(format!("the disruption budgets of {namespace} cannot be read: {e}")),
            Err(_) => Err(format!("the disruption budgets of {namespace} cannot be read: no answer")),
        }
    }

    /// Why these pods cannot be evicted together; none: they can, and are taken from the budgets. Nothing is evicted.
    async fn refuses(
        &self,
        writer: &Writer<'_>,
        budgets: &mut Budgets,
        pods: &[Id],
    ) -> Result<Option<String>, WriteError> {
        let of: Vec<&Pod> = pods.iter().filter_map(|p| self.world.pods.get(p)).collect();
        if let Err(why) = budgets.take(&of) {
            return Ok(Some(why));
        }
        // What budgets do not say: rights, policies, a budget that was made meanwhile.
        for pod in pods {
            match writer.evict(pod, &self.world, true).await {
                Ok(()) => {}
                Err(WriteError::Refused { what, said, .. }) => return Ok(Some(format!("{what}: {said}"))),
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// Evicts pods, those first that a budget may still refuse: the first refusal then loses nothing.
    async fn evict(&self, writer: &Writer<'_>, pods: &[Id]) -> Result<(), WriteError> {
        let mut pods: Vec<&Id> = pods.iter().collect();
        pods.sort_by_key(|p| !self.world.pods.get(p).is_some_and(budget::counts));
        for pod in pods {
            writer.evict(pod, &self.world, false).await?;
        }
        Ok(())
    }

    async fn preempt(&self, writer: &Writer<'_>, wanted: &Wanted, victims: &[Victim]) -> Result<String, WriteError> {
        for victim in victims {
            self.evict(writer, &victim.pods).await?;
            let text = format!(
                "its gang of priority {} ends: {} of priority {} needs the GPUs",
                victim.priority, wanted.gang, wanted.priority
            );
            (self.log)(&format!("{}: {text}", victim.job));
            for pod in victim.pods.iter().filter_map(|p| self.world.pods.get(p)) {
                say::event(&self.client, &self.identity, pod, true, "Preempted", &text).await;
            }
            self.counters.preempted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(format!("waits for the end of {} gangs of lower priority", victims.len()))
    }

    /// Evicts a gang of which not all pods were bound in time, all of its pods or none; true if they were.
    pub(super) async fn restart(
        &mut self,
        writer: &Writer<'_>,
        gang: &Key,
        job: &str,
        pods: &[Id],
        nodes: BTreeSet<String>,
    ) -> Result<bool, WriteError> {
        if self.kept.get(job).is_some_and(|until| Instant::now() < *until) {
            return Ok(false);
        }
        let late = format!("not all pods of {gang} were bound within {} s", self.settings.start_deadline_seconds);
        let refused = match self.budgets(&gang.namespace).await {
            Ok(budgets) => self.refuses(writer, &mut Budgets::of(budgets), pods).await?,
            Err(why) => Some(why),
        };
        let (reason, text) = match &refused {
            Some(why) => ("Waiting", format!("{late}, and they cannot start again: {why}")),
            None => ("StartsAgain", format!("{late}; all start again")),
        };
        if refused.is_some() {
            self.kept.insert(job.to_owned(), Instant::now() + RESTART_AGAIN);
        } else {
            self.evict(writer, pods).await?;
            self.kept.remove(job);
            let until = Instant::now() + AVOID;
            self.avoided.extend(nodes.into_iter().map(|n| ((gang.clone(), n), until)));
            self.counters.restarted.fetch_add(1, Ordering::Relaxed);
        }
        // The event comes once, and only when it is true.
        let before = self.said.insert(gang.clone(), tell::Said { text: text.clone(), at: Instant::now() });
        if before.is_none_or(|said| said.text != text) {
            (self.log)(&format!("{text} ({job})"));
            if let Some(pod) = pods.first().and_then(|p| self.world.pods.get(p)) {
                say::event(&self.client, &self.identity, pod, true, reason, &text).await;
            }
        }
        if refused.is_none() {
            pods.iter().for_each(|p| self.world.pods.remove(p));
        }
        Ok(refused.is_none())
    }
}
