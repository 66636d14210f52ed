//! Numbers that only the bandit paper contains: its Tables 2 and 3, quoted.

use super::catalog::Entry;
use super::data::size_name;
use ::trial::{Noise, Overlap, Spec};
use ::tune::Arm;

/// The best configuration, its median in ms, and AUTO's gap in %.
type Winner = (&'static str, f64, f64);

/// One line of Table 2: 2 hosts of 4 A100. Milliseconds of the best configuration and AUTO's gap above it.
pub struct Table2 {
    /// Whole buffer, bytes.
    pub size_bytes: u64,
    /// Alone: best configuration, ms, AUTO's gap in %.
    pub alone: Winner,
    /// During computation.
    pub overlapped: Winner,
}

const TS: &str = "TREE/SIMPLE";

/// Table 2 as printed.
pub const TABLE_2: [Table2; 6] = [
    Table2 { size_bytes: 256 << 10, alone: (TS, 9.5, 9.1), overlapped: (TS, 8.8, 10.9) },
    Table2 { size_bytes: 1 << 20, alone: (TS, 11.3, 13.2), overlapped: (TS, 10.4, 13.5) },
    Table2 { size_bytes: 4 << 20, alone: ("AUTO", 15.5, 0.0), overlapped: (TS, 14.1, 6.4) },
    Table2 { size_bytes: 16 << 20, alone: (TS, 34.2, 15.9), overlapped: (TS, 32.5, 11.5) },
    Table2 { size_bytes: 64 << 20, alone: (TS, 116.5, 57.2), overlapped: (TS, 148.6, 45.6) },
    Table2 { size_bytes: 256 << 20, alone: (TS, 675.5, 0.5), overlapped: ("TREE/LL128", 678.1, 0.0) },
];

/// The only time of another arm in the text of section 3.2: Ring/Simple, 64 MB, alone, ms.
pub const RING_SIMPLE_64MB_MS: f64 = 337.0;

/// One line of Table 1: best configuration and AUTO's gap in %, alone and during computation, and whether the paper marks a flip.
pub struct Table1 {
    /// Whole buffer, bytes.
    pub size_bytes: u64,
    /// Alone.
    pub alone: Winner,
    /// During computation.
    pub overlapped: Winner,
    /// Marked as a flip.
    pub is_flip: bool,
}

const fn row(kib: u64, alone: Winner, overlapped: Winner, is_flip: bool) -> Table1 {
    Table1 { size_bytes: kib << 10, alone, overlapped, is_flip }
}

/// Table 1 as printed: 8 A100 of one host.
pub const TABLE_1: [Table1; 9] = [
    row(32, ("TREE/LL128", 8.33, 1.5), (TS, 8.32, 0.1), true),
    row(64, ("RING/LL128", 8.44, 0.0), ("AUTO", 8.12, 0.0), true),
    row(256, ("RING/SIMPLE", 8.35, 3.0), ("AUTO", 8.36, 0.0), true),
    row(1 << 10, ("TREE/LL128", 8.56, 0.3), ("TREE/LL128", 8.28, 1.3), false),
    row(2 << 10, ("RING/LL128", 8.45, 1.7), ("RING/SIMPLE", 8.60, 3.3), true),
    row(4 << 10, (TS, 8.50, 0.1), ("RING/SIMPLE", 8.46, 2.1), true),
    row(16 << 10, ("RING/SIMPLE", 8.50, 3.1), ("RING/SIMPLE", 8.56, 3.0), false),
    row(64 << 10, ("RING/SIMPLE", 8.95, 2.3), ("RING/SIMPLE", 9.23, 0.6), false),
    row(256 << 10, ("AUTO", 10.6, 0.0), ("RING/SIMPLE", 10.6, 0.4), true),
];

/// One line of Table 3: medians in ms and the improvement in % as printed.
pub struct Table3 {
    /// Hosts x GPUs of each.
    pub topology: &'static str,
    /// Whole buffer, bytes.
    pub size_bytes: u64,
    /// AUTO's median.
    pub auto_ms: f64,
    /// The bandit's median while exploiting.
    pub bandit_ms: f64,
    /// Improvement as printed, %.
    pub improvement_percent: f64,
}

/// Table 3 as printed.
pub const TABLE_3: [Table3; 4] = [
    Table3 { topology: "4x2", size_bytes: 64 << 20, auto_ms: 81.8, bandit_ms: 60.9, improvement_percent: 25.5 },
    Table3 { topology: "4x2", size_bytes: 256 << 20, auto_ms: 251.7, bandit_ms: 194.6, improvement_percent: 22.7 },
    Table3 { topology: "2x4", size_bytes: 64 << 20, auto_ms: 287.3, bandit_ms: 166.6, improvement_percent: 42.0 },
    Table3 { topology: "2x4", size_bytes: 256 << 20, auto_ms: 749.1, bandit_ms: 749.2, improvement_percent: 0.0 },
];

/// AUTO's run next to the logged one (2x4, 64 MB), from the summary in its repository: calls, median, mean, standard
/// deviation in ms.
pub const AUTO_RUN: (u32, f64, f64, f64) = (240, 287.3, 252.5, 132.9);

/// Assumed noise around the paper's medians.
pub const ASSUMED_CV: f64 = 0.10;

/// Tables 2 and 3 as environments. Arms whose times the paper does not print are missing, and the description says so.
pub fn environments() -> Vec<Entry> {
    let noise = Noise::LogNormal { cv: ASSUMED_CV };
    let mut out = Vec::new();
    for line in &TABLE_2 {
        let auto_us = |(_, ms, gap): (&str, f64, f64)| 1e3 * ms * (1.0 + gap / 100.0);
        let best: Vec<&str> = [line.alone.0, line.overlapped.0].into_iter().filter(|n| *n != "AUTO").collect();
        let Some(arm) = best.first().and_then(|n| n.parse::<Arm>().ok()) else { continue };
        // If the printed best arm is another one, this arm's time is not printed. AUTO's time is the lowest possible
        // value.
        let level = |l: (&str, f64, f64)| if l.0 == arm.to_string() { 1e3 * l.1 } else { auto_us(l) };
        let mut arms = vec![arm];
        let mut alone = vec![level(line.alone)];
        let mut overlapped = vec![level(line.overlapped)];
        if line.size_bytes == 64 << 20 {
            arms.push(Arm::new(::tune::Algorithm::Ring, ::tune::Protocol::Simple));
            alone.push(1e3 * RING_SIMPLE_64MB_MS);
            overlapped.push(1e3 * RING_SIMPLE_64MB_MS);
        }
        arms.push(Arm::AUTO);
        alone.push(auto_us(line.alone));
        overlapped.push(auto_us(line.overlapped));
        let about = "2x4 A100, the paper's Table 2: other arms are not printed and missing; CV 10 % assumed";
        let base = Spec::new(format!("paper-2x4-{}", size_name(line.size_bytes)), 1.0, &[], noise.clone());
        let overlap = Some(Overlap { means_us: overlapped, phase_calls: 50, is_told: true });
        let spec = Spec { arms, means_us: alone, is_shuffled: false, overlap, ..base };
        out.push(Entry { about: about.into(), spec, is_made_up: false });
    }
    for line in &TABLE_3 {
        let arms = vec![Arm::new(::tune::Algorithm::Tree, ::tune::Protocol::Simple), Arm::AUTO];
        let means_us = vec![1e3 * line.bandit_ms, 1e3 * line.auto_ms];
        let about = format!(
            "the paper's Table 3 (improvement {:.1} %), medians as means: chosen arm and AUTO, others missing; CV 10 % assumed",
            line.improvement_percent
        );
        let name = format!("paper-bandit-{}-{}", line.topology, size_name(line.size_bytes));
        let spec = Spec { arms, means_us, is_shuffled: false, ..Spec::new(name, 1.0, &[], noise.clone()) };
        out.push(Entry { about, spec, is_made_up: false });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_tables_are_consistent() {
        for line in &TABLE_3 {
            let improvement = 100.0 * (1.0 - line.bandit_ms / line.auto_ms);
            assert!((improvement - line.improvement_percent).abs() < 0.1, "{} {improvement}", line.topology);
        }
        assert_eq!(TABLE_1.iter().filter(|l| l.is_flip).count(), 6);
        assert!(TABLE_1.iter().all(|l| l.is_flip == (l.alone.0 != l.overlapped.0)));
    }

    #[test]
    fn every_environment_has_auto_and_a_time_for_every_arm() {
        for e in environments() {
            assert!(::tune::registry::check_arms(&e.spec.arms).is_ok(), "{}", e.spec.name);
            assert_eq!(e.spec.arms.len(), e.spec.means_us.len());
            assert!(e.spec.overlap.as_ref().is_none_or(|o| o.means_us.len() == e.spec.arms.len()));
        }
    }
}
