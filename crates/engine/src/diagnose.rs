//! Diagnoses slow hosts, NICs, GPUs and links from all readings, and computes their cost.

use crate::error::EngineError;
use crate::gpus::GpuList;
use crate::handle::{Answer, Request};
use crate::hold::Engine;
use crate::models::Progress;
use crate::slow_parts::SlowPartAnswer;
use diagnose::{self, Candidate, Cost, Defect, Diagnosis};
use predict::Model;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use store::state::Suspect;
use store::{By, Measurement, Query, Source};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask};

/// Suspects below this probability are not kept.
pub(crate) const SUSPECT_MIN: f64 = 0.0005;
/// Number of other hosts in the computation of a defect's cost.
const OTHERS: usize = 8;
/// Probability from which a defect is named.
const NAMED: f64 = 0.5;

/// Looks for defects in the newest usable readings of every host. With a state, the result replaces its suspects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DiagnoseRequest {
    /// Collective of the readings to judge; none: the only one in the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::collective")]
    pub collective: Option<Collective>,
}

/// The result of a diagnosis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DiagnoseAnswer {
    /// Name of the cluster.
    pub cluster: String,
    /// Number of readings in the store.
    pub readings: usize,
    /// Number of simulated readings among them.
    pub simulated_readings: usize,
    /// Number of distinct readings that were judged; repetitions count once.
    pub judged: usize,
    /// Number of readings without comparable ones.
    pub left_out: usize,
    /// Standard deviation of the logarithm of ordinary readings across several hosts.
    pub noise: f64,
    /// Defects of single hosts; the first one explains most readings.
    pub defects: Vec<DefectAnswer>,
    /// Slow parts that hosts share: rails and switches.
    pub shared: Vec<SlowPartAnswer>,
    /// Deviation of every host with readings from comparable hosts, slowest first.
    pub hosts: Vec<HostAnswer>,
    /// Single readings far below the expected bandwidth that no defect explains.
    pub stray: Vec<StrayAnswer>,
    /// The free GPUs whose reading is expected to tell most about what is slow; none: no reading tells much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure_next: Option<GpuList>,
}

/// A defect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct DefectAnswer {
    /// Probability of the defect, 0 to 1.
    pub probability: f64,
    /// True if one candidate is at least as probable as all others together.
    pub named: bool,
    /// The components that may be slow, most probable first.
    pub candidates: Vec<CandidateAnswer>,
    /// Cost of the first candidate for the jobs that use it.
    pub cost: CostAnswer,
    /// The free allocation whose measurement would best separate the candidates.
    pub worth_measuring: Option<GpuList>,
}

/// A component that may have the defect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CandidateAnswer {
    /// The component as text: `NIC mlx5_3 of n1`.
    pub component: String,
    /// `host`, `network`, `nic`, `gpu` or `link`.
    pub kind: String,
    /// Its host.
    pub host: String,
    /// Estimated share of its full rate, 0 to 1.
    pub factor: f64,
    /// Start of the defect, seconds since 1970; none: before the first reading.
    pub since_unix_s: Option<f64>,
    /// Probability, 0 to 1.
    pub probability: f64,
    /// Number of distinct readings that it slows.
    pub readings: usize,
    /// Logarithm of the likelihood ratio of all readings with and without this defect.
    pub ln_likelihood_ratio: f64,
}

/// The cost of a defect, computed by the physics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CostAnswer {
    /// Number of allocations that it slows, among those examined.
    pub allocations: usize,
    /// Their mean bus bandwidth without it, GB/s.
    pub healthy_gb_per_s: f64,
    /// Their mean bus bandwidth with it, GB/s.
    pub defective_gb_per_s: f64,
    /// Message size.
    pub size_bytes: Bytes,
}

/// The deviation of a host from comparable hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HostAnswer {
    /// The host.
    pub host: String,
    /// Number of distinct readings that use it.
    pub readings: usize,
    /// Median of the measured over the expected bandwidth.
    pub ratio: f64,
    /// Distance from the median host, in standard deviations.
    pub deviations: f64,
}

/// A reading that no defect explains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StrayAnswer {
    /// Its GPUs.
    pub gpus: GpuList,
    /// Its message size.
    pub size_bytes: Bytes,
    /// Measured bus bandwidth, GB/s.
    pub busbw_gb_per_s: f64,
    /// Expected bus bandwidth, GB/s.
    pub expected_gb_per_s: f64,
}

/// The suspects of a diagnosis, in the form that a state stores.
pub fn suspects_of(d: &Diagnosis) -> Vec<Suspect> {
    let of = |(i, d): (usize, &Defect)| -> Vec<Suspect> {
        d.candidates
            .iter()
            .filter(|c| c.probability >= SUSPECT_MIN)
            .map(|c| Suspect {
                defect: i as u32,
                host: c.component.host(),
                component: c.component.text(),
                factor: c.factor,
                probability: c.probability,
            })
            .collect()
    };
    d.defects.iter().enumerate().flat_map(of).collect()
}

impl Engine {
    /// Looks for defects in the newest usable readings of every host. With a state, the result replaces its suspects.
    ///
    /// # Errors
    /// No store; no usable reading, or several collectives and none is named.
    pub fn diagnose(&self, r: &DiagnoseRequest) -> Result<DiagnoseAnswer, EngineError> {
        self.look_for_defects(r, true, &Progress::default())
    }

