//! `linkwise measure`: takes bandwidth measurements into a store, or imports published ones.

mod args;
mod idle;
mod progress;
mod show;
mod tables;

pub use args::Args;

use crate::cmd::open;
use crate::interrupt;
use crate::store_errors::{OrFailure, of_store};
use args::BackendKind;
use console::Failure;
use console::Format;
use console::{load_cluster, wrap};
use fabric::Fabric;
use measure::command::{CommandBackend, CommandOptions};
use measure::idle::Guarded;
use measure::nccl_tests::{LaunchOptions, Launcher, NcclTests, command_line};
use measure::simulated::{Irregularity, on_fabric};
use measure::{Backend, Campaign, CampaignError, CampaignHooks, CampaignPlan, Scale};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use store::{Query, Source, Store};
use topology::{Allocation, Bytes, Cluster, Collective, count};

/// Maximum number of sizes of one campaign.
const SIZES_MAX: usize = 32;
/// Share of the budget that `--clip` plans for: the rest is for repetitions of outliers.
const CLIP_TO: f64 = 0.9;
/// Maximum time limit of one point, seconds.
const TIMEOUT_S_MAX: f64 = 86_400.0;

pub fn run(args: Args) -> Result<(), Failure> {
    let cluster = load_cluster(&args.cluster)?;
    if args.backend.is_none() && args.import.is_empty() && args.export.is_none() {
        return Err(Failure::input(
            "nothing to do: give --backend, --import or --export (see `linkwise measure --help`)",
        ));
    }
    let plan = plan(&args, &cluster)?;
    if args.dry_run {
        return dry_run(&args, &cluster, &plan);
    }
    let asks = idle::asks(&args)?;
    let path =
        args.store.as_deref().ok_or_else(|| Failure::input("--store FILE is missing: where measurements are kept"))?;
    // All input is read and checked before the store is changed.
    let imports = tables::read_all(&args, &cluster)?;
    let plan = if args.backend.is_some() { idle::keep_idle(&args, &cluster, plan, &asks)? } else { plan };
    let mut store = open::store_or_new(path, &cluster)?;
    let mut answer = show::Answer {
        store: store::db::shown(path).display().to_string(),
        cluster: cluster.name.clone(),
        ..Default::default()
    };
    for import in imports {
        answer.imports.push(tables::store_one(import, &mut store)?);
    }
    if let Some(kind) = args.backend {
        warn_of_mixture(&store, kind)?;
        answer.campaign = Some(with_backend(&args, &cluster, &plan, kind, &asks, &mut store)?);
    }
    if let Some(file) = &args.export {
        answer.exported = Some(tables::export(file, &store)?);
    }
    answer.measurements = store.count(&Query::all()).or_failure()?;
    answer.simulated = simulated(&store)?;
    let text = match args.format {
        Format::Json => show::json(&answer),
        Format::Text => show::text(&answer),
    };
    // With `--export -`, standard output holds only the exported CSV.
    if args.export.as_deref() == Some(Path::new("-")) {
        eprint!("{text}");
    } else {
        console::print(&text);
    }
    Ok(())
}

