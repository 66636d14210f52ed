//! Kueue's admission before linkwise's choice: quota, groups of plain pods, and topology.

use crate::common::*;
use crate::operator::{JOBSET, KUEUE, KUEUE_WITH_CLAIMS, Site};
use crate::sets::{create, custom, end, gated_spec, make_template, placed, placed_in, running};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use lab_kubernetes::{Kubelet, Life, node_name};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const API: &str = "kueue.x-k8s.io/v1beta2";

/// Objects of Kueue's cluster-wide kinds.
fn of_cluster(lab: &Lab, kind: &str) -> Api<DynamicObject> {
    Api::all_with(lab.client.clone(), &ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind)))
}

/// A queue in the namespaces with its own cluster queue and flavor. `quota`: resources and amounts.
async fn make_queue(lab: &Lab, name: &str, flavor: Value, quota: &[(&str, &str)]) {
    create(
        &of_cluster(lab, "ResourceFlavor"),
        json!({"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": name}, "spec": flavor}),
    )
    .await;
    let covered: Vec<&str> = quota.iter().map(|(r, _)| *r).collect();
    let resources: Vec<Value> = quota.iter().map(|(r, n)| json!({"name": r, "nominalQuota": n})).collect();
    let groups = json!([{"coveredResources": covered, "flavors": [{"name": name, "resources": resources}]}]);
    create(
        &of_cluster(lab, "ClusterQueue"),
        json!({"apiVersion": API, "kind": "ClusterQueue", "metadata": {"name": name},
        "spec": {"namespaceSelector": {}, "resourceGroups": groups}}),
    )
    .await;
    for namespace in ["a", GATED] {
        let queue = json!({"apiVersion": API, "kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": name}});
        create(&custom(lab, namespace, "kueue.x-k8s.io", "v1beta2", "LocalQueue"), queue).await;
    }
}

