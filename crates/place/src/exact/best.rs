//! Selects the best few scored candidates: ties, different splits, and the best split on other hosts.

use super::{Scored, TIE};
use crate::objective::Objective;
use predict::{Candidates, HostShare};
use topology::{Allocation, HostId};

/// Maximum number of runner-ups with the best split on other hosts. Models cannot predict differences between hosts of
/// one type without readings of them, so these runner-ups are worth a probe if no other split comes close.
pub const OTHER_HOSTS: usize = 3;
/// Minimum share of the best score for such runner-ups.
const OTHER_HOSTS_SHARE: f64 = 0.97;

/// Fragmentation that a choice causes; smaller is better. Used only between ties.
///
/// First the number of entirely free hosts that become partly used, then the number of hosts touched, then the number
/// of free GPUs left on them.
fn fragmentation(parts: &[HostShare], free: &Allocation, whole: &dyn Fn(&HostShare) -> bool) -> (usize, usize, usize) {
    let mut broken = 0;
    let mut left = 0;
    for p in parts {
        let rest = free.mask(p.host).minus(p.mask).count();
        broken += usize::from(rest > 0 && whole(p));
        left += rest;
    }
    (broken, parts.len(), left)
}

/// The best `keep` scored candidates with different splits over the hosts; ties go to the least fragmentation.
/// O(candidates).
pub fn best_of(objective: &Objective, candidates: &Candidates, scores: &[f64], keep: usize) -> Vec<Scored> {
    if candidates.is_empty() {
        return Vec::new();
    }
    let order = in_order(objective, candidates, scores, keep);
    let best = scores[order[0] as usize];
    let mut picked = Picked::default();
    // Candidates that were not judged among the jobs cannot be runner-ups.
    for i in order.into_iter().filter(|i| scores[*i as usize] > f64::NEG_INFINITY || best == f64::NEG_INFINITY) {
        let parts = candidates.parts(i as usize);
        let close_to_best = scores[i as usize] >= OTHER_HOSTS_SHARE * best;
        picked.see(i, parts, keep, close_to_best);
    }
    let others: Vec<u32> = picked.others.into_iter().map(|e| e.1).take(keep.saturating_sub(1)).collect();
    let mut chosen = picked.splits;
    chosen.truncate(keep - others.len());
    chosen.extend(&others);
    chosen[1..].sort_by(|a, b| by_score(scores, *a, *b));
    let scored = |i: u32| Scored {
        same_split_other_hosts: others.contains(&i),
        allocation: candidates.allocation(i as usize),
        prediction: objective.model.predict(objective.request.size, candidates.parts(i as usize)),
        score_gb_per_s: scores[i as usize],
    };
    chosen.into_iter().map(scored).collect()
}

/// Orders by higher score, then by earlier position.
fn by_score(scores: &[f64], a: u32, b: u32) -> std::cmp::Ordering {
    scores[b as usize].total_cmp(&scores[a as usize]).then(a.cmp(&b))
}

/// The head of the sorted candidates: all ties with the best, least fragmentation first, then enough others for the
/// runner-ups.
fn in_order(objective: &Objective, candidates: &Candidates, scores: &[f64], keep: usize) -> Vec<u32> {
    let (request, table) = (objective.request, objective.table());
    let whole = |p: &HostShare| request.free.mask(p.host) == table.all_gpus(p.host);
    let close = |v: f64, best: f64| v >= best - TIE * best.abs();
    let mut order: Vec<u32> = (0..candidates.len() as u32).collect();
    let head = order.len().min(64.max(keep * 8));
    if head < order.len() {
        order.select_nth_unstable_by(head - 1, |a, b| by_score(scores, *a, *b));
        // All ties with the best belong to the head, even beyond the selection's cut.
        let best = order[..head].iter().map(|i| scores[*i as usize]).fold(f64::NEG_INFINITY, f64::max);
        let tied: Vec<u32> = order[head..].iter().copied().filter(|i| close(scores[*i as usize], best)).collect();
        order.truncate(head);
        order.extend(tied);
    }
    order.sort_by(|a, b| by_score(scores, *a, *b));
    let best = scores[order[0] as usize];
    let ties = order.iter().take_while(|i| close(scores[**i as usize], best)).count();
    order[..ties].sort_by_cached_key(|i| (fragmentation(candidates.parts(*i as usize), &request.free, &whole), *i));
    order
}

/// The number of GPUs by host type; a single host is its own class.
type Split = (Option<HostId>, Vec<(u16, u8)>);
/// The number of GPUs by host.
type HostCounts = Vec<(HostId, u8)>;

/// The candidates selected so far.
#[derive(Default)]
struct Picked {
    /// Different splits, best first.
    splits: Vec<u32>,
    seen: Vec<Split>,
    /// Hosts of the first candidate.
    first: HostCounts,
    /// The split of the first candidate, on other hosts.
    others: Vec<(HostCounts, u32)>,
}

impl Picked {
    /// Takes candidate `i` if its split is new, or if it has the best split and a score close to the best.
    fn see(&mut self, i: u32, parts: &[HostShare], keep: usize, close_to_best: bool) {
        let mut split: Vec<(u16, u8)> = parts.iter().map(|p| (p.host_type, p.count)).collect();
        split.sort_unstable();
        let key = (if let [p] = parts { Some(p.host) } else { None }, split);
        let hosts = || parts.iter().map(|p| (p.host, p.count)).collect::<HostCounts>();
        if !self.seen.contains(&key) {
            if self.splits.len() < keep {
                if self.splits.is_empty() {
                    self.first = hosts();
                }
                self.seen.push(key);
                self.splits.push(i);
            }
            return;
        }
        if key == self.seen[0] && close_to_best && self.others.len() < OTHER_HOSTS {
            let h = hosts();
            if h != self.first && self.others.iter().all(|e| e.0 != h) {
                self.others.push((h, i));
            }
        }
    }
}
