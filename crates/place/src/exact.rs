//! The exact search: every count vector over the hosts, with the masks that can matter per host and count.
//!
//! Exact for every model whose prediction, at given counts and NIC rates, never falls when intra bandwidth rises (all of
//! linkwise's): proved against brute force over all subsets in the tests. For a model that is a multiple of the bound the
//! enumeration is a branch and bound; for others it is complete up to [`COMBINATIONS_MAX`], beyond which it refuses.

use crate::objective::Objective;
use crate::options::{HostOptions, host_options};
use crate::ordered::judge;
use crate::request::{Refusal, Request};
use crate::shape::{Left, Shape};
use predict::{BandwidthModel, Candidates, Part, Prediction};
use topology::{Allocation, Cluster};

/// Most candidates that are combined without pruning.
pub const COMBINATIONS_MAX: u64 = 1_000_000;
/// Most nodes that branch and bound visits.
pub const NODES_MAX: u64 = 20_000_000;
/// Predictions closer than this, relatively, are a tie: far below what any model knows.
pub const TIE: f64 = 1e-9;

/// Most runner-ups that have the split of the best on other hosts: no model knows how hosts of a type differ until it saw them, so these
/// are worth a probe where no other split comes close.
pub const OTHER_HOSTS: usize = 3;
/// They must promise this share of the best.
const OTHER_HOSTS_SHARE: f64 = 0.97;

/// One candidate with its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The GPUs.
    pub allocation: Allocation,
    /// What the model expects of it alone.
    pub prediction: Prediction,
    /// What the search maximised, GB/s: the prediction's mean, or with other jobs [`crate::objective::Effect::score`].
    pub score_gb_per_s: f64,
    /// It is the split of the first one on other hosts (see [`OTHER_HOSTS`]).
    pub elsewhere: bool,
}

/// The outcome of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Best first; at least one, at most as many as asked for, with different splits over the hosts (or on different hosts, where one
    /// host holds all), but for a few that take the best split to other hosts (see [`OTHER_HOSTS`]).
    pub best: Vec<Scored>,
    /// Candidates that the model judged.
    pub evaluations: u64,
}

/// How many of its own deviations a candidate gives up when the best few are compared.
///
/// The largest of many predictions is on average too high, and the more uncertain it is the more so. Half a deviation is enough on
/// the measured tables: 0.3 to 1.0 do the same (`linkwise evaluate`), 0 loses the 5th percentile.
pub const CAUTION_SDS: f64 = 0.5;

/// Moves the candidate with the best cautious prediction (mean less [`CAUTION_SDS`] deviations) to the front; the others keep their
/// order. Ties stay where they are.
pub fn cautiously(candidates: &mut [Scored]) {
    let value = |s: &Scored| {
        let relative_sd = s.prediction.std_gb_per_s / s.prediction.busbw_gb_per_s.max(1e-9);
        s.score_gb_per_s - CAUTION_SDS * relative_sd * s.score_gb_per_s.abs()
    };
    let mut best = 0;
    for i in 1..candidates.len() {
        if value(&candidates[i]) > value(&candidates[best]) * (1.0 + TIE) {
            best = i;
        }
    }
    promote(candidates, best);
}

/// Makes candidate `i` the first; the others keep their order.
pub(crate) fn promote(candidates: &mut [Scored], i: usize) {
    if i == 0 || i >= candidates.len() {
        return;
    }
    // `elsewhere` says who has the split of the first one.
    if std::mem::take(&mut candidates[i].elsewhere) {
        candidates[0].elsewhere = true;
    } else {
        candidates.iter_mut().for_each(|c| c.elsewhere = false);
    }
    candidates[..=i].rotate_right(1);
}

/// How fragmented a choice leaves the cluster; smaller is better, compared between ties only.
///
/// First, hosts that were wholly free and are only partly taken; then hosts touched; then GPUs left over on touched hosts.
fn fragmentation(parts: &[Part], free: &Allocation, whole: &dyn Fn(&Part) -> bool) -> (usize, usize, usize) {
    let mut broken = 0;
    let mut left = 0;
    for p in parts {
        let rest = free.mask(p.host).minus(p.mask).count();
        broken += usize::from(rest > 0 && whole(p));
        left += rest;
    }
    (broken, parts.len(), left)
}

/// The best `keep` allocations for a request, exactly.
pub fn exact(cluster: &Cluster, model: &dyn BandwidthModel, request: &Request, keep: usize) -> Result<Found, Refusal> {
    search(&Objective::new(cluster, model, request), keep)
}

/// The same through an objective.
pub fn search(objective: &Objective, keep: usize) -> Result<Found, Refusal> {
    within(objective, keep, COMBINATIONS_MAX, NODES_MAX)
}

