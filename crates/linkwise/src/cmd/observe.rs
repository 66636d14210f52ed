//! `linkwise observe`: records the bandwidth that a job got, and updates the model and the suspected components.

mod plugin;
mod reading;

use crate::brief::{self, gb, gb_with_std};
use crate::cmd::open::{self, LockedModelFile};
use crate::store_errors::OrFailure;
use console::{Failure, Format, now_unix_s, wrap};
use engine::{
    Engine, EngineError, NotLearned, ObserveAnswer, ObserveRequest, ObservedJob, ReadingAnswer, ReadingIn,
    ReadingsRequest,
};
use serde_json::json;
use std::path::PathBuf;
use topology::names::hostlist;
use topology::{Allocation, Bytes, Cluster, Collective, HostId, count, names};

/// Arguments of `linkwise observe`.
#[derive(clap::Args)]
#[command(
    override_usage = "linkwise observe --store <STORE> --job <JOB> --busbw <GB_PER_S> [OPTIONS]\n       \
        linkwise observe --store <STORE> --job <JOB> --nccl-tests <FILE> ...\n       \
        linkwise observe --store <STORE> --job <JOB> --trace <FILE> ...\n       \
        linkwise observe --store <STORE> --job <JOB> --inspector <FOLDER> ...",
    after_help = "Examples:\n  linkwise observe --store S.db --state site.state --job train-7 --busbw 41.3 --model model.json\n  \
    linkwise observe --store S.db --cluster h100 --gpus 'n0 n1' --job train-7 --nccl-tests out.txt\n  \
    linkwise observe --store S.db --state site.state --job train-7 --trace trace.jsonl --model model.json\n  \
    linkwise observe --store S.db --cluster site.yaml --job train-7 --trace traces/\n  \
    linkwise observe --store S.db --state site.state --job train-7 --inspector nccl-inspector-4711/\n\n\
    A trace is JSON lines, {\"collective\":\"all_reduce\",\"size_bytes\":16777216,\"time_us\":790.5} (or busbw_gb_per_s; at_unix_s if\n\
    known), a PyTorch profiler trace of one rank, not compressed, the JSON of PyTorch's flight recorder (a file per rank, with times only\n\
    under TORCH_NCCL_ENABLE_TIMING=1; its pickles are not read), or what `linkwise run --kernel-times --trace FOLDER` kept: then the\n\
    folder; the job's GPUs follow from it where its host names are those of the cluster.\n\n\
    NCCL Inspector's dumps (NCCL_INSPECTOR_ENABLE=1: JSON, or metrics with NCCL_INSPECTOR_PROM_DUMP=1) name no GPUs: --gpus or --state\n\
    does. Give the files of all ranks: a collective counts by the rank that arrives last. Metrics are means, so their readings are rougher.\n\n\
    A reading over several hosts updates the model file at once (replaced in one step); a reading of one host counts at the next\n\
    `linkwise fit`. A job that shares a NIC with another one is recorded as contended: such a reading teaches the model nothing. With\n\
    --state and --model, what readings speak against is kept in the state, and `place --state` prefers other components."
)]
pub struct Args {
    /// Store for the reading; made if there is none
    #[arg(long)]
    store: PathBuf,
    /// The job
    #[arg(long)]
    job: String,
    #[command(flatten)]
    got: Got,
    /// Message size of --busbw [default: the one that the job was placed for, else 16 MiB]
    #[arg(long, value_parser = Bytes::parse, requires = "busbw")]
    size: Option<Bytes>,
    /// Collective of --busbw, or of an nccl-tests output that does not tell
    #[arg(long, value_parser = clap::value_parser!(Collective), default_value = "all_reduce")]
    collective: Collective,
    /// State file: the job's GPUs, its neighbours and the cluster come from there
    #[arg(long, required_unless_present = "cluster")]
    state: Option<PathBuf>,
    /// The job's GPUs, such as 'n[0-3]:[0-7]', where neither a state nor a trace of the NCCL plugin names them
    #[arg(long)]
    gpus: Option<String>,
    /// The job's hosts, as Slurm writes them (SLURM_JOB_NODELIST): a trace that names other hosts is refused
    #[arg(long, value_name = "HOSTS", requires = "trace")]
    within: Option<String>,
    /// Built-in cluster or cluster file
    #[arg(long)]
    cluster: Option<String>,
    /// Model file that learns from it (default: the model that a server keeps in the state)
    #[arg(long)]
    model: Option<PathBuf>,
    /// The readings are of a simulation
    #[arg(long)]
    simulated: bool,
    /// Record a bandwidth as well that is far above what the links allow
    #[arg(long)]
    force: bool,
    /// Idempotency key: what was recorded under it before is not recorded again, and answered as it was then
    #[arg(long)]
    key: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// What the job got, in one of four forms.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Got {
    /// Bus bandwidth, GB/s
    #[arg(long, value_name = "GB_PER_S", value_parser = console::number::real)]
    busbw: Option<f64>,
    /// Output of nccl-tests, text or JSON, run on the job's GPUs
    #[arg(long, value_name = "FILE")]
    nccl_tests: Option<PathBuf>,
    /// The job's own trace, dumps of PyTorch's flight recorder, or traces of the NCCL plugin: a file, or the folder of all of them
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Dumps or metrics of NCCL Inspector: a file, or the folder of all ranks
    #[arg(long, value_name = "FOLDER")]
    inspector: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<(), Failure> {
    store::state::check_job_id(&args.job).map_err(|e| Failure::input(format!("--job: {e}")))?;
    let mut builder = open::with_state(args.cluster.as_deref(), args.state.as_deref())?;
    if args.key.is_some() && args.store.is_file() {
        let store = open::store(&args.store, builder.cluster())?; // keys of earlier requests are in it
        builder = builder.store(store);
    }
    let engine = builder.build().or_failure()?;
    // A request that cannot be read does not create a store.
    let (request, left_out) = request(&args, &engine)?;
    let mut builder = engine.into_builder();
    let keeper = args.model.as_deref().map(LockedModelFile::open).transpose()?;
    let cluster = builder.cluster().clone();
    builder = builder.store(open::store_or_new(&args.store, &cluster)?);
    let engine = match keeper {
        Some((file, model)) => {
            open::build(builder.model_file(model).keeper(file), args.model.as_deref().unwrap_or(&args.store))?
        }
        // Without a file the model in the state learns, which servers of the state use.
        None => builder.models_in_state().build().or_failure()?,
    };
    let answer = engine.observe(&request, now_unix_s()).or_failure()?;
    let text = match args.format {
        Format::Text => text(&args, &cluster, &answer, left_out),
        Format::Json => format!("{}\n", json_of(&args, &answer, left_out)?),
    };
    console::print(&text);
    Ok(())
}

/// The request to the engine, and the number of operations left out.
fn request(args: &Args, engine: &Engine) -> Result<(ObserveRequest, usize), Failure> {
    let cluster = engine.cluster();
    let traces = match &args.got.trace {
        Some(path) if plugin::is_one(path) => Some(plugin::Traces::read(path)?),
        _ => None,
    };
    let named = args.gpus.as_ref().map(|list| cluster.parse_gpus([list.as_str()]));
    let named = named.transpose().map_err(|e| Failure::input(format!("--gpus: {e}")))?;
    if named.as_ref().is_some_and(|a| a.is_empty()) {
        return Err(Failure::input("--gpus: the list names no GPU; such as 'n[0-3]:[0-7]' was expected"));
    }
    let named = match (named, &traces) {
        // The traces of the plugin name the GPUs of the processes.
        (None, Some(t)) if !engine.has_state() => Some(t.gpus(cluster)?),
        (named, _) => named,
    };
    if let (Some(hosts), Some(gpus)) = (&args.within, &named) {
        check_within(cluster, hosts, gpus)?;
    }
    // A repeated request with a key gets its answer even if the job has ended since: --busbw does not look up the job.
    let job = || {
        let held = engine.observed_job(&args.job, named.as_ref());
        held.or_else(|e| recorded(args, engine, e)).or_failure()
    };
    let (readings, left_out) = match (&args.got.busbw, &args.got.nccl_tests, &args.got.trace) {
        _ if args.got.inspector.is_some() => {
            let path = args.got.inspector.clone().unwrap_or_default();
            reading::of_inspector(job()?.gpus.gpu_count(), &path)?
        }
        (Some(v), ..) => {
            let provenance = "linkwise observe --busbw".into();
            (vec![ReadingIn { provenance, ..ReadingIn::new(args.collective, args.size, *v) }], 0)
        }
        (_, Some(file), _) => (reading::of_nccl_tests(cluster, &job()?, args.collective, file)?, 0),
        (.., Some(file)) => match traces {
            Some(t) => t.readings(job()?.gpus.gpu_count(), args.simulated)?,
            None => reading::of_trace(job()?.gpus.gpu_count(), file)?,
        },
        _ => return Err(Failure::input("one of --busbw, --nccl-tests, --trace and --inspector is needed")),
    };
    let request = ObserveRequest {
        job: args.job.clone(),
        gpus: named.map(|a| cluster.gpu_names(&a)),
        readings,
        simulated: args.simulated,
        only_store: false,
        force: args.force,
        key: args.key.clone(),
    };
    Ok((request, left_out))
}

/// Refuses GPUs on other hosts than those of the job: its user wrote the trace.
fn check_within(cluster: &Cluster, hosts: &str, gpus: &Allocation) -> Result<(), Failure> {
    let names =
        hostlist::expand(hosts, cluster.hosts.len().max(1)).map_err(|e| Failure::input(format!("--within: {e}")))?;
    let own: Vec<HostId> = names.iter().filter_map(|n| names::slurm::host(cluster, n)).collect();
    match gpus.parts().iter().find(|p| !own.contains(&p.0)) {
        None => Ok(()),
        Some((foreign, _)) => {
            let foreign = &cluster.host(*foreign).name;
            Err(Failure::input(format!(
                "--trace: it names the host {foreign}, which is not among the job's hosts ({hosts})"
            )))
        }
    }
}

/// The GPUs of a job that was released after its readings were recorded. A repeated request with a key is then read
/// like the first one. Without a key or such readings, the error `e`.
fn recorded(args: &Args, engine: &Engine, e: EngineError) -> Result<ObservedJob, EngineError> {
    if args.key.is_none() || !matches!(e, EngineError::NotHeld { .. }) {
        return Err(e);
    }
    let last = ReadingsRequest { job: Some(args.job.clone()), withdrawn: true, limit: Some(1), ..Default::default() };
    match engine.readings(&last).ok().and_then(|a| a.readings.into_iter().next()) {
        Some(r) => engine.observed_job(&args.job, Some(&r.gpus.allocation(engine.cluster()))),
        None => Err(e),
    }
}

fn text(args: &Args, cluster: &Cluster, a: &ObserveAnswer, left_out: usize) -> String {
    let mut out = String::new();
    for r in &a.readings {
        let expected = match (r.taught.expected_gb_per_s, r.taught.std_gb_per_s) {
            (Some(v), Some(std)) => format!("; {} was expected", gb_with_std(v, std)),
            _ => String::new(),
        };
        let line = format!(
            "job {} got {} GB/s in {} of {} on {}{expected}",
            args.job,
            gb(r.busbw_gb_per_s),
            r.collective,
            r.size_bytes,
            brief::gpus(cluster, &r.gpus.allocation(cluster))
        );
        out += &wrap(&line, 2);
        if let Some(most) = r.links_allow_gb_per_s {
            out += &wrap(&format!("note: {}", brief::above_links(most)), 2);
        }
        if let Some(expected) = r.physics_gb_per_s {
            out += &wrap(&format!("note: {}", brief::below_physics(expected)), 2);
        }
        if let (Some(before), Some(now)) = (r.taught.expected_gb_per_s, r.predicts_now_gb_per_s) {
            let (before, now) = (gb(before), gb(now));
            let moved = match before == now {
                true => format!("the model still predicts {now} GB/s for these GPUs"),
                false => format!("the model now predicts {now} GB/s for these GPUs, {before} GB/s before"),
            };
            let remedy =
                "`linkwise fit` weighs it with all readings, `linkwise readings withdraw` takes a wrong one out";
            out += &wrap(&format!("the reading is stored; {moved}; {remedy}"), 2);
        }
    }
    if left_out > 0 {
        let why = "other group sizes, or no collective with a size";
        out += &wrap(&format!("left out: {} of the trace: {why}", count(left_out, "operation")), 2);
    }
    if let Some(c) = a.readings.first().and_then(|r| r.contention.as_deref()) {
        out += &wrap(&format!("contended ({c}): recorded as such, the model learns nothing from it"), 2);
    }
    let before = if a.repeated { ", recorded before under the same key" } else { "" };
    out += &wrap(&format!("{} in {}{before}", readings(a.readings.len()), store::db::shown(&args.store).display()), 2);
    let has_model = a.suspected.is_some() || a.readings.iter().any(|r| r.taught.learned || r.taught.why_not.is_some());
    match &args.model {
        Some(file) => out += &learned(a, &file.display().to_string()),
        None if has_model => out += &learned(a, "the model in the state"),
        None => {}
    }
    if let Some(suspected) = &a.suspected {
        for s in suspected.iter().take(4) {
            out += &wrap(&format!("suspected: {s}"), 2);
        }
        if suspected.len() > 4 {
            let more = suspected.len() - 4;
            out += &wrap(&format!("and {more} more; `linkwise doctor` names the most informative next measurement"), 2);
        }
    }
    out
}

/// What the model learned from the readings, and why it left out others.
fn learned(a: &ObserveAnswer, file: &str) -> String {
    let mut out = match a.learned {
        0 => String::new(),
        n => wrap(&format!("{file} has learned {}", readings(n)), 2),
    };
    let mut reasons: Vec<(NotLearned, usize)> = Vec::new();
    for why in a.readings.iter().filter_map(|r: &ReadingAnswer| r.taught.why_not) {
        match reasons.iter_mut().find(|r| r.0 == why) {
            Some(r) => r.1 += 1,
            None => reasons.push((why, 1)),
        }
    }
    for (why, n) in reasons {
        let what = match (n, a.readings.len()) {
            (n, all) if n == all => format!("{file} has learned nothing: {}", why.text()),
            (n, _) => format!("{file} has not learned {}: {}", readings(n), why.text()),
        };
        out += &wrap(&what, 2);
    }
    out
}

fn readings(n: usize) -> String {
    count(n, "reading")
}

fn json_of(args: &Args, a: &ObserveAnswer, left_out: usize) -> Result<serde_json::Value, Failure> {
    let mut v = serde_json::to_value(a).map_err(Failure::input)?;
    v["store"] = json!(store::db::shown(&args.store));
    v["left_out"] = json!(left_out);
    Ok(v)
}
