//! The search for network parts that are slower than others of their kind: rails, switches with their hosts, hosts,
//! NICs.
//!
//! The search finds one part per round. Each round picks the part, and the share of its rate, that explains the
//! readings best. The physics predicts the bandwidth of every reading that the part touches. Residuals `ln(busbw /
//! bound)` follow Student's t distribution around one offset per class of jobs, so that a few bad readings do not
//! decide. A part must gain more than a price that grows with the number of parts of its kind, and must still gain
//! enough without the two readings that gain most.
//!
//! Cost: touched readings x factors x one estimate, for each part that at least three low readings touch. A healthy
//! site has few such parts.

use crate::calibrate::CalibrationReading;
use crate::rates::{Part, RatedCluster, SlowPart, slow_down};
use crate::stop::Stop;
use fabric::{Crossings, Fabric, FabricTables};
use std::collections::HashMap;
use std::sync::Arc;
use topology::{Allocation, Bytes, Cluster, Collective, HostId};

/// Candidate shares of its rate for a slow part. The Gaussian process corrects for parts at higher shares.
const FACTORS: [f64; 9] = [0.03, 0.07, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75];
/// Factors of the first pass, which ranks the parts; the best [`CLOSELY`] parts enter the second pass.
const COARSE: [f64; 3] = [0.15, 0.4, 0.7];
const CLOSELY: usize = 8;
/// Step (in the logarithm) and number of steps to either side when the best factor is refined.
const REFINE: (f64, i32) = (0.04, 4);
/// Maximum number of parts found.
const FOUND_MAX: usize = 24;
/// Minimum number of multi-host readings.
const READINGS_MIN: usize = 12;
/// Minimum number of low readings among those that a part touches, and their minimum share, for the part to be
/// examined.
const LOW: (usize, f64) = (3, 0.25);
/// A reading more than this many standard deviations below its expectation is low.
const LOW_SDS: f64 = 2.5;
/// Range of the standard deviation of ordinary readings around the physics.
const SD: (f64, f64) = (0.03, 0.12);
/// Degrees of freedom of Student's t distribution.
const FREEDOM: f64 = 4.0;
/// Prior standard deviation of the offset of a class of jobs from the physics.
const OFFSET_SD: f64 = 0.1;
/// If any class's offset is below this, a slow part may touch most of its jobs: rails and switches are then examined
/// even without low readings.
const OFFSET_LOW: f64 = -0.05;
/// Quantiles of a class's residuals at which the search for its offset starts: a slow part may touch most jobs of a
/// class.
const STARTS: [f64; 4] = [0.5, 0.7, 0.85, 0.95];
/// Price of a part, in addition to the logarithm of the number of parts of its kind: `-ln` of the probability that a
/// site has one.
const PRICE: f64 = 5.0;
/// A reading that a part slows by so much (of the logarithm) shows it.
const RAISED: f64 = 0.02;
/// Two parts on different hosts that explain this share of the same readings are rivals if their gains differ by less than [`UNTOLD`].
const SAME_READINGS: f64 = 0.6;
/// See [`SAME_READINGS`].
const UNTOLD: f64 = 3.0;
/// Number of readings that are left out when a part's gain is checked: those that gain most.
const WITHOUT: usize = 2;

/// One reading, prepared for the search.
struct Seen {
    allocation: Allocation,
    size: Bytes,
    ln_busbw: f64,
    /// Bandwidth of the reading's weakest host, GB/s.
    inside_gb_per_s: f64,
    /// Jobs of one class share one offset.
    class: usize,
}

/// Residuals, the offsets of their classes, and the total cost.
struct Explained {
    residuals: Vec<f64>,
    offsets: Vec<f64>,
    cost: f64,
}

struct Search<'a> {
    tables: &'a FabricTables,
    crossings: Option<Arc<Crossings>>,
    collective: Collective,
    seen: Vec<Seen>,
    classes: usize,
    sd: f64,
    stop: Stop<'a>,
}

/// A candidate part: its NICs and the readings that it touches.
struct Suspect {
    part: Part,
    nics: Vec<(HostId, u32)>,
    touched: Vec<u32>,
    price: f64,
}

/// A part that explains readings.
struct Explanation {
    /// Cost that it saves, less its price.
    gain: f64,
    suspect: Suspect,
    factor: f64,
    with: Explained,
    /// The readings that it slows.
    slowed: Vec<u32>,
}

