//! [`BandwidthModel`] and its kinds.

use crate::bound::{Analytic, Bounds, Limit, Memo, network_at_most_gb_per_s};
use crate::committee::{Committee, CommitteeReading};
use crate::features::{FEATURES_MAX, Row, features, host_weight, thinnest_gb_per_s};
use crate::intra::IntraTables;
use crate::learned::LearnedModel;
use crate::names::{NO_NUMBER, Names};
use crate::nccl::NcclNetwork;
use crate::rates::{LearnedRates, Part, RatedCluster, has_one_switch};
use crate::shares::{Candidates, HostShare, HostShareTable};
use crate::sizes::{Ladder, nearest_measured};
use rustc_hash::FxBuildHasher;
use std::collections::{BTreeMap, HashMap};
use topology::nccl::Version;
use topology::{Allocation, Bytes, Cluster, Collective, HostId};

/// Relative standard deviation of a single-host prediction that is based on a suspect reading.
const SUSPECT_SD: f64 = 0.3;

/// A model's prediction for an allocation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Expected bus bandwidth; 0 for fewer than two GPUs, which have no collective traffic.
    pub busbw_gb_per_s: f64,
    /// Standard deviation of the bandwidth of a single allocation, irregularity included.
    pub std_gb_per_s: f64,
}

/// Predicts candidates one by one, in GB/s, and caches repeated parts.
pub type Evaluator<'a> = Box<dyn FnMut(&[HostShare]) -> f64 + 'a>;

/// Predicts the bandwidth of allocations of one cluster for one collective.
pub trait BandwidthModel: Send + Sync {
    /// Name of the kind: `bound`, `gp`, ...
    fn kind(&self) -> &'static str;
    /// The host shares that searches combine, for messages of `size`.
    fn share_table(&self, size: Bytes) -> &HostShareTable;
    /// Expected bus bandwidth in GB/s of every candidate, in order, computed as one batch; `out` is overwritten.
    fn means(&self, size: Bytes, candidates: &Candidates, out: &mut Vec<f64>);
    /// Returns a function for the mean of one candidate at a time, exactly equal to [`BandwidthModel::means`]. Repeated
    /// parts are computed once.
    fn evaluator(&self, size: Bytes) -> Evaluator<'_> {
        Box::new(move |parts| self.mean(size, parts))
    }
    /// Mean and standard deviation of one candidate.
    fn predict(&self, size: Bytes, parts: &[HostShare]) -> Prediction;
    /// Expected bus bandwidth of one candidate, GB/s, exactly as [`BandwidthModel::means`] gives it.
    fn mean(&self, size: Bytes, parts: &[HostShare]) -> f64;
    /// Upper bound in GB/s over all candidates of at least `hosts` hosts and `gpus` GPUs whose weakest host and
    /// thinnest NIC side are so far the given ones. Searches use it to prune. None if the model has no such bound.
    fn upper_bound_hosts_or_more(
        &self,
        intra_gb_per_s: f64,
        nic_gb_per_s: f64,
        hosts: usize,
        gpus: usize,
    ) -> Option<f64>;
    /// Upper bound in GB/s over all candidates of exactly `hosts` hosts and `gpus` GPUs whose weakest host and thinnest
    /// NIC side are the given ones. Searches use it to request fewer means. None if the model has no such bound.
    fn upper_bound_exact_hosts(
        &self,
        intra_gb_per_s: f64,
        nic_gb_per_s: f64,
        hosts: usize,
        gpus: usize,
    ) -> Option<f64> {
        self.upper_bound_hosts_or_more(intra_gb_per_s, nic_gb_per_s, hosts, gpus)
    }
    /// The part that limits a candidate, according to the physics.
    fn limit(&self, size: Bytes, parts: &[HostShare]) -> Limit;
    /// Relative standard deviation of repeated measurements of the same allocation.
    fn repeat_noise(&self) -> f64;
    /// The collective that the model predicts.
    fn collective(&self) -> Collective {
        Collective::AllReduce
    }
    /// The physics that the model corrects; None: the caller computes it from the cluster.
    fn physics(&self) -> Option<&fabric::FabricTables> {
        None
    }
    /// The model's effect of this host on `ln(busbw)`, at full weight; 0 for models that only know host types. Orders
    /// hosts that are otherwise equal.
    fn host_effect(&self, _host: topology::HostId) -> f64 {
        0.0
    }
    /// The cluster with switches that readings show and its file lacks; None if there are none.
    fn with_found_switches(&self) -> Option<&Cluster> {
        None
    }
    /// Maximum number of hosts of any reading that the model learned from; None if the model does not report it.
    fn hosts_measured_max(&self) -> Option<usize> {
        None
    }
}