    /// [`Engine::diagnose`] that can be cancelled, with an entry in the log.
    ///
    /// # Errors
    /// Those of [`Engine::diagnose`]; [`EngineError::Cancelled`].
    pub fn diagnose_until(
        &self,
        r: &DiagnoseRequest,
        by: By<'_>,
        progress: &Progress,
    ) -> Result<DiagnoseAnswer, EngineError> {
        let answer = self.look_for_defects(r, true, progress)?;
        let told = Answer::Diagnose(answer);
        self.log_answer(&Request::Diagnose(r.clone()), &told, by)?;
        match told {
            Answer::Diagnose(answer) => Ok(answer),
            _ => Err(EngineError::Cancelled),
        }
    }

    /// The same without a change of the state.
    ///
    /// # Errors
    /// Those of [`Engine::diagnose`].
    pub fn diagnosis(&self, r: &DiagnoseRequest) -> Result<DiagnoseAnswer, EngineError> {
        self.look_for_defects(r, false, &Progress::default())
    }

    fn look_for_defects(
        &self,
        r: &DiagnoseRequest,
        keep: bool,
        progress: &Progress,
    ) -> Result<DiagnoseAnswer, EngineError> {
        let (rows, readings, simulated_readings) = {
            let store = self.store()?;
            let simulated = Query { source: Some(Source::Simulated), ..Query::usable() };
            (store.measurements(&self.window(None))?, store.count(&Query::usable())?, store.count(&simulated)?)
        };
        let cluster = &self.cluster;
        progress.next()?;
        let constants = fabric::Constants::default();
        let (diagnosis, model) = diagnose::examine_until(cluster, &rows, r.collective, constants, progress.stop())?;
        progress.go_on()?;
        if keep && self.has_state() {
            self.state()?.set_suspects(&suspects_of(&diagnosis))?;
        }
        let size = model.sizes().last().copied().unwrap_or(Bytes::mib(16));
        let typical = typical(cluster, &diagnosis, &rows);
        let usable = if self.has_state() { self.snapshot()?.free.clone() } else { cluster.usable() };
        let read = rows.iter().map(|m| m.allocation.clone()).collect();
        let next = diagnosis.next_reading(&model, &usable, size, &read);
        let defect = |d: &Defect| {
            let a = diagnosis.worth_measuring(&model, d, next.as_ref(), &usable, size);
            let worth_measuring = a.map(|a| GpuList::new(cluster, &a));
            defect(cluster, &model, d, size, &typical, worth_measuring)
        };
        Ok(DiagnoseAnswer {
            cluster: cluster.name.clone(),
            measure_next: next.as_ref().map(|a| GpuList::new(cluster, a)),
            readings,
            simulated_readings,
            judged: diagnosis.readings,
            left_out: diagnosis.left_out,
            noise: diagnosis.noise,
            defects: diagnosis.defects.iter().map(defect).collect(),
            shared: diagnosis.shared.iter().map(|s| SlowPartAnswer::new(cluster, s)).collect(),
            hosts: diagnosis
                .hosts
                .iter()
                .map(|h| HostAnswer {
                    host: cluster.host(h.host).name.clone(),
                    readings: h.readings,
                    ratio: h.ratio,
                    deviations: h.z,
                })
                .collect(),
            stray: diagnosis
                .outliers
                .iter()
                .map(|s| StrayAnswer {
                    gpus: GpuList::new(cluster, &s.allocation),
                    size_bytes: s.size,
                    busbw_gb_per_s: s.busbw_gb_per_s,
                    expected_gb_per_s: s.expected_gb_per_s,
                })
                .collect(),
        })
    }
}

fn defect(
    cluster: &Cluster,
    model: &Model,
    d: &Defect,
    size: Bytes,
    typical: &[Allocation],
    worth_measuring: Option<GpuList>,
) -> DefectAnswer {
    let Cost { touched, healthy_gb_per_s, defective_gb_per_s } = diagnose::cost(model, &d.candidates[0], size, typical);
    let candidate = |c: &Candidate| CandidateAnswer {
        component: c.component.name(cluster),
        kind: c.component.kind().into(),
        host: cluster.host(c.component.host()).name.clone(),
        factor: c.factor,
        since_unix_s: c.since,
        probability: c.probability,
        readings: c.readings,
        ln_likelihood_ratio: c.ln_likelihood_ratio,
    };
    DefectAnswer {
        probability: d.probability,
        named: d.candidates[0].probability >= NAMED,
        candidates: d.candidates.iter().map(candidate).collect(),
        cost: CostAnswer { allocations: touched, healthy_gb_per_s, defective_gb_per_s, size_bytes: size },
        worth_measuring,
    }
}

/// Typical allocations of jobs: the measured ones, and for every defective host its halves and the whole host combined with other hosts.
fn typical(cluster: &Cluster, diagnosis: &Diagnosis, rows: &[Measurement]) -> Vec<Allocation> {
    let mut all: BTreeSet<Allocation> = rows.iter().map(|m| m.allocation.clone()).collect();
    for d in &diagnosis.defects {
        let h = d.candidates[0].component.host();
        let n = cluster.type_of(h).gpu_count();
        let others = cluster.host_ids().filter(|o| *o != h && cluster.host(*o).host_type == cluster.host(h).host_type);
        for o in others.take(OTHERS) {
            let whole = GpuMask::first(n);
            let (low, high) = (GpuMask::first(n / 2), whole.minus(GpuMask::first(n / 2)));
            all.extend([low, high, whole].into_iter().map(|m| Allocation::new([(h, m), (o, m)])));
        }
    }
    all.into_iter().collect()
}
