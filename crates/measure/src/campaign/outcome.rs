//! The reports of a campaign: its progress, its result, and the reason why it stopped.

use store::StoreError;

/// Progress of a campaign.
#[derive(Clone, Debug, PartialEq)]
pub enum CampaignEvent {
    /// A stage begins.
    Stage {
        /// For instance `intra tables of n0, 16MiB`.
        name: String,
        /// Points to measure.
        points: usize,
        /// Points of the stage that have a reading.
        already: usize,
    },
    /// This number of further points of the stage is in the store.
    Taken(usize),
    /// A line for the user.
    Note(String),
}

/// Counts of one kind of stage.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct StageSummary {
    /// `intra tables`, `spot checks` or `multi-host samples`.
    pub name: String,
    /// Points that have a reading.
    pub points: usize,
    /// Readings taken by this run, repetitions included.
    pub readings_taken: usize,
    /// Points without a reading.
    pub failed: usize,
    /// Points whose first reading was an outlier.
    pub outliers: usize,
    /// Readings rejected after repetition.
    pub rejected: usize,
    /// Outliers that could not be repeated.
    pub suspect: usize,
    /// Total seconds for which runs occupied GPUs.
    pub run_seconds: f64,
    /// The same multiplied by the number of GPUs, minutes.
    pub gpu_minutes: f64,
}

/// Result of a campaign.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct CampaignSummary {
    pub stages: Vec<StageSummary>,
    /// Hosts whose spot checks deviated and whose full table was measured.
    pub deviating_hosts: Vec<String>,
    /// True if the budget ended before the plan.
    pub stopped_by_budget: bool,
}

impl CampaignSummary {
    /// Readings taken by this run.
    pub fn readings_taken(&self) -> usize {
        self.stages.iter().map(|s| s.readings_taken).sum()
    }
    /// GPU-minutes of this run.
    pub fn gpu_minutes(&self) -> f64 {
        self.stages.iter().map(|s| s.gpu_minutes).sum()
    }
    /// Points without a reading.
    pub fn failed(&self) -> usize {
        self.stages.iter().map(|s| s.failed).sum()
    }
}

/// Why a campaign stopped.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backend cannot continue. All readings so far are in the store.
    #[error("{0}. All readings so far are stored; rerun the same command to resume")]
    Backend(String),
    /// The model of an adaptive design failed.
    #[error("the adaptive design's model: {0}")]
    Model(String),
}

/// Why a stage ends before its last point.
pub(super) enum Stop {
    Budget,
    Error(CampaignError),
}

impl<E: Into<CampaignError>> From<E> for Stop {
    fn from(e: E) -> Self {
        Stop::Error(e.into())
    }
}
