//! `linkwise doctor`: hosts, GPUs and NICs that are slower than their like.

use crate::store_errors::OrFailure;
use console::Failure;
use console::{Format, table, text_of, wrap};
use predict::Model;
use predict::doctor::{self, Candidate, Cost, Defect, Diagnosis};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::PathBuf;
use store::{Measurement, Query, Source, State, Store};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask};

/// Arguments of `linkwise doctor`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  linkwise doctor --store S.db --cluster site.yaml\n  linkwise doctor --store S.db --state site.state --format json\n\n\
    Every reading is compared with what its class gets, and the rest explained by a defect where one is probable: a slow NIC slows the\n\
    jobs that touch it and no other. Probabilities are over all components, shares of rate and moments, with one defect in a thousand\n\
    components expected beforehand. Exit code 0 whether or not something is found."
)]
pub struct Args {
    /// Store with measurements
    #[arg(long)]
    store: PathBuf,
    /// Built-in cluster or cluster file
    #[arg(long, required_unless_present = "state")]
    cluster: Option<String>,
    /// State file: its suspects are replaced by what is found, so that `place --state` prefers others
    #[arg(long)]
    state: Option<PathBuf>,
    /// Collective whose readings are judged (default: the one that the store holds)
    #[arg(long, value_parser = clap::value_parser!(Collective))]
    collective: Option<Collective>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// How many hosts the table lists.
const HOSTS_SHOWN: usize = 8;
/// Distance from the class, in deviations, from which a host is called unusual.
const UNUSUAL_SDS: f64 = 3.0;
/// Candidates of a defect that are told.
const CANDIDATES_SHOWN: usize = 4;
/// Single readings that are told.
const STRAY_SHOWN: usize = 5;

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let mut state = args.state.as_deref().map(State::open).transpose().or_failure()?;
    let cluster = crate::cmd::place::state::cluster(args.cluster.as_deref(), state.as_ref())?;
    let store = Store::open(&args.store, &cluster).or_failure()?;
    let rows = readings(&store)?;
    let simulated = rows.iter().filter(|m| m.source == Source::Simulated).count();
    let found = examine(&cluster, &rows, args.collective)?;
    if let Some(s) = &mut state {
        s.set_suspects(&crate::cmd::observe::suspects(&found.diagnosis)).or_failure()?;
    }
    let text = match args.format {
        Format::Text => found.text(&cluster, rows.len(), simulated),
        Format::Json => format!("{}\n", found.json(&cluster, rows.len(), simulated)),
    };
    console::print(&text);
    Ok(())
}

/// All usable readings of a store, in an order of their own.
pub fn readings(store: &Store) -> Result<Vec<Measurement>, Failure> {
    let mut rows = store.measurements(&Query::usable()).or_failure()?;
    rows.sort_by(|a, b| (a.size, &a.allocation).cmp(&(b.size, &b.allocation)));
    Ok(rows)
}

/// A diagnosis with what its defects cost.
pub struct Found {
    /// What was found.
    pub diagnosis: Diagnosis,
    model: Model,
    size: Bytes,
    /// By defect: the best candidate's cost over [`Found::typical`] allocations.
    costs: Vec<Cost>,
}

/// Examines readings.
pub fn examine(cluster: &Cluster, rows: &[Measurement], collective: Option<Collective>) -> Result<Found, Failure> {
    let (diagnosis, model) =
        doctor::examine(cluster, rows, collective, fabric::Constants::default()).map_err(Failure::impossible)?;
    let size = model.sizes().last().copied().unwrap_or(Bytes::mib(16));
    let typical = typical(cluster, &diagnosis, rows);
    let costs = diagnosis.defects.iter().map(|d| doctor::cost(&model, &d.candidates[0], size, &typical)).collect();
    Ok(Found { diagnosis, model, size, costs })
}

/// What jobs ask for: the measured allocations, and for every defective host its halves and its whole beside those of other hosts.
fn typical(cluster: &Cluster, diagnosis: &Diagnosis, rows: &[Measurement]) -> Vec<Allocation> {
    let mut all: BTreeSet<Allocation> = rows.iter().map(|m| m.allocation.clone()).collect();
    for d in &diagnosis.defects {
        let h = d.candidates[0].component.host();
        let n = cluster.type_of(h).gpu_count();
        let others = cluster.host_ids().filter(|o| *o != h && cluster.host(*o).host_type == cluster.host(h).host_type);
        for o in others.take(HOSTS_SHOWN) {
            let whole = GpuMask::first(n);
            let (low, high) = (GpuMask::first(n / 2), whole.minus(GpuMask::first(n / 2)));
            all.extend([low, high, whole].into_iter().map(|m| Allocation::new([(h, m), (o, m)])));
        }
    }
    all.into_iter().collect()
}

