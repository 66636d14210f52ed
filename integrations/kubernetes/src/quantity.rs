//! Quantities of Kubernetes such as `1500m`, `2Gi`, `1e3`, in thousandths.

/// Thousandths of a quantity; none if the text is no quantity or beyond 1e24.
pub fn milli(text: &str) -> Option<i128> {
    let text = text.trim();
    let digits = text.find(|c: char| !(c.is_ascii_digit() || ".+-".contains(c))).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (mantissa, exponent) = match suffix.strip_prefix(['e', 'E']) {
        Some(power) if power.parse::<i32>().is_ok() => (number, power.parse::<i32>().ok()?),
        _ => (number, 0),
    };
    let scale: i128 = match if exponent == 0 { suffix } else { "" } {
        "" | "e0" | "E0" => 1000,
        "n" | "u" => 0, // less than a thousandth
        "m" => 1,
        "k" => 1000 * 1000,
        "M" => 1000 * 1000_i128.pow(2),
        "G" => 1000 * 1000_i128.pow(3),
        "T" => 1000 * 1000_i128.pow(4),
        "P" => 1000 * 1000_i128.pow(5),
        "E" => 1000 * 1000_i128.pow(6),
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        "Pi" => 1000 << 50,
        "Ei" => 1000 << 60,
        _ => return None,
    };
    if scale == 0 {
        return Some(1); // rounded up, as Kubernetes does
    }
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if part.len() > 18 || whole.len() > 24 || !part.chars().all(|c| c.is_ascii_digit()) || exponent.abs() > 24 {
        return None;
    }
    let negative = whole.starts_with('-');
    let whole: i128 = if matches!(whole, "" | "+" | "-") { 0 } else { whole.parse().ok()? };
    let tenths = 10_i128.pow(u32::try_from(part.len()).ok()?);
    let fraction: i128 = if part.is_empty() { 0 } else { part.parse().ok()? };
    let value = whole.abs().checked_mul(tenths)?.checked_add(fraction)?.checked_mul(scale)?;
    let ten = 10_i128.pow(exponent.unsigned_abs());
    let value = if exponent >= 0 { value.checked_mul(ten)? } else { value.div_euclid(ten) };
    // Rounded up, as Kubernetes does.
    let value = (value + tenths - 1) / tenths;
    Some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, is) in [
            ("1", 1000),
            ("100m", 100),
            ("1.5", 1500),
            ("0.1", 100),
            (".5", 500),
            ("2Ki", 2_048_000),
            ("1.5Gi", 1_610_612_736_000),
            ("1k", 1_000_000),
            ("1e3", 1_000_000),
            ("12E0", 12_000),
            ("1E", 1_000_000_000_000_000_000_000),
            ("5u", 1),
            ("-2", -2000),
            ("0", 0),
        ] {
            assert_eq!(milli(text), Some(is), "{text}");
        }
        for text in ["1x", "Gi1", "1.2.3", "--1", "1e99", "9".repeat(40).as_str(), "1 Gi"] {
            assert_eq!(milli(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_strange(text in ".{0,40}") {
            let _ = milli(&text);
        }
    }
}
