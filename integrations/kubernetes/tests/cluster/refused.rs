//! What one pod, one claim or one policy refuses stops no other gang; and what a fence must do.

use crate::common::*;
use crate::faults::{Fault, Stop};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use linkwise_kubernetes::leader::Leadership;
use linkwise_kubernetes::names::{CONDITION, JOB, TERM};
use linkwise_kubernetes::world::World;
use linkwise_kubernetes::write::Writer;
use linkwise_kubernetes::{Settings, claim};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

async fn message(lab: &Lab, pod: &str) -> Option<String> {
    let status = lab.pods("a").get(pod).await.ok()?.status?;
    status.conditions?.into_iter().find(|c| c.type_ == CONDITION)?.message
}

async fn remove(lab: &Lab, namespace: &str, names: &[&str]) {
    for name in names {
        delete_pod(lab, namespace, name).await;
        let _ = lab.claims(namespace).delete(name, &DeleteParams::default()).await;
    }
}

#[test]
fn a_gated_pod_where_the_controller_has_no_rights_stops_nothing() {
    let name = "a_gated_pod_where_the_controller_has_no_rights_stops_nothing";
    let Some(lab) = lab(name) else { return };
    if lab.account == "admin" {
        println!("SKIP {name}: no Helm, so the controller has all rights here: scripts/build-helm.sh builds it");
        return;
    }
    lab.runtime.block_on(async {
        make_gang(&lab, "c", "foreign", &[1], json!({})).await;
        // As the chart starts it, and with the rights of the chart but without its list of namespaces.
        for (gang, in_namespace) in [("named", lab.settings().in_namespace), ("all", Vec::new())] {
            let all = in_namespace.is_empty();
            let controller = Controller::start(&lab, lab.acting.clone(), Settings { in_namespace, ..lab.settings() });
            make_gang(&lab, "a", gang, &[4, 2], json!({})).await;
            bound(&lab, "a", gang, 2).await;
            let log = controller.log();
            assert_eq!(log.matches("not touched: claim c/foreign-0").count(), usize::from(all), "{log}");
            let foreign = lab.claims("c").get("foreign-0").await.unwrap();
            assert!(!claim::is_allocated(&foreign) && !foreign.annotations().contains_key(TERM));
            remove(&lab, "a", &[&format!("{gang}-0"), &format!("{gang}-1")]).await;
            all_released(&lab).await;
        }
        remove(&lab, "c", &["foreign-0"]).await;
    });
}

#[test]
fn a_gang_that_the_api_refuses_says_so_and_others_are_placed() {
    let Some(lab) = lab("a_gang_that_the_api_refuses_says_so_and_others_are_placed") else { return };
    lab.runtime.block_on(async {
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(lab.client.clone());
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(lab.client.clone());
        let rules = json!([{"apiGroups": ["resource.k8s.io"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["resourceclaims/status"]}]);
        make(&policies, json!({"metadata": {"name": "denied"}, "spec": {"failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": rules},
            "validations": [{"expression": "object.metadata.name != 'denied-1'", "message": "a policy of the site"}]}})).await;
        make(&bindings, json!({"metadata": {"name": "denied"}, "spec": {"policyName": "denied", "validationActions": ["Deny"]}})).await;
        make_gang(&lab, "a", "denied", &[2, 2], json!({})).await;
        until("the policy holds", || async {
            let patch = Patch::Merge(json!({"status": {"reservedFor": null}}));
            let dry = PatchParams { dry_run: true, ..PatchParams::default() };
            lab.claims("a").patch_status("denied-1", &dry, &patch).await.err()
        })
        .await;
        // The older gang comes first each time, and half of its claims are allocated before the policy refuses.
        let _controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        until("the server was asked for the gang", || async { message(&lab, "denied-0").await }).await;
        for gang in ["next", "last"] {
            make_gang(&lab, "a", gang, &[8, 8], json!({})).await;
            bound(&lab, "a", gang, 2).await;
        }
        assert_eq!(gated(&lab, "a").await, 2);
        until("the pod has the policy's words", || async {
            message(&lab, "denied-0").await.filter(|m| m.contains("a policy of the site"))
        })
        .await;
        bindings.delete("denied", &DeleteParams::default()).await.unwrap();
        policies.delete("denied", &DeleteParams::default()).await.unwrap();
        remove(&lab, "a", &["next-0", "next-1", "last-0", "last-1"]).await;
        bound(&lab, "a", "denied", 2).await;
        remove(&lab, "a", &["denied-0", "denied-1"]).await;
        all_released(&lab).await;
    });
}

