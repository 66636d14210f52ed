//! Judges many candidates with few predictions: in descending order of upper bounds, until no remaining one can be
//! among the best.
//!
//! Contention never raises a bandwidth, and no bandwidth exceeds the model's
//! [`predict::BandwidthModel::upper_bound_exact_hosts`]. If jobs are merged by their exact GPUs, the GPUs with the best
//! intra bandwidth are not always the best choice for a count, because the union with a running job's GPUs also counts.
//! Such variants are judged only if a better union could raise a candidate into the best few.

use crate::exact::TIE;
use crate::merge::{Meeting, Merge};
use crate::objective::{Objective, Rule};
use predict::{Candidates, HostShare};
use topology::{Allocation, GpuMask, HostId};

/// Number of candidates of the first batch; each next batch is twice as large.
const BATCH: usize = 24;
/// Maximum number of variants of one candidate.
const VARIANTS_MAX: usize = 1 << 16;
/// Maximum number of variants of an exact search.
pub(crate) const VARIANTS_OF_SEARCH_MAX: usize = 1 << 20;

/// The judged candidates.
pub(crate) struct Judged {
    /// The candidates that could be among the best, and variants of them.
    pub candidates: Candidates,
    /// Their scores.
    pub scores: Vec<f64>,
    /// Number of variants that could be among the best and were left out; 0: the result is exact.
    pub skipped: u64,
}

/// The best scores seen, one for each split, descending.
struct Floor {
    best: Vec<(f64, [u8; Floor::HOSTS])>,
    keep: usize,
}

impl Floor {
    /// Splits over more hosts count as equal if their first hosts are equal. That lowers the floor and loses no
    /// candidate.
    const HOSTS: usize = 16;
    fn see(&mut self, score: f64, parts: &[HostShare]) {
        if self.best.len() == self.keep && score <= self.best[self.keep - 1].0 {
            return;
        }
        let mut split = [0u8; Floor::HOSTS];
        for (s, p) in split.iter_mut().zip(parts) {
            *s = p.count;
        }
        split.sort_unstable();
        match self.best.iter_mut().find(|b| b.1 == split) {
            Some(b) => b.0 = b.0.max(score),
            None => self.best.push((score, split)),
        }
        self.best.sort_by(|a, b| b.0.total_cmp(&a.0));
        self.best.truncate(self.keep);
    }
    /// The minimum score of a candidate that can be among the best.
    fn needed(&self) -> f64 {
        match self.best.get(self.keep - 1) {
            Some(b) => b.0 - TIE * b.0.abs(),
            None => f64::NEG_INFINITY,
        }
    }
}

/// Judges `candidates`; the caller keeps the best `keep` with different splits. `free`: the GPUs that variants may use.
pub(crate) fn judge(
    objective: &Objective,
    candidates: &Candidates,
    free: &Allocation,
    keep: usize,
    variants_max: usize,
) -> Judged {
    let model = objective.model;
    let most = |c: &[HostShare]| {
        let (mut intra, mut nic, mut gpus) = (f64::INFINITY, f64::INFINITY, 0);
        for p in c {
            intra = intra.min(p.intra_gb_per_s);
            nic = nic.min(p.nic_gb_per_s);
            gpus += usize::from(p.count);
        }
        model.upper_bound_exact_hosts(intra, nic, c.len(), gpus).unwrap_or(f64::INFINITY)
    };
    let mut order: Vec<(f64, u32)> = candidates.iter().map(most).zip(0..).collect();
    order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut out = Judged { candidates: Candidates::new(), scores: Vec::new(), skipped: 0 };
    let mut floor = Floor { best: Vec::new(), keep: keep.max(1) };
    let mut variants = Variants { free, left: variants_max, skipped: 0 };
    let (mut at, mut size) = (0, BATCH);
    let (mut batch, mut values) = (Candidates::new(), Vec::new());
    while at < order.len() {
        let needed = floor.needed();
        batch.clear();
        while at < order.len() && batch.len() < size && order[at].0 >= needed {
            batch.push(candidates.parts(order[at].1 as usize));
            at += 1;
        }
        if batch.is_empty() {
            break;
        }
        size *= 2;
        objective.alone(&batch, &mut values);
        if objective.contended() {
            // The candidates of the batch whose stand-alone bandwidth reaches the floor.
            let mut good = Candidates::new();
            let mut alone = Vec::new();
            for (c, v) in batch.iter().zip(&values).filter(|b| *b.1 >= needed) {
                good.push(c);
                alone.push(*v);
            }
            std::mem::swap(&mut batch, &mut good);
            values.clone_from(&alone);
            objective.shared(&batch, &mut values);
            batch.iter().zip(&values).for_each(|(c, v)| floor.see(*v, c));
            variants.judge(objective, &batch, &alone, &values, &mut floor, &mut out);
        } else {
            batch.iter().zip(&values).for_each(|(c, v)| floor.see(*v, c));
        }
        for (c, v) in batch.iter().zip(&values) {
            out.candidates.push(c);
            out.scores.push(*v);
        }
    }
    out.skipped = variants.skipped;
    out
}

/// Variants: other GPUs of the same hosts and counts.
struct Variants<'f> {
    free: &'f Allocation,
    left: usize,
    skipped: u64,
}

