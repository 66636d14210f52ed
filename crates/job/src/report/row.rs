//! One row of a report: the calls of one collective and size in one communicator.

use super::CallPrediction;
use super::gather::{CallGroup, Keys};
use serde::Serialize;
use std::collections::BTreeMap;

/// Calls of one collective and size in one communicator.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallRow {
    /// The collective.
    pub collective: String,
    /// The middle of the size bucket.
    pub size_bytes: u64,
    /// Ranks of the communicator.
    pub ranks: u32,
    /// Its nodes.
    pub nodes: u32,
    /// Calls, counted on one rank of each communicator.
    pub calls: u64,
    /// Bytes of these calls.
    pub bytes: u64,
    /// AUTO's most frequent choice.
    pub auto: String,
    /// The arm in use at the end, or AUTO.
    pub arm: String,
    /// Channels that ran most often at AUTO's choice, if the traces have launches.
    pub auto_channels: Option<u32>,
    /// Channels that ran most often with the arm.
    pub arm_channels: Option<u32>,
    /// The reason for the arm.
    pub because: String,
    /// The source of the times that the policy decides by: step, interval (between outermost groups), calls (between
    /// calls), kernel, scripted.
    pub source: String,
    /// Number of such times with AUTO.
    pub auto_samples: usize,
    /// Number of such times with the arm.
    pub arm_samples: usize,
    /// Median time at AUTO, microseconds.
    pub auto_us: Option<f64>,
    /// Median time with the arm, microseconds.
    pub arm_us: Option<f64>,
    /// Variance at AUTO, squared microseconds.
    pub auto_variance_us2: Option<f64>,
    /// Variance with the arm, squared microseconds.
    pub arm_variance_us2: Option<f64>,
    /// Median GPU time of the kernels with AUTO, for the rank that arrives last, microseconds.
    pub auto_kernel_us: Option<f64>,
    /// The same with the arm.
    pub arm_kernel_us: Option<f64>,
    /// GPU time of all kernels of the row, milliseconds.
    pub kernels_ms: Option<f64>,
    /// Share of these kernels in the steps, or in the run if the program reported no steps. Kernels and computation may
    /// overlap.
    pub share: Option<f64>,
    /// Bus bandwidth by the median GPU time, of what ran, GB/s.
    pub busbw_gb_per_s: Option<f64>,
    /// The prediction of a model, or (in JSON as `no_model`) why there is none.
    #[serde(serialize_with = "or_why_not")]
    pub predicted: Result<CallPrediction, String>,
    /// Time saved (below 0: lost) over all calls compared with AUTO, exploration included, milliseconds. If the times
    /// are those of steps or intervals, one step or interval counts once, not each call in it. Rows of the same steps
    /// then do not add up. Computed from times after the arm was chosen, where the trace tells them apart: those that
    /// chose it are better than it is. `None` until there are such times.
    pub saved_ms: Option<f64>,
    /// Number of calls with the arm that repay the cost of exploration.
    pub break_even_calls: Option<u64>,
}

fn or_why_not<S: serde::Serializer>(predicted: &Result<CallPrediction, String>, s: S) -> Result<S::Ok, S::Error> {
    match predicted {
        Ok(p) => p.serialize(s),
        Err(why) => BTreeMap::from([("no_model", why)]).serialize(s),
    }
}

impl CallRow {
    /// The GPU time of the kernels and the times that the policy decides by disagree on whether the arm is faster than
    /// AUTO.
    pub fn disagrees(&self) -> bool {
        let better = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(auto, arm)| arm < auto);
        self.source != "kernel"
            && better(self.auto_us, self.arm_us)
                .zip(better(self.auto_kernel_us, self.arm_kernel_us))
                .is_some_and(|(first, second)| first != second)
    }
}

/// The median; `None` without times.
pub fn median(times: &[f64]) -> Option<f64> {
    (!times.is_empty()).then(|| ::stats::median(times))
}

fn variance(times: &[f64]) -> Option<f64> {
    (times.len() > 1).then(|| ::stats::standard_deviation(times).powi(2))
}

/// Rows of all keys, largest traffic first. `total_ms`: the time that the kernel times are a share of. `predict`: a
/// model's prediction for the calls of a group in a communicator, with AUTO's choice and with the arm in use.
pub fn rows(
    keys: Keys,
    total_ms: Option<f64>,
    predict: impl Fn(&CallGroup, &str, &str, &str) -> Result<CallPrediction, String>,
) -> Vec<CallRow> {
    let of = |((comm, collective, _), k): ((String, String, u8), CallGroup)| {
        row(collective, &k, total_ms, &|auto, arm| predict(&k, &comm, auto, arm))
    };
    let mut rows: Vec<CallRow> = keys.into_iter().map(of).collect();
    rows.retain(|r| r.calls > 0);
    rows.sort_by(|a, b| {
        b.bytes.cmp(&a.bytes).then_with(|| (&a.collective, a.size_bytes).cmp(&(&b.collective, b.size_bytes)))
    });
    rows
}

/// The arm with most calls.
fn most_frequent(calls: &BTreeMap<String, u64>) -> Option<String> {
    calls.iter().max_by_key(|(_, n)| **n).map(|(arm, _)| arm.clone())
}

impl CallGroup {
    fn times_of(&self, arm: &str) -> &[f64] {
        self.times.get(arm).map_or(&[], Vec::as_slice)
    }

