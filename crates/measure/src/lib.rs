//! What links did carry: backends that take readings, and campaigns that decide which to take.
//!
//! A [`Backend`] turns a [`Point`] into a [`Reading`]: `nccl_tests`, `command` (the user's own benchmark) and `simulated`. A
//! [`campaign`] walks through intra tables, spot checks and multi-host samples of a [`design()`], re-measures outliers, and
//! keeps everything in a [`store::Store`], from which a killed campaign goes on.

pub mod backend;
pub mod campaign;
pub mod command;
pub mod design;
pub mod features;
pub mod intra;
mod layout;
pub mod nccl_tests;
pub mod outlier;
pub mod plugin_trace;
pub mod simulated;
pub mod trace;

pub use backend::{Backend, BackendError, Point, Reading};

pub use campaign::{Campaign, CampaignError, Event, Plan, Summary};
pub use design::{DesignKind, Uncertainty, design};
pub use layout::first_points;
