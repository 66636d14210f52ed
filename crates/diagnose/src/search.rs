//! The search for defects: finds one defect after the other, each given those found before it.
//!
//! Hypotheses are evaluated host by host. A hypothesis depends only on the readings of its host, on the defects found
//! before it and on the time of the newest of all readings. A host is therefore evaluated again only if one of these
//! changed. Many components have the same readings with the same effects (for example all NICs of a host that only runs
//! whole-host jobs); they are evaluated once. Equivalent hosts share the effects and gains of a reading.
//!
//! Cost per host: readings x distinct components x [`FACTORS`] additions. The physics is evaluated once per shape of an
//! allocation.

mod classes;
mod noise;

use super::effect::{Component, Effects, ORDERED_HOSTS_MAX, Prepared, SlowPart, Touch};
use super::evidence::{Evidence, Expected, Residual};
use super::infer::{
    Candidate, Defect, FACTORS, LISTED_MIN, MOMENTS_MAX, REFINE, SLOWED, explained, gain, ln_add, ln_density,
    ln_moments, outlier_share, prior,
};
use super::{DEFECTS_MAX, PROBABILITY_MIN};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use topology::HostId;

/// A form of a hypothesis whose log weight is this much below the best form's is not added to the sum.
const NEGLIGIBLE: f64 = 40.0;
/// A component is not slow if none of its readings is this many standard deviations below expectation.
const LOW_SDS: f64 = 1.5;
/// Prior probability of a slow component that a single reading of one host shows, relative to another component. A run on
/// one host takes seconds and is disturbed by whatever else runs there, so such readings have more outliers.
const LONE: f64 = 0.05;
/// Prior probability of a slow GPU that no reading of its own host shows, relative to another component.
const GPU_UNSEEN: f64 = 0.1;

/// Readings this many standard deviations below expectation show the share of outliers.
const OUTLIER_SEEN_SDS: f64 = 4.0;

const N: usize = FACTORS.len();

/// Effects and gains of a component on a reading, by factor.
#[derive(Debug)]
struct Row {
    effects: [f64; N],
    gains: [f64; N],
}

/// The rows of one reading, by host index and slow part.
type Rows = Vec<(u32, Arc<Row>)>;

/// One reading in the search.
#[derive(Debug)]
pub(super) struct Item {
    pub evidence: Evidence,
    pub expected: Expected,
    pub residual: Option<Residual>,
    prepared: Prepared,
    /// By host of the allocation, in its order.
    places: Vec<Place>,
    rows: Rows,
}

/// A host of an allocation.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Index of the first host on which a slow network or NIC has the same effect, and of the first on which a slow GPU
    /// has.
    like: u16,
    like_gpu: u16,
    /// The NICs nearest to its GPUs.
    nics: u32,
}

/// One reading of a host during the evaluation of the host's components.
#[derive(Clone, Copy)]
struct Touched {
    item: u32,
    /// Index of the host in the allocation.
    at: u32,
    touch: Touch,
    /// Key of the row among the rows of the reading.
    key: u32,
    /// Index of the reading among the host's readings.
    rank: u32,
}

impl Item {
    fn left(&self) -> f64 {
        self.residual.map_or(0.0, |r| r.ln_ratio)
    }
    /// True if it is far below what is expected of it.
    fn is_low(&self) -> bool {
        self.left() < -OUTLIER_SEEN_SDS * self.sd()
    }
    /// 0 for a reading of one host, 1 for one of several.
    fn kind(&self) -> usize {
        usize::from(self.evidence.allocation.host_count() > 1)
    }
    /// The share of outliers among readings like it, given those among readings of one host and of several.
    fn outliers(&self, shares: [f64; 2]) -> f64 {
        outlier_share(shares[self.kind()], self.evidence.repetitions)
    }
    fn sd(&self) -> f64 {
        self.residual.map_or(1.0, |r| r.sd)
    }
}

/// The explanation of a host's readings by one slow component.
#[derive(Clone, Debug)]
struct Hypothesis {
    component: Component,
    /// Logarithm of its weight relative to no defect, summed over factors and moments.
    ln_weight: f64,
    factor: f64,
    /// Index of its best moment among the readings that it touches.
    start: usize,
    gain: f64,
    /// See [`Search::touched`].
    everywhere: bool,
    refined: OnceLock<Candidate>,
}