/// The intra tables of one size, ready for use.
#[derive(Clone, Debug)]
pub struct SizeTables {
    /// The message size.
    pub size: Bytes,
    /// The intra tables.
    pub intra: IntraTables,
    /// The same tables as host shares.
    pub parts: HostShareTable,
    /// Relative standard deviation of a single-host prediction.
    pub intra_sd: f64,
}

/// The learned correction of the bound.
#[derive(Clone, Debug)]
pub enum Correction {
    /// One offset for all multi-host allocations: `ln(busbw / bound)` and its standard deviation.
    Offset {
        /// The offset.
        ln_factor: f64,
        /// Standard deviation of single readings around the offset.
        sd: f64,
    },
    /// Gaussian processes.
    Gp(Box<Committee>),
    /// A model that predicts multi-host allocations itself, without the bound.
    Learned(Box<dyn LearnedModel>),
}

/// A fitted model of one cluster: intra tables for single hosts, bound and correction for several hosts.
#[derive(Clone, Debug)]
pub struct Model {
    pub(crate) cluster: Cluster,
    /// The rates that the readings show, and the cluster at these rates.
    pub(crate) rates: LearnedRates,
    pub(crate) site: RatedCluster,
    pub(crate) collective: Collective,
    /// Tables of the measured sizes, ascending.
    pub(crate) tables: Vec<SizeTables>,
    pub(crate) ladder: Ladder,
    pub(crate) names: Names,
    pub(crate) fabric: fabric::FabricTables,
    pub(crate) correction: Correction,
    pub(crate) repeat_noise: f64,
    /// NCCL's own decisions as the physics between hosts.
    pub(crate) nccl: Option<NcclNetwork>,
}

impl Model {
    /// The cluster that the model was fitted on.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
    /// The same model for the cluster as it is now. Hosts and host types are matched by name; their order in the file
    /// does not matter. A host with a new name gets the predictions of its type, a type with a new name gets those of
    /// the physics. O(hosts), plus the physics of the types if they changed.
    pub fn on(mut self, cluster: &Cluster) -> Model {
        if self.cluster.types != cluster.types {
            let constants = self.fabric.on(&self.cluster).constants().clone();
            self.fabric = fabric::Fabric::with_constants(cluster, constants).tables();
        }
        let (physics, collective) = (self.fabric.on(cluster), self.collective);
        for t in &mut self.tables {
            let analytic = |h, m| physics.intra_busbw(h, m, collective, t.size).gb_per_s();
            t.intra = t.intra.on(&self.cluster, cluster, &analytic);
        }
        self.names = self.names.on(cluster);
        self.cluster = cluster.clone();
        let rates = std::mem::take(&mut self.rates);
        self.at_rates(rates)
    }
    /// The same model after hosts got new names, by old name: it predicts for the new name what it learned of the old one.
    /// Names that the model does not have are ignored, so a repetition changes nothing. O(hosts).
    pub fn renamed(mut self, names: &BTreeMap<String, String>) -> Model {
        self.cluster.rename_hosts(names);
        self.names = Names::of(self.names.learned().clone().renamed(names), &self.cluster);
        let rates = std::mem::take(&mut self.rates).renamed(names);
        self.at_rates(rates)
    }
    /// The cluster at the learned rates.
    pub fn site(&self) -> &RatedCluster {
        &self.site
    }
    /// The physics, with the constants that were fitted.
    pub fn fabric(&self) -> &fabric::FabricTables {
        &self.fabric
    }
    /// Learned corrections of the cluster's rates.
    pub fn rates(&self) -> &LearnedRates {
        &self.rates
    }
    /// The same model without the slow parts that readings showed: predicts the site after their repair. O(hosts).
    pub fn without_slow_parts(&self) -> Model {
        self.clone().at_rates(self.rates.with_slow_parts(|_| false))
    }
    /// The same model with hosts and NICs repaired. Slow rails and switches stay, since no host causes them. O(hosts).
    pub fn with_healthy_hosts(&self) -> Model {
        self.clone().at_rates(self.rates.with_slow_parts(Part::is_shared))
    }
    /// The same model at other rates. O(hosts).
    pub fn at_rates(mut self, rates: LearnedRates) -> Model {
        self.site = rates.on(&self.cluster);
        self.rates = rates;
        for t in &mut self.tables {
            t.parts = HostShareTable::new(&self.site.cluster, &t.intra, &self.fabric);
        }
        self.ladder = Ladder::default();
        self
    }
    /// The collective that the model predicts.
    pub fn collective(&self) -> Collective {
        self.collective
    }
    /// The NCCL release whose decisions the model uses, if any.
    pub fn nccl_release(&self) -> Option<Version> {
        self.nccl.map(|n| n.release)
    }
    /// The same model for another NCCL release; unchanged if the model does not use NCCL's decisions. Intended for
    /// models without measurements, because a learned correction applies only to the release it was measured with.
    pub fn assuming_nccl(mut self, release: Version) -> Model {
        if let Some(n) = &mut self.nccl {
            n.release = release;
        }
        self
    }
    /// The sizes that the model was fitted on, ascending.
    pub fn sizes(&self) -> Vec<Bytes> {
        self.tables.iter().map(|t| t.size).collect()
    }
    /// The learned correction of the bound.
    pub fn correction(&self) -> &Correction {
        &self.correction
    }
    /// Mean and standard deviation of the bandwidth of an allocation.
    pub fn predict_allocation(&self, size: Bytes, allocation: &Allocation) -> Prediction {
        let table = self.share_table(size);
        let parts: Vec<HostShare> = allocation.parts().iter().map(|&(h, m)| table.part(h, m)).collect();
        self.predict(size, &parts)
    }