fn plan(args: &Args, cluster: &Cluster) -> Result<CampaignPlan, Failure> {
    let collective: Collective = args.collective.parse().map_err(|e| Failure::input(format!("--collective: {e}")))?;
    let mut sizes: Vec<Bytes> = Vec::new();
    for text in args.sizes.split(',') {
        let size = Bytes::parse(text).map_err(|e| Failure::input(format!("--sizes: {e}")))?;
        if size.0 == 0 || size.0 > store::measurement::SIZE_BYTES_MAX {
            return Err(Failure::input(format!("--sizes: `{text}` is not between 1 byte and 1024 TiB")));
        }
        if sizes.contains(&size) {
            return Err(Failure::input(format!("--sizes: `{text}` is given twice")));
        }
        sizes.push(size);
    }
    if sizes.len() > SIZES_MAX {
        return Err(Failure::input(format!("--sizes: {} sizes; at most {SIZES_MAX}", sizes.len())));
    }
    let mut idle = idle::named(args, cluster)?;
    if idle::is_here(args) {
        idle = on_this_machine(args, cluster, &idle)?;
    }
    idle::check_count(&idle)?;
    if args.max_hosts.is_some_and(|n| n < 1) {
        return Err(Failure::input("--max-hosts: 1 or more was expected"));
    }
    if args.samples > measure::design::SAMPLE_SIZE_MAX {
        return Err(Failure::input(format!("--samples: at most {}", measure::design::SAMPLE_SIZE_MAX)));
    }
    if args.budget_gpu_minutes.is_some_and(|b| !(b > 0.0 && b.is_finite())) {
        return Err(Failure::input("--budget-gpu-minutes: a number above 0 was expected"));
    }
    for (flag, value) in [("--irregularity", args.irregularity), ("--noise", args.noise), ("--outliers", args.outliers)]
    {
        if !(0.0..=100.0).contains(&value) {
            return Err(Failure::input(format!("{flag}: {value} is not between 0 and 100 percent")));
        }
    }
    if !(args.timeout_s > 0.0 && args.timeout_s <= TIMEOUT_S_MAX) {
        let message = format!("--timeout-s: {} is not between 0 and {TIMEOUT_S_MAX} seconds", args.timeout_s);
        return Err(Failure::input(message));
    }
    let command = args.command.as_deref().unwrap_or("").trim();
    if args.backend == Some(BackendKind::Command) && command.is_empty() {
        return Err(Failure::input("--backend command needs --command 'CMD ...'"));
    }
    let scale = Scale::of_site(cluster, &idle, args.max_hosts);
    Ok(CampaignPlan {
        idle,
        scale,
        collective,
        sizes,
        intra: !args.no_intra,
        sample_size: args.samples,
        design: args.design.kind(),
        seed: args.seed,
        budget_gpu_minutes: args.budget_gpu_minutes,
    })
}

/// The idle GPUs of this host, the only host that the local launcher reaches.
fn on_this_machine(args: &Args, cluster: &Cluster, idle: &Allocation) -> Result<Allocation, Failure> {
    let index = cluster.host_index();
    let host = match (&args.local_host, idle.parts()) {
        (Some(name), _) => *index
            .get(name.as_str())
            .ok_or_else(|| Failure::input(format!("--local-host: cluster `{}` has no host `{name}`", cluster.name)))?,
        (None, [(only, _)]) => *only,
        (None, _) => {
            let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            *index.get(name.trim()).ok_or_else(|| {
                Failure::input(format!(
                    "the local launcher measures this machine, but `{}` is no host of cluster `{}`; give --local-host, or --launcher mpirun or srun",
                    name.trim(),
                    cluster.name
                ))
            })?
        }
    };
    Ok(Allocation::new([(host, idle.mask(host))]))
}

fn launch_options(args: &Args) -> LaunchOptions {
    LaunchOptions {
        launcher: match args.launcher {
            args::LauncherKind::Local => Launcher::Local,
            args::LauncherKind::Mpirun => Launcher::Mpirun,
            args::LauncherKind::Srun => Launcher::Srun,
        },
        folder: args.nccl_tests.clone(),
        iterations: args.iterations,
        warmup: args.warmup,
        launcher_args: args.launcher_args.split_whitespace().map(str::to_owned).collect(),
    }
}

/// `--dry-run`: prints the exact commands of the plan, one per line. Runs nothing and leaves the store unchanged.
fn dry_run(args: &Args, cluster: &Cluster, plan: &CampaignPlan) -> Result<(), Failure> {
    if args.backend != Some(BackendKind::NcclTests) {
        return Err(Failure::input("--dry-run prints the commands of --backend nccl-tests; name that backend"));
    }
    let options = launch_options(args);
    let mut out = String::new();
    for p in measure::first_points(plan, cluster) {
        let line = command_line(cluster, &p, &options, Path::new("HOSTFILE")).map_err(Failure::input)?;
        if let Some(file) = &line.hostfile {
            out.push_str(&format!("# HOSTFILE: {}\n", file.trim_end().replace('\n', " ")));
        }
        out.push_str(&format!("{line}\n"));
    }
    console::print(&out);
    Ok(())
}

/// Writes a sentence to standard error, wrapped at 80 columns.
fn note(text: &str) {
    console::say(&wrap(text, 2).trim_end());
}

/// Number of simulated readings.
fn simulated(store: &Store) -> Result<usize, Failure> {
    store.count(&Query { source: Some(Source::Simulated), ..Query::all() }).or_failure()
}