fn job(name: &str, queue: &str, pods: usize, template: Value, spec: Value) -> Value {
    let mut of = json!({"metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {"parallelism": pods, "completions": pods, "backoffLimit": 0, "template": {"metadata": template, "spec": spec}}});
    of["spec"]["template"]["spec"]["restartPolicy"] = json!("Never");
    of
}

fn of_job(name: &str) -> String {
    format!("batch.kubernetes.io/job-name={name}")
}

async fn pods_of(lab: &Lab, label: &str) -> usize {
    lab.pods("a").list(&ListParams::default().labels(label)).await.unwrap().items.len()
}

/// Why Kueue has not admitted the workload of a job.
async fn waits(lab: &Lab, namespace: &str, owner: &str) -> String {
    let workloads = custom(lab, namespace, "kueue.x-k8s.io", "v1beta2", "Workload");
    until(&format!("Kueue says why {owner} waits"), || async {
        let all = workloads.list(&ListParams::default()).await.ok()?.items;
        let of = all.into_iter().find(|w| w.owner_references().iter().any(|o| o.name == owner))?;
        let conditions = of.data["status"]["conditions"].as_array()?.clone();
        let quota = conditions.into_iter().find(|c| c["type"] == "QuotaReserved" && c["status"] == "False")?;
        quota["message"].as_str().map(str::to_owned)
    })
    .await
}

#[test]
#[ignore = "needs operators that scripts/build-operators.sh builds: `make test-kubernetes` runs it"]
fn kueue_admits_first_and_linkwise_places_what_was_admitted_where_kueue_wants_it() {
    let name = "kueue_admits_first_and_linkwise_places_what_was_admitted_where_kueue_wants_it";
    let Some(site) = Site::start(name, &[JOBSET, KUEUE]) else { return };
    let lab = &site.lab;
    lab.runtime.block_on(async {
        let _controller = Controller::start(lab, lab.acting.clone(), lab.settings());
        let _kubelet = Kubelet::start(lab.client.clone(), Life::Forever);
        make_template(lab, "two", 2).await;
        make_queue(lab, "few", json!({}), &[("cpu", "4")]).await;
        a_gang_over_the_quota_waits_without_gpus(lab).await;
        a_job_set_is_suspended_until_it_is_admitted(lab).await;
        plain_pods_wait_at_the_gate_of_kueue(lab).await;
        if gates_plain_pods(lab) {
            plain_jobs_count_by_their_gpus(lab).await;
        }
        the_nodes_of_a_topology_assignment_are_obeyed(lab).await;
    });
}

#[test]
#[ignore = "needs operators that scripts/build-operators.sh builds: `make test-kubernetes` runs it"]
fn quotas_of_kueue_count_the_gpus_of_claims() {
    let Some(site) = Site::start("quotas_of_kueue_count_the_gpus_of_claims", &[KUEUE_WITH_CLAIMS]) else { return };
    let lab = &site.lab;
    lab.runtime.block_on(async {
        let _controller = Controller::start(lab, lab.acting.clone(), lab.settings());
        let _kubelet = Kubelet::start(lab.client.clone(), Life::Forever);
        make_template(lab, "two", 2).await;
        make_queue(lab, "few", json!({}), &[("cpu", "100"), ("nvidia.com/gpu", "8")]).await;
        a_gang_over_the_quota_waits_without_gpus(lab).await;
        plain_pods_wait_at_the_gate_of_kueue(lab).await;
        if gates_plain_pods(lab) {
            // The policy has made a claim of the pod's limit before Kueue sees the pod.
            for (i, gpus) in [6, 4].into_iter().enumerate() {
                let container = json!({"name": "c", "image": "none", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}});
                let labels = json!({"kueue.x-k8s.io/queue-name": "few"});
                make(&lab.pods(GATED), json!({"metadata": {"name": format!("plain-{i}"), "labels": labels}, "spec": {"containers": [container]}})).await;
                if i == 0 {
                    placed_in(lab, GATED, "kueue.x-k8s.io/queue-name=few", 1).await;
                }
            }
            let said = waits(lab, GATED, "plain-1").await;
            assert!(said.contains("quota"), "{said}");
            assert_eq!(gated(lab, GATED).await, 1);
            running(lab, GATED, "kueue.x-k8s.io/queue-name=few", 1).await;
            end(lab, GATED, "kueue.x-k8s.io/queue-name=few", "Succeeded", 1).await;
            placed_in(lab, GATED, "kueue.x-k8s.io/queue-name=few", 1).await;
        }
    });
}

/// True if plain pods of [`GATED`] get linkwise's gate at admission.
fn gates_plain_pods(lab: &Lab) -> bool {
    let can = lab.account != "admin" && lab_kubernetes::is_at_least(lab.plane.release(), 36);
    if !can {
        println!(
            "SKIP plain pods: they are gated at admission from Kubernetes 1.36 on, by a policy that needs Helm here"
        );
    }
    can
}

/// Kueue counts what the template of a job asks for; the policy changes the pods only.
async fn plain_jobs_count_by_their_gpus(lab: &Lab) {
    make_queue(lab, "plain", json!({}), &[("cpu", "100"), ("nvidia.com/gpu", "8")]).await;
    let jobs: Api<Job> = Api::namespaced(lab.client.clone(), GATED);
    let limits = json!({"nvidia.com/gpu": "4", "cpu": "1"});
    let spec = json!({"containers": [{"name": "c", "image": "none", "resources": {"limits": limits}}]});
    for (name, pods) in [("plain", 2), ("next", 1)] {
        make(&jobs, job(name, "plain", pods, json!({}), spec.clone())).await;
        if name == "plain" {
            let gpus = placed_in(lab, GATED, &of_job(name), pods).await;
            assert_eq!(gpus.values().map(BTreeSet::len).collect::<Vec<_>>(), [8], "{gpus:?}");
        }
    }
    let said = waits(lab, GATED, "next").await;
    assert!(said.contains("quota"), "{said}");
    for (name, pods) in [("plain", 2), ("next", 1)] {
        placed_in(lab, GATED, &of_job(name), pods).await;
        running(lab, GATED, &of_job(name), pods).await;
        end(lab, GATED, &of_job(name), "Succeeded", pods).await;
    }
    all_released(lab).await;
}

async fn a_gang_over_the_quota_waits_without_gpus(lab: &Lab) {
    let jobs: Api<Job> = Api::namespaced(lab.client.clone(), "a");
    make(&jobs, job("first", "few", 3, json!({}), gated_spec("two"))).await;
    let first = placed(lab, &of_job("first"), 3).await;
    assert_eq!(first.values().map(BTreeSet::len).collect::<Vec<_>>(), [6], "{first:?}");
    make(&jobs, job("second", "few", 2, json!({}), gated_spec("two"))).await;
    let said = waits(lab, "a", "second").await;
    assert!(said.contains("quota"), "{said}");
    // 26 of 32 GPUs are free, so only the quota keeps it: no pod, no claim, no GPU.
    assert_eq!(pods_of(lab, &of_job("second")).await, 0);
    assert_eq!(lab.claims("a").list(&Default::default()).await.unwrap().items.len(), 3);
    assert_eq!(lab.linkwise.jobs().keys().collect::<Vec<_>>(), first.keys().collect::<Vec<_>>());
    end_all(lab, &of_job("first"), 3).await;
    let second = placed(lab, &of_job("second"), 2).await;
    assert_eq!(second.values().map(BTreeSet::len).collect::<Vec<_>>(), [4], "{second:?}");
    end_all(lab, &of_job("second"), 2).await;
    all_released(lab).await;
}

async fn end_all(lab: &Lab, label: &str, pods: usize) {
    running(lab, "a", label, pods).await;
    end(lab, "a", label, "Succeeded", pods).await;
}

async fn a_job_set_is_suspended_until_it_is_admitted(lab: &Lab) {
    let sets = custom(lab, "a", "jobset.x-k8s.io", "v1alpha2", "JobSet");
    let mut pod = gated_spec("two");
    pod["restartPolicy"] = json!("Never");
    let replicated = json!([{"name": "w", "replicas": 2, "template": {"spec": {"parallelism": 2, "completions": 2,
        "backoffLimit": 0, "template": {"spec": pod}}}}]);
    for set in ["one", "two"] {
        create(
            &sets,
            json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": set,
            "labels": {"kueue.x-k8s.io/queue-name": "few"}}, "spec": {"replicatedJobs": replicated}}),
        )
        .await;
        if set == "one" {
            placed(lab, "jobset.sigs.k8s.io/jobset-name=one", 4).await;
        }
    }
    let said = waits(lab, "a", "two").await;
    assert!(said.contains("quota"), "{said}");
    assert_eq!(pods_of(lab, "jobset.sigs.k8s.io/jobset-name=two").await, 0);
    for set in ["one", "two"] {
        let label = format!("jobset.sigs.k8s.io/jobset-name={set}");
        let gpus = placed(lab, &label, 4).await;
        assert_eq!(gpus.values().map(BTreeSet::len).collect::<Vec<_>>(), [8], "{gpus:?}");
        end_all(lab, &label, 4).await;
    }
    all_released(lab).await;
}

