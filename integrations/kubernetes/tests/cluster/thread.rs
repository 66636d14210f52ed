//! Gate, place, release on a real control plane, from end to end.

use crate::common::*;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use linkwise_kubernetes::names::{GPUS, JOB};
use serde_json::json;
use std::collections::BTreeSet;

#[test]
fn a_gang_gets_exactly_the_gpus_of_the_engine_and_the_stock_scheduler_binds_it() {
    let Some(lab) = lab("a_gang_gets_exactly_the_gpus_of_the_engine_and_the_stock_scheduler_binds_it") else {
        return;
    };
    lab.runtime.block_on(async {
        let controller = Controller::start(&lab, lab.acting.clone(), lab.settings());
        make_gang(&lab, "a", "train", &[5, 3], json!({})).await;
        let nodes = bound(&lab, "a", "train", 2).await;
        // The state of linkwise's server is the engine's decision; the claims must have the same GPUs.
        let jobs = lab.linkwise.jobs();
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        let (job, names) = jobs.iter().next().unwrap();
        let mut of_claims = BTreeSet::new();
        for (pod, gpus) in [("train-0", 5), ("train-1", 3)] {
            let claim = lab.claims("a").get(pod).await.unwrap();
            let found = devices(&claim);
            assert_eq!(found.len(), gpus, "{found:?}");
            assert!(found.iter().all(|d| d.starts_with(&format!("{}/", nodes[pod]))), "{found:?} on {}", nodes[pod]);
            assert_eq!(claim.annotations()[JOB], *job);
            let reserved = until("the scheduler reserves the claim, and linkwise lets go", || async {
                let claim = lab.claims("a").get(pod).await.ok()?;
                let reserved = claim.status?.reserved_for?;
                (reserved.len() == 1 && reserved[0].resource == "pods").then_some(reserved)
            });
            assert_eq!(reserved.await[0].name, pod);
            assert!(lab.pods("a").get(pod).await.unwrap().annotations()[GPUS].starts_with(&nodes[pod]));
            of_claims.extend(found);
        }
        assert_eq!(of_claims, devices_of(names));
        // The pods end, each with what its collectives took: the job's bandwidth is known before its GPUs are free.
        for (pod, us) in [("train-0", 800.0), ("train-1", 700.0)] {
            let line = format!("loss 3\nlinkwise-calls 1 all_reduce,16777216,8,{us},200");
            let ended = json!({"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 0, "message": line}}});
            let status = json!({"status": {"phase": "Succeeded", "containerStatuses": [ended]}});
            lab.pods("a").patch_status(pod, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
        }
        let reading = until("the job's reading is in the store", || async {
            let said = lab.linkwise.ask("GET", &format!("/v1/readings?job={job}"), "");
            said["readings"].as_array().and_then(|r| r.first()).cloned()
        });
        let busbw = reading.await["busbw_gb_per_s"].as_f64().unwrap();
        assert!((busbw - 16_777_216.0 / 700.0 / 1e3 * 1.75).abs() < 1e-3, "the shorter time counts: {busbw}");
        for pod in ["train-0", "train-1"] {
            delete_pod(&lab, "a", pod).await;
        }
        all_released(&lab).await;
        drop(controller);
    });
}