    /// The physics that the model corrects, for messages of `size`.
    pub fn bounds(&self, size: Bytes) -> Bounds<'_> {
        Bounds { site: &self.site, tables: &self.fabric, collective: self.collective, size, nccl: self.nccl.as_ref() }
    }

    /// The features of an allocation; the first [`Model::width`] are used. O(hosts).
    pub fn row(&self, parts: &[HostShare], size: Bytes, analytic: Analytic) -> Row {
        features(parts, &self.names, size, analytic.ln_physics_over_nics)
    }
    /// The hosts of a candidate as the Gaussian process numbers them, with their weights, sorted by number.
    pub(crate) fn weights_of(&self, parts: &[HostShare]) -> Vec<(u32, f64)> {
        let mut v: Vec<(u32, f64)> =
            host_weights(parts).map(|(h, w)| (self.names.number_of(h), w)).filter(|w| w.0 != NO_NUMBER).collect();
        v.sort_by_key(|w| w.0);
        v
    }

    pub(crate) fn reading_of(
        &self,
        parts: &[HostShare],
        row: &[f64],
        analytic: Analytic,
        busbw_gb_per_s: f64,
    ) -> CommitteeReading {
        let y = (busbw_gb_per_s / analytic.bound_gb_per_s).ln();
        let point = crate::gp::GpPoint::new(row.to_vec(), self.weights_of(parts), y);
        CommitteeReading { point, ln_nics_over_bound: analytic.ln_nics_over_bound }
    }

    /// The candidate with its types numbered as at the fit, for a learned model that identifies types by index.
    fn as_fitted(&self, parts: &[HostShare]) -> Vec<HostShare> {
        parts.iter().map(|p| HostShare { host_type: self.names.fit_type(p.host_type), ..*p }).collect()
    }

    /// Number of features of the processes.
    pub fn width(&self) -> usize {
        self.names.width()
    }

    /// Learns one more multi-host reading immediately: O(n²). `false` if the reading cannot be used (one host, a model
    /// with a fixed offset, degenerate values).
    pub fn update(&mut self, allocation: &Allocation, size: Bytes, busbw_gb_per_s: f64) -> bool {
        if allocation.host_count() < 2 || !(busbw_gb_per_s.is_finite() && busbw_gb_per_s > 0.0) {
            return false;
        }
        if let Correction::Learned(_) = self.correction {
            return self.learn(size, &[(allocation.clone(), busbw_gb_per_s)], 0);
        }
        let table = self.share_table(size);
        let parts: Vec<HostShare> = allocation.parts().iter().map(|&(h, m)| table.part(h, m)).collect();
        let analytic = self.bounds(size).of(&parts, &mut Memo::default());
        let row = self.row(&parts, size, analytic);
        let reading = self.reading_of(&parts, &row[..self.width()], analytic, busbw_gb_per_s);
        match &mut self.correction {
            Correction::Gp(gp) => gp.update(&reading),
            Correction::Offset { .. } | Correction::Learned(_) => false,
        }
    }

    /// Teaches a learned model new multi-host readings; it keeps the old ones ([`LearnedModel::learn`]). Returns
    /// `false` and learns nothing for other models and for unusable readings.
    pub fn learn(&mut self, size: Bytes, new: &[(Allocation, f64)], seed: u64) -> bool {
        let Correction::Learned(learned) = &mut self.correction else { return false };
        learned.learn(&nearest_measured(&self.tables, size).0.parts, size, new, seed)
    }
}

