//! Lists of efficiencies in few numbers.

/// What one method got, request by request.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// (k, GBE in percent).
    pub gbe_pct: Vec<(usize, f64)>,
}

/// Mean, 5th percentile and worst of a list.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Mean.
    pub mean: f64,
    /// 5th percentile.
    pub p5: f64,
    /// Worst.
    pub worst: f64,
    /// How many.
    pub requests: usize,
}

/// Summarises; none for an empty list.
pub fn summary(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
    let mut v: Vec<f64> = values.into_iter().collect();
    v.sort_by(f64::total_cmp);
    let n = v.len();
    let worst = *v.first()?;
    Some(Summary { mean: v.iter().sum::<f64>() / n as f64, p5: quantile(&v, 0.05), worst, requests: n })
}

/// A quantile of an ascending list by linear interpolation between order statistics, as numpy's default; NaN if it is empty.
pub fn quantile(ascending: &[f64], q: f64) -> f64 {
    stats::quantile_of_sorted(ascending, q)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_numpy() {
        let v: Vec<f64> = (1..=10).map(f64::from).collect();
        assert!((quantile(&v, 0.05) - 1.45).abs() < 1e-12);
        assert_eq!(quantile(&v, 1.0), 10.0);
        assert!(quantile(&[], 0.5).is_nan());
        assert!(summary([]).is_none());
    }
}
