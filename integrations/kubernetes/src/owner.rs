//! The size of a gang by its owner.

use crate::gang::{Owner, PODS_MAX};
use serde_json::Value;

/// Group, versions (newest first), and plural of an owner's objects.
pub fn resource(owner: Owner) -> (&'static str, &'static [&'static str], &'static str) {
    match owner {
        Owner::NativePodGroup => ("scheduling.k8s.io", &["v1beta1", "v1alpha3", "v1alpha2"], "podgroups"),
        Owner::JobSet => ("jobset.x-k8s.io", &["v1alpha2"], "jobsets"),
        Owner::Job => ("batch", &["v1"], "jobs"),
        Owner::Kubeflow("MPIJob") => ("kubeflow.org", &["v2beta1", "v1"], "mpijobs"),
        Owner::Kubeflow("PyTorchJob") => ("kubeflow.org", &["v1"], "pytorchjobs"),
        Owner::Kubeflow("TFJob") => ("kubeflow.org", &["v1"], "tfjobs"),
        Owner::Kubeflow("XGBoostJob") => ("kubeflow.org", &["v1"], "xgboostjobs"),
        Owner::Kubeflow("JAXJob") => ("kubeflow.org", &["v1"], "jaxjobs"),
        Owner::Kubeflow(_) => ("kubeflow.org", &["v1"], "paddlejobs"),
        Owner::Coscheduling => ("scheduling.x-k8s.io", &["v1alpha1"], "podgroups"),
        Owner::Volcano => ("scheduling.volcano.sh", &["v1beta1"], "podgroups"),
        Owner::Kai => ("scheduling.run.ai", &["v2alpha2"], "podgroups"),
    }
}

/// The pods of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pods {
    /// Pods that exist at once.
    pub at_once: usize,
    /// Pods that succeed in all, after which no more come; none: the owner replaces pods that have succeeded.
    pub in_all: Option<usize>,
    /// The launcher of an MPIJob is one of them.
    pub launcher: bool,
}

impl Pods {
    /// Pods that must live at once for the gang to be complete, when `succeeded` of them have.
    pub fn awaited(&self, succeeded: usize) -> usize {
        self.in_all.map_or(self.at_once, |all| self.at_once.min(all.saturating_sub(succeeded))).max(1)
    }
}

/// The pods of a gang, by the owner's object.
///
/// # Errors
/// The object does not say it, or makes its pods one after another; what to do.
pub fn size(owner: Owner, object: &Value) -> Result<Pods, String> {
    let spec = &object["spec"];
    let at_once = at_once(owner, object)?;
    let in_all = match owner {
        Owner::JobSet => {
            let jobs = spec["replicatedJobs"].as_array().map(Vec::as_slice).unwrap_or_default();
            let mut all = jobs.iter().map(|j| {
                let spec = &j["template"]["spec"];
                let each =
                    if spec["completions"].is_null() { parallelism(spec)? } else { spec["completions"].as_u64()? };
                count(&j["replicas"], 1)?.checked_mul(each)
            });
            all.try_fold(0_u64, |sum, n| sum.checked_add(n?)).and_then(|n| usize::try_from(n).ok())
        }
        Owner::Kubeflow("MPIJob") => None,
        Owner::Kubeflow(_) | Owner::Volcano => Some(at_once),
        // The size of a Job is without the pods that have succeeded. The others do not say.
        Owner::Job | Owner::NativePodGroup | Owner::Coscheduling | Owner::Kai => None,
    };
    Ok(Pods { at_once, in_all, launcher: owner == Owner::Kubeflow("MPIJob") && runs_launcher(spec) })
}

fn runs_launcher(mpi_job: &Value) -> bool {
    mpi_job["runLauncherAsWorker"] == true
}

fn count(v: &Value, none: u64) -> Option<u64> {
    if v.is_null() { Some(none) } else { v.as_u64() }
}

fn at_once(owner: Owner, object: &Value) -> Result<usize, String> {
    let spec = &object["spec"];
    let found = match owner {
        Owner::NativePodGroup => {
            let policy = &spec["schedulingPolicy"];
            let min = policy["gang"]["minCount"].as_u64().or_else(|| spec["minCount"].as_u64());
            // A group without the policy `gang` asks for no gang.
            min.or_else(|| (!policy["basic"].is_null()).then_some(1))
        }
        Owner::JobSet => {
            let order = spec["startupPolicy"]["startupPolicyOrder"] == "InOrder";
            let jobs = spec["replicatedJobs"].as_array().map(Vec::as_slice).unwrap_or_default();
            if order || jobs.iter().any(|j| j["dependsOn"].as_array().is_some_and(|d| !d.is_empty())) {
                return Err(
                    "starts its jobs one after another, so its pods never wait together; remove `startupPolicy` and \
                     `dependsOn`, or add the label linkwise.dev/gang-size"
                        .into(),
                );
            }
            let of = |j: &Value| {
                let spec = &j["template"]["spec"];
                let parallelism = parallelism(spec)?;
                count(&j["replicas"], 1)?.checked_mul(count(&spec["completions"], parallelism)?.min(parallelism))
            };
            jobs.iter().map(of).try_fold(0_u64, |sum, n| sum.checked_add(n?))
        }
        Owner::Job => parallelism(spec).map(|all| {
            match (count(&spec["completions"], all), object["status"]["succeeded"].as_u64()) {
                (Some(completions), done) if !spec["completions"].is_null() => {
                    all.min(completions.saturating_sub(done.unwrap_or(0)).max(1))
                }
                _ => all,
            }
        }),
        Owner::Kubeflow("MPIJob") => {
            // The launcher may be made only when all workers run.
            let replicas = &spec["mpiReplicaSpecs"]["Worker"];
            let workers = if replicas.is_null() { Some(1) } else { count(&replicas["replicas"], 1) };
            workers.and_then(|n| n.checked_add(u64::from(runs_launcher(spec))))
        }
        Owner::Kubeflow(kind) => {
            let field = match kind {
                "PyTorchJob" => "pytorchReplicaSpecs",
                "TFJob" => "tfReplicaSpecs",
                "XGBoostJob" => "xgbReplicaSpecs",
                "JAXJob" => "jaxReplicaSpecs",
                _ => "paddleReplicaSpecs",
            };
            let all = spec[field].as_object();
            all.and_then(|all| {
                all.values().map(|r| count(&r["replicas"], 1)).try_fold(0_u64, |sum, n| sum.checked_add(n?))
            })
        }
        Owner::Coscheduling | Owner::Volcano | Owner::Kai => count(&spec["minMember"], 1),
    };
    match found.and_then(|n| usize::try_from(n).ok()) {
        Some(n) if (1..=PODS_MAX).contains(&n) => Ok(n),
        Some(n) => Err(format!("asks for {n} pods; 1 to {PODS_MAX} are placed together")),
        None => Err("does not say how many pods it has; add the label linkwise.dev/gang-size to its pods".into()),
    }
}

