//! Measuring every arm before a job: the offline run ([`profile`]), the policy file that it writes ([`policy_file`]), and how good AUTO was
//! ([`characterize`]). The launches and their times are effects; planning, scheduling and judging are functions.

pub mod characterize;
mod error;
pub mod policy_file;
pub mod profile;
pub mod sweep;

pub use error::ProfileError;
