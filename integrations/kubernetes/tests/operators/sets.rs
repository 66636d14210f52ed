//! JobSets and LeaderWorkerSets, made into pods by their real operators.

use crate::common::*;
use crate::operator::{JOBSET, LWS, Site};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use lab_kubernetes::{Kubelet, Life};
use linkwise_kubernetes::names::{CONDITION, GATE, JOB};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Objects of a kind in a namespace.
pub fn custom(lab: &Lab, namespace: &str, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(lab.client.clone(), namespace, &resource)
}

/// Creates an object as soon as the operator's webhooks let it in.
pub async fn create(api: &Api<DynamicObject>, object: Value) -> DynamicObject {
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let last = std::sync::Mutex::new(String::new());
    let made = async {
        loop {
            match api.create(&PostParams::default(), &object).await {
                Ok(made) => return made,
                Err(e) => *last.lock().unwrap() = e.to_string(),
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(PATIENCE, made)
        .await
        .unwrap_or_else(|_| panic!("{}: {}", object.name_any(), last.lock().unwrap()))
}

/// The template `NAME` of a claim for whole GPUs, in namespace `a`.
pub async fn make_template(lab: &Lab, name: &str, gpus: usize) {
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(lab.client.clone(), "a");
    make(&templates, json!({"metadata": {"name": name}, "spec": {"spec": gpu_claim("x", gpus)["spec"]}})).await;
}

/// The spec of a pod as a user writes it: gated, with a claim of a template.
pub fn gated_spec(template: &str) -> Value {
    json!({"schedulingGates": [{"name": GATE}],
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": template}],
        "containers": [{"name": "c", "image": "none",
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}, "claims": [{"name": "gpus"}]}}]})
}

/// [`placed_in`] namespace `a`.
pub async fn placed(lab: &Lab, label: &str, pods: usize) -> BTreeMap<String, BTreeSet<String>> {
    placed_in(lab, "a", label, pods).await
}

/// Living pods with a label once so many of them are bound: by decision, the GPUs of their claims. These are exactly the GPUs that the server chose.
pub async fn placed_in(lab: &Lab, namespace: &str, label: &str, pods: usize) -> BTreeMap<String, BTreeSet<String>> {
    let list = ListParams::default().labels(label);
    let is_over = |p: &Pod| {
        p.status.as_ref().and_then(|s| s.phase.as_deref()).is_some_and(|p| matches!(p, "Succeeded" | "Failed"))
    };
    until(&format!("{pods} pods of {label} have the GPUs that the server chose"), || async {
        let mut found = lab.pods(namespace).list(&list).await.ok()?.items;
        found.retain(|p| !is_over(p) && p.metadata.deletion_timestamp.is_none());
        let is_bound = |p: &Pod| p.spec.as_ref().is_some_and(|s| s.node_name.is_some());
        if found.len() != pods || !found.iter().all(is_bound) {
            return None;
        }
        let claims = lab.claims(namespace).list(&Default::default()).await.ok()?.items;
        let of =
            |pod: &Pod| claims.iter().find(|c| c.owner_references().iter().any(|o| Some(&o.uid) == pod.uid().as_ref()));
        let mut decisions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for pod in &found {
            let devices = devices(of(pod)?);
            let node = pod.spec.as_ref()?.node_name.clone()?;
            assert!(
                devices.iter().all(|d| d.starts_with(&format!("{node}/"))),
                "{} on {node}: {devices:?}",
                pod.name_any()
            );
            decisions.entry(pod.annotations().get(JOB)?.clone()).or_default().extend(devices);
        }
        let chosen = lab.linkwise.jobs();
        decisions.iter().all(|(job, has)| chosen.get(job).is_some_and(|c| devices_of(c) == *has)).then_some(decisions)
    })
    .await
}

/// The condition of one of the pods with a label, once it has `word`.
async fn one_says(lab: &Lab, label: &str, word: &str) {
    let list = ListParams::default().labels(label);
    until(&format!("a pod of {label} says `{word}`"), || async {
        let pods = lab.pods("a").list(&list).await.ok()?.items;
        let mut conditions = pods.into_iter().filter_map(|p| p.status?.conditions).flatten();
        conditions.find(|c| c.type_ == CONDITION && c.message.as_ref().is_some_and(|m| m.contains(word)))
    })
    .await;
}

/// Sets the phase of running pods with a label: what kubelets do at the end of a container.
pub async fn end(lab: &Lab, namespace: &str, label: &str, phase: &str, most: usize) {
    let pods = lab.pods(namespace).list(&ListParams::default().labels(label)).await.unwrap().items;
    let running = pods.iter().filter(|p| p.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Running")));
    for pod in running.take(most) {
        let ended = Patch::Merge(json!({"status": {"phase": phase}}));
        lab.pods(namespace).patch_status(&pod.name_any(), &PatchParams::default(), &ended).await.unwrap();
    }
}

/// Waits until so many pods with a label run.
pub async fn running(lab: &Lab, namespace: &str, label: &str, pods: usize) {
    let list = ListParams::default().labels(label).fields("status.phase=Running");
    until(&format!("{pods} pods of {label} run"), || async {
        (lab.pods(namespace).list(&list).await.ok()?.items.len() == pods).then_some(())
    })
    .await;
}

#[test]
#[ignore = "needs operators that scripts/build-operators.sh builds: `make test-kubernetes` runs it"]
fn gangs_of_real_operators_are_placed_whole_restarted_and_ended() {
    let name = "gangs_of_real_operators_are_placed_whole_restarted_and_ended";
    let Some(site) = Site::start(name, &[JOBSET, LWS]) else { return };
    let lab = &site.lab;
    lab.runtime.block_on(async {
        let _controller = Controller::start(lab, lab.acting.clone(), lab.settings());
        let _kubelet = Kubelet::start(lab.client.clone(), Life::Forever);
        make_template(lab, "two", 2).await;
        make_template(lab, "three", 3).await;
        job_sets(lab).await;
        leader_worker_sets(lab).await;
    });
}

async fn job_sets(lab: &Lab) {
    let sets = custom(lab, "a", "jobset.x-k8s.io", "v1alpha2", "JobSet");
    let job = |name: &str, replicas: usize, parallelism: usize, template: &str| {
        let mut pod = gated_spec(template);
        pod["restartPolicy"] = json!("Never");
        json!({"name": name, "replicas": replicas, "template": {"spec": {"parallelism": parallelism,
            "completions": parallelism, "backoffLimit": 0, "template": {"spec": pod}}}})
    };
    let set = |name: &str, spec: Value| json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name}, "spec": spec});
    let jobs = json!([job("lead", 1, 1, "three"), job("work", 2, 2, "two")]);
    create(&sets, set("js", json!({"failurePolicy": {"maxRestarts": 1}, "replicatedJobs": jobs}))).await;
    let label = "jobset.sigs.k8s.io/jobset-name=js";
    let first = placed(lab, label, 5).await;
    assert_eq!(first.values().map(BTreeSet::len).collect::<Vec<_>>(), [11], "one decision: {first:?}");
    running(lab, "a", label, 5).await;
    // A failure: the operator makes all jobs again, and the new pods are a gang again.
    end(lab, "a", label, "Failed", 1).await;
    let again = until("the gang is placed again", || async {
        let now = placed(lab, label, 5).await;
        (now.keys().ne(first.keys())).then_some(now)
    })
    .await;
    assert_eq!(again.values().map(BTreeSet::len).collect::<Vec<_>>(), [11], "one decision: {again:?}");
    running(lab, "a", label, 5).await;
    end(lab, "a", label, "Succeeded", 5).await;
    until("the JobSet is completed", || async {
        (sets.get("js").await.ok()?.data["status"]["terminalState"] == "Completed").then_some(())
    })
    .await;
    all_released(lab).await;
    sets.delete("js", &DeleteParams::background()).await.unwrap();

    // Jobs that start one after another are no gang, and a pod says so.
    let order = json!({"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs":
        [job("lead", 1, 1, "three"), job("work", 1, 1, "two")]});
    create(&sets, set("ordered", order)).await;
    one_says(lab, "jobset.sigs.k8s.io/jobset-name=ordered", "one after another").await;
    sets.delete("ordered", &DeleteParams::background()).await.unwrap();
}

