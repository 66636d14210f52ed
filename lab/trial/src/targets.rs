//! The targets of a policy, as environments and limits.
//!
//! All times are relative to AUTO's level, 1. A gap is the share by which the best arm's mean is below the next best
//! one's. Each target reports the worst environment of its group: `flat` (all other arms at AUTO's level), `spread`
//! (other arms at 1.1 and 1.3), `second` (a second arm at 1, AUTO and the last arm at 1.2: the gap is to the second
//! best arm, not to AUTO).

use crate::environment::{Change, Noise, Spec};
use crate::score::Score;

/// The quantity that a target limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Share of runs with the right arm in use after this number of readings, %.
    RightAfter(usize),
    /// Share of runs that chose an arm no better than AUTO, %.
    WrongRuns,
    /// Calls off the arm in use until decided, per arm, mean.
    ExploredPerArm,
    /// Share of runs back on the right arm within this number of calls after the change, %.
    RecoveredWithin(u64),
    /// Mean cost of exploring other arms once settled, %.
    LookingCost,
    /// Largest number of explorations in 2,000 calls of one arm that is more than 1.5 times slower, in any run.
    LooksAtSlow,
    /// The same for arms more than 2 times slower, which are recognised with certainty.
    LooksAtClearlySlow,
}

impl Measure {
    /// The value, from the runs of one environment.
    pub fn of(self, score: &Score, arms: usize) -> f64 {
        match self {
            Measure::RightAfter(n) => 100.0 * score.right_after(n),
            Measure::WrongRuns => 100.0 * score.wrong_runs(),
            Measure::ExploredPerArm => score.mean(|o| o.explored_until_decided as f64) / arms as f64,
            Measure::RecoveredWithin(n) => 100.0 * score.recovered_within(n),
            Measure::LookingCost => 100.0 * score.looking_cost(),
            Measure::LooksAtSlow => score.max(|o| o.looks_at_slow_max as f64),
            Measure::LooksAtClearlySlow => score.max(|o| o.looks_at_clearly_slow_max as f64),
        }
    }

    /// True if a higher value is better.
    pub fn is_at_least(self) -> bool {
        matches!(self, Measure::RightAfter(_) | Measure::RecoveredWithin(_))
    }

    /// The unit, for tables.
    pub fn unit(self) -> &'static str {
        match self {
            Measure::ExploredPerArm => "calls",
            Measure::LooksAtSlow | Measure::LooksAtClearlySlow => "looks",
            _ => "%",
        }
    }

    /// The worse of two values.
    pub fn worse(self, a: f64, b: f64) -> f64 {
        if self.is_at_least() { a.min(b) } else { a.max(b) }
    }
}

/// One target.
#[derive(Debug, Clone)]
pub struct Target {
    /// The statement as text.
    pub statement: String,
    /// The environments; the worst result counts.
    pub specs: Vec<Spec>,
    /// The limited quantity.
    pub measure: Measure,
    /// The limit, in the measure's unit.
    pub limit: f64,
    /// A value that equals the limit misses it ("under 1 %").
    pub is_strict: bool,
}

impl Target {
    /// Whether a value meets the target.
    pub fn is_met(&self, value: f64) -> bool {
        match (self.measure.is_at_least(), self.is_strict) {
            (true, false) => value >= self.limit,
            (true, true) => value > self.limit,
            (false, false) => value <= self.limit,
            (false, true) => value < self.limit,
        }
    }

    /// The limit's direction as text.
    pub fn bound(&self) -> &'static str {
        match (self.measure.is_at_least(), self.is_strict) {
            (true, false) => "at least",
            (true, true) => "above",
            (false, false) => "at most",
            (false, true) => "below",
        }
    }
}

/// Mean time of AUTO under log-normal noise, microseconds.
const AUTO_US: f64 = 1_000.0;
/// Mean time of AUTO under two modes, as in the published reward log, near 202 ms.
const TWO_MODES_US: f64 = 202_500.0;
/// Coefficients of variation of the noise.
pub const CVS: [f64; 4] = [0.03, 0.05, 0.10, 0.20];

fn log_normal(cv: f64) -> Noise {
    Noise::LogNormal { cv }
}

fn percent(x: f64) -> String {
    format!("{:.0}%", x * 100.0)
}

/// Four arms whose best one is `gap` below the next: the variants of the module's comment.
pub fn four_arms(gap: f64, cv: f64, calls: u64) -> Vec<Spec> {
    let name = |variant: &str| format!("four-{variant}-gap{}-cv{}", percent(gap), percent(cv));
    let flat = Spec::new(name("flat"), AUTO_US, &[1.0 - gap, 1.0, 1.0], log_normal(cv));
    let spread = Spec::new(name("spread"), AUTO_US, &[1.0 - gap, 1.1, 1.3], log_normal(cv));
    let second = Spec::new(name("second"), 1.2 * AUTO_US, &[(1.0 - gap) / 1.2, 1.0 / 1.2, 1.0], log_normal(cv));
    [flat, spread, second].into_iter().map(|s| Spec { calls, ..s }).collect()
}

