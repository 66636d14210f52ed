//! A state as text.

use console::{duration, list_cell, table, text_of, wrap};
use engine::{GpuList, StatusAnswer};
use topology::Cluster;

/// Maximum number of jobs in the text; the JSON lists all.
const JOBS_SHOWN: usize = 200;
/// Width of a list of GPUs in the table of jobs, columns.
const LIST_WIDTH: usize = 24;
/// Maximum number of suspects in the text.
const SUSPECTS_SHOWN: usize = 6;

/// The state as text. `now_unix_s` turns times into ages.
pub fn text(cluster: &Cluster, s: &StatusAnswer, now_unix_s: f64) -> String {
    let short = |gpus: &GpuList| cluster.gpu_list(&gpus.allocation(cluster));
    let held: usize = s.jobs.iter().map(|j| j.gpus.gpu_count()).sum();
    let mut out = format!(
        "{}: {} hosts, {} GPUs: {} free, {held} held by {} job{}, {} drained\n",
        s.cluster,
        s.hosts,
        s.gpus,
        s.free.gpu_count(),
        s.jobs.len(),
        if s.jobs.len() == 1 { "" } else { "s" },
        out_of_service(cluster, s),
    );
    if !s.jobs.is_empty() {
        let mut jobs = table(&["job", "held for", "split", "GPUs", "predicted\nGB/s", "demand\nGB/s", "where"], 3..6);
        for j in s.jobs.iter().take(JOBS_SHOWN) {
            let number = |v: Option<f64>| v.map_or("–".to_owned(), |v| format!("{v:.1}"));
            jobs.add_row([
                j.id.clone(),
                duration(now_unix_s - j.since_unix_s),
                j.split.clone(),
                j.gpus.gpu_count().to_string(),
                number(j.predicted_gb_per_s),
                number(j.demand_gb_per_s),
                list_cell(&short(&j.gpus), LIST_WIDTH),
            ]);
        }
        out += &text_of(&jobs);
        if s.jobs.len() > JOBS_SHOWN {
            out += &format!("and {} jobs more (--format json lists all)\n", s.jobs.len() - JOBS_SHOWN);
        }
    }
    if s.free.gpu_count() > 0 {
        out += &wrap(&format!("free: {}", short(&s.free)), 2);
    }
    for d in &s.drained {
        let why = if d.reason.is_empty() { String::new() } else { format!(" ({})", d.reason) };
        out += &wrap(&format!("drained: {}{why}", short(&d.gpus)), 2);
    }
    for x in s.suspects.iter().take(SUSPECTS_SHOWN) {
        let (rate, probability) = (100.0 * x.factor, 100.0 * x.probability);
        out +=
            &wrap(&format!("suspected: {} at {rate:.0} % of its rate, probability {probability:.0} %", x.component), 2);
    }
    if s.suspects.len() > SUSPECTS_SHOWN {
        out += &format!("and {} less probable suspects\n", s.suspects.len() - SUSPECTS_SHOWN);
    }
    out
}

/// Number of GPUs drained in the state or in the cluster file.
fn out_of_service(cluster: &Cluster, s: &StatusAnswer) -> usize {
    let drained = s.drained.iter().flat_map(|d| d.gpus.allocation(cluster).parts().to_vec());
    topology::Allocation::new(drained).gpu_count()
}
