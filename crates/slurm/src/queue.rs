//! Waiting and running jobs with GPUs, and their bandwidth: what `linkwise slurm squeue` shows.

use crate::books::{self, Job, Node, value};
use crate::mirror::is_out;
use crate::tres;
use engine::{Engine, ExplainRequest, PlaceRequest};
use serde::Serialize;
use topology::{Allocation, GpuMask, HostId, names};

/// Maximum number of waiting jobs for which a placement is computed; the others follow without a figure.
pub const WAITING_MAX: usize = 200;

/// A job of the queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its number.
    pub job: u32,
    /// `RUNNING` or `PENDING`.
    pub state: String,
    /// Number of GPUs.
    pub gpus: usize,
    /// The GPUs that a running job has, or that a waiting one would get now; none: it would get none now.
    pub on: Option<String>,
    /// Predicted bus bandwidth on them, GB/s.
    pub busbw_gb_per_s: Option<f64>,
    /// Predicted bus bandwidth of what a packing scheduler would choose from the same GPUs, GB/s.
    pub packed_gb_per_s: Option<f64>,
    /// Why a waiting job waits: Slurm's own word.
    pub reason: String,
}

/// Number of GPUs that a record of `scontrol show job -o` asks for; 0 without any.
pub fn gpus_asked(record: &str) -> usize {
    let number = |key: &str| {
        let first = value(record, key).unwrap_or("1").split('-').next().unwrap_or("1");
        first.parse::<usize>().unwrap_or(1).clamp(1, 1 << 20)
    };
    tres::gpus(record, "TresPerJob")
        .or_else(|| Some(tres::gpus(record, "TresPerNode")? * number("NumNodes")))
        .or_else(|| Some(tres::gpus(record, "TresPerTask")? * number("NumTasks")))
        .unwrap_or(0)
}

/// The GPUs of nodes that are up, without those of `taken`.
fn free(engine: &Engine, nodes: &[Node], taken: &Allocation) -> Allocation {
    let cluster = engine.cluster();
    let up = nodes.iter().filter(|n| !is_out(&n.state)).filter_map(|n| names::slurm::host(cluster, &n.name));
    Allocation::new(up.map(|h: HostId| (h, GpuMask(cluster.type_of(h).all_gpus().0 & !taken.mask(h).0))))
}

/// The queue: running jobs, then waiting ones, in the order of the records. Every waiting job is judged as if it were the next to
/// start. O(jobs x search).
pub fn rows(engine: &Engine, nodes: &[Node], records: &str, suspected: &Allocation, now_unix_s: f64) -> Vec<Row> {
    let cluster = engine.cluster();
    let jobs: Vec<(Job, Option<Allocation>)> = books::jobs(records)
        .into_iter()
        .map(|j| {
            let held = books::held(cluster, &j).filter(|_| j.state.starts_with("RUNNING"));
            (j, held)
        })
        .collect();
    let taken = |except: u32| {
        let held = jobs.iter().filter(|(j, _)| j.id != except).filter_map(|(_, a)| a.as_ref());
        Allocation::new(held.flat_map(|a| a.parts().to_vec()).chain(suspected.parts().to_vec()))
    };
    let place = |gpus: usize, free: &Allocation| {
        let free = Some(cluster.gpu_names(free));
        engine
            .place_request(&PlaceRequest { gpus: Some(gpus as u64), free, ..PlaceRequest::default() }, now_unix_s)
            .ok()
    };
    let mut out = Vec::new();
    for (job, has) in jobs.iter().filter_map(|(j, a)| Some((j, a.as_ref()?))) {
        let gpus = cluster.gpu_names(has);
        let now = engine.explain(&ExplainRequest { gpus: Some(gpus), ..ExplainRequest::default() }).ok();
        // What it has counts as free: the choices are compared on the same GPUs.
        let packed = place(has.gpu_count(), &free(engine, nodes, &taken(job.id))).and_then(|a| a.packed);
        out.push(Row {
            job: job.id,
            state: job.state.clone(),
            gpus: has.gpu_count(),
            on: Some(cluster.gpu_list(has)),
            busbw_gb_per_s: now.filter(|_| has.gpu_count() > 1).map(|n| n.expected.predicted_busbw_gb_per_s),
            packed_gb_per_s: packed.filter(|_| has.gpu_count() > 1).map(|p| p.predicted_busbw_gb_per_s),
            reason: String::new(),
        });
    }
    let offered = free(engine, nodes, &taken(0));
    let waiting = records.lines().filter(|r| value(r, "JobState") == Some("PENDING"));
    for (i, record) in waiting.filter(|r| gpus_asked(r) > 0).enumerate() {
        let Some(id) = value(record, "JobId").and_then(|n| n.parse().ok()) else { continue };
        let gpus = gpus_asked(record);
        let now = if i < WAITING_MAX { place(gpus, &offered) } else { None };
        let several = now.as_ref().filter(|_| gpus > 1);
        out.push(Row {
            job: id,
            state: "PENDING".into(),
            gpus,
            busbw_gb_per_s: several.map(|a| a.predicted_busbw_gb_per_s),
            packed_gb_per_s: several.and_then(|a| a.packed.as_ref()).map(|p| p.predicted_busbw_gb_per_s),
            on: now.map(|a| cluster.gpu_list(&a.gpus.allocation(cluster))),
            reason: value(record, "Reason").unwrap_or_default().into(),
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_gpus_is_that_of_the_request() {
        assert_eq!(gpus_asked("JobId=1 TresPerJob=gres:gpu:8"), 8);
        assert_eq!(gpus_asked("JobId=1 NumNodes=2-4 TresPerNode=gres:gpu:a100:4"), 8);
        assert_eq!(gpus_asked("JobId=1 NumNodes=2 TresPerNode=gres/gpu:a100:4"), 8, "from 23.11 on");
        assert_eq!(gpus_asked("JobId=1 NumTasks=3 TresPerTask=gres:gpu:2"), 6);
        assert_eq!(gpus_asked("JobId=1 TresPerNode=gres:gpu"), 1);
        assert_eq!(gpus_asked("JobId=1 TresPerNode=gres:shard:1"), 0);
    }
}
