//! Candidates that differ, built from the most promising plans.

use super::fill;
use super::levels::{Levels, Sides};
use super::plans::Plan;
use crate::request::Request;
use predict::{Candidates, HostShare};
use rustc_hash::{FxHashSet, FxHasher};
use std::hash::Hasher;

/// Maximum number of parts of all candidates of one batch together.
const PARTS_MAX: usize = 60_000;
/// Maximum number of candidates of one batch, for candidates of any size.
const CANDIDATES_MAX: usize = 600;
/// Number of candidates that are judged whatever their size.
const CANDIDATES_MIN: usize = 64;
/// Number of levels below a plan's that are tried in turn if counts do not add up.
const DOWN: [usize; 11] = [0, 1, 2, 3, 4, 6, 12, 24, 48, 96, 192];

/// Different candidates that satisfy the request.
pub(super) struct Pool<'a> {
    request: &'a Request,
    /// True if the request constrains the counts beyond their sum.
    shaped: bool,
    seen: FxHashSet<u64>,
    pub candidates: Candidates,
}

impl<'a> Pool<'a> {
    pub fn new(request: &'a Request) -> Self {
        Pool { request, shaped: request.asks_shape(), seen: FxHashSet::default(), candidates: Candidates::new() }
    }

    /// Adds a candidate; `false` if it is a repeat or breaks the request.
    pub fn add(&mut self, parts: &[HostShare]) -> bool {
        let new = self.seen.insert(signature(parts)) && (!self.shaped || accepts(self.request, parts));
        if new {
            self.candidates.push(parts);
        }
        new
    }
}

/// True if the counts of a candidate keep pods and limits.
pub(super) fn accepts(request: &Request, parts: &[HostShare]) -> bool {
    let counts: Vec<usize> = parts.iter().map(|p| usize::from(p.count)).collect();
    request.accepts_counts(&counts)
}

/// Builds candidates of the most promising plans.
pub(super) fn build_candidates(levels: &Levels, plans: &mut [Plan], k: usize, pool: &mut Pool) {
    // Stable, so that plans of equal promise keep the order of lists, floors and types.
    plans.sort_by(|a, b| b.promise_gb_per_s.total_cmp(&a.promise_gb_per_s));
    let mut known: FxHashSet<u64> = FxHashSet::default();
    let mut builder = CandidateBuilder::new(levels);
    let (mut drawn, mut work) = (0, 0);
    for plan in plans.iter() {
        if drawn >= CANDIDATES_MIN && (work >= PARTS_MAX || drawn >= CANDIDATES_MAX) {
            break;
        }
        if !known.insert(plan.signature) {
            continue;
        }
        // Sufficient caps may not add up to exactly `k`. A lower level is then tried, where hosts may also give other
        // counts.
        for down in DOWN {
            let Some(level) = plan.level.checked_sub(down).filter(|l| *l > 0) else { break };
            work += plan.hosts + plan.table.list.len() / 4;
            if builder.choose_counts(plan, level, k) {
                for sides in [Sides::Fattest, Sides::Thinnest] {
                    if builder.choose_gpus(plan, level, sides) && pool.add(&builder.parts) {
                        drawn += 1;
                        work += plan.hosts;
                    }
                }
                break;
            }
        }
    }
}

/// Builds candidates; reuses its memory between them.
struct CandidateBuilder<'l, 'o> {
    levels: &'l Levels<'o>,
    by_cap: Vec<Vec<u32>>,
    rows: Vec<u32>,
    allowed: Vec<u32>,
    counts: Vec<u8>,
    parts: Vec<HostShare>,
}

impl<'l, 'o> CandidateBuilder<'l, 'o> {
    fn new(levels: &'l Levels<'o>) -> Self {
        let by_cap = vec![Vec::new(); levels.stride];
        CandidateBuilder {
            levels,
            by_cap,
            rows: Vec::new(),
            allowed: Vec::new(),
            counts: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Chooses hosts and counts of a plan at a level; `false` if no counts add up. O(hosts x counts).
    fn choose_counts(&mut self, plan: &Plan, level: usize, k: usize) -> bool {
        let stride = self.levels.stride;
        let allowed = |i: u32| {
            let row = &plan.table.above.levels[i as usize * stride..][..stride];
            (1..stride).filter(|c| usize::from(row[*c]) >= level).fold(0u32, |m, c| m | 1 << c) & plan.counts
        };
        self.by_cap.iter_mut().for_each(Vec::clear);
        for &i in plan.table.list.iter() {
            if usize::from(plan.table.above.tops[i as usize]) >= level
                && plan.kinds >> self.levels.rows[i as usize].kind & 1 == 1
            {
                let counts = allowed(i);
                if counts != 0 {
                    self.by_cap[31 - counts.leading_zeros() as usize].push(i);
                }
            }
        }
        self.rows.clear();
        self.rows.extend(self.by_cap.iter().rev().flatten().copied().take(plan.hosts));
        self.allowed.clear();
        self.allowed.extend(self.rows.iter().map(|i| allowed(*i)));
        fill::water_fill(&self.allowed, k, &mut self.counts)
    }

    /// Makes `parts` of the chosen hosts and counts. O(hosts log hosts).
    fn choose_gpus(&mut self, plan: &Plan, level: usize, sides: Sides) -> bool {
        let floor = plan.table.above.floor;
        self.parts.clear();
        let chosen = self.rows.iter().zip(&self.counts);
        self.parts.extend(
            chosen.filter_map(|(i, c)| self.levels.part(*i as usize, usize::from(*c), level, floor, sides).copied()),
        );
        self.parts.sort_unstable_by_key(|p| p.host);
        self.parts.len() == self.rows.len()
    }
}

/// One step of a hash.
pub(super) fn mix(h: u64, v: u64) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(h);
    hasher.write_u64(v);
    hasher.finish()
}

/// The identity of a candidate.
pub(super) fn signature(parts: &[HostShare]) -> u64 {
    parts.iter().fold(0, |h, p| mix(h, u64::from(p.host.0) << 32 | u64::from(p.mask.0)))
}
