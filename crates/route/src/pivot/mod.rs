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

use crate::demand::Demand;
use crate::network::Network;
use crate::plan::Plan;
use crate::rules::{PATHS_MAX, Rule, Shares, pick};
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

    /// Takes the shares of the coarse stage over into the weights. Calls back for every pair of hosts whose weights changed.
    pub fn absorb(&mut self, net: &Network, mut each: impl FnMut(usize, usize, &[f64])) {
        let slots = net.slots;
        let order = self.by_pair();
        let mut next = 0;
        for (p, pair) in self.pairs.iter().enumerate() {
            let from = next;
            while next < order.len() && self.columns[order[next]].pair as usize == p {
                next += 1;
            }
            let own = &order[from..next];
            let (a, b) = (usize::from(pair.src), usize::from(pair.dst));
            let at = (a * net.host_count() + b) * slots;
            let unchanged = |w: &[f64]| own.is_empty() && pair.key == COMPOSITE && w == net.weights_between(a, b);
            if !pair.hosts || unchanged(&self.weights[at..at + slots]) {
                continue;
            }
            let weights = &mut self.weights[at..at + slots];
            let moved: f64 = own.iter().map(|&c| self.columns[c].share.max(0.0)).sum();
            let kept = (1.0 - moved).max(0.0);
            let total = moved + kept;
            match pair.key {
                COMPOSITE => weights.iter_mut().for_each(|w| *w *= kept / total),
                k => {
                    weights.fill(0.0);
                    weights[usize::from(k)] = kept / total;
                }
            }
            own.iter()
                .for_each(|&c| weights[usize::from(self.columns[c].path)] += self.columns[c].share.max(0.0) / total);
            each(a, b, weights);
        }
    }

    /// Basic columns by pair, so that each pair finds its own.
    fn by_pair(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (1..self.columns.len().min(self.rows.len())).collect();
        order.sort_unstable_by_key(|&c| (self.columns[c].pair, self.columns[c].path));
        order
    }

    /// The demands whose split differs from the rule's, with their shares, by source and destination.
    pub fn exceptions(&mut self, net: &Network, rule: Rule, mut each: impl FnMut(usize, usize, &[(u16, f64)])) {
        let mut list = Shares::default();
        let order = self.by_pair();
        let mut next = 0;
        for (p, pair) in self.pairs.iter().enumerate() {
            let from = next;
            while next < order.len() && self.columns[order[next]].pair as usize == p {
                next += 1;
            }
            let own = &order[from..next];
            let (src, dst) = (usize::from(pair.src), usize::from(pair.dst));
            if pair.hosts {
                continue;
            }
            // The largest demands keep what they have while the weights of their hosts change: they are exceptions in any case.
            let apart = pair.own != NONE || (self.coarse && net.host(src) != net.host(dst));
            if own.is_empty() && !apart && pair.key == self.first_key(net, rule, src, dst) {
                continue;
            }
            let moved: f64 = own.iter().map(|&c| self.columns[c].share.max(0.0)).sum();
            let kept = (1.0 - moved).max(0.0);
            let total = moved + kept;
            let mut by_path = [0.0; PATHS_MAX];
            if pair.key == COMPOSITE {
                self.composite_shares(net, pair).iter().enumerate().for_each(|(k, s)| by_path[k] += s * kept);
            } else {
                by_path[usize::from(pair.key)] += kept;
            }
            own.iter().for_each(|&c| by_path[usize::from(self.columns[c].path)] += self.columns[c].share.max(0.0));
            list.clear();
            by_path.iter().enumerate().filter(|(_, s)| **s > 0.0).for_each(|(k, s)| list.push(k, s / total));
            each(src, dst, list.as_slice());
        }
    }

    /// The split that the key stands for.
    fn composite_shares<'a>(&'a self, net: &'a Network, pair: &Pair) -> &'a [f64] {
        let (src, dst) = (usize::from(pair.src), usize::from(pair.dst));
        if pair.own != NONE {
            return &self.own_shares[pair.own as usize..pair.own as usize + PATHS_MAX];
        }
        let (a, b) = if pair.hosts { (src, dst) } else { (net.host(src), net.host(dst)) };
        if a == b {
            return net.intra_shares(src, dst);
        }
        let at = (a * net.host_count() + b) * net.slots;
        &self.weights[at..at + net.slots]
    }

    fn first_key(&self, net: &Network, rule: Rule, src: usize, dst: usize) -> u16 {
        let (a, b) = (net.host(src), net.host(dst));
        if a == b {
            let spread = rule == Rule::Weighted && !net.is_direct(src, dst);
            return if spread { COMPOSITE } else { 0 };
        }
        match rule {
            Rule::Direct | Rule::DestinationRail => pick(net.slots_between(a, b), net.home[dst]) as u16,
            Rule::SourceRail => pick(net.slots_between(a, b), net.home[src]) as u16,
            Rule::Stripe | Rule::Weighted | Rule::TwoRails => COMPOSITE,
        }
    }

    fn start(&mut self, net: &Network, start: &Start) {
        let Start { demand, sums, rule, loads, coarse, .. } = *start;
        let (links, hosts) = (net.links.len(), net.host_count());
        self.pairs.clear();
        self.between = 0;
        self.fixed.clear();
        self.fixed.resize(links, 0.0);
        self.row_host.clone_from(&sums.row_host);
        self.host_col.clone_from(&sums.host_col);
        self.load.clear();
        self.load.extend(loads.iter().zip(&net.inverse).map(|(&b, &i)| if b > 0.0 { b * i } else { 0.0 }));
        let top = self.load.iter().copied().fold(0.0, f64::max);
        self.coarse = coarse;
        self.own_shares.clear();
        let mut from = start.from.map(|p| p.exceptions.iter().enumerate().peekable());
        let mut shares = Shares::default();
        let n = net.rank_count();
        let together: Vec<f64> = match coarse {
            true => (0..hosts * hosts)
                .map(|p| net.ranks_of(p / hosts).map(|i| sums.row_host[i * hosts + p % hosts]).sum())
                .collect(),
            false => Vec::new(),
        };
        for src in 0..n {
            let a = net.host(src);
            for dst in 0..n {
                let bytes = demand.get(src, dst) as f64;
                if bytes == 0.0 || src == dst {
                    continue;
                }
                let b = net.host(dst);
                let inside = a == b;
                if net.path_count(src, dst) < 2 {
                    if coarse && !inside {
                        continue; // with the traffic of its hosts, below
                    }
                    let only = if inside { 0 } else { net.slots_between(a, b).trailing_zeros() as usize };
                    net.path(src, dst, only).for_each(|l| self.fixed[l as usize] += bytes * net.inverse[l as usize]);
                    continue;
                }
                let (mut key, mut own) = (self.first_key(net, rule, src, dst), NONE);
                if let Some(list) = &mut from {
                    while list.next_if(|(_, e)| (e.src, e.dst) < (src as u16, dst as u16)).is_some() {}
                    if let Some((at, _)) = list.next_if(|(_, e)| (e.src, e.dst) == (src as u16, dst as u16)) {
                        start.from.into_iter().for_each(|p| p.exception_shares(at, &mut shares));
                        (key, own) = (COMPOSITE, self.own_shares.len() as u32);
                        self.own_shares.resize(own as usize + PATHS_MAX, 0.0);
                        let list = &mut self.own_shares[own as usize..];
                        shares.as_slice().iter().for_each(|&(p, s)| list[usize::from(p)] = s);
                    }
                }
                if coarse && !inside {
                    let large = bytes * LARGE_PARTS >= together[a * hosts + b]
                        && bytes >= LARGE_SHARE * top * net.host_rates[a].0;
                    if own == NONE && !large {
                        continue;
                    }
                    self.row_host[src * hosts + b] -= bytes;
                    self.host_col[a * n + dst] -= bytes;
                }
                self.between += usize::from(!inside);
                self.pairs.push(Pair { src: src as u16, dst: dst as u16, bytes, key, hosts: false, own });
            }
        }
        if coarse {
            for p in (0..hosts * hosts).filter(|p| p / hosts != p % hosts) {
                let (a, b) = (p / hosts, p % hosts);
                if net.ranks_of(a).all(|i| self.row_host[i * hosts + b] == 0.0) {
                    continue;
                }
                self.between += 1;
                self.pairs.push(Pair {
                    src: a as u16,
                    dst: b as u16,
                    bytes: 1.0,
                    key: COMPOSITE,
                    hosts: true,
                    own: NONE,
                });
            }
        }
        for v in [&mut self.delta, &mut self.price, &mut self.scratch] {
            v.clear();
            v.resize(links, 0.0);
        }
        for v in [&mut self.pair_rate, &mut self.pair_share] {
            v.clear();
            v.resize(self.pairs.len(), 0.0);
        }
        // A fixed scatter of the numbers 0 to 1 (multiples of the golden ratio).
        let scatter = |e: usize| (e as f64 * 0.618_033_988_749_895).fract();
        self.load.iter_mut().enumerate().for_each(|(e, l)| *l += top * PERTURBATION * scatter(e + 1));
        let mut tightest = 0;
        for e in 1..links {
            if self.load[e] > self.load[tightest] {
                tightest = e;
            }
        }
        self.congestion = self.load[tightest];
        self.row_of.clear();
        self.row_of.resize(links, NONE);
        self.row_of[tightest] = 0;
        self.rows.clear();
        self.rows.push(tightest as u32);
        self.stride = (links + 1).min(TIGHT_MAX);
        self.inverse.resize(self.stride * self.stride, 0.0);
        self.inverse[0] = -1.0;
        for v in [&mut self.step, &mut self.dots, &mut self.coefficients] {
            v.resize(self.stride, 0.0);
        }
        if self.columns.is_empty() {
            self.columns.push(Column::default());
        }
        self.columns[0].entries.clear();
        self.columns[0].pair = NONE;
        self.candidates.clear();
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

    /// Seconds that moving a demand from its key to a path adds to each link.
    fn entries(&mut self, net: &Network, pair: u32, path: u16, out: &mut Vec<(u32, f64)>) {
        let pair = self.pairs[pair as usize];
        let Pair { src, dst, bytes, key, hosts, .. } = pair;
        let (src, dst) = (usize::from(src), usize::from(dst));
        let mut scratch = std::mem::take(&mut self.scratch);
        out.clear();
        let mut put = |l: u32, bytes: f64| {
            if scratch[l as usize] == 0.0 {
                out.push((l, 0.0));
            }
            scratch[l as usize] += bytes * net.inverse[l as usize];
        };
        let mut add = |path: usize, share: f64| {
            if !hosts {
                net.path(src, dst, path).for_each(|l| put(l, share * bytes));
                return;
            }
            for i in net.ranks_of(src) {
                let bytes = self.row_host[i * net.host_count() + dst];
                net.out_leg(i, path).links().iter().filter(|_| bytes > 0.0).for_each(|&l| put(l, share * bytes));
            }
            for j in net.ranks_of(dst) {
                let bytes = self.host_col[src * net.rank_count() + j];
                net.in_leg(j, path).links().iter().filter(|_| bytes > 0.0).for_each(|&l| put(l, share * bytes));
            }
        };
        add(usize::from(path), 1.0);
        if key == COMPOSITE {
            let shares = self.composite_shares(net, &pair);
            shares.iter().enumerate().filter(|(_, s)| **s > 0.0).for_each(|(k, &s)| add(k, -s));
        } else {
            add(usize::from(key), -1.0);
        }
        out.iter_mut().for_each(|(l, v)| *v = std::mem::take(&mut scratch[*l as usize]));
        out.retain(|e| e.1 != 0.0);
        self.scratch = scratch;
    }

    /// One step of the simplex method. `false`: numbers are no longer to be trusted.
    fn pivot(&mut self, net: &Network, entering: Entering) -> bool {
        let k = self.rows.len();
        let stride = self.stride;
        while self.columns.len() <= k {
            self.columns.push(Column::default());
        }
        let mut new = std::mem::take(&mut self.columns[k]);
        new.entries.clear();
        self.step[..k].fill(0.0);
        match entering {
            Entering::Path { pair, path } => {
                (new.pair, new.path) = (pair, path);
                self.entries(net, pair, path, &mut new.entries);
                for &(l, v) in &new.entries {
                    let r = self.row_of[l as usize];
                    if r != NONE {
                        let row = &self.inverse[r as usize * stride..r as usize * stride + k];
                        self.step[..k].iter_mut().zip(row).for_each(|(s, n)| *s += v * n);
                    }
                }
            }
            Entering::Slack { row } => {
                new.pair = NONE;
                self.step[..k].copy_from_slice(&self.inverse[row * stride..row * stride + k]);
            }
        }
        self.delta.fill(0.0);
        new.entries.iter().for_each(|&(l, v)| self.delta[l as usize] = v);
        for c in 1..k {
            let s = self.step[c];
            if s != 0.0 {
                self.columns[c].entries.iter().for_each(|&(l, v)| self.delta[l as usize] -= s * v);
            }
        }
        let Some((length, blocking)) = self.ratio_test(&new) else {
            self.columns[k] = new;
            return false;
        };
        // Move.
        let fall = self.step[0];
        self.load.iter_mut().zip(&self.delta).for_each(|(l, d)| *l += length * d);
        self.congestion -= length * fall;
        for c in 1..k {
            self.columns[c].share -= length * self.step[c];
        }
        new.share = length;
        let fine = self.exchange(net, entering, blocking, new);
        for &e in &self.rows {
            self.load[e as usize] = self.congestion;
        }
        fine
    }

    /// How far the step may go, and what stops it.
    fn ratio_test(&mut self, new: &Column) -> Option<(f64, Blocking)> {
        let k = self.rows.len();
        let tiny = 1e-11 * self.congestion;
        let fall = self.step[0];
        let mut best: Option<(f64, Blocking)> = None;
        let (mut slack, mut rate) = (f64::INFINITY, 1.0);
        for (e, (&l, &d)) in self.load.iter().zip(&self.delta).enumerate() {
            let rise = d + fall;
            if rise > tiny && self.row_of[e] == NONE {
                let room = (self.congestion - l).max(0.0);
                if room * rate < slack * rise {
                    (slack, rate) = (room, rise);
                    best = Some((room / rise, Blocking::Link(e as u32)));
                }
            }
        }
        let mut offer = |length: f64, what: Blocking| {
            if best.is_none_or(|b| length < b.0) {
                best = Some((length, what));
            }
        };
        for c in 1..k {
            let (s, column) = (self.step[c], &self.columns[c]);
            if s > 1e-10 {
                offer(column.share.max(0.0) / s, Blocking::Share(c));
            }
            self.pair_rate[column.pair as usize] += s;
            self.pair_share[column.pair as usize] += column.share;
        }
        if new.pair != NONE {
            self.pair_rate[new.pair as usize] -= 1.0;
        }
        for column in self.columns[1..k].iter().chain([new]).filter(|c| c.pair != NONE) {
            let p = column.pair as usize;
            if self.pair_rate[p] < -1e-10 {
                offer((1.0 - self.pair_share[p]).max(0.0) / -self.pair_rate[p], Blocking::Key(column.pair));
            }
            (self.pair_rate[p], self.pair_share[p]) = (0.0, 0.0);
        }
        best
    }

    /// Brings the entering column (or slack) into the basis in place of what blocked it.
    fn exchange(&mut self, net: &Network, entering: Entering, blocking: Blocking, mut new: Column) -> bool {
        let k = self.rows.len();
        match (entering, blocking) {
            (Entering::Path { .. }, Blocking::Link(e)) => {
                let pivot = self.delta[e as usize] + self.step[0];
                self.dot_rows(e);
                self.grow(e, pivot);
                self.columns[k] = new;
                true
            }
            (Entering::Slack { row }, Blocking::Link(e)) => {
                self.columns[k] = new;
                self.dot_rows(e);
                self.replace_row(row, e)
            }
            (Entering::Path { .. }, Blocking::Share(c)) => {
                let fine = self.replace_column(c);
                std::mem::swap(&mut self.columns[c], &mut new);
                self.columns[k] = new;
                fine
            }
            (Entering::Slack { row }, Blocking::Share(c)) => {
                self.columns[k] = new;
                self.shrink(row, c)
            }
            (_, Blocking::Key(pair)) => {
                let own = (1..k).filter(|&c| self.columns[c].pair == pair);
                let Some(heir) = own.max_by(|&a, &b| self.columns[a].share.total_cmp(&self.columns[b].share)) else {
                    // The whole demand moves: its key is another path now, and the basis stays.
                    self.pairs[pair as usize].key = new.path;
                    self.columns[k] = new;
                    return true;
                };
                self.new_key(net, pair, heir, new.pair == pair);
                match entering {
                    Entering::Path { path, .. } => {
                        let mut entries = std::mem::take(&mut new.entries);
                        self.entries(net, new.pair, path, &mut entries);
                        new.entries = entries;
                        let fine = self.replace_column(heir);
                        std::mem::swap(&mut self.columns[heir], &mut new);
                        self.columns[k] = new;
                        fine
                    }
                    Entering::Slack { row } => {
                        self.columns[k] = new;
                        self.shrink(row, heir)
                    }
                }
            }
        }
    }

    /// A basic column of a demand becomes its key; the old key takes the column's place, with share 0.
    fn new_key(&mut self, net: &Network, pair: u32, heir: usize, entering_too: bool) {
        let k = self.rows.len();
        let others: Vec<usize> = (1..k).filter(|&c| c != heir && self.columns[c].pair == pair).collect();
        for r in 0..k {
            let row = &mut self.inverse[r * self.stride..r * self.stride + k];
            row[heir] = -row[heir] - others.iter().map(|&c| row[c]).sum::<f64>();
        }
        if entering_too {
            self.step[heir] -= 1.0;
        }
        self.step[heir] = -self.step[heir] - others.iter().map(|&c| self.step[c]).sum::<f64>();
        self.pairs[pair as usize].key = self.columns[heir].path;
        for c in others {
            let mut entries = std::mem::take(&mut self.columns[c].entries);
            self.entries(net, pair, self.columns[c].path, &mut entries);
            self.columns[c].entries = entries;
        }
    }
}
