//! A cluster as text, at most [`COLUMNS_MAX`] columns wide.

use crate::cluster::{Cluster, Host, Network, NetworkClass};
use crate::host::{HostType, Nic};
use crate::names::hostlist;
use std::fmt::Write;

/// Widest line.
pub const COLUMNS_MAX: usize = 100;
/// GPUs up to which a column is named `GPU7`; above, plain numbers keep 16 columns in the width.
const NAMED_COLUMNS_MAX: usize = 10;
/// Most single hosts listed among the degraded ones.
const HOSTS_LISTED_MAX: usize = 200;

/// The cluster, its hosts, each distinct type, the network, and what is drained or degraded. O(hosts + types).
pub fn text(cluster: &Cluster) -> String {
    let mut out = String::new();
    let (all, usable) = (cluster.gpu_count(), cluster.usable().gpu_count());
    let drained = if usable == all { String::new() } else { format!(" ({} drained)", all - usable) };
    let plural = if cluster.hosts.len() == 1 { "" } else { "s" };
    line(&mut out, 0, &format!("{}: {} host{plural}, {all} GPUs{drained}", cluster.name, cluster.hosts.len()));
    network(&mut out, cluster);
    hosts(&mut out, cluster);
    for (i, t) in cluster.types.iter().enumerate() {
        if cluster.hosts.iter().any(|h| h.host_type == i) {
            host_type(&mut out, t);
        }
    }
    faults(&mut out, cluster);
    out
}

/// A paragraph, wrapped at spaces; later lines are indented by two more.
fn line(out: &mut String, indent: usize, text: &str) {
    let mut width = 0;
    let mut pad = indent;
    for word in text.split(' ') {
        let n = word.chars().count();
        if width > 0 && width + 1 + n > COLUMNS_MAX {
            out.push('\n');
            width = 0;
            pad = indent + 2;
        }
        if width == 0 {
            out.extend(std::iter::repeat_n(' ', pad));
            width = pad;
        } else {
            out.push(' ');
            width += 1;
        }
        // A word longer than the line is cut into pieces.
        for c in word.chars() {
            if width == COLUMNS_MAX {
                out.push('\n');
                out.extend(std::iter::repeat_n(' ', indent + 2));
                width = indent + 2;
            }
            out.push(c);
            width += 1;
        }
    }
    out.push('\n');
}

/// A network class in words.
pub(super) fn class(class: NetworkClass) -> &'static str {
    match class {
        NetworkClass::Infiniband => "InfiniBand with GPUDirect RDMA",
        NetworkClass::Roce => "RoCE with GPUDirect RDMA",
        NetworkClass::Efa => "AWS EFA",
        NetworkClass::RdmaNoGdr => "RDMA without GPUDirect",
        NetworkClass::Tcp => "TCP",
    }
}

fn network(out: &mut String, c: &Cluster) {
    let n: &Network = &c.network;
    let class = class(n.class);
    let shape = if n.tiers.is_empty() { ", one non-blocking switch" } else { "" };
    line(out, 0, &format!("network: {class}{shape}"));
    for t in &n.tiers {
        let blocking = if t.oversubscription == 1.0 {
            "non-blocking".into()
        } else {
            format!("{}:1 oversubscribed", t.oversubscription)
        };
        line(out, 2, &format!("tier {}: {} hosts per switch, {blocking}", t.name, t.hosts_per_switch));
    }
    for l in n.host_links.iter().take(HOSTS_LISTED_MAX) {
        let rate = number(l.rate.gbit_per_s());
        line(out, 2, &format!("{} to {}: {rate} Gbit/s", c.host(l.a).name, c.host(l.b).name));
    }
}

