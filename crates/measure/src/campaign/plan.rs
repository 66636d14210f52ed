//! The plan of a campaign and its cost.

use super::{Campaign, STAGES, Stage};
use crate::backend::Point;
use crate::design::DesignKind;
use crate::scale::Scale;
use topology::{Allocation, Bytes, Collective};

#[derive(Clone, Debug, PartialEq)]
pub struct CampaignPlan {
    /// The GPUs to use.
    pub idle: Allocation,
    pub collective: Collective,
    /// Sizes, each with its own tables and sample.
    pub sizes: Vec<Bytes>,
    /// Measure intra tables and spot checks.
    pub intra: bool,
    /// Multi-host allocations per size.
    pub sample_size: usize,
    /// Their sampling design.
    pub design: DesignKind,
    /// Seed of designs and spot checks.
    pub seed: u64,
    /// How the plan grows with the site.
    pub scale: Scale,
    /// Limit on GPU-minutes of this run; `None` is unlimited.
    pub budget_gpu_minutes: Option<f64>,
}

/// Cost of a stage before its start.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct StageEstimate {
    /// `intra tables`, `spot checks` or `multi-host samples`.
    pub name: &'static str,
    /// Points of the stage.
    pub points: usize,
    /// Points that have a reading in the store.
    pub already: usize,
    /// GPU-minutes of the other points.
    pub gpu_minutes: f64,
    /// Wall-clock seconds of the other points.
    pub seconds: f64,
}

/// Cost of a plan before its start, without repetitions and without the tables of deviating hosts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CampaignEstimate {
    /// By stage, in the order of the campaign.
    pub stages: Vec<StageEstimate>,
}

impl CampaignEstimate {
    /// Points of the plan.
    pub fn points(&self) -> usize {
        self.stages.iter().map(|s| s.points).sum()
    }
    /// Points that have a reading in the store.
    pub fn already(&self) -> usize {
        self.stages.iter().map(|s| s.already).sum()
    }
    /// GPU-minutes of the other points.
    pub fn gpu_minutes(&self) -> f64 {
        self.stages.iter().map(|s| s.gpu_minutes).sum()
    }
    /// Wall-clock seconds of the other points.
    pub fn seconds(&self) -> f64 {
        self.stages.iter().map(|s| s.seconds).sum()
    }
}

impl Campaign<'_> {
    /// Cost of the remaining points, before the start.
    pub fn estimate(&self) -> CampaignEstimate {
        let stage = |name| StageEstimate { name, ..StageEstimate::default() };
        let mut stages = STAGES.map(stage).to_vec();
        let mut add = |stage: Stage, points: &[Point], width: usize| {
            let estimate = &mut stages[stage as usize];
            for p in points {
                estimate.points += 1;
                if self.known.contains_key(&self.run_id(p)) {
                    estimate.already += 1;
                    continue;
                }
                let seconds = self.backend.expected(p).0;
                estimate.gpu_minutes += seconds * p.allocation.gpu_count() as f64 / 60.0;
                estimate.seconds += seconds / width.max(1) as f64;
            }
        };
        for &size in &self.plan.sizes {
            let (tables, checks) = self.layout().hosts();
            add(
                Stage::Intra,
                &tables.iter().flat_map(|h| self.layout().table_points(*h, size)).collect::<Vec<_>>(),
                self.backend.width().min(tables.len()),
            );
            let spots: Vec<Point> = checks.iter().flat_map(|(h, r)| self.layout().spot_points(*h, *r, size)).collect();
            add(Stage::Spot, &spots, self.backend.width().min(checks.len()));
            add(Stage::Multi, &self.layout().sample_points(size), 1);
        }
        CampaignEstimate { stages }
    }
}
