//! One module per sub-command.

pub mod data;
pub mod demo;
pub mod evaluate;
pub mod reproduce;
