//! The native API of gangs, `scheduling.k8s.io`, where it is on.

use crate::common::*;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use lab_kubernetes::Options;
use linkwise_kubernetes::names::GATE;
use serde_json::{Value, json};

#[test]
#[ignore = "slow: `make test-kubernetes` runs it"]
fn a_native_pod_group_waits_for_its_count_and_is_placed_whole() {
    let name = "a_native_pod_group_waits_for_its_count_and_is_placed_whole";
    let options = Options::default();
    if !lab_kubernetes::is_at_least(&options.release, 36) {
        println!("SKIP {name}: Kubernetes {} has no PodGroup that pods name", options.release);
        return;
    }
    let gates = "--feature-gates=GenericWorkload=true,GangScheduling=true".to_owned();
    let options = Options {
        api_server: vec![gates.clone(), "--runtime-config=scheduling.k8s.io/v1alpha2=true".into()],
        scheduler: vec![gates],
        ..options
    };
    let Some(lab) = Lab::with(name, 4, options) else { return };
    lab.runtime.block_on(async {
        let controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("scheduling.k8s.io", "v1alpha2", "PodGroup"));
        let groups: Api<DynamicObject> = Api::namespaced_with(lab.client.clone(), "a", &kind);
        let group: DynamicObject = serde_json::from_value(json!({"apiVersion": "scheduling.k8s.io/v1alpha2", "kind": "PodGroup",
            "metadata": {"name": "w"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}}}))
        .unwrap();
        groups.create(&Default::default(), &group).await.unwrap();
        let member = |i: usize| -> Value {
            let of = format!("w-{i}");
            json!({"metadata": {"name": of}, "spec": {"schedulingGroup": {"podGroupName": "w"}, "schedulingGates": [{"name": GATE}],
                "resourceClaims": [{"name": "gpus", "resourceClaimName": of}],
                "containers": [{"name": "c", "image": "none", "resources": {"claims": [{"name": "gpus"}]}}]}})
        };
        for i in 0..2 {
            make(&lab.claims("a"), gpu_claim(&format!("w-{i}"), 8)).await;
            make(&lab.pods("a"), member(i)).await;
        }
        says(&lab, "w-0", "2 of 3 pods exist").await;
        make(&lab.claims("a"), gpu_claim("w-2", 4)).await;
        make(&lab.pods("a"), member(2)).await;
        for i in 0..3 {
            bound_pod(&lab, &format!("w-{i}")).await;
        }
        let jobs = lab.linkwise.jobs();
        assert_eq!(jobs.values().map(Vec::len).collect::<Vec<_>>(), [20], "one decision for all: {jobs:?}");
        let mut of_claims = std::collections::BTreeSet::new();
        for i in 0..3 {
            of_claims.extend(devices(&lab.claims("a").get(&format!("w-{i}")).await.unwrap()));
        }
        assert_eq!(of_claims, devices_of(jobs.values().next().unwrap()), "the scheduler's own gangs change no GPU");
        assert!(controller.log().contains("placed"), "{}", controller.log());
    });
}
