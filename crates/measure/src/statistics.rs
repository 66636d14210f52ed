/// The median; 0 for no values. O(n log n).
pub fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => 0.0,
        n if n % 2 == 1 => v[n / 2],
        n => (v[n / 2 - 1] + v[n / 2]) / 2.0,
    }
}

/// Median absolute deviation from `centre`, scaled to estimate the standard deviation of a normal sample.
pub fn spread(values: &[f64], centre: f64) -> f64 {
    1.4826 * median(&values.iter().map(|v| (v - centre).abs()).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wild_value_moves_neither_median_nor_spread() {
        let calm = [1.0, 2.0, 3.0, 4.0, 5.0];
        let wild = [1.0, 2.0, 3.0, 4.0, 5e9];
        assert_eq!(median(&calm), 3.0);
        assert_eq!(median(&wild), 3.0);
        assert_eq!(spread(&calm, 3.0), spread(&wild, 3.0));
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[1.0, 2.0]), 1.5);
    }
}
