//! A cluster as text for a terminal.

use comfy_table::{ContentArrangement, Table};
use topology::allocation::HostId;
use topology::cluster::{Cluster, Host, Network, NetworkClass};
use topology::host::{HostType, Nic};
use topology::switches::{Rails, Switches, Tier};
use topology::{count, list};

/// Minimum width of the text, columns: the matrices of a host need it.
const WIDTH_MIN: usize = 60;
/// Width of the row name and of one cell of a matrix, columns.
const ROW_NAME: usize = 9;
const CELL: usize = 5;
/// Maximum number of degraded hosts listed.
const HOSTS_LISTED_MAX: usize = 200;

/// The cluster as text in 80 columns; see [`text_within`].
pub fn text(cluster: &Cluster) -> String {
    text_within(cluster, 80)
}

/// The cluster, its hosts, each distinct type, the network, and drained and degraded parts, in lines of at most `width`
/// columns (at least 60). O(hosts + types).
pub fn text_within(cluster: &Cluster, width: usize) -> String {
    let mut out = Page { out: String::new(), width: width.max(WIDTH_MIN) };
    let (all, usable) = (cluster.gpu_count(), cluster.usable().gpu_count());
    let drained = if usable == all { String::new() } else { format!(" ({} drained)", all - usable) };
    out.line(0, &format!("{}: {}, {}{drained}", cluster.name, count(cluster.hosts.len(), "host"), count(all, "GPU")));
    network(&mut out, cluster);
    hosts(&mut out, cluster);
    for (i, t) in cluster.types.iter().enumerate() {
        if cluster.hosts.iter().any(|h| h.host_type == i) {
            host_type(&mut out, t);
        }
    }
    faults(&mut out, cluster);
    out.out
}

/// Text with a limited width.
struct Page {
    out: String,
    width: usize,
}

impl Page {
    /// Writes a paragraph. Later lines are indented by two more columns. A word longer than the line is split.
    fn line(&mut self, indent: usize, text: &str) {
        let (first, later) = (" ".repeat(indent), " ".repeat(indent + 2));
        let options = textwrap::Options::new(self.width)
            .initial_indent(&first)
            .subsequent_indent(&later)
            .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit)
            .word_splitter(textwrap::WordSplitter::NoHyphenation);
        for line in textwrap::wrap(text, options) {
            self.as_it_is(&line);
        }
    }

    fn as_it_is(&mut self, line: &str) {
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }

    fn blank(&mut self) {
        self.out.push('\n');
    }

    /// Writes a matrix with one row per GPU, in blocks of columns that fit the width; `tail` is the last cell of every
    /// row.
    fn matrix(&mut self, cells: &[Vec<String>], tail_name: &str, tail: &[String]) {
        let n = cells.len();
        let per_block = ((self.width - ROW_NAME - tail_name.len() - 1) / CELL).max(1);
        for first in (0..n).step_by(per_block) {
            let columns = first..(first + per_block).min(n);
            let last = if columns.end == n { tail_name } else { "" };
            let header: String = columns.clone().map(|g| format!("{:<CELL$}", format!("GPU{g}"))).collect();
            self.as_it_is(&format!("{:ROW_NAME$}{header} {last}", ""));
            for (g, row) in cells.iter().enumerate() {
                let row: String = row[columns.clone()].iter().map(|c| format!("{c:<CELL$}")).collect();
                let last = if columns.end == n { tail.get(g).map_or("", String::as_str) } else { "" };
                self.as_it_is(&format!("  {:<w$}{row} {last}", format!("GPU{g}"), w = ROW_NAME - 2));
            }
        }
    }
}

/// The name of a network class.
pub(crate) fn class(class: NetworkClass) -> &'static str {
    match class {
        NetworkClass::Infiniband => "InfiniBand with GPUDirect RDMA",
        NetworkClass::Roce => "RoCE with GPUDirect RDMA",
        NetworkClass::Efa => "AWS EFA",
        NetworkClass::RdmaNoGdr => "RDMA without GPUDirect",
        NetworkClass::Tcp => "TCP",
    }
}

