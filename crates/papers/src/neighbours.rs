//! A GPU set that a search changes one step at a time. Every step is judged in one batch.

use crate::judge::argmax;
use place::Objective;
use predict::{Candidates, HostShare};
use topology::{Allocation, GpuMask};

/// The current set S, and buffers that its steps share.
pub(crate) struct Current<'o, 'a> {
    objective: &'o Objective<'a>,
    /// Sorted by host.
    parts: Vec<HostShare>,
    gpus: usize,
    candidates: Candidates,
    scores: Vec<f64>,
    scratch: Vec<HostShare>,
}

impl<'o, 'a> Current<'o, 'a> {
    pub fn new(objective: &'o Objective<'a>, start: &Allocation) -> Self {
        Current {
            objective,
            parts: start.parts().iter().map(|&(h, m)| objective.part(h, m)).collect(),
            gpus: start.gpu_count(),
            candidates: Candidates::new(),
            scores: Vec::new(),
            scratch: Vec::new(),
        }
    }

    pub fn allocation(&self) -> Allocation {
        Allocation::new(self.parts.iter().map(|p| (p.host, p.mask)))
    }

    /// Removes GPUs one by one until `k` are left; each step keeps the best-scoring set, the first in a tie. From N
    /// GPUs: N - k batches of N, N - 1, ..., k + 1 candidates, (N² - k² + N - k) / 2 in all.
    pub fn shrink_to(&mut self, k: usize) {
        while self.gpus > k {
            let unit = |p: &HostShare| p.mask.iter().map(|g| GpuMask(1 << g)).collect();
            self.drop_best(unit, 0);
        }
    }

    /// Removes whole hosts while `gpus_min` GPUs remain; each step keeps the best-scoring set.
    pub fn drop_hosts_to(&mut self, gpus_min: usize) {
        while self.drop_best(|p| vec![p.mask], gpus_min) {}
    }

    /// One step of elimination: of all `units` (GPUs of one host) whose removal leaves `gpus_min` GPUs, removes the one
    /// with the smallest loss.
    fn drop_best(&mut self, units: impl Fn(&HostShare) -> Vec<GpuMask>, gpus_min: usize) -> bool {
        self.candidates.clear();
        let mut removals: Vec<(usize, GpuMask)> = Vec::with_capacity(self.gpus);
        for (i, p) in self.parts.iter().enumerate() {
            for unit in units(p) {
                if self.gpus - unit.count() < gpus_min.max(1) {
                    continue;
                }
                self.scratch.clear();
                self.scratch.extend_from_slice(&self.parts);
                replace(self.objective, &mut self.scratch, i, p.mask.minus(unit));
                self.candidates.push(&self.scratch);
                removals.push((i, unit));
            }
        }
        if removals.is_empty() {
            return false;
        }
        self.objective.scores(&self.candidates, &mut self.scores);
        let Some(&(i, unit)) = argmax(&self.scores).and_then(|b| removals.get(b)) else { return false };
        let rest = self.parts[i].mask.minus(unit);
        replace(self.objective, &mut self.parts, i, rest);
        self.gpus -= unit.count();
        true
    }

    /// Adds GPUs of `free` one by one until there are `k`; each step keeps the best-scoring set, the first in a tie.
    /// From j GPUs: k - j batches of N - j, ..., N - k + 1 candidates.
    pub fn grow_to(&mut self, k: usize, free: &Allocation) {
        while self.gpus < k {
            self.candidates.clear();
            let mut additions = Vec::with_capacity(free.gpu_count() - self.gpus);
            for &(host, m) in free.parts() {
                let at = self.parts.binary_search_by_key(&host, |p| p.host);
                let taken = at.map_or(GpuMask::EMPTY, |i| self.parts[i].mask);
                for g in m.minus(taken).iter() {
                    let part = self.objective.part(host, taken.union(GpuMask(1 << g)));
                    self.scratch.clear();
                    self.scratch.extend_from_slice(&self.parts);
                    put(&mut self.scratch, at, part);
                    self.candidates.push(&self.scratch);
                    additions.push((at, part));
                }
            }
            self.objective.scores(&self.candidates, &mut self.scores);
            let Some(&(at, part)) = argmax(&self.scores).and_then(|b| additions.get(b)) else { return };
            put(&mut self.parts, at, part);
            self.gpus += 1;
        }
    }
}

/// Replaces the GPUs of part `i` by `rest`, or removes the part if `rest` is empty.
fn replace(objective: &Objective, parts: &mut Vec<HostShare>, i: usize, rest: GpuMask) {
    if rest.is_empty() {
        parts.remove(i);
    } else {
        parts[i] = objective.part(parts[i].host, rest);
    }
}

fn put(parts: &mut Vec<HostShare>, at: Result<usize, usize>, part: HostShare) {
    match at {
        Ok(i) => parts[i] = part,
        Err(i) => parts.insert(i, part),
    }
}
