//! Measurement: backends that take readings, and campaigns that decide which ones to take.
//!
//! A [`Backend`] turns a [`Point`] into a [`Reading`]: `nccl_tests`, `command` (the user's own benchmark) and `simulated`. A [`campaign`] measures
//! intra tables, spot checks and the multi-host sample of a [`design()`], repeats outliers, and stores every reading in a [`store::Store`], from
//! which an interrupted campaign resumes.
//!
//! A *reading* is one measurement; a *sample* is a set of allocations to measure.

#![allow(missing_docs, reason = "an item whose name says everything needs no comment")]

pub mod backend;
pub mod campaign;
pub mod command;
pub mod design;
pub mod features;
pub mod flight_recorder;
pub mod idle;
pub mod inspector;
pub mod intra;
pub mod kinds;
mod layout;
pub mod nccl_tests;
pub mod outlier;
pub mod plugin_trace;
pub mod process;
pub mod rails;
mod scalar;
pub mod scale;
pub mod simulated;
pub mod summary;
pub mod trace;

pub use backend::{Backend, BackendError, Point, Reading};

pub use campaign::{Campaign, CampaignError, CampaignEvent, CampaignHooks, CampaignPlan, CampaignSummary};
pub use design::{DesignKind, Uncertainty, design};
pub use layout::first_points;
pub use scale::Scale;