impl Hypothesis {
    /// Two forms of a hypothesis as one: the sum of their weights, and the better form.
    fn or(&self, other: Hypothesis) -> Hypothesis {
        let ln_weight = ln_add(self.ln_weight, other.ln_weight);
        let better = if other.ln_weight > self.ln_weight { other } else { self.clone() };
        Hypothesis { ln_weight, ..better }
    }
}

/// The evaluated hosts of one round.
#[derive(Debug, Default)]
struct Round {
    /// The defects found before.
    given: Vec<Candidate>,
    /// By host: the version at which it was evaluated, and its hypotheses.
    hosts: Vec<Option<(u64, Arc<[Hypothesis]>)>>,
}

/// State of all readings in a round. By item: the part that earlier defects explain, and the shift of its class.
struct Given {
    explained: Vec<f64>,
    shift: Vec<f64>,
    /// The remaining residual, its standard deviation, and the log density of both.
    left: Vec<f64>,
    sd: Vec<f64>,
    ln_density: Vec<f64>,
    /// By host: true if the last defect found changed one of its readings.
    changed: Vec<bool>,
    /// Buffer for the effects of one hypothesis, by item; 0 between uses.
    effects: Vec<f64>,
    /// By class: its items.
    classes: Vec<Vec<u32>>,
    newest_unix_s: f64,
    /// Number of components of the cluster, and the standard deviation of healthy hosts' levels.
    components: usize,
    level_sd: f64,
    /// By item: the share of outliers among readings like it.
    outliers: Vec<f64>,
    /// Rows that differ from those of the first round, by item.
    rows: HashMap<u32, Rows>,
}

/// Readings by host, with all values derived from them.
#[derive(Debug, Default)]
pub(super) struct Search {
    items: Vec<Option<Item>>,
    free: Vec<u32>,
    /// By host: its items in the order of time, each with the host's index in the allocation.
    by_host: Vec<Vec<(u32, u32)>>,
    /// By host: a counter that every change of its readings increments.
    version: Vec<u64>,
    newest_unix_s: f64,
    rounds: Vec<Round>,
    /// Standard deviation of hosts' levels in the last diagnosis, see [`level_sd`].
    level_sd: f64,
    /// Shares of outliers in the last diagnosis; 0 before the first one.
    outliers: [f64; 2],
    /// Number of computed effects of a component on a reading.
    pub(super) evaluations: u64,
}

impl Search {
    pub(super) fn new(hosts: usize) -> Search {
        Search {
            by_host: vec![Vec::new(); hosts],
            version: vec![0; hosts],
            newest_unix_s: f64::NEG_INFINITY,
            ..Search::default()
        }
    }

    /// Adds a reading and returns its number. O(hosts x log readings).
    pub(super) fn insert(&mut self, effects: &Effects, evidence: Evidence, expected: Expected) -> u32 {
        let prepared = effects.prepare(&evidence.allocation, evidence.size);
        let places = places(effects, &evidence);
        let item = Item { evidence, expected, residual: None, prepared, places, rows: Vec::new() };
        let id = self.free.pop().unwrap_or(self.items.len() as u32);
        let order = |i: u32, items: &[Option<Item>]| {
            let e = items[i as usize].as_ref().map(|o| &o.evidence);
            e.map_or(std::cmp::Ordering::Less, |e| order(e, &item.evidence))
        };
        for (place, &(h, _)) in item.evidence.allocation.parts().iter().enumerate() {
            let list = &mut self.by_host[h.index()];
            let at = list.partition_point(|i| order(i.0, &self.items) == std::cmp::Ordering::Less);
            list.insert(at, (id, place as u32));
            self.version[h.index()] += 1;
        }
        if id as usize == self.items.len() {
            self.items.push(Some(item));
        } else {
            self.items[id as usize] = Some(item);
        }
        id
    }