    /// Time saved compared with AUTO over all calls, and time lost with the arms that are not in use (the cost of
    /// exploration), microseconds. Each arm counts with its own median. One time may cover many calls.
    fn saved_and_spent_us(&self, auto_us: Option<f64>, arm_in_use: &str) -> (f64, f64) {
        let (mut saved, mut spent) = (0.0, 0.0);
        for (a, n) in &self.arm_calls {
            if let (Some(base), Some(t)) = (auto_us, median(self.times_of(a))) {
                let gain = (base - t) * *n as f64 / self.calls_per_time(a);
                saved += gain;
                if a != arm_in_use {
                    spent -= gain.min(0.0);
                }
            }
        }
        (saved, spent)
    }

    /// The same where the trace tells which times are later than the choice: the time saved only if it is known from
    /// those.
    fn confirmed_us(&self, auto_us: Option<f64>, arm_in_use: &str, spent_steps: f64) -> (Option<f64>, f64) {
        let spent = spent_steps * auto_us.unwrap_or(0.0);
        let calls = self.arm_calls.get(arm_in_use).copied().unwrap_or(0) as f64;
        let steps = calls / self.calls_per_time(arm_in_use);
        let gained =
            if arm_in_use == "AUTO" { Some(0.0) } else { self.gain.zip(auto_us).map(|(g, us)| g * us * steps) };
        (gained.map(|g| g - spent), spent)
    }

    /// Median GPU time of the kernels of a requested arm: of the times that the ranks agreed on, else of the shortest
    /// times in these traces of calls that `ran` as this arm.
    fn kernel_us(&self, requested: &str, ran: &str) -> Option<f64> {
        let agreed = self.agreed_kernels.get(requested).filter(|t| !t.is_empty());
        let traced = || self.kernels.values().filter(|(arm, _)| arm == ran).map(|(_, t)| *t).collect::<Vec<_>>();
        agreed.and_then(|t| median(t)).or_else(|| median(&traced()))
    }

    /// Time of all kernels in these traces, milliseconds.
    fn kernels_ms(&self) -> Option<f64> {
        (!self.kernels.is_empty()).then(|| {
            let seen: f64 = self.kernels.values().map(|(_, t)| t).sum();
            seen / 1e3 * self.calls as f64 / (self.kernels.len() as f64).min(self.calls.max(1) as f64)
        })
    }

    /// Bus bandwidth of a call with this GPU time, GB/s.
    fn busbw_gb_per_s(&self, kernel_us: Option<f64>) -> Option<f64> {
        let bytes_of_one = self.bytes as f64 / self.calls.max(1) as f64;
        let factor = self.collective.map(|c| c.bus_factor(self.ranks as usize));
        kernel_us.zip(factor).map(|(us, f)| bytes_of_one / us / 1e3 * f).filter(|_| self.ranks > 1)
    }
}

fn row(
    collective: String,
    k: &CallGroup,
    total_ms: Option<f64>,
    predict: &dyn Fn(&str, &str) -> Result<CallPrediction, String>,
) -> CallRow {
    let auto = most_frequent(&k.autos).unwrap_or_else(|| "AUTO".into());
    let (arm, because) = match &k.finding {
        Some((_, arm, because)) => (arm.clone(), because.clone()),
        None => (most_frequent(&k.arm_calls).unwrap_or_else(|| "AUTO".into()), String::new()),
    };
    let fresh = |a: &str| k.fresh_times.get(a).map(Vec::as_slice).filter(|t| !t.is_empty());
    let (auto_times, arm_times) = match (fresh("AUTO"), fresh(&arm)) {
        (Some(auto_times), Some(arm_times)) if arm != "AUTO" => (auto_times, arm_times),
        _ => (k.times_of("AUTO"), k.times_of(&arm)),
    };
    let (auto_us, arm_us) = (median(auto_times), median(arm_times));
    let (saved_us, spent_us) = match k.spent_steps {
        Some(steps) => k.confirmed_us(auto_us, &arm, steps),
        None => {
            let (saved, spent) = k.saved_and_spent_us(auto_us, &arm);
            (Some(saved), spent)
        }
    };
    let per_call = auto_us.zip(arm_us).map(|(a, b)| (a - b) / k.calls_per_time(&arm)).filter(|g| *g > 0.0);
    let auto_kernel_us = k.kernel_us("AUTO", &auto);
    let without_channels = arm.split('@').next().unwrap_or("");
    let arm_kernel_us = if arm == "AUTO" { auto_kernel_us } else { k.kernel_us(&arm, without_channels) };
    let kernels_ms = k.kernels_ms();
    let ran_on = |arm: &str| k.channels.get(arm)?.iter().max_by_key(|(_, n)| **n).map(|(channels, _)| *channels);
    CallRow {
        auto_channels: ran_on(&auto),
        arm_channels: ran_on(if arm == "AUTO" { &auto } else { without_channels }),
        collective,
        size_bytes: ::tune::bucket::middle(k.bucket),
        ranks: k.ranks,
        nodes: k.nodes,
        calls: k.calls,
        bytes: k.bytes,
        auto_samples: auto_times.len(),
        arm_samples: arm_times.len(),
        auto_us,
        arm_us,
        auto_variance_us2: variance(auto_times),
        arm_variance_us2: variance(arm_times),
        auto_kernel_us,
        arm_kernel_us,
        kernels_ms,
        share: kernels_ms.zip(total_ms.filter(|b| *b > 0.0)).map(|(k, b)| k / b),
        busbw_gb_per_s: k.busbw_gb_per_s(arm_kernel_us.or(auto_kernel_us)),
        predicted: predict(&auto, &arm),
        saved_ms: auto_us.and(saved_us).map(|us| us / 1e3),
        break_even_calls: per_call.map(|g| (spent_us / g).ceil() as u64),
        auto,
        arm,
        because,
        source: k.source.clone(),
    }
}
