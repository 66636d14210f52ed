//! The ground truths that judge decisions. All of them implement [`Truth`]: a measured cluster ([`measured`]), clusters
//! composed of measured tables by the papers' rule ([`composed`]), the truth of BandPilot's public code
//! ([`public_code`]), simulated truths of other forms (crate `truths`), linkwise's own physics ([`simulated_fabric`]),
//! and the hardware that `measure` simulates ([`simulated_hardware`]). [`tables`] reads the published tables for all of
//! them.

pub mod composed;
pub mod measured;
mod min_rule;
pub mod outliers;
pub mod public_code;
pub mod simulated_fabric;
pub mod simulated_hardware;
pub mod switch;
pub mod tables;
#[cfg(test)]
mod tests;

pub use composed::Rule;
pub use measured::MeasuredCluster;
pub use outliers::Outliers;
pub use public_code::PublicCode;
pub use simulated_hardware::SimulatedHardware;
pub use switch::Switch;

use console::Failure;
use std::path::Path;
use topology::Cluster;
use truths::Truth;

/// Options of a ground truth.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of simulated hardware and of the random switch.
    pub seed: u64,
    /// Standard deviation of the log factor of every count vector, simulated truths only.
    pub irregularity: f64,
    /// Treatment of outliers in measured tables.
    pub outliers: Outliers,
    /// The network of a composed cluster; `None`: a fourth of the measured H100 table (BandPilot).
    pub switch: Option<Switch>,
    pub rule: Rule,
}

impl Default for Options {
    fn default() -> Self {
        Options { seed: 1, irregularity: 0.02, outliers: Outliers::Keep, switch: None, rule: Rule::Paper }
    }
}

/// The truths that `spec` names for a cluster: a folder of published tables (one truth per size; for clusters that were
/// not measured as a whole, one composed truth), or a simulated truth of [`truths::NAMES`].
pub fn load(spec: &str, cluster: &Cluster, options: &Options) -> Result<Vec<Box<dyn Truth>>, Failure> {
    if options.switch.is_some() && (names().iter().any(|n| n.0 == spec)) {
        return Err(Failure::input(format!("a switch belongs to composed clusters; `{spec}` has its own network")));
    }
    if truths::NAMES.iter().any(|n| n.0 == spec) {
        let truth = truths::by_name(spec, cluster, options.seed, options.irregularity).map_err(Failure::input)?;
        return Ok(vec![truth]);
    }
    if spec == simulated_fabric::NAME {
        let truth = simulated_fabric::SimulatedFabric::new(cluster, options.seed, options.irregularity)
            .map_err(Failure::input)?;
        return Ok(vec![Box::new(truth)]);
    }
    let dir = Path::new(spec);
    if !dir.is_dir() {
        let names: Vec<&str> = names().iter().map(|n| n.0).collect();
        return Err(Failure::input(format!(
            "--truth {spec}: neither a folder of measured tables nor a simulated truth ({})",
            names.join(", ")
        )));
    }
    if options.switch.is_none() && measured::measured_as_a_whole(cluster) {
        return Ok(boxed(measured::load(dir, cluster, options.outliers)?));
    }
    Ok(vec![Box::new(composed::load(dir, cluster, options)?)])
}

/// Names and descriptions of the simulated truths that [`load`] knows.
pub fn names() -> Vec<(&'static str, &'static str)> {
    let own = (simulated_fabric::NAME, "linkwise's own physics with irregularity; all-reduce");
    truths::NAMES.into_iter().chain([own]).collect()
}

fn boxed<T: Truth + 'static>(all: Vec<T>) -> Vec<Box<dyn Truth>> {
    all.into_iter().map(|t| Box::new(t) as Box<dyn Truth>).collect()
}
