//! Classes of readings whose expectations are off by the same factor, and how their offsets are related.

use crate::evidence::Evidence;
use linalg::{LowerTriangular, dot};
use topology::{Allocation, Bytes, Cluster, GpuMask, HostId};

/// Prior of the offset of a class from its expectation: the mean, and the standard deviations of the part that all
/// classes share, of the part that similar classes share, and of the rest. Similar classes differ in the numbers of
/// hosts and of GPUs per host; the correlation of the second part falls with the logarithms of both.
pub(super) const OFFSET_MEAN: f64 = -0.08;
pub(super) const OFFSET_SD: f64 = 0.12;
const ALIKE_SD: f64 = 0.07;
const ALIKE_LN: f64 = 2.0;
const CLASS_SD: f64 = 0.01;
/// Minimum ratio of the bandwidth inside hosts to the rate of the NICs for an even expectation.
pub(crate) const INSIDE_MIN: f64 = 1.4;

/// The expected bandwidth of a healthy allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expectation {
    /// Logarithm of the bandwidth, GB/s.
    pub ln_gb_per_s: f64,
    /// What the physics predicts less than the rate, 0 or below (of the logarithm): mostly latency.
    pub latency: f64,
    /// True for the rate of the NICs of one host, where all hosts have equally many GPUs with a NIC each and the links
    /// inside hosts are much faster. Its shortfall changes little with the numbers of hosts and GPUs. Else the physics.
    pub even: bool,
}

impl Expectation {
    /// The expectation of an allocation over hosts, given that of the physics and the bandwidth inside its hosts.
    pub(crate) fn of(cluster: &Cluster, a: &Allocation, ln_physics: f64, inside_gb_per_s: f64) -> Expectation {
        let rate = |&(h, mask): &(HostId, GpuMask)| -> f64 {
            let nics = cluster.type_of(h).nics_touched(mask);
            (0..32).filter(|i| nics >> i & 1 == 1).map(|i| cluster.nic_rate(h, i).gb_per_s()).sum()
        };
        let gpus = a.parts()[0].1.count();
        let even = a.host_count() > 2
            && a.parts()
                .iter()
                .all(|p| p.1.count() == gpus && cluster.type_of(p.0).nics_touched(p.1).count_ones() as usize == gpus);
        let rate = a.parts().iter().map(rate).fold(f64::INFINITY, f64::min);
        if even && rate > 0.0 && (gpus == 1 || inside_gb_per_s >= INSIDE_MIN * rate) {
            Expectation { ln_gb_per_s: rate.ln(), latency: (ln_physics - rate.ln()).min(0.0), even }
        } else {
            Expectation { ln_gb_per_s: ln_physics, latency: 0.0, even: false }
        }
    }
}

/// Readings whose expectations are off by the same factor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Class {
    even: bool,
    types: Vec<usize>,
    size: Bytes,
    /// Twice the binary logarithm of the number of hosts, rounded; up to 3 hosts if the class is not even.
    hosts: u32,
    /// GPUs per host.
    gpus: usize,
}

impl Class {
    pub(super) fn of(cluster: &Cluster, e: &Evidence, even: bool) -> Class {
        Class::of_allocation(cluster, &e.allocation, e.size, even)
    }

    /// The class of a reading of an allocation. `even`: see [`Expectation::even`].
    pub(crate) fn of_allocation(cluster: &Cluster, a: &Allocation, size: Bytes, even: bool) -> Class {
        let parts = a.parts();
        let mut types: Vec<usize> = parts.iter().map(|p| cluster.host(p.0).host_type).collect();
        types.sort_unstable();
        types.dedup();
        let n = if even { parts.len() } else { parts.len().min(3) };
        let hosts = (2.0 * (n as f64).log2()).round() as u32;
        let gpus = a.gpu_count() / parts.len();
        Class { even, types, size, hosts, gpus: if even { gpus } else { gpus.min(4) } }
    }

    pub(super) fn covariance(&self, other: &Class) -> f64 {
        let own = if self == other { CLASS_SD.powi(2) } else { 0.0 };
        let alike = if self == other {
            1.0
        } else if self.even && other.even && self.types == other.types && self.size == other.size {
            let hosts = 0.5 * std::f64::consts::LN_2 * f64::from(self.hosts.abs_diff(other.hosts));
            let gpus = (self.gpus as f64 / other.gpus as f64).ln().abs();
            (-(hosts + gpus) / ALIKE_LN).exp()
        } else {
            0.0
        };
        OFFSET_SD.powi(2) + ALIKE_SD.powi(2) * alike + own
    }
}

/// What readings tell about the offsets of their classes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offsets {
    pub classes: Vec<Class>,
    /// See [`precision`].
    pub precision: Vec<Vec<f64>>,
    /// By draw and class.
    pub draws: Vec<Vec<f64>>,
}

impl Offsets {
    /// Standard deviation of the offset of a class, measured or not. O(draws x classes + classes²).
    pub fn sd(&self, class: &Class) -> f64 {
        let with: Vec<f64> = self.classes.iter().map(|c| class.covariance(c)).collect();
        let weights: Vec<f64> = self.precision.iter().map(|row| dot(row, &with)).collect();
        let unknown = (class.covariance(class) - dot(&weights, &with)).max(0.0);
        let expected: Vec<f64> = self.draws.iter().map(|offsets| dot(offsets, &weights)).collect();
        let mean = stats::mean(&expected);
        let known = expected.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / expected.len().max(1) as f64;
        (unknown + known).sqrt()
    }
}

/// The inverse of the covariance of all classes' offsets. O(classes³).
pub(super) fn precision(classes: &[Class]) -> Vec<Vec<f64>> {
    let n = classes.len();
    let mut covariance = LowerTriangular::zeros(n);
    for (i, a) in classes.iter().enumerate() {
        for (j, b) in classes[..=i].iter().enumerate() {
            covariance.row_mut(i)[j] = a.covariance(b);
        }
    }
    // Each class has a part of its own, so the matrix is positive definite; rounding cannot change that.
    let root = covariance.cholesky().expect("a covariance with a part of each class's own");
    (0..n)
        .map(|i| {
            let mut column = vec![0.0; n];
            column[i] = 1.0;
            root.solve(&mut column);
            column
        })
        .collect()
}
