//! One module per sub-command; what they share is here.

pub mod data;
pub mod demo;
pub mod evaluate;
pub mod fit;
pub mod measure;
pub mod place;
pub mod shared;
pub mod topology;
pub mod validate;