/// The same with limits of one's own on what is enumerated and on the nodes of branch and bound; [`Refusal::TooLarge`] beyond.
pub fn within(objective: &Objective, keep: usize, combinations_max: u64, nodes_max: u64) -> Result<Found, Refusal> {
    let (model, request) = (objective.model, objective.request);
    let k = request.gpus;
    let usable = request.usable(objective.cluster)?;
    let options = host_options(objective.table(), &usable, k);
    let shape = Shape::new(request, &options)?;
    let mut candidates = Candidates::new();
    let mut pruned = None;
    if !objective.contended() && model.at_most(f64::INFINITY, f64::INFINITY, 2, k).is_some() {
        pruned = Some(branch_and_bound(model, request, &options, &shape, keep.max(1), nodes_max, &mut candidates)?);
    } else {
        let combinations = shape.combinations().unwrap_or_else(|| combinations(&options, k));
        if combinations > u128::from(combinations_max) {
            return Err(Refusal::TooLarge { combinations, limit: combinations_max });
        }
        enumerate(&options, &shape, &mut candidates);
    }
    let before = objective.evaluations();
    let judged = judge(objective, &candidates, &usable, keep.max(1));
    let evaluations = pruned.unwrap_or(objective.evaluations() - before);
    Ok(Found { best: best_of(objective, &judged.candidates, &judged.scores, keep.max(1)), evaluations })
}

/// The best `keep` of scored candidates, ties towards less fragmentation, with different splits. O(candidates).
pub fn best_of(objective: &Objective, candidates: &Candidates, scores: &[f64], keep: usize) -> Vec<Scored> {
    let (model, request, table) = (objective.model, objective.request, objective.table());
    let whole = |p: &Part| request.free.mask(p.host) == table.all_gpus(p.host);
    let mut order: Vec<u32> = (0..candidates.len() as u32).collect();
    if order.is_empty() {
        return Vec::new();
    }
    // Only the head is needed in order: ties and near-ties of the best, then enough for the runner-ups.
    let head = order.len().min(64.max(keep * 8));
    let by_score = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
    let close = |v: f64, best: f64| v >= best - TIE * best.abs();
    if head < order.len() {
        order.select_nth_unstable_by(head - 1, by_score);
        // Everything that ties with the best belongs to the head, wherever the selection cut.
        let best = order[..head].iter().map(|i| scores[*i as usize]).fold(f64::NEG_INFINITY, f64::max);
        let tied: Vec<u32> = order[head..].iter().copied().filter(|i| close(scores[*i as usize], best)).collect();
        order.truncate(head);
        order.extend(tied);
    }
    order.sort_by(by_score);
    let best = scores[order[0] as usize];
    let ties = order.iter().take_while(|i| close(scores[**i as usize], best)).count();
    order[..ties].sort_by_cached_key(|i| (fragmentation(candidates.parts(*i as usize), &request.free, &whole), *i));
    let mut picked: Vec<u32> = Vec::with_capacity(keep);
    // How many GPUs of which type of host; a single host is its own class.
    type Split = (Option<topology::HostId>, Vec<(u16, u8)>);
    let mut seen: Vec<Split> = Vec::new();
    // The best split on other hosts: which hosts give how many.
    let mut elsewhere: Vec<(Vec<(topology::HostId, u8)>, u32)> = Vec::new();
    let hosts = |i: u32| candidates.parts(i as usize).iter().map(|p| (p.host, p.count)).collect::<Vec<_>>();
    for i in order {
        let parts = candidates.parts(i as usize);
        let mut split: Vec<(u16, u8)> = parts.iter().map(|p| (p.host_type, p.count)).collect();
        split.sort_unstable();
        let key = (if let [p] = parts { Some(p.host) } else { None }, split);
        if !seen.contains(&key) {
            if picked.len() < keep {
                seen.push(key);
                picked.push(i);
            }
            continue;
        }
        let of_the_best = key == seen[0] && scores[i as usize] >= OTHER_HOSTS_SHARE * best;
        if of_the_best && elsewhere.len() < OTHER_HOSTS {
            let h = hosts(i);
            if h != hosts(picked[0]) && elsewhere.iter().all(|e| e.0 != h) {
                elsewhere.push((h, i));
            }
        }
    }
    let elsewhere = elsewhere.into_iter().map(|e| e.1).take(keep.saturating_sub(1));
    let elsewhere: Vec<u32> = elsewhere.collect();
    picked.truncate(keep - elsewhere.len());
    picked.extend(&elsewhere);
    picked[1..].sort_by(by_score);
    let scored = |i: u32| Scored {
        elsewhere: elsewhere.contains(&i),
        allocation: candidates.allocation(i as usize),
        prediction: model.predict(request.size, candidates.parts(i as usize)),
        score_gb_per_s: scores[i as usize],
    };
    picked.into_iter().map(scored).collect()
}