impl Explanation {
    /// True if this part on other hosts explains most of the same readings about as well, or better: the readings do not tell the two apart.
    fn rivals(&self, other: &Explanation) -> bool {
        let host = |n: &(HostId, u32)| n.0;
        let elsewhere = !self.suspect.nics.iter().map(host).any(|h| other.suspect.nics.iter().any(|n| n.0 == h));
        let common = self.slowed.iter().filter(|i| other.slowed.binary_search(i).is_ok()).count();
        let most = common as f64 >= SAME_READINGS * other.slowed.len() as f64;
        elsewhere && most && self.gain > other.gain - UNTOLD
    }
}

/// The slow parts of a cluster at these rates, in the order found: the part with the largest gain first. Deterministic.
pub(crate) fn find(
    site: &RatedCluster,
    tables: &FabricTables,
    collective: Collective,
    readings: &[CalibrationReading],
    stop: Stop<'_>,
) -> Vec<SlowPart> {
    if readings.len() < READINGS_MIN {
        return Vec::new();
    }
    let mut search = Search::new(site, tables, collective, readings);
    search.stop = stop;
    let mut now = site.clone();
    let mut explained = search.explain(search.residuals(&now));
    search.sd = search.deviation(&explained);
    explained = search.explain(explained.residuals);
    let mut found: Vec<SlowPart> = Vec::new();
    while found.len() < FOUND_MAX {
        let Some((suspect, factor, next)) = search.best(&now, &explained) else { break };
        slow_down(&mut now.cluster, &suspect.nics, factor);
        let slowed = |i: &&u32| next.residuals[**i as usize] - explained.residuals[**i as usize] > RAISED;
        let readings = suspect.touched.iter().filter(slowed).count() as u32;
        match found.iter_mut().find(|f| f.part == suspect.part) {
            Some(again) => again.factor *= factor,
            None => found.push(SlowPart { part: suspect.part, factor, readings }),
        }
        explained = next;
    }
    found
}

