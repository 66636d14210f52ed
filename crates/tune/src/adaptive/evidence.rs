//! The evidence that one arm is faster than another.

use super::noise::{Noise, pull_in};

/// One arm against another, from interleaved readings (logarithms of times).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    /// ln(time of the arm / time of the other arm); negative if the arm is faster.
    pub effect: f64,
    /// Standard error of `effect`.
    pub error: f64,
    /// Probability of evidence this strong for "faster" if both arms took the same time: a one-sided p-value, or the
    /// equivalent of a Bayes factor.
    pub p_faster: f64,
}

/// Compares `arm` with `other`. `noise` and `dof` come from all arms of the race, these two included.
///
/// With one mode this is Student's test with a pooled spread. With two modes it compares the likelihood of a common
/// location with the likelihood of shifted locations, mode by mode. In that case the means must agree with the result,
/// because a job pays the mean time.
pub fn compare(arm: &[f64], other: &[f64], noise: &Noise, dof: f64) -> Comparison {
    let (a, b) = (pull_in(arm, noise.reach), pull_in(other, noise.reach));
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len().max(1) as f64;
    let weight = 1.0 / arm.len().max(1) as f64 + 1.0 / other.len().max(1) as f64;
    let apart = mean(&a) - mean(&b);
    if noise.modes.is_none() || arm.len() < 3 || other.len() < 3 {
        let spread =
            noise.modes.map_or(noise.sigma, |m| (noise.sigma.powi(2) + m.slow * (1.0 - m.slow) * m.gap.powi(2)).sqrt());
        let error = spread * weight.sqrt();
        return Comparison { effect: apart, error, p_faster: student_t_upper(-apart / error, dof.max(1.0)) };
    }
    let (effect, log_factor) = shift(arm, other, noise);
    let times = |x: &[f64]| x.iter().map(|v| v.exp()).sum::<f64>() / x.len() as f64;
    let contradicted = times(arm) > times(other);
    let p = if contradicted { 1.0 } else { (-log_factor).exp().min(1.0) };
    Comparison { effect, error: noise.sigma * weight.sqrt(), p_faster: p }
}

/// The most likely shift of `arm` relative to `other` under a common shape, and the logarithm of the Bayes factor of
/// "shifted down" (Laplace prior of scale 0.3) against "not shifted". The inverse of the factor bounds the probability
/// of ever seeing such evidence without a shift.
fn shift(arm: &[f64], other: &[f64], noise: &Noise) -> (f64, f64) {
    const SCALE: f64 = 0.3;
    let step = (0.4 * noise.sigma).clamp(0.01, 0.1);
    let (la, lb) = (noise.location(arm), noise.location(other));
    let gap = noise.modes.map_or(0.0, |m| m.gap);
    // Candidate locations of either arm: one step of the mode gap and a few spreads around the two most likely ones.
    let low = la.min(lb) - gap - 4.0 * noise.sigma;
    let high = la.max(lb) + gap + 4.0 * noise.sigma;
    let cells = (((high - low) / step).ceil() as usize).clamp(1, 800);
    let step = (high - low) / cells as f64;
    let curve = |x: &[f64]| -> Vec<f64> {
        let logs: Vec<f64> = (0..=cells)
            .map(|i| {
                let place = low + i as f64 * step;
                x.iter().map(|v| (noise.density(v - place) + 1e-200).ln()).sum()
            })
            .collect();
        let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        logs.iter().map(|l| (l - top).exp()).collect()
    };
    let (ca, cb) = (curve(arm), curve(other));
    let overlap = |k: isize| -> f64 {
        (0..=cells as isize).filter_map(|i| Some(cb[i as usize] * ca.get(usize::try_from(i + k).ok()?)?)).sum()
    };
    let same = overlap(0).max(1e-300);
    let (mut best, mut best_at, mut faster) = (same, 0.0, 0.0);
    for k in -(cells as isize)..=cells as isize {
        let m = overlap(k);
        let theta = k as f64 * step;
        if m > best {
            (best, best_at) = (m, theta);
        }
        if theta < 0.0 {
            faster += m * (theta / SCALE).exp() / SCALE * step;
        }
    }
    (best_at, (faster / same).max(1e-300).ln())
}

/// Upper tail of Student's t with `dof` degrees of freedom: the probability of a value above `t`.
///
/// Computed by the regularised incomplete beta function; absolute error below 1e-10 for `dof` from 1 to 10,000.
pub fn student_t_upper(t: f64, dof: f64) -> f64 {
    if !t.is_finite() {
        return if t > 0.0 { 0.0 } else { 1.0 };
    }
    let x = dof / (dof + t * t);
    let tail = 0.5 * beta_regularised(0.5 * dof, 0.5, x);
    if t >= 0.0 { tail } else { 1.0 - tail }
}

/// I_x(a, b), computed by Lentz's continued fraction.
fn beta_regularised(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * beta_fraction(a, b, x) / a
    } else {
        1.0 - front * beta_fraction(b, a, 1.0 - x) / b
    }
}

fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let guard = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / guard(1.0 - (a + b) * x / (a + 1.0));
    let mut h = d;
    for m in 1..200 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / guard(1.0 + even * d);
        c = guard(1.0 + even / c);
        h *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / guard(1.0 + odd * d);
        c = guard(1.0 + odd / c);
        let step = d * c;
        h *= step;
        if (step - 1.0).abs() < 1e-13 {
            break;
        }
    }
    h
}

/// Lanczos' approximation of ln Γ(x) for x > 0.
fn ln_gamma(x: f64) -> f64 {
    const C: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        return (std::f64::consts::PI / (std::f64::consts::PI * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let t = x + 7.5;
    let sum = C[1..].iter().enumerate().fold(C[0], |s, (i, c)| s + c / (x + i as f64 + 1.0));
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_students_t_agrees_with_published_quantiles() {
        // Published one-sided quantiles: (dof, t, p).
        for (dof, t, p) in
            [(1.0, 6.314, 0.05), (4.0, 3.747, 0.01), (12.0, 3.930, 0.001), (30.0, 2.042, 0.025), (120.0, 3.160, 0.001)]
        {
            let got = student_t_upper(t, dof);
            assert!((got / p - 1.0).abs() < 2e-3, "dof {dof}, t {t}: {got} instead of {p}");
            assert!((student_t_upper(-t, dof) - (1.0 - got)).abs() < 1e-12);
        }
        assert!((student_t_upper(0.0, 7.0) - 0.5).abs() < 1e-12);
    }
}
