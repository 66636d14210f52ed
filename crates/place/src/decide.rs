//! Probing: measures the few candidates whose readings can change the choice, then decides.
//!
//! Three steps, so that this crate does no I/O: [`crate::exact()`] returns a choice and its rivals, [`worth_measuring`]
//! picks the candidates to measure, the caller measures them, and [`decide`] uses the readings.

use crate::exact::Scored;
use predict::Prediction;

/// One measured candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeReading {
    /// Index into the offered candidates.
    pub candidate: usize,
    /// Measured busbw, GB/s.
    pub busbw_gb_per_s: f64,
}

/// A decision after probing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeDecision {
    /// Index into the offered candidates.
    pub candidate: usize,
    /// Expected busbw of the candidate after the readings, GB/s.
    pub busbw_gb_per_s: f64,
    /// Standard deviation of that expectation, GB/s.
    pub std_gb_per_s: f64,
}

/// Share of a prediction's variance that depends on the hosts; the rest is common to all allocations of a split.
const OF_THE_HOSTS: f64 = 0.2;

/// The expectation of one candidate after the readings.
#[derive(Clone, Copy)]
struct Belief {
    /// Expected `ln(bandwidth / predicted)` after the readings.
    ln_shift: f64,
    /// Standard deviation of the logarithm.
    sd: f64,
    measured: bool,
}

/// The expectation of every candidate after the readings, in logarithms. A reading shifts its candidate by
/// `sd² / (sd² + noise²)` of the difference from the prediction, where `noise` is that of repeated measurements.
/// Readings of the best split also shift that split on other hosts.
fn beliefs(candidates: &[Scored], readings: &[ProbeReading], repeat_noise: f64) -> Vec<Belief> {
    let surprises = |i: usize| -> Vec<f64> {
        let mean = candidates[i].prediction.busbw_gb_per_s;
        let fine = |r: &&ProbeReading| r.candidate == i && r.busbw_gb_per_s > 0.0 && r.busbw_gb_per_s.is_finite();
        let mut v: Vec<f64> = readings.iter().filter(fine).map(|r| (r.busbw_gb_per_s / mean.max(1e-9)).ln()).collect();
        v.sort_by(f64::total_cmp);
        v
    };
    let of_split = |i: usize| i == 0 || candidates[i].same_split_other_hosts;
    let split: Vec<f64> = (0..candidates.len()).filter(|i| of_split(*i)).flat_map(surprises).collect();
    (0..candidates.len())
        .map(|i| {
            let p = &candidates[i].prediction;
            let sd = p.std_gb_per_s / p.busbw_gb_per_s.max(1e-9);
            let own = surprises(i);
            // The readings, the variance that they share with the candidate, and the noise of their mean.
            let (seen, common, own_noise) = match (own.len(), split.len()) {
                (0, n) if n > 0 && of_split(i) => (&split, 1.0 - OF_THE_HOSTS, OF_THE_HOSTS * sd * sd / n as f64),
                _ => (&own, 1.0, 0.0),
            };
            if seen.is_empty() || p.busbw_gb_per_s <= 0.0 {
                return Belief { ln_shift: 0.0, sd, measured: false };
            }
            let n = seen.len() as f64;
            let noise2 = (repeat_noise * repeat_noise / n).max(1e-12) + own_noise;
            let common2 = common * sd * sd;
            let share = common2 / (common2 + noise2);
            let left = sd * sd - common2 + share * noise2;
            Belief { ln_shift: share * seen.iter().sum::<f64>() / n, sd: left.sqrt(), measured: !own.is_empty() }
        })
        .collect()
}

/// Expected improvement of a candidate of `score` over `best`, GB/s: outcomes below `best` count as 0 (Jones, Schonlau and Welch 1998).
fn expected_gain(score: f64, sd: f64, best: f64) -> f64 {
    let sd = sd.max(1e-9);
    let z = (score - best) / sd;
    sd * (z * stats::normal_cdf(z) + stats::normal_density(z))
}

/// The candidates to measure next, given the readings so far, most promising first: the choice, then the candidates
/// with the largest expected improvement over it. At most `count` candidates, each once. Callers should ask again after
/// every reading: if the reading of the choice is below its prediction, the next probe is another split; otherwise it
/// is the same split on other hosts. O(count x n).
pub fn worth_measuring(
    candidates: &[Scored],
    readings: &[ProbeReading],
    count: usize,
    repeat_noise: f64,
) -> Vec<usize> {
    let mut supposed = readings.to_vec();
    let mut order: Vec<usize> = Vec::new();
    while order.len() < count {
        let beliefs = beliefs(candidates, &supposed, repeat_noise);
        let score = |i: &usize| candidates[*i].score_gb_per_s * beliefs[*i].ln_shift.exp();
        let open: Vec<usize> = (0..candidates.len()).filter(|i| !beliefs[*i].measured).collect();
        let measured = (0..candidates.len()).filter(|i| beliefs[*i].measured);
        let best = measured.map(|i| score(&i)).fold(f64::NEG_INFINITY, f64::max);
        let gain = |i: &usize| expected_gain(score(i), score(i) * beliefs[*i].sd, best);
        let next = match open.first() {
            None => break,
            Some(0) => 0,
            _ => open.into_iter().reduce(|a, b| if gain(&b) > gain(&a) { b } else { a }).unwrap_or(0),
        };
        order.push(next);
        // Assume that the reading equals the prediction.
        let busbw = candidates[next].prediction.busbw_gb_per_s * beliefs[next].ln_shift.exp();
        supposed.push(ProbeReading { candidate: next, busbw_gb_per_s: busbw.max(1e-9) });
    }
    order
}

