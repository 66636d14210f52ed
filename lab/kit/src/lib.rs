//! Tables, and the folder of the published data, for the crates of the laboratory.

pub mod design;
pub mod output;
pub mod published;