impl Found {
    /// For people.
    pub fn text(&self, cluster: &Cluster, rows: usize, simulated: usize) -> String {
        let d = &self.diagnosis;
        let mut out = format!(
            "{} readings of cluster {} judged as {} distinct ones ({} without their like); ordinary ones deviate by {:.1} %\n",
            rows,
            cluster.name,
            d.readings,
            d.left_out,
            100.0 * d.noise
        );
        if simulated > 0 {
            out += &format!("{simulated} of them are SIMULATED, not measured\n");
        }
        out += &self.defects_in_words(cluster);
        let mut hosts = table(&["host", "readings", "of its class", "deviations", ""], 1..4);
        for h in d.hosts.iter().take(HOSTS_SHOWN) {
            hosts.add_row([
                cluster.host(h.host).name.clone(),
                h.readings.to_string(),
                format!("{:.1} %", 100.0 * h.ratio),
                format!("{:+.1}", h.z),
                if h.z < -UNUSUAL_SDS {
                    "slow"
                } else if h.z > UNUSUAL_SDS {
                    "fast"
                } else {
                    ""
                }
                .to_owned(),
            ]);
        }
        if !d.hosts.is_empty() {
            out += &text_of(&hosts);
        }
        for s in d.outliers.iter().take(STRAY_SHOWN) {
            let gpus = cluster.gpu_list(&s.allocation);
            let (got, size, expected) = (s.busbw_gb_per_s, s.size, s.expected_gb_per_s);
            out += &wrap(
                &format!("far off for no reason found: {gpus} got {got:.1} GB/s at {size}, {expected:.1} expected"),
                2,
            );
        }
        if d.outliers.len() > STRAY_SHOWN {
            out += &format!("and {} more\n", d.outliers.len() - STRAY_SHOWN);
        }
        out
    }

    /// The defects alone, a few lines each.
    pub fn defects_in_words(&self, cluster: &Cluster) -> String {
        if self.diagnosis.defects.is_empty() {
            return "No defect is probable.\n".into();
        }
        self.diagnosis.defects.iter().zip(&self.costs).map(|(d, cost)| self.defect(cluster, d, cost)).collect()
    }

    fn defect(&self, cluster: &Cluster, defect: &Defect, cost: &Cost) -> String {
        let best = &defect.candidates[0];
        let since = |c: &Candidate| c.since.map_or(String::new(), |t| format!(", since {t:.0} s after 1970"));
        let mut out = String::new();
        if best.probability >= 0.5 {
            out += &format!(
                "DEFECT: {} has about {:.0} % of its rate (probability {:.1} %{}); {} readings show it\n",
                best.component.name(cluster),
                100.0 * best.factor,
                100.0 * best.probability,
                since(best),
                best.readings
            );
            out += &format!(
                "  costs the jobs that touch it {:.1} of {:.1} GB/s ({:.0} %), by the physics over {} allocations at {}\n",
                cost.healthy_gb_per_s - cost.defective_gb_per_s,
                cost.healthy_gb_per_s,
                100.0 * (1.0 - cost.defective_gb_per_s / cost.healthy_gb_per_s.max(1e-9)),
                cost.touched,
                self.size
            );
        } else {
            out += &format!(
                "SUSPICION: something is slow (probability {:.0} %); it may be any of {} components\n",
                100.0 * defect.probability,
                defect.candidates.len()
            );
        }
        let others = defect.candidates.iter().skip(usize::from(best.probability >= 0.5)).take(CANDIDATES_SHOWN);
        let others: Vec<String> =
            others.map(|c| format!("{} ({:.1} %)", c.component.name(cluster), 100.0 * c.probability)).collect();
        if !others.is_empty() {
            out +=
                &format!("  it may {}be {}\n", if best.probability >= 0.5 { "also " } else { "" }, others.join(", "));
        }
        if best.probability < 0.9
            && let Some(a) = doctor::most_informative_allocation(&self.model, defect, &cluster.usable(), self.size, &[])
        {
            let gpus = cluster.gpu_list(&a);
            out += &wrap(&format!("  most informative next measurement: '{gpus}'"), 4);
        }
        out
    }

    /// For programs.
    pub fn json(&self, cluster: &Cluster, rows: usize, simulated: usize) -> Value {
        let d = &self.diagnosis;
        let candidate = |c: &Candidate| {
            json!({
                "component": c.component.name(cluster), "kind": c.component.kind(),
                "host": cluster.host(c.component.host()).name, "factor": c.factor, "since_unix_s": c.since,
                "probability": c.probability, "readings": c.readings, "ln_likelihood_ratio": c.ln_likelihood_ratio,
            })
        };
        let defects: Vec<Value> = d
            .defects
            .iter()
            .zip(&self.costs)
            .map(|(x, cost)| {
                let telling = doctor::most_informative_allocation(&self.model, x, &cluster.usable(), self.size, &[]);
                json!({
                    "probability": x.probability,
                    "named": x.candidates[0].probability >= 0.5,
                    "candidates": x.candidates.iter().map(candidate).collect::<Vec<_>>(),
                    "cost": {"allocations": cost.touched, "healthy_gb_per_s": cost.healthy_gb_per_s,
                             "defective_gb_per_s": cost.defective_gb_per_s, "size_bytes": self.size},
                    "worth_measuring": telling.map(|a| cluster.gpu_names(&a)),
                })
            })
            .collect();
        let hosts: Vec<Value> = d
            .hosts
            .iter()
            .map(|h| json!({"host": cluster.host(h.host).name, "readings": h.readings, "ratio": h.ratio, "deviations": h.z}))
            .collect();
        let stray: Vec<Value> = d
            .outliers
            .iter()
            .map(|s| {
                json!({"gpus": cluster.gpu_names(&s.allocation), "size_bytes": s.size,
                       "busbw_gb_per_s": s.busbw_gb_per_s, "expected_gb_per_s": s.expected_gb_per_s})
            })
            .collect();
        json!({
            "cluster": cluster.name, "readings": rows, "simulated_readings": simulated, "judged": d.readings,
            "left_out": d.left_out, "noise": d.noise, "defects": defects, "hosts": hosts, "stray": stray,
        })
    }
}
