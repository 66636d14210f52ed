//! Minimisation of a smooth function within bounds: limited-memory BFGS with projection (Nocedal and Wright, chapter
//! 7).

/// The result of a minimisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of evaluations of the function.
    pub evaluations: usize,
}

const MEMORY: usize = 8;

/// Minimises `f` (value and gradient) from `x` within `bounds`, with at most `evaluations_max` evaluations. `x` becomes
/// the best point seen.
pub fn minimise(
    f: &mut dyn FnMut(&[f64], &mut [f64]) -> f64,
    x: &mut [f64],
    bounds: &[(f64, f64)],
    evaluations_max: usize,
) -> Effort {
    let n = x.len();
    let clamp = |x: &mut [f64]| x.iter_mut().zip(bounds).for_each(|(v, b)| *v = v.clamp(b.0, b.1));
    clamp(x);
    let mut g = vec![0.0; n];
    let mut fx = f(x, &mut g);
    let mut effort = Effort { evaluations: 1 };
    let mut history: Vec<(Vec<f64>, Vec<f64>, f64)> = Vec::new(); // s, y, 1 / yᵀs
    let mut trial = x.to_vec();
    let mut trial_g = vec![0.0; n];
    while effort.evaluations < evaluations_max {
        // A variable at a bound stays there while its gradient points outwards.
        let free: Vec<bool> =
            (0..n).map(|i| !((x[i] <= bounds[i].0 && g[i] > 0.0) || (x[i] >= bounds[i].1 && g[i] < 0.0))).collect();
        let mut d: Vec<f64> = (0..n).map(|i| if free[i] { g[i] } else { 0.0 }).collect();
        let norm = d.iter().fold(0.0f64, |a, v| a.max(v.abs()));
        if norm < 1e-3 {
            break;
        }
        let mut alphas = Vec::with_capacity(history.len());
        for (s, y, rho) in history.iter().rev() {
            let a = rho * s.iter().zip(&d).map(|(a, b)| a * b).sum::<f64>();
            d.iter_mut().zip(y).for_each(|(d, y)| *d -= a * y);
            alphas.push(a);
        }
        if let Some((s, y, _)) = history.last() {
            let yy: f64 = y.iter().map(|v| v * v).sum();
            let sy: f64 = s.iter().zip(y).map(|(a, b)| a * b).sum();
            d.iter_mut().for_each(|v| *v *= sy / yy);
        } else {
            d.iter_mut().for_each(|v| *v *= (0.5 / norm).min(1.0));
        }
        for ((s, y, rho), a) in history.iter().zip(alphas.iter().rev()) {
            let b = rho * y.iter().zip(&d).map(|(a, b)| a * b).sum::<f64>();
            d.iter_mut().zip(s).for_each(|(d, s)| *d += (a - b) * s);
        }
        for i in 0..n {
            if !free[i] {
                d[i] = 0.0;
            }
        }
        let slope: f64 = d.iter().zip(&g).map(|(a, b)| a * b).sum();
        if slope <= 0.0 {
            history.clear();
            d = (0..n).map(|i| if free[i] { g[i] * (0.5 / norm).min(1.0) } else { 0.0 }).collect();
        }
        let slope: f64 = d.iter().zip(&g).map(|(a, b)| a * b).sum();
        // Larger steps in the logarithm of a hyperparameter leave the range in which the gradient is informative.
        let longest = d.iter().fold(0.0f64, |a, v| a.max(v.abs()));
        let mut step = if longest > 2.0 { 2.0 / longest } else { 1.0 };
        let mut improved = false;
        while effort.evaluations < evaluations_max {
            for i in 0..n {
                trial[i] = x[i] - step * d[i];
            }
            clamp(&mut trial);
            let ft = f(&trial, &mut trial_g);
            effort.evaluations += 1;
            if ft <= fx - 1e-4 * step * slope {
                let s: Vec<f64> = trial.iter().zip(x.iter()).map(|(a, b)| a - b).collect();
                let y: Vec<f64> = trial_g.iter().zip(&g).map(|(a, b)| a - b).collect();
                let sy: f64 = s.iter().zip(&y).map(|(a, b)| a * b).sum();
                if sy > 1e-10 {
                    if history.len() == MEMORY {
                        history.remove(0);
                    }
                    history.push((s, y, 1.0 / sy));
                }
                improved = fx - ft > 1e-4;
                fx = ft;
                x.copy_from_slice(&trial);
                g.copy_from_slice(&trial_g);
                break;
            }
            step *= 0.4;
            if step < 1e-4 {
                break;
            }
        }
        if !improved {
            break;
        }
    }
    effort
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_the_minimum_of_a_curved_valley() {
        let mut x = [-1.2, 1.0];
        let mut f = |x: &[f64], g: &mut [f64]| {
            let (a, b) = (x[0], x[1]);
            g[0] = -400.0 * a * (b - a * a) - 2.0 * (1.0 - a);
            g[1] = 200.0 * (b - a * a);
            100.0 * (b - a * a).powi(2) + (1.0 - a).powi(2)
        };
        minimise(&mut f, &mut x, &[(-5.0, 5.0); 2], 400);
        assert!((x[0] - 1.0).abs() < 0.05 && (x[1] - 1.0).abs() < 0.1, "{x:?}");
    }

    #[test]
    fn it_stays_in_the_box() {
        let mut x = [3.0];
        minimise(
            &mut |x, g| {
                g[0] = 2.0 * x[0];
                x[0] * x[0]
            },
            &mut x,
            &[(1.0, 4.0)],
            50,
        );
        assert_eq!(x[0], 1.0);
    }
}
