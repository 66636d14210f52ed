//! The gap between AUTO and the best arm, alone and during computation, by size; computed from policy files and sweeps.

use crate::policy_file::{self, PolicyFile};
use crate::sweep::{Sweep, parse_sweep, sweep_arm};
use ::tune::Arm;
use serde::Serialize;
use std::collections::BTreeMap;

/// Times of one kind of execution: size in bytes, then milliseconds by arm.
pub type Times = BTreeMap<u64, BTreeMap<String, f64>>;

/// AUTO and the best arms on one set of GPUs.
pub struct Characterization {
    /// Name of the measured system.
    pub name: String,
    /// Calls alone.
    pub alone: Times,
    /// Calls while computation runs.
    pub overlapped: Times,
    /// The arms that passed all gates against AUTO, by size, alone and overlapped; `None` if only medians are known.
    pub proven: Option<[BTreeMap<u64, Vec<String>>; 2]>,
}

/// The best arm at one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BestArm {
    /// The arm with the lowest median; AUTO if it ties.
    pub arm: String,
    /// Its median, ms.
    pub ms: f64,
    /// Time of AUTO above this median, %.
    pub auto_gap_percent: f64,
    /// Whether the arm passed all gates against AUTO; `None` if only medians are known.
    pub is_proven: Option<bool>,
}

/// One line of Table 1 or 2.
#[derive(Debug, Serialize)]
pub struct SizeRow {
    /// Whole buffer, bytes.
    pub size_bytes: u64,
    /// Alone.
    pub alone: Option<BestArm>,
    /// During computation.
    pub overlapped: Option<BestArm>,
    /// Whether computation changes the arm with the lowest median; `None` if one of the two is unknown. The change may
    /// be chance.
    pub is_flip: Option<bool>,
    /// Whether computation changes the arm that passed all gates (AUTO if none did); `None` if only medians are known.
    pub is_proven_flip: Option<bool>,
}

/// The best arm of these times; `None` if AUTO has no time.
pub fn best(times: &BTreeMap<String, f64>) -> Option<BestArm> {
    let auto = *times.get("AUTO")?;
    let lowest = times.iter().min_by(|a, b| a.1.total_cmp(b.1).then_with(|| (b.0 == "AUTO").cmp(&(a.0 == "AUTO"))))?;
    let auto_gap_percent = 100.0 * (auto / lowest.1 - 1.0);
    Some(BestArm { arm: lowest.0.clone(), ms: *lowest.1, auto_gap_percent, is_proven: None })
}

impl Characterization {
    /// One row per size, rising.
    pub fn rows(&self) -> Vec<SizeRow> {
        let mut sizes: Vec<u64> = self.alone.keys().chain(self.overlapped.keys()).copied().collect();
        sizes.sort_unstable();
        sizes.dedup();
        let row = |size: u64| {
            let of = |times: &Times, kind: usize| {
                let best = times.get(&size).and_then(best)?;
                let passed = self.proven.as_ref().map(|p| p[kind].get(&size).is_some_and(|a| a.contains(&best.arm)));
                Some(BestArm { is_proven: passed, ..best })
            };
            let (alone, overlapped) = (of(&self.alone, 0), of(&self.overlapped, 1));
            let is_flip = alone.as_ref().zip(overlapped.as_ref()).map(|(a, o)| a.arm != o.arm);
            let proven = |kind| self.proven_arm(size, kind);
            let is_proven_flip = is_flip.and(proven(0)).zip(proven(1)).map(|(a, o)| a != o);
            SizeRow { size_bytes: size, alone, overlapped, is_flip, is_proven_flip }
        };
        sizes.into_iter().map(row).collect()
    }

    /// The fastest arm that passed all gates, alone (0) or overlapped (1); AUTO if none did; `None` if that is unknown.
    fn proven_arm(&self, size: u64, kind: usize) -> Option<&str> {
        let passed = self.proven.as_ref()?[kind].get(&size)?;
        let times = [&self.alone, &self.overlapped][kind].get(&size)?;
        let known = passed.iter().filter_map(|arm| Some((arm, times.get(arm)?)));
        Some(known.min_by(|a, b| a.1.total_cmp(b.1)).map_or("AUTO", |(arm, _)| arm))
    }

    /// The characterization of a sweep. A sweep has medians and no readings.
    pub fn of_sweep(name: String, sweep: Sweep) -> Characterization {
        let named = |times: BTreeMap<String, f64>| {
            times.into_iter().map(|(word, ms)| (sweep_arm(&word).map_or(word, |a: Arm| a.to_string()), ms)).collect()
        };
        let mut kinds: BTreeMap<String, Times> = sweep
            .into_iter()
            .map(|(kind, sizes)| (kind, sizes.into_iter().map(|(size, times)| (size, named(times))).collect()))
            .collect();
        let mut take = |kind: &str| kinds.remove(kind).unwrap_or_default();
        Characterization { name, alone: take("sequential"), overlapped: take("overlap"), proven: None }
    }

