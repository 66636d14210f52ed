//! Measuring every arm before a job, and what was found: the policy file that `linkwise tune profile` writes and the plugin's tables follow.

pub mod characterize;
pub mod policy_file;
pub mod sweep;
