//! The model with which adaptive designs choose the next measurements.

use measure::Uncertainty;
use predict::{FitOptions, Kind, Model, fit};
use store::Measurement;
use topology::{Allocation, Cluster};

/// Gaussian processes, fitted again after every round of samples.
pub struct UncertaintySampler<'a> {
    cluster: &'a Cluster,
    /// Known readings in addition to those of the campaign: intra tables.
    known: &'a [Measurement],
    constants: fabric::Constants,
    model: Option<Model>,
}

impl<'a> UncertaintySampler<'a> {
    /// A model that has only the readings `known`.
    pub fn new(cluster: &'a Cluster, known: &'a [Measurement], constants: fabric::Constants) -> Self {
        UncertaintySampler { cluster, known, constants, model: None }
    }
}

impl Uncertainty for UncertaintySampler<'_> {
    fn refit(&mut self, measured: &[Measurement]) -> Result<(), String> {
        let all: Vec<Measurement> = self.known.iter().chain(measured).cloned().collect();
        let options = FitOptions::of(Kind::Gp).constants(self.constants.clone());
        let fitted = fit(self.cluster, &all, &options).map_err(|e| e.to_string())?;
        self.model = Some(fitted.0);
        Ok(())
    }

    /// Relative standard deviations; for small values they equal those of the logarithm.
    fn std(&self, allocations: &[Allocation]) -> Vec<f64> {
        let Some(m) = &self.model else { return vec![1.0; allocations.len()] };
        let Some(size) = m.sizes().last().copied() else { return vec![1.0; allocations.len()] };
        let relative = |a: &Allocation| {
            let p = m.predict_allocation(size, a);
            p.std_gb_per_s / p.busbw_gb_per_s.max(1e-9)
        };
        allocations.iter().map(relative).collect()
    }
}