#[test]
fn a_gang_whose_writes_get_no_answer_stops_no_other_gang() {
    let Some(lab) = lab("a_gang_whose_writes_get_no_answer_stops_no_other_gang") else { return };
    lab.runtime.block_on(async {
        let is_ill = Arc::new(AtomicBool::new(true));
        let client = crate::faults::ill(lab.acting.clone(), "/ill-", &is_ill);
        let controller = Controller::start(&lab, client, lab.settings());
        until("the controller leads", || async { controller.log().contains("leads, term").then_some(()) }).await;
        let mut watcher = Watcher::default();
        make_gang(&lab, "a", "ill", &[8], json!({})).await;
        until("a write got no answer", || async { controller.log().contains("ill-0: no answer").then_some(()) }).await;
        // No gang gets the GPUs that a late write may give: 24 of 32 are left, and the older gang holds no other one up.
        for gang in ["well", "fine"] {
            make_gang(&lab, "a", gang, &[8], json!({})).await;
            bound(&lab, "a", gang, 1).await;
            watcher.look_at(&lab.client).await;
        }
        make_gang(&lab, "a", "large", &[8, 8], json!({})).await;
        says(&lab, "large-0", "needs 16 GPUs; 8 are free").await;
        is_ill.store(false, Ordering::SeqCst);
        bound(&lab, "a", "ill", 1).await;
        watcher.look_at(&lab.client).await;
        let log = controller.log();
        assert!(log.contains("ill-0: no answer from the API; 1 objects touched"), "{log}");
        assert_eq!(log.matches("leads, term").count(), 1, "one fence of the whole site, at the begin: {log}");
    });
}

#[test]
fn an_object_that_a_new_leader_cannot_touch_holds_up_its_own_gang_only() {
    let Some(lab) = lab("an_object_that_a_new_leader_cannot_touch_holds_up_its_own_gang_only") else { return };
    lab.runtime.block_on(async {
        // The earlier leader is stopped with the allocation of `ill-0` on its way: its second write, after that of the metadata.
        let settings = || Settings { lease_seconds: 1, ..lab.settings() };
        let fault = Fault::at(2, Stop::Hold);
        let earlier = Controller::start(&lab, fault.client(lab.acting.clone()), settings());
        until("the earlier controller leads", || async { earlier.log().contains("leads, term").then_some(()) }).await;
        make_gang(&lab, "a", "ill", &[8], json!({})).await;
        until("the allocation is on its way", || async { fault.is_reached().then_some(()) }).await;
        let chosen = devices_of(lab.linkwise.jobs().values().next().unwrap());
        let is_ill = Arc::new(AtomicBool::new(true));
        let client = crate::faults::ill(lab.acting.clone(), "/resourceclaims/ill-", &is_ill);
        let controller = Controller::start(&lab, client, settings());
        let mut watcher = Watcher::default();
        // 24 of 32 GPUs are left: no gang gets those of the late write, which can still come.
        make_gang(&lab, "a", "well", &[8, 8], json!({})).await;
        bound(&lab, "a", "well", 2).await;
        make_gang(&lab, "a", "large", &[8, 8], json!({})).await;
        says(&lab, "large-0", "linkwise's server").await;
        says(&lab, "ill-0", "a touch of the same objects is awaited").await;
        fault.resume();
        let late = until("the late write is done", || async {
            lab.claims("a").get("ill-0").await.ok().filter(claim::is_allocated)
        })
        .await;
        assert_eq!(devices(&late), chosen);
        watcher.look_at(&lab.client).await;
        make_gang(&lab, "a", "fine", &[8], json!({})).await;
        bound(&lab, "a", "fine", 1).await;
        watcher.look_at(&lab.client).await;
        assert_eq!(gated(&lab, "a").await, 3, "ill waits for its touch, large for room");
        is_ill.store(false, Ordering::SeqCst);
        bound(&lab, "a", "ill", 1).await;
        watcher.look_at(&lab.client).await;
        let log = controller.log();
        assert!(log.contains("claim a/ill-0: no answer from the API; 2 objects touched"), "{log}");
        drop(earlier);
    });
}

