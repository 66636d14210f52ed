//! Disruption budgets, counted for several pods at once.
//!
//! A dry run of an eviction takes nothing from the budget: asked pod by pod, a budget for one pod lets every pod of a gang go, and the second real eviction is
//! refused. The rules are those of the API server's eviction; what cannot be read counts as forbidden.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};

/// The budgets of some namespaces.
#[derive(Clone, Debug, Default)]
pub struct Budgets {
    all: Vec<Budget>,
}

#[derive(Clone, Debug)]
struct Budget {
    namespace: String,
    name: String,
    /// None: it cannot be read, and counts for every pod.
    selector: Option<Selector>,
    /// Pods that may still be evicted.
    left: i64,
    /// Pods that are not ready go without a count.
    spares_unready: bool,
}

impl Budgets {
    /// What the budgets allow now.
    pub fn of(budgets: impl IntoIterator<Item = PodDisruptionBudget>) -> Budgets {
        let budget = |b: PodDisruptionBudget| {
            let (namespace, name) = crate::world::id(&b);
            let generation = b.metadata.generation;
            let spec = b.spec.unwrap_or_default();
            let selector = spec.selector?; // it selects no pod
            let status = b.status.unwrap_or_default();
            let is_read = status.observed_generation.unwrap_or(0) >= generation.unwrap_or(0);
            let [healthy, desired, allowed] =
                [status.current_healthy, status.desired_healthy, status.disruptions_allowed].map(|n| n.unwrap_or(0));
            let is_healthy = healthy >= desired && desired > 0;
            Some(Budget {
                namespace,
                name,
                selector: Selector::try_from(selector).ok(),
                left: if is_read { i64::from(allowed) } else { 0 },
                spares_unready: is_healthy || spec.unhealthy_pod_eviction_policy.as_deref() == Some("AlwaysAllow"),
            })
        };
        Budgets { all: budgets.into_iter().filter_map(budget).collect() }
    }

    /// Takes all these pods from their budgets, or none of them. O(pods x budgets).
    ///
    /// # Errors
    /// A budget has too little left, or a pod has two budgets, which the API server never evicts.
    pub fn take(&mut self, pods: &[&Pod]) -> Result<(), String> {
        let mut left: Vec<i64> = self.all.iter().map(|b| b.left).collect();
        for pod in pods.iter().filter(|p| counts(p)) {
            let mut of = self.all.iter().enumerate().filter(|(_, b)| b.has(pod));
            let Some((i, budget)) = of.next() else { continue };
            if let Some((_, other)) = of.next() {
                return Err(format!(
                    "pod {} has two disruption budgets, {} and {}, and Kubernetes evicts no such pod",
                    pod.name_any(),
                    budget.name,
                    other.name
                ));
            }
            if is_ready(pod) || !budget.spares_unready {
                left[i] -= 1;
            }
        }
        for (budget, left) in self.all.iter().zip(&left) {
            if *left < 0 && *left < budget.left {
                let allows = match budget.left {
                    1 => "1 eviction".to_owned(),
                    n => format!("{} evictions", n.max(0)),
                };
                return Err(format!(
                    "the disruption budget {} allows {allows}, and its gang needs {}",
                    budget.name,
                    budget.left - left
                ));
            }
        }
        self.all.iter_mut().zip(left).for_each(|(budget, left)| budget.left = left);
        Ok(())
    }
}

impl Budget {
    fn has(&self, pod: &Pod) -> bool {
        pod.namespace().as_deref() == Some(self.namespace.as_str())
            && self.selector.as_ref().is_none_or(|s| s.matches(pod.labels()))
    }
}

/// True if the API server asks budgets before it evicts the pod: it runs and is not ending.
pub fn counts(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    pod.metadata.deletion_timestamp.is_none() && !matches!(phase, Some("Pending" | "Succeeded" | "Failed"))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn budget(name: &str, selector: Value, allowed: i32) -> PodDisruptionBudget {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "a", "generation": 1},
            "spec": {"selector": selector}, "status": {"observedGeneration": 1, "disruptionsAllowed": allowed,
                "currentHealthy": 1, "desiredHealthy": 2, "expectedPods": 3}}))
        .unwrap()
    }

    fn pod(name: &str, gang: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "a", "labels": {"gang": gang}},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]}}))
        .unwrap()
    }

    fn of(gang: &str) -> Value {
        json!({"matchLabels": {"gang": gang}})
    }

    #[test]
    fn pods_of_a_gang_count_together_and_none_is_taken_from_a_budget_that_is_too_small() {
        let pods = [pod("p0", "g", "Running"), pod("p1", "g", "Running"), pod("p2", "h", "Running")];
        let both: Vec<&Pod> = pods[..2].iter().collect();
        let mut budgets = Budgets::of([budget("one", of("g"), 1)]);
        let why = budgets.take(&both).unwrap_err();
        assert_eq!(why, "the disruption budget one allows 1 eviction, and its gang needs 2");
        // Nothing was taken: one of them may go, and then no other.
        assert_eq!(budgets.take(&both[..1]), Ok(()));
        assert!(budgets.take(&both[1..]).is_err());
        assert_eq!(budgets.take(&[&pods[2]]), Ok(()), "another gang");
        assert_eq!(Budgets::of([budget("two", of("g"), 2)]).take(&both), Ok(()));
        // A budget for several gangs.
        let mut shared = Budgets::of([budget("all", json!({}), 2)]);
        assert_eq!(shared.take(&both), Ok(()));
        assert!(shared.take(&[&pods[2]]).is_err());
        assert_eq!(shared.take(&[]), Ok(()));
    }

    #[test]
    fn only_pods_that_run_count_and_two_budgets_keep_a_pod() {
        let mut ending = pod("p0", "g", "Running");
        ending.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        let pods = [ending, pod("p1", "g", "Pending"), pod("p2", "g", "Succeeded")];
        let mut none = Budgets::of([budget("none", of("g"), 0), budget("too", of("g"), 9)]);
        assert_eq!(none.take(&pods.iter().collect::<Vec<_>>()), Ok(()));
        let why = none.take(&[&pod("p3", "g", "Running")]).unwrap_err();
        assert!(why.contains("two disruption budgets, none and too"), "{why}");
        // A budget of another namespace, one without a selector, and one whose last change was not counted yet.
        let mut other = budget("other", of("g"), 0);
        other.metadata.namespace = Some("b".into());
        let mut empty = budget("empty", of("g"), 0);
        empty.spec.as_mut().unwrap().selector = None;
        assert_eq!(Budgets::of([other, empty]).take(&[&pod("p3", "g", "Running")]), Ok(()));
        let mut new = budget("new", of("g"), 9);
        new.metadata.generation = Some(2);
        assert!(Budgets::of([new]).take(&[&pod("p3", "g", "Running")]).is_err());
    }

    #[test]
    fn a_pod_that_is_not_ready_goes_as_the_budget_says() {
        let mut sick = pod("p0", "g", "Running");
        sick.status.as_mut().unwrap().conditions = None;
        let mut healthy = budget("b", of("g"), 0);
        assert!(Budgets::of([healthy.clone()]).take(&[&sick]).is_err(), "too few others are ready");
        healthy.status.as_mut().unwrap().current_healthy = Some(2);
        assert_eq!(Budgets::of([healthy]).take(&[&sick]), Ok(()));
        let mut always = budget("b", of("g"), 0);
        always.spec.as_mut().unwrap().unhealthy_pod_eviction_policy = Some("AlwaysAllow".into());
        assert_eq!(Budgets::of([always]).take(&[&sick]), Ok(()));
    }
}