fn parallelism(job: &Value) -> Option<u64> {
    if job["parallelism"].is_null() { Some(1) } else { job["parallelism"].as_u64() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sizes_are_those_of_the_objects() {
        let replicas = |n: u64| json!({"replicas": n});
        for (owner, spec, n) in [
            (Owner::NativePodGroup, json!({"schedulingPolicy": {"gang": {"minCount": 4}}}), 4),
            (Owner::NativePodGroup, json!({"schedulingPolicy": {"basic": {}}}), 1),
            (
                Owner::JobSet,
                json!({"replicatedJobs": [
                {"replicas": 2, "template": {"spec": {"parallelism": 4}}}, {"template": {"spec": {}}}]}),
                9,
            ),
            (Owner::Job, json!({"parallelism": 4}), 4),
            (Owner::Job, json!({"parallelism": 4, "completions": 3}), 3),
            (Owner::Job, json!({}), 1),
            (
                Owner::Kubeflow("PyTorchJob"),
                json!({"pytorchReplicaSpecs": {"Master": replicas(1), "Worker": replicas(7)}}),
                8,
            ),
            (
                Owner::Kubeflow("MPIJob"),
                json!({"mpiReplicaSpecs": {"Launcher": replicas(1), "Worker": replicas(6)}}),
                6,
            ),
            (Owner::Volcano, json!({"minMember": 5}), 5),
            (Owner::Coscheduling, json!({}), 1),
        ] {
            assert_eq!(size(owner, &json!({"spec": spec})).map(|p| p.at_once), Ok(n), "{owner:?} {spec}");
        }
        let done = json!({"spec": {"parallelism": 4, "completions": 6}, "status": {"succeeded": 5}});
        assert_eq!(size(Owner::Job, &done), Ok(Pods { at_once: 1, in_all: None, launcher: false }));
    }

    #[test]
    fn pods_that_succeeded_count_where_the_owner_does_not_replace_them() {
        let of = |owner, spec: Value, succeeded| size(owner, &json!({"spec": spec})).unwrap().awaited(succeeded);
        let workers = json!({"pytorchReplicaSpecs": {"Worker": {"replicas": 4}}});
        assert_eq!([0, 1, 4].map(|n| of(Owner::Kubeflow("PyTorchJob"), workers.clone(), n)), [4, 3, 1]);
        // Six pods in all, two at once: three waves, and a retry in the last one is alone when the other pod has succeeded.
        let waves = json!({"replicatedJobs": [{"template": {"spec": {"parallelism": 2, "completions": 6}}}]});
        assert_eq!([0, 2, 4, 5].map(|n| of(Owner::JobSet, waves.clone(), n)), [2, 2, 2, 1]);
        assert_eq!(of(Owner::Kai, json!({"minMember": 2}), 1), 2);
        let mpi = |with: bool| json!({"runLauncherAsWorker": with, "mpiReplicaSpecs": {"Worker": {"replicas": 2}}});
        let pods = |with| size(Owner::Kubeflow("MPIJob"), &json!({"spec": mpi(with)})).unwrap();
        assert_eq!((pods(false).at_once, pods(false).launcher), (2, false));
        assert_eq!((pods(true).at_once, pods(true).launcher), (3, true));
    }

    #[test]
    fn what_never_waits_together_and_what_tells_no_size_is_refused() {
        for (owner, spec, word) in [
            (
                Owner::JobSet,
                json!({"startupPolicy": {"startupPolicyOrder": "InOrder"}, "replicatedJobs": [{}]}),
                "one after another",
            ),
            (
                Owner::JobSet,
                json!({"replicatedJobs": [{"dependsOn": [{"name": "a", "status": "Ready"}]}]}),
                "one after another",
            ),
            (Owner::JobSet, json!({}), "0 pods"),
            (Owner::Job, json!({"parallelism": "four"}), "does not say"),
            (Owner::Job, json!({"parallelism": -1}), "does not say"),
            (Owner::Job, json!({"parallelism": 20_000}), "20000 pods"),
            (Owner::Kubeflow("PyTorchJob"), json!({}), "does not say"),
            (Owner::NativePodGroup, json!({}), "does not say"),
        ] {
            let said = size(owner, &json!({"spec": spec})).unwrap_err();
            assert!(said.contains(word), "{owner:?}: {said}");
        }
    }
}
