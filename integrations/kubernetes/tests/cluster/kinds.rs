//! Gangs of every kind, and what a gang waits for.
//!
//! The operators of Kubeflow, JobSet and LeaderWorkerSet do not run: their objects are custom resources with schemas of the test, and the test makes the
//! pods with the labels and owners that the operators give them. Jobs are made into pods by the real controller of jobs.

use crate::common::*;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use linkwise_kubernetes::Settings;
use linkwise_kubernetes::names::{CONDITION, GANG, GATE};
use serde_json::{Value, json};
use std::time::Duration;

fn crd(group: &str, version: &str, kind: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind},
            "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

/// Makes the kind and an object of it: the reference to it as an owner, with the true uid, because the garbage collector deletes pods of others.
async fn make_custom(lab: &Lab, group: &str, version: &str, kind: &str, name: &str, spec: Value) -> Value {
    let crds: Api<CustomResourceDefinition> = Api::all(lab.client.clone());
    let definition: CustomResourceDefinition = serde_json::from_value(crd(group, version, kind)).unwrap();
    let _ = crds.create(&Default::default(), &definition).await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = Api::namespaced_with(lab.client.clone(), "a", &resource);
    let object: DynamicObject =
        serde_json::from_value(json!({"apiVersion": format!("{group}/{version}"), "kind": kind,
        "metadata": {"name": name, "namespace": "a"}, "spec": spec}))
        .unwrap();
    let _ = api.delete(name, &DeleteParams::default()).await; // of a test that failed
    let made =
        until(&format!("{kind} is served"), || async { api.create(&Default::default(), &object).await.ok() }).await;
    json!([{"apiVersion": format!("{group}/{version}"), "kind": kind, "name": name, "uid": made.uid(), "controller": true}])
}

/// A gated pod with a claim of `gpus` and this metadata.
async fn make_pod(lab: &Lab, name: &str, gpus: usize, metadata: Value, spec: Value) {
    make(&lab.claims("a"), gpu_claim(name, gpus)).await;
    let mut p = pod(name, "none", 1, Some(name), spec);
    p["metadata"] = metadata;
    p["metadata"]["name"] = json!(name);
    make(&lab.pods("a"), p).await;
}

/// Waits until the pods are bound.
async fn bound_pods(lab: &Lab, names: &[&str]) {
    for name in names {
        bound_pod(lab, name).await;
    }
}

async fn clear(lab: &Lab) {
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let jobs: Api<Job> = Api::namespaced(lab.client.clone(), "a");
    let _ = jobs.delete_collection(&DeleteParams::background(), &ListParams::default()).await;
    let _ = lab.pods("a").delete_collection(&now, &ListParams::default()).await;
    let _ = lab.claims("a").delete_collection(&DeleteParams::default(), &ListParams::default()).await;
    until("the pods are gone", || async {
        let _ = lab.pods("a").delete_collection(&now, &ListParams::default()).await;
        lab.pods("a").list(&ListParams::default()).await.ok()?.items.is_empty().then_some(())
    })
    .await;
    all_released(lab).await;
}

