//! `linkwise nccl advise`: settings worth trying on given GPUs, each tested in the real NCCL library.

use super::findings;
use super::view::{Case, What};
use crate::advice_json::advice_json;
use crate::interrupt;
use console::{Failure, Format, Progress, print, print_json, say, table, text_of, wrap};
use nccl_bench::BenchReport;
use nccl_model::advice::GAIN_MIN;
use nccl_model::{Advice, ExpectedBusbw, LoadConstants, by_model};
use serde_json::{Value, json};
use topology::nccl::NcclDecision;
use topology::{Bytes, GpuMask, HostId};

/// Arguments of `linkwise nccl advise`.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  linkwise nccl advise --cluster h100 --gpus 'n[0-2]:[0-2]' --sizes 2GiB

Each setting runs in the unmodified NCCL library on simulated hosts, which shows whether the setting changes NCCL's decision. No GPU is \
needed; this takes about a minute, and the first use of a release downloads about 300 MB with pip. Gains come from a model unless the store \
holds measurements with and without the setting. Only the largest size counts.")]
pub struct Args {
    #[command(flatten)]
    what: What,
    /// Skip running the NCCL library; settings that need it are omitted
    #[arg(long)]
    unchecked: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// A better order of the hosts: hosts in rank order with their GPUs, GB/s expected of the given order, GB/s expected of
/// this order.
type BetterOrder = (Vec<(HostId, GpuMask)>, f64, f64);

/// Everything that is printed.
struct Answer {
    case: Case,
    /// Size of the call that the advice is for, bytes.
    size: u64,
    /// Expected bandwidth without a setting.
    now: ExpectedBusbw,
    advice: Vec<Advice>,
    /// Settings that change nothing in the library.
    without_effect: Vec<String>,
    order: Option<BetterOrder>,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let case = args.what.case()?;
    let size = case.sizes.iter().copied().max().unwrap_or(2 << 30);
    let model = case.communicator(case.version)?;
    let now = model.busbw(case.collective, size).ok_or_else(|| {
        Failure::impossible(format!("NCCL {} has no algorithms to choose from for {}", case.version, case.collective))
    })?;
    let mut advice = by_model(case.version, &case.cluster, &case.order, case.collective, size);
    let mut without_effect = Vec::new();
    if !args.unchecked {
        advice.extend(nic_settings(&case, now.busbw.gb_per_s()));
        (advice, without_effect) = checked(&case, size, now.busbw.gb_per_s(), advice)?;
    }
    let order = findings::best_order(&case, &model, size);
    let answer = Answer { case, size, now, advice, without_effect, order };
    match args.format {
        Format::Json => print_json(&as_json(&answer)),
        Format::Text => {
            print(&text(&answer));
            Ok(())
        }
    }
}

/// Settings whose effect the model cannot predict; only a run of the library shows it.
fn nic_settings(case: &Case, before_gb_per_s: f64) -> Vec<Advice> {
    let values: &[&str] = if case.order.len() > 1 { &["0", "1", "2"] } else { &[] };
    let setting = |value: &&str| Advice {
        settings: vec![("NCCL_CROSS_NIC".into(), value.to_string())],
        before_gb_per_s,
        after_gb_per_s: None,
        reason: "other NICs for the same rings".into(),
        effect: None,
        measured: None,
    };
    values.iter().map(setting).collect()
}

/// Runs the library once per setting. Returns the settings that change something and may gain, best first, and those
/// without effect.
fn checked(
    case: &Case,
    size: u64,
    expected_gb_per_s: f64,
    advice: Vec<Advice>,
) -> Result<(Vec<Advice>, Vec<String>), Failure> {
    let runs = advice.len() + 1;
    interrupt::say_what_is_kept(|| {
        "stopped: no result is kept, a downloaded NCCL library is; the same command begins again, --unchecked runs no library".into()
    })?;
    say(&format!(
        "{runs} runs of NCCL {} on simulated hosts; the first use of a release downloads about 300 MB",
        case.version
    ));
    let progress = Progress::new("runs of NCCL", runs);
    let plain = case.bench(&[], &[size])?;
    progress.advance(1);
    let before = case.as_run(&plain)?.busbw(case.collective, size).map_or(expected_gb_per_s, |b| b.busbw.gb_per_s());
    let (mut kept, mut without_effect) = (Vec::new(), Vec::new());
    for mut setting in advice {
        let run = case.bench(&setting.settings, &[size]);
        progress.advance(1);
        match run {
            Err(e) => without_effect.push(format!("{} (NCCL does not start with it: {e})", setting.text())),
            Ok(run) if same_decisions(&plain, &run) => without_effect.push(setting.text()),
            Ok(run) => {
                setting.before_gb_per_s = before;
                compare(case, size, &plain, &run, &mut setting);
                kept.push(setting);
            }
        }
    }
    kept.retain(|a| a.gain().is_none_or(|g| g > GAIN_MIN));
    kept.sort_by(|a, b| b.gain().unwrap_or(0.0).total_cmp(&a.gain().unwrap_or(0.0)));
    Ok((kept, without_effect))
}

/// True if the library makes the same decision with the same channels, rings and NICs.
fn same_decisions(a: &BenchReport, b: &BenchReport) -> bool {
    a.decisions().next() == b.decisions().next() && a.channels == b.channels && a.rings == b.rings && nics(a) == nics(b)
}

/// The NIC of each connection and channel.
fn nics(r: &BenchReport) -> Vec<(u32, u32, u32, Option<u8>)> {
    let mut all: Vec<_> = r.connections.iter().map(|c| (c.channel, c.from, c.to, c.nic)).collect();
    all.sort_unstable();
    all
}

/// Adds to `setting` what it changes in the library, and the measured and predicted gain.
fn compare(case: &Case, size: u64, plain: &BenchReport, run: &BenchReport, setting: &mut Advice) {
    let (old, new) = (plain.decisions().next(), run.decisions().next());
    let say = |d: Option<&NcclDecision>| {
        d.map_or("nothing".into(), |d| format!("{}/{} x{}", d.algorithm, d.protocol, d.channels))
    };
    setting.effect = Some(format!("{} becomes {}", say(old), say(new)));
    let measured = |d: Option<&NcclDecision>| d.and_then(|d| case.measured_as(d));
    setting.measured = measured(old).zip(measured(new));
    // The prediction uses what the library does under the setting, not what the setting requests.
    setting.after_gb_per_s = case.as_run(run).ok().and_then(|c| {
        let d = new?;
        let way = c.choice_with(case.collective, size, d.algorithm, d.protocol)?;
        let constants = LoadConstants::of(case.cluster.network.class);
        Some(c.busbw_of(case.collective, size, &way, &constants)?.busbw.gb_per_s())
    });
}

fn host_names<'a>(case: &'a Case, order: &[(HostId, GpuMask)]) -> Vec<&'a str> {
    order.iter().map(|h| case.cluster.host(h.0).name.as_str()).collect()
}

