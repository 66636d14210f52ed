//! Requests to an occupied site.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use topology::{Allocation, Cluster, GpuMask, HostId};

/// Shares of the GPUs that other jobs hold, used in turn.
const HELD: [f64; 4] = [0.0, 0.3, 0.5, 0.7];
/// Usual sizes of requests. Every second request has one of them, the others have random sizes.
const USUAL: [usize; 11] = [2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256];
/// Probability that a held host is held entirely; the second value applies if running jobs matter.
const WHOLE: f64 = 0.65;
const WHOLE_CONTENDED: f64 = 0.2;
/// Maximum number of hosts of a running job.
const JOB_HOSTS_MAX: usize = 3;

/// One request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// GPUs.
    pub gpus: usize,
    /// The GPUs to choose from.
    pub free: Allocation,
    /// Jobs on the other GPUs; empty if running jobs do not matter.
    pub jobs: Vec<Allocation>,
}

/// Makes `n` requests for 2 GPUs to a third of the site; other jobs hold 0, 30, 50 and 70 % of the site in turn. A
/// function of its arguments.
pub fn requests(cluster: &Cluster, n: usize, contended: bool, seed: u64) -> Vec<Ask> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xa5c5);
    let total = cluster.gpu_count();
    let mut out = Vec::with_capacity(n);
    while out.len() < n {
        let share = HELD[out.len() % HELD.len()];
        let share = if contended { share.max(0.4) } else { share };
        let mut free = cluster.usable().parts().to_vec();
        let mut held = Vec::new();
        let mut order: Vec<usize> = (0..free.len()).collect();
        let mut left = (share * total as f64) as usize;
        for i in 0..order.len() {
            let j = rng.random_range(i..order.len());
            order.swap(i, j);
            if left == 0 {
                break;
            }
            let (host, all) = free[order[i]];
            let whole = all.count() == 1 || rng.random_bool(if contended { WHOLE_CONTENDED } else { WHOLE });
            let count = if whole { all.count() } else { rng.random_range(1..all.count()) }.min(left);
            // The lowest GPUs with 60 % probability, because schedulers allocate in order.
            let in_order = rng.random_bool(0.6);
            let mask =
                if in_order { GpuMask::from_indices(all.iter().take(count)) } else { some(all, count, &mut rng) };
            free[order[i]].1 = all.minus(mask);
            held.push((host, mask));
            left -= count;
        }
        let free = Allocation::new(free);
        let most = (total / 3).min(free.gpu_count());
        let gpus = if rng.random_bool(0.5) {
            let usual: Vec<usize> = USUAL.into_iter().filter(|k| *k <= most).collect();
            if usual.is_empty() { 0 } else { usual[rng.random_range(0..usual.len())] }
        } else {
            // Uniform in the logarithm.
            (2.0 * (most as f64 / 2.0).powf(rng.random_range(0.0..1.0))).round() as usize
        };
        if gpus >= 2 {
            let jobs = if contended { jobs(held, &mut rng) } else { Vec::new() };
            out.push(Ask { gpus, free, jobs });
        }
    }
    out
}

/// Draws `count` GPUs of `all` uniformly.
fn some(all: GpuMask, count: usize, rng: &mut ChaCha8Rng) -> GpuMask {
    let mut gpus: Vec<usize> = all.iter().collect();
    for i in 0..count {
        let j = rng.random_range(i..gpus.len());
        gpus.swap(i, j);
    }
    GpuMask::from_indices(gpus.into_iter().take(count))
}

/// Divides the held GPUs into jobs of one to three hosts.
fn jobs(held: Vec<(HostId, GpuMask)>, rng: &mut ChaCha8Rng) -> Vec<Allocation> {
    let (mut out, mut rest) = (Vec::new(), &held[..]);
    while !rest.is_empty() {
        let (job, others) = rest.split_at(rng.random_range(1..=JOB_HOSTS_MAX).min(rest.len()));
        out.push(Allocation::new(job.iter().copied()));
        rest = others;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_fit_the_free_gpus_and_jobs_hold_the_others() {
        let c = topology::catalog::cluster("16xhgx-h100").unwrap();
        for contended in [false, true] {
            let asks = requests(&c, 40, contended, 3);
            assert_eq!(asks.len(), 40);
            assert!(asks.iter().any(|a| a.free.gpu_count() < 50) && asks.iter().any(|a| a.gpus > 20));
            for a in asks {
                assert!((2..=128 / 3).contains(&a.gpus) && a.gpus <= a.free.gpu_count());
                let held: usize = a.jobs.iter().map(Allocation::gpu_count).sum();
                assert_eq!(held, if contended { 128 - a.free.gpu_count() } else { 0 });
            }
        }
    }
}
