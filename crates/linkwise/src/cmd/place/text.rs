//! An answer in sentences and tables that fit 80 columns.

use super::answer::Reply;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use place::{Bottleneck, Scored};
use predict::BandwidthModel;
use std::fmt::Write;
use topology::{Allocation, GpuMask, HostId};

/// Columns.
const WIDTH: usize = 80;
/// Pods, and running jobs, that are listed; JSON has all.
const LISTED_MAX: usize = 16;

/// `words` after `head`, in lines of at most [`WIDTH`] columns (a longer word stands alone).
fn wrapped(head: &str, words: impl IntoIterator<Item = String>) -> String {
    let mut out = String::from(head);
    let mut column = head.chars().count();
    for w in words {
        let n = w.chars().count();
        if column + 1 + n > WIDTH {
            out.push_str("\n ");
            column = 1;
        }
        out.push(' ');
        out.push_str(&w);
        column += 1 + n;
    }
    out.push('\n');
    out
}

/// The indices of a mask, runs of three and more with a dash: `{0-3,6,7}`.
fn mask(m: GpuMask) -> String {
    let list: Vec<usize> = m.iter().collect();
    let runs = list.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [a, _, .., b] => format!("{a}-{b}"),
        few => few.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    });
    format!("{{{}}}", runs.collect::<Vec<_>>().join(","))
}

fn table(header: &[&str], numbers: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(header.to_vec());
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH as u16);
    for c in numbers {
        if let Some(c) = table.column_mut(c) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

impl Reply<'_> {
    fn hosts(&self, parts: &[(HostId, GpuMask)]) -> Vec<String> {
        parts.iter().map(|(h, m)| format!("{}{}", self.name(*h), mask(*m))).collect()
    }

    /// Most GPUs first, as a split is written.
    fn by_count(&self, a: &Allocation) -> Vec<String> {
        let mut parts = a.parts().to_vec();
        parts.sort_by_key(|(h, m)| (std::cmp::Reverse(m.count()), *h));
        self.hosts(&parts)
    }

    /// Sentences and tables.
    pub fn text(&self) -> String {
        let a = self.answer;
        let p = a.choice.prediction;
        let gpus = a.choice.allocation.gpu_count();
        let s = if gpus == 1 { "" } else { "s" };
        let head = format!("{gpus} GPU{s}, split {}:", a.choice.allocation.split());
        let mut out = wrapped(&head, self.hosts(&a.host_order));
        if gpus < 2 {
            out.push_str("One GPU talks to nobody: chosen so that what stays free is connected best.\n");
            return out;
        }
        let candidates =
            if a.evaluations == 1 { "1 candidate".to_owned() } else { format!("{} candidates", a.evaluations) };
        out += &wrapped(
            "Predicted",
            [
                format!("{} bus bandwidth at {}:", self.model.collective(), self.request.size),
                format!("{:.1} ± {:.1} GB/s", p.busbw_gb_per_s, p.std_gb_per_s),
                format!("({} model, {} search,", self.model.kind(), a.search),
                format!("{candidates}, {:.0} us)", self.elapsed.as_secs_f64() * 1e6),
            ],
        );
        out += &self.bottleneck();
        out += &self.pods();
        let ranks = a.host_order.iter().map(|(h, _)| format!("{}:{}", self.name(*h), self.devices(*h)));
        out += &wrapped("Rank order:", ranks);
        if let Some(version) = self.nccl {
            let settings = self.settings();
            if settings.is_empty() {
                let _ = writeln!(out, "NCCL {version}: no setting is expected to gain anything here (model).");
            }
            for a in settings {
                let gain = 100.0 * a.gain().unwrap_or(0.0);
                let _ = writeln!(out, "With {} expect {gain:+.0} % (model of NCCL {version}, not measured).", a.text());
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
                self.by_count(&s.allocation).join(" "),
            ]);
        };
        row("choice", &a.choice);
        if let Some(packed) = &a.packed {
            row("packed", packed);
        }
        for (i, s) in a.runner_ups.iter().take(3).enumerate() {
            row(if i == 0 { "runner-up" } else { "" }, s);
        }
        let _ = writeln!(out, "{t}");
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
        let pod = |(i, p): (usize, &(HostId, GpuMask))| format!("{i}={}", self.hosts(&[*p]).concat());
        let mut words: Vec<String> = pods.iter().enumerate().take(LISTED_MAX).map(pod).collect();
        if pods.len() > LISTED_MAX {
            words.push(format!("and {} more", pods.len() - LISTED_MAX));
        }
        wrapped("Pods:", words)
    }

    /// What the choice means beside running jobs, those that lose most first.
    fn jobs(&self) -> String {
        let (jobs, e) = (&self.request.jobs, &self.answer.effect);
        if jobs.is_empty() {
            return String::new();
        }
        let (n, s) = (jobs.len(), if jobs.len() == 1 { "" } else { "s" });
        let head = format!("Beside {n} running job{s} ({} contention):", self.request.contention.name());
        let shared = format!("{:.1} GB/s of {:.1} alone.", e.shared_gb_per_s, e.alone_gb_per_s);
        let mut out = wrapped(&head, [shared]);
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
        let _ = writeln!(out, "{t}");
        if losing.len() > LISTED_MAX {
            let _ = writeln!(out, "and {} more jobs that lose less (--format json has all)", losing.len() - LISTED_MAX);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_indices_are_shortened() {
        assert_eq!(mask(GpuMask(0xff)), "{0-7}");
        assert_eq!(mask(GpuMask(0b1100_1011)), "{0,1,3,6,7}");
        assert_eq!(mask(GpuMask(0b111_0001)), "{0,4-6}");
    }

    #[test]
    fn long_lists_are_wrapped_at_eighty_columns() {
        let text = wrapped("Ranks:", (0..40).map(|i| format!("n{i}:0,1,2")));
        assert!(text.lines().count() > 3 && text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.split_whitespace().count(), 41);
    }
}