/// Hosts and weights of a candidate, in its order.
pub fn host_weights(parts: &[HostShare]) -> impl Iterator<Item = (HostId, f64)> {
    let thinnest = thinnest_gb_per_s(parts);
    parts.iter().map(move |p| (p.host, host_weight(p, thinnest)))
}

/// One batch of predictions. Repeated parts are computed once.
pub struct BatchEvaluator<'m> {
    model: &'m Model,
    bounds: Bounds<'m>,
    memo: Memo,
    /// Means by features: candidates on equal hosts have equal features.
    seen: HashMap<[u64; FEATURES_MAX], f64, FxBuildHasher>,
    scratch: Vec<f64>,
}

impl<'m> BatchEvaluator<'m> {
    /// An evaluator with empty caches.
    pub fn new(model: &'m Model, size: Bytes) -> Self {
        let bounds = model.bounds(size);
        BatchEvaluator { model, bounds, memo: Memo::default(), seen: HashMap::default(), scratch: Vec::new() }
    }

    fn mean(&mut self, parts: &[HostShare]) -> f64 {
        let analytic = self.analytic(parts);
        self.mean_above(parts, analytic)
    }

    /// The physics of a candidate.
    pub fn analytic(&mut self, parts: &[HostShare]) -> Analytic {
        self.bounds.of(parts, &mut self.memo)
    }

    /// The mean of a candidate, given its physics.
    pub fn mean_above(&mut self, parts: &[HostShare], analytic: Analytic) -> f64 {
        let b = analytic.bound_gb_per_s;
        if parts.len() < 2 {
            return b;
        }
        match &self.model.correction {
            Correction::Offset { ln_factor, .. } => b * ln_factor.exp(),
            Correction::Learned(l) => {
                let mut one = Candidates::new();
                one.push(&self.model.as_fitted(parts));
                let mut out = Vec::with_capacity(1);
                l.means(self.bounds.size, &one, &mut out);
                out[0]
            }
            Correction::Gp(gp) => {
                let width = self.model.width();
                let row = self.model.row(parts, self.bounds.size, analytic);
                let features = *self
                    .seen
                    .entry(row.map(f64::to_bits))
                    .or_insert_with(|| gp.feature_mean(&row, width, &mut self.scratch));
                let (mut weight, mut hosts) = (0.0, 0.0);
                for (h, w) in host_weights(parts) {
                    weight += w;
                    hosts += w * gp.host_effect(self.model.names.number_of(h));
                }
                b * (gp.ln_base_over_bound(&analytic) + (features + gp.host_share(weight) * hosts).min(gp.ceiling()))
                    .exp()
            }
        }
    }
}