/// Prints the cost of a plan, one line per stage.
fn say_plan(estimate: &measure::campaign::CampaignEstimate, in_words: &str) {
    for s in estimate.stages.iter().filter(|s| s.points > s.already) {
        let (points, minutes) = (count(s.points - s.already, "point"), s.gpu_minutes);
        note(&format!("plan: {}: {points}, {minutes:.1} {in_words}GPU-minutes", s.name));
    }
}

/// Warns of a store that mixes simulated and real readings: usually a mistake.
fn warn_of_mixture(store: &Store, kind: BackendKind) -> Result<(), Failure> {
    let simulated = simulated(store)?;
    let real = store.count(&Query::all()).or_failure()? - simulated;
    if (kind == BackendKind::Simulated && real > 0) || (kind != BackendKind::Simulated && simulated > 0) {
        note(
            "warning: this store will hold simulated and real measurements together; a fit uses both. Another --store keeps them apart",
        );
    }
    Ok(())
}

fn with_backend(
    args: &Args,
    cluster: &Cluster,
    plan: &CampaignPlan,
    kind: BackendKind,
    asks: &idle::Asks,
    store: &mut Store,
) -> Result<show::CampaignAnswer, Failure> {
    let guarded = |backend: &mut dyn Backend, store: &mut Store| match idle::guard(args, cluster, asks) {
        Some(hosts) => {
            let whole_hosts = args.idle.is_none();
            campaign(args, cluster, plan, &mut Guarded::new(backend, hosts, whole_hosts), store)
        }
        None => campaign(args, cluster, plan, backend, store),
    };
    match kind {
        BackendKind::Simulated => {
            let options = Irregularity {
                seed: args.seed,
                irregularity: args.irregularity / 100.0,
                noise: args.noise / 100.0,
                outlier_rate: args.outliers / 100.0,
            };
            campaign(args, cluster, plan, &mut on_fabric(cluster, options), store)
        }
        BackendKind::NcclTests => {
            let timeout = Duration::from_secs_f64(args.timeout_s);
            guarded(&mut NcclTests::new(cluster, launch_options(args), timeout), store)
        }
        BackendKind::Command => {
            let command = args.command.clone().unwrap_or_default();
            let options = CommandOptions {
                timeout: Duration::from_secs_f64(args.timeout_s),
                attempts: args.attempts.clamp(1, 100),
                ..CommandOptions::new(command)
            };
            guarded(&mut CommandBackend::new(cluster, options), store)
        }
    }
}

/// The message about a plan above the budget. It advises only flags that are not given yet.
fn over_budget(
    args: &Args,
    estimate: &measure::campaign::CampaignEstimate,
    budget_gpu_minutes: f64,
    in_words: &str,
) -> String {
    let has_sample = plan_has_sample(estimate);
    let mut advice = vec!["raise --budget-gpu-minutes"];
    if has_sample && !args.clip {
        advice.extend(["lower --samples", "use --clip"]);
    }
    if !args.no_intra {
        advice.push("use --no-intra");
    }
    let advice = match advice.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => advice.concat(),
    };
    format!(
        "{} would take about {} {in_words}GPU-minutes, the budget is {}; {advice}",
        count(estimate.points() - estimate.already(), "point"),
        minutes(estimate.gpu_minutes()),
        minutes(budget_gpu_minutes)
    )
}

/// True if the plan has multi-host samples that are not in the store.
fn plan_has_sample(estimate: &measure::campaign::CampaignEstimate) -> bool {
    estimate.stages.last().is_some_and(|s| s.points > s.already)
}

/// GPU-minutes: whole ones from 10, else two significant digits.
fn minutes(gpu_minutes: f64) -> String {
    match gpu_minutes {
        m if m >= 10.0 => format!("{m:.0}"),
        m if m > 0.0 => {
            let decimals = (1.0 - m.log10().floor()).clamp(0.0, 12.0) as usize;
            let text = format!("{m:.decimals$}");
            if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
        }
        _ => "0".into(),
    }
}

