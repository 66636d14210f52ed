//! One step of the simplex method: the entering column, the ratio test, and the exchange in the basis.

use super::{BasicColumn, Blocking, COMPOSITE, DemandPair, Entering, NONE, Pivots};
use crate::network::RoutingNetwork;

impl Pivots {
    /// Computes the seconds that moving a demand from its key to a path adds to each link, into `out`.
    fn entries(&mut self, net: &RoutingNetwork, pair: u32, path: u16, out: &mut Vec<(u32, f64)>) {
        let pair = self.pairs[pair as usize];
        let DemandPair { src, dst, bytes, key, hosts, .. } = pair;
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

    /// One step of the simplex method. `false` if rounding errors make the result unreliable.
    pub(super) fn pivot(&mut self, net: &RoutingNetwork, entering: Entering) -> bool {
        let k = self.rows.len();
        let stride = self.stride;
        while self.columns.len() <= k {
            self.columns.push(BasicColumn::default());
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
        // Take the step.
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

    /// The length of the step and what limits it.
    fn ratio_test(&mut self, new: &BasicColumn) -> Option<(f64, Blocking)> {
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

    /// Replaces what limited the step by the entering column or slack. `false` if the pivot element is too small.
    fn exchange(&mut self, net: &RoutingNetwork, entering: Entering, blocking: Blocking, mut new: BasicColumn) -> bool {
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
                    // The whole demand moves to the path, which becomes its key. The basis does not change.
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

    /// Makes a basic column of a demand its key. The old key takes the column's position with share 0.
    fn new_key(&mut self, net: &RoutingNetwork, pair: u32, heir: usize, entering_too: bool) {
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
