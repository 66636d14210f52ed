//! `linkwise fit`: from measurements to a model file.

use clap::builder::{PossibleValue, PossibleValuesParser};
use console::Failure;
use console::{Format, load_cluster};
use files::write_atomic;
use papers::models;
use predict::{BandwidthModel, Correction, FitOptions, Kind};
use std::path::PathBuf;
use store::{Query, Source, Store};
use topology::Collective;

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
    #[arg(long, default_value_t = 0)]
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

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    let cluster = load_cluster(&args.cluster)?;
    let kind = models()
        .by_name(&args.model)
        .ok_or_else(|| Failure::input(format!("--model {}: known are {}", args.model, models().names())))?;
    let mut rows = match &args.store {
        Some(path) => {
            let store = Store::open(path, &cluster).map_err(Failure::input)?;
            store.measurements(&Query::usable()).map_err(Failure::input)?
        }
        None if kind == Kind::Nccl => Vec::new(),
        None => return Err(Failure::input("--store is missing: only a model of kind nccl needs no measurements")),
    };
    // Fits must not depend on the order in which hosts were measured in parallel.
    rows.sort_by(|a, b| (a.size, &a.allocation).cmp(&(b.size, &b.allocation)));
    let simulated = rows.iter().filter(|m| m.source == Source::Simulated).count();
    let options = FitOptions { collective: args.collective, ..FitOptions::of(kind).seed(args.seed) };
    let start = std::time::Instant::now();
    let (model, report) = predict::fit(&cluster, &rows, &options).map_err(Failure::impossible)?;
    let seconds = start.elapsed().as_secs_f64();
    write_atomic(&args.output, &model.save().map_err(Failure::input)?)?;
    let sizes: Vec<String> = model.sizes().iter().map(ToString::to_string).collect();
    let evaluations = match model.correction() {
        Correction::Gp(g) => g.evaluations(),
        Correction::Offset { .. } => 1,
        Correction::Learned(_) => report.training.iter().map(|p| p.epochs).sum(),
    };
    let network = match model.correction() {
        Correction::Learned(l) => Some((l.parameter_count(), l.parameter_bytes())),
        _ => None,
    };
    if args.format == Format::Json {
        let out = serde_json::json!({
            "model": args.output, "kind": model.kind(), "collective": model.collective(), "sizes_bytes": model.sizes(),
            "intra_readings": report.intra_readings, "multi_host_readings": report.multi_host_readings,
            "left_out": report.left_out, "distrusted": report.distrusted, "intra_suspects": report.intra_suspects,
            "simulated_readings": simulated, "repeat_noise": model.repeat_noise(), "evaluations": evaluations,
            "fit_s": seconds, "seed": args.seed,
            "parameters": network.map(|n| n.0), "parameter_bytes": network.map(|n| n.1),
            "epochs": report.training.iter().map(|p| p.epochs).collect::<Vec<_>>(),
        });
        println!("{out}");
        return Ok(());
    }
    println!(
        "{}: {} model of {} at {} on cluster {}, fitted in {seconds:.2} s",
        args.output.display(),
        model.kind(),
        model.collective(),
        sizes.join(", "),
        cluster.name
    );
    println!(
        "  {} readings of single hosts ({} suspect), {} of several hosts ({} distrusted), {} left out",
        report.intra_readings, report.intra_suspects, report.multi_host_readings, report.distrusted, report.left_out
    );
    if let Some((parameters, bytes)) = network {
        let runs = report.training.iter().filter(|p| p.epochs > 0);
        let epochs: String = runs.map(|p| format!(", {} epochs (best {})", p.epochs, p.best_epoch + 1)).collect();
        println!("  {parameters} parameters, {bytes} bytes{epochs}");
    }
    if kind == Kind::Nccl {
        println!("  between hosts this is what NCCL's own decisions let through (model), whatever was measured there");
    } else if report.multi_host_readings == 0 {
        println!("  no reading of several hosts: between hosts this is physics alone; `linkwise measure` takes some");
    }
    if simulated > 0 {
        println!("  {simulated} of these readings are SIMULATED, not measured");
    }
    Ok(())
}