    /// Removes a reading. O(hosts x readings of a host).
    pub(super) fn remove(&mut self, id: u32) {
        let Some(item) = self.items.get_mut(id as usize).and_then(Option::take) else { return };
        for &(h, _) in item.evidence.allocation.parts() {
            self.by_host[h.index()].retain(|i| i.0 != id);
            self.version[h.index()] += 1;
        }
        self.free.push(id);
    }

    /// All readings, with their numbers.
    pub(super) fn items(&self) -> impl Iterator<Item = (u32, &Item)> {
        self.items.iter().enumerate().filter_map(|(i, x)| x.as_ref().map(|x| (i as u32, x)))
    }

    /// Replaces the residual of a reading.
    pub(super) fn set_residual(&mut self, id: u32, residual: Option<Residual>) {
        let Some(item) = self.items.get_mut(id as usize).and_then(Option::as_mut) else { return };
        if item.residual == residual {
            return;
        }
        item.residual = residual;
        item.rows.clear();
        for &(h, _) in item.evidence.allocation.parts() {
            self.version[h.index()] += 1;
        }
    }

    fn touch(&mut self, moment: f64) {
        for item in self.items.iter().flatten().filter(|i| i.evidence.at_unix_s == moment) {
            item.evidence.allocation.parts().iter().for_each(|p| self.version[p.0.index()] += 1);
        }
    }

    /// Finds defects as long as a further one is probable.
    pub(super) fn explain(&mut self, effects: &Effects) -> Vec<Defect> {
        let outliers = [0, 1].map(|kind| self.outlier_share(kind));
        if outliers != std::mem::replace(&mut self.outliers, outliers) {
            self.rounds.clear();
            self.items.iter_mut().flatten().for_each(|x| x.rows.clear());
        }
        let newest = self
            .items()
            .filter(|x| x.1.residual.is_some())
            .map(|(_, i)| i.evidence.at_unix_s)
            .fold(f64::NEG_INFINITY, f64::max);
        if newest != self.newest_unix_s {
            let before = std::mem::replace(&mut self.newest_unix_s, newest);
            self.touch(before);
            self.touch(newest);
        }
        let level_sd = self.level_sd_now();
        if level_sd != std::mem::replace(&mut self.level_sd, level_sd) {
            self.rounds.clear();
        }
        let cluster = effects.cluster();
        let of_host = |h| 2 + cluster.type_of(h).nics.len() + cluster.type_of(h).gpu_count();
        let n = self.items.len();
        let mut given = Given {
            components: cluster.host_ids().map(of_host).sum(),
            level_sd,
            outliers: self.items.iter().map(|x| x.as_ref().map_or(0.0, |x| x.outliers(outliers))).collect(),
            explained: vec![0.0; n],
            shift: vec![0.0; n],
            left: self.items.iter().map(|x| x.as_ref().map_or(0.0, Item::left)).collect(),
            sd: self.items.iter().map(|x| x.as_ref().map_or(1.0, Item::sd)).collect(),
            ln_density: vec![0.0; n],
            changed: vec![false; self.by_host.len()],
            effects: vec![0.0; n],
            classes: self.classes(),
            newest_unix_s: newest,
            rows: HashMap::new(),
        };
        for i in 0..n {
            given.ln_density[i] = ln_density(given.left[i], given.sd[i], given.outliers[i]);
        }
        let mut defects: Vec<Defect> = Vec::new();
        let mut before: Vec<Candidate> = Vec::new();
        while defects.len() < DEFECTS_MAX {
            let Some(defect) = self.round(effects, &before, &mut given) else { break };
            let best = defect.candidates[0];
            given.changed.fill(false);
            given.changed[best.component.host().index()] = true;
            for &(i, _) in &self.by_host[best.component.host().index()] {
                if let Some(item) = &self.items[i as usize] {
                    let e = explained(effects, &best, &item.evidence, given.left[i as usize]);
                    if e != 0.0 {
                        self.change(i, e, 0.0, &mut given);
                    }
                }
            }
            self.settle(&mut given);
            before.push(best);
            defects.push(defect);
        }
        self.rounds.truncate(before.len() + 1);
        defects
    }