/// The switches of a tier, as text.
pub(crate) fn switches(t: &Tier) -> String {
    match &t.switches {
        Switches::Regular { hosts_per_switch } => format!("{hosts_per_switch} hosts per switch"),
        Switches::Named(named) => {
            let sizes = named.list().iter().map(|s| s.hosts.len());
            let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
            let each = if least == most { least.to_string() } else { format!("{least} to {most}") };
            let n = named.list().len();
            format!("{n} {} of {each} hosts", if n == 1 { "switch" } else { "switches" })
        }
    }
}

fn network(out: &mut Page, c: &Cluster) {
    let n: &Network = &c.network;
    let class = class(n.class);
    let shape = if n.tiers.is_empty() { ", one non-blocking switch" } else { "" };
    out.line(0, &format!("network: {class}{shape}"));
    for t in &n.tiers {
        let blocking = if t.oversubscription == 1.0 {
            "non-blocking".into()
        } else {
            format!("{}:1 oversubscribed", t.oversubscription)
        };
        out.line(2, &format!("tier {}: {}, {blocking}", t.name, switches(t)));
        if let Switches::Named(named) = &t.switches {
            for s in named.list().iter().take(HOSTS_LISTED_MAX) {
                let hosts = list::compress(s.hosts.iter().map(|h| c.host(*h).name.as_str()));
                out.line(4, &format!("{}: {hosts}", s.name));
            }
        }
    }
    match n.rails {
        None => {}
        Some(Rails::Joined) => out.line(2, "rail-optimised: NIC i of each host on rail switch i; the rails meet above"),
        Some(Rails::Separate) => {
            out.line(2, "rail-optimised: NIC i of each host on rail switch i; no path joins the rails")
        }
    }
    for l in n.host_links.iter().take(HOSTS_LISTED_MAX) {
        let rate = number(l.rate.gbit_per_s());
        out.line(2, &format!("{} to {}: {rate} Gbit/s", c.host(l.a).name, c.host(l.b).name));
    }
}

fn hosts(out: &mut Page, c: &Cluster) {
    out.blank();
    let mut table = Table::new();
    table.load_style(comfy_table::TableStyle::new());
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(out.width as u16);
    table.set_header(["type", "GPUs", "model", "NICs", "hosts"]);
    let mut i = 0;
    while i < c.hosts.len() {
        let run = c.hosts[i..].iter().take_while(|h| h.host_type == c.hosts[i].host_type).count();
        let t = &c.types[c.hosts[i].host_type];
        table.add_row([
            t.name.clone(),
            t.gpu_count().to_string(),
            t.gpu_model.clone(),
            nic_summary(&t.nics),
            c.host_list((i..i + run).map(|h| HostId(h as u32))),
        ]);
        i += run;
    }
    table.trim_fmt().lines().for_each(|l| out.as_it_is(l.strip_prefix(' ').unwrap_or(l)));
}

fn nic_summary(nics: &[Nic]) -> String {
    match nics {
        [] => "none".into(),
        [first, ..] if nics.iter().all(|n| n.line_rate == first.line_rate) => {
            format!("{} x {} Gbit/s", nics.len(), number(first.line_rate.gbit_per_s()))
        }
        _ => format!("{} of several rates", nics.len()),
    }
}

/// A number with at most four digits after the point: `400`, `14.0625`, `0.1`.
fn number(v: f64) -> String {
    let rounded = (v * 1e4).round() / 1e4;
    rounded.to_string()
}

