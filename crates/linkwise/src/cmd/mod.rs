//! One module per sub-command; what they share is here.

pub mod cluster;
pub mod data;
pub mod demo;
pub mod doctor;
pub mod evaluate;
pub mod fit;
pub mod measure;
pub mod nccl;
pub mod observe;
pub mod place;
pub mod plugin;
pub mod reproduce;
pub mod route;
pub mod run;
pub mod shared;
pub mod topology;
pub mod tune;
pub mod validate;