    /// The next defect, given the earlier ones; `None` if no further defect is probable.
    fn round(&mut self, effects: &Effects, before: &[Candidate], given: &mut Given) -> Option<Defect> {
        let at = before.len();
        let same =
            |a: &Candidate, b: &Candidate| a.component == b.component && a.factor == b.factor && a.since == b.since;
        let kept = self.rounds.get(at).is_some_and(|r| {
            r.given.len() == at && r.given.iter().zip(before).all(|(a, b)| same(a, b)) && given.classes.is_empty()
        });
        if !kept {
            self.rounds.truncate(at);
            self.rounds.push(Round { given: before.to_vec(), hosts: vec![None; self.by_host.len()] });
        }
        for h in 0..self.by_host.len() {
            let version = self.version[h];
            if self.rounds[at].hosts[h].as_ref().is_none_or(|x| x.0 != version) {
                // A host has the same hypotheses as in the round before if the last defect changed none of its
                // readings.
                let found = match at.checked_sub(1).and_then(|b| self.rounds[b].hosts[h].as_ref()) {
                    Some((_, found)) if !given.changed[h] => Arc::clone(found),
                    _ => self.host(effects, HostId(h as u32), before, given),
                };
                self.rounds[at].hosts[h] = Some((version, found));
            }
        }
        let round = std::mem::take(&mut self.rounds[at]);
        let all = || round.hosts.iter().flatten().flat_map(|x| x.1.iter());
        // 0 is the logarithm of the weight of "no defect", to which all weights are relative.
        let total = all().fold(0.0, |s, x| ln_add(s, x.ln_weight));
        let probability = 1.0 - (-total).exp();
        let found = if all().next().is_none() || probability < PROBABILITY_MIN {
            None
        } else {
            let mut listed: Vec<(f64, &Hypothesis)> =
                all().map(|x| ((x.ln_weight - total).exp(), x)).filter(|x| x.0 >= LISTED_MIN).collect();
            listed.sort_by(|a, b| b.1.ln_weight.total_cmp(&a.1.ln_weight).then(a.1.component.cmp(&b.1.component)));
            let candidates: Vec<Candidate> = listed
                .into_iter()
                .map(|(probability, x)| {
                    let refined = x.refined.get_or_init(|| self.refine(effects, x, given));
                    Candidate { probability, ..*refined }
                })
                .collect();
            (!candidates.is_empty()).then_some(Defect { probability, candidates })
        };
        self.rounds[at] = round;
        found
    }

    /// The readings of a host that the component touches, in the order of time. `everywhere`: a link is used by every
    /// job with both of its GPUs, and not only by those whose rings cannot avoid it.
    fn touched(&self, effects: &Effects, component: Component, everywhere: bool, out: &mut Vec<Touched>) {
        out.clear();
        let cluster = effects.cluster();
        let h = component.host();
        // The NICs of the host with the same rate as the component.
        let same_rate = match component {
            Component::Nic(_, i) => (0..cluster.type_of(h).nics.len())
                .filter(|o| cluster.nic_rate(h, *o) == cluster.nic_rate(h, i.into()))
                .fold(0u32, |m, o| m | 1 << o),
            _ => 0,
        };
        for (rank, &(i, at)) in self.by_host[h.index()].iter().enumerate() {
            let Some(item) = &self.items[i as usize] else { continue };
            if item.residual.is_none() {
                continue;
            }
            let parts = item.evidence.allocation.parts();
            let place = item.places[at as usize];
            let mask = parts[at as usize].1;
            let touch = match component {
                Component::Link(_, a, b) if everywhere && mask.contains(a.into()) && mask.contains(b.into()) => {
                    if parts.len() > 1 { Touch::Part(SlowPart::Gpu) } else { Touch::Whole }
                }
                _ => Effects::slow_part(component, mask, place.nics, parts.len()),
            };
            let key = match touch {
                Touch::Not => continue,
                Touch::Whole => 0,
                Touch::Part(SlowPart::Network) => u32::from(place.like) << 8 | 1,
                Touch::Part(SlowPart::Gpu) => u32::from(place.like_gpu) << 8 | 2,
                Touch::Part(SlowPart::Nic(n)) => {
                    let ordered = parts.len() <= ORDERED_HOSTS_MAX;
                    let first = if ordered { u32::from(n) } else { (place.nics & same_rate).trailing_zeros() };
                    u32::from(place.like) << 8 | (3 + first)
                }
            };
            out.push(Touched { item: i, at, touch, key, rank: rank as u32 });
        }
    }

