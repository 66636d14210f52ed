//! The controller on a real control plane of Kubernetes, with simulated nodes and GPUs, and the program `linkwise` as the server.
//!
//! One binary, because every binary links the client of Kubernetes. Tests that kill no part of the control plane share one, and take turns.

mod calls;
mod chaos;
mod common;
mod faults;
#[allow(dead_code)] // the test of the chart uses the rest
#[path = "../install/helm.rs"]
mod helm;
mod kinds;
mod measured;
mod native;
mod priority;
mod refused;
mod steps;
mod thread;
