//! Shared by the crates of the laboratory: tables, and the folder of the published data.

pub mod design;
pub mod output;
pub mod published;