/// How many candidates a complete enumeration has: a convolution over hosts. O(hosts x k x counts).
pub fn combinations(options: &[HostOptions], k: usize) -> u128 {
    let mut ways = vec![0u128; k + 1];
    ways[0] = 1;
    for o in options {
        for total in (1..=k).rev() {
            let mut sum = ways[total];
            for (c, parts) in o.by_count.iter().enumerate() {
                if c < total {
                    sum = sum.saturating_add(ways[total - c - 1].saturating_mul(parts.len() as u128));
                }
            }
            ways[total] = sum;
        }
    }
    ways[k]
}

/// Every combination, in the order of the hosts.
pub(crate) fn enumerate(options: &[HostOptions], shape: &Shape, out: &mut Candidates) {
    fn go(options: &[HostOptions], shape: &Shape, i: usize, left: Left, chosen: &mut Vec<Part>, out: &mut Candidates) {
        if left.gpus == 0 {
            out.push(chosen);
            return;
        }
        if i == options.len() || !shape.can_end(i, left) {
            return;
        }
        go(options, shape, i + 1, left, chosen, out);
        for (c, parts) in options[i].by_count.iter().enumerate().take(left.gpus as usize) {
            let Some(less) = shape.take(left, c + 1) else { continue };
            for p in parts {
                chosen.push(*p);
                go(options, shape, i + 1, less, chosen, out);
                chosen.pop();
            }
        }
    }
    go(options, shape, 0, shape.start(), &mut Vec::new(), out);
}

/// For models that can bound a branch: visits only what can still be among the best, and collects what was.
fn branch_and_bound(
    model: &dyn BandwidthModel,
    request: &Request,
    options: &[HostOptions],
    shape: &Shape,
    keep: usize,
    nodes_max: u64,
    out: &mut Candidates,
) -> Result<u64, Refusal> {
    struct Search<'a> {
        model: &'a dyn BandwidthModel,
        mean: predict::Evaluator<'a>,
        request: &'a Request,
        options: &'a [HostOptions],
        shape: &'a Shape,
        keep: usize,
        nodes_max: u64,
        /// Best values seen, descending, for different splits.
        floor: Vec<(f64, Vec<u8>)>,
        nodes: u64,
        leaves: u64,
    }
    impl Search<'_> {
        /// The value that a candidate must reach to matter.
        fn needed(&self) -> f64 {
            if self.floor.len() < self.keep { 0.0 } else { self.floor[self.keep - 1].0 * (1.0 - TIE) }
        }
        fn go(
            &mut self,
            i: usize,
            left: Left,
            chosen: &mut Vec<Part>,
            intra: f64,
            nic: f64,
            out: &mut Candidates,
        ) -> bool {
            self.nodes += 1;
            if self.nodes > self.nodes_max {
                return false;
            }
            if left.gpus == 0 {
                self.leaves += 1;
                let v = (self.mean)(chosen);
                if v >= self.needed() {
                    out.push(chosen);
                    let mut split: Vec<u8> = chosen.iter().map(|p| p.count).collect();
                    split.sort_unstable();
                    match self.floor.iter_mut().find(|f| f.1 == split) {
                        Some(f) => f.0 = f.0.max(v),
                        None => self.floor.push((v, split)),
                    }
                    self.floor.sort_by(|a, b| b.0.total_cmp(&a.0));
                    self.floor.truncate(self.keep);
                }
                return true;
            }
            if !self.shape.can_end(i, left) {
                return true;
            }
            // Something is left to place, so at least one more host comes.
            let most = self.model.at_most(intra, nic, chosen.len() + 1, self.request.gpus).unwrap_or(f64::INFINITY);
            if most < self.needed() {
                return true;
            }
            let options = self.options;
            // Large counts first: good candidates early make the floor high.
            for (c, parts) in options[i].by_count.iter().enumerate().take(left.gpus as usize).rev() {
                let Some(less) = self.shape.take(left, c + 1) else { continue };
                for p in parts {
                    chosen.push(*p);
                    let more = self.go(i + 1, less, chosen, intra.min(p.intra_gb_per_s), nic.min(p.nic_gb_per_s), out);
                    chosen.pop();
                    if !more {
                        return false;
                    }
                }
            }
            self.go(i + 1, left, chosen, intra, nic, out)
        }
    }
    let k = request.gpus;
    let mut s = Search {
        model,
        mean: model.evaluator(request.size),
        request,
        options,
        shape,
        keep,
        nodes_max,
        floor: Vec::new(),
        nodes: 0,
        leaves: 0,
    };
    if s.go(0, shape.start(), &mut Vec::new(), f64::INFINITY, f64::INFINITY, out) {
        Ok(s.leaves)
    } else {
        Err(Refusal::TooLarge { combinations: combinations(options, k), limit: nodes_max })
    }
}
