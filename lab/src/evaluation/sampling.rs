//! Readings of a truth, for models to learn from.

use engine::UncertaintySampler;
use measure::design::{Candidates, DesignKind, Uncertainty, design};
use std::collections::HashSet;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective};
use truths::Truth;

/// A table or a truth as the source of readings.
pub struct Readings<'a> {
    pub cluster: &'a Cluster,
    pub size: Bytes,
    pub collective: Collective,
    /// True if one row holds for all allocations with its counts, on any hosts and GPUs. A second reading then adds no
    /// information.
    pub by_counts: bool,
    /// Reads a bus bandwidth, GB/s; `None` if there is no row.
    pub read: &'a dyn Fn(&Allocation) -> Option<f64>,
}

impl Readings<'_> {
    fn row(&self, a: Allocation, v: f64) -> Measurement {
        Measurement::new(a, self.collective, self.size, Bandwidth::from_gb_per_s(v), Source::Published)
    }

    /// Every subset of two or more GPUs of every host.
    pub fn intra(&self) -> Vec<Measurement> {
        let mut out = Vec::new();
        for h in self.cluster.host_ids() {
            for m in self.cluster.type_of(h).all_gpus().subsets().filter(|m| m.count() > 1) {
                let a = Allocation::new([(h, m)]);
                if let Some(v) = (self.read)(&a) {
                    out.push(self.row(a, v));
                }
            }
        }
        out
    }

    /// The rows of a list of allocations; allocations without a row are skipped.
    pub fn rows(&self, allocations: &[Allocation]) -> Vec<Measurement> {
        let of = |a: &Allocation| Some(self.row(a.clone(), (self.read)(a)?));
        allocations.iter().filter_map(of).collect()
    }

    /// `n` multi-host readings by design; fewer if the truth has fewer rows. Allocations without a row are skipped.
    pub fn multi_host(
        &self,
        n: usize,
        kind: DesignKind,
        seed: u64,
        intra: &[Measurement],
        constants: &fabric::Constants,
    ) -> Vec<Measurement> {
        let mut seen: HashSet<Row> = HashSet::new();
        let mut read = |list: Vec<Allocation>, n: usize| -> Vec<Measurement> {
            let new = list.into_iter().filter_map(|a| {
                let v = (self.read)(&a)?;
                seen.insert(self.row_of(&a)).then(|| self.row(a, v))
            });
            new.take(n).collect()
        };
        let idle = self.cluster.usable();
        if kind != DesignKind::Adaptive {
            return read(design(self.cluster, &idle, n * 4 + 200, kind, seed), n);
        }
        let mut learning = UncertaintySampler::new(self.cluster, intra, constants.clone());
        let first = (n * 2 / 5).max(10).min(n);
        let mut out = read(design(self.cluster, &idle, n * 2 + 100, DesignKind::Stratified, seed), first);
        for round in 1..=60 {
            if out.len() >= n || learning.refit(&out).is_err() {
                break;
            }
            let taken: Vec<Allocation> = out.iter().map(|m| m.allocation.clone()).collect();
            let next =
                Candidates { cluster: self.cluster, idle: &idle, seed: seed + round, scale: measure::Scale::SMALL }
                    .most_uncertain(60, &taken, &learning);
            let want = (n - out.len()).min(10);
            out.extend(read(next, want));
        }
        out
    }

    fn row_of(&self, a: &Allocation) -> Row {
        if self.by_counts {
            let mut counts = a.counts();
            counts.sort_unstable();
            Row::Counts(counts)
        } else {
            Row::Gpus(a.clone())
        }
    }
}

#[derive(PartialEq, Eq, Hash)]
enum Row {
    Counts(Vec<usize>),
    Gpus(Allocation),
}

/// True if one row of this truth holds for all allocations with its counts.
pub fn by_counts(truth: &dyn Truth) -> bool {
    !truth.simulated() && truth.cluster().types.len() == 1
}

/// Runs `f` on the measurable rows of a truth. Simulated truths add measurement noise.
pub fn readings<T>(truth: &dyn Truth, seed: u64, f: impl FnOnce(&Readings) -> T) -> T {
    let read = |a: &Allocation| truth.measured(a, seed);
    f(&Readings {
        cluster: truth.cluster(),
        size: truth.size(),
        collective: truth.collective(),
        by_counts: by_counts(truth),
        read: &read,
    })
}
