//! Campaigns: intra tables, spot checks and a multi-host sample, resumable after an interruption.
//!
//! For every size a campaign measures the full table of one host of each type, spot checks on the other hosts of the
//! type, and the full table of those that deviate from the median of the type; then the points of a design. After each stage it repeats outliers up
//! to twice; the median counts, and the other readings are stored as rejected. A stage decides from stored readings
//! only, and each reading has a run id made of backend, point and repetition. An interrupted campaign therefore
//! continues at the same point and ends with the same points.

mod outcome;
mod outliers;
mod plan;
mod stages;
mod take;

pub use outcome::{CampaignError, CampaignEvent, CampaignSummary, StageSummary};
pub use plan::{CampaignEstimate, CampaignPlan, StageEstimate};

use crate::backend::{Backend, Point};
use crate::design::{DesignKind, Uncertainty};
use crate::layout::Layout;
use outcome::Stop;
use std::collections::{HashMap, HashSet};
use store::{Query, Store, StoreError};
use topology::{Allocation, Bytes, Cluster, Collective, HostId};

/// Maximum number of repetitions of an outlier.
pub const REPETITIONS_MAX: u32 = 2;
/// Number of consecutive points that may fail before the campaign stops.
pub const FAILURES_IN_ROW_MAX: usize = 10;
/// Rounds of an adaptive design.
const ADAPTIVE_ROUNDS: usize = 8;

/// Expected bandwidth of a multi-host allocation, GB/s.
pub type Expected<'a> = &'a dyn Fn(&Allocation, Collective, Bytes) -> f64;

/// Functions of the caller that a campaign calls.
pub struct CampaignHooks<'a> {
    /// The expected bandwidth, with which multi-host readings are compared.
    pub expected: Expected<'a>,
    /// The time of a new reading.
    pub now_unix_s: &'a dyn Fn() -> f64,
    /// Receives the progress.
    pub on_event: &'a mut dyn FnMut(CampaignEvent),
}

/// One run of a plan.
pub struct Campaign<'a> {
    plan: &'a CampaignPlan,
    cluster: Cluster,
    store: &'a mut Store,
    backend: &'a mut dyn Backend,
    hooks: CampaignHooks<'a>,
    model: Option<&'a mut dyn Uncertainty>,
    /// Bandwidths of the stored readings by run id, GB/s.
    known: HashMap<String, f64>,
    /// Hosts of which an earlier run took the table.
    tabled: HashSet<HostId>,
    failures_in_row: usize,
    summary: CampaignSummary,
}

/// The names of the stages, in the order of [`Stage`].
const STAGES: [&str; 3] = ["intra tables", "spot checks", "multi-host samples"];

/// The kinds of stages, in the order of [`CampaignSummary::stages`].
#[derive(Clone, Copy)]
enum Stage {
    Intra,
    Spot,
    Multi,
}

impl<'a> Campaign<'a> {
    /// Reads the known readings from the store.
    pub fn new(
        plan: &'a CampaignPlan,
        store: &'a mut Store,
        backend: &'a mut dyn Backend,
        hooks: CampaignHooks<'a>,
    ) -> Result<Self, StoreError> {
        let run_prefix = Some(format!("{}/{}/", backend.identity(), plan.collective));
        // Withdrawn readings count as taken: otherwise every resume would measure their points again.
        let query = Query { run_prefix, with_withdrawn: true, ..Query::all() };
        let known = store
            .records(&query)?
            .into_iter()
            .filter_map(|r| Some((r.run_id?, r.measurement.busbw.gb_per_s())))
            .collect();
        let stage = |name: &str| StageSummary { name: name.into(), ..StageSummary::default() };
        let stages = STAGES.map(stage).to_vec();
        let cluster = store.cluster().clone();
        let summary = CampaignSummary { stages, ..CampaignSummary::default() };
        let (model, tabled) = (None, HashSet::new());
        let mut c =
            Campaign { plan, cluster, store, backend, hooks, model, known, tabled, failures_in_row: 0, summary };
        if let (Some(&size), true) = (plan.sizes.first(), plan.intra) {
            let hosts = plan.idle.parts().iter().map(|p| p.0);
            let has_table = |h: &HostId| {
                let probe = c.layout().table_probe(*h, size);
                !probe.is_empty() && probe.iter().all(|p| c.value(p).is_some())
            };
            c.tabled = hosts.filter(has_table).collect();
        }
        Ok(c)
    }

    /// Sets the model of an adaptive design.
    pub fn with_model(mut self, model: &'a mut dyn Uncertainty) -> Self {
        self.model = Some(model);
        self
    }

    /// Runs the plan to its end, or to the end of the budget.
    pub fn run(mut self) -> Result<CampaignSummary, CampaignError> {
        for &size in &self.plan.sizes {
            match self.run_size(size) {
                Ok(()) => {}
                Err(Stop::Budget) => {
                    self.summary.stopped_by_budget = true;
                    break;
                }
                Err(Stop::Error(e)) => return Err(e),
            }
        }
        Ok(self.summary)
    }

    fn run_size(&mut self, size: Bytes) -> Result<(), Stop> {
        let (tables, checks) = self.layout().hosts();
        if self.plan.intra {
            self.take_tables(&tables, size)?;
            let deviating = self.take_spot_checks(&checks, size)?;
            let (first, rest) = deviating.split_at(deviating.len().min(self.plan.scale.tables_of_deviating));
            self.take_tables(first, size)?;
            self.take_more_checks(&checks, rest, size)?;
        }
        if self.plan.design == DesignKind::Adaptive && self.model.is_some() {
            self.take_adaptive_sample(size)
        } else {
            let points = self.layout().sample_points(size);
            self.take(
                Stage::Multi,
                &format!("sample of {} multi-host allocations ({}), {size}", points.len(), self.design_name()),
                &points,
            )?;
            self.repeat_multi_outliers(&points)
        }
    }

    fn design_name(&self) -> &'static str {
        match self.plan.design {
            DesignKind::Adaptive if self.model.is_none() => "farthest-point",
            d => d.name(),
        }
    }

    fn layout(&self) -> Layout<'_> {
        Layout { plan: self.plan, cluster: &self.cluster, tabled: &self.tabled }
    }

    /// The run id of a point: backend, point and repetition. A digest of the GPUs replaces a list that is too long for
    /// the store, such as thousands of hosts whose names have no common numbers.
    fn run_id(&self, p: &Point) -> String {
        let gpus = self.cluster.gpu_list(&p.allocation);
        let id = |gpus| format!("{}/{}/{}/{gpus}#{}", self.backend.identity(), p.collective, p.size.0, p.repetition);
        let whole = id(&gpus);
        if whole.len() <= store::RUN_ID_BYTES_MAX { whole } else { id(&store::once::digest(&gpus)) }
    }

    fn value(&self, p: &Point) -> Option<f64> {
        self.known.get(&self.run_id(p)).copied()
    }
}
