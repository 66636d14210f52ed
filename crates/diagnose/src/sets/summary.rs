//! Defects from the draws: the parts that most draws have in common, and those that replace them in the others.

use super::problem::Problem;
use super::sampler::{Element, SDS, State};
use super::{Drawn, Offsets, SHARE_MAX, SHARE_STEP, SHARES, Sets, Thing, ln_share};
use crate::DEFECTS_MAX;
use crate::infer::{Candidate, Defect, LISTED_MIN, SLOWED};
use predict::{Part, SlowPart};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use topology::Cluster;

/// Parts of two draws are the same defect if their shares differ by at most this (of the logarithm).
const SAME_SHARE: f64 = 0.2;
/// Minimum probability of a defect. Lower than in [`crate::search`]: with few readings the next one decides.
const PROBABILITY_MIN: f64 = 0.3;
/// Minimum probability of a slow rail or switch.
const SHARED_MIN: f64 = 0.5;

/// The parts of one defect over all draws.
#[derive(Default)]
struct Slot {
    /// By group: number of draws, sum of the shares' logarithms, and starts.
    groups: BTreeMap<u32, (usize, f64, Vec<u32>)>,
    draws: usize,
}

impl Problem {
    /// The slow parts of a state, one of every group.
    pub(super) fn drawn(&self, s: &State, rng: &mut ChaCha8Rng) -> Drawn {
        let mut one = |(g, l): Element| {
            let things = &self.groups[g as usize].things;
            let at = rng.random::<f64>() * things.iter().map(|t| t.1).sum::<f64>();
            let mut sum = 0.0;
            let found = things.iter().find(|t| {
                sum += t.1;
                sum >= at
            });
            (found.unwrap_or(&things[0]).0, l as usize)
        };
        s.slots.iter().filter_map(|x| x.0).map(&mut one).collect()
    }

    pub(super) fn sets(&self, cluster: &Cluster, draws: &[State], rng: &mut ChaCha8Rng) -> Sets {
        let n = draws.len() as f64;
        let mut left: Vec<Vec<(Element, u32)>> =
            draws.iter().map(|s| s.slots.iter().filter_map(|x| Some((x.0?, x.1))).collect()).collect();
        let drawn: Vec<Drawn> = draws.iter().map(|s| self.drawn(s, rng)).collect();
        let sd = draws.iter().map(|s| SDS[s.sd]).sum::<f64>() / n;
        let mean: Vec<f64> =
            (0..self.precision.len()).map(|c| draws.iter().map(|s| s.offsets[c]).sum::<f64>() / n).collect();
        let offsets = Offsets {
            classes: self.classes.clone(),
            precision: self.precision.clone(),
            draws: draws.iter().map(|s| s.offsets.clone()).collect(),
        };
        let mut out = Sets { draws: drawn, sd, offsets, ..Sets::default() };
        out.residuals = vec![0.0; self.readings.len()];
        let latency = draws.iter().map(|s| s.latency).sum::<f64>() / n;
        for r in &self.readings {
            out.residuals[r.given] = r.ln_ratio - mean[r.class] - latency * r.latency;
        }
        // The most frequent part of all draws, with the parts that replace it in the others.
        while out.defects.len() < DEFECTS_MAX {
            let mut counts: BTreeMap<u32, (usize, f64)> = BTreeMap::new();
            for ((g, l), _) in left.iter().flatten() {
                let c = counts.entry(*g).or_default();
                (c.0, c.1) = (c.0 + 1, c.1 + ln_share(*l as usize));
            }
            let Some((&best, &(many, sum))) = counts.iter().max_by_key(|c| (c.1.0, std::cmp::Reverse(*c.0))) else {
                break;
            };
            let share = sum / many as f64;
            let mut slot = Slot::default();
            for elements in &mut left {
                let distance = |((g, l), _): &(Element, u32)| {
                    let off = (ln_share(*l as usize) - share).abs();
                    if *g == best { off.min(SAME_SHARE) * 0.5 } else { off }
                };
                let near = (0..elements.len()).filter(|k| distance(&elements[*k]) <= SAME_SHARE);
                let near = near.min_by(|a, b| distance(&elements[*a]).total_cmp(&distance(&elements[*b])));
                if let Some(k) = near {
                    let ((g, l), start) = elements.swap_remove(k);
                    let e = slot.groups.entry(g).or_default();
                    (e.0, e.1) = (e.0 + 1, e.1 + ln_share(l as usize));
                    e.2.push(start);
                    slot.draws += 1;
                }
            }
            let probability = slot.draws as f64 / n;
            if slot.draws == 0 || probability < PROBABILITY_MIN {
                break;
            }
            self.defect(cluster, slot, n, &mut out);
        }
        out
    }

    /// Adds the defect of a slot.
    fn defect(&self, cluster: &Cluster, slot: Slot, n: f64, out: &mut Sets) {
        let mut candidates: Vec<Candidate> = Vec::new();
        let mut shared: Vec<(f64, SlowPart)> = Vec::new();
        for (g, (count, sum, mut starts)) in slot.groups {
            let group = &self.groups[g as usize];
            let factor = (sum / count as f64).exp();
            starts.sort_unstable();
            let start = starts[starts.len() / 2];
            let since = (start > 0).then(|| self.readings[start as usize].at_unix_s);
            let l = ((SHARE_MAX.ln() - factor.ln()) / SHARE_STEP).round().clamp(0.0, (SHARES - 1) as f64) as usize;
            let slowed = |t: &&(u32, u32)| t.0 >= start && self.readings[t.0 as usize].rows[t.1 as usize][l] < SLOWED;
            let readings = group.touched.iter().filter(slowed).count();
            let total: f64 = group.things.iter().map(|t| t.1).sum();
            for (thing, w) in &group.things {
                let probability = count as f64 / n * w / total;
                let part = match *thing {
                    Thing::One(component) => {
                        if probability >= LISTED_MIN {
                            let ln_likelihood_ratio = (probability / (1.0 - probability).max(1e-3)).ln();
                            let c = Candidate { component, factor, since, probability, readings, ln_likelihood_ratio };
                            candidates.push(c);
                        }
                        continue;
                    }
                    Thing::Rail(nic) => Part::Rail { nic },
                    Thing::Switch(tier, switch) => Part::Switch {
                        tier: cluster.tiers()[usize::from(tier)].name.clone(),
                        switch: cluster.switch_name(tier.into(), switch as usize).into_owned(),
                    },
                };
                shared.push((probability, SlowPart { part, factor, readings: readings as u32 }));
            }
        }
        candidates.sort_by(|a, b| b.probability.total_cmp(&a.probability).then(a.component.cmp(&b.component)));
        if let Some((_, part)) = shared.into_iter().find(|s| s.0 >= SHARED_MIN) {
            out.shared.push(part);
            return;
        }
        let probability = candidates.iter().map(|c| c.probability).sum::<f64>().min(1.0);
        if !candidates.is_empty() && probability >= PROBABILITY_MIN {
            out.defects.push(Defect { probability, candidates });
        }
    }
}
