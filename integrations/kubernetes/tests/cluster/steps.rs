//! A controller that is killed, or stopped and resumed, at any of its writes leaves nothing half-placed.

use crate::common::*;
use crate::faults::{Fault, Stop};
use kube::api::ListParams;
use linkwise_kubernetes::claim;
use serde_json::json;
use std::collections::BTreeSet;

/// Writes of a gang of two pods until all is done: two a claim, one a pod, and one a claim to let go.
const WRITES: i64 = 8;

#[test]
#[ignore = "slow: `make test-kubernetes` runs it"]
fn a_controller_that_is_killed_at_any_write_leaves_nothing_half_placed() {
    let name = "a_controller_that_is_killed_at_any_write_leaves_nothing_half_placed";
    let Some(lab) = lab(name) else { return };
    lab.runtime.block_on(async {
        for (round, (write, stop)) in (1..=WRITES).flat_map(|w| [(w, Stop::Before), (w, Stop::After)]).enumerate() {
            let gang = format!("g{round}");
            let fault = Fault::at(write, stop);
            let mut watcher = Watcher::default();
            let settings = || linkwise_kubernetes::Settings { lease_seconds: 1, ..lab.settings() };
            let first = Controller::start(&lab, fault.client(lab.acting.clone()), settings());
            make_gang(&lab, "a", &gang, &[4, 2], json!({})).await;
            until(&format!("write {write} is reached"), || async { fault.is_reached().then_some(()) }).await;
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            drop(first);
            // Without a controller the pods of the gang wait, or all of them may run: the claims of released pods are complete.
            watcher.look_at(&lab.client).await;
            let pods = lab.pods("a").list(&ListParams::default()).await.unwrap().items;
            let released = pods.iter().filter(|p| !linkwise_kubernetes::gang::is_gated(p)).count();
            let claims = lab.claims("a").list(&ListParams::default()).await.unwrap().items;
            let allocated = claims.iter().filter(|c| claim::is_allocated(c)).count();
            assert!(
                released == 0 || allocated == 2,
                "{write} {stop:?}: {released} pods released, {allocated} claims allocated"
            );
            let second = Controller::start(&lab, lab.acting.clone(), settings());
            let nodes = bound(&lab, "a", &gang, 2).await;
            watcher.look_at(&lab.client).await;
            let of_claims: BTreeSet<String> = claims_of(&lab).await;
            let jobs = until("one job in the state", || async {
                let jobs = lab.linkwise.jobs();
                (jobs.len() == 1).then_some(jobs)
            })
            .await;
            assert_eq!(of_claims, devices_of(jobs.values().next().unwrap()), "{write} {stop:?} {nodes:?}");
            for pod in [format!("{gang}-0"), format!("{gang}-1")] {
                delete_pod(&lab, "a", &pod).await;
                let _ = lab.claims("a").delete(&pod, &Default::default()).await;
            }
            all_released(&lab).await;
            drop(second);
        }
    });
}

#[test]
#[ignore = "slow: `make test-kubernetes` runs it"]
fn a_leader_that_was_stopped_and_goes_on_writes_nothing_of_its_old_decisions() {
    let name = "a_leader_that_was_stopped_and_goes_on_writes_nothing_of_its_old_decisions";
    let Some(lab) = lab(name) else { return };
    lab.runtime.block_on(async {
        for (round, write) in (1..=WRITES).enumerate() {
            let (gang, rival) = (format!("g{round}"), format!("r{round}"));
            let fault = Fault::at(write, Stop::Hold);
            let mut watcher = Watcher::default();
            let settings = || linkwise_kubernetes::Settings { lease_seconds: 1, ..lab.settings() };
            let first = Controller::start(&lab, fault.client(lab.acting.clone()), settings());
            make_gang(&lab, "a", &gang, &[4, 2], json!({})).await;
            until(&format!("write {write} is reached"), || async { fault.is_reached().then_some(()) }).await;
            let second = Controller::start(&lab, lab.acting.clone(), settings());
            // The second one gives GPUs to another gang, too: all that are left.
            bound(&lab, "a", &gang, 2).await;
            make_gang(&lab, "b", &rival, &[8, 8, 2, 2, 2, 2, 2], json!({})).await;
            bound(&lab, "b", &rival, 7).await;
            fault.resume();
            for _ in 0..20 {
                watcher.look_at(&lab.client).await;
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            assert_eq!(gated(&lab, "a").await + gated(&lab, "b").await, 0);
            for (namespace, gang, n) in [("a", &gang, 2), ("b", &rival, 7)] {
                for i in 0..n {
                    delete_pod(&lab, namespace, &format!("{gang}-{i}")).await;
                    let _ = lab.claims(namespace).delete(&format!("{gang}-{i}"), &Default::default()).await;
                }
            }
            all_released(&lab).await;
            drop((first, second));
        }
    });
}

async fn claims_of(lab: &Lab) -> BTreeSet<String> {
    lab.claims("a").list(&ListParams::default()).await.unwrap().items.iter().flat_map(devices).collect()
}