    fn of_policy(name: String, file: &PolicyFile) -> Characterization {
        let times = |lines: &[policy_file::SizeLine]| -> Times {
            let of_line = |l: &policy_file::SizeLine| {
                let arms = file.arms.iter().zip(&l.arms);
                (l.size_bytes, arms.filter_map(|(a, t)| Some((a.clone(), t.median_us? / 1e3))).collect())
            };
            lines.iter().map(of_line).collect()
        };
        let passed = |lines: &[policy_file::SizeLine]| -> BTreeMap<u64, Vec<String>> {
            let of_line = |l: &policy_file::SizeLine| {
                let arms = file.arms.iter().zip(&l.arms);
                let passed = arms.filter(|(_, found)| found.verdict.is_some() && found.failed_gate.is_none());
                (l.size_bytes, passed.map(|(a, _)| a.clone()).collect())
            };
            lines.iter().map(of_line).collect()
        };
        Characterization {
            name,
            alone: times(&file.isolated),
            overlapped: times(&file.overlapped),
            proven: Some([passed(&file.isolated), passed(&file.overlapped)]),
        }
    }

    /// Reads the text of a policy file or of a sweep; `name` is shown above its table.
    ///
    /// # Errors
    /// The text is neither a policy file nor a sweep, or the sweep has no time of AUTO.
    pub fn read(name: &str, text: &str) -> Result<Characterization, String> {
        if text.contains("\"linkwise_tune_profile\"") {
            return Ok(Self::of_policy(name.to_owned(), &PolicyFile::read(text)?));
        }
        let sweep = parse_sweep(text).map_err(|e| format!("neither a policy file nor a sweep ({e})"))?;
        let read = Self::of_sweep(name.to_owned(), sweep);
        if read.rows().iter().all(|r| r.alone.is_none() && r.overlapped.is_none()) {
            return Err("no size has a time of AUTO under `sequential` or `overlap`, so nothing can be compared".into());
        }
        Ok(read)
    }

    /// The head of [`Characterization::cells`]. The columns from 1 on hold numbers or arms.
    pub const HEAD: [&str; 8] = ["size", "alone: best", "ms", "AUTO +%", "overlapped: best", "ms", "AUTO +%", "flip"];

    /// One line of text cells per size. `*` marks an arm or a flip that passed all gates.
    pub fn cells(&self) -> Vec<Vec<String>> {
        let cells = |b: &Option<BestArm>| match b {
            None => vec!["-".into(), "-".into(), "-".into()],
            Some(b) => {
                let mark = if b.is_proven == Some(true) { "*" } else { "" };
                vec![b.arm.clone(), format!("{:.4}", b.ms), format!("{:.1}{mark}", b.auto_gap_percent)]
            }
        };
        let line = |r: &SizeRow| {
            let mut line = vec![topology::Bytes(r.size_bytes).to_string()];
            line.extend(cells(&r.alone));
            line.extend(cells(&r.overlapped));
            line.push(match (r.is_flip, r.is_proven_flip) {
                (_, Some(true)) => "flip*".into(),
                (Some(true), _) => "flip".into(),
                (Some(false), _) => String::new(),
                (None, _) => "-".into(),
            });
            line
        };
        self.rows().iter().map(line).collect()
    }

    /// AUTO's mean gaps and the number of flips, as a sentence.
    pub fn summary(&self) -> String {
        let rows = self.rows();
        let mean = |f: fn(&SizeRow) -> &Option<BestArm>| {
            let gaps: Vec<f64> = rows.iter().filter_map(|r| f(r).as_ref().map(|b| b.auto_gap_percent)).collect();
            if gaps.is_empty() { "-".to_owned() } else { format!("{:.1} %", ::stats::mean(&gaps)) }
        };
        let known = rows.iter().filter(|r| r.is_flip.is_some()).count();
        let flips = rows.iter().filter(|r| r.is_flip == Some(true)).count();
        let proven = rows.iter().filter(|r| r.is_proven_flip == Some(true)).count();
        format!(
            "AUTO's mean gap: {} alone, {} overlapped; {flips} of {known} sizes flip by their lowest medians, {}",
            mean(|r| &r.alone),
            mean(|r| &r.overlapped),
            match self.proven {
                Some(_) => format!("{proven} by the gates. *: passed all gates; other gaps and flips may be chance."),
                None => "which may be chance: without readings the gates cannot be checked.".to_owned(),
            }
        )
    }
}