fn host_type(out: &mut Page, t: &HostType) {
    out.blank();
    out.line(0, &format!("{}: {}", t.name, t.description));
    if !t.source.is_empty() {
        out.line(2, &format!("source: {}", t.source));
    }
    let nvlink = match t.nvlink {
        None => "no NVLink".into(),
        Some(nv) => format!(
            "NVLink {} GB/s a link each way{}{}",
            number(nv.link_rate.gb_per_s()),
            if nv.switched { ", through NVSwitches" } else { ", direct" },
            if nv.multicast { " with multicast" } else { "" }
        ),
    };
    out.line(2, &format!("{nvlink}; PCIe Gen{} x{}", t.pcie.generation, t.pcie.lanes));
    out.blank();
    let paths: Vec<Vec<String>> = t.gpu_paths.iter().map(|r| r.iter().map(ToString::to_string).collect()).collect();
    let sockets: Vec<String> = t.gpus.iter().map(|g| g.socket.to_string()).collect();
    out.matrix(&paths, "socket", &sockets);
    if !t.nics.is_empty() {
        out.blank();
        let width = t.nics.iter().map(|n| n.name.chars().count()).max().unwrap_or(0).min(20);
        for nic in &t.nics {
            let rate = number(nic.line_rate.gbit_per_s());
            out.line(2, &format!("{:<width$} {rate:>4} Gbit/s  {}", nic.name, reach(nic)));
        }
    }
    if let Some(p2p) = &t.p2p {
        out.blank();
        out.line(2, "measured peer-to-peer rate, one direction, GB/s (row to column)");
        let cell = |v: f64| if v < 99.95 { format!("{v:.1}") } else { format!("{v:.0}") };
        let cells: Vec<Vec<String>> = p2p.iter().map(|r| r.iter().map(|b| cell(b.gb_per_s())).collect()).collect();
        out.matrix(&cells, "", &[]);
    }
}

/// The GPUs of a NIC by kind of path, nearest first: `PIX GPU0, NODE GPU1-3, SYS GPU4-7`.
fn reach(nic: &Nic) -> String {
    let mut kinds: Vec<_> = nic.gpu_paths.clone();
    kinds.sort();
    kinds.dedup();
    let gpus = |k| {
        let of_kind = nic.gpu_paths.iter().enumerate().filter(|(_, p)| **p == k).map(|(g, _)| g);
        format!("{k} GPU{}", list::runs(of_kind))
    };
    kinds.into_iter().map(gpus).collect::<Vec<_>>().join(", ")
}

fn faults(out: &mut Page, c: &Cluster) {
    let faulty: Vec<&Host> = c.hosts.iter().filter(|h| !words(h, &c.types[h.host_type]).is_empty()).collect();
    if faulty.is_empty() {
        return;
    }
    out.blank();
    out.line(0, "drained and degraded");
    for h in faulty.iter().take(HOSTS_LISTED_MAX) {
        out.line(2, &format!("{}: {}", h.name, words(h, &c.types[h.host_type]).join("; ")));
    }
    if faulty.len() > HOSTS_LISTED_MAX {
        out.line(2, &format!("and {} more hosts", faulty.len() - HOSTS_LISTED_MAX));
    }
}

/// The faults of a host, one phrase each.
pub(crate) fn words(h: &Host, t: &HostType) -> Vec<String> {
    let percent = |f: f64| format!("{} %", number(f * 100.0));
    let mut words = Vec::new();
    if h.drained == t.all_gpus() {
        words.push("drained".into());
    } else if !h.drained.is_empty() {
        words.push(format!("GPU {} drained", list::runs(h.drained.iter())));
    }
    let slow = |f: &f64| *f < 1.0;
    words.extend(
        h.gpu_health.iter().enumerate().filter(|(_, f)| slow(f)).map(|(g, f)| format!("GPU {g} at {}", percent(*f))),
    );
    words.extend(h.link_health.iter().map(|l| format!("GPU {} to GPU {} at {}", l.a, l.b, percent(l.factor))));
    words.extend(
        t.nics
            .iter()
            .zip(&h.nic_health)
            .filter(|(_, f)| slow(f))
            .map(|(n, f)| format!("NIC {} at {}", n.name, percent(*f))),
    );
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::catalog;

    #[test]
    fn nothing_is_wider_than_the_limit() {
        for t in catalog::host_types() {
            let c = Cluster {
                name: "c".repeat(300),
                hosts: (0..40)
                    .map(|i| Host { name: format!("{}{i}", "x".repeat(60 + i)), ..Host::default() })
                    .collect(),
                types: vec![t],
                ..Cluster::default()
            };
            for width in [60, 80, 133] {
                for l in text_within(&c, width).lines() {
                    assert!(l.chars().count() <= width, "{} columns: {l}", l.chars().count());
                    assert_eq!(l, l.trim_end());
                }
            }
        }
    }
}