impl Variants<'_> {
    /// Adds the variants of a batch that could be among the best.
    fn judge(
        &mut self,
        objective: &Objective,
        batch: &Candidates,
        alone: &[f64],
        scores: &[f64],
        floor: &mut Floor,
        out: &mut Judged,
    ) {
        let weight = objective.request.loss_weight;
        let held_back: Vec<usize> = (0..batch.len()).filter(|&i| scores[i] < alone[i]).collect();
        if held_back.is_empty() {
            return;
        }
        let mut those = Candidates::new();
        held_back.iter().for_each(|&i| those.push(batch.parts(i)));
        // The upper bound of each candidate with the best possible GPUs of the same hosts and counts.
        let reach: Vec<f64> = match objective.rule() {
            Rule::Merge(m) if m.rule.is_some() => return,
            Rule::Merge(m) => {
                let most = m.meetings(objective.table(), &**objective.means(), &those, true);
                held_back.iter().zip(most).map(|(&i, m): (_, Meeting)| m.score(alone[i], weight)).collect()
            }
            Rule::Physical(_) => held_back.iter().map(|&i| alone[i]).collect(),
        };
        let mut more = Candidates::new();
        for (n, &i) in held_back.iter().enumerate() {
            if reach[n] > scores[i] + TIE * scores[i].abs() && reach[n] >= floor.needed() {
                self.of(objective, batch.parts(i), &mut more);
            }
        }
        if more.is_empty() {
            return;
        }
        let mut values = Vec::new();
        objective.scores(&more, &mut values);
        for (c, v) in more.iter().zip(&values) {
            floor.see(*v, c);
            out.candidates.push(c);
            out.scores.push(*v);
        }
    }

    /// Every other combination of GPUs that could give a candidate a higher score among the jobs.
    fn of(&mut self, objective: &Objective, c: &[HostShare], out: &mut Candidates) {
        let choices: Vec<Vec<HostShare>> = c.iter().map(|p| self.of_part(objective, p)).collect();
        let combinations = choices.iter().fold(1usize, |n, v| n.saturating_mul(v.len()));
        if combinations > VARIANTS_MAX.min(self.left) {
            self.skipped = self.skipped.saturating_add(combinations as u64);
            return;
        }
        self.left -= combinations;
        let mut chosen: Vec<HostShare> = c.to_vec();
        for n in 0..combinations {
            let mut rest = n;
            for (slot, v) in chosen.iter_mut().zip(&choices) {
                *slot = v[rest % v.len()];
                rest /= v.len();
            }
            if chosen.iter().zip(c).any(|(a, b)| a.mask != b.mask) {
                out.push(&chosen);
            }
        }
    }

    /// The GPU sets that can replace a share: same count, same NIC rate, and better in at least one respect.
    fn of_part(&self, objective: &Objective, part: &HostShare) -> Vec<HostShare> {
        let table = objective.table();
        let counts: Box<dyn Fn(GpuMask) -> Vec<f64>> = match objective.rule() {
            Rule::Merge(m) => unions(objective, m, part.host),
            Rule::Physical(s) => s.shared_nics(part.host),
        };
        if counts(part.mask).is_empty() {
            return vec![*part];
        }
        // Compared: the own intra bandwidth; then, for merged sets, NIC rate and intra bandwidth of every union; for
        // physics, the shared NICs.
        let mut kept: Vec<(HostShare, Vec<f64>)> = vec![(*part, counts(part.mask))];
        for m in self.free.mask(part.host).subsets().filter(|m| m.count() == part.mask.count() && *m != part.mask) {
            let p = table.part(part.host, m);
            if p.nic_gb_per_s != part.nic_gb_per_s {
                continue;
            }
            let of_p = counts(m);
            let beats = |a: &(HostShare, Vec<f64>), b: &HostShare, of_b: &[f64]| {
                a.0.intra_gb_per_s >= b.intra_gb_per_s && no_worse(objective.rule(), &a.1, of_b)
            };
            if kept.iter().any(|k| beats(k, &p, &of_p)) {
                continue;
            }
            let new = (p, of_p);
            kept.retain(|k| k.0.mask == part.mask || !beats(&new, &k.0, &k.1));
            kept.push(new);
        }
        kept.into_iter().map(|k| k.0).collect()
    }
}

/// For each job on a host: NIC rate and intra bandwidth of the union of its GPUs with the given GPUs.
fn unions<'a>(objective: &'a Objective, merge: &Merge, host: HostId) -> Box<dyn Fn(GpuMask) -> Vec<f64> + 'a> {
    let jobs = merge.on_host(host);
    let table = objective.table();
    Box::new(move |m| {
        jobs.iter()
            .flat_map(|j| {
                let p = table.part(host, m.union(*j));
                [p.nic_gb_per_s, p.intra_gb_per_s]
            })
            .collect()
    })
}

fn no_worse(rule: &Rule, a: &[f64], b: &[f64]) -> bool {
    match rule {
        // Pairs of NIC rate and intra bandwidth. NIC rates must agree, since a correction may prefer either.
        Rule::Merge(_) => a.chunks(2).zip(b.chunks(2)).all(|(a, b)| a[0] == b[0] && a[1] >= b[1]),
        Rule::Physical(_) => a == b,
    }
}
