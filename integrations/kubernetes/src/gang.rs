//! Which pods are a gang?
//!
//! The first sign that a pod has decides:
//!
//! | sign | gang | number of pods |
//! |---|---|---|
//! | label `linkwise.dev/gang` | its value | label `linkwise.dev/gang-size` |
//! | `spec.schedulingGroup` | PodGroup of `scheduling.k8s.io` | its `gang.minCount` |
//! | label `jobset.sigs.k8s.io/jobset-name` | the JobSet | replicas x parallelism of its jobs |
//! | label `leaderworkerset.sigs.k8s.io/name` | a group of the set | annotation `leaderworkerset.sigs.k8s.io/size` |
//! | label `kueue.x-k8s.io/pod-group-name` | the pod group | annotation `kueue.x-k8s.io/pod-group-total-count` |
//! | label `training.kubeflow.org/job-name` | the PyTorchJob, MPIJob, ... | sum of its replicas; of an MPIJob the workers |
//! | label `scheduling.x-k8s.io/pod-group`, annotation `scheduling.k8s.io/group-name` or `pod-group-name` | that PodGroup | its `minMember` |
//! | owner `Job` | the Job | its parallelism |
//! | none | the pod | 1 |
//!
//! The launcher of an MPIJob without claims is a pod by itself: it may be made only when all workers run.
//!
//! A size that the object does not tell is an error with what to do; the label `linkwise.dev/gang-size` overrides every other size.

use crate::names::{GANG, GANG_SIZE, GATE};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// Pods of a gang. A label with more is refused.
pub const PODS_MAX: usize = 10_000;

/// A gang: unique in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The namespace.
    pub namespace: String,
    /// The kind of the sign: `gang`, `JobSet`, `Pod`, ...
    pub kind: &'static str,
    /// The name.
    pub name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// An object that tells the size of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// `scheduling.k8s.io`, the native one.
    NativePodGroup,
    /// `jobset.x-k8s.io`.
    JobSet,
    /// `batch`.
    Job,
    /// `kubeflow.org`, by kind: PyTorchJob, TFJob, XGBoostJob, JaxJob, PaddleJob, MPIJob.
    Kubeflow(&'static str),
    /// `scheduling.x-k8s.io`, of the coscheduling plugin.
    Coscheduling,
    /// `scheduling.volcano.sh`.
    Volcano,
    /// `scheduling.run.ai`, of KAI.
    Kai,
}

/// The number of pods of a gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Size {
    /// This many at once.
    Known(usize),
    /// This many in all: a pod that has succeeded is not replaced.
    InAll(usize),
    /// An object has it.
    Of(Owner, String),
    /// It cannot be known; what is wrong and what to do.
    Fault(String),
}

/// Kinds of Kubeflow's training operator.
pub const KUBEFLOW: [&str; 6] = ["PyTorchJob", "MPIJob", "TFJob", "XGBoostJob", "JAXJob", "PaddleJob"];

/// True if the pod has linkwise's gate.
pub fn is_gated(pod: &Pod) -> bool {
    gates(pod).any(|g| g == GATE)
}

/// The gates of a pod.
pub fn gates(pod: &Pod) -> impl Iterator<Item = &str> {
    pod.spec.iter().flat_map(|s| s.scheduling_gates.iter().flatten()).map(|g| g.name.as_str())
}

/// The gang of a pod, and its size. O(1).
pub fn of(pod: &Pod) -> (Key, Size) {
    let (kind, name, size) = sign(pod);
    let key = Key { namespace: pod.namespace().unwrap_or_default(), kind, name };
    let size = match pod.labels().get(GANG_SIZE) {
        Some(text) => number(text, GANG_SIZE),
        None => size,
    };
    (key, size)
}

