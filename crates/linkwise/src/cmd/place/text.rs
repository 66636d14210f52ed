//! An answer in sentences and tables that fit 80 columns.

use super::launch::devices;
use super::reply::{Reply, by_count, mask_of};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use engine::{BottleneckAnswer, GpuList, HostGpus, NeighbourEffect};
use std::fmt::Write;
use topology::GpuMask;

/// Columns.
const WIDTH: usize = 80;
/// Pods, and running jobs, that are listed; JSON has all.
const LISTED_MAX: usize = 16;
/// Runner-ups that are listed.
const RUNNER_UPS_SHOWN: usize = 3;

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

fn hosts<'a>(hosts: impl IntoIterator<Item = &'a HostGpus>) -> Vec<String> {
    hosts.into_iter().map(|h| format!("{}{}", h.host, mask(mask_of(&h.gpus)))).collect()
}

impl Reply<'_> {
    /// Sentences and tables.
    pub fn text(&self) -> String {
        let a = self.answer;
        let gpus = a.gpus.gpu_count();
        let s = if gpus == 1 { "" } else { "s" };
        let head = format!("{gpus} GPU{s}, split {}:", a.split);
        let mut out = wrapped(&head, hosts(self.hosts()));
        if gpus < 2 {
            out.push_str("A single GPU has no collective traffic; chosen to leave the best-connected GPUs free.\n");
            return out;
        }
        let candidates =
            if a.evaluations == 1 { "1 candidate".to_owned() } else { format!("{} candidates", a.evaluations) };
        out += &wrapped(
            "Predicted",
            [
                format!("{} bus bandwidth at {}:", a.collective, self.size()),
                format!("{:.1} ± {:.1} GB/s", a.predicted_busbw_gb_per_s, a.std_gb_per_s),
                format!("({} model, {} search,", a.model, a.search),
                format!("{candidates}, {:.0} us)", self.elapsed.as_secs_f64() * 1e6),
            ],
        );
        out += &self.bottleneck();
        out += &self.pods();
        out += &wrapped("Rank order:", self.hosts().iter().map(|h| format!("{}:{}", h.host, devices(h))));
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
        let mut row = |what: &str, split: &str, gb_per_s: f64, std: f64, gpus: &GpuList| {
            t.add_row([
                what.to_owned(),
                split.to_owned(),
                format!("{gb_per_s:.1}"),
                format!("{std:.1}"),
                format!("{:.0} %", 100.0 * gb_per_s / a.predicted_busbw_gb_per_s.max(1e-9)),
                hosts(by_count(gpus)).join(" "),
            ]);
        };
        row("choice", &a.split, a.predicted_busbw_gb_per_s, a.std_gb_per_s, &a.gpus);
        let runner_ups = a.runner_ups.iter().take(RUNNER_UPS_SHOWN).enumerate();
        let others = a.packed.iter().map(|p| ("packed", p));
        for (what, s) in others.chain(runner_ups.map(|(i, s)| (if i == 0 { "runner-up" } else { "" }, s))) {
            row(what, &s.split, s.predicted_busbw_gb_per_s, s.std_gb_per_s, &s.gpus);
        }
        let _ = writeln!(out, "{t}");
        out + &self.jobs()
    }

    fn bottleneck(&self) -> String {
        match &self.answer.bottleneck {
            BottleneckAnswer::Host { host } => format!("Limited by the links inside host {host}.\n"),
            BottleneckAnswer::Nic { host, nics, gb_per_s } => {
                let nics =
                    if nics.len() > 4 { format!("{} NICs", nics.len()) } else { format!("NIC {}", nics.join(", ")) };
                format!("Limited by {nics} of host {host} ({gb_per_s:.0} GB/s line rate).\n")
            }
            BottleneckAnswer::Link { name } => format!("Limited by the link {name}.\n"),
            BottleneckAnswer::Latency => "Limited by latency: the message is too small to fill a link.\n".to_owned(),
            BottleneckAnswer::None => String::new(),
        }
    }

    fn pods(&self) -> String {
        let pods = &self.answer.pods;
        if pods.is_empty() {
            return String::new();
        }
        let pod = |(i, p): (usize, &GpuList)| format!("{i}={}", hosts(&p.0).concat());
        let mut words: Vec<String> = pods.iter().enumerate().take(LISTED_MAX).map(pod).collect();
        if pods.len() > LISTED_MAX {
            words.push(format!("and {} more", pods.len() - LISTED_MAX));
        }
        wrapped("Pods:", words)
    }

    /// What the choice means among the running jobs, those that lose most first.
    fn jobs(&self) -> String {
        let Some(c) = &self.answer.contention else { return String::new() };
        let (n, s) = (c.jobs.len(), if c.jobs.len() == 1 { "" } else { "s" });
        let head = format!("Beside {n} running job{s} ({} contention):", c.kind);
        let shared = format!("{:.1} GB/s of {:.1} alone.", c.shared_busbw_gb_per_s, c.alone_busbw_gb_per_s);
        let mut out = wrapped(&head, [shared]);
        let loss = |j: &NeighbourEffect| j.before_busbw_gb_per_s - j.after_busbw_gb_per_s;
        let mut losing: Vec<&NeighbourEffect> = c.jobs.iter().filter(|j| loss(j) > 0.0).collect();
        if losing.is_empty() {
            out.push_str("No running job loses anything.\n");
            return out;
        }
        losing.sort_by(|a, b| loss(b).total_cmp(&loss(a)));
        let mut t = table(&["job", "GB/s now", "then", "loses"], 1..4);
        for j in losing.iter().take(LISTED_MAX) {
            let id: String = j.id.chars().filter(|c| !c.is_control()).take(40).collect();
            let (before, after) = (j.before_busbw_gb_per_s, j.after_busbw_gb_per_s);
            t.add_row([id, format!("{before:.1}"), format!("{after:.1}"), format!("{:.1}", loss(j))]);
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
