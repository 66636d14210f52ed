//! A choice out of the way of what is suspected to be slow.
//!
//! A suspect lowers what may be expected of the choices that touch it, by its probability. The answer of the search is compared with
//! the answers that it gives without the suspected GPUs and without the suspected hosts; the greatest expectation wins. So a suspicion
//! moves a job only where an alternative is as good, and a certain defect moves it wherever something better is left.

use console::Failure;
use place::{Answer, Request};
use predict::Model;
use predict::doctor::{Component, Effects};
use store::state::Suspect;
use topology::{Allocation, Cluster, GpuMask};

/// A suspect less probable than this does not move a job by itself.
const PROBABILITY_MIN: f64 = 0.005;
/// What an expectation must gain to leave the search's own choice.
const GAIN_MIN: f64 = 0.005;
/// How many suspects a note names.
const NAMED_MAX: usize = 4;

/// What a choice was kept away from.
pub struct Avoided {
    /// In words: `NIC mlx5_3 of n1 (96 %)`, the most probable first.
    pub suspects: Vec<String>,
    /// What would be expected of the choice without the suspicion, GB/s.
    pub instead_gb_per_s: f64,
    /// The same with it.
    pub expected_of_it_gb_per_s: f64,
}

impl std::fmt::Display for Avoided {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.suspects.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = self.suspects.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        write!(
            f,
            "kept away from {shown}{more}: the first choice was predicted {:.1} GB/s, with the suspicion {:.1} are expected of it",
            self.instead_gb_per_s, self.expected_of_it_gb_per_s
        )
    }
}

/// Chooses with suspects in mind. `choose` is the search.
pub fn choose(
    cluster: &Cluster,
    model: &Model,
    suspects: &[Suspect],
    request: &Request,
    choose: &mut dyn FnMut(&Request) -> Result<Answer, Failure>,
) -> Result<(Answer, Option<Avoided>), Failure> {
    let first = choose(request)?;
    let known: Vec<(&Suspect, Component)> = suspects
        .iter()
        .filter(|s| s.probability >= PROBABILITY_MIN)
        .filter_map(|s| Some((s, Component::parse(cluster, s.host, &s.component)?)))
        .collect();
    let touches = |a: &Allocation| known.iter().any(|(s, c)| a.mask(s.host).0 & c.gpus(cluster).0 != 0);
    if request.gpus < 2 || !touches(&first.choice.allocation) {
        return Ok((first, None));
    }
    let effects = Effects::new(cluster, model);
    let share = |a: &Allocation| share_left(&effects, &known, request, a);
    let of = |a: &Answer| a.effect.score(request.loss_weight) * share(&a.choice.allocation);
    let without = |gpus: &dyn Fn(&Component) -> GpuMask| {
        let mask = |h| known.iter().filter(|(s, _)| s.host == h).fold(0, |m, (_, c)| m | gpus(c).0);
        let free = request.free.parts().iter().map(|&(h, m)| (h, m.minus(GpuMask(mask(h)))));
        Request { free: Allocation::new(free), ..request.clone() }
    };
    let expected_of_it_gb_per_s = of(&first);
    let mut best = (expected_of_it_gb_per_s, None);
    for other in [without(&|c| c.gpus(cluster)), without(&|c| cluster.type_of(c.host()).all_gpus())] {
        // Too few GPUs are left, or a constraint fails: the suspects are needed.
        if other.free.gpu_count() < request.gpus {
            continue;
        }
        if let Ok(answer) = choose(&other) {
            let expected = of(&answer);
            if expected > best.0 * (1.0 + GAIN_MIN) {
                best = (expected, Some(answer));
            }
        }
    }
    let Some(answer) = best.1 else { return Ok((first, None)) };
    let mut named: Vec<_> =
        known.iter().filter(|(s, c)| first.choice.allocation.mask(s.host).0 & c.gpus(cluster).0 != 0).collect();
    named.sort_by(|a, b| b.0.probability.total_cmp(&a.0.probability));
    let avoided = Avoided {
        suspects: named.iter().map(|(s, c)| format!("{} ({:.0} %)", c.name(cluster), 100.0 * s.probability)).collect(),
        instead_gb_per_s: first.effect.shared_gb_per_s,
        expected_of_it_gb_per_s,
    };
    Ok((answer, Some(avoided)))
}

/// What is expected to be left of an allocation's bandwidth: suspects of one defect exclude each other, defects multiply.
fn share_left(effects: &Effects, known: &[(&Suspect, Component)], request: &Request, a: &Allocation) -> f64 {
    known
        .chunk_by(|x, y| x.0.defect == y.0.defect)
        .map(|defect| {
            let lost =
                defect.iter().map(|(s, c)| s.probability * (1.0 - effects.of(*c, s.factor, a, request.size).exp()));
            (1.0 - lost.sum::<f64>()).clamp(0.0, 1.0)
        })
        .product()
}
