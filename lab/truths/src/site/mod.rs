//! Truths that resemble sites: 16 to 128 hosts behind switches, rails and defects, in another form than linkwise's
//! physics. Simulated.
//!
//! A [`Site`] has simulated hardware and a cluster file that describes the hardware as far as such a file can. Its
//! bandwidth follows from the loads that simulated rings and trees put on an explicit switch graph (`network`), times
//! an irregularity of every split. [`draw`] makes a site of one of the [`KINDS`] from a seed, in two states: when it is
//! measured, and when jobs are placed. [`search`] finds the best allocations by the truth.

mod draft;
mod kinds;
mod network;
mod search;

pub use kinds::{KINDS, Kind, SlowNic, draw, draw_slow_nics};
pub use search::{Found, search};

use crate::intra::{Flavour, Intra};
use crate::randomness::Keyed;
use crate::truth::{About, Irregularity, Parts, Truth};
use network::Network;
use std::collections::BTreeMap;
use std::sync::Arc;
use topology::{Allocation, GpuMask, HostId};

/// Standard deviation of the log factor of a split over switches. With the factor of the exact hosts the total is 2 %.
const SPLIT_IRREGULARITY: f64 = 0.018;
const HOSTS_IRREGULARITY: f64 = 0.0087;
/// Standard deviation of one reading inside a host.
const NOISE_INSIDE: f64 = 0.01;
/// Share of the bandwidth that an interrupted reading shows.
const OUTLIER: std::ops::Range<f64> = 0.3..0.8;

/// A site at one time.
#[derive(Clone)]
pub struct Site {
    about: About,
    intra: Arc<Intra>,
    network: Network,
    /// For every host of `network`, the index of the host that `intra` and the irregularity are drawn for.
    drawn: Vec<u32>,
    seed: u64,
    noise: f64,
    outliers: f64,
    form: Arc<Option<Form>>,
    /// By level from the hosts up: the switch above every host.
    switches: Vec<Vec<u32>>,
}

/// What is known of a site without a reading: the form of its truth, and the distributions of what is drawn.
struct Form {
    /// The network with the mean of all that is drawn.
    typical: Network,
    /// Deviations of the logarithms of a host's rate, and of the share that flows keep at a leaf and at a pod.
    host_sd: f64,
    leaf_sd: f64,
    pod_sd: f64,
}

/// A site when it is measured and when jobs are placed.
pub struct Drawn {
    /// The site on which readings are taken.
    pub measured: Site,
    /// The site on which choices are judged. It equals `measured`, unless hardware or hosts of the kind change.
    pub placed: Site,
    /// True if other jobs run on the GPUs that are not free.
    pub contended: bool,
}

impl Site {
    /// By level from the hosts up: the number of the switch above every host. An operator knows these numbers, also if
    /// the cluster file cannot express them. Empty if one switch connects all hosts.
    pub fn switches(&self) -> &[Vec<u32>] {
        &self.switches
    }

    /// Number of unknown quantities of [`Site::supposed`]; 0 on kinds with defects or changes.
    pub fn unknowns(&self) -> usize {
        self.form.as_ref().as_ref().map_or(0, |f| f.typical.nodes.len() + f.typical.leaves.len() + f.typical.pods.len())
    }

    /// The site as known by the form of its truth and by these deviations of hosts, leaves and pods from their means, in
    /// standard deviations. Each has mean 0 and deviation 1. Independent of the hidden facts. Panics if their number is
    /// not [`Site::unknowns`].
    pub fn supposed(&self, deviations: &[f64]) -> Site {
        assert!(deviations.len() == self.unknowns() && !deviations.is_empty(), "a number for every unknown");
        let mut site = self.clone();
        let Some(form) = self.form.as_ref() else { return site };
        site.network = form.typical.clone();
        let mut z = deviations.iter();
        let mut factor = |sd: f64| z.next().map_or(1.0, |z| (sd * z).exp());
        for node in &mut site.network.nodes {
            let f = factor(form.host_sd);
            node.ports.iter_mut().for_each(|p| p.gb_per_s *= f);
        }
        site.network.leaves.iter_mut().for_each(|s| s.keeps = (s.keeps * factor(form.leaf_sd)).min(1.0));
        site.network.pods.iter_mut().for_each(|s| s.keeps = (s.keeps * factor(form.pod_sd)).min(1.0));
        site
    }

