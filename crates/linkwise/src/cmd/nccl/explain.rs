//! `linkwise nccl explain`: NCCL's choice at every size, its expected bandwidth, and the reason.

use super::findings;
use super::view::{Case, Cell, What};
use console::Failure;
use console::{Format, table, text_of, wrap};

use nccl_model::Communicator;
use nccl_model::releases::{NEWEST, OLDEST};
use serde_json::{Value, json};
use topology::Bytes;
use topology::nccl::{NcclDecision, Version};

/// Arguments of `linkwise nccl explain`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  linkwise nccl explain --cluster h100 --gpus 'n0 n1:[0-3]'
  linkwise nccl explain --cluster h100 --nccl 2.32 --collective all_gather --exact
  linkwise nccl explain --cluster h100 --diff 2.24..2.32

Times and bandwidths under NCCL are its own estimates, which AUTO compares. Expected bandwidths come from a model of the load that NCCL's \
rings and trees put on NICs. Neither is a measurement; --store adds measurements.

--exact asks the unmodified library on simulated hosts, without a GPU. The first use of a release downloads about 300 MB with pip.")]
pub struct Args {
    #[command(flatten)]
    what: What,
    /// Ask the NCCL library on simulated hosts instead of the model
    #[arg(long)]
    exact: bool,
    /// Show what changes between releases, such as 2.24..2.32
    #[arg(long, value_name = "FROM..TO", value_parser = range, conflicts_with = "exact")]
    diff: Option<(Version, Version)>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

fn range(text: &str) -> Result<(Version, Version), String> {
    let (from, to) = text.split_once("..").ok_or_else(|| format!("`{text}`: write it like 2.24..2.32"))?;
    let (from, to): (Version, Version) = (from.parse()?, to.parse()?);
    if from >= to {
        return Err(format!("`{text}`: the first release must be older than the second"));
    }
    Ok((from, to))
}

/// Everything that is printed.
struct Answer {
    case: Case,
    c: Communicator,
    cells: Vec<Cell>,
    notes: Vec<String>,
    /// Releases that choose alike, and the number of sizes at which they differ from this one.
    releases: Vec<(String, usize)>,
    /// Version of the library that ran, with `--exact`.
    ran: Option<Version>,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let case = args.what.case()?;
    if let Some((from, to)) = args.diff {
        return diff(&case, from, to, args.format);
    }
    let (c, cells, ran) = if args.exact {
        let report = case.bench(&[], &case.sizes)?;
        let c = case.as_run(&report)?;
        let cells = case.put_beside(&c, report.decisions().cloned());
        (c, cells, Some(report.version))
    } else {
        let model = case.communicator(case.version)?;
        let cells = case.cells(&model);
        (model, cells, None)
    };
    if cells.is_empty() {
        return Err(Failure::impossible(format!(
            "NCCL {} has no algorithms to choose from for {}",
            case.version, case.collective
        )));
    }
    let notes = findings::notes(&case, &c, &cells);
    let releases = releases(&case, &c);
    let answer = Answer { case, c, cells, notes, releases, ran };
    match args.format {
        Format::Json => console::print_json(&as_json(&answer))?,
        Format::Text => print(&answer),
    }
    Ok(())
}

fn minors(from: Version, to: Version) -> impl Iterator<Item = Version> {
    (from.minor..=to.minor).map(move |minor| Version { major: from.major, minor, patch: None })
}

fn way(d: &NcclDecision) -> String {
    format!("{}/{} x{}", d.algorithm, d.protocol, d.channels)
}

/// Groups of neighbouring releases that choose alike at all sizes (`2.24-2.27`, oldest first), and the number of sizes
/// at which each group differs from `c`.
fn releases(case: &Case, c: &Communicator) -> Vec<(String, usize)> {
    let choices = |c: &Communicator| -> Vec<Option<NcclDecision>> {
        let bare = |d: NcclDecision| NcclDecision { time_us: None, ..d };
        case.sizes.iter().map(|&s| c.choose(case.collective, s).map(bare)).collect()
    };
    let here = choices(c);
    let mut groups: Vec<(Version, Version, usize, Vec<Option<NcclDecision>>)> = Vec::new();
    for v in minors(OLDEST, NEWEST) {
        let Ok(other) = Communicator::build(v, &case.cluster, &case.order) else { continue };
        let other = choices(&other);
        let differs = here.iter().zip(&other).filter(|(a, b)| a != b).count();
        match groups.last_mut() {
            Some(g) if g.3 == other => g.1 = v,
            _ => groups.push((v, v, differs, other)),
        }
    }
    let name = |a: Version, b: Version| if a == b { a.to_string() } else { format!("{a}-{b}") };
    groups.into_iter().map(|(a, b, n, _)| (name(a, b), n)).collect()
}

fn cell_json(case: &Case, cell: &Cell) -> Value {
    let d = &cell.decision;
    let round = |v: f64| (v * 1000.0).round() / 1000.0;
    json!({
        "collective": d.collective, "size_bytes": d.size_bytes, "algorithm": d.algorithm, "protocol": d.protocol,
        "channels": d.channels, "time_us": d.time_us.map(round), "source": d.source,
        "nccl_busbw_gb_per_s": cell.nccl_gb_per_s(case.ranks()).map(round),
        "expected_time_us": cell.expected.as_ref().map(|e| round(e.time_us)),
        "expected_busbw_gb_per_s": cell.expected_gb_per_s().map(round),
        "physics_busbw_gb_per_s": round(cell.physics_gb_per_s),
        "measured_busbw_gb_per_s": cell.measured_gb_per_s,
        "limit": cell.expected.as_ref().map(|e| &e.limit),
        "limited_by": cell.expected.as_ref().map(|e| findings::limit(case, &e.limit)),
    })
}

fn as_json(a: &Answer) -> Value {
    let Answer { case, c, cells, notes, releases, ran } = a;
    json!({
        "cluster": case.cluster.name, "nccl": ran.unwrap_or(case.version), "source": if ran.is_some() { "bench" } else { "model" },
        "checked": c.checked() || ran.is_some(), "ranks": case.ranks(), "hosts": case.hosts_json(),
        "channels": c.agreed().channels, "nvls_channels": c.agreed().nvls_channels, "search_channels": c.search_channels(),
        "graphs": c.members().iter().map(|m| m.source).collect::<Vec<_>>(),
        "cells": cells.iter().map(|x| cell_json(case, x)).collect::<Vec<_>>(),
        "notes": notes,
        "releases": releases.iter().map(|r| json!({"releases": r.0, "sizes_that_differ": r.1})).collect::<Vec<_>>(),
    })
}

fn print(a: &Answer) {
    let Answer { case, c, cells, notes, releases, ran } = a;
    let source = match ran {
        Some(v) => format!("NCCL {v} itself, on simulated hosts"),
        None => format!("model of NCCL {}", case.version),
    };
    let (collective, cluster, ranks) = (case.collective, &case.cluster.name, case.ranks());
    print!(
        "{}",
        wrap(&format!("{collective} on cluster {cluster}: {ranks} ranks on {} ({source})", case.hosts_text()), 2)
    );
    println!("{} channels, {} for NVLS", c.agreed().channels, c.agreed().nvls_channels);
    if ran.is_none() && !c.checked() {
        let searched = c.members().iter().any(|m| m.source == nccl_model::GraphSource::Searched);
        let why = match searched {
            true => "hosts like these were never run: their graphs are the model's own search",
            false => "the graphs of these hosts were recorded from another release",
        };
        print!("{}", wrap(&format!("NOT CHECKED against the library: {why}; --exact asks it"), 2));
    }
    let measured = cells.iter().any(|x| x.measured_gb_per_s.is_some());
    let mut header = vec!["size", "choice", "NCCL us", "NCCL GB/s", "expected GB/s", "physics GB/s"];
    if measured {
        header.push("measured");
    }
    let mut t = table(&header, 2..);
    let number = |v: Option<f64>| v.map_or("-".into(), |v| format!("{v:.1}"));
    for x in cells {
        let mut row = vec![
            Bytes(x.decision.size_bytes).to_string(),
            way(&x.decision),
            number(x.decision.time_us),
            number(x.nccl_gb_per_s(case.ranks())),
            number(x.expected_gb_per_s()),
            number(Some(x.physics_gb_per_s)),
        ];
        if measured {
            row.push(number(x.measured_gb_per_s));
        }
        t.add_row(row);
    }
    print!("{}", text_of(&t));
    let legend =
        "busbw; NCCL: its own estimate; expected: from the loads of its rings and trees (model); physics: links alone";
    print!("{}", wrap(legend, 2));
    for n in notes {
        print!("{}", wrap(&format!("- {n}"), 2));
    }
    let others: Vec<String> = releases
        .iter()
        .map(|(name, n)| match n {
            0 => format!("{name} the same"),
            n => format!("{name} choose differently at {n} of {} sizes", case.sizes.len()),
        })
        .collect();
    if !others.is_empty() {
        print!("{}", wrap(&format!("- NCCL releases (model): {}.", others.join("; ")), 2));
    }
}

/// The differences between two neighbouring releases.
struct Change {
    from: Version,
    to: Version,
    before: Cell,
    after: Cell,
}

/// The differences from each release to the next.
struct Changes {
    all: Vec<Change>,
    /// Releases whose model was not compared with the library on these hosts.
    unchecked: Vec<String>,
}

impl Changes {
    fn between(case: &Case, from: Version, to: Version) -> Result<Changes, Failure> {
        let mut out = Changes { all: Vec::new(), unchecked: Vec::new() };
        let mut last: Option<(Version, Vec<Cell>)> = None;
        for v in minors(from, to) {
            let c = case.communicator(v)?;
            if !c.checked() {
                out.unchecked.push(v.to_string());
            }
            let cells = case.cells(&c);
            if let Some((before, old)) = last.replace((v, case.cells(&c))) {
                for (a, b) in old.into_iter().zip(cells) {
                    let same = (a.decision.algorithm, a.decision.protocol, a.decision.channels)
                        == (b.decision.algorithm, b.decision.protocol, b.decision.channels);
                    if !same {
                        out.all.push(Change { from: before, to: v, before: a, after: b });
                    }
                }
            }
        }
        Ok(out)
    }
}

fn diff(case: &Case, from: Version, to: Version, format: Format) -> Result<(), Failure> {
    let Changes { all: changes, unchecked } = Changes::between(case, from, to)?;
    if format == Format::Json {
        let of = |c: &Change| {
            json!({"from": c.from, "to": c.to, "size_bytes": c.before.decision.size_bytes,
                "before": cell_json(case, &c.before), "after": cell_json(case, &c.after)})
        };
        let out = json!({
            "cluster": case.cluster.name, "from": from, "to": to, "collective": case.collective, "hosts": case.hosts_json(),
            "changes": changes.iter().map(of).collect::<Vec<_>>(), "not_checked": unchecked,
        });
        return console::print_json(&out);
    }
    let (collective, cluster, ranks, gpus) = (case.collective, &case.cluster.name, case.ranks(), case.hosts_text());
    let head = format!("{collective} on cluster {cluster}: {ranks} ranks on {gpus}, NCCL {from} to {to} (model)");
    print!("{}", wrap(&head, 2));
    if changes.is_empty() {
        println!("no choice changes");
    } else {
        let mut t = table(&["release", "size", "before", "after", "expected GB/s", "change"], 4..);
        for c in &changes {
            let (a, b) = (c.before.expected_gb_per_s(), c.after.expected_gb_per_s());
            let (values, change) = match (a, b) {
                (Some(a), Some(b)) => (format!("{a:.1} to {b:.1}"), format!("{:+.0} %", 100.0 * (b / a - 1.0))),
                _ => ("-".into(), "-".into()),
            };
            let size = Bytes(c.before.decision.size_bytes).to_string();
            t.add_row([
                format!("{} to {}", c.from, c.to),
                size,
                way(&c.before.decision),
                way(&c.after.decision),
                values,
                change,
            ]);
        }
        print!("{}", text_of(&t));
    }
    if !unchecked.is_empty() {
        let releases = unchecked.join(", ");
        print!("{}", wrap(&format!("NOT CHECKED against the library on these hosts: {releases}"), 2));
    }
    Ok(())
}
