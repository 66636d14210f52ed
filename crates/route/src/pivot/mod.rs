//! The correction: exact pivots on the path problem, starting from a rule.
//!
//! Problem: minimise `T` such that every demand is split over its paths and every link `e` carries at most `c_e T` bytes. This is a linear
//! program with one row per link and one per demand. The demand rows only say that shares sum to one, so they stay implicit (generalised
//! upper bounds): each demand has a *key* path, whose share is one minus the other shares. The first key is the split of a static rule,
//! which counts as one path.
//!
//! The remaining rows are the links. Most links are not full, and their slacks need no arithmetic. The solver keeps
//! only the *tight* links `R`, whose load is `T`, an equal number of basic columns (`T` and `|R| - 1` paths), and the
//! inverse of that small matrix. A pivot takes O(|R|²), pricing O(demands x paths), the ratio test O(links). `|R|`
//! starts at 1: the first pivots reduce the congestion most and are the cheapest.
//!
//! The multipliers `y` of the tight links sum to one. The shortest paths under `y` give a lower bound on `T` for every
//! plan. That bound proves the plan's quality and ends the search: pivots stop when the plan is within the requested
//! gap of the best bound so far, or when the work limit is reached. The result does not depend on a clock.
//!
//! With many ranks a demand is a small part of a link's load, and moving one demand at a time takes many pivots. Then a *coarse* stage first
//! moves all bytes from one host to another together: its columns are (host, host, rail), and its result is a weight per rail and pair of
//! hosts. The fine stage starts from that result if the gap is not reached yet.
//!
//! To break ties, every link's load gets up to one part in ten million added, the same on every rank. Only + - * / are used.

mod basis;
mod price;
mod split;
mod start;
mod step;

use crate::demand::Demand;
use crate::network::RoutingNetwork;
use crate::plan::RoutePlan;
use crate::rules::Rule;
use crate::sums::DemandSums;

/// The key "path" that stands for a first split over several paths.
const COMPOSITE: u16 = u16::MAX;
const NONE: u32 = u32::MAX;
/// Maximum number of tight links. At this number the pivots stop with the result so far. The inverse takes 8 x this² bytes.
const TIGHT_MAX: usize = 320;
/// Largest tie-breaking load, relative to the congestion.
const PERTURBATION: f64 = 1e-7;
/// In the coarse stage a demand moves alone if it is at least 1 / `LARGE_PARTS` of the bytes between its hosts
const LARGE_PARTS: f64 = 16.0;
/// and at least this share of the bytes that its host can send in the plan's time.
const LARGE_SHARE: f64 = 1.0 / 256.0;
/// Maximum number of demands that are priced again before all demands are.
const CANDIDATES_MAX: usize = 48;
/// Up to this many demands, all are priced every time.
const PRICE_ALL_MAX: usize = 256;

/// A demand that may be split; in the coarse stage also all bytes from one host to another.
#[derive(Clone, Copy, Debug)]
struct DemandPair {
    src: u16,
    dst: u16,
    /// Factor of the price: the bytes of one demand, or 1 for a pair of hosts, whose prices already include the bytes.
    bytes: f64,
    key: u16,
    hosts: bool,
    /// Index of its first split in `own_shares`; `NONE` if the first split is the rule's.
    own: u32,
}

/// The input of one run of pivots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PivotProblem<'a> {
    pub demand: &'a Demand,
    pub sums: &'a DemandSums,
    /// The rule to start from. [`Rule::Weighted`] uses [`Pivots::weights`] between hosts.
    pub rule: Rule,
    /// Bytes that the start puts on every link.
    pub loads: &'a [f64],
    /// Move all bytes between two hosts together, except the largest demands.
    pub coarse: bool,
    /// A plan whose exceptions belong to the start; `loads` includes them.
    pub from: Option<&'a RoutePlan>,
    /// A known lower bound, seconds.
    pub bound: f64,
    /// Stop when the congestion is at most `1 + gap` times the best bound.
    pub gap: f64,
    /// Work limit, roughly in multiply-adds.
    pub work_max: u64,
}

#[derive(Clone, Debug, Default)]
struct BasicColumn {
    pair: u32,
    path: u16,
    share: f64,
    /// (link, seconds that a share of one adds to it).
    entries: Vec<(u32, f64)>,
}

#[derive(Clone, Copy, Debug)]
enum Entering {
    Path { pair: u32, path: u16 },
    Slack { row: usize },
}

#[derive(Clone, Copy, Debug)]
enum Blocking {
    Link(u32),
    Share(usize),
    Key(u32),
}

/// The result of one run of pivots.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PivotOutcome {
    /// Best lower bound from the multipliers, seconds.
    pub bound: f64,
    /// Number of pivots.
    pub pivots: u32,
    /// Work done, roughly in multiply-adds.
    pub work: u64,
}

/// The solver's workspace, reused from plan to plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pivots {
    pairs: Vec<DemandPair>,
    between: usize,
    /// Weights of the slots between two hosts, shaped as [`RoutingNetwork::weights`].
    pub weights: Vec<f64>,
    own_shares: Vec<f64>,
    row_host: Vec<f64>,
    host_col: Vec<f64>,
    columns: Vec<BasicColumn>,
    rows: Vec<u32>,
    row_of: Vec<u32>,
    stride: usize,
    /// Inverse of the basis: `inverse[row * stride + column]`.
    inverse: Vec<f64>,
    load: Vec<f64>,
    fixed: Vec<f64>,
    delta: Vec<f64>,
    step: Vec<f64>,
    dots: Vec<f64>,
    coefficients: Vec<f64>,
    price: Vec<f64>,
    out_price: Vec<f64>,
    in_price: Vec<f64>,
    candidates: Vec<u32>,
    scratch: Vec<f64>,
    pair_rate: Vec<f64>,
    pair_share: Vec<f64>,
    congestion: f64,
    coarse: bool,
}

impl Pivots {
    /// Pivots until the congestion is at most `1 + gap` times the best bound, or the work limit is reached.
    pub fn run(&mut self, net: &RoutingNetwork, start: &PivotProblem) -> PivotOutcome {
        self.start(net, start);
        let mut outcome = PivotOutcome { bound: start.bound, ..PivotOutcome::default() };
        let mut threshold = 0.0;
        let links = net.links.len() as u64;
        while outcome.work < start.work_max && self.rows.len() < self.stride.min(TIGHT_MAX) {
            let entering = match self.negative_multiplier() {
                Some(row) => Entering::Slack { row },
                None => match self.choose_entering_path(net, &mut outcome, start.gap, &mut threshold) {
                    Some((pair, path)) => Entering::Path { pair, path },
                    None => break,
                },
            };
            outcome.pivots += 1;
            let tight = self.rows.len() as u64;
            // A column of a pair of hosts has about fifty entries, a column of a demand about twelve.
            outcome.work += 2 * tight * tight + if start.coarse { 150 } else { 40 } * tight + 3 * links;
            if !self.pivot(net, entering) {
                break;
            }
        }
        outcome
    }

    /// The row of the tight link with the most negative multiplier. That link must leave the tight set.
    fn negative_multiplier(&self) -> Option<usize> {
        let mut worst = (None, -1e-10);
        for r in 0..self.rows.len() {
            let y = -self.inverse[r * self.stride];
            if y < worst.1 {
                worst = (Some(r), y);
            }
        }
        worst.0
    }
}
