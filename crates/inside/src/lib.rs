//! Moves bytes between the GPUs of one host over every link: directly, and through memory of peer GPUs. One process per GPU; copy engines move the
//! bytes, so no multiprocessor is used and no kernel runs.
//!
//! A [`Path`] names the GPUs that bytes pass. The sender pushes over the first link, the GPU at the end of every other link pulls: a peer GPU with one
//! link on a path lends memory and two links, and its process does nothing. Staging memory is a ring of chunks per path and peer GPU. The processes
//! share counters in host memory ([`control`]): chunks that were filled, and chunks that are free again (credits). A copy is announced only when its
//! event says that it has ended, so the order between processes needs no order between GPUs.
//!
//! What moves the bytes is behind the trait [`Device`]; who gets which share is the caller's plan (`crates/route`). docs/research/inside-a-host.md
//! has the design, its limits and measurements (simulated).

pub mod control;
pub mod cuda;
pub mod device;
pub mod plane;

pub use control::{Path, Shape};
pub use device::{Address, Device, DeviceError};
pub use plane::{Plane, PlaneError};
