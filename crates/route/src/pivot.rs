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
//! Ties are broken by adding a part in ten million to every link's load, the same on every rank. Only + - * / are used.

use crate::demand::Demand;
use crate::network::{Leg, Network};
use crate::rules::{Rule, Shares, pick};

/// The key "path" that stands for the split of the rule.
const COMPOSITE: u16 = u16::MAX;
const NONE: u32 = u32::MAX;
/// Most tight links; beyond, pivots stop with what they have. The inverse takes 8 x this² bytes.
const TIGHT_MAX: usize = 320;
/// Tie-breaking loads, relative to the congestion.
const PERTURBATION: f64 = 1e-7;
/// Candidates that are priced again before all demands are.
const CANDIDATES_MAX: usize = 48;
/// With fewer demands than this all are priced every time.
const PRICE_ALL_MAX: usize = 256;

/// One demand that may be split.
#[derive(Clone, Copy, Debug)]
struct Pair {
    src: u16,
    dst: u16,
    bytes: f64,
    key: u16,
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
}

/// Workspace, reused from plan to plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pivots {
    pairs: Vec<Pair>,
    inside: Vec<u32>,
    between: Vec<u32>,
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
    out_mean: Vec<f64>,
    in_mean: Vec<f64>,
    candidates: Vec<u32>,
    scratch: Vec<f64>,
    pair_rate: Vec<f64>,
    pair_share: Vec<f64>,
    shares: Shares,
    congestion: f64,
    composite: bool,
}

