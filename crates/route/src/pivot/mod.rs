//! The correction: exact pivots on the path problem, starting from a rule.
//!
//! Problem: minimise `T` so that every demand is split over its paths and every link `e` carries at most `c_e T` bytes. This is a linear
//! program with one row per link and one per demand; the rows of the demands say only that shares sum to one and are kept implicit
//! (generalised upper bounds): each demand has a *key* path, whose share is what the others leave. The key starts as the split of a static
//! rule, which counts as one path.
//!
//! What is left has the links as rows. Most links are not full, and their slacks need no arithmetic: only the *tight* links `R`, whose load
//! is `T`, and as many basic columns (`T` and `|R| - 1` paths) are kept, with the inverse of that small matrix. A pivot costs O(|R|²), pricing
//! O(demands x paths), the ratio test O(links). `|R|` starts at 1, so that the first pivots, which bring most, cost least.
//!
//! The multipliers `y` of the tight links sum to one; the shortest paths under them give a lower bound on any plan's `T`. That is the
//! proof beside the plan, and the reason to stop: pivots end when the plan is within the wanted gap of the best bound so far, or when the
//! budget of pivots is used up. Nothing depends on a clock.
//!
//! On many ranks a demand is a small part of what a link carries, and moving one at a time takes many pivots. There a first, *coarse* stage
//! moves all that one host sends to another together: its columns are (host, host, rail), and what it finds is kept as shares of rails per pair
//! of hosts. The fine stage starts from there, if it is still needed.
//!
//! Ties are broken by adding a part in ten million to every link's load, the same on every rank. Only + - * / are used.

mod basis;
mod price;
mod split;
mod start;
mod step;

use crate::demand::Demand;
use crate::network::Network;
use crate::plan::Plan;
use crate::rules::Rule;
use crate::sums::Sums;

/// The key "path" that stands for the split of the rule.
const COMPOSITE: u16 = u16::MAX;
const NONE: u32 = u32::MAX;
/// Most tight links; beyond, pivots stop with what they have. The inverse takes 8 x this² bytes.
const TIGHT_MAX: usize = 320;
/// Tie-breaking loads, relative to the congestion.
const PERTURBATION: f64 = 1e-7;
/// In the coarse stage a demand that is at least one part in so many of all that its host sends to the other moves by itself.
const LARGE_PARTS: f64 = 16.0;
/// And at least this share of what the host could send in the time of the plan.
const LARGE_SHARE: f64 = 1.0 / 256.0;
/// Candidates that are priced again before all demands are.
const CANDIDATES_MAX: usize = 48;
/// With fewer demands than this all are priced every time.
const PRICE_ALL_MAX: usize = 256;

/// One demand that may be split; in the coarse stage, all that one host sends to another.
#[derive(Clone, Copy, Debug)]
struct Pair {
    src: u16,
    dst: u16,
    /// What prices are multiplied with: bytes, or 1 where they are of all demands together.
    bytes: f64,
    key: u16,
    hosts: bool,
    /// Where its first split stands in `own_shares`, if that is not the rule's.
    own: u32,
}

/// What is to be improved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start<'a> {
    /// The demand and its sums.
    pub demand: &'a Demand,
    pub sums: &'a Sums,
    /// The rule to begin with; between hosts [`Rule::Weighted`] means the workspace's weights.
    pub rule: Rule,
    /// Bytes of that on every link.
    pub loads: &'a [f64],
    /// Move all that one host sends to another together, but for the largest demands.
    pub coarse: bool,
    /// A plan whose exceptions are to begin with (`loads` has them).
    pub from: Option<&'a Plan>,
    /// A bound that is known already, and when to stop.
    pub bound: f64,
    pub gap: f64,
    /// Multiply-adds, roughly.
    pub work_max: u64,
}

#[derive(Clone, Debug, Default)]
struct Column {
    pair: u32,
    path: u16,
    share: f64,
    /// Seconds that a share of one adds to each link.
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

/// What the pivots reached.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Best lower bound from the multipliers, seconds.
    pub bound: f64,
    /// Pivots made.
    pub pivots: u32,
    /// Work spent.
    pub work: u64,
}

/// Workspace, reused from plan to plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pivots {
    pairs: Vec<Pair>,
    between: usize,
    /// Shares of the slots between every two hosts, as [`Network::weights`].
    pub weights: Vec<f64>,
    own_shares: Vec<f64>,
    row_host: Vec<f64>,
    host_col: Vec<f64>,
    columns: Vec<Column>,
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
    /// Improves on a rule until the congestion is at most `1 + gap` times the best bound, or the work is used up.
    pub fn run(&mut self, net: &Network, start: &Start) -> Outcome {
        self.start(net, start);
        let mut outcome = Outcome { bound: start.bound, ..Outcome::default() };
        let mut threshold = 0.0;
        let links = net.links.len() as u64;
        while outcome.work < start.work_max && self.rows.len() < self.stride.min(TIGHT_MAX) {
            let entering = match self.negative_multiplier() {
                Some(row) => Entering::Slack { row },
                None => match self.choose(net, &mut outcome, start.gap, &mut threshold) {
                    Some((pair, path)) => Entering::Path { pair, path },
                    None => break,
                },
            };
            outcome.pivots += 1;
            let tight = self.rows.len() as u64;
            // Columns of whole hosts have some fifty entries, those of demands a dozen.
            outcome.work += 2 * tight * tight + if start.coarse { 150 } else { 40 } * tight + 3 * links;
            if !self.pivot(net, entering) {
                break;
            }
        }
        outcome
    }

    /// The tight link whose multiplier is most negative: it should no longer be tight.
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