impl BandwidthModel for Model {
    fn kind(&self) -> &'static str {
        match &self.correction {
            Correction::Offset { .. } if self.nccl.is_some() => "nccl",
            Correction::Offset { .. } => "bound",
            Correction::Gp(_) => "gp",
            Correction::Learned(l) => l.name(),
        }
    }

    fn share_table(&self, size: Bytes) -> &HostShareTable {
        match self.correction {
            Correction::Learned(_) => &self.measured_tables(size).parts,
            _ => &self.tables(size).parts,
        }
    }

    fn means(&self, size: Bytes, candidates: &Candidates, out: &mut Vec<f64>) {
        if let Correction::Learned(l) = &self.correction {
            if self.names.types_are_in_place() {
                l.means(size, candidates, out);
            } else {
                let mut fitted = Candidates::new();
                candidates.iter().for_each(|p| fitted.push(&self.as_fitted(p)));
                l.means(size, &fitted, out);
            }
            for (v, p) in out.iter_mut().zip(candidates.iter()) {
                match p {
                    [one] if one.count > 1 => *v = one.intra_gb_per_s,
                    _ => {}
                }
            }
            return;
        }
        out.clear();
        out.reserve(candidates.len());
        let mut batch = BatchEvaluator::new(self, size);
        out.extend(candidates.iter().map(|p| batch.mean(p)));
    }

    fn mean(&self, size: Bytes, parts: &[HostShare]) -> f64 {
        BatchEvaluator::new(self, size).mean(parts)
    }

    fn evaluator(&self, size: Bytes) -> Evaluator<'_> {
        let mut batch = BatchEvaluator::new(self, size);
        Box::new(move |parts| batch.mean(parts))
    }

    fn predict(&self, size: Bytes, parts: &[HostShare]) -> Prediction {
        let mut batch = BatchEvaluator::new(self, size);
        let analytic = batch.bounds.of(parts, &mut batch.memo);
        let mean = batch.mean_above(parts, analytic);
        let sd = if parts.len() < 2 {
            let intra = &self.tables(size).intra;
            let suspect = parts.first().is_some_and(|p| intra.suspects(p.host).contains(&p.mask));
            if suspect { SUSPECT_SD } else { self.tables(size).intra_sd }
        } else {
            let of_size = match &self.correction {
                Correction::Offset { sd, .. } => *sd,
                Correction::Learned(l) => l.deviation(size),
                Correction::Gp(gp) => {
                    gp.deviation(&self.row(parts, size, analytic)[..self.width()], &self.weights_of(parts), &analytic)
                }
            };
            of_size.hypot(self.size_sd(size))
        };
        Prediction { busbw_gb_per_s: mean, std_gb_per_s: mean * sd }
    }

    fn upper_bound_hosts_or_more(
        &self,
        intra_gb_per_s: f64,
        nic_gb_per_s: f64,
        hosts: usize,
        gpus: usize,
    ) -> Option<f64> {
        match self.correction {
            _ if hosts < 2 => Some(f64::INFINITY),
            Correction::Offset { ln_factor, .. } => {
                Some(intra_gb_per_s.min(network_at_most_gb_per_s(nic_gb_per_s, hosts, gpus)) * ln_factor.exp())
            }
            Correction::Gp(_) | Correction::Learned(_) => None,
        }
    }

    fn upper_bound_exact_hosts(
        &self,
        intra_gb_per_s: f64,
        nic_gb_per_s: f64,
        hosts: usize,
        gpus: usize,
    ) -> Option<f64> {
        match &self.correction {
            _ if hosts < 2 => Some(intra_gb_per_s),
            Correction::Offset { .. } => self.upper_bound_hosts_or_more(intra_gb_per_s, nic_gb_per_s, hosts, gpus),
            Correction::Gp(gp) => {
                let bound = intra_gb_per_s.min(network_at_most_gb_per_s(nic_gb_per_s, hosts, gpus));
                Some(bound * gp.ceiling().exp())
            }
            Correction::Learned(_) => None,
        }
    }

    fn limit(&self, size: Bytes, parts: &[HostShare]) -> Limit {
        self.bounds(size).limit(parts)
    }

    fn repeat_noise(&self) -> f64 {
        self.repeat_noise
    }

    fn collective(&self) -> Collective {
        self.collective
    }

    fn physics(&self) -> Option<&fabric::FabricTables> {
        Some(&self.fabric)
    }

    fn host_effect(&self, host: topology::HostId) -> f64 {
        match &self.correction {
            Correction::Offset { .. } | Correction::Learned(_) => 0.0,
            Correction::Gp(gp) => gp.host_effect(self.names.number_of(host)),
        }
    }

    fn with_found_switches(&self) -> Option<&Cluster> {
        (!self.rates.switches.is_empty() && has_one_switch(&self.cluster)).then_some(&self.site.cluster)
    }

    fn hosts_measured_max(&self) -> Option<usize> {
        match &self.correction {
            Correction::Gp(gp) => Some(gp.hosts_measured_max()),
            Correction::Offset { .. } | Correction::Learned(_) => None,
        }
    }
}

/// A model with the true bandwidth of every candidate: gives upper limits and tests searches.
pub struct Oracle<F> {
    /// The host shares that searches combine.
    pub table: HostShareTable,
    /// True bandwidth of a candidate, GB/s.
    pub truth: F,
}

impl<F: Fn(&[HostShare]) -> f64 + Send + Sync> BandwidthModel for Oracle<F> {
    fn kind(&self) -> &'static str {
        "truth"
    }
    fn share_table(&self, _: Bytes) -> &HostShareTable {
        &self.table
    }
    fn means(&self, _: Bytes, candidates: &Candidates, out: &mut Vec<f64>) {
        out.clear();
        out.extend(candidates.iter().map(&self.truth));
    }
    fn predict(&self, _: Bytes, parts: &[HostShare]) -> Prediction {
        Prediction { busbw_gb_per_s: (self.truth)(parts), std_gb_per_s: 0.0 }
    }
    fn mean(&self, _: Bytes, parts: &[HostShare]) -> f64 {
        (self.truth)(parts)
    }
    fn upper_bound_hosts_or_more(&self, _: f64, _: f64, _: usize, _: usize) -> Option<f64> {
        None
    }
    fn limit(&self, _: Bytes, parts: &[HostShare]) -> Limit {
        Limit::Intra { host: parts.first().map_or(topology::HostId(0), |p| p.host) }
    }
    fn repeat_noise(&self) -> f64 {
        0.0
    }
}