#[test]
fn gangs_of_jobset_leaderworkerset_pytorchjob_and_mpijob_wait_for_all_their_pods() {
    let Some(lab) = lab("gangs_of_jobset_leaderworkerset_pytorchjob_and_mpijob_wait_for_all_their_pods") else {
        return;
    };
    lab.runtime.block_on(async {
        let _controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        make_custom(&lab, "jobset.x-k8s.io", "v1alpha2", "JobSet", "js", json!({"replicatedJobs": [
            {"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 1}}}]})).await;
        let pt = make_custom(&lab, "kubeflow.org", "v1", "PyTorchJob", "pt", json!({"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 1}}})).await;
        let mp = make_custom(&lab, "kubeflow.org", "v2beta1", "MPIJob", "mp", json!({"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}}})).await;
        let kinds: [(&str, Value); 4] = [
            ("js", json!({"labels": {"jobset.sigs.k8s.io/jobset-name": "js"}})),
            ("lws", json!({"labels": {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "0"},
                "annotations": {"leaderworkerset.sigs.k8s.io/size": "2"}})),
            ("pt", json!({"labels": {"training.kubeflow.org/job-name": "pt"}, "ownerReferences": pt})),
            ("mp", json!({"labels": {"training.kubeflow.org/job-name": "mp"}, "ownerReferences": mp})),
        ];
        for (name, metadata) in &kinds {
            make_pod(&lab, &format!("{name}-0"), 3, metadata.clone(), json!({})).await;
        }
        for (name, _) in &kinds {
            says(&lab, &format!("{name}-0"), "1 of 2 pods exist").await;
        }
        // A text that got lost is written again.
        let other = json!({"status": {"conditions": [{"type": CONDITION, "status": "False", "message": "another text"}]}});
        lab.pods("a").patch_status("js-0", &PatchParams::default(), &Patch::Strategic(other)).await.unwrap();
        says(&lab, "js-0", "1 of 2 pods exist").await;
        for (name, metadata) in &kinds {
            make_pod(&lab, &format!("{name}-1"), 2, metadata.clone(), json!({})).await;
        }
        for (name, _) in &kinds {
            bound_pods(&lab, &[&format!("{name}-0"), &format!("{name}-1")]).await;
        }
        clear(&lab).await;
    });
}

#[test]
fn a_job_with_a_claim_template_is_a_gang_and_its_gpus_come_back_when_it_is_deleted() {
    let Some(lab) = lab("a_job_with_a_claim_template_is_a_gang_and_its_gpus_come_back_when_it_is_deleted") else {
        return;
    };
    lab.runtime.block_on(async {
        let _controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(lab.client.clone(), "a");
        make(&templates, json!({"metadata": {"name": "four"}, "spec": {"spec": gpu_claim("x", 4)["spec"]}})).await;
        let jobs: Api<Job> = Api::namespaced(lab.client.clone(), "a");
        make(&jobs, json!({"metadata": {"name": "train"}, "spec": {"parallelism": 3, "completions": 3, "completionMode": "Indexed",
            "template": {"spec": {"restartPolicy": "Never", "schedulingGates": [{"name": GATE}],
                "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "four"}],
                "containers": [{"name": "c", "image": "none", "resources": {"claims": [{"name": "gpus"}]}}]}}}})).await;
        let list = ListParams::default().labels("batch.kubernetes.io/job-name=train");
        let all = || async {
            let pods = lab.pods("a").list(&list).await.ok()?.items;
            let bound = pods.iter().filter(|p| p.spec.as_ref().is_some_and(|s| s.node_name.is_some())).count();
            (bound == 3).then_some(pods)
        };
        until("three pods of the job are bound", all).await;
        clear(&lab).await;
    });
}

#[test]
fn plain_pods_of_a_job_are_gated_at_admission_and_get_exact_gpus_without_a_claim_of_their_own() {
    let name = "plain_pods_of_a_job_are_gated_at_admission_and_get_exact_gpus_without_a_claim_of_their_own";
    let Some(lab) = lab(name) else { return };
    if lab.account == "admin" || !lab_kubernetes::is_at_least(lab.plane.release(), 36) {
        println!("SKIP {name}: needs Helm (scripts/build-helm.sh) and Kubernetes 1.36");
        return;
    }
    lab.runtime.block_on(async {
        let _controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        let jobs: Api<Job> = Api::namespaced(lab.client.clone(), GATED);
        let container = json!({"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "4", "cpu": "1"}}});
        let spec = json!({"parallelism": 3, "completions": 3, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}});
        make(&jobs, json!({"metadata": {"name": "plain"}, "spec": spec})).await;
        let pods = lab.pods(GATED);
        until("three plain pods are bound", || async {
            let all = pods.list(&ListParams::default()).await.ok()?.items;
            (all.iter().filter(|p| p.spec.as_ref().is_some_and(|s| s.node_name.is_some())).count() == 3).then_some(())
        })
        .await;
        let of_claims: Vec<_> =
            lab.claims(GATED).list(&ListParams::default()).await.unwrap().items.iter().map(devices).collect();
        assert!(of_claims.len() == 3 && of_claims.iter().all(|c| c.len() == 4), "{of_claims:?}");
        let state = lab.linkwise.jobs();
        assert_eq!(of_claims.into_iter().flatten().collect::<std::collections::BTreeSet<_>>(), devices_of(state.values().next().unwrap()));
    });
}

#[test]
fn taints_selectors_affinity_and_cordons_are_obeyed_and_the_reason_is_on_the_pod() {
    let Some(lab) = lab("taints_selectors_affinity_and_cordons_are_obeyed_and_the_reason_is_on_the_pod") else {
        return;
    };
    lab.runtime.block_on(async {
        let _controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(lab.client.clone());
        let patch = |name: &'static str, patch: Value| {
            let nodes = nodes.clone();
            async move { nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap() }
        };
        patch("n0", json!({"spec": {"taints": [{"key": "ops", "effect": "NoSchedule"}]}})).await;
        patch("n1", json!({"spec": {"unschedulable": true}})).await;
        patch("n2", json!({"metadata": {"labels": {"pool": "train"}}})).await;
        // Only n2 is left for the first, nothing for the second, n0 and n2 for the third.
        make_gang(&lab, "a", "one", &[4, 4], json!({"nodeSelector": {"pool": "train"}})).await;
        let on = bound(&lab, "a", "one", 2).await;
        assert!(on.values().all(|n| n == "n2"), "{on:?}");
        make_gang(&lab, "a", "none", &[1], json!({"nodeSelector": {"pool": "other"}})).await;
        let said = says(&lab, "none-0", "lacks the label pool=other").await;
        assert!(said.starts_with("no node can run its pods"), "{said}");
        let tolerant = json!({"tolerations": [{"key": "ops", "operator": "Exists"}], "affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions":
                [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n3"]}]}]}}}});
        make_gang(&lab, "a", "third", &[8], tolerant).await;
        assert_eq!(bound(&lab, "a", "third", 1).await["third-0"], "n0");
        make_gang(&lab, "a", "big", &[8, 8], json!({})).await;
        says(&lab, "big-0", "needs 16 GPUs; 8 are free").await;
        for name in ["n0", "n1", "n2"] {
            patch(
                name,
                json!({"spec": {"taints": null, "unschedulable": null}, "metadata": {"labels": {"pool": null}}}),
            )
            .await;
        }
        bound(&lab, "a", "big", 2).await;
        clear(&lab).await;
    });
}

#[test]
fn a_gate_of_kueue_comes_first_and_broken_requests_say_what_to_do() {
    let Some(lab) = lab("a_gate_of_kueue_comes_first_and_broken_requests_say_what_to_do") else { return };
    lab.runtime.block_on(async {
        let _controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        let gates = json!({"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}, {"name": GATE}]});
        make_gang(&lab, "a", "queued", &[2], gates).await;
        says(&lab, "queued-0", "waits for the gate kueue.x-k8s.io/admission").await;
        let claims = lab.claims("a").list(&ListParams::default()).await.unwrap();
        assert!(claims.items.iter().all(|c| !linkwise_kubernetes::claim::is_allocated(c)));
        // Kueue admits: its gate goes, and its hint comes as a node selector.
        let admitted =
            json!({"spec": {"schedulingGates": [{"name": GATE}], "nodeSelector": {"kubernetes.io/hostname": "n3"}}});
        lab.pods("a").patch("queued-0", &PatchParams::default(), &Patch::Merge(admitted)).await.unwrap();
        assert_eq!(bound(&lab, "a", "queued", 1).await["queued-0"], "n3");
        let mut odd = gpu_claim("odd-0", 1);
        odd["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] = json!("All");
        odd["spec"]["devices"]["requests"][0]["exactly"].as_object_mut().unwrap().remove("count");
        make(&lab.claims("a"), odd).await;
        make(&lab.pods("a"), pod("odd-0", "odd", 1, Some("odd-0"), json!({}))).await;
        says(&lab, "odd-0", "allocation mode `All`").await;
        make_pod(&lab, "sizeless", 1, json!({"labels": {GANG: "sizeless"}}), json!({})).await;
        says(&lab, "sizeless", "add the number of pods").await;
        clear(&lab).await;
    });
}

#[test]
#[ignore = "slow: `make test-kubernetes` runs it"]
fn a_gang_that_does_not_start_in_time_starts_again_elsewhere() {
    let Some(lab) = lab("a_gang_that_does_not_start_in_time_starts_again_elsewhere") else { return };
    lab.runtime.block_on(async {
        let settings = Settings { start_deadline_seconds: 5, ..lab.settings() };
        let controller = Controller::start(&lab, lab.acting.clone(), settings);
        // The stock scheduler refuses a node for a reason that linkwise does not look at: a host port that another pod uses.
        let port = |node: &str| {
            json!({"nodeName": node, "schedulingGates": [], "containers": [{"name": "c", "image": "none",
                "ports": [{"containerPort": 7000, "hostPort": 7000}]}]})
        };
        let mut taken = pod("taken", "taken", 1, None, port("n0"));
        taken["metadata"]["labels"] = json!({});
        make(&lab.pods("a"), taken).await;
        // Two nodes are out: every new start costs the backoff of the controller of jobs.
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(lab.client.clone());
        let cordon = |on: bool| {
            let nodes = nodes.clone();
            async move {
                for node in ["n1", "n2"] {
                    let patch = Patch::Merge(json!({"spec": {"unschedulable": on}}));
                    nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
                }
            }
        };
        cordon(true).await;
        let jobs: Api<Job> = Api::namespaced(lab.client.clone(), "a");
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(lab.client.clone(), "a");
        make(&templates, json!({"metadata": {"name": "eight"}, "spec": {"spec": gpu_claim("x", 8)["spec"]}})).await;
        make(&jobs, json!({"metadata": {"name": "late"}, "spec": {"parallelism": 1, "template": {"spec": {"restartPolicy": "Never",
            "schedulingGates": [{"name": GATE}], "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}],
            "containers": [{"name": "c", "image": "none", "ports": [{"containerPort": 7000, "hostPort": 7000}],
                "resources": {"claims": [{"name": "gpus"}]}}]}}}})).await;
        let list = ListParams::default().labels("batch.kubernetes.io/job-name=late");
        let on = until("the job runs on the node whose port is free", || async {
            lab.pods("a").list(&list).await.ok()?.items.iter().find_map(|p: &Pod| p.spec.as_ref()?.node_name.clone())
        })
        .await;
        assert_eq!(on, "n3");
        tokio::time::sleep(Duration::from_millis(200)).await;
        cordon(false).await;
        assert!(controller.log().contains("all start again"), "{}", controller.log());
        clear(&lab).await;
    });
}

#[test]
fn a_foreign_allocation_and_a_double_are_alarms_and_no_pod_is_released() {
    let Some(lab) = lab("a_foreign_allocation_and_a_double_are_alarms_and_no_pod_is_released") else { return };
    lab.runtime.block_on(async {
        let controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        make(&lab.claims("a"), gpu_claim("foreign-0", 1)).await;
        let allocate = json!({"status": {"allocation": {"allocationTimestamp": "2026-11-21T00:00:00Z", "devices": {"results": [
            {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n0", "device": "gpu-0"}]}}}});
        for claim in ["foreign-0", "double"] {
            if claim == "double" {
                make(&lab.claims("a"), gpu_claim(claim, 1)).await;
            }
            lab.claims("a").patch_status(claim, &PatchParams::default(), &Patch::Merge(&allocate)).await.unwrap();
        }
        make(&lab.pods("a"), pod("foreign-0", "foreign", 1, Some("foreign-0"), json!({}))).await;
        says(&lab, "foreign-0", "was allocated by another program").await;
        until("both alarms are logged", || async {
            let log = controller.log();
            (log.contains("is in two claims, a/double and a/foreign-0") && log.contains("allocated by another program than linkwise"))
                .then_some(())
        })
        .await;
        assert_eq!(gated(&lab, "a").await, 1);
        // Gangs go on, on other GPUs.
        make_gang(&lab, "a", "other", &[8, 8, 8], json!({})).await;
        let on = bound(&lab, "a", "other", 3).await;
        assert!(on.values().all(|n| n != "n0"), "{on:?}");
        for claim in ["foreign-0", "double"] {
            let none = json!({"status": {"allocation": null}});
            lab.claims("a").patch_status(claim, &PatchParams::default(), &Patch::Merge(&none)).await.unwrap();
        }
        clear(&lab).await;
    });
}