/// Kueue gates each pod of a group at admission, and counts them together.
async fn plain_pods_wait_at_the_gate_of_kueue(lab: &Lab) {
    let member = |group: &str, i: usize| {
        json!({"metadata": {"name": format!("{group}-{i}"),
            "labels": {"kueue.x-k8s.io/queue-name": "few", "kueue.x-k8s.io/pod-group-name": group},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": "3"}}, "spec": gated_spec("two")})
    };
    for group in ["pods", "more"] {
        for i in 0..3 {
            make(&lab.pods("a"), member(group, i)).await;
        }
        if group == "pods" {
            let gpus = placed(lab, "kueue.x-k8s.io/pod-group-name=pods", 3).await;
            assert_eq!(gpus.values().map(BTreeSet::len).collect::<Vec<_>>(), [6], "{gpus:?}");
        }
    }
    says(lab, "more-0", "waits for the gate kueue.x-k8s.io/admission").await;
    assert_eq!(lab.linkwise.jobs().len(), 1);
    end_all(lab, "kueue.x-k8s.io/pod-group-name=pods", 3).await;
    placed(lab, "kueue.x-k8s.io/pod-group-name=more", 3).await;
    end_all(lab, "kueue.x-k8s.io/pod-group-name=more", 3).await;
    all_released(lab).await;
}

async fn the_nodes_of_a_topology_assignment_are_obeyed(lab: &Lab) {
    let nodes: Api<Node> = Api::all(lab.client.clone());
    for n in 0..lab.nodes {
        let labels = json!({"metadata": {"labels": {"pool": "tas", "leaf": format!("leaf-{}", n % 2)}}});
        nodes.patch(&node_name(n), &PatchParams::default(), &Patch::Merge(labels)).await.unwrap();
    }
    create(
        &of_cluster(lab, "Topology"),
        json!({"apiVersion": API, "kind": "Topology", "metadata": {"name": "racks"},
        "spec": {"levels": [{"nodeLabel": "leaf"}, {"nodeLabel": "kubernetes.io/hostname"}]}}),
    )
    .await;
    make_queue(lab, "tas", json!({"nodeLabels": {"pool": "tas"}, "topologyName": "racks"}), &[("cpu", "1000")]).await;
    // A pod needs most of a node, so two pods are on the two nodes of one leaf: linkwise's own choice would be free to take any two.
    let mut spec = gated_spec("two");
    for of in ["requests", "limits"] {
        spec["containers"][0]["resources"][of] = json!({"cpu": "100"});
    }
    let annotations = json!({"annotations": {"kueue.x-k8s.io/podset-required-topology": "leaf"}});
    let jobs: Api<Job> = Api::namespaced(lab.client.clone(), "a");
    for (job_name, leaves) in [("left", 1), ("right", 2)] {
        make(&jobs, job(job_name, "tas", 2, annotations.clone(), spec.clone())).await;
        placed(lab, &of_job(job_name), 2).await;
        let pods = lab.pods("a").list(&ListParams::default().labels("kueue.x-k8s.io/podset=main")).await.unwrap().items;
        let found: Vec<(String, String)> = pods
            .iter()
            .filter_map(|p| {
                Some((
                    p.spec.as_ref()?.node_name.clone()?,
                    p.spec.as_ref()?.node_selector.clone()?["kubernetes.io/hostname"].clone(),
                ))
            })
            .filter(|(on, told)| on == told)
            .collect();
        assert_eq!(found.len(), 2 * leaves, "every pod is where Kueue wants it: {found:?}");
    }
    for job_name in ["left", "right"] {
        let pods = lab.pods("a").list(&ListParams::default().labels(&of_job(job_name))).await.unwrap().items;
        let leaves: BTreeSet<usize> = pods
            .iter()
            .filter_map(|p| p.spec.as_ref()?.node_name.as_ref()?[1..].parse::<usize>().ok())
            .map(|n| n % 2)
            .collect();
        assert_eq!(leaves.len(), 1, "{job_name} is below one leaf");
        end_all(lab, &of_job(job_name), 2).await;
    }
    all_released(lab).await;
}
