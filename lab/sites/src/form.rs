//! The fit of a truth's own form to readings: a limit for models, which do not know this form.

use linalg::LowerTriangular;
use store::{Query, Store};
use topology::Allocation;
use truths::Truth;
use truths::site::Site;

/// Standard deviation of the irregularity of a split.
const IRREGULARITY: f64 = 0.02;
/// Steps of the fit, and the step of a numerical derivative.
const STEPS: usize = 6;
const DERIVATIVE: f64 = 0.05;

/// The most probable site given the form of its truth, the distributions of what is drawn, and the readings over several
/// hosts in the store. `None` on kinds with defects or changes. O(steps x unknowns x readings).
pub fn fit_form(site: &Site, store: &std::path::Path) -> Result<Option<Site>, String> {
    let n = site.unknowns();
    if n == 0 {
        return Ok(None);
    }
    let store = Store::open(store, site.cluster()).map_err(|e| e.to_string())?;
    let all = store.measurements(&Query::usable()).map_err(|e| e.to_string())?;
    // Inside hosts, too, only readings count: nothing else shows the table of a host.
    let (inside, over): (Vec<_>, Vec<_>) = all.into_iter().partition(|m| m.allocation.host_count() < 2);
    let inside: Vec<(Allocation, f64)> = inside.into_iter().map(|m| (m.allocation, m.busbw.gb_per_s())).collect();
    let site = &site.inside_as_read(&inside)?;
    let readings: Vec<(Allocation, f64)> = over.into_iter().map(|m| (m.allocation, m.busbw.gb_per_s().ln())).collect();
    let sd = IRREGULARITY.hypot(site.noise(2));
    let residuals = |z: &[f64]| -> Vec<f64> {
        let supposed = site.supposed(z);
        let ln = |a: &Allocation| supposed.smooth_gb_per_s(a).unwrap_or(f64::NAN).ln();
        readings.iter().map(|(a, v)| (v - ln(a)) / sd).collect()
    };
    let cost = |z: &[f64], r: &[f64]| z.iter().chain(r).map(|v| v * v).sum::<f64>();
    let mut z = vec![0.0; n];
    let mut r = residuals(&z);
    let mut damping = 0.1;
    for _ in 0..STEPS {
        let column = |i: usize| -> Vec<f64> {
            let mut moved = z.clone();
            moved[i] += DERIVATIVE;
            residuals(&moved).iter().zip(&r).map(|(b, a)| (b - a) / DERIVATIVE).collect()
        };
        let j: Vec<Vec<f64>> = (0..n).map(column).collect();
        let mut normal = LowerTriangular::zeros(n);
        for a in 0..n {
            for b in 0..=a {
                normal.row_mut(a)[b] = linalg::dot(&j[a], &j[b]);
            }
            normal.row_mut(a)[a] += 1.0 + damping;
        }
        let mut step: Vec<f64> = (0..n).map(|i| -z[i] - linalg::dot(&j[i], &r)).collect();
        let Some(factor) = normal.cholesky() else { break };
        factor.solve(&mut step);
        let next: Vec<f64> = z.iter().zip(&step).map(|(a, b)| a + b).collect();
        let of_next = residuals(&next);
        if cost(&next, &of_next) < cost(&z, &r) {
            (z, r, damping) = (next, of_next, damping * 0.3);
        } else {
            damping *= 10.0;
        }
    }
    Ok(Some(site.supposed(&z)))
}
