//! Which host, NIC or GPU is slow: what all readings say, and what it costs.

use crate::error::EngineError;
use crate::gpus::GpuList;
use crate::hold::Engine;
use predict::Model;
use predict::doctor::{self, Candidate, Cost, Defect, Diagnosis};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use store::state::Suspect;
use store::{Measurement, Query, Source};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask};

/// Suspects below this probability are not kept.
pub(crate) const SUSPECT_MIN: f64 = 0.002;
/// Hosts that the cost of a defect is reckoned with, beside the defective one.
const OTHERS: usize = 8;
/// From this probability on a defect has a name.
const NAMED: f64 = 0.5;

/// Looks for defects in the newest usable readings of every host. With a state its suspects are replaced by what is found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiagnoseRequest {
    /// The collective whose readings are judged; none: the one that the store has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collective: Option<Collective>,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiagnoseAnswer {
    /// Name of the cluster.
    pub cluster: String,
    /// Readings of the store.
    pub readings: usize,
    /// Of these simulated ones.
    pub simulated_readings: usize,
    /// Distinct readings that were judged: repetitions count once.
    pub judged: usize,
    /// Readings that nothing could be compared with.
    pub left_out: usize,
    /// Deviation of ordinary readings over several hosts (of the logarithm).
    pub noise: f64,
    /// Defects, the one that explains most first.
    pub defects: Vec<DefectAnswer>,
    /// How far every host with readings is from its class, farthest below first.
    pub hosts: Vec<HostAnswer>,
    /// Single readings far below what is expected that no defect explains.
    pub stray: Vec<StrayAnswer>,
}

/// A defect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DefectAnswer {
    /// Probability that there is one.
    pub probability: f64,
    /// Is one candidate as probable as all others together?
    pub named: bool,
    /// What it may be, the most probable first.
    pub candidates: Vec<CandidateAnswer>,
    /// What the first candidate costs the jobs that touch it.
    pub cost: CostAnswer,
    /// The free allocation whose measurement would tell most about which candidate it is.
    pub worth_measuring: Option<GpuList>,
}

/// What a defect may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CandidateAnswer {
    /// In words: `NIC mlx5_3 of n1`.
    pub component: String,
    /// `host`, `network`, `nic`, `gpu` or `link`.
    pub kind: String,
    /// Its host.
    pub host: String,
    /// Share of its rate that is left.
    pub factor: f64,
    /// Since when, seconds since 1970; none: in all readings.
    pub since_unix_s: Option<f64>,
    /// How probable it is.
    pub probability: f64,
    /// Distinct readings that it slows.
    pub readings: usize,
    /// Logarithm of how much better it explains all readings than no defect does.
    pub ln_likelihood_ratio: f64,
}

/// What a defect costs, by the physics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostAnswer {
    /// Allocations that it slows, among those that were looked at.
    pub allocations: usize,
    /// Their mean bus bandwidth without it, GB/s.
    pub healthy_gb_per_s: f64,
    /// With it, GB/s.
    pub defective_gb_per_s: f64,
    /// Message size.
    pub size_bytes: Bytes,
}

/// How far a host is from its class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostAnswer {
    /// The host.
    pub host: String,
    /// Distinct readings that touch it.
    pub readings: usize,
    /// Median of got over expected.
    pub ratio: f64,
    /// Distance from the median host, in deviations.
    pub deviations: f64,
}

/// A reading that no defect explains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StrayAnswer {
    /// Its GPUs.
    pub gpus: GpuList,
    /// Its size.
    pub size_bytes: Bytes,
    /// Read, GB/s.
    pub busbw_gb_per_s: f64,
    /// Expected, GB/s.
    pub expected_gb_per_s: f64,
}

/// What a diagnosis suspects, as a state keeps it.
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
    /// Looks for defects in the newest usable readings of every host. With a state its suspects are replaced.
    ///
    /// # Errors
    /// No store; no usable reading, or several collectives and none is named.
    pub fn diagnose(&self, r: &DiagnoseRequest) -> Result<DiagnoseAnswer, EngineError> {
        let (rows, readings, simulated_readings) = {
            let store = self.store()?;
            let simulated = Query { source: Some(Source::Simulated), ..Query::usable() };
            (store.measurements(&self.window(None))?, store.count(&Query::usable())?, store.count(&simulated)?)
        };
        let cluster = &self.cluster;
        let (diagnosis, model) = doctor::examine(cluster, &rows, r.collective, fabric::Constants::default())?;
        if self.has_state() {
            self.state()?.set_suspects(&suspects_of(&diagnosis))?;
        }
        let size = model.sizes().last().copied().unwrap_or(Bytes::mib(16));
        let typical = typical(cluster, &diagnosis, &rows);
        let usable = cluster.usable();
        let defect = |d: &Defect| defect(cluster, &model, d, size, &typical, &usable);
        Ok(DiagnoseAnswer {
            cluster: cluster.name.clone(),
            readings,
            simulated_readings,
            judged: diagnosis.readings,
            left_out: diagnosis.left_out,
            noise: diagnosis.noise,
            defects: diagnosis.defects.iter().map(defect).collect(),
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
    usable: &Allocation,
) -> DefectAnswer {
    let Cost { touched, healthy_gb_per_s, defective_gb_per_s } = doctor::cost(model, &d.candidates[0], size, typical);
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
        worth_measuring: doctor::most_informative_allocation(model, d, usable, size, &[])
            .map(|a| GpuList::new(cluster, &a)),
    }
}

/// What jobs ask for: the measured allocations, and for every defective host its halves and its whole beside those of other hosts.
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
