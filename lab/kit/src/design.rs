//! Designs of samples as an option of commands.

use measure::DesignKind;

/// A design by name.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum DesignArg {
    /// Random GPUs
    Random,
    /// Spread over host counts and splits
    Stratified,
    /// Most unbalanced splits
    WorstCase,
    /// Allocations at which the model is uncertain
    Adaptive,
}

impl From<DesignArg> for DesignKind {
    fn from(d: DesignArg) -> Self {
        match d {
            DesignArg::Random => Self::Random,
            DesignArg::Stratified => Self::Stratified,
            DesignArg::WorstCase => Self::WorstCase,
            DesignArg::Adaptive => Self::Adaptive,
        }
    }
}