    /// Every hypothesis about the components of a host.
    fn host(&mut self, effects: &Effects, h: HostId, before: &[Candidate], given: &mut Given) -> Arc<[Hypothesis]> {
        let ty = effects.cluster().type_of(h);
        let gpus = ty.gpu_count() as u8;
        let list = &self.by_host[h.index()];
        if !list.iter().any(|i| given.is_low(i.0)) {
            return Arc::default();
        }
        let links = (0..gpus).flat_map(|a| (a + 1..gpus).map(move |b| Component::Link(h, a, b)));
        let on_one_host = list
            .iter()
            .any(|(i, _)| self.items[*i as usize].as_ref().is_some_and(|x| x.evidence.allocation.host_count() == 1));
        let components = [Component::Host(h), Component::HostNetwork(h)]
            .into_iter()
            .chain((0..ty.nics.len() as u8).map(|i| Component::Nic(h, i)))
            .chain((0..gpus).map(|g| Component::Gpu(h, g)))
            .chain(links.filter(|_| on_one_host));
        let levels = self.level_gains(h, given);
        let mut out: Vec<Hypothesis> = Vec::new();
        // Components with the same readings and the same rows have the same weight.
        let mut seen: Vec<(f64, Vec<Touched>, Option<Hypothesis>)> = Vec::new();
        let mut touched = Vec::new();
        // Rings of many GPUs avoid a slow link, or they do not: both forms are weighed.
        let forms = components
            .filter(|c| before.iter().all(|b| b.component != *c))
            .flat_map(|c| [false, true].into_iter().filter(move |e| !e || c.kind() == "link").map(move |e| (c, e)));
        for (component, everywhere) in forms {
            self.touched(effects, component, everywhere, &mut touched);
            let prior = prior(component, given.components)
                * self.prior_factor(component, &touched, given)
                * if self.is_lone(&touched, given) { LONE } else { 1.0 };
            let same = |t: &Vec<Touched>| {
                t.len() == touched.len() && t.iter().zip(&touched).all(|(a, b)| a.item == b.item && a.key == b.key)
            };
            let found = match seen.iter().find(|s| s.0 == prior && same(&s.1)) {
                Some(s) => s.2.clone(),
                None => {
                    let found = self.hypothesis(effects, (component, prior), &touched, &levels, given);
                    seen.push((prior, touched.clone(), found.clone()));
                    found
                }
            };
            let Some(found) = found.map(|x| Hypothesis { component, everywhere, ..x }) else { continue };
            match out.last_mut().filter(|x| x.component == component) {
                Some(avoided) => *avoided = avoided.or(found),
                None => out.push(found),
            }
        }
        out.into()
    }

    /// The factor of a component's prior. A reading over hosts shows a slow GPU and its slow NIC alike; a slow GPU also
    /// slows readings of its own host. Without these, the NIC takes over the GPU's prior.
    fn prior_factor(&self, component: Component, touched: &[Touched], given: &Given) -> f64 {
        let alone =
            |t: &Touched| self.items[t.item as usize].as_ref().is_some_and(|x| x.evidence.allocation.host_count() == 1);
        match component {
            Component::Gpu(..) if !touched.iter().any(|t| alone(t) && given.is_low(t.item)) => GPU_UNSEEN,
            Component::Nic(..) => 2.0 - GPU_UNSEEN,
            // Each of its two forms.
            Component::Link(..) => 0.5,
            _ => 1.0,
        }
    }

    /// True if one reading alone is low, and it is of one host.
    fn is_lone(&self, touched: &[Touched], given: &Given) -> bool {
        let mut low = touched.iter().filter(|t| given.is_low(t.item));
        let first = low.next().and_then(|t| self.items[t.item as usize].as_ref());
        low.next().is_none() && first.is_some_and(|x| x.evidence.allocation.host_count() == 1)
    }

