//! Facts out: what a gang's collectives took, by its end. `linkwise run --summary /dev/termination-log` leaves a line in each pod's termination message, which the
//! kubelet puts into the pod's status; the controller gives it to the server before it gives the GPUs back.
//!
//! The line comes from the job. The server believes it within what the links allow, for the GPUs that the job had.

use k8s_openapi::api::core::v1::Pod;
use measure::summary;
use serde_json::{Value, json};

/// Kinds of calls of one job that are reported: those that took longest.
const KINDS_MAX: usize = 16;
/// Calls from which on a kind is reported: the first ones set up their connections.
const CALLS_MIN: usize = 3;

/// The readings of a gang with `gpus` GPUs whose pods have ended, as `POST /v1/readings` takes them, and the lines that were wrong. Collectives
/// over another number of ranks, as of tensor parallelism, say nothing about the whole allocation and are left out. O(bytes of the messages).
pub fn of<'p>(pods: impl IntoIterator<Item = &'p Pod>, gpus: usize) -> (Vec<Value>, Vec<String>) {
    let (mut hosts, mut wrong) = (Vec::new(), Vec::new());
    for pod in pods {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        for message in messages(pod) {
            match summary::read(message) {
                Ok(Some(kinds)) => hosts.push(kinds),
                Ok(None) => {}
                Err(e) => wrong.push(format!("the termination message of pod {name}: {e}")),
            }
        }
    }
    let of_all = |k: &measure::kinds::CallKind| k.ranks as usize == gpus && k.calls >= CALLS_MIN;
    let kinds = summary::merged(&hosts).into_iter().filter(of_all).take(KINDS_MAX);
    let reading = |k: measure::kinds::CallKind| {
        let us = k.time_us.filter(|us| *us > 0.0)?;
        let busbw_gb_per_s = k.size.0 as f64 / us / 1e3 * k.collective.bus_factor(gpus);
        Some(json!({
            "collective": k.collective, "size_bytes": k.size.0, "busbw_gb_per_s": busbw_gb_per_s, "time_s": us * 1e-6,
            "provenance": format!("NCCL plugin, {} calls on {} hosts, by termination message", k.calls, hosts.len()),
        }))
    };
    (kinds.filter_map(reading).collect(), wrong)
}

/// The termination messages of a pod's containers.
pub fn messages(pod: &Pod) -> impl Iterator<Item = &str> {
    let containers = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    containers.filter_map(|c| c.state.as_ref()?.terminated.as_ref()?.message.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, message: &str) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": name}, "status": {"phase": "Succeeded", "containerStatuses": [
            {"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
             "state": {"terminated": {"exitCode": 0, "message": message}}}]}}),
        )
        .unwrap()
    }

    #[test]
    fn the_shortest_time_of_all_pods_is_the_jobs_bandwidth() {
        let a = pod(
            "a",
            "loss 3\nlinkwise-calls 1 all_reduce,16777216,16,800,200;all_reduce,1048576,8,70,900;broadcast,4096,16,20,2\n",
        );
        let b = pod("b", "linkwise-calls 1 all_reduce,16777216,16,629.1456,200");
        assert!(crate::plan::is_over(&a));
        let (readings, wrong) = of([&a, &b], 16);
        assert_eq!((readings.len(), wrong.len()), (1, 0), "{readings:?}");
        // 16 MiB in 629 us is 26.67 GB/s; bus bandwidth of an all-reduce over 16: 30/16 of it.
        let r = &readings[0];
        assert_eq!((r["collective"].as_str(), r["size_bytes"].as_u64()), (Some("all_reduce"), Some(16 << 20)));
        assert!((r["busbw_gb_per_s"].as_f64().unwrap() - 50.0).abs() < 0.01, "{r}");
    }

    #[test]
    fn a_job_may_write_anything() {
        let hostile = pod("x", "linkwise-calls 1 all_reduce,16777216,16,-5,200");
        let (readings, wrong) = of([&hostile, &pod("quiet", ""), &Pod::default()], 16);
        assert!(readings.is_empty() && wrong[0].contains("pod x") && wrong.len() == 1, "{wrong:?}");
    }
}