fn campaign(
    args: &Args,
    cluster: &Cluster,
    plan: &CampaignPlan,
    backend: &mut dyn Backend,
    store: &mut Store,
) -> Result<show::CampaignAnswer, Failure> {
    let fabric = Fabric::new(cluster);
    let expected = |a: &Allocation, c: Collective, s: Bytes| fabric.estimate(a, c, s).busbw.gb_per_s();
    let now = console::now_unix_s;
    let mut plan = plan.clone();
    let source = backend.source();
    let in_words = if source == Source::Simulated { "simulated " } else { "" };
    let estimate = {
        let mut on_event = |_| {};
        let estimate = |plan: &CampaignPlan,
                        store: &mut Store,
                        backend: &mut dyn Backend,
                        on_event: &mut dyn FnMut(measure::CampaignEvent)| {
            Campaign::new(plan, store, backend, CampaignHooks { expected: &expected, now_unix_s: &now, on_event })
                .map(|c| c.estimate())
        };
        let mut o = estimate(&plan, store, backend, &mut on_event).or_failure()?;
        let budget = plan.budget_gpu_minutes.unwrap_or(f64::INFINITY);
        if o.gpu_minutes() > budget && args.clip {
            // Bisection for the largest number of samples within the budget: the estimate grows with the number.
            let clipped_to = CLIP_TO * budget;
            let (mut fits, mut too_many) = (0, plan.sample_size);
            while too_many - fits > 1 {
                plan.sample_size = (fits + too_many) / 2;
                if estimate(&plan, store, backend, &mut on_event).or_failure()?.gpu_minutes() > clipped_to {
                    too_many = plan.sample_size
                } else {
                    fits = plan.sample_size
                }
            }
            plan.sample_size = fits;
            o = estimate(&plan, store, backend, &mut on_event).or_failure()?;
            note(&format!(
                "clipped to {} multi-host samples per size to keep within the budget, a tenth of which is for repetitions",
                plan.sample_size
            ));
        }
        if o.gpu_minutes() > budget {
            say_plan(&o, in_words);
            return Err(Failure::impossible(over_budget(args, &o, budget, in_words)));
        }
        o
    };
    if estimate.points() == 0 {
        return Err(Failure::impossible(
            "nothing to measure: the plan has no point (one idle host has no multi-host sample, --no-intra skips the tables of single hosts)",
        ));
    }
    if estimate.points() == estimate.already() {
        note(&format!("all points of this campaign are in the store already: {}", estimate.points()));
    } else {
        say_plan(&estimate, in_words);
        note(&format!(
            "{}, {} of them stored already; the rest takes about {:.1} {in_words}GPU-minutes, {} (repetitions not counted)",
            count(estimate.points(), "point"),
            estimate.already(),
            estimate.gpu_minutes(),
            console::duration(estimate.seconds()),
        ));
    }
    let start = Instant::now();
    let taken = Arc::new(AtomicUsize::new(0));
    let (so_far, file) = (Arc::clone(&taken), args.store.as_deref().map(store::db::shown).unwrap_or_default());
    interrupt::say_what_is_kept(move || {
        format!(
            "stopped: {} of this run stored in {}; the same command goes on from there",
            count(so_far.load(Ordering::Relaxed), "point"),
            file.display()
        )
    })?;
    let mut progress = progress::CampaignProgress::new(in_words);
    let summary = {
        let mut on_event = |event: measure::CampaignEvent| {
            if let measure::CampaignEvent::Taken(n) = &event {
                taken.fetch_add(*n, Ordering::Relaxed);
            }
            progress.on_event(event);
        };
        let mut model = engine::UncertaintySampler::new(cluster, &[], fabric::Constants::default());
        Campaign::new(
            &plan,
            store,
            backend,
            CampaignHooks { expected: &expected, now_unix_s: &now, on_event: &mut on_event },
        )
        .or_failure()?
        .with_model(&mut model)
        .run()
    };
    drop(progress);
    let summary = summary.map_err(|e| match e {
        CampaignError::Store(e) => of_store(e),
        e => Failure::impossible(e),
    })?;
    Ok(show::CampaignAnswer {
        source,
        points_planned: estimate.points(),
        planned: estimate.stages,
        finished: !summary.stopped_by_budget && summary.failed() == 0,
        nothing_to_do: summary.readings_taken() == 0 && summary.failed() == 0,
        wall_seconds: start.elapsed().as_secs_f64(),
        gpu_minutes: summary.gpu_minutes(),
        readings_taken: summary.readings_taken(),
        summary,
    })
}