    /// The row of a reading, computed once, and again in rounds in which it differs.
    fn row(&mut self, effects: &Effects, t: Touched, given: &mut Given) -> Arc<Row> {
        let at = t.item as usize;
        let (left, sd, ln_density) = (given.left[at], given.sd[at], given.ln_density[at]);
        let outliers = given.outliers[at];
        let first = given.explained[at] == 0.0 && given.shift[at] == 0.0;
        let Some(item) = &mut self.items[at] else {
            return Arc::new(Row { effects: [0.0; N], gains: [0.0; N] });
        };
        let rows = if first { &mut item.rows } else { given.rows.entry(t.item).or_default() };
        if let Some(r) = rows.iter().find(|r| r.0 == t.key) {
            return Arc::clone(&r.1);
        }
        self.evaluations += N as u64;
        let e = &item.evidence;
        let effects = FACTORS.map(|factor| match t.touch {
            Touch::Not => 0.0,
            Touch::Whole => factor.ln(),
            Touch::Part(part) => effects.across(&item.prepared, part, factor, &e.allocation, t.at as usize, e.size),
        });
        let row = Arc::new(Row { effects, gains: effects.map(|e| gain(left, sd, ln_density, e, 0.0, outliers)) });
        rows.push((t.key, Arc::clone(&row)));
        row
    }

    /// The hypothesis that a component is slow: the logarithm of its weight relative to no defect, summed over factors
    /// and moments, and its best form. `None` if no reading is low.
    fn hypothesis(
        &mut self,
        effects: &Effects,
        (component, prior): (Component, f64),
        touched: &[Touched],
        levels: &[f64],
        given: &mut Given,
    ) -> Option<Hypothesis> {
        if !touched.iter().any(|t| given.is_low(t.item)) {
            return None;
        }
        let ln_prior = prior.ln();
        let (times, starts) = self.moments(touched);
        let ln_when = ln_moments(&times, &starts, given.newest_unix_s);
        let ln_always = if starts.is_empty() { 0.0 } else { 0.5f64.ln() };
        let ln_factor = -(N as f64).ln();
        let rows: Vec<Arc<Row>> = touched.iter().map(|t| self.row(effects, *t, given)).collect();
        let mut gain_from = vec![[0.0; N]; rows.len() + 1];
        for (k, row) in rows.iter().enumerate().rev() {
            gain_from[k] = std::array::from_fn(|f| gain_from[k + 1][f] + row.gains[f]);
        }
        if !given.classes.is_empty() {
            gain_from[0] = std::array::from_fn(|f| {
                let effects: Vec<(u32, f64)> = touched.iter().zip(&rows).map(|(t, r)| (t.item, r.effects[f])).collect();
                self.gain_with_classes(&effects, given)
            });
        }
        let mut best = (f64::NEG_INFINITY, 1.0, 0usize, 0.0);
        // A defect must explain more than the level of a healthy host.
        let level = |start: usize| touched.get(start).map_or(0.0, |t| levels[t.rank as usize]);
        let mut forms = Vec::with_capacity(N * (starts.len() + 1));
        for (f, factor) in FACTORS.into_iter().enumerate() {
            for (start, ln_when) in
                std::iter::once((0, ln_always)).chain(starts.iter().copied().zip(ln_when.iter().copied()))
            {
                let ln = ln_prior + ln_factor + ln_when + gain_from[start][f] - level(start);
                forms.push(ln);
                if ln > best.0 {
                    best = (ln, factor, start, gain_from[start][f]);
                }
            }
        }
        let sum: f64 = forms.iter().map(|ln| ln - best.0).filter(|d| *d > -NEGLIGIBLE).map(f64::exp).sum();
        Some(Hypothesis {
            component,
            ln_weight: best.0 + sum.ln(),
            factor: best.1,
            start: best.2,
            gain: best.3,
            everywhere: false,
            refined: OnceLock::new(),
        })
    }