/// No arm is better than AUTO: all arms equal AUTO, or they are slightly worse.
pub fn no_better_arm(noise: &Noise, auto_us: f64, name: &str) -> Vec<Spec> {
    vec![
        Spec::new(format!("null-flat-{name}"), auto_us, &[1.0, 1.0, 1.0], noise.clone()),
        Spec::new(format!("null-near-{name}"), auto_us, &[1.02, 1.05, 1.10], noise.clone()),
    ]
}

/// Twelve arms: three good ones close together, AUTO, and eight spread up to three times AUTO.
pub fn twelve_arms(noise: &Noise, auto_us: f64, name: &str) -> Spec {
    let levels = [0.70, 0.715, 0.73, 1.1, 1.3, 1.5, 1.75, 2.0, 2.3, 2.6, 3.0];
    Spec { right_within: 0.05, calls: 2_400, ..Spec::new(format!("twelve-{name}"), auto_us, &levels, noise.clone()) }
}

/// Two good arms (0.70 and 0.72). From call 600 on the one in use takes 1.3 times as long, so the other is 21 to 27 %
/// better.
pub fn in_use_worsens(noise: &Noise, auto_us: f64, name: &str, calls_after: u64) -> Vec<Spec> {
    let twins = Spec::new(format!("worse-twins-{name}"), auto_us, &[0.70, 0.72, 1.0], noise.clone());
    let auto = Spec::new(format!("worse-auto-{name}"), auto_us, &[1.0, 1.0, 1.1], noise.clone());
    let change = Some((600, Change::InUse(1.3)));
    [twins, auto].into_iter().map(|s| Spec { change, calls: 600 + calls_after, ..s }).collect()
}

/// AUTO is the best arm; at call 600 the worst of the other arms becomes 30 % better than AUTO.
pub fn unused_improves(noise: &Noise, auto_us: f64, name: &str) -> Spec {
    let base = Spec::new(format!("better-unused-{name}"), auto_us, &[1.05, 1.1, 1.2], noise.clone());
    Spec { change: Some((600, Change::Unused(0.7))), calls: 600 + 2_000 + 60, ..base }
}

/// All targets. `log` holds the exploitation readings of the published reward log, if there is one: an environment uses
/// their shape.
pub fn all(log: Option<&Noise>) -> Vec<Target> {
    let mut out = right_arm_targets();
    out.extend(wrong_arm_targets());
    for cv in [0.05, 0.10, 0.20] {
        out.extend(twelve_arms_targets(cv));
    }
    let modes = [("two modes", Some(&Noise::BANDIT_LOG)), ("the log's rewards", log)];
    for (name, noise) in modes.into_iter().filter_map(|(n, x)| x.map(|x| (n, x))) {
        out.extend(two_modes_targets(name, noise));
    }
    out.extend(change_targets());
    out.extend(delay_and_loss_targets());
    out.extend(looking_cost_targets());
    out
}

fn target(statement: String, specs: Vec<Spec>, measure: Measure, limit: f64) -> Target {
    // "Leaving AUTO wrongly" must stay below 1 %; every other limit may be met exactly.
    let is_strict = measure == Measure::WrongRuns && limit == 1.0;
    Target { statement, specs, measure, limit, is_strict }
}

fn right_arm_targets() -> Vec<Target> {
    let one = |(ratio, readings): (f64, usize), cv: f64| {
        let statement = format!("four arms, gap/CV {ratio}, CV {}: right arm after {readings} calls", percent(cv));
        target(statement, four_arms(ratio * cv, cv, readings as u64 + 1), Measure::RightAfter(readings), 95.0)
    };
    [(3.0, 20), (4.0, 20), (2.0, 40)].into_iter().flat_map(|case| CVS.map(|cv| one(case, cv))).collect()
}

fn wrong_arm_targets() -> Vec<Target> {
    let no_better = CVS.map(|cv| {
        let statement = format!("no better arm, CV {}: AUTO left wrongly in 2,000 calls", percent(cv));
        let specs = no_better_arm(&log_normal(cv), AUTO_US, &format!("cv{}", percent(cv)));
        target(statement, specs, Measure::WrongRuns, 1.0)
    });
    let small_gap = CVS.map(|cv| {
        let statement = format!("gap/CV 1, CV {}: an arm no better than AUTO chosen in 2,000 calls", percent(cv));
        target(statement, four_arms(cv, cv, 2_000), Measure::WrongRuns, 1.0)
    });
    no_better.into_iter().chain(small_gap).collect()
}

