//! `linkwise fit`: fits a model to measurements and writes the model file.

use crate::cmd::open;
use crate::store_errors::OrFailure;
use clap::builder::{PossibleValue, PossibleValuesParser};
use console::{Failure, Format, load_cluster, print, wrap};
use engine::{FitRequest, ModelKeeper};
use files::{FileLock, write_atomic};
use papers::models;
use predict::Model;
use std::path::PathBuf;
use topology::{Collective, count};

/// Arguments of `linkwise fit`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  linkwise fit --cluster h100 --store S.db --model gp -o model.json\n  \
    linkwise fit --cluster h100 --model nccl -o cold.json\n\n\
    The file holds the cluster, the intra tables and the fitted correction; `linkwise place --model model.json` reads it.")]
pub struct Args {
    /// Built-in cluster or cluster file
    #[arg(long)]
    cluster: String,
    /// Store with measurements; a model of kind nccl needs none
    #[arg(long, required_unless_present_any = ["model"])]
    store: Option<PathBuf>,
    /// Kind of model
    #[arg(long, value_parser = kinds(), default_value = "gp")]
    model: String,
    /// Collective to learn (default: the one that the store holds)
    #[arg(long, value_parser = clap::value_parser!(Collective))]
    collective: Option<Collective>,
    /// Seed of what networks draw at random; the other models draw nothing, so every seed gives the same
    #[arg(long, default_value_t = 0, value_parser = console::number::whole::<u64>)]
    seed: u64,
    /// Where the model goes
    #[arg(short, long)]
    output: PathBuf,
    /// Output format of the summary
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// The kinds of models that `--model` offers.
fn kinds() -> PossibleValuesParser {
    PossibleValuesParser::new(models().all().iter().map(|k| PossibleValue::new(k.name()).help(k.about())))
}

/// The kind of model that needs no measurements.
const NEEDS_NONE: &str = "nccl";

/// Writes the model to the path of `-o`. If the file exists, its lock is held from before the readings are read.
/// Without the lock, a concurrent `observe` would add its reading to the old model only, or overwrite the new model.
struct Output {
    file: PathBuf,
    _lock: Option<FileLock>,
}

impl Output {
    fn at(file: PathBuf) -> Result<Output, Failure> {
        let lock = file.is_file().then(|| FileLock::acquire(&file)).transpose()?;
        Ok(Output { file, _lock: lock })
    }
}

impl ModelKeeper for Output {
    fn keep(&mut self, model: &Model) -> Result<(), String> {
        write_atomic(&self.file, model.save()?).map_err(|e| e.to_string())
    }
}

pub fn run(args: Args) -> Result<(), Failure> {
    let cluster = load_cluster(&args.cluster)?;
    let mut builder = open::new(cluster.clone()).keeper(Output::at(args.output.clone())?);
    match &args.store {
        Some(path) => builder = builder.store(open::store(path, &cluster)?),
        None if args.model == NEEDS_NONE => {}
        None => return Err(Failure::input("--store is missing: only a model of kind nccl needs no measurements")),
    }
    let request = FitRequest { kind: Some(args.model.clone()), collective: args.collective, seed: args.seed };
    let start = std::time::Instant::now();
    let fit = builder.build().or_failure()?.fit(&request).map_err(|e| match e {
        engine::EngineError::ModelNotKept(why) => Failure::input(why),
        e => Err::<(), _>(e).or_failure().unwrap_err(),
    })?;
    let seconds = start.elapsed().as_secs_f64();
    if args.format == Format::Json {
        let mut out = serde_json::to_value(&fit).map_err(Failure::input)?;
        (out["model"], out["fit_s"]) = (serde_json::json!(args.output), serde_json::json!(seconds));
        console::print(&format!("{out}\n"));
        return Ok(());
    }
    let sizes: Vec<String> = fit.sizes_bytes.iter().map(ToString::to_string).collect();
    let head = format!(
        "{}: {} model of {} at {} on cluster {}",
        args.output.display(),
        fit.kind,
        fit.collective,
        sizes.join(", "),
        cluster.name
    );
    print(&wrap(&head, 2));
    let counts = format!(
        "  fitted in {seconds:.2} s; {} of single hosts ({} suspect), {} of several hosts ({} distrusted), {} left out",
        count(fit.intra_readings, "reading"),
        fit.intra_suspects,
        fit.multi_host_readings,
        fit.distrusted,
        fit.left_out
    );
    print(&wrap(&counts, 4));
    if fit.replaced + fit.not_chosen > 0 {
        let (old, many) = (fit.replaced, fit.not_chosen);
        let stand = format!(
            "  replaced by newer readings of the same GPUs: {old}; represented by others of their split: {many}"
        );
        print(&wrap(&stand, 4));
    }
    for s in &fit.slow_parts {
        let what = format!(
            "  slow: {}, about {:.0} % of the rate ({})",
            s.part,
            100.0 * s.factor,
            count(s.readings as usize, "reading")
        );
        print(&wrap(&what, 4));
    }
    for (name, factor) in &fit.nic_factors {
        let what = format!("  the NICs of {name} carry {factor:.2} times what the cluster file says");
        print(&wrap(&what, 4));
    }
    for (name, t) in &fit.tiers {
        let kept = format!("jobs across tier {name} keep {:.0} % of their bandwidth", 100.0 * t.kept);
        let uplinks = match t.uplinks {
            1.0 => String::new(),
            f => format!(", its uplinks carry {f:.2} times what the cluster file says"),
        };
        print(&wrap(&format!("  {kept}{uplinks}"), 4));
    }
    if let (Some(parameters), Some(bytes)) = (fit.parameters, fit.parameter_bytes) {
        let runs = fit.epochs.iter().zip(&fit.best_epochs).filter(|(epochs, _)| **epochs > 0);
        let epochs: String = runs.map(|(n, best)| format!(", {n} epochs (best {})", best + 1)).collect();
        println!("  {parameters} parameters, {bytes} bytes{epochs}");
    }
    if args.model == NEEDS_NONE {
        let what = "  between hosts this is what NCCL's own decisions let through (model), whatever was measured there";
        print(&wrap(what, 4));
    } else if fit.multi_host_readings == 0 {
        let what = "  no reading of several hosts: between hosts this is physics alone; `linkwise measure` takes some";
        print(&wrap(what, 4));
    }
    if fit.simulated_readings > 0 {
        println!("  {} of these readings are SIMULATED, not measured", fit.simulated_readings);
    }
    Ok(())
}
