//! A choice that avoids suspected components.
//!
//! A suspect lowers the expected bandwidth of the choices that use it, by its probability. The result of the search is compared with its
//! results without the suspected GPUs and without the suspected hosts; the greatest expected bandwidth wins. A weak suspicion therefore
//! moves a job only to an alternative of about the same bandwidth, and a certain defect moves it to any better one. Where some suspects are
//! elsewhere, the search is also asked to leave only those of its own choice: a faint suspicion of the alternative must not keep a job on a
//! slow host. At most five searches.

use crate::answer::{AvoidedSuspects, SuspectTouched, round};
use crate::error::EngineError;
use crate::gpus::GpuList;
use diagnose::{Component, Effects};
use place::{Answer, Cost, Request};
use predict::Model;
use store::state::Suspect;
use topology::{Allocation, Bytes, Cluster, GpuMask};

/// Probability below which a single suspect does not move a job.
const PROBABILITY_MIN: f64 = 0.0005;
/// Relative gain of the expected bandwidth that justifies another choice of the same cost. For a choice that costs the
/// cluster more, the request's slack decides.
const GAIN_MIN: f64 = 0.005;

/// A choice that takes suspects into account.
pub struct Wary {
    /// The choice.
    pub answer: Answer,
    /// The first choice and its suspects, if the choice was moved.
    pub avoided: Option<AvoidedSuspects>,
    /// Suspects that the choice still uses.
    pub touched: Vec<SuspectTouched>,
}

/// The relevant suspects of a state, each with its component.
pub struct Suspicion<'a> {
    cluster: &'a Cluster,
    known: Vec<(&'a Suspect, Component)>,
}

impl<'a> Suspicion<'a> {
    /// Selects the relevant suspects of a state. O(suspects).
    pub fn new(cluster: &'a Cluster, suspects: &'a [Suspect]) -> Self {
        let known = suspects
            .iter()
            .filter(|s| s.probability >= PROBABILITY_MIN)
            .filter_map(|s| Some((s, Component::parse(cluster, s.host, &s.component)?)));
        Suspicion { cluster, known: known.collect() }
    }

    /// The suspects of an allocation, most probable first.
    pub fn touched(&self, a: &Allocation) -> Vec<SuspectTouched> {
        let touches = |x: &&(&Suspect, Component)| a.mask(x.0.host).0 & x.1.gpus(self.cluster).0 != 0;
        let mut all: Vec<_> = self.known.iter().filter(touches).collect();
        all.sort_by(|a, b| b.0.probability.total_cmp(&a.0.probability));
        let told = |(s, c): &(&Suspect, Component)| SuspectTouched {
            component: c.name(self.cluster),
            host: self.cluster.host(s.host).name.clone(),
            factor: s.factor,
            probability: s.probability,
        };
        all.into_iter().map(told).collect()
    }

    /// Expected bandwidth of an allocation as a share, 0 to 1. Suspects of one defect exclude each other; the shares of
    /// several defects are multiplied.
    pub fn share_left(&self, effects: &Effects, a: &Allocation, size: Bytes) -> f64 {
        let left = |defect: &[(&Suspect, Component)]| {
            let lost = defect.iter().map(|(s, c)| s.probability * (1.0 - effects.of(*c, s.factor, a, size).exp()));
            (1.0 - lost.sum::<f64>()).clamp(0.0, 1.0)
        };
        self.known.chunk_by(|x, y| x.0.defect == y.0.defect).map(left).product()
    }

    /// Chooses an allocation. `choose` runs the search.
    pub fn choose(
        &self,
        model: &Model,
        request: &Request,
        choose: &dyn Fn(&Request) -> Result<Answer, EngineError>,
    ) -> Result<Wary, EngineError> {
        let first = choose(request)?;
        let touched = self.touched(&first.choice.allocation);
        if request.gpus < 2 || touched.is_empty() {
            return Ok(Wary { answer: first, avoided: None, touched });
        }
        let effects = Effects::new(self.cluster, model);
        let expected = |a: &Answer| {
            a.effect.score(request.loss_weight) * self.share_left(&effects, &a.choice.allocation, request.size)
        };
        let expected_of_first = expected(&first);
        let cost = |a: &Answer| Cost::of(self.cluster, &request.free, &a.choice.allocation);
        let mut best: (f64, Option<Answer>) = (expected_of_first, None);
        let gpus = |c: &Component| c.gpus(self.cluster);
        let hosts = |c: &Component| self.cluster.type_of(c.host()).all_gpus();
        let of_first =
            self.known.iter().filter(|x| first.choice.allocation.mask(x.0.host).0 & x.1.gpus(self.cluster).0 != 0);
        let of_first: Vec<(&Suspect, Component)> = of_first.copied().collect();
        let mut others = vec![without(request, &self.known, &gpus), without(request, &self.known, &hosts)];
        if of_first.len() < self.known.len() {
            others.extend([without(request, &of_first, &gpus), without(request, &of_first, &hosts)]);
        }
        for other in others {
            // Too few GPUs are left, or a constraint fails: the choice needs the suspects.
            if other.free.gpu_count() < request.gpus {
                continue;
            }
            if let Ok(answer) = choose(&other) {
                let e = expected(&answer);
                let cheap = cost(&answer) <= cost(&first);
                let needed = if cheap { 0.0 } else { request.slack.between(&answer.choice, &first.choice) };
                if e > best.0 * (1.0 + GAIN_MIN) && e > expected_of_first + needed {
                    best = (e, Some(answer));
                }
            }
        }
        let (expected_instead, Some(mut answer)) = best else {
            return Ok(Wary { answer: first, avoided: None, touched });
        };
        // The rule does not know the suspects. The price is that of leaving the rule's choice among all GPUs.
        let of_rule = |r: &place::Scored| r.score_gb_per_s * self.share_left(&effects, &r.allocation, request.size);
        answer.price.cost = cost(&answer);
        answer.price.rule_cost = first.price.rule_cost.clone();
        answer.price.keeps_rule = Some(&answer.price.cost) == answer.price.rule_cost.as_ref();
        answer.price.gained_gb_per_s = first.rule.as_ref().map_or(0.0, |r| expected_instead - of_rule(r));
        answer.rule = first.rule.clone();
        let avoided = AvoidedSuspects {
            suspects: touched,
            first_choice: GpuList::new(self.cluster, &first.choice.allocation),
            predicted_gb_per_s: round(first.effect.shared_gb_per_s),
            expected_with_suspects_gb_per_s: round(expected_of_first),
            expected_instead_gb_per_s: round(expected_instead),
        };
        let touched = self.touched(&answer.choice.allocation);
        Ok(Wary { answer, avoided: Some(avoided), touched })
    }
}

/// The request without the GPUs that `gpus` gives for each suspect.
fn without(request: &Request, suspects: &[(&Suspect, Component)], gpus: &dyn Fn(&Component) -> GpuMask) -> Request {
    let mask = |h| suspects.iter().filter(|(s, _)| s.host == h).fold(0, |m, (_, c)| m | gpus(c).0);
    let free = request.free.parts().iter().map(|&(h, m)| (h, m.minus(GpuMask(mask(h)))));
    Request { free: Allocation::new(free), ..request.clone() }
}
