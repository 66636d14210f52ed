//! An answer in sentences and tables that fit the terminal.

use super::answer::Reply;
use console::{list_cell, table, text_of, wrap};
use place::{Bottleneck, Scored};
use predict::BandwidthModel;
use std::fmt::Write;
use topology::{GpuMask, HostId};

/// Pods, and running jobs, that are listed; JSON has all.
const LISTED_MAX: usize = 16;
/// Columns of a list of GPUs in a table.
const LIST_WIDTH: usize = 30;

impl Reply<'_> {
    /// Hosts and GPUs in rank order; on one host, too.
    fn ranks(&self) -> String {
        let order = &self.answer.host_order;
        let devices = |h: &(HostId, GpuMask)| self.devices(h.0);
        let ascending = |(h, m): &(HostId, GpuMask)| {
            m.iter().map(|g| g.to_string()).collect::<Vec<_>>().join(",") == self.devices(*h)
        };
        if order.iter().all(ascending) {
            return "as listed".to_owned();
        }
        let groups = order.chunk_by(|a, b| devices(a) == devices(b)).map(|group| {
            let hosts = self.cluster.host_list_in_order(group.iter().map(|p| p.0));
            let gpus = devices(&group[0]);
            hosts.split(' ').map(|h| format!("{h}:[{gpus}]")).collect::<Vec<_>>().join(" ")
        });
        groups.collect::<Vec<_>>().join(" ")
    }

    /// Sentences and tables.
    pub fn text(&self) -> String {
        let a = self.answer;
        let p = a.choice.prediction;
        let gpus = a.choice.allocation.gpu_count();
        let s = if gpus == 1 { "" } else { "s" };
        let listed = self.cluster.gpu_list_in_order(&a.host_order);
        let mut out = wrap(&format!("{gpus} GPU{s}, split {}: {listed}", a.choice.allocation.split()), 2);
        if gpus < 2 {
            out.push_str("One GPU talks to nobody: chosen so that what stays free is connected best.\n");
            return out;
        }
        let candidates =
            if a.evaluations == 1 { "1 candidate".to_owned() } else { format!("{} candidates", a.evaluations) };
        out += &wrap(
            &format!(
                "Predicted {} bus bandwidth at {}: {:.1} ± {:.1} GB/s ({} model, {} search, {candidates}, {:.0} us)",
                self.model.collective(),
                self.request.size,
                p.busbw_gb_per_s,
                p.std_gb_per_s,
                self.model.kind(),
                a.search,
                self.elapsed.as_secs_f64() * 1e6
            ),
            2,
        );
        out += &self.bottleneck();
        out += &self.pods();
        out += &wrap(&format!("Rank order: {}", self.ranks()), 2);
        if let Some(version) = self.nccl {
            let settings = self.settings();
            if settings.is_empty() {
                out += &wrap(&format!("NCCL {version}: no setting is expected to gain anything here (model)."), 2);
            }
            for a in settings {
                let gain = 100.0 * a.gain().unwrap_or(0.0);
                let text = a.text();
                out += &wrap(&format!("With {text} expect {gain:+.0} % (model of NCCL {version}, not measured)."), 2);
            }
        }
        let mut t = table(&["", "split", "GB/s", "±", "of choice", "GPUs"], 2..5);
        let mut row = |what: &str, s: &Scored| {
            let q = s.prediction;
            t.add_row([
                what.to_owned(),
                s.allocation.split(),
                format!("{:.1}", q.busbw_gb_per_s),
                format!("{:.1}", q.std_gb_per_s),
                format!("{:.0} %", 100.0 * q.busbw_gb_per_s / p.busbw_gb_per_s.max(1e-9)),
                list_cell(&self.cluster.gpu_list(&s.allocation), LIST_WIDTH),
            ]);
        };
        row("choice", &a.choice);
        if let Some(packed) = &a.packed {
            row("packed", packed);
        }
        for (i, s) in a.runner_ups.iter().take(3).enumerate() {
            row(if i == 0 { "runner-up" } else { "" }, s);
        }
        out += &text_of(&t);
        out + &self.jobs()
    }

    fn bottleneck(&self) -> String {
        match &self.answer.bottleneck {
            Bottleneck::Host { host } => format!("Limited by the links inside host {}.\n", self.name(*host)),
            Bottleneck::Nic { host, nics, gb_per_s } => {
                let nics =
                    if nics.len() > 4 { format!("{} NICs", nics.len()) } else { format!("NIC {}", nics.join(", ")) };
                format!("Limited by {nics} of host {} ({gb_per_s:.0} GB/s line rate).\n", self.name(*host))
            }
            Bottleneck::Network { name } => format!("Limited by the link {name}.\n"),
            Bottleneck::Latency => "Limited by latency: the message is too small to fill a link.\n".to_owned(),
            Bottleneck::None => String::new(),
        }
    }

    fn pods(&self) -> String {
        let pods = &self.answer.pods;
        if pods.is_empty() {
            return String::new();
        }
        let pod = |(i, p): (usize, &(HostId, GpuMask))| format!("{i}={}", self.cluster.gpu_list_in_order(&[*p]));
        let mut words: Vec<String> = pods.iter().enumerate().take(LISTED_MAX).map(pod).collect();
        if pods.len() > LISTED_MAX {
            words.push(format!("and {} more", pods.len() - LISTED_MAX));
        }
        wrap(&format!("Pods: {}", words.join(" ")), 2)
    }

    /// What the choice means beside running jobs, those that lose most first.
    fn jobs(&self) -> String {
        let (jobs, e) = (&self.request.jobs, &self.answer.effect);
        if jobs.is_empty() {
            return String::new();
        }
        let (n, s) = (jobs.len(), if jobs.len() == 1 { "" } else { "s" });
        let head = format!("Beside {n} running job{s} ({} contention):", self.request.contention.name());
        let mut out = wrap(&format!("{head} {:.1} GB/s of {:.1} alone.", e.shared_gb_per_s, e.alone_gb_per_s), 2);
        let mut losing: Vec<(&str, f64, f64)> =
            jobs.iter().zip(&e.jobs_gb_per_s).map(|(j, g)| (j.id.as_str(), g.0, g.1)).collect();
        losing.retain(|(_, before, after)| after < before);
        if losing.is_empty() {
            out.push_str("No running job loses anything.\n");
            return out;
        }
        losing.sort_by(|a, b| (b.1 - b.2).total_cmp(&(a.1 - a.2)));
        let mut t = table(&["job", "GB/s now", "then", "loses"], 1..4);
        for (id, before, after) in losing.iter().take(LISTED_MAX) {
            let id: String = id.chars().filter(|c| !c.is_control()).take(40).collect();
            t.add_row([id, format!("{before:.1}"), format!("{after:.1}"), format!("{:.1}", before - after)]);
        }
        out += &text_of(&t);
        if losing.len() > LISTED_MAX {
            let _ = writeln!(out, "and {} more jobs that lose less (--format json has all)", losing.len() - LISTED_MAX);
        }
        out
    }
}
