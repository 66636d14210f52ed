//! An answer in its forms: sentences, JSON, Slurm options, hostfile.

use comfy_table::{CellAlignment, Table, presets};
use place::{Answer, Bottleneck, Request, Scored};
use predict::{BandwidthModel, Model};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;
use topology::{Allocation, Cluster, GpuMask, HostId, names};

/// Everything that an answer is printed from.
pub struct Reply<'a> {
    pub cluster: &'a Cluster,
    pub model: &'a Model,
    pub request: &'a Request,
    pub answer: &'a Answer,
    pub elapsed: Duration,
}

/// How many candidates are named as worth measuring.
const PROBES: usize = 3;

fn round(v: f64) -> f64 {
    (v * 1000.0).round() / 1000.0
}

impl Reply<'_> {
    fn name(&self, h: HostId) -> &str {
        &self.cluster.host(h).name
    }

    /// Hosts with most GPUs first: the order that predictions assume, and that a job should list its hosts in.
    fn ranked(&self, a: &Allocation) -> Vec<(HostId, GpuMask)> {
        let mut parts = a.parts().to_vec();
        parts.sort_by_key(|(h, m)| (std::cmp::Reverse(m.count()), *h));
        parts
    }

    /// The candidates whose measurement would tell most, the choice first: what `--readings` takes.
    fn worth_measuring(&self) -> Vec<Value> {
        let all: Vec<Scored> = std::iter::once(&self.answer.choice).chain(&self.answer.runner_ups).cloned().collect();
        place::worth_measuring(&all, PROBES)
            .into_iter()
            .map(|i| json!(self.cluster.gpu_names(&all[i].allocation)))
            .collect()
    }

    fn scored(&self, s: &Scored) -> Value {
        json!({
            "split": s.allocation.split(),
            "gpus": self.cluster.gpu_names(&s.allocation),
            "predicted_busbw_gb_per_s": round(s.prediction.busbw_gb_per_s),
            "std_gb_per_s": round(s.prediction.std_gb_per_s),
        })
    }

    /// What the choice means for it and the running jobs; null without jobs.
    fn contention(&self) -> Value {
        if self.request.jobs.is_empty() {
            return Value::Null;
        }
        let e = &self.answer.effect;
        let jobs = self.request.jobs.iter().zip(&e.jobs_gb_per_s).map(|(j, (before, after))| {
            json!({"id": j.id, "before_busbw_gb_per_s": round(*before), "after_busbw_gb_per_s": round(*after)})
        });
        json!({
            "kind": self.request.contention.name(),
            "loss_weight": self.request.loss_weight,
            "alone_busbw_gb_per_s": round(e.alone_gb_per_s),
            "shared_busbw_gb_per_s": round(e.shared_gb_per_s),
            "jobs": jobs.collect::<Vec<_>>(),
        })
    }

    /// One JSON object; `id` as the request gave it.
    pub fn json(&self, id: Option<&Value>) -> Value {
        let a = self.answer;
        let bottleneck = match &a.bottleneck {
            Bottleneck::Host { host } => json!({"kind": "host", "host": self.name(*host)}),
            Bottleneck::Nic { host, nics, gb_per_s } => {
                json!({"kind": "nic", "host": self.name(*host), "nics": nics, "gb_per_s": round(*gb_per_s)})
            }
            Bottleneck::Network { name } => json!({"kind": "link", "name": name}),
            Bottleneck::Latency => json!({"kind": "latency"}),
            Bottleneck::None => json!({"kind": "none"}),
        };
        let mut v = json!({
            "gpus": self.cluster.gpu_names(&a.choice.allocation),
            "predicted_busbw_gb_per_s": round(a.choice.prediction.busbw_gb_per_s),
            "std_gb_per_s": round(a.choice.prediction.std_gb_per_s),
            "split": a.choice.allocation.split(),
            "search": a.search,
            "pods": a.pods.iter().map(|p| self.cluster.gpu_names(&Allocation::new([*p]))).collect::<Vec<_>>(),
            "rank_order": a.rank_order.iter().map(|g| self.cluster.gpu_name(*g)).collect::<Vec<_>>(),
            "contention": self.contention(),
            "model": self.model.kind(),
            "collective": self.model.collective(),
            "size_bytes": self.request.size.0,
            "evaluations": a.evaluations,
            "elapsed_us": (self.elapsed.as_secs_f64() * 1e6).round(),
            "bottleneck": bottleneck,
            "packed": a.packed.as_ref().map(|p| self.scored(p)),
            "worth_measuring": self.worth_measuring(),
            "runner_ups": a.runner_ups.iter().map(|s| self.scored(s)).collect::<Vec<_>>(),
        });
        if let (Some(id), Some(map)) = (id, v.as_object_mut()) {
            map.insert("id".into(), id.clone());
        }
        v
    }

    /// Sentences and a table.
    pub fn text(&self) -> String {
        let a = self.answer;
        let mut out = String::new();
        let p = a.choice.prediction;
        let gpus = a.choice.allocation.gpu_count();
        let _ = writeln!(
            out,
            "{gpus} GPU{}, split {}: {}",
            if gpus == 1 { "" } else { "s" },
            a.choice.allocation.split(),
            self.masks(&a.choice.allocation)
        );
        if gpus < 2 {
            let _ = writeln!(out, "One GPU talks to nobody: chosen so that what stays free is connected best.");
            return out;
        }
        let _ = writeln!(
            out,
            "Predicted {} bus bandwidth at {}: {:.1} ± {:.1} GB/s ({} model, {} candidates, {:.0} us)",
            self.model.collective(),
            self.request.size,
            p.busbw_gb_per_s,
            p.std_gb_per_s,
            self.model.kind(),
            a.evaluations,
            self.elapsed.as_secs_f64() * 1e6
        );
        let _ = match &a.bottleneck {
            Bottleneck::Host { host } => writeln!(out, "Limited by the links inside host {}.", self.name(*host)),
            Bottleneck::Nic { host, nics, gb_per_s } => writeln!(
                out,
                "Limited by {} of host {} ({gb_per_s:.0} GB/s line rate).",
                if nics.len() > 4 { format!("{} NICs", nics.len()) } else { format!("NIC {}", nics.join(", ")) },
                self.name(*host)
            ),
            Bottleneck::Network { name } => writeln!(out, "Limited by the link {name}."),
            Bottleneck::Latency => writeln!(out, "Limited by latency: the message is too small to fill a link."),
            Bottleneck::None => Ok(()),
        };
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(["", "split", "GB/s", "±", "of choice", "GPUs"]);
        let mut row = |what: &str, s: &Scored| {
            let q = s.prediction;
            table.add_row([
                what.to_owned(),
                s.allocation.split(),
                format!("{:.1}", q.busbw_gb_per_s),
                format!("{:.1}", q.std_gb_per_s),
                format!("{:.0} %", 100.0 * q.busbw_gb_per_s / p.busbw_gb_per_s.max(1e-9)),
                self.masks(&s.allocation),
            ]);
        };
        row("choice", &a.choice);
        if let Some(packed) = &a.packed {
            row("packed", packed);
        }
        for (i, s) in a.runner_ups.iter().take(3).enumerate() {
            row(if i == 0 { "runner-up" } else { "" }, s);
        }
        for c in 2..5 {
            if let Some(c) = table.column_mut(c) {
                c.set_cell_alignment(CellAlignment::Right);
            }
        }
        let _ = writeln!(out, "{table}");
        out
    }

    fn masks(&self, a: &Allocation) -> String {
        self.ranked(a).iter().map(|(h, m)| format!("{}{m}", self.name(*h))).collect::<Vec<_>>().join(" ")
    }

    /// Options for srun, salloc and sbatch: hosts with the same number of GPUs form one component of a heterogeneous job.
    pub fn slurm(&self) -> String {
        let ranked = self.ranked(&self.answer.choice.allocation);
        let mut components: Vec<String> = Vec::new();
        for group in ranked.chunk_by(|a, b| a.1.count() == b.1.count()) {
            let list = names::slurm::node_list(self.cluster, &Allocation::new(group.iter().copied()));
            components.push(format!(
                "--nodes={} --nodelist={list} --gpus-per-node={}",
                group.len(),
                group[0].1.count()
            ));
        }
        let mut out = String::new();
        for (h, m) in &ranked {
            let idx: Vec<String> = m.iter().map(|i| i.to_string()).collect();
            let _ = writeln!(
                out,
                "# {} CUDA_VISIBLE_DEVICES={}",
                names::slurm::node_name(self.cluster.host(*h)),
                idx.join(",")
            );
        }
        let _ = writeln!(out, "{}", components.join(" : "));
        out
    }

    /// Open MPI hostfile; slots are GPUs, a comment names them.
    pub fn hostfile(&self) -> String {
        let mut out = String::new();
        for (h, m) in self.ranked(&self.answer.choice.allocation) {
            let idx: Vec<String> = m.iter().map(|i| i.to_string()).collect();
            let _ = writeln!(out, "{} slots={} # CUDA_VISIBLE_DEVICES={}", self.name(h), m.count(), idx.join(","));
        }
        out
    }
}
