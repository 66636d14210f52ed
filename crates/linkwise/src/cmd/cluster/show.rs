//! A state in words and in JSON.

use console::{list_cell, table, text_of, wrap};
use predict::doctor::Component;
use serde_json::{Value, json};
use store::state::{JobHeld, Snapshot, Suspect};
use topology::{Allocation, Cluster};

/// Most jobs that the text lists; JSON lists all.
const JOBS_SHOWN: usize = 200;
/// Columns of a list of GPUs in the table of jobs.
const LIST_WIDTH: usize = 24;
/// Most suspects that the text lists.
const SUSPECTS_SHOWN: usize = 6;

/// For people. `now_unix_s` turns times into ages.
pub fn text(cluster: &Cluster, s: &Snapshot, now_unix_s: f64) -> String {
    let held = s.held().gpu_count();
    let total = cluster.gpu_count();
    let mut out = format!(
        "{}: {} hosts, {total} GPUs: {} free, {held} held by {} job{}, {} drained\n",
        cluster.name,
        cluster.hosts.len(),
        s.free.gpu_count(),
        s.jobs.len(),
        if s.jobs.len() == 1 { "" } else { "s" },
        out_of_service(cluster, s).gpu_count(),
    );
    if !s.jobs.is_empty() {
        let mut jobs = table(&["job", "since", "split", "GPUs", "predicted\nGB/s", "demand\nGB/s", "where"], 3..6);
        for j in s.jobs.iter().take(JOBS_SHOWN) {
            let number = |v: Option<f64>| v.map_or("–".to_owned(), |v| format!("{v:.1}"));
            jobs.add_row([
                j.id.clone(),
                age(now_unix_s - j.since_unix_s),
                j.gpus.split(),
                j.gpus.gpu_count().to_string(),
                number(j.predicted_gb_per_s),
                number(j.demand_gb_per_s),
                list_cell(&cluster.gpu_list(&j.gpus), LIST_WIDTH),
            ]);
        }
        out += &text_of(&jobs);
        if s.jobs.len() > JOBS_SHOWN {
            out += &format!("and {} jobs more (--format json lists all)\n", s.jobs.len() - JOBS_SHOWN);
        }
    }
    if !s.free.is_empty() {
        out += &wrap(&format!("free: {}", cluster.gpu_list(&s.free)), 2);
    }
    for (reason, gpus) in drains(cluster, s) {
        let why = if reason.is_empty() { String::new() } else { format!(" ({reason})") };
        out += &wrap(&format!("drained: {}{why}", cluster.gpu_list(&gpus)), 2);
    }
    for x in s.suspects.iter().take(SUSPECTS_SHOWN) {
        let (rate, probability) = (100.0 * x.factor, 100.0 * x.probability);
        let what = name(cluster, x);
        out += &wrap(&format!("suspected: {what} at {rate:.0} % of its rate, probability {probability:.0} %"), 2);
    }
    if s.suspects.len() > SUSPECTS_SHOWN {
        out += &format!("and {} less probable suspects\n", s.suspects.len() - SUSPECTS_SHOWN);
    }
    out
}

/// One object with everything.
pub fn json(cluster: &Cluster, s: &Snapshot) -> Value {
    let job = |j: &JobHeld| {
        json!({
            "id": j.id,
            "gpus": cluster.gpu_names(&j.gpus),
            "split": j.gpus.split(),
            "since_unix_s": j.since_unix_s,
            "predicted_gb_per_s": j.predicted_gb_per_s,
            "demand_gb_per_s": j.demand_gb_per_s,
            "size_bytes": j.size,
        })
    };
    let drained = drains(cluster, s)
        .into_iter()
        .map(|(reason, gpus)| json!({"gpus": cluster.gpu_names(&gpus), "reason": reason}))
        .collect::<Vec<_>>();
    let suspect = |x: &Suspect| {
        json!({"component": name(cluster, x), "host": cluster.host(x.host).name, "defect": x.defect,
               "factor": x.factor, "probability": x.probability})
    };
    json!({
        "cluster": cluster.name,
        "gpus": cluster.gpu_count(),
        "free": cluster.gpu_names(&s.free),
        "jobs": s.jobs.iter().map(job).collect::<Vec<_>>(),
        "drained": drained,
        "suspects": s.suspects.iter().map(suspect).collect::<Vec<_>>(),
    })
}

/// A suspect in words: `NIC mlx5_3 of n1`.
pub fn name(cluster: &Cluster, s: &Suspect) -> String {
    match Component::parse(cluster, s.host, &s.component) {
        Some(c) => c.name(cluster),
        None => format!("{} of {}", s.component, cluster.host(s.host).name),
    }
}

/// Drained here or in the cluster file.
fn out_of_service(cluster: &Cluster, s: &Snapshot) -> Allocation {
    Allocation::new(drains(cluster, s).into_iter().flat_map(|d| d.1.parts().to_vec()))
}

/// Drained GPUs by reason, in order of appearance.
fn drains(cluster: &Cluster, s: &Snapshot) -> Vec<(String, Allocation)> {
    let by_file = Allocation::new(cluster.host_ids().map(|h| (h, cluster.host(h).drained)));
    let mut out: Vec<(String, Allocation)> = Vec::new();
    let mut add = |reason: &str, a: Allocation| match out.iter_mut().find(|d| d.0 == reason) {
        Some(d) => d.1 = Allocation::new(d.1.parts().iter().chain(a.parts()).copied()),
        None => out.push((reason.to_owned(), a)),
    };
    for d in &s.drained {
        add(&d.reason, Allocation::from_gpus([d.gpu]));
    }
    if !by_file.is_empty() {
        add("in the cluster file", by_file);
    }
    out
}

/// `40 s`, `12 min`, `3 h`, `2 d`.
fn age(seconds: f64) -> String {
    match seconds.max(0.0) {
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5_400.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3_600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}
