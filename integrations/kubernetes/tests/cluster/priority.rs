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

/// Gangs of low priority that fill the site, the oldest first.
async fn filled(lab: &Lab, gangs: &[(&str, &[usize])]) {
    for (gang, gpus) in gangs {
        make_gang(lab, "a", gang, gpus, of_class("low")).await;
        bound(lab, "a", gang, gpus.len()).await;
        // The time of the release has seconds.
        tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    }
}

/// A budget for the pods of a gang that allows so many evictions, in force.
async fn budget(lab: &Lab, name: &str, gang: &str, pods_min: usize, allows: i32) {
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(lab.client.clone(), "a");
    let spec = json!({"minAvailable": pods_min, "selector": {"matchLabels": {GANG: gang}}});
    make(&budgets, json!({"metadata": {"name": name}, "spec": spec})).await;
    until(&format!("the budget {name} is in force"), || async {
        (budgets.get(name).await.ok()?.status?.disruptions_allowed == Some(allows)).then_some(())
    })
    .await;
}

#[test]
fn a_budget_that_spares_a_part_of_a_gang_or_two_budgets_keep_the_gang_whole() {
    let name = "a_budget_that_spares_a_part_of_a_gang_or_two_budgets_keep_the_gang_whole";
    let Some(lab) = lab(name) else { return };
    lab.runtime.block_on(async {
        classes(&lab).await;
        let _kubelet = Kubelet::start(lab.client.clone(), Life::Forever);
        let controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        filled(&lab, &[("old", &[8, 8]), ("young", &[8, 8])]).await;
        // Any one pod of the younger gang may go, and no second one.
        budget(&lab, "one", "young", 1, 1).await;
        make_gang(&lab, "a", "urgent", &[8, 8], of_class("high")).await;
        bound(&lab, "a", "urgent", 2).await;
        assert_eq!((alive(&lab, "old").await, alive(&lab, "young").await), (Some(0), Some(2)), "{}", controller.log());
        make_gang(&lab, "a", "next", &[8, 8], of_class("high")).await;
        says(&lab, "next-0", "the disruption budget one allows 1 eviction").await;
        // Both budgets allow the eviction, and the API server refuses it with 500.
        budget(&lab, "two", "young", 0, 2).await;
        says(&lab, "next-0", "two disruption budgets").await;
        assert_eq!(alive(&lab, "young").await, Some(2), "{}", controller.log());
        let told: Api<k8s_openapi::api::events::v1::Event> = Api::namespaced(lab.client.clone(), "a");
        let told = told.list(&ListParams::default()).await.unwrap().items;
        let of = |e: &k8s_openapi::api::events::v1::Event| {
            e.regarding.as_ref().and_then(|r| r.name.clone()).unwrap_or_default()
        };
        let ended =
            told.iter().filter(|e| e.reason.as_deref() == Some("Preempted") && of(e).starts_with("young")).count();
        assert_eq!(ended, 0, "an event tells what has happened");
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(lab.client.clone(), "a");
        budgets.delete("one", &Default::default()).await.unwrap();
        bound(&lab, "a", "next", 2).await;
        assert_eq!(alive(&lab, "young").await, Some(0));
        assert_eq!(
            controller.log().matches("leads, term").count(),
            1,
            "no refusal is a lost answer: {}",
            controller.log()
        );
    });
}

#[test]
fn no_gang_ends_for_gpus_that_the_server_does_not_give() {
    let Some(lab) = lab("no_gang_ends_for_gpus_that_the_server_does_not_give") else { return };
    lab.runtime.block_on(async {
        classes(&lab).await;
        let _kubelet = Kubelet::start(lab.client.clone(), Life::Forever);
        let controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        filled(&lab, &[("first", &[8]), ("second", &[8]), ("third", &[8]), ("fourth", &[8])]).await;
        // The youngest run on drained hosts, after which no job gets their GPUs.
        let mut drained = Vec::new();
        for gang in ["third", "fourth"] {
            drained.extend(bound(&lab, "a", gang, 1).await.into_values());
        }
        lab.linkwise.ask("POST", "/v1/hosts/drain", &json!({"gpus": drained, "reason": "test"}).to_string());
        make_gang(&lab, "a", "urgent", &[8], of_class("high")).await;
        bound(&lab, "a", "urgent", 1).await;
        let mut alive_of = Vec::new();
        for gang in ["first", "second", "third", "fourth"] {
            alive_of.push(alive(&lab, gang).await);
        }
        assert_eq!(alive_of, [Some(1), Some(0), Some(1), Some(1)], "{}", controller.log());
        // Of 32 GPUs 16 are given: no gang of 24 has room by any end, and none ends for it.
        make_gang(&lab, "a", "large", &[8, 8, 8], of_class("high")).await;
        says(&lab, "large-0", "needs 24 GPUs").await;
        assert_eq!(
            (alive(&lab, "first").await, alive(&lab, "third").await),
            (Some(1), Some(1)),
            "{}",
            controller.log()
        );
        lab.linkwise.ask("POST", "/v1/hosts/undrain", &json!({"gpus": drained}).to_string());
    });
}

#[test]
fn a_late_gang_that_a_budget_keeps_loses_no_pod() {
    let Some(lab) = lab("a_late_gang_that_a_budget_keeps_loses_no_pod") else { return };
    lab.runtime.block_on(async {
        let _kubelet = Kubelet::start(lab.client.clone(), Life::Forever);
        budget(&lab, "keep", "late", 1, 0).await;
        let settings = linkwise_kubernetes::Settings { start_deadline_seconds: 2, ..lab.settings() };
        let controller = Controller::start(&lab, lab.acting.clone(), settings);
        // The first pod by name is never bound: its volume does not exist.
        let volume = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]});
        for (i, more) in [volume, json!({})].into_iter().enumerate() {
            let of = format!("late-{i}");
            make(&lab.claims("a"), gpu_claim(&of, 1)).await;
            let mut more = more;
            more["terminationGracePeriodSeconds"] = json!(1);
            make(&lab.pods("a"), pod(&of, "late", 2, Some(&of), more)).await;
        }
        bound_pod(&lab, "late-1").await;
        let said = "and they cannot start again: the disruption budget keep allows 0 evictions";
        until("the budget refuses", || async { controller.log().contains(said).then_some(()) }).await;
        assert_eq!(alive(&lab, "late").await, Some(2), "{}", controller.log());
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(lab.client.clone(), "a");
        budgets.delete("keep", &Default::default()).await.unwrap();
        until("all start again", || async { (alive(&lab, "late").await == Some(0)).then_some(()) }).await;
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
