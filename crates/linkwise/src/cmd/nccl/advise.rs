//! `linkwise nccl advise`: settings worth trying on some GPUs, each checked for effect in the real library.

use super::story;
use super::view::What;
use console::Failure;
use console::{Format, table, text_of, wrap};

use indicatif::ProgressBar;
use nccl_model::{Communicator, LoadConstants};
use serde_json::{Value, json};
use topology::nccl::{Algorithm, Protocol, Version};
use topology::{Bytes, Cluster, Collective, GpuMask, HostId};

/// Gains below this share are not worth a setting.
const GAIN_MIN: f64 = 0.02;
/// Most channels that a setting asks for.
const CHANNELS_MAX: u32 = 32;

/// Arguments of `linkwise nccl advise`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  linkwise nccl advise --cluster h100 --gpus 'n0:0 n0:1 n0:2 n1:0 n1:1 n1:2 n2:0 n2:1 n2:2' --sizes 2GiB\n\n\
    Every setting is tried in the unmodified library on simulated hosts, to see whether it changes what NCCL does. What that is worth is a\n\
    model, unless the store holds measurements with and without. Only the largest size counts."
)]
pub struct Args {
    #[command(flatten)]
    what: What,
    /// Do not run the library: settings are then not checked for effect, and those whose effect only it can tell are left out
    #[arg(long)]
    unchecked: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// A setting and what it should do.
#[derive(Clone, Debug)]
pub struct Advice {
    /// Environment variables.
    pub settings: Vec<(String, String)>,
    /// What is expected without and with, GB/s busbw; `with` is unknown for settings that change the search.
    pub before_gb_per_s: f64,
    /// With it.
    pub after_gb_per_s: Option<f64>,
    /// Why.
    pub reason: String,
    /// What the real library did with it; `None` where it was not asked.
    pub effect: Option<String>,
    /// What was measured without and with what it does, GB/s busbw.
    pub measured: Option<(f64, f64)>,
}

impl Advice {
    /// Gain as a share: measured, else expected.
    pub fn gain(&self) -> Option<f64> {
        if let Some((before, after)) = self.measured {
            return Some(after / before - 1.0);
        }
        Some(self.after_gb_per_s? / self.before_gb_per_s - 1.0)
    }

    /// Where the gain comes from.
    fn gain_source(&self) -> &'static str {
        if self.measured.is_some() { "measured" } else { "model" }
    }

    /// `NCCL_MIN_NCHANNELS=24 ...`
    pub fn text(&self) -> String {
        self.settings.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
    }

    /// For JSON.
    pub fn json(&self) -> Value {
        json!({
            "settings": self.settings.iter().map(|(k, v)| json!({"name": k, "value": v})).collect::<Vec<_>>(),
            "before_busbw_gb_per_s": self.before_gb_per_s, "after_busbw_gb_per_s": self.after_gb_per_s,
            "gain": self.gain(), "gain_source": self.gain_source(),
            "measured_before_gb_per_s": self.measured.map(|m| m.0), "measured_after_gb_per_s": self.measured.map(|m| m.1),
            "reason": self.reason,
            "checked_in_library": self.effect.is_some(), "effect": self.effect,
        })
    }
}

