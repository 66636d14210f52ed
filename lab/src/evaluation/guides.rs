//! The models that guide the methods of one seed, fitted once each.

use super::methods::{Guide, MethodSpec};
use super::sampling::readings;
use measure::design::DesignKind;
use predict::{
    BandwidthModel, Candidates, FitOptions, HostShare, HostShareTable, Kind, Model, Oracle, Prediction, bound::Limit,
    fit,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use store::Measurement;
use topology::{Allocation, Bytes};
use truths::{Irregularity, Truth};

/// A fitted guide.
pub struct Fitted<'t> {
    pub model: Box<dyn BandwidthModel + 't>,
    /// Seconds to fit it.
    pub fit_s: f64,
    /// Multi-host readings taken (fewer if the truth has fewer rows).
    pub samples: usize,
}

/// The guides that a list of methods needs.
pub struct Guides<'t> {
    pub fitted: BTreeMap<Guide, Fitted<'t>>,
}

/// The bandwidth of a model's allocation in a truth.
fn truth_of(truth: &dyn Truth, parts: &[HostShare], irregularity: Irregularity) -> f64 {
    let a = Allocation::new(parts.iter().map(|p| (p.host, p.mask)));
    truth.of_parts(a.parts(), irregularity).unwrap_or(0.0)
}

/// A model that predicts the truth.
pub fn oracle<'t>(
    truth: &'t dyn Truth,
    table: HostShareTable,
    irregularity: Irregularity,
) -> Oracle<impl Fn(&[HostShare]) -> f64 + Send + Sync + 't> {
    Oracle { table, truth: move |parts: &[HostShare]| truth_of(truth, parts, irregularity) }
}

/// Fits one model of a kind by name.
pub fn fit_kind(
    kind: &str,
    truth: &dyn Truth,
    rows: &[Measurement],
    constants: &fabric::Constants,
    seed: u64,
) -> Result<Model, String> {
    let known = papers::models().by_name(kind).ok_or_else(|| format!("there is no model `{kind}`"))?;
    let options = FitOptions::of(known).collective(truth.collective()).constants(constants.clone()).seed(seed);
    let fitted = fit(truth.cluster(), rows, &options);
    Ok(fitted.map_err(|e| e.to_string())?.0)
}

/// Readings of a truth by a sampling design.
pub fn sample(
    truth: &dyn Truth,
    samples: usize,
    design: DesignKind,
    constants: &fabric::Constants,
    seed: u64,
    intra: &[Measurement],
) -> Vec<Measurement> {
    readings(truth, seed, |r| r.multi_host(samples, design, seed, intra, constants))
}

impl<'t> Guides<'t> {
    /// Fits the guides of the methods.
    pub fn new(
        truth: &'t dyn Truth,
        methods: &[MethodSpec],
        constants: &fabric::Constants,
        irregularity: Irregularity,
        seed: u64,
    ) -> Result<Self, String> {
        let intra = readings(truth, seed, |r| r.intra());
        let mut fitted = BTreeMap::new();
        for m in methods {
            if fitted.contains_key(&m.guide) {
                continue;
            }
            let mut start = Instant::now();
            let (model, samples): (Box<dyn BandwidthModel + 't>, Vec<Measurement>) = match &m.guide {
                Guide::Model { kind, samples, design } => {
                    let design = super::methods::design_of(design).unwrap_or(DesignKind::Random);
                    let multi = sample(truth, *samples, design, constants, seed, &intra);
                    let rows: Vec<Measurement> = intra.iter().chain(&multi).cloned().collect();
                    start = Instant::now();
                    (Box::new(fit_kind(kind, truth, &rows, constants, seed)?), multi)
                }
                // A search by labels also needs a share table; the oracle needs the measured tables.
                Guide::Nothing | Guide::Truth => {
                    let options =
                        FitOptions::of(Kind::Bound).collective(truth.collective()).constants(constants.clone());
                    let bound = fit(truth.cluster(), &intra, &options).map_err(|e| e.to_string())?.0;
                    let table = bound.share_table(truth.size()).clone();
                    match m.guide {
                        Guide::Truth => (Box::new(oracle(truth, table, irregularity)), Vec::new()),
                        _ => (Box::new(bound), Vec::new()),
                    }
                }
            };
            let fit_s = start.elapsed().as_secs_f64();
            fitted.insert(m.guide.clone(), Fitted { model, fit_s, samples: samples.len() });
        }
        Ok(Guides { fitted })
    }
}

/// A model that measures the time spent in it, to split latency into search and prediction.
pub struct Timed<'a> {
    model: &'a dyn BandwidthModel,
    ns: AtomicU64,
}

impl<'a> Timed<'a> {
    /// Counts from zero.
    pub fn new(model: &'a dyn BandwidthModel) -> Self {
        Timed { model, ns: AtomicU64::new(0) }
    }
    /// Microseconds inside the model so far.
    pub fn us(&self) -> f64 {
        self.ns.load(Ordering::Relaxed) as f64 / 1e3
    }
    fn time<T>(&self, f: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let v = f();
        self.ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        v
    }
}

impl BandwidthModel for Timed<'_> {
    fn kind(&self) -> &'static str {
        self.model.kind()
    }
    fn share_table(&self, size: Bytes) -> &HostShareTable {
        self.model.share_table(size)
    }
    fn means(&self, size: Bytes, candidates: &Candidates, out: &mut Vec<f64>) {
        self.time(|| self.model.means(size, candidates, out));
    }
    fn predict(&self, size: Bytes, parts: &[HostShare]) -> Prediction {
        self.time(|| self.model.predict(size, parts))
    }
    fn mean(&self, size: Bytes, parts: &[HostShare]) -> f64 {
        self.time(|| self.model.mean(size, parts))
    }
    fn upper_bound_hosts_or_more(
        &self,
        intra_gb_per_s: f64,
        nic_gb_per_s: f64,
        hosts: usize,
        gpus: usize,
    ) -> Option<f64> {
        self.model.upper_bound_hosts_or_more(intra_gb_per_s, nic_gb_per_s, hosts, gpus)
    }
    fn limit(&self, size: Bytes, parts: &[HostShare]) -> Limit {
        self.model.limit(size, parts)
    }
    fn repeat_noise(&self) -> f64 {
        self.model.repeat_noise()
    }
    fn collective(&self) -> topology::Collective {
        self.model.collective()
    }
    fn physics(&self) -> Option<&fabric::FabricTables> {
        self.model.physics()
    }
    fn host_effect(&self, host: topology::HostId) -> f64 {
        self.model.host_effect(host)
    }
}
