//! A simulated site: many equal hosts, jobs over 2 to 64 hosts, a slow host and a slow NIC.
#![allow(dead_code)] // each user needs a part

use diagnose::Component;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, Tier, catalog};

pub const SIZE: Bytes = Bytes(256 << 20);
pub const OP: Collective = Collective::AllReduce;
/// When the first reading was taken.
pub const START_UNIX_S: f64 = 1.75e9;
/// Time between two readings.
pub const STEP_S: f64 = 60.0;

/// Hosts, and the defects of some.
pub struct Fleet {
    pub cluster: Cluster,
    /// Components, the share of their rate that is left, and the number of the reading from which on.
    pub defects: Vec<(Component, f64, usize)>,
    /// By host: what it differs by from its type.
    hosts: Vec<f64>,
    physics: fabric::FabricTables,
    rng: ChaCha8Rng,
    /// Most hosts of one job.
    pub job_hosts_max: usize,
}

pub fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

impl Fleet {
    /// `hosts` of eight H100s; below leaf switches of 32 hosts, oversubscribed 2 to 1, if `leaves`.
    pub fn new(hosts: usize, leaves: bool, seed: u64) -> Fleet {
        let mut cluster = catalog::cluster(&format!("{hosts}xhgx-h100")).expect("built in");
        if leaves {
            cluster.network.tiers = vec![Tier::regular("leaf", 32, 2.0)];
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let spread = cluster.host_ids().map(|_| (0.01 * normal(&mut rng)).exp()).collect();
        let physics = fabric::Fabric::new(&cluster).tables();
        Fleet { cluster, defects: Vec::new(), hosts: spread, physics, rng, job_hosts_max: 64 }
    }

    /// A job: neighbouring hosts, whole ones or half of every one.
    pub fn job(&mut self) -> Allocation {
        let n = self.cluster.hosts.len();
        let most = self.job_hosts_max.min(n);
        let hosts = (2.0 * (most as f64 / 2.0).powf(self.rng.random::<f64>())).round() as usize;
        let first = self.rng.random_range(0..=n - hosts.min(n));
        let mask = GpuMask([0xff, 0xff, 0xff, 0x0f, 0xf0][self.rng.random_range(0..5)]);
        Allocation::new((first..first + hosts).map(|h| (HostId(h as u32), mask)))
    }

    /// What an allocation gets at reading `number`, 3 % noise included.
    pub fn measure(&mut self, allocation: Allocation, number: usize) -> Measurement {
        let active: Vec<(Component, f64)> = self.defects.iter().filter(|d| number >= d.2).map(|d| (d.0, d.1)).collect();
        let mut factor = 1.0f64;
        for &(c, f) in &active {
            match c {
                Component::Host(h) if !allocation.mask(h).is_empty() => factor *= f,
                Component::Nic(h, i) => {
                    let nics = self.cluster.type_of(h).nics.len();
                    let health = &mut self.cluster.hosts[h.index()].nic_health;
                    health.resize(nics, 1.0);
                    health[usize::from(i)] = f;
                }
                _ => {}
            }
        }
        let busbw = self.physics.on(&self.cluster).estimate(&allocation, OP, SIZE).busbw.gb_per_s();
        for &(c, _) in &active {
            self.cluster.hosts[c.host().index()].nic_health.clear();
        }
        let host = allocation.parts().iter().map(|p| self.hosts[p.0.index()]).fold(f64::INFINITY, f64::min);
        let v = busbw * factor * host * (0.03 * normal(&mut self.rng)).exp();
        let mut m = Measurement::new(allocation, OP, SIZE, Bandwidth::from_gb_per_s(v), Source::Simulated);
        m.taken_at_unix_s = Some(START_UNIX_S + STEP_S * number as f64);
        m
    }

    /// The readings of jobs `range`.
    pub fn readings(&mut self, range: std::ops::Range<usize>) -> Vec<Measurement> {
        range
            .map(|i| {
                let job = self.job();
                self.measure(job, i)
            })
            .collect()
    }
}
