//! Mean, 5th percentile and worst of many efficiencies.

/// The result of one method, request by request.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Method {
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
    pub requests: usize,
}

/// `None` for an empty list.
pub fn summary(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
    let mut v: Vec<f64> = values.into_iter().collect();
    v.sort_by(f64::total_cmp);
    let n = v.len();
    let worst = *v.first()?;
    Some(Summary {
        mean: v.iter().sum::<f64>() / n as f64,
        p5: stats::quantile_of_sorted(&v, 0.05),
        worst,
        requests: n,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_5th_percentile_equals_numpys_and_an_empty_list_has_no_summary() {
        let s = summary((1..=10).map(f64::from)).unwrap();
        assert!((s.p5 - 1.45).abs() < 1e-12 && s.worst == 1.0 && s.mean == 5.5 && s.requests == 10);
        assert!(summary([]).is_none());
    }
}