fn sign(pod: &Pod) -> (&'static str, String, Size) {
    let label = |name: &str| pod.labels().get(name).filter(|v| !v.is_empty()).cloned();
    let annotation = |name: &str| pod.annotations().get(name).filter(|v| !v.is_empty()).cloned();
    let owner = pod.owner_references().iter().find(|o| o.controller == Some(true));
    if let Some(name) = label(GANG) {
        let fault = format!("has the label {GANG} without {GANG_SIZE}; add the number of pods as {GANG_SIZE}");
        return ("gang", name, Size::Fault(fault));
    }
    let group = pod.spec.as_ref().and_then(|s| s.scheduling_group.as_ref()).and_then(|g| g.pod_group_name.clone());
    if let Some(name) = group {
        return ("PodGroup", name.clone(), Size::Of(Owner::NativePodGroup, name));
    }
    if let Some(name) = label("jobset.sigs.k8s.io/jobset-name") {
        return ("JobSet", name.clone(), Size::Of(Owner::JobSet, name));
    }
    if let Some(name) = label("leaderworkerset.sigs.k8s.io/name") {
        let index = label("leaderworkerset.sigs.k8s.io/group-index").unwrap_or_default();
        let size = match annotation("leaderworkerset.sigs.k8s.io/size") {
            Some(text) => number(&text, "leaderworkerset.sigs.k8s.io/size"),
            None => Size::Fault("has no annotation leaderworkerset.sigs.k8s.io/size".into()),
        };
        return ("LeaderWorkerSet", format!("{name}-{index}"), size);
    }
    if let Some(name) = label("kueue.x-k8s.io/pod-group-name") {
        let size = match annotation("kueue.x-k8s.io/pod-group-total-count") {
            Some(text) => match number(&text, "kueue.x-k8s.io/pod-group-total-count") {
                Size::Known(n) => Size::InAll(n),
                fault => fault,
            },
            None => Size::Fault("has no annotation kueue.x-k8s.io/pod-group-total-count".into()),
        };
        return ("Kueue pod group", name, size);
    }
    if let Some(name) = label("training.kubeflow.org/job-name") {
        if is_launcher(pod) && pod.spec.as_ref().is_none_or(|s| s.resource_claims.iter().flatten().next().is_none()) {
            return ("MPIJob launcher", name, Size::Known(1));
        }
        let of = |kind: &&&str| owner.is_some_and(|o| o.kind == **kind);
        // The launcher of an MPIJob belongs to a Job, which belongs to the MPIJob.
        let kind = KUBEFLOW.iter().find(of).or_else(|| {
            label("training.kubeflow.org/operator-name").is_some_and(|o| o.starts_with("mpi")).then_some(&"MPIJob")
        });
        return match kind {
            Some(kind) => (kind, name.clone(), Size::Of(Owner::Kubeflow(kind), name)),
            None => (
                "training job",
                name,
                Size::Fault(format!("its owner is no job of Kubeflow; add the label {GANG_SIZE}")),
            ),
        };
    }
    if let Some(name) = label("scheduling.x-k8s.io/pod-group") {
        return ("coscheduling PodGroup", name.clone(), Size::Of(Owner::Coscheduling, name));
    }
    if let Some(name) = annotation("scheduling.k8s.io/group-name") {
        return ("Volcano PodGroup", name.clone(), Size::Of(Owner::Volcano, name));
    }
    if let Some(name) = annotation("pod-group-name") {
        return ("KAI PodGroup", name.clone(), Size::Of(Owner::Kai, name));
    }
    match owner {
        Some(o) if o.kind == "Job" && o.api_version.starts_with("batch/") => {
            ("Job", o.name.clone(), Size::Of(Owner::Job, o.name.clone()))
        }
        _ => ("Pod", pod.name_any(), Size::Known(1)),
    }
}

/// True if the pod is the launcher of an MPIJob.
pub fn is_launcher(pod: &Pod) -> bool {
    ["training.kubeflow.org/job-role", "training.kubeflow.org/replica-type"]
        .iter()
        .any(|l| pod.labels().get(*l).is_some_and(|role| role.eq_ignore_ascii_case("launcher")))
}

