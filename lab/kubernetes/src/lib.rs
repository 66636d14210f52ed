//! A real control plane of Kubernetes for tests: etcd, kube-apiserver, kube-scheduler and kube-controller-manager as processes on loopback, without
//! containers and without root.
//!
//! ```text
//!  test ── kube client ──> kube-apiserver ── etcd
//!   │                          │  │
//!   │ Site: nodes, GPUs        │  └── kube-controller-manager (claims of templates, garbage, jobs)
//!   │ Kubelet: runs, ends      └───── kube-scheduler (stock: binds pods, follows allocated claims)
//! ```
//!
//! - Nodes and GPUs are objects only ([`Site`]); no container ever starts. [`Kubelet`] plays the part of all kubelets: it marks bound pods as running.
//! - Binaries come from `scripts/build-kubernetes.sh`, in a folder per release ([`folder`]). Without them the error is [`Unavailable`];
//!   tests call [`or_skip`].
//! - Every control plane has ports and a folder of its own, so several may run at once. It ends when it is dropped; if its owner is killed, a watchdog
//!   process ends it.
//!
//! Size on one machine: starts in 6 to 10 s, 0.5 GB of memory.

#![forbid(unsafe_code)]

mod control_plane;
mod kubelet;
mod proxy;
mod site;
mod watchdog;

pub use control_plane::{ControlPlane, Options, Part, Unavailable, User, folder, is_at_least, or_skip, releases};
pub use kubelet::{Kubelet, Life};
pub use proxy::Proxy;
pub use site::{DRIVER, Site, gpu_name, node_name, uuid};