/// The best candidate given readings. Each reading is shrunk towards its prediction, according to the relative noise of
/// repeated measurements (`repeat_noise`).
///
/// An unmeasured candidate must exceed the measured ones by one standard deviation of its own prediction: the maximum
/// of many predictions is biased upward, readings are not. `None` without candidates.
pub fn decide(candidates: &[Scored], readings: &[ProbeReading], repeat_noise: f64) -> Option<ProbeDecision> {
    let beliefs = beliefs(candidates, readings, repeat_noise);
    let any = beliefs.iter().any(|b| b.measured);
    let mut best: Option<(f64, ProbeDecision)> = None;
    for (i, (c, b)) in candidates.iter().zip(&beliefs).enumerate() {
        let v = c.prediction.busbw_gb_per_s * b.ln_shift.exp();
        let d = ProbeDecision { candidate: i, busbw_gb_per_s: v, std_gb_per_s: v * b.sd };
        // A reading measures the allocation without other jobs. The score among other jobs changes by the same share.
        let penalty = if any && !b.measured { b.sd } else { 0.0 };
        let score = c.score_gb_per_s * (b.ln_shift - penalty).exp();
        if best.as_ref().is_none_or(|b| score > b.0) {
            best = Some((score, d));
        }
    }
    best.map(|b| b.1)
}

/// Every candidate with its expectation after the readings.
pub(crate) fn expected(candidates: &[Scored], readings: &[ProbeReading], repeat_noise: f64) -> Vec<Scored> {
    let after = beliefs(candidates, readings, repeat_noise);
    let shifted = |(c, b): (&Scored, Belief)| {
        let v = c.prediction.busbw_gb_per_s * b.ln_shift.exp();
        let score_gb_per_s = c.score_gb_per_s * b.ln_shift.exp();
        Scored { prediction: Prediction { busbw_gb_per_s: v, std_gb_per_s: v * b.sd }, score_gb_per_s, ..c.clone() }
    };
    candidates.iter().zip(after).map(shifted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::Allocation;

    fn scored(mean: f64, sd: f64) -> Scored {
        Scored {
            allocation: Allocation::default(),
            prediction: Prediction { busbw_gb_per_s: mean, std_gb_per_s: sd },
            score_gb_per_s: mean,
            same_split_other_hosts: false,
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
            ProbeReading { candidate: 0, busbw_gb_per_s: 70.0 },
            ProbeReading { candidate: 1, busbw_gb_per_s: 97.0 },
            ProbeReading { candidate: 2, busbw_gb_per_s: 99.0 },
        ];
        assert_eq!(decide(&c, &r, 0.01).unwrap().candidate, 2);
    }

    #[test]
    fn a_reading_as_noisy_as_the_model_is_sure_is_half_believed() {
        let d = decide(&[scored(100.0, 1.0)], &[ProbeReading { candidate: 0, busbw_gb_per_s: 104.0 }], 0.01).unwrap();
        assert!((d.busbw_gb_per_s - 102.0).abs() < 0.05, "{d:?}");
    }

    #[test]
    fn what_is_worth_measuring_starts_with_the_choice() {
        let c = [scored(100.0, 1.0), scored(99.0, 9.0), scored(50.0, 1.0), scored(99.5, 1.0)];
        assert_eq!(worth_measuring(&c, &[], 3, 0.01), vec![0, 1, 3]);
        assert_eq!(worth_measuring(&c, &[], 9, 0.01).len(), 4);
        assert!(worth_measuring(&[], &[], 3, 0.01).is_empty());
    }

    #[test]
    fn a_choice_that_disappoints_sends_the_next_probe_to_another_split_and_one_that_does_not_to_other_hosts() {
        let mut c = [scored(100.0, 4.0), scored(100.0, 4.0), scored(93.0, 4.0)];
        c[1].same_split_other_hosts = true;
        let next = |v: f64| worth_measuring(&c, &[ProbeReading { candidate: 0, busbw_gb_per_s: v }], 1, 0.01);
        assert_eq!(next(100.0), [1]);
        assert_eq!(next(85.0), [2]);
    }

    #[test]
    fn among_other_jobs_a_good_reading_does_not_outweigh_what_sharing_costs() {
        let mut c = [scored(100.0, 5.0), scored(120.0, 5.0)];
        c[0].score_gb_per_s = 90.0;
        c[1].score_gb_per_s = 40.0;
        let r =
            [ProbeReading { candidate: 0, busbw_gb_per_s: 99.0 }, ProbeReading { candidate: 1, busbw_gb_per_s: 121.0 }];
        assert_eq!(decide(&c, &r, 0.01).unwrap().candidate, 0);
    }

    #[test]
    fn nonsense_readings_are_ignored() {
        for v in [0.0, -3.0, f64::NAN, f64::INFINITY] {
            let d = decide(&[scored(100.0, 1.0)], &[ProbeReading { candidate: 0, busbw_gb_per_s: v }], 0.01).unwrap();
            assert_eq!(d.busbw_gb_per_s, 100.0);
        }
    }
}
