//! Probing: choose, measure the few candidates worth it, decide.
//!
//! Three steps, so that this crate does no I/O: [`crate::exact()`] returns a choice and its rivals, [`worth_measuring`] says which of
//! them to measure, the caller measures, and [`decide`] takes the readings.

use crate::exact::Scored;

/// One measured candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Index into the candidates that were offered.
    pub candidate: usize,
    /// What was measured, GB/s busbw.
    pub busbw_gb_per_s: f64,
}

/// A decision after probing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Index into the candidates.
    pub candidate: usize,
    /// What is now expected of it.
    pub busbw_gb_per_s: f64,
    /// With which deviation.
    pub std_gb_per_s: f64,
}

/// Relative deviation of a prediction.
fn relative_sd(s: &Scored) -> f64 {
    s.prediction.std_gb_per_s / s.prediction.busbw_gb_per_s.max(1e-9)
}

/// Share of the variance of a prediction that is not common to all allocations of its split: which hosts they are on.
const OF_THE_HOSTS: f64 = 0.2;

/// What measuring `c` is expected to gain over `choice`, GB/s: the mean of how much better it turns out, counting nothing where it
/// turns out worse (expected improvement; Jones, Schonlau and Welch 1998).
fn expected_gain(c: &Scored, choice: &Scored) -> f64 {
    let variance = |s: &Scored| (s.score_gb_per_s * relative_sd(s)).powi(2);
    let own = if c.elsewhere { OF_THE_HOSTS } else { 1.0 };
    let sd = (own * (variance(c) + variance(choice))).sqrt().max(1e-9);
    let z = (c.score_gb_per_s - choice.score_gb_per_s) / sd;
    let density = (-0.5 * z * z).exp() / (2.0 * std::f64::consts::PI).sqrt();
    // The normal distribution to 0.0002 (Page 1977): an order is all that is asked for.
    let below = 1.0 / (1.0 + (-1.5976 * z - 0.07056 * z * z * z).exp());
    sd * (z * below + density)
}

/// Which of the candidates to measure, most promising first: the choice, whose reading says whether to look further, then those that are
/// expected to gain most over it; at most `count`. O(n log n).
pub fn worth_measuring(candidates: &[Scored], count: usize) -> Vec<usize> {
    let Some(choice) = candidates.first() else { return Vec::new() };
    let gain: Vec<f64> = candidates.iter().map(|c| expected_gain(c, choice)).collect();
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order[1..].sort_by(|a, b| gain[*b].total_cmp(&gain[*a]).then(a.cmp(b)));
    order.truncate(count);
    order
}

/// The best candidate given readings, each shrunk towards the prediction by how noisy repeated measurements are
/// (`repeat_noise`, relative): `sd² / (sd² + noise²)` of the surprise is believed, in logarithms.
///
/// A candidate that nobody measured must beat the measured ones by one of its own deviations: the largest of many predictions
/// is an optimistic one, and the readings of its rivals were not chosen for being high. `None` without candidates.
pub fn decide(candidates: &[Scored], readings: &[Reading], repeat_noise: f64) -> Option<Decision> {
    let mut best: Option<(f64, Decision)> = None;
    for (i, c) in candidates.iter().enumerate() {
        let mean = c.prediction.busbw_gb_per_s;
        let sd = relative_sd(c);
        let mut of_it: Vec<f64> = readings
            .iter()
            .filter(|r| r.candidate == i && r.busbw_gb_per_s > 0.0 && r.busbw_gb_per_s.is_finite())
            .map(|r| (r.busbw_gb_per_s / mean.max(1e-9)).ln())
            .collect();
        of_it.sort_by(f64::total_cmp);
        // A reading is of the allocation alone; among other jobs, what the search maximised is off by the same share.
        let worth = if mean > 0.0 { c.score_gb_per_s / mean } else { 0.0 };
        let (score, decision) = if of_it.is_empty() || mean <= 0.0 {
            let penalty = if readings.is_empty() { 0.0 } else { sd };
            let d = Decision { candidate: i, busbw_gb_per_s: mean, std_gb_per_s: c.prediction.std_gb_per_s };
            (mean * worth * (-penalty).exp(), d)
        } else {
            let surprise = of_it.iter().sum::<f64>() / of_it.len() as f64;
            let noise2 = (repeat_noise * repeat_noise / of_it.len() as f64).max(1e-12);
            let share = sd * sd / (sd * sd + noise2);
            let v = mean * (share * surprise).exp();
            let d = Decision { candidate: i, busbw_gb_per_s: v, std_gb_per_s: v * (share * noise2).sqrt() };
            (v * worth, d)
        };
        if best.as_ref().is_none_or(|b| score > b.0) {
            best = Some((score, decision));
        }
    }
    best.map(|b| b.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use predict::Prediction;
    use topology::Allocation;

    fn scored(mean: f64, sd: f64) -> Scored {
        Scored {
            allocation: Allocation::default(),
            prediction: Prediction { busbw_gb_per_s: mean, std_gb_per_s: sd },
            score_gb_per_s: mean,
            elsewhere: false,
        }
    }

    #[test]
    fn without_readings_the_choice_stands() {
        assert_eq!(decide(&[scored(10.0, 1.0), scored(9.0, 5.0)], &[], 0.01).unwrap().candidate, 0);
        assert!(decide(&[], &[], 0.01).is_none());
    }

    #[test]
    fn a_bad_reading_of_the_choice_moves_it_to_the_next() {
        let c = [scored(100.0, 5.0), scored(98.0, 5.0), scored(97.0, 5.0)];
        let r = [
            Reading { candidate: 0, busbw_gb_per_s: 70.0 },
            Reading { candidate: 1, busbw_gb_per_s: 97.0 },
            Reading { candidate: 2, busbw_gb_per_s: 99.0 },
        ];
        assert_eq!(decide(&c, &r, 0.01).unwrap().candidate, 2);
    }

    #[test]
    fn a_reading_as_noisy_as_the_model_is_sure_is_half_believed() {
        let d = decide(&[scored(100.0, 1.0)], &[Reading { candidate: 0, busbw_gb_per_s: 104.0 }], 0.01).unwrap();
        assert!((d.busbw_gb_per_s - 102.0).abs() < 0.05, "{d:?}");
    }

    #[test]
    fn what_is_worth_measuring_starts_with_the_choice() {
        let c = [scored(100.0, 1.0), scored(99.0, 9.0), scored(50.0, 1.0), scored(99.5, 1.0)];
        assert_eq!(worth_measuring(&c, 3), vec![0, 1, 3]);
    }

    #[test]
    fn among_other_jobs_a_good_reading_does_not_outweigh_what_sharing_costs() {
        let mut c = [scored(100.0, 5.0), scored(120.0, 5.0)];
        c[0].score_gb_per_s = 90.0;
        c[1].score_gb_per_s = 40.0;
        let r = [Reading { candidate: 0, busbw_gb_per_s: 99.0 }, Reading { candidate: 1, busbw_gb_per_s: 121.0 }];
        assert_eq!(decide(&c, &r, 0.01).unwrap().candidate, 0);
    }

    #[test]
    fn nonsense_readings_are_ignored() {
        for v in [0.0, -3.0, f64::NAN, f64::INFINITY] {
            let d = decide(&[scored(100.0, 1.0)], &[Reading { candidate: 0, busbw_gb_per_s: v }], 0.01).unwrap();
            assert_eq!(d.busbw_gb_per_s, 100.0);
        }
    }
}