fn twelve_arms_targets(cv: f64) -> [Target; 5] {
    let spec = twelve_arms(&log_normal(cv), AUTO_US, &format!("cv{}", percent(cv)));
    let name = format!("twelve arms, CV {}", percent(cv));
    let one = |what: &str, measure: Measure, limit: f64| {
        target(format!("{name}: {what}"), vec![spec.clone()], measure, limit)
    };
    let looks = |factor: &str| format!("most looks in 2,000 calls at an arm over {factor}x");
    [
        one("calls per arm until decided", Measure::ExploredPerArm, 4.0),
        one("a good arm after 200 calls", Measure::RightAfter(200), 95.0),
        one("cost of looking once settled", Measure::LookingCost, 1.0),
        one(&looks("1.5"), Measure::LooksAtSlow, 1.0),
        one(&looks("2"), Measure::LooksAtClearlySlow, 1.0),
    ]
}

fn two_modes_targets(name: &str, noise: &Noise) -> [Target; 5] {
    let slug = name.replace([' ', '\''], "-");
    let better = |variant: &str, levels: &[f64]| {
        Spec::new(format!("modes-{variant}-{slug}"), TWO_MODES_US, levels, noise.clone())
    };
    let specs = vec![better("flat", &[0.7, 1.0, 1.0]), better("spread", &[0.7, 1.1, 1.3])];
    let null = no_better_arm(noise, TWO_MODES_US, &slug);
    let worse = in_use_worsens(noise, TWO_MODES_US, &slug, 360);
    let unused = vec![unused_improves(noise, TWO_MODES_US, &slug)];
    let one = |what: &str, specs: Vec<Spec>, measure: Measure, limit: f64| {
        target(format!("{name}: {what}"), specs, measure, limit)
    };
    [
        one("a 30 % better arm after 200 calls", specs.clone(), Measure::RightAfter(200), 95.0),
        one("AUTO left wrongly in 2,000 calls", null, Measure::WrongRuns, 2.0),
        one("cost of looking once settled", specs, Measure::LookingCost, 1.0),
        one("arm in use 30 % worse, back on the best in 300", worse, Measure::RecoveredWithin(300), 90.0),
        one("unused arm 30 % better, found in 2,000", unused, Measure::RecoveredWithin(2_000), 90.0),
    ]
}

fn change_targets() -> Vec<Target> {
    let worse = [0.03, 0.05, 0.10].map(|cv| {
        let specs = in_use_worsens(&log_normal(cv), AUTO_US, &format!("cv{}", percent(cv)), 120);
        let statement = format!("arm in use 30 % worse, CV {}: back on the best in 60", percent(cv));
        target(statement, specs, Measure::RecoveredWithin(60), 90.0)
    });
    let unused = CVS.map(|cv| {
        let spec = unused_improves(&log_normal(cv), AUTO_US, &format!("cv{}", percent(cv)));
        let statement = format!("unused arm 30 % better, CV {}: found in 2,000", percent(cv));
        target(statement, vec![spec], Measure::RecoveredWithin(2_000), 90.0)
    });
    worse.into_iter().chain(unused).collect()
}

/// Epochs that are decided before their first call runs, and lost readings.
fn delay_and_loss_targets() -> Vec<Target> {
    let mut out = Vec::new();
    for (words, epoch_calls, lost) in [("32 calls decided ahead", 32, 0.0), ("one reading in five lost", 1, 0.2)] {
        let slug = words.replace(' ', "-");
        let with = |s: Spec| Spec { name: format!("{slug}-{}", s.name), epoch_calls, lost, ..s };
        let specs: Vec<Spec> = four_arms(0.3, 0.1, 2_000).into_iter().map(with).collect();
        let statement = format!("{words}, gap 30 %, CV 10%: right arm after 400 calls");
        out.push(target(statement, specs, Measure::RightAfter(400), 95.0));
        let null = no_better_arm(&log_normal(0.1), AUTO_US, "cv10%").into_iter().map(with).collect();
        out.push(target(format!("{words}, no better arm, CV 10%: AUTO left wrongly"), null, Measure::WrongRuns, 1.0));
    }
    out
}

fn looking_cost_targets() -> [Target; 4] {
    CVS.map(|cv| {
        let statement = format!("four arms, gap 30 %, CV {}: cost of looking once settled", percent(cv));
        target(statement, four_arms(0.3, cv, 2_400), Measure::LookingCost, 1.0)
    })
}