impl Pivots {
    /// Improves on `rule`, whose loads in bytes are given, until the congestion is at most `1 + gap` times the best bound (`bound` is one
    /// to begin with) or `pivots_max` pivots are made.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &mut self,
        net: &Network,
        demand: &Demand,
        rule: Rule,
        loads: &[f64],
        bound: f64,
        gap: f64,
        pivots_max: u32,
    ) -> Outcome {
        self.start(net, demand, rule, loads);
        let mut outcome = Outcome { bound, pivots: 0 };
        let mut threshold = 0.0;
        while outcome.pivots < pivots_max && self.rows.len() < self.stride.min(TIGHT_MAX) {
            let entering = match self.negative_multiplier() {
                Some(row) => Entering::Slack { row },
                None => match self.choose(net, &mut outcome.bound, gap, &mut threshold) {
                    Some((pair, path)) => Entering::Path { pair, path },
                    None => break,
                },
            };
            outcome.pivots += 1;
            if !self.pivot(net, entering) {
                break;
            }
        }
        outcome
    }

    /// The demands whose split differs from the rule's, with their shares, by source and destination.
    pub fn exceptions(&mut self, net: &Network, rule: Rule, mut each: impl FnMut(usize, usize, &[(u16, f64)])) {
        let mut list = Shares::default();
        // Columns by pair, so that each pair finds its own.
        let mut order: Vec<usize> = (1..self.columns.len().min(self.rows.len())).collect();
        order.sort_unstable_by_key(|&c| (self.columns[c].pair, self.columns[c].path));
        let mut next = 0;
        for (p, pair) in self.pairs.iter().enumerate() {
            let from = next;
            while next < order.len() && self.columns[order[next]].pair as usize == p {
                next += 1;
            }
            let own = &order[from..next];
            let (src, dst) = (usize::from(pair.src), usize::from(pair.dst));
            if own.is_empty() && pair.key == self.first_key(net, rule, src, dst) {
                continue;
            }
            let moved: f64 = own.iter().map(|&c| self.columns[c].share.max(0.0)).sum();
            let kept = (1.0 - moved).max(0.0);
            let total = moved + kept;
            let mut by_path = [0.0; crate::rules::PATHS_MAX];
            if pair.key == COMPOSITE {
                rule.shares(net, src, dst, &mut self.shares);
                self.shares.as_slice().iter().for_each(|&(k, s)| by_path[usize::from(k)] += s * kept);
            } else {
                by_path[usize::from(pair.key)] += kept;
            }
            own.iter().for_each(|&c| by_path[usize::from(self.columns[c].path)] += self.columns[c].share.max(0.0));
            list.clear();
            by_path.iter().enumerate().filter(|(_, s)| **s > 0.0).for_each(|(k, s)| list.push(k, s / total));
            each(src, dst, list.as_slice());
        }
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

    fn start(&mut self, net: &Network, demand: &Demand, rule: Rule, loads: &[f64]) {
        let links = net.links.len();
        self.pairs.clear();
        self.inside.clear();
        self.between.clear();
        self.fixed.clear();
        self.fixed.resize(links, 0.0);
        self.composite = matches!(rule, Rule::Stripe | Rule::Weighted);
        for (src, dst, bytes) in demand.pairs() {
            let bytes = bytes as f64;
            let inside = net.host(src) == net.host(dst);
            if net.path_count(src, dst) < 2 {
                let only =
                    if inside { 0 } else { net.slots_between(net.host(src), net.host(dst)).trailing_zeros() as usize };
                net.path(src, dst, only).for_each(|l| self.fixed[l as usize] += bytes * net.inverse[l as usize]);
                continue;
            }
            let key = self.first_key(net, rule, src, dst);
            let list = if inside { &mut self.inside } else { &mut self.between };
            list.push(self.pairs.len() as u32);
            self.pairs.push(Pair { src: src as u16, dst: dst as u16, bytes, key });
        }
        for v in [&mut self.delta, &mut self.price, &mut self.scratch] {
            v.clear();
            v.resize(links, 0.0);
        }
        for v in [&mut self.pair_rate, &mut self.pair_share] {
            v.clear();
            v.resize(self.pairs.len(), 0.0);
        }
        self.load.clear();
        self.load.extend(loads.iter().zip(&net.inverse).map(|(&b, &i)| if b > 0.0 { b * i } else { 0.0 }));
        let top = self.load.iter().copied().fold(0.0, f64::max);
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

    /// Prices of legs from the multipliers.
    fn price_legs(&mut self, net: &Network) {
        self.price.fill(0.0);
        for (r, &e) in self.rows.iter().enumerate() {
            self.price[e as usize] = (-self.inverse[r * self.stride]).max(0.0) * net.inverse[e as usize];
        }
        if self.between.is_empty() {
            return;
        }
        let price = &self.price;
        let sum = |leg: &Leg| leg.links().iter().map(|&l| price[l as usize]).sum::<f64>();
        self.out_price.clear();
        self.out_price.extend(net.out_legs.iter().map(sum));
        self.in_price.clear();
        self.in_price.extend(net.in_legs.iter().map(sum));
        if !self.composite {
            return;
        }
        let (hosts, slots) = (net.host_count(), net.slots);
        self.out_mean.clear();
        self.in_mean.clear();
        let dot = |p: &[f64], w: &[f64]| p.iter().zip(w).map(|(p, w)| p * w).sum::<f64>();
        for i in 0..net.rank_count() {
            let h = net.host(i);
            let at = i * slots..(i + 1) * slots;
            for other in 0..hosts {
                self.out_mean.push(dot(&self.out_price[at.clone()], net.weights_between(h, other)));
                self.in_mean.push(dot(&self.in_price[at.clone()], net.weights_between(other, h)));
            }
        }
    }

    /// The cheapest path of a demand and what it is cheaper by than the key, per byte; and the cheapest price.
    #[inline]
    fn cheapest(&self, net: &Network, pair: &Pair) -> (u16, f64, f64) {
        let (src, dst) = (usize::from(pair.src), usize::from(pair.dst));
        let (a, b) = (net.host(src), net.host(dst));
        let mut best = (0u16, f64::INFINITY);
        let mut key_price = 0.0;
        if a == b {
            let paths = net.intra_paths(src, dst);
            let shares = net.intra_shares(src, dst);
            for (p, leg) in paths.iter().enumerate() {
                let price: f64 = leg.links().iter().map(|&l| self.price[l as usize]).sum();
                if price < best.1 {
                    best = (p as u16, price);
                }
                if pair.key == COMPOSITE {
                    key_price += shares[p] * price;
                } else if usize::from(pair.key) == p {
                    key_price = price;
                }
            }
        } else {
            let slots = net.slots;
            let out = &self.out_price[src * slots..(src + 1) * slots];
            let back = &self.in_price[dst * slots..(dst + 1) * slots];
            let mask = net.slots_between(a, b);
            for (k, (o, i)) in out.iter().zip(back).enumerate() {
                if o + i < best.1 && mask >> k & 1 == 1 {
                    best = (k as u16, o + i);
                }
            }
            key_price = match pair.key {
                COMPOSITE => self.out_mean[src * net.host_count() + b] + self.in_mean[dst * net.host_count() + a],
                k => out[usize::from(k)] + back[usize::from(k)],
            };
        }
        (best.0, key_price - best.1, best.1)
    }

    /// The path that promises most, and a new bound when all demands were priced. `None`: near enough, or optimal.
    fn choose(&mut self, net: &Network, bound: &mut f64, gap: f64, threshold: &mut f64) -> Option<(u32, u16)> {
        self.price_legs(net);
        if self.pairs.len() > PRICE_ALL_MAX && !self.candidates.is_empty() {
            let mut best = (0, 0u16, *threshold);
            for &p in &self.candidates {
                let pair = &self.pairs[p as usize];
                let (path, gain, _) = self.cheapest(net, pair);
                if gain * pair.bytes > best.2 {
                    best = (p, path, gain * pair.bytes);
                }
            }
            if best.2 > *threshold {
                return Some((best.0, best.1));
            }
        }
        let mut total: f64 =
            self.rows.iter().enumerate().map(|(r, &e)| -self.inverse[r * self.stride] * self.fixed[e as usize]).sum();
        let mut best = (0, 0u16, 0.0);
        self.candidates.clear();
        let mut limit = 0.0;
        for (p, pair) in self.pairs.iter().enumerate() {
            let (path, gain, price) = self.cheapest(net, pair);
            total += price * pair.bytes;
            let gain = gain * pair.bytes;
            if gain > best.2 {
                best = (p as u32, path, gain);
                limit = 0.3 * gain;
            }
            if gain > limit && self.candidates.len() < 8 * CANDIDATES_MAX {
                self.candidates.push(p as u32);
            }
        }
        *threshold = 0.3 * best.2;
        // Multipliers may sum to a little off one; a bound needs the true sum.
        let sum: f64 = (0..self.rows.len()).map(|r| (-self.inverse[r * self.stride]).max(0.0)).sum();
        *bound = bound.max(total / sum * (1.0 - 1e-12));
        if self.candidates.len() > CANDIDATES_MAX {
            let len = self.candidates.len();
            self.candidates.drain(..len - CANDIDATES_MAX);
        }
        if self.congestion <= *bound * (1.0 + gap) || best.2 <= 1e-9 * self.congestion {
            return None;
        }
        Some((best.0, best.1))
    }

    /// Seconds that moving a demand from its key to a path adds to each link.
    fn entries(&mut self, net: &Network, pair: u32, path: u16, out: &mut Vec<(u32, f64)>) {
        let Pair { src, dst, bytes, key, .. } = self.pairs[pair as usize];
        let (src, dst) = (usize::from(src), usize::from(dst));
        out.clear();
        let scratch = &mut self.scratch;
        let mut add = |path: usize, share: f64| {
            for l in net.path(src, dst, path) {
                if scratch[l as usize] == 0.0 {
                    out.push((l, 0.0));
                }
                scratch[l as usize] += share * bytes * net.inverse[l as usize];
            }
        };
        add(usize::from(path), 1.0);
        if key == COMPOSITE {
            let (a, b) = (net.host(src), net.host(dst));
            let shares = if a == b { net.intra_shares(src, dst) } else { net.weights_between(a, b) };
            shares.iter().enumerate().filter(|(_, s)| **s > 0.0).for_each(|(k, &s)| add(k, -s));
        } else {
            add(usize::from(key), -1.0);
        }
        out.iter_mut().for_each(|(l, v)| *v = std::mem::take(&mut scratch[*l as usize]));
        out.retain(|e| e.1 != 0.0);
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
                return true;
            }
            (Entering::Slack { row }, Blocking::Link(e)) => {
                self.columns[k] = new;
                self.dot_rows(e);
                return self.replace_row(row, e);
            }
            (Entering::Path { .. }, Blocking::Share(c)) => {
                let fine = self.replace_column(c);
                std::mem::swap(&mut self.columns[c], &mut new);
                self.columns[k] = new;
                return fine;
            }
            (Entering::Slack { row }, Blocking::Share(c)) => {
                self.columns[k] = new;
                return self.shrink(row, c);
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

    /// A link's coefficients times the inverse, into `dots`.
    fn dot_rows(&mut self, e: u32) {
        let k = self.rows.len();
        self.coefficients[0] = -1.0;
        for c in 1..k {
            let entry = self.columns[c].entries.iter().find(|x| x.0 == e);
            self.coefficients[c] = entry.map_or(0.0, |x| x.1);
        }
        for r in 0..k {
            let row = &self.inverse[r * self.stride..r * self.stride + k];
            self.dots[r] = self.coefficients[..k].iter().zip(row).map(|(c, n)| c * n).sum();
        }
    }

    fn grow(&mut self, e: u32, pivot: f64) {
        let k = self.rows.len();
        let stride = self.stride;
        for r in 0..k {
            let f = self.dots[r] / pivot;
            let row = &mut self.inverse[r * stride..r * stride + k + 1];
            row[..k].iter_mut().zip(&self.step[..k]).for_each(|(n, s)| *n += s * f);
            row[k] = -f;
        }
        let row = &mut self.inverse[k * stride..k * stride + k + 1];
        row[..k].iter_mut().zip(&self.step[..k]).for_each(|(n, s)| *n = -s / pivot);
        row[k] = 1.0 / pivot;
        self.row_of[e as usize] = k as u32;
        self.rows.push(e);
    }

    fn replace_row(&mut self, row: usize, e: u32) -> bool {
        let k = self.rows.len();
        let stride = self.stride;
        let pivot = self.dots[row];
        if pivot.abs() < 1e-13 {
            return false;
        }
        for r in (0..k).filter(|&r| r != row) {
            let f = self.dots[r] / pivot;
            for c in 0..k {
                self.inverse[r * stride + c] -= self.inverse[row * stride + c] * f;
            }
        }
        self.inverse[row * stride..row * stride + k].iter_mut().for_each(|n| *n /= pivot);
        self.row_of[self.rows[row] as usize] = NONE;
        self.rows[row] = e;
        self.row_of[e as usize] = row as u32;
        true
    }

    fn replace_column(&mut self, c: usize) -> bool {
        let k = self.rows.len();
        let pivot = self.step[c];
        if pivot.abs() < 1e-13 {
            return false;
        }
        for r in 0..k {
            let row = &mut self.inverse[r * self.stride..r * self.stride + k];
            let t = row[c] / pivot;
            row.iter_mut().zip(&self.step[..k]).for_each(|(n, s)| *n -= s * t);
            row[c] = t;
        }
        true
    }

    fn shrink(&mut self, row: usize, column: usize) -> bool {
        let k = self.rows.len();
        let stride = self.stride;
        let pivot = self.inverse[row * stride + column];
        if pivot.abs() < 1e-13 {
            return false;
        }
        for r in (0..k).filter(|&r| r != row) {
            let f = self.inverse[r * stride + column] / pivot;
            if f != 0.0 {
                for c in 0..k {
                    self.inverse[r * stride + c] -= f * self.inverse[row * stride + c];
                }
            }
        }
        // The last row and column take the places that become free.
        let last = k - 1;
        self.row_of[self.rows[row] as usize] = NONE;
        if row != last {
            for c in 0..k {
                self.inverse[row * stride + c] = self.inverse[last * stride + c];
            }
            self.row_of[self.rows[last] as usize] = row as u32;
        }
        self.rows.swap_remove(row);
        if column != last {
            for r in 0..last {
                self.inverse[r * stride + column] = self.inverse[r * stride + last];
            }
        }
        self.columns.swap(column, last);
        true
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