async fn leader_worker_sets(lab: &Lab) {
    let sets = custom(lab, "a", "leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet");
    let template = json!({"size": 3, "leaderTemplate": {"spec": gated_spec("three")}, "workerTemplate": {"spec": gated_spec("two")}});
    let set = json!({"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "lws"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": template}});
    create(&sets, set).await;
    let label = "leaderworkerset.sigs.k8s.io/name=lws";
    let groups = placed(lab, label, 6).await;
    assert_eq!(groups.values().map(BTreeSet::len).collect::<Vec<_>>(), [7, 7], "a decision per group: {groups:?}");
    running(lab, "a", label, 6).await;
    // A worker fails: the operator makes its group again, and leaves the other one alone.
    let one = "leaderworkerset.sigs.k8s.io/name=lws,leaderworkerset.sigs.k8s.io/group-index=1,leaderworkerset.sigs.k8s.io/worker-index=1";
    let kept = placed(lab, "leaderworkerset.sigs.k8s.io/name=lws,leaderworkerset.sigs.k8s.io/group-index=0", 3).await;
    delete_pod(lab, "a", &lab.pods("a").list(&ListParams::default().labels(one)).await.unwrap().items[0].name_any())
        .await;
    let again = until("the group is placed again", || async {
        let now = placed(lab, label, 6).await;
        now.keys().ne(groups.keys()).then_some(now)
    })
    .await;
    assert_eq!(again.values().map(BTreeSet::len).collect::<Vec<_>>(), [7, 7], "{again:?}");
    let (job, gpus) = kept.first_key_value().unwrap();
    assert_eq!(again.get(job), Some(gpus), "the other group keeps its GPUs");
    sets.delete("lws", &DeleteParams::background()).await.unwrap();
    until("the pods are gone", || async {
        lab.pods("a").list(&ListParams::default().labels(label)).await.ok()?.items.is_empty().then_some(())
    })
    .await;
    all_released(lab).await;
}