/// AUTO's gap at one size in the first topology and in another.
#[derive(Debug, Serialize)]
pub struct Amplification {
    /// Name of the measured system.
    pub topology: String,
    /// True for calls during computation.
    pub is_overlapped: bool,
    /// Whole buffer, bytes.
    pub size_bytes: u64,
    /// AUTO's gap in the first topology, %.
    pub gap_percent_of_first: f64,
    /// AUTO's gap in this topology, %.
    pub gap_percent: f64,
    /// This gap over the first one; `None` if the first is 0.
    pub factor: Option<f64>,
}

impl Amplification {
    /// The head of [`Amplification::cells`].
    pub const HEAD: [&str; 6] = ["topology", "calls", "size", "first %", "gap %", "factor"];

    /// One line of a table.
    pub fn cells(&self) -> Vec<String> {
        vec![
            self.topology.clone(),
            if self.is_overlapped { "overlapped" } else { "alone" }.into(),
            topology::Bytes(self.size_bytes).to_string(),
            format!("{:.1}", self.gap_percent_of_first),
            format!("{:.1}", self.gap_percent),
            self.factor.map_or("-".into(), |f| format!("{f:.1}x")),
        ]
    }
}

/// AUTO's gaps in all topologies but the first, at the sizes that the first also has.
pub fn amplifications(topologies: &[Characterization]) -> Vec<Amplification> {
    let Some((first, others)) = topologies.split_first() else { return Vec::new() };
    let base = first.rows();
    let mut out = Vec::new();
    for other in others {
        for row in other.rows() {
            let Some(of_first) = base.iter().find(|b| b.size_bytes == row.size_bytes) else { continue };
            let kinds = [(false, &of_first.alone, &row.alone), (true, &of_first.overlapped, &row.overlapped)];
            for (is_overlapped, of_first, of_other) in kinds {
                let (Some(of_first), Some(of_other)) = (of_first, of_other) else { continue };
                let (a, b) = (of_first.auto_gap_percent, of_other.auto_gap_percent);
                out.push(Amplification {
                    topology: other.name.clone(),
                    is_overlapped,
                    size_bytes: row.size_bytes,
                    gap_percent_of_first: a,
                    gap_percent: b,
                    factor: (a > 0.0).then(|| b / a),
                });
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tie_goes_to_auto_and_the_gap_is_over_the_best() {
        let times = |list: &[(&str, f64)]| list.iter().map(|(a, t)| ((*a).to_owned(), *t)).collect::<BTreeMap<_, _>>();
        let tie = best(&times(&[("AUTO", 2.0), ("TREE/LL", 2.0)])).unwrap();
        assert_eq!((tie.arm.as_str(), tie.auto_gap_percent), ("AUTO", 0.0));
        let tree = best(&times(&[("AUTO", 3.0), ("TREE/LL", 2.0)])).unwrap();
        assert_eq!((tree.arm.as_str(), tree.auto_gap_percent), ("TREE/LL", 50.0));
        assert_eq!(best(&times(&[("TREE/LL", 2.0)])), None, "without AUTO there is no gap");
    }

    #[test]
    fn a_flip_of_medians_is_proven_only_where_the_gates_change_the_arm() {
        let times = |tree: f64| Times::from([(64, BTreeMap::from([("AUTO".into(), 1.0), ("TREE/LL".into(), tree)]))]);
        let passed = |arms: &[&str]| BTreeMap::from([(64, arms.iter().map(|a| (*a).to_owned()).collect())]);
        let flips = |proven: Option<[&[&str]; 2]>| {
            let proven = proven.map(|p| p.map(passed));
            let row = Characterization { name: "x".into(), alone: times(0.9), overlapped: times(1.1), proven }
                .rows()
                .remove(0);
            (row.is_flip, row.is_proven_flip)
        };
        assert_eq!(flips(None), (Some(true), None));
        assert_eq!(flips(Some([&[], &[]])), (Some(true), Some(false)), "AUTO is used in both");
        assert_eq!(flips(Some([&["TREE/LL"], &[]])), (Some(true), Some(true)));
    }

    #[test]
    fn amplification_is_the_ratio_of_gaps_at_the_same_size() {
        let t = |auto: f64| Characterization {
            name: "x".into(),
            alone: BTreeMap::from([(64, BTreeMap::from([("AUTO".into(), auto), ("TREE/LL".into(), 1.0)]))]),
            overlapped: Times::new(),
            proven: None,
        };
        let a = amplifications(&[t(1.1), t(1.5)]);
        assert!((a[0].factor.unwrap() - 5.0).abs() < 1e-9);
        assert_eq!(amplifications(&[t(1.0), t(1.5)])[0].factor, None);
    }
}
