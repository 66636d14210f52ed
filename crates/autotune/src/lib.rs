//! Measures every arm before a job: the offline run ([`profile`]), its policy file ([`policy_file`]), and AUTO's distance from the best
//! arms ([`characterize`]). Only launches have effects; planning, scheduling and judging are pure functions.

pub mod characterize;
mod error;
pub mod policy_file;
pub mod profile;
pub mod sweep;

pub use error::ProfileError;
