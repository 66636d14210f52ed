//! Facts in and out: the cluster from what Kubernetes says, and what linkwise knows on Kubernetes' own objects.
//!
//! ```text
//!  ResourceSlices ──┐                                        ┌──> GpuCluster (kubectl shows and edits it), cluster file of the server
//!  labels of nodes ─┼─> cluster.rs ──> sync.rs: one decision ┼──> its status: differences, suspects, alarms
//!  HostFacts ───────┘                       │                └──> DeviceTaintRules
//!  claims ──────────> guard.rs ─────────────┤
//!  server: suspects ────────────────────────┘
//! ```
//!
//! - Everything that decides is a function; [`sync`] reads and writes. No pass keeps anything: a lost process starts with the objects.
//! - What an operator edited in a `GpuCluster` stays; new nodes are added, lost ones removed, UUIDs brought up to date.
//! - GPUs are identified by UUID. Names of devices are looked up anew in every pass.

#![allow(missing_docs, reason = "an item whose name says everything needs no comment")]

pub mod cluster;
pub mod collected;
pub mod explain;
pub mod guard;
pub mod resource;
pub mod run;
pub mod slices;
pub mod supervise;
pub mod sync;
pub mod taints;