    /// The site with the links inside its hosts as readings of single hosts show them, each with its GPUs and GB/s: the
    /// table of the type, moved where it was read. Independent of the hidden tables.
    ///
    /// # Errors
    /// The tables of the cluster are too large.
    pub fn inside_as_read(&self, readings: &[(Allocation, f64)]) -> Result<Site, String> {
        let cluster = &self.about.cluster;
        let typical = Intra::new(cluster, Flavour::AllReduce, 0, 0.0)?;
        let mut of: BTreeMap<(HostId, GpuMask), Vec<f64>> = BTreeMap::new();
        for (a, v) in readings {
            if let [(h, m)] = *a.parts() {
                let told = Network::busbw_inside((h, m), &typical, self.about.size.as_f64());
                of.entry((h, m)).or_default().push((v / told).ln());
            }
        }
        let noise2 = self.noise(1).powi(2);
        let each = of.into_iter().map(|((h, m), ln)| {
            let n = ln.len() as f64;
            (h, m, (ln.iter().sum::<f64>() / n).exp(), noise2 / n)
        });
        let intra = Arc::new(typical.with_readings(cluster, draft::INSIDE, each));
        Ok(Site { intra, ..self.clone() })
    }

    /// The same site with slow NICs.
    pub fn with_slow(&self, slow: &[SlowNic]) -> Site {
        let mut site = self.clone();
        for s in slow {
            site.network.nodes[s.host.index()].ports[usize::from(s.nic)].gb_per_s *= s.left;
        }
        site
    }

    /// The same site with running jobs on these GPUs.
    pub fn among(&self, jobs: &[Allocation]) -> Site {
        let of = |a: &Allocation| self.smooth_gb_per_s(a).unwrap_or(0.0);
        let jobs: Vec<(Parts, f64)> = jobs.iter().map(|a| (a.parts(), of(a))).collect();
        Site { network: self.network.among(&jobs), ..self.clone() }
    }

    /// The reading of a benchmark at the given repetition: the bandwidth with noise, and rarely an interruption.
    pub fn reading(&self, allocation: &Allocation, repetition: u64) -> Option<f64> {
        let v = self.busbw_gb_per_s(allocation)?;
        let key = Keyed::new(self.seed, 0x51_7e5).with(repetition).parts(allocation.parts());
        let v = v * (self.noise(allocation.host_count()) * key.normal()).exp();
        // A reading inside one host has no interruption, because no other job uses its links.
        let interrupted = allocation.host_count() > 1 && key.with(77).uniform() < self.outliers;
        Some(if interrupted { v * (OUTLIER.start + (OUTLIER.end - OUTLIER.start) * key.with(78).uniform()) } else { v })
    }

    /// Probability that a reading over hosts is interrupted.
    pub fn outliers(&self) -> f64 {
        self.outliers
    }

    fn smooth(&self, parts: Parts) -> f64 {
        let size = self.about.size.as_f64();
        match parts {
            [] => 0.0,
            [(_, m)] if m.count() < 2 => 0.0,
            [part] => Network::busbw_inside(*part, &self.intra, size),
            _ => self.network.busbw(parts, &self.intra, size),
        }
    }

    /// The factor of a split: one for the counts below every switch, which does not depend on the hosts, and a smaller
    /// one for the exact hosts.
    fn irregularity(&self, parts: Parts) -> f64 {
        let hash = |k: Keyed| k.uniform().to_bits();
        let mut leaves: Vec<(u16, u64)> = Vec::with_capacity(parts.len());
        let mut hosts = Keyed::new(self.seed, 0x5917);
        for (h, m) in parts {
            let node = &self.network.nodes[h.index()];
            let leaf = node.ports.first().map_or(0, |p| p.leaf);
            let own = hash(Keyed::new(self.seed, 0x5918).with(node.make).with(m.count() as u64));
            match leaves.iter_mut().find(|l| l.0 == leaf) {
                Some(l) => l.1 = l.1.wrapping_add(own),
                None => leaves.push((leaf, own)),
            }
            hosts = hosts.with(u64::from(self.drawn[h.index()]) << 32 | m.count() as u64);
        }
        let split = leaves.iter().fold(0u64, |s, l| s.wrapping_add(hash(Keyed::new(l.1, 0x5919))));
        let split = Keyed::new(split, self.seed);
        (SPLIT_IRREGULARITY * split.normal() + HOSTS_IRREGULARITY * hosts.normal()).exp()
    }
}

impl Truth for Site {
    fn about(&self) -> &About {
        &self.about
    }

    fn of_parts(&self, parts: Parts, irregularity: Irregularity) -> Option<f64> {
        let smooth = match parts {
            [] => return None,
            _ => self.smooth(parts),
        };
        // Models know the irregularity inside a host, because every subset is measured.
        let with = parts.len() > 1 && irregularity == Irregularity::With;
        Some(if with { smooth * self.irregularity(parts) } else { smooth })
    }

    fn noise(&self, hosts: usize) -> f64 {
        if hosts < 2 { self.noise.min(NOISE_INSIDE) } else { self.noise }
    }

    fn measured(&self, allocation: &Allocation, repetition_seed: u64) -> Option<f64> {
        self.reading(allocation, repetition_seed)
    }
}