#[test]
fn a_claim_with_a_job_that_is_none_stops_nothing() {
    let Some(lab) = lab("a_claim_with_a_job_that_is_none_stops_nothing") else { return };
    lab.runtime.block_on(async {
        let mut odd = gpu_claim("odd", 1);
        odd["metadata"]["annotations"] = json!({JOB: "a b"});
        make(&lab.claims("b"), odd).await;
        let allocation = |of: Value| Patch::Merge(json!({"status": {"allocation": of}}));
        let results = json!([{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n0", "device": "gpu-0"}]);
        let taken = json!({"allocationTimestamp": "2026-11-21T00:00:00Z", "devices": {"results": results}});
        lab.claims("b").patch_status("odd", &PatchParams::default(), &allocation(taken)).await.unwrap();
        let _controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        make_gang(&lab, "a", "beside", &[8, 8, 8], json!({})).await;
        let on = bound(&lab, "a", "beside", 3).await;
        assert!(on.values().all(|n| n != "n0"), "{on:?}");
        assert_eq!(lab.linkwise.jobs().len(), 1, "{:?}", lab.linkwise.jobs());
        lab.claims("b").patch_status("odd", &PatchParams::default(), &allocation(json!(null))).await.unwrap();
        remove(&lab, "b", &["odd"]).await;
        remove(&lab, "a", &["beside-0", "beside-1", "beside-2"]).await;
        all_released(&lab).await;
    });
}

#[test]
fn pods_that_select_different_nodes_are_placed_together() {
    let Some(lab) = lab("pods_that_select_different_nodes_are_placed_together") else { return };
    lab.runtime.block_on(async {
        let _controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        for (i, node) in ["n0", "n1", "n1"].into_iter().enumerate() {
            let of = format!("apart-{i}");
            make(&lab.claims("a"), gpu_claim(&of, 2)).await;
            let selector = json!({"nodeSelector": {"kubernetes.io/hostname": node}});
            make(&lab.pods("a"), pod(&of, "apart", 3, Some(&of), selector)).await;
        }
        let on = bound(&lab, "a", "apart", 3).await;
        assert_eq!(on.values().collect::<Vec<_>>(), ["n0", "n1", "n1"]);
        let of_claims: BTreeSet<String> =
            lab.claims("a").list(&Default::default()).await.unwrap().items.iter().flat_map(devices).collect();
        assert_eq!(of_claims, devices_of(lab.linkwise.jobs().values().next().unwrap()));
        remove(&lab, "a", &["apart-0", "apart-1", "apart-2"]).await;
        all_released(&lab).await;
    });
}

#[test]
fn every_fence_makes_a_late_write_fail_and_needs_no_right_to_read() {
    let Some(lab) = lab("every_fence_makes_a_late_write_fail_and_needs_no_right_to_read") else { return };
    lab.runtime.block_on(async {
        make_gang(&lab, "a", "late", &[1], json!({})).await;
        let leadership = Leadership::always(1);
        let writer =
            Writer { client: lab.acting.clone(), leadership: &leadership, pulse: Default::default(), calls: 0.into() };
        let mut world = World::default();
        world.claims.put(lab.claims("a").get("late-0").await.unwrap());
        world.pods.put(lab.pods("a").get("late-0").await.unwrap());
        let of = ("a".to_owned(), "late-0".to_owned());
        for round in 0..3 {
            // The decision of a write that has got no answer yet. The second time its annotations are those of the term already.
            let late = claim::prepare(world.claims.get(&of).unwrap(), "k8s:a:late:1", "1");
            // Somebody else writes meanwhile: the list of the leader is old.
            let note = Patch::Merge(json!({"metadata": {"annotations": {"note": round.to_string()}}}));
            if round == 1 {
                lab.claims("a").patch("late-0", &PatchParams::default(), &note).await.unwrap();
            }
            assert_eq!(writer.fence(&mut world, |_| true).await.unwrap().touched, 1);
            let sent = lab.claims("a").patch("late-0", &PatchParams::default(), &Patch::Merge(late)).await;
            assert!(matches!(&sent, Err(kube::Error::Api(e)) if e.code == 409), "{round}: {sent:?}");
            let again = claim::prepare(world.claims.get(&of).unwrap(), "k8s:a:late:1", "1");
            let now = lab.claims("a").patch("late-0", &PatchParams::default(), &Patch::Merge(again)).await.unwrap();
            world.claims.put(now);
        }
        // In a namespace that is not placed nothing is touched.
        assert_eq!(writer.fence(&mut world, |_| false).await.unwrap().touched, 0);
        let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        lab.claims("a").patch("late-0", &PatchParams::default(), &none).await.unwrap();
        remove(&lab, "a", &["late-0"]).await;
    });
}
