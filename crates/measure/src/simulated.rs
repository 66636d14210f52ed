//! The simulated backend: an expected bandwidth with seeded irregularity and noise.
//!
//! Irregularity is a property of the simulated hardware: it is always the same for the same GPUs. Noise differs between
//! repetitions. Every reading depends only on the seed and the point, so order, batches and restarts do not change it.

use crate::backend::{Backend, BackendError, Point, Reading};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use store::{Source, digest::fnv64};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, Seconds};

/// Duration of one nccl-tests point with default counts, s; the published campaigns imply 2 to 6 s (`facts/placement-prototype.md`, pitfall 5).
pub const NOMINAL_SECONDS: f64 = 4.0;
/// What each rank adds, s: starting and connecting a process. 20 ms a rank is the slope that a review of campaigns used for `mpirun` and
/// `srun` (5 s at 50 ranks); a measured one takes its place when hardware is at hand.
pub const NOMINAL_SECONDS_PER_RANK: f64 = 0.02;

/// Expected duration of one run of this many ranks.
pub fn nominal_seconds(ranks: usize) -> Seconds {
    Seconds(NOMINAL_SECONDS + NOMINAL_SECONDS_PER_RANK * ranks as f64)
}

/// Irregularity and noise of the simulated cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Irregularity {
    /// Seed of the simulated hardware and its noise.
    pub seed: u64,
    /// Standard deviation of the log factor of every host, every GPU subset of a host, and every split over hosts.
    pub irregularity: f64,
    /// Standard deviation of the log factor of one reading.
    pub noise: f64,
    /// Probability that a reading is an outlier: 0.3 to 0.7 of the true value.
    pub outlier_rate: f64,
}

impl Default for Irregularity {
    fn default() -> Self {
        Irregularity { seed: 1, irregularity: 0.02, noise: 0.02, outlier_rate: 0.0 }
    }
}

/// The simulated backend; `F` gives the expected bandwidth of an allocation.
pub struct Simulated<'c, F> {
    cluster: &'c Cluster,
    expected: F,
    options: Irregularity,
}

/// The simulated backend with the physics of `cluster` as expectation. GPUs and links that the cluster file calls degraded
/// slow the links inside their host: the slowest pair decides, as on a ring that cannot avoid it.
pub fn on_fabric(
    cluster: &Cluster,
    options: Irregularity,
) -> Simulated<'_, impl Fn(&Allocation, Collective, Bytes) -> Bandwidth + '_> {
    let fabric = fabric::Fabric::new(cluster);
    Simulated::new(cluster, options, move |a: &Allocation, c, s| {
        let healthy = fabric.estimate(a, c, s).busbw;
        let inside = a.parts().iter().filter_map(|&(h, m)| {
            let health = health_inside(cluster, h, m);
            (health < 1.0).then(|| fabric.intra_busbw(h, m, c, s).gb_per_s() * health)
        });
        Bandwidth::from_gb_per_s(inside.fold(healthy.gb_per_s(), f64::min))
    })
}

/// The smallest health of the links between GPUs of a set, by the cluster file: 1 if all are healthy, and for one GPU.
fn health_inside(cluster: &Cluster, h: HostId, mask: GpuMask) -> f64 {
    let host = cluster.host(h);
    if host.gpu_health.is_empty() && host.link_health.is_empty() {
        return 1.0;
    }
    let pairs = mask.iter().flat_map(|a| mask.iter().filter(move |b| a < *b).map(move |b| (a, b)));
    pairs.map(|(a, b)| cluster.link_health(h, a, b)).fold(1.0, f64::min)
}

impl<'c, F: Fn(&Allocation, Collective, Bytes) -> Bandwidth> Simulated<'c, F> {
    /// The simulated backend with any expectation.
    pub fn new(cluster: &'c Cluster, options: Irregularity, expected: F) -> Self {
        Simulated { cluster, expected, options }
    }

    /// The true bandwidth of the simulated hardware, without noise.
    pub fn truth(&self, allocation: &Allocation, collective: Collective, size: Bytes) -> Bandwidth {
        let base = (self.expected)(allocation, collective, size).gb_per_s();
        let sd = self.options.irregularity;
        let host_factor = |name: &str| (sd * self.normal(&["host", name])).exp();
        let slowest = allocation
            .parts()
            .iter()
            .map(|(h, _)| host_factor(&self.cluster.host(*h).name))
            .fold(f64::INFINITY, f64::min);
        // Within a host every subset has its own factor; across hosts every split does.
        let class = match allocation.parts() {
            [(h, mask)] => format!("{} {mask}", self.cluster.host(*h).name),
            parts => {
                let split: Vec<String> =
                    parts.iter().map(|(h, m)| format!("{}:{}", self.cluster.host(*h).name, m.count())).collect();
                split.join(" ")
            }
        };
        Bandwidth::from_gb_per_s(base * slowest.min(f64::MAX) * (sd * self.normal(&["class", &class])).exp())
    }

    fn rng(&self, key: &[&str]) -> ChaCha8Rng {
        let seed = self.options.seed.to_string();
        ChaCha8Rng::seed_from_u64(fnv64(std::iter::once(seed.as_str()).chain(key.iter().copied())))
    }

    /// A standard normal number for `key` (Box-Muller; another method would change all simulated readings).
    fn normal(&self, key: &[&str]) -> f64 {
        let mut rng = self.rng(key);
        let (u, v): (f64, f64) = (rng.random(), rng.random());
        stats::random::box_muller(u, v)
    }
}

impl<F: Fn(&Allocation, Collective, Bytes) -> Bandwidth> Backend for Simulated<'_, F> {
    fn source(&self) -> Source {
        Source::Simulated
    }
    fn identity(&self) -> String {
        let o = &self.options;
        format!("simulated-{}-{}-{}-{}", o.seed, o.irregularity, o.noise, o.outlier_rate)
    }
    fn provenance(&self) -> String {
        let o = &self.options;
        format!(
            "simulated: seed {}, irregularity {}, noise {}, outliers {}",
            o.seed, o.irregularity, o.noise, o.outlier_rate
        )
    }
    fn width(&self) -> usize {
        usize::MAX
    }
    fn expected(&self, point: &Point) -> Seconds {
        nominal_seconds(point.allocation.gpu_count())
    }
    fn measure(&mut self, point: &Point) -> Result<Reading, BackendError> {
        let gpus = self.cluster.gpu_names(&point.allocation).join(" ");
        let (size, repetition) = (point.size.0.to_string(), point.repetition.to_string());
        let key = |what| [what, gpus.as_str(), point.collective.name(), size.as_str(), repetition.as_str()];
        let mut gb_per_s = self.truth(&point.allocation, point.collective, point.size).gb_per_s()
            * (self.options.noise * self.normal(&key("noise"))).exp();
        let mut rng = self.rng(&key("outlier"));
        if rng.random_bool(self.options.outlier_rate.clamp(0.0, 1.0)) {
            gb_per_s *= rng.random_range(0.3..0.7);
        }
        let mut reading = Reading::new(Bandwidth::from_gb_per_s(gb_per_s), self.expected(point));
        let factor = point.collective.bus_factor(point.allocation.gpu_count());
        if gb_per_s > 0.0 {
            reading.time = Some(Seconds(point.size.as_f64() * factor / (gb_per_s * 1e9)));
        }
        Ok(reading)
    }
}