/// Settings that the model expects to be worth something, best first: channel counts, algorithms and protocols.
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
    let n = c.search_channels() as u32;
    let now = c.agreed().channels;
    let more = (1..=CHANNELS_MAX / n.max(1)).map(|i| i * n).chain([CHANNELS_MAX]).filter(|m| *m > now);
    let mut counts: Vec<u32> = more.collect();
    counts.dedup();
    for m in counts {
        let after = c.with_channels(m).busbw(collective, size).map_or(0.0, |b| b.busbw.gb_per_s());
        let even = if m.is_multiple_of(n) { format!(", {} of each search channel", m / n) } else { String::new() };
        offer(vec![("NCCL_MIN_NCHANNELS", m.to_string())], after, format!("{m} channels instead of {now}{even}"));
    }
    let choice = c.choice(collective, size);
    let mut ways: Vec<(Algorithm, Protocol, f64)> = c
        .all_choices(collective, size)
        .into_iter()
        .filter(|w| choice.is_none_or(|x| (x.algorithm, x.protocol) != (w.algorithm, w.protocol)))
        .filter_map(|w| Some((w.algorithm, w.protocol, c.busbw_of(collective, size, &w, &constants)?.busbw.gb_per_s())))
        .collect();
    ways.sort_by(|a, b| b.2.total_cmp(&a.2));
    if let (Some(&(a, p, after)), Some(x)) = (ways.first(), choice) {
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

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let case = args.what.case()?;
    let size = case.sizes.iter().copied().max().unwrap_or(2 << 30);
    let model = case.communicator(case.version)?;
    let Some(now) = model.busbw(case.collective, size) else {
        return Err(Failure::impossible(format!(
            "NCCL {} has no choice to make for {}",
            case.version, case.collective
        )));
    };
    let mut advice = by_model(case.version, &case.cluster, &case.order, case.collective, size);
    let mut without_effect: Vec<String> = Vec::new();
    if !args.unchecked {
        if case.order.len() > 1 {
            for v in ["0", "1", "2"] {
                advice.push(Advice {
                    settings: vec![("NCCL_CROSS_NIC".into(), v.into())],
                    before_gb_per_s: now.busbw.gb_per_s(),
                    after_gb_per_s: None,
                    reason: "other NICs for the same rings".into(),
                    effect: None,
                    measured: None,
                });
            }
        }
        let bar = ProgressBar::new(advice.len() as u64 + 1).with_message("NCCL on simulated hosts");
        let plain = case.bench(&[], &[size])?;
        bar.inc(1);
        let baseline = case.as_run(&plain)?;
        let before = baseline.busbw(case.collective, size).map_or(now.busbw.gb_per_s(), |b| b.busbw.gb_per_s());
        let mut kept = Vec::new();
        for mut a in advice {
            let report = case.bench(&a.settings, &[size]);
            bar.inc(1);
            let report = match report {
                Ok(r) => r,
                Err(e) => {
                    without_effect.push(format!("{} (NCCL does not start with it: {e})", a.text()));
                    continue;
                }
            };
            let (old, new) = (plain.decisions().next(), report.decisions().next());
            if old == new
                && plain.channels == report.channels
                && plain.rings == report.rings
                && nics(&plain) == nics(&report)
            {
                without_effect.push(a.text());
                continue;
            }
            let say = |d: Option<&topology::nccl::NcclDecision>| {
                d.map_or("nothing".into(), |d| format!("{}/{} x{}", d.algorithm, d.protocol, d.channels))
            };
            a.effect = Some(format!("{} becomes {}", say(old), say(new)));
            a.before_gb_per_s = before;
            let measured = |d: Option<&topology::nccl::NcclDecision>| d.and_then(|d| case.measured_as(d));
            a.measured = measured(old).zip(measured(new));
            // What the library really does under the setting, not what the setting asks for.
            a.after_gb_per_s = case.as_run(&report).ok().and_then(|c| {
                let d = new?;
                let w = c.choice_with(case.collective, size, d.algorithm, d.protocol)?;
                let k = LoadConstants::of(case.cluster.network.class);
                Some(c.busbw_of(case.collective, size, &w, &k)?.busbw.gb_per_s())
            });
            kept.push(a);
        }
        bar.finish_and_clear();
        kept.retain(|a| a.gain().is_none_or(|g| g > GAIN_MIN));
        kept.sort_by(|a, b| b.gain().unwrap_or(0.0).total_cmp(&a.gain().unwrap_or(0.0)));
        advice = kept;
    }
    let order = story::best_order(&case, &model, size);
    if args.format == Format::Json {
        let names = |o: &[(HostId, GpuMask)]| -> Vec<String> {
            o.iter().map(|h| case.cluster.host(h.0).name.clone()).collect()
        };
        println!(
            "{}",
            json!({
                "cluster": case.cluster.name, "nccl": case.version, "collective": case.collective, "size_bytes": size,
                "hosts": case.hosts_json(), "expected_busbw_gb_per_s": now.busbw.gb_per_s(),
                "limited_by": story::limit(&case, &now.limit),
                "advice": advice.iter().map(Advice::json).collect::<Vec<_>>(), "without_effect": without_effect,
                "host_order": order.as_ref().map(|o| json!({"hosts": names(&o.0), "after_busbw_gb_per_s": o.2, "gain_source": "model"})),
                "measured": case.measured.iter().map(|m| json!({"size_bytes": m.0, "busbw_gb_per_s": m.1})).collect::<Vec<_>>(),
            })
        );
        return Ok(());
    }
    let (collective, cluster, ranks, gpus) = (case.collective, &case.cluster.name, case.ranks(), case.hosts_text());
    let head =
        format!("{collective} of {} on cluster {cluster}: {ranks} ranks on {gpus}, NCCL {}", Bytes(size), case.version);
    print!("{}", wrap(&head, 2));
    let (busbw, limit) = (now.busbw.gb_per_s(), story::limit(&case, &now.limit));
    print!("{}", wrap(&format!("expected {busbw:.1} GB/s busbw (model), limited by {limit}"), 2));
    if let Some((_, m)) = case.measured.iter().rev().find(|m| m.0 == size) {
        println!("measured {m:.1} GB/s");
    }
    if advice.is_empty() {
        println!("no setting is expected to gain more than {:.0} %", 100.0 * GAIN_MIN);
    } else {
        let mut t = table(&["setting", "in the library", "expected GB/s", "gain"], 2..);
        for a in &advice {
            t.add_row([
                a.text(),
                a.effect.clone().unwrap_or_else(|| "not checked".into()),
                a.after_gb_per_s.map_or("-".into(), |v| format!("{:.1} to {v:.1}", a.before_gb_per_s)),
                a.gain().map_or("unknown: measure it".into(), |g| format!("{:+.0} % ({})", 100.0 * g, a.gain_source())),
            ]);
        }
        print!("{}", text_of(&t));
    }
    if !without_effect.is_empty() {
        print!("{}", wrap(&format!("without effect in the library: {}", without_effect.join(", ")), 2));
    }
    if let Some((order, from, to)) = order {
        let names: Vec<&str> = order.iter().map(|o| case.cluster.host(o.0).name.as_str()).collect();
        let order = names.join(", ");
        print!(
            "{}",
            wrap(&format!("host order: ranks on {order} in this order: {from:.0} to {to:.0} GB/s (model)"), 2)
        );
    }
    let note = "Gains are a model's. Before a setting goes into a job, measure it: linkwise measure, or nccl-tests with and \
                without.";
    print!("{}", wrap(note, 2));
    Ok(())
}

/// Which NIC carries which channel.
fn nics(r: &nccl_bench::BenchReport) -> Vec<(u32, u32, u32, Option<u8>)> {
    let mut all: Vec<_> = r.connections.iter().map(|c| (c.channel, c.from, c.to, c.nic)).collect();
    all.sort_unstable();
    all
}