fn as_json(a: &Answer) -> Value {
    let case = &a.case;
    let order = a.order.as_ref().map(|(order, _, after)| {
        json!({"hosts": host_names(case, order), "after_busbw_gb_per_s": after, "gain_source": "model"})
    });
    json!({
        "cluster": case.cluster.name, "nccl": case.version, "collective": case.collective, "size_bytes": a.size,
        "hosts": case.hosts_json(), "expected_busbw_gb_per_s": a.now.busbw.gb_per_s(),
        "limited_by": findings::limit(case, &a.now.limit),
        "advice": a.advice.iter().map(advice_json).collect::<Vec<_>>(), "without_effect": a.without_effect,
        "host_order": order,
        "measured": case.measured.iter().map(|m| json!({"size_bytes": m.0, "busbw_gb_per_s": m.1})).collect::<Vec<_>>(),
    })
}

fn text(a: &Answer) -> String {
    let case = &a.case;
    let (ranks, gpus, cluster) = (case.ranks(), case.hosts_text(), &case.cluster.name);
    let size = Bytes(a.size);
    let head =
        format!("{} of {size} on cluster {cluster}: {ranks} ranks on {gpus}, NCCL {}", case.collective, case.version);
    let mut out = wrap(&head, 2);
    let (busbw, limit) = (a.now.busbw.gb_per_s(), findings::limit(case, &a.now.limit));
    out += &wrap(&format!("expected {busbw:.1} GB/s busbw (model), limited by {limit}"), 2);
    if let Some((_, m)) = case.measured.iter().rev().find(|m| m.0 == a.size) {
        out += &format!("measured {m:.1} GB/s\n");
    }
    out += &match a.advice.is_empty() {
        true => format!("no setting is expected to gain more than {:.0} %\n", 100.0 * GAIN_MIN),
        false => settings(&a.advice),
    };
    if !a.without_effect.is_empty() {
        out += &wrap(&format!("without effect in the library: {}", a.without_effect.join(", ")), 2);
    }
    if let Some((order, from, to)) = &a.order {
        let order = host_names(case, order).join(", ");
        out += &wrap(&format!("host order: with ranks on {order}, {from:.0} becomes {to:.0} GB/s (model)"), 2);
    }
    out + &wrap("Gains come from a model. Measure a setting before a job uses it: nccl-tests with and without it.", 2)
}

/// The settings as a table.
fn settings(advice: &[Advice]) -> String {
    let mut t = table(&["setting", "in the library", "expected GB/s", "gain"], 2..);
    for a in advice {
        t.add_row([
            a.text(),
            a.effect.clone().unwrap_or_else(|| "not checked".into()),
            a.after_gb_per_s.map_or("-".into(), |v| format!("{:.1} to {v:.1}", a.before_gb_per_s)),
            a.gain().map_or("unknown: measure it".into(), |g| format!("{:+.0} % ({})", 100.0 * g, a.gain_source())),
        ]);
    }
    text_of(&t)
}