    /// The times of the readings that a component touches, and the indices of readings from which it can be slow. A
    /// moment is likelier the longer the gap before the reading.
    fn moments(&self, touched: &[Touched]) -> (Vec<f64>, Vec<usize>) {
        let time =
            |t: &Touched| self.items[t.item as usize].as_ref().map_or(f64::NEG_INFINITY, |x| x.evidence.at_unix_s);
        let times: Vec<f64> = touched.iter().map(time).collect();
        let starts: Vec<usize> = (1..times.len()).filter(|&k| times[k] > times[k - 1]).collect();
        let step = starts.len().div_ceil(MOMENTS_MAX).max(1);
        (times, starts.into_iter().rev().step_by(step).collect())
    }

    /// The best form of a hypothesis, with the factor refined by small steps.
    fn refine(&self, effects: &Effects, x: &Hypothesis, given: &mut Given) -> Candidate {
        let mut touched = Vec::new();
        self.touched(effects, x.component, x.everywhere, &mut touched);
        let (times, _) = self.moments(&touched);
        let effect = |t: &Touched, factor: f64| match (t.touch, &self.items[t.item as usize]) {
            (Touch::Whole, _) => factor.ln(),
            (Touch::Part(part), Some(item)) => {
                let e = &item.evidence;
                effects.across(&item.prepared, part, factor, &e.allocation, t.at as usize, e.size)
            }
            _ => 0.0,
        };
        let from = &touched[x.start..];
        let (factor, ln_likelihood_ratio) = (-REFINE.1..=REFINE.1)
            .map(|k| {
                let factor = (x.factor * (f64::from(k) * REFINE.0).exp()).min(0.95);
                let each: Vec<(u32, f64)> = from.iter().map(|t| (t.item, effect(t, factor))).collect();
                let gain = if x.start == 0 {
                    self.gain_with_classes(&each, given)
                } else {
                    each.iter().map(|&(i, e)| given.gain(i, e, 0.0)).sum()
                };
                (factor, gain)
            })
            .reduce(|a, b| if b.1 > a.1 { b } else { a })
            .unwrap_or((x.factor, x.gain));
        Candidate {
            component: x.component,
            factor,
            since: (x.start > 0).then(|| times[x.start]),
            probability: 0.0,
            readings: from.iter().filter(|t| effect(t, factor) < SLOWED).count(),
            ln_likelihood_ratio,
        }
    }
}

impl Given {
    fn is_low(&self, i: u32) -> bool {
        self.left[i as usize] < -LOW_SDS * self.sd[i as usize]
    }

    fn gain(&self, i: u32, effect: f64, shift: f64) -> f64 {
        let outliers = self.outliers[i as usize];
        gain(self.left[i as usize], self.sd[i as usize], self.ln_density[i as usize], effect, shift, outliers)
    }
}

/// The host entries of a reading. O(hosts x kinds of hosts).
fn places(effects: &Effects, e: &Evidence) -> Vec<Place> {
    let parts = e.allocation.parts();
    let cluster = effects.cluster();
    let mut out: Vec<Place> = Vec::with_capacity(parts.len());
    // Host type, GPUs, NICs of the GPUs, and index.
    let mut last: Option<(usize, u32, u32)> = None;
    for (at, &(h, mask)) in parts.iter().enumerate() {
        let host_type = cluster.host(h).host_type;
        let nics = match last {
            Some((t, m, nics)) if t == host_type && m == mask.0 => nics,
            _ => cluster.types[host_type].nics_touched(mask),
        };
        last = Some((host_type, mask.0, nics));
        let like = |part| effects.like(part, &e.allocation, at, e.size).0 as u16;
        let several = parts.len() > 1;
        out.push(Place {
            like: if several { like(SlowPart::Network) } else { 0 },
            like_gpu: if several { like(SlowPart::Gpu) } else { 0 },
            nics,
        });
    }
    out
}

/// The order of readings: by time, then by content.
fn order(a: &Evidence, b: &Evidence) -> std::cmp::Ordering {
    a.at_unix_s
        .total_cmp(&b.at_unix_s)
        .then_with(|| (a.size, &a.allocation).cmp(&(b.size, &b.allocation)))
        .then(a.ln_busbw.total_cmp(&b.ln_busbw))
}
