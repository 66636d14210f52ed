//! Branch and bound, for models that can bound a branch.

use super::least::least_nodes;
use super::{PARTS_MAX, TIE, combinations};
use crate::options::HostOptions;
use crate::request::{Refusal, Request};
use crate::shape::{Left, Shape};
use predict::{BandwidthModel, Candidates, HostShare};

/// Visits only branches that can still hold one of the best `keep` candidates, and collects these. Returns the number
/// of candidates judged. Refused before the first visit if the visits are certain to be too many.
pub(super) fn branch_and_bound(
    model: &dyn BandwidthModel,
    request: &Request,
    options: &[HostOptions],
    shape: &Shape,
    keep: usize,
    nodes_max: u64,
    out: &mut Candidates,
) -> Result<u64, Refusal> {
    if shape.combinations().is_none() && least_nodes(model, request.gpus, options, nodes_max) > nodes_max {
        return Err(Refusal::TooLarge { combinations: combinations(options, request.gpus), limit: nodes_max });
    }
    let mut walk = Walk::new(model, request, options, shape, keep, nodes_max, out);
    if walk.go(0, shape.start(), &mut Vec::new(), f64::INFINITY, f64::INFINITY) {
        Ok(walk.leaves)
    } else {
        let limit = if walk.nodes > nodes_max { nodes_max } else { walk.out.len() as u64 };
        Err(Refusal::TooLarge { combinations: combinations(options, request.gpus), limit })
    }
}

struct Walk<'a> {
    model: &'a dyn BandwidthModel,
    mean: predict::Evaluator<'a>,
    request: &'a Request,
    options: &'a [HostOptions],
    shape: &'a Shape,
    keep: usize,
    nodes_max: u64,
    /// Best values so far, one per split, descending.
    floor: Vec<(f64, Vec<u8>)>,
    nodes: u64,
    leaves: u64,
    out: &'a mut Candidates,
}

impl<'a> Walk<'a> {
    fn new(
        model: &'a dyn BandwidthModel,
        request: &'a Request,
        options: &'a [HostOptions],
        shape: &'a Shape,
        keep: usize,
        nodes_max: u64,
        out: &'a mut Candidates,
    ) -> Self {
        let (mean, floor) = (model.evaluator(request.size), Vec::new());
        Walk { model, mean, request, options, shape, keep, nodes_max, floor, nodes: 0, leaves: 0, out }
    }

    /// The minimum value at which a candidate is kept.
    fn needed(&self) -> f64 {
        if self.floor.len() < self.keep { 0.0 } else { self.floor[self.keep - 1].0 * (1.0 - TIE) }
    }

    /// Visits host `i` and those after it. `intra` and `nic` are the smallest rates of the chosen parts. `false` beyond
    /// the limit of nodes or of parts.
    fn go(&mut self, i: usize, left: Left, chosen: &mut Vec<HostShare>, intra: f64, nic: f64) -> bool {
        self.nodes += 1;
        if self.nodes > self.nodes_max || self.out.part_count() > PARTS_MAX {
            return false;
        }
        if left.gpus == 0 {
            self.judge(chosen);
            return true;
        }
        if !self.shape.can_end(i, left) {
            return true;
        }
        // GPUs remain to be placed, so at least one more host follows.
        let most = self
            .model
            .upper_bound_hosts_or_more(intra, nic, chosen.len() + 1, self.request.gpus)
            .unwrap_or(f64::INFINITY);
        if most < self.needed() {
            return true;
        }
        let options = self.options;
        // Large counts first: early good candidates raise the floor.
        for (c, parts) in options[i].by_count.iter().enumerate().take(left.gpus as usize).rev() {
            let Some(less) = self.shape.take(left, c + 1) else { continue };
            for p in parts {
                chosen.push(*p);
                let more = self.go(i + 1, less, chosen, intra.min(p.intra_gb_per_s), nic.min(p.nic_gb_per_s));
                chosen.pop();
                if !more {
                    return false;
                }
            }
        }
        self.go(i + 1, left, chosen, intra, nic)
    }

    /// Judges a complete candidate and keeps it if it can be among the best.
    fn judge(&mut self, chosen: &[HostShare]) {
        self.leaves += 1;
        self.nodes += chosen.len() as u64 / 8;
        let v = (self.mean)(chosen);
        if v >= self.needed() {
            self.out.push(chosen);
            let mut split: Vec<u8> = chosen.iter().map(|p| p.count).collect();
            split.sort_unstable();
            match self.floor.iter_mut().find(|f| f.1 == split) {
                Some(f) => f.0 = f.0.max(v),
                None => self.floor.push((v, split)),
            }
            self.floor.sort_by(|a, b| b.0.total_cmp(&a.0));
            self.floor.truncate(self.keep);
        }
    }
}

#[cfg(test)]
mod tests;
