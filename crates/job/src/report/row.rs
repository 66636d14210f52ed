//! One row of a report: the calls of a collective and size in a communicator.

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
    /// Why.
    pub because: String,
    /// What the times that decide are: step, interval (between outermost groups), calls (between calls), kernel, scripted.
    pub source: String,
    /// Times at AUTO that decided.
    pub auto_samples: usize,
    /// Times with the arm.
    pub arm_samples: usize,
    /// Median time at AUTO, microseconds.
    pub auto_us: Option<f64>,
    /// Median time with the arm, microseconds.
    pub arm_us: Option<f64>,
    /// Variance at AUTO, squared microseconds.
    pub auto_variance_us2: Option<f64>,
    /// Variance with the arm, squared microseconds.
    pub arm_variance_us2: Option<f64>,
    /// Median GPU time of the kernels at AUTO, of the rank that arrives last, microseconds.
    pub auto_kernel_us: Option<f64>,
    /// The same with the arm.
    pub arm_kernel_us: Option<f64>,
    /// All kernels of the row, milliseconds.
    pub kernels_ms: Option<f64>,
    /// Share of the steps that these kernels are, or of the run where the program said no steps. Kernels and computation may overlap.
    pub share: Option<f64>,
    /// Bus bandwidth by the median GPU time, of what ran, GB/s.
    pub busbw_gb_per_s: Option<f64>,
    /// The prediction of a model, or (in JSON as `no_model`) why there is none.
    #[serde(serialize_with = "or_why_not")]
    pub predicted: Result<CallPrediction, String>,
    /// Time saved (below 0: lost) over all calls against AUTO, exploration included, milliseconds. Where times are those of steps or of
    /// intervals, these are counted, not the calls in them; rows of the same steps do not add up then.
    pub saved_ms: Option<f64>,
    /// Calls with the arm that repay the cost of exploration.
    pub break_even_calls: Option<u64>,
}

fn or_why_not<S: serde::Serializer>(predicted: &Result<CallPrediction, String>, s: S) -> Result<S::Ok, S::Error> {
    match predicted {
        Ok(p) => p.serialize(s),
        Err(why) => BTreeMap::from([("no_model", why)]).serialize(s),
    }
}

impl CallRow {
    /// The arm has shorter kernels and makes what decides longer than AUTO does, or the other way round.
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

/// Rows of all keys, largest traffic first. `total_ms`: the time that kernel times are a share of. `predict`: a model's prediction for the calls of a
/// group in a communicator, with AUTO's choice and with the arm in use.
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

fn row(
    collective: String,
    k: &CallGroup,
    total_ms: Option<f64>,
    predict: &dyn Fn(&str, &str) -> Result<CallPrediction, String>,
) -> CallRow {
    let most = |m: &BTreeMap<String, u64>| m.iter().max_by_key(|(_, n)| **n).map(|(a, _)| a.clone());
    let auto = most(&k.autos).unwrap_or_else(|| "AUTO".into());
    let (arm, because) = match &k.finding {
        Some((_, arm, because)) => (arm.clone(), because.clone()),
        None => (most(&k.arm_calls).unwrap_or_else(|| "AUTO".into()), String::new()),
    };
    let empty = Vec::new();
    let of = |arm: &str| k.times.get(arm).unwrap_or(&empty);
    let (auto_us, arm_us) = (median(of("AUTO")), median(of(&arm)));
    // Time saved against AUTO, each arm by its own median. One time may cover many calls.
    let (mut saved, mut spent) = (0.0, 0.0);
    for (a, n) in &k.arm_calls {
        if let (Some(base), Some(t)) = (auto_us, median(of(a))) {
            let gain = (base - t) * *n as f64 / k.calls_per_time(a);
            saved += gain;
            if *a != arm {
                spent -= gain.min(0.0);
            }
        }
    }
    let per_call = auto_us.zip(arm_us).map(|(a, b)| (a - b) / k.calls_per_time(&arm)).filter(|g| *g > 0.0);
    // GPU times that the ranks agreed on, else the shortest in these traces.
    let kernel = |asked: &str, ran: &dyn Fn(&str) -> bool| -> Option<f64> {
        let agreed = k.agreed_kernels.get(asked).filter(|t| !t.is_empty());
        agreed
            .and_then(|t| median(t))
            .or_else(|| median(&k.kernels.values().filter(|(a, _)| ran(a)).map(|(_, t)| *t).collect::<Vec<_>>()))
    };
    let plain = |arm: &str| arm.split('@').next().unwrap_or("").to_string();
    let auto_kernel_us = kernel("AUTO", &|a| a == auto);
    let arm_kernel_us = if arm == "AUTO" { auto_kernel_us } else { kernel(&arm, &|a| a == plain(&arm)) };
    let kernels_ms = (!k.kernels.is_empty()).then(|| {
        let seen: f64 = k.kernels.values().map(|(_, t)| t).sum();
        seen / 1e3 * k.calls as f64 / (k.kernels.len() as f64).min(k.calls.max(1) as f64)
    });
    let bytes_of_one = k.bytes as f64 / k.calls.max(1) as f64;
    let factor = k.collective.map(|c| c.bus_factor(k.ranks as usize));
    let busbw = arm_kernel_us.or(auto_kernel_us).zip(factor).map(|(us, f)| bytes_of_one / us / 1e3 * f);
    CallRow {
        collective,
        size_bytes: ::tune::bucket::middle(k.bucket),
        ranks: k.ranks,
        nodes: k.nodes,
        calls: k.calls,
        bytes: k.bytes,
        auto_samples: of("AUTO").len(),
        arm_samples: of(&arm).len(),
        auto_us,
        arm_us,
        auto_variance_us2: variance(of("AUTO")),
        arm_variance_us2: variance(of(&arm)),
        auto_kernel_us,
        arm_kernel_us,
        kernels_ms,
        share: kernels_ms.zip(total_ms.filter(|b| *b > 0.0)).map(|(k, b)| k / b),
        busbw_gb_per_s: busbw.filter(|_| k.ranks > 1),
        predicted: predict(&auto, &arm),
        saved_ms: auto_us.map(|_| saved / 1e3),
        break_even_calls: per_call.map(|g| (spent / g).ceil() as u64),
        auto,
        arm,
        because,
        source: k.source.clone(),
    }
}
