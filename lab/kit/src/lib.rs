//! What the laboratory's rooms share: tables and progress, and where the published data lie.

pub mod output;
pub mod published;
