//! Sweeps: the median time of every arm at every size, in the JSON form of a published A100 sweep.

use ::tune::Arm;
use std::collections::BTreeMap;

/// Kind of execution (`sequential`, `overlap`), then size in bytes, then milliseconds per configuration.
pub type Sweep = BTreeMap<String, BTreeMap<u64, BTreeMap<String, f64>>>;

/// Reads a sweep in the form of the published one.
pub fn parse_sweep(text: &str) -> Result<Sweep, String> {
    type Raw = BTreeMap<String, BTreeMap<String, BTreeMap<String, f64>>>;
    let raw: Raw = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let mut out = Sweep::new();
    for (kind, sizes) in raw {
        for (size, times) in sizes {
            let bytes = size_bytes(&size).ok_or_else(|| format!("`{size}` is not a size such as 64MB"))?;
            if let Some((arm, t)) = times.iter().find(|t| !(t.1.is_finite() && *t.1 > 0.0)) {
                return Err(format!("{kind}, {size}, {arm}: a time of {t} ms"));
            }
            out.entry(kind.clone()).or_default().insert(bytes, times);
        }
    }
    Ok(out)
}

/// Bytes of a size such as `64MB`. As in the papers, units are powers of 1024.
pub fn size_bytes(text: &str) -> Option<u64> {
    let units = [("KB", 10), ("MB", 20), ("GB", 30)];
    units.iter().find_map(|(unit, shift)| text.strip_suffix(unit)?.trim().parse::<u64>().ok()?.checked_mul(1 << shift))
}

/// `64MB` for a size.
pub fn size_name(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{}MB", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{}KB", b >> 10),
        b => format!("{b}B"),
    }
}

/// The arm of a sweep's name such as `tree_ll128`.
pub fn sweep_arm(word: &str) -> Option<Arm> {
    word.replacen('_', "/", 1).parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_papers_are_read_and_written_in_the_same_form() {
        for text in ["32KB", "64MB", "256MB", "1MB"] {
            assert_eq!(size_name(size_bytes(text).unwrap()), text);
        }
        assert_eq!((size_bytes("64MB"), size_bytes("x"), size_bytes("-1KB")), (Some(64 << 20), None, None));
        assert_eq!(sweep_arm("tree_ll128"), "TREE/LL128".parse().ok());
        assert_eq!(sweep_arm("auto"), Some(Arm::AUTO));
    }
}