fn number(text: &str, of: &str) -> Size {
    match text.parse() {
        Ok(n) if (1..=PODS_MAX).contains(&n) => Size::Known(n),
        _ => {
            let shown: String = text.chars().take(20).flat_map(char::escape_debug).collect();
            Size::Fault(format!("{of} is `{shown}`; a number from 1 to {PODS_MAX} was expected"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(metadata: Value) -> Pod {
        let mut metadata = metadata;
        metadata["namespace"] = json!("a");
        metadata["name"] = json!("p-0");
        serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": []}})).unwrap()
    }

    #[test]
    fn every_sign_names_its_gang_and_where_the_size_is() {
        let owner = |kind: &str, api: &str| json!([{"kind": kind, "apiVersion": api, "name": "j", "uid": "u", "controller": true}]);
        for (metadata, kind, name, size) in [
            (json!({}), "Pod", "p-0", Size::Known(1)),
            (json!({"labels": {GANG: "g", GANG_SIZE: "4"}}), "gang", "g", Size::Known(4)),
            (json!({"ownerReferences": owner("Job", "batch/v1")}), "Job", "j", Size::Of(Owner::Job, "j".into())),
            (
                json!({"labels": {"jobset.sigs.k8s.io/jobset-name": "s"}, "ownerReferences": owner("Job", "batch/v1")}),
                "JobSet",
                "s",
                Size::Of(Owner::JobSet, "s".into()),
            ),
            (
                json!({"labels": {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "2"},
                "annotations": {"leaderworkerset.sigs.k8s.io/size": "3"}}),
                "LeaderWorkerSet",
                "l-2",
                Size::Known(3),
            ),
            (
                json!({"labels": {"kueue.x-k8s.io/pod-group-name": "k"},
                "annotations": {"kueue.x-k8s.io/pod-group-total-count": "2"}}),
                "Kueue pod group",
                "k",
                Size::InAll(2),
            ),
            (
                json!({"labels": {"training.kubeflow.org/job-name": "t", "training.kubeflow.org/job-role": "launcher"}}),
                "MPIJob launcher",
                "t",
                Size::Known(1),
            ),
            (
                json!({"labels": {"training.kubeflow.org/job-name": "t"}, "ownerReferences": owner("PyTorchJob", "kubeflow.org/v1")}),
                "PyTorchJob",
                "t",
                Size::Of(Owner::Kubeflow("PyTorchJob"), "t".into()),
            ),
            (
                json!({"labels": {"training.kubeflow.org/job-name": "t", "training.kubeflow.org/operator-name": "mpi-operator"},
                "ownerReferences": owner("Job", "batch/v1")}),
                "MPIJob",
                "t",
                Size::Of(Owner::Kubeflow("MPIJob"), "t".into()),
            ),
            (
                json!({"labels": {"scheduling.x-k8s.io/pod-group": "c"}}),
                "coscheduling PodGroup",
                "c",
                Size::Of(Owner::Coscheduling, "c".into()),
            ),
            (
                json!({"annotations": {"scheduling.k8s.io/group-name": "v"}}),
                "Volcano PodGroup",
                "v",
                Size::Of(Owner::Volcano, "v".into()),
            ),
            (json!({"annotations": {"pod-group-name": "k"}}), "KAI PodGroup", "k", Size::Of(Owner::Kai, "k".into())),
        ] {
            let (key, found) = of(&pod(metadata.clone()));
            assert_eq!((key.kind, key.name.as_str(), found), (kind, name, size), "{metadata}");
        }
        let mut native = pod(json!({}));
        native.spec.as_mut().unwrap().scheduling_group =
            Some(serde_json::from_value(json!({"podGroupName": "w"})).unwrap());
        let (key, size) = of(&native);
        assert_eq!((key.kind, size), ("PodGroup", Size::Of(Owner::NativePodGroup, "w".into())));
    }

    #[test]
    fn a_wrong_size_is_told_and_the_own_label_overrides() {
        let labels = |size: &str| pod(json!({"labels": {GANG: "g", GANG_SIZE: size}}));
        for wrong in ["0", "-1", "ten", "10001", "\u{7}"] {
            assert!(matches!(of(&labels(wrong)).1, Size::Fault(_)), "{wrong}");
        }
        assert!(matches!(of(&pod(json!({"labels": {GANG: "g"}}))).1, Size::Fault(f) if f.contains(GANG_SIZE)));
        let set = pod(json!({"labels": {"jobset.sigs.k8s.io/jobset-name": "s", GANG_SIZE: "7"}}));
        assert_eq!(of(&set).1, Size::Known(7));
    }
}
