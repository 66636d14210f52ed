//! Priorities, preemption, disruption budgets and drains.

use crate::common::*;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;
use kube::api::{Api, EvictParams, ListParams, Patch, PatchParams};
use lab_kubernetes::{Kubelet, Life};
use linkwise_kubernetes::names::{GANG, GATE};
use serde_json::{Value, json};
use std::collections::BTreeSet;

async fn classes(lab: &Lab) {
    let classes: Api<PriorityClass> = Api::all(lab.client.clone());
    for (name, value, policy) in
        [("low", 10, "PreemptLowerPriority"), ("high", 1000, "PreemptLowerPriority"), ("meek", 500, "Never")]
    {
        let class =
            serde_json::from_value(json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}));
        let _ = classes.create(&Default::default(), &class.unwrap()).await; // made before
    }
    until("the classes are known", || async {
        (classes.list(&Default::default()).await.ok()?.items.len() >= 5).then_some(())
    })
    .await;
}

fn of_class(name: &str) -> Value {
    json!({"priorityClassName": name, "terminationGracePeriodSeconds": 1})
}

/// Pods of a gang that exist and are not being deleted.
async fn alive(lab: &Lab, gang: &str) -> Option<usize> {
    let list = ListParams::default().labels(&format!("{GANG}={gang}"));
    let pods = lab.pods("a").list(&list).await.ok()?.items;
    Some(pods.iter().filter(|p| p.metadata.deletion_timestamp.is_none()).count())
}

#[test]
fn a_gang_of_higher_priority_ends_one_of_lower_priority_whole_and_budgets_are_kept() {
    let name = "a_gang_of_higher_priority_ends_one_of_lower_priority_whole_and_budgets_are_kept";
    let Some(lab) = lab(name) else { return };
    lab.runtime.block_on(async {
        classes(&lab).await;
        let _kubelet = Kubelet::start(lab.client.clone(), Life::Forever);
        let controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        // All GPUs are taken: the youngest of low priority would end first, but a budget keeps it.
        for gang in ["first", "second"] {
            make_gang(&lab, "a", gang, &[8, 8], of_class("low")).await;
            bound(&lab, "a", gang, 2).await;
            // The time of the release has seconds.
            tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
        }
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(lab.client.clone(), "a");
        make(&budgets, json!({"metadata": {"name": "keep"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {GANG: "second"}}}})).await;
        until("the budget is in force", || async { (budgets.get("keep").await.ok()?.status?.current_healthy == Some(2)).then_some(()) }).await;
        make_gang(&lab, "a", "meek", &[8], of_class("meek")).await;
        says(&lab, "meek-0", "needs 8 GPUs; 0 are free").await;
        assert_eq!((alive(&lab, "first").await, alive(&lab, "second").await), (Some(2), Some(2)), "{}", controller.log());
        // 9 GPUs: both pods of the gang end, though the GPUs of one of them would do for a part.
        make_gang(&lab, "a", "urgent", &[8, 1], of_class("high")).await;
        let on = bound(&lab, "a", "urgent", 2).await;
        assert_eq!((alive(&lab, "first").await, alive(&lab, "second").await), (Some(0), Some(2)), "{on:?}: {}", controller.log());
        // What is left is too little for the meek one, which waits.
        assert_eq!(gated(&lab, "a").await, 1);
        let events: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(lab.client.clone(), "a");
        let told = events.list(&ListParams::default()).await.unwrap().items;
        let ended: BTreeSet<&str> = told
            .iter()
            .filter(|e| e.reason.as_deref() == Some("Preempted"))
            .filter_map(|e| e.regarding.as_ref()?.name.as_deref())
            .collect();
        assert_eq!(ended, BTreeSet::from(["first-0", "first-1"]));
        // The budget is deleted and no gang of higher priority waits: no gang ends.
        make_gang(&lab, "a", "late", &[8, 8], of_class("high")).await;
        says(&lab, "late-0", "of lower priority stays").await;
        budgets.delete("keep", &Default::default()).await.unwrap();
        bound(&lab, "a", "late", 2).await;
        assert_eq!(alive(&lab, "second").await, Some(0));
    });
}

#[test]
#[ignore = "slow: `make test-kubernetes` runs it"]
fn a_pod_of_a_drained_node_is_placed_elsewhere_and_budgets_are_obeyed_at_the_deadline() {
    let name = "a_pod_of_a_drained_node_is_placed_elsewhere_and_budgets_are_obeyed_at_the_deadline";
    let Some(lab) = lab(name) else { return };
    lab.runtime.block_on(async {
        let _kubelet = Kubelet::start(lab.client.clone(), Life::Forever);
        let _controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(lab.client.clone(), "a");
        make(&templates, json!({"metadata": {"name": "eight"}, "spec": {"spec": gpu_claim("x", 8)["spec"]}})).await;
        let jobs: Api<Job> = Api::namespaced(lab.client.clone(), "a");
        make(&jobs, json!({"metadata": {"name": "train"}, "spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed",
            "podReplacementPolicy": "Failed", "backoffLimit": 20,
            "template": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "schedulingGates": [{"name": GATE}],
                "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}],
                "containers": [{"name": "c", "image": "none", "resources": {"claims": [{"name": "gpus"}]}}]}}}})).await;
        let list = ListParams::default().labels("batch.kubernetes.io/job-name=train");
        let pods = |n: usize| {
            let (api, list) = (lab.pods("a"), list.clone());
            async move {
                until(&format!("{n} pods run"), || async {
                    let pods: Vec<Pod> = api.list(&list).await.ok()?.items;
                    let runs = |p: &&Pod| p.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running"));
                    let live: Vec<Pod> = pods.iter().filter(runs).filter(|p| p.metadata.deletion_timestamp.is_none()).cloned().collect();
                    (live.len() == n).then_some(live)
                })
                .await
            }
        };
        let before = pods(2).await;
        // As kubectl drain does: a cordon, then evictions.
        let node = before[0].spec.as_ref().unwrap().node_name.clone().unwrap();
        let nodes: Api<Node> = Api::all(lab.client.clone());
        let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
        nodes.patch(&node, &PatchParams::default(), &cordon).await.unwrap();
        lab.pods("a").evict(&before[0].name_any(), &EvictParams::default()).await.unwrap();
        until("the old pod is gone", || async { lab.pods("a").get_opt(&before[0].name_any()).await.ok()?.is_none().then_some(()) }).await;
        let after = pods(2).await;
        let on: BTreeSet<String> = after.iter().filter_map(|p| p.spec.as_ref()?.node_name.clone()).collect();
        assert!(!on.contains(&node) && on.len() == 2, "{on:?} after {node}");
        assert!(after.iter().any(|p| p.uid() == before[1].uid()), "the other pod runs on");
    });
}