fn hosts(out: &mut String, c: &Cluster) {
    out.push('\n');
    let mut rows: Vec<[String; 5]> =
        vec![["hosts".into(), "type".into(), "GPUs".into(), "model".into(), "NICs".into()]];
    let mut i = 0;
    while i < c.hosts.len() {
        let run = c.hosts[i..].iter().take_while(|h| h.host_type == c.hosts[i].host_type).count();
        let t = &c.types[c.hosts[i].host_type];
        rows.push([
            hostlist::compress(c.hosts[i..i + run].iter().map(|h| h.name.as_str())),
            t.name.clone(),
            t.gpu_count().to_string(),
            t.gpu_model.clone(),
            nic_summary(&t.nics),
        ]);
        i += run;
    }
    let limits = [24, 20, 4, 26, 18];
    let cut = |s: &str, n: usize| match s.chars().count() > n {
        true => s.chars().take(n - 1).chain(['…']).collect(),
        false => s.to_string(),
    };
    let widths: Vec<usize> =
        (0..5).map(|k| rows.iter().map(|r| cut(&r[k], limits[k]).chars().count()).max().unwrap_or(0)).collect();
    for row in &rows {
        let cells: Vec<String> = (0..5).map(|k| format!("{:<w$}", cut(&row[k], limits[k]), w = widths[k])).collect();
        let _ = writeln!(out, "{}", cells.join("  ").trim_end());
    }
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

/// `400`, `14.0625`, `0.1`.
fn number(v: f64) -> String {
    let rounded = (v * 1e4).round() / 1e4;
    rounded.to_string()
}

fn host_type(out: &mut String, t: &HostType) {
    out.push('\n');
    line(out, 0, &format!("{}: {}", t.name, t.description));
    if !t.source.is_empty() {
        line(out, 2, &format!("source: {}", t.source));
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
    line(out, 2, &format!("{nvlink}; PCIe Gen{} x{}", t.pcie.generation, t.pcie.lanes));
    out.push('\n');
    let n = t.gpu_count();
    let column = |g: usize| if n > NAMED_COLUMNS_MAX { g.to_string() } else { format!("GPU{g}") };
    let mut header = format!("  {:<7}", "");
    for g in 0..n {
        let _ = write!(header, "{:<5}", column(g));
    }
    let _ = writeln!(out, "{header} socket");
    for (g, row) in t.gpu_paths.iter().enumerate() {
        let mut text = format!("  {:<7}", format!("GPU{g}"));
        for p in row {
            let _ = write!(text, "{:<5}", p.to_string());
        }
        let _ = writeln!(out, "{text} {}", t.gpus[g].socket);
    }
    if !t.nics.is_empty() {
        out.push('\n');
        let width = t.nics.iter().map(|n| n.name.chars().count()).max().unwrap_or(0).min(20);
        for nic in &t.nics {
            let rate = number(nic.line_rate.gbit_per_s());
            line(out, 2, &format!("{:<width$} {rate:>4} Gbit/s  {}", nic.name, reach(nic)));
        }
    }
    if let Some(p2p) = &t.p2p {
        out.push('\n');
        line(out, 2, "measured peer-to-peer rate, one direction, GB/s (row to column)");
        for (g, row) in p2p.iter().enumerate() {
            let mut text = format!("  {:<6}", format!("GPU{g}"));
            for b in row {
                let v = b.gb_per_s();
                let cell = if v < 99.95 { format!("{v:.1}") } else { format!("{v:.0}") };
                let _ = write!(text, "{cell:>5}");
            }
            let _ = writeln!(out, "{text}");
        }
    }
}

/// `PIX GPU0, NODE GPU1-3, SYS GPU4-7`: nearest first.
fn reach(nic: &Nic) -> String {
    let mut kinds: Vec<_> = nic.gpu_paths.clone();
    kinds.sort();
    kinds.dedup();
    let list = |k| {
        let of_kind = nic.gpu_paths.iter().enumerate().filter(|(_, p)| **p == k).map(|(g, _)| g);
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for g in of_kind {
            match runs.last_mut() {
                Some(r) if r.1 + 1 == g => r.1 = g,
                _ => runs.push((g, g)),
            }
        }
        let run = |&(a, b): &(usize, usize)| if a == b { a.to_string() } else { format!("{a}-{b}") };
        format!("{k} GPU{}", runs.iter().map(run).collect::<Vec<_>>().join(","))
    };
    kinds.into_iter().map(list).collect::<Vec<_>>().join(", ")
}

fn faults(out: &mut String, c: &Cluster) {
    let faulty: Vec<&Host> = c.hosts.iter().filter(|h| !words(h, &c.types[h.host_type]).is_empty()).collect();
    if faulty.is_empty() {
        return;
    }
    out.push('\n');
    line(out, 0, "drained and degraded");
    for h in faulty.iter().take(HOSTS_LISTED_MAX) {
        line(out, 2, &format!("{}: {}", h.name, words(h, &c.types[h.host_type]).join("; ")));
    }
    if faulty.len() > HOSTS_LISTED_MAX {
        line(out, 2, &format!("and {} more hosts", faulty.len() - HOSTS_LISTED_MAX));
    }
}

/// What is wrong with a host, one phrase each.
pub(super) fn words(h: &Host, t: &HostType) -> Vec<String> {
    let percent = |f: f64| format!("{} %", number(f * 100.0));
    let mut words = Vec::new();
    if h.drained == t.all_gpus() {
        words.push("drained".into());
    } else if !h.drained.is_empty() {
        let list: Vec<String> = h.drained.iter().map(|g| g.to_string()).collect();
        words.push(format!("GPU {} drained", list.join(",")));
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
    use crate::catalog;

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
            for l in text(&c).lines() {
                assert!(l.chars().count() <= COLUMNS_MAX, "{} columns: {l}", l.chars().count());
            }
        }
    }
}
