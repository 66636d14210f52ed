//! Evicts gangs of lower priority ([`crate::preempt`]).

use super::Controller;
use crate::plan::{Plan, Wanted};
use crate::preempt::{Victim, Way, way};
use crate::say;
use crate::write::{WriteError, Writer};
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Choices of victims that budgets refuse before the gang waits.
const CHOICES_MAX: usize = 8;

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
        let mut spared = BTreeSet::new();
        let mut refused = String::new();
        for _ in 0..CHOICES_MAX {
            let pods: Vec<&Pod> = wanted.pods.iter().filter_map(|w| self.world.pods.get(&w.pod)).collect();
            let avoid = self.avoided(&wanted.gang);
            match way(&self.world, &self.settings, plan, wanted, &pods, &avoid, &spared, jiff::Timestamp::now()) {
                Way::None => return Err(refused),
                Way::Wait => return Ok("waits for pods that are ending: then it has room".into()),
                Way::Evict(victims) => {
                    let unwilling = self.unwilling(writer, &victims).await.map_err(|e| format!("; {e}"))?;
                    if unwilling.is_empty() {
                        return self.evict(writer, wanted, &victims).await.map_err(|e| format!("; {e}"));
                    }
                    refused = format!("; {}", unwilling[0].1);
                    spared.extend(unwilling.into_iter().map(|(job, _)| job));
                }
            }
        }
        Err(refused)
    }

    /// The victims of which a pod cannot be evicted, with the words of the API. All are asked before one is evicted: no gang is left in pieces.
    async fn unwilling(
        &mut self,
        writer: &Writer<'_>,
        victims: &[Victim],
    ) -> Result<Vec<(String, String)>, WriteError> {
        let mut unwilling = Vec::new();
        for victim in victims {
            for pod in &victim.pods {
                match writer.evict(pod, &self.world, true).await {
                    Ok(()) => {}
                    Err(WriteError::Refused { what, said, .. }) => {
                        unwilling.push((victim.job.clone(), format!("{what} of lower priority stays: {said}")));
                        break;
                    }
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(unwilling)
    }

    async fn evict(&mut self, writer: &Writer<'_>, wanted: &Wanted, victims: &[Victim]) -> Result<String, WriteError> {
        for victim in victims {
            let text = format!(
                "its gang of priority {} ends: {} of priority {} needs the GPUs",
                victim.priority, wanted.gang, wanted.priority
            );
            (self.log)(&format!("{}: {text}", victim.job));
            for pod in &victim.pods {
                if let Some(of) = self.world.pods.get(pod) {
                    say::event(&self.client, &self.identity, of, true, "Preempted", &text).await;
                }
                writer.evict(pod, &self.world, false).await?;
            }
            self.counters.preempted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(format!("waits for the end of {} gangs of lower priority", victims.len()))
    }
}
