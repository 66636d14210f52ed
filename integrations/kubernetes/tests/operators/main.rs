//! The controller beside real operators: JobSet, LeaderWorkerSet and Kueue, each built by `scripts/build-operators.sh` from its release and installed from
//! its own chart, make, suspend and admit the pods on a real control plane. Nodes, GPUs and kubelets are simulated.
//!
//! What differs from a cluster: an operator is a process on loopback with the administrator's rights, and its webhooks are reached through a service of the type
//! `ExternalName`, because no pod network exists here.

#[allow(dead_code)] // the test of the controller uses the rest
#[path = "../cluster/common.rs"]
mod common;
#[allow(dead_code)] // the test of the chart uses the rest
#[path = "../install/helm.rs"]
mod helm;
mod kueue;
mod operator;
mod sets;
