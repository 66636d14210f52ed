//! Measures every arm before a job: the offline run ([`profile`]), its policy file ([`policy_file`]), and AUTO's gap to
//! the best arms ([`characterize`]). Only launches have side effects; planning, scheduling and evaluation are pure
//! functions.

pub mod arm_table;
pub mod characterize;
mod error;
mod policies;
pub mod policy_file;
pub mod profile;
pub mod sweep;

pub use error::ProfileError;
pub use policies::{UnknownPolicy, check_policy, list as list_of_policies};
