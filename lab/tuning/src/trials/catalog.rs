//! The environments of `linkwise-lab tune evaluate`, by name.

use ::trial::{Change, Noise, Overlap, Spec, targets};
use console::Failure;

/// AUTO's mean time in the made-up environments, microseconds.
const AUTO_US: f64 = 1_000.0;
/// AUTO's mean time with two modes, microseconds, as in the published reward log.
const TWO_MODES_US: f64 = 202_500.0;

/// An environment with a name and a description.
pub struct Entry {
    /// Description.
    pub about: String,
    /// The environment.
    pub spec: Spec,
    /// True if the levels are made up; otherwise they, or raw readings, were published. Calls are always simulated.
    pub is_made_up: bool,
}

impl Entry {
    /// The origin of the levels, as a word.
    pub fn levels(&self) -> &'static str {
        if self.is_made_up { "made up" } else { "published" }
    }
}

/// All environments: made up, printed in the paper, and those that the data folder has.
pub fn all() -> Result<Vec<Entry>, Failure> {
    let mut out = simulated();
    out.extend(super::paper::environments());
    out.extend(super::data::environments()?);
    Ok(out)
}

/// The made-up environments.
pub fn simulated() -> Vec<Entry> {
    let mut out = Vec::new();
    let mut add = |name: &str, about: &str, spec: Spec| {
        out.push(Entry { about: about.into(), spec: Spec { name: name.into(), ..spec }, is_made_up: true });
    };
    let spread = [0.7, 1.1, 1.3];
    for (name, cv) in [("cv3", 0.03), ("cv5", 0.05), ("cv10", 0.10), ("cv20", 0.20)] {
        let noise = Noise::LogNormal { cv };
        add(name, "one arm 30 % better, two worse; log-normal noise", Spec::new("", AUTO_US, &spread, noise));
    }
    let calm = Noise::LogNormal { cv: 0.10 };
    let four = || Spec::new("", AUTO_US, &spread, calm.clone());
    add("null", "no arm better than AUTO, CV 10 %", Spec::new("", AUTO_US, &[1.0, 1.02, 1.05], calm.clone()));
    add("twelve", "12 arms: 3 good, others up to 3 times AUTO, CV 10 %", targets::twelve_arms(&calm, AUTO_US, ""));
    let modes = |levels: &[f64]| Spec::new("", TWO_MODES_US, levels, Noise::BANDIT_LOG);
    add("modes", "two modes (110 and 295 ms), one arm 30 % better", modes(&spread));
    add("modes-null", "two modes, no arm better than AUTO", modes(&[1.0, 1.0, 1.0]));
    add(
        "first-use",
        "cv10, and the first call of an arm takes 5 times as long",
        Spec { first_use_factor: 5.0, ..four() },
    );
    add("late", "cv10, 32 calls decided ahead of their readings", Spec { epoch_calls: 32, ..four() });
    add("lost", "cv10, one reading in five lost", Spec { lost: 0.2, ..four() });
    add("drift", "cv10, all times grow by 20 % in 1,000 calls", Spec { drift_per_1000: 0.2, ..four() });
    let drift_null = Spec { drift_per_1000: 0.2, ..Spec::new("", AUTO_US, &[1.0, 1.0, 1.0], calm.clone()) };
    add("drift-null", "the same drift, no arm better than AUTO", drift_null);
    let arms = ["RING/SIMPLE@16", "RING/SIMPLE@8", "RING/SIMPLE@4", "AUTO"];
    let channels = Spec::new("", AUTO_US, &[0.70, 0.73, 0.76], Noise::LogNormal { cv: 0.03 });
    add(
        "channels",
        "the more channels, the faster: 16, 8 and 4 take 0.70, 0.73 and 0.76 of AUTO's time, CV 3 %; for --channel-price",
        Spec { arms: arms.iter().filter_map(|a| a.parse().ok()).collect(), is_shuffled: false, ..channels },
    );
    let flip = |is_told: bool| {
        let means_us = vec![1_000.0, 800.0, 1_400.0, 1_300.0];
        Spec { is_shuffled: false, overlap: Some(Overlap { means_us, phase_calls: 50, is_told }), ..four() }
    };
    add("overlap", "computation changes the best arm, in phases of 50 calls; policies get the phase", flip(true));
    add("overlap-untold", "the same, and policies must infer the phase", flip(false));
    let worse = targets::in_use_worsens(&calm, AUTO_US, "", 1_400).swap_remove(0);
    add("worse", "CV 10 %, at call 600 the arm in use takes 1.3 times as long", worse);
    add(
        "better",
        "CV 10 %, at call 600 an unused arm becomes 30 % better than AUTO",
        targets::unused_improves(&calm, AUTO_US, ""),
    );
    let moved = Spec { change: Some((600, Change::OtherNodes)), ..four() };
    add("preempted", "cv10, at call 600 the job moves: levels are shuffled again, AUTO included", moved);
    out
}
