//! NCCL settings that should make a collective faster on given GPUs according to the model, with the reason.

use crate::{Communicator, LoadConstants};
use topology::nccl::{Algorithm, Protocol, Version};
use topology::{Cluster, Collective, GpuMask, HostId};

/// Minimum gain, as a share, of a proposed setting.
pub const GAIN_MIN: f64 = 0.02;
/// Largest number of channels that a setting requests.
const CHANNELS_MAX: u32 = 32;

/// A setting with its expected gain and the reason.
#[derive(Clone, Debug)]
pub struct Advice {
    /// Environment variables: name and value.
    pub settings: Vec<(String, String)>,
    /// Expected bandwidth without the setting, GB/s busbw.
    pub before_gb_per_s: f64,
    /// Expected bandwidth with the setting, GB/s busbw; `None` for settings that change NCCL's search, which the model
    /// does not cover.
    pub after_gb_per_s: Option<f64>,
    /// The cause of the gain.
    pub reason: String,
    /// The changes that the setting made in the real library; `None` if the library did not run.
    pub effect: Option<String>,
    /// Measured bandwidth of NCCL's choice without and with the setting, GB/s busbw.
    pub measured: Option<(f64, f64)>,
}

impl Advice {
    /// Gain as a share: measured if a measurement exists, otherwise expected.
    pub fn gain(&self) -> Option<f64> {
        if let Some((before, after)) = self.measured {
            return Some(after / before - 1.0);
        }
        Some(self.after_gb_per_s? / self.before_gb_per_s - 1.0)
    }

    /// The source of [`Advice::gain`]: `measured` or `model`.
    pub fn gain_source(&self) -> &'static str {
        if self.measured.is_some() { "measured" } else { "model" }
    }

    /// `NCCL_MIN_NCHANNELS=24 ...`
    pub fn text(&self) -> String {
        self.settings.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
    }
}

/// Settings with an expected gain above [`GAIN_MIN`], best first: channel counts, algorithms and protocols. Empty if
/// the model does not cover the GPUs or the collective. O(choices x channels), a few microseconds each.
pub fn by_model(
    version: Version,
    cluster: &Cluster,
    order: &[(HostId, GpuMask)],
    collective: Collective,
    size: u64,
) -> Vec<Advice> {
    let Ok(c) = Communicator::build(version, cluster, order) else { return Vec::new() };
    let constants = LoadConstants::of(cluster.network.class);
    let Some(before) = c.busbw(collective, size).map(|b| b.busbw.gb_per_s()) else { return Vec::new() };
    let mut out = Vec::new();
    let mut offer = |settings: Vec<(&str, String)>, after: f64, reason: String| {
        if after > before * (1.0 + GAIN_MIN) {
            out.push(Advice {
                settings: settings.into_iter().map(|(k, v)| (k.to_string(), v)).collect(),
                before_gb_per_s: before,
                after_gb_per_s: Some(after),
                reason,
                effect: None,
                measured: None,
            });
        }
    };
    for (m, even) in channel_counts(&c) {
        let after = c.with_channels(m).busbw(collective, size).map_or(0.0, |b| b.busbw.gb_per_s());
        let now = c.agreed().channels;
        offer(vec![("NCCL_MIN_NCHANNELS", m.to_string())], after, format!("{m} channels instead of {now}{even}"));
    }
    let choice = c.choice(collective, size);
    let mut others: Vec<(Algorithm, Protocol, f64)> = c
        .all_choices(collective, size)
        .into_iter()
        .filter(|w| choice.is_none_or(|x| (x.algorithm, x.protocol) != (w.algorithm, w.protocol)))
        .filter_map(|w| Some((w.algorithm, w.protocol, c.busbw_of(collective, size, &w, &constants)?.busbw.gb_per_s())))
        .collect();
    others.sort_by(|a, b| b.2.total_cmp(&a.2));
    if let (Some(&(a, p, after)), Some(x)) = (others.first(), choice) {
        let mut settings = Vec::new();
        if a != x.algorithm {
            settings.push(("NCCL_ALGO", a.to_string()));
        }
        if p != x.protocol {
            settings.push(("NCCL_PROTO", p.to_string()));
        }
        offer(settings, after, format!("{a}/{p} instead of {}/{}, for every call of the job", x.algorithm, x.protocol));
    }
    out.sort_by(|a, b| b.after_gb_per_s.unwrap_or(0.0).total_cmp(&a.after_gb_per_s.unwrap_or(0.0)));
    out
}

/// Larger channel counts. A count that divides evenly among the search channels has a text with the quotient.
fn channel_counts(c: &Communicator) -> Vec<(u32, String)> {
    let (n, now) = (c.search_channels() as u32, c.agreed().channels);
    let more = (1..=CHANNELS_MAX / n.max(1)).map(|i| i * n).chain([CHANNELS_MAX]).filter(|m| *m > now);
    let mut counts: Vec<u32> = more.collect();
    counts.dedup();
    let even = |m: u32| match m.is_multiple_of(n) {
        true => format!(", {} of each search channel", m / n),
        false => String::new(),
    };
    counts.into_iter().map(|m| (m, even(m))).collect()
}
