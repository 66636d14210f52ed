//! One module per sub-command; [`open`] builds the engine for all of them.

pub mod cluster;
pub mod doctor;
pub mod emulate;
pub mod explain;
pub mod fit;
pub mod measure;
pub mod model;
pub mod nccl;
pub mod observe;
pub mod open;
pub mod place;
pub mod plugin;
pub mod readings;
pub mod route;
pub mod run;
pub mod serve;
pub mod slurm;
pub mod token;
pub mod topology;
pub mod tune;
pub mod watch;