impl<'a> Search<'a> {
    fn new(
        site: &RatedCluster,
        tables: &'a FabricTables,
        collective: Collective,
        readings: &[CalibrationReading],
    ) -> Search<'a> {
        let mut classes: HashMap<(Bytes, bool), usize> = HashMap::new();
        let mut seen = Vec::with_capacity(readings.len());
        for r in readings {
            let allocation = Allocation::new(r.parts.iter().map(|p| (p.host, p.mask)));
            let next = classes.len();
            let class = *classes.entry((r.size, allocation.host_count() == 2)).or_insert(next);
            seen.push(Seen {
                class,
                allocation,
                size: r.size,
                ln_busbw: r.busbw_gb_per_s.ln(),
                inside_gb_per_s: r.parts.iter().map(|p| p.intra_gb_per_s).fold(f64::INFINITY, f64::min),
            });
        }
        Search {
            tables,
            crossings: site.crossings(),
            collective,
            seen,
            classes: classes.len(),
            sd: SD.0,
            stop: Stop::default(),
        }
    }

    fn residual(&self, i: usize, fabric: &Fabric) -> f64 {
        let s = &self.seen[i];
        let between = fabric.estimate_between_hosts(&s.allocation, self.collective, s.size).busbw.gb_per_s();
        s.ln_busbw - between.min(s.inside_gb_per_s).max(1e-6).ln()
    }

    fn residuals(&self, site: &RatedCluster) -> Vec<f64> {
        let fabric = self.tables.on(&site.cluster).with_crossings(self.crossings.clone());
        (0..self.seen.len()).map(|i| self.residual(i, &fabric)).collect()
    }

    /// The offsets that fit the residuals best, and the total cost.
    fn explain(&self, residuals: Vec<f64>) -> Explained {
        let mut offsets = vec![0.0; self.classes];
        let mut cost = 0.0;
        for (class, offset) in offsets.iter_mut().enumerate() {
            let mut of_class: Vec<f64> =
                residuals.iter().zip(&self.seen).filter(|(_, s)| s.class == class).map(|(r, _)| *r).collect();
            of_class.sort_by(f64::total_cmp);
            let start = |q: f64| of_class[((of_class.len() - 1) as f64 * q) as usize];
            let best = STARTS
                .map(|q| self.settle(&of_class, start(q)))
                .into_iter()
                .reduce(|a, b| if b.1 < a.1 { b } else { a })
                .unwrap_or((0.0, 0.0));
            *offset = best.0;
            cost += best.1;
        }
        Explained { residuals, offsets, cost }
    }

    /// The best offset of one class near `start`, and the cost of the class.
    fn settle(&self, residuals: &[f64], start: f64) -> (f64, f64) {
        let mut offset = start;
        for _ in 0..6 {
            let (mut sum, mut weights) = (0.0, (self.sd / OFFSET_SD).powi(2));
            for r in residuals {
                let z = (r - offset) / self.sd;
                let weight = (FREEDOM + 1.0) / (FREEDOM + z * z);
                sum += weight * r;
                weights += weight;
            }
            offset = sum / weights;
        }
        let each: f64 = residuals.iter().map(|r| self.price_of(r - offset)).sum();
        (offset, each + 0.5 * (offset / OFFSET_SD).powi(2))
    }

    /// `-ln` of the density of a residual, up to a constant.
    fn price_of(&self, residual: f64) -> f64 {
        let z = residual / self.sd;
        0.5 * (FREEDOM + 1.0) * (z * z / FREEDOM).ln_1p()
    }

    fn off(&self, e: &Explained, i: usize) -> f64 {
        e.residuals[i] - e.offsets[self.seen[i].class]
    }

    /// Standard deviation of ordinary readings, from the residuals above their offset: slow parts lower the others.
    fn deviation(&self, e: &Explained) -> f64 {
        let above: Vec<f64> = (0..self.seen.len()).map(|i| self.off(e, i)).filter(|r| *r >= 0.0).collect();
        if above.is_empty() {
            return SD.0;
        }
        (stats::MAD_TO_SD * stats::upper_median(&above)).clamp(SD.0, SD.1)
    }

    /// The part with the largest gain, its factor, and the readings explained with it; `None` if no part gains more
    /// than its price.
    fn best(&self, site: &RatedCluster, now: &Explained) -> Option<(Suspect, f64, Explained)> {
        let mut work = site.cluster.clone();
        let mut coarse: Vec<(f64, Suspect)> = self
            .suspects(&site.cluster, now)
            .into_iter()
            .take_while(|_| !self.stop.is_set())
            .map(|s| {
                let of = |f| now.cost - self.with(&mut work, &s, f, now).cost - s.price;
                (COARSE.map(of).into_iter().fold(f64::NEG_INFINITY, f64::max), s)
            })
            .collect();
        coarse.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.part.cmp(&b.1.part)));
        coarse.truncate(CLOSELY);
        let mut close: Vec<Explanation> = Vec::new();
        for (_, suspect) in coarse {
            if self.stop.is_set() {
                return None;
            }
            let Some((factor, with)) = self.best_factor(&mut work, &suspect, now) else { continue };
            let gain = now.cost - with.cost - suspect.price;
            if gain > 0.0 && self.pays_without_some(now, &with, suspect.price) {
                let raised = |i: &u32| with.residuals[*i as usize] - now.residuals[*i as usize] > RAISED;
                let slowed = suspect.touched.iter().copied().filter(raised).collect();
                close.push(Explanation { gain, suspect, factor, with, slowed });
            }
        }
        close.sort_by(|a, b| b.gain.total_cmp(&a.gain));
        // Where the best has a rival, a part that explains less would only stand in for it.
        let told = !close.is_empty() && close[1..].iter().all(|other| !other.rivals(&close[0]));
        let found = told.then(|| close.swap_remove(0))?;
        Some((found.suspect, found.factor, found.with))
    }

    fn best_factor(&self, work: &mut Cluster, suspect: &Suspect, now: &Explained) -> Option<(f64, Explained)> {
        let better = |a: (f64, Explained), b: (f64, Explained)| if b.1.cost < a.1.cost { b } else { a };
        let first = FACTORS.map(|f| (f, self.with(work, suspect, f, now))).into_iter().reduce(better)?;
        let about = first.0;
        let near = (-REFINE.1..=REFINE.1).filter(|k| *k != 0).map(|k| about * (f64::from(k) * REFINE.0).exp());
        near.map(|f| (f, self.with(work, suspect, f, now))).fold(first, better).into()
    }

    /// True if a part still gains enough without the [`WITHOUT`] readings that gain most.
    fn pays_without_some(&self, now: &Explained, with: &Explained, price: f64) -> bool {
        let gain = |i| self.price_of(self.off(now, i)) - self.price_of(self.off(with, i));
        let mut gains: Vec<f64> = (0..self.seen.len()).map(gain).collect();
        gains.sort_by(|a, b| b.total_cmp(a));
        gains.iter().skip(WITHOUT).sum::<f64>() > 0.5 * price
    }

    /// The readings explained with a part at the share `factor` of its rate.
    fn with(&self, work: &mut Cluster, suspect: &Suspect, factor: f64, now: &Explained) -> Explained {
        let before: Vec<Vec<f64>> = suspect.nics.iter().map(|n| work.hosts[n.0.index()].nic_health.clone()).collect();
        slow_down(work, &suspect.nics, factor);
        let mut residuals = now.residuals.clone();
        let fabric = self.tables.on(work).with_crossings(self.crossings.clone());
        suspect.touched.iter().for_each(|i| residuals[*i as usize] = self.residual(*i as usize, &fabric));
        for (n, health) in suspect.nics.iter().zip(before) {
            work.hosts[n.0.index()].nic_health = health;
        }
        self.explain(residuals)
    }

    /// The parts that enough low readings touch.
    fn suspects(&self, cluster: &Cluster, now: &Explained) -> Vec<Suspect> {
        let low: Vec<bool> = (0..self.seen.len()).map(|i| self.off(now, i) < -LOW_SDS * self.sd).collect();
        let most = now.offsets.iter().any(|o| *o < OFFSET_LOW);
        if !most && low.iter().filter(|l| **l).count() < LOW.0 {
            return Vec::new();
        }
        // Key of a part: its kind (0 rail, 1 switch, 2 rail below a switch, 3 host, 4 NIC) and its indices.
        let mut touched: HashMap<(u8, u32, u32), Vec<u32>> = HashMap::new();
        let mut touch = |key, i: usize| {
            let list = touched.entry(key).or_default();
            if list.last() != Some(&(i as u32)) {
                list.push(i as u32);
            }
        };
        let (mut rails, mut nics_of_all) = (0u32, 0usize);
        for t in cluster.hosts.iter().map(|h| &cluster.types[h.host_type]) {
            rails = rails.max(t.nics.len() as u32);
            nics_of_all += t.nics.len();
        }
        for (i, s) in self.seen.iter().enumerate() {
            for &(h, mask) in s.allocation.parts() {
                let nics = cluster.type_of(h).nics_touched(mask);
                for nic in (0..rails).filter(|n| nics >> n & 1 == 1) {
                    touch((0, nic, 0), i);
                    touch((4, h.0, nic), i);
                    if !cluster.tiers().is_empty() {
                        touch((2, cluster.switch_of(0, h) as u32, nic), i);
                    }
                }
                if nics != 0 {
                    touch((3, h.0, 0), i);
                    (0..cluster.tiers().len()).for_each(|t| touch((1, t as u32, cluster.switch_of(t, h) as u32), i));
                }
            }
        }
        let switches: usize = (0..cluster.tiers().len()).map(|t| cluster.switch_count(t)).sum();
        let mut out: Vec<Suspect> = touched
            .into_iter()
            .filter_map(|(key, touched)| {
                let n = touched.iter().filter(|i| low[**i as usize]).count();
                let shared = most && key.0 <= 1;
                if !shared && (n < LOW.0 || (n as f64) < LOW.1 * touched.len() as f64) {
                    return None;
                }
                let host = |h: u32| cluster.hosts[h as usize].name.clone();
                let (part, of_kind) = match key {
                    (0, nic, _) => (Part::Rail { nic: nic as u8 }, rails as usize),
                    (1, t, s) => {
                        let (tier, switch) = (t as usize, s as usize);
                        if cluster.hosts_below(tier, switch).len() < 2 {
                            return None;
                        }
                        let name = cluster.tiers()[tier].name.clone();
                        (Part::Switch { tier: name, switch: cluster.switch_name(tier, switch).into_owned() }, switches)
                    }
                    (2, s, nic) => {
                        if cluster.hosts_below(0, s as usize).len() < 2 {
                            return None;
                        }
                        let (tier, switch) = (cluster.tiers()[0].name.clone(), cluster.switch_name(0, s as usize));
                        let of_kind = cluster.switch_count(0) * rails as usize;
                        (Part::SwitchRail { tier, switch: switch.into_owned(), nic: nic as u8 }, of_kind)
                    }
                    (3, h, _) => (Part::Host { host: host(h) }, cluster.hosts.len()),
                    (_, h, nic) => (Part::Nic { host: host(h), nic: nic as u8 }, nics_of_all),
                };
                let nics = part.nics(cluster);
                Some(Suspect { part, nics, touched, price: PRICE + (of_kind.max(1) as f64).ln() })
            })
            .collect();
        out.sort_by(|a, b| a.part.cmp(&b.part));
        out
    }
}
