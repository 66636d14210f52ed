//! `linkwise-lab validate`: compares the physics with published measurements.
//!
//! A family is source x system x collective: the repository, paper or thread of the `source` column (its first two words), the
//! `system` column, the collective. Figures over families are medians over families, so that no single source decides.

mod cases;
mod fit;
mod print;
mod score;
mod system;
pub mod table;

use cases::Cases;
use console::Failure;
use console::Format;
use std::path::PathBuf;
use table::Table;

/// Maximum number of files of one call.
const FILES_MAX: usize = 1_000;

/// Arguments of `linkwise-lab validate`.
#[derive(clap::Args)]
#[command(long_about = "Compare the physics with published measurements.

Reads the 17-column format of published measurements and the BandPilot tables (every subset of a host, splits over hosts). One \
fixed rule decides system, algorithm and constants from what a row says about its system, never from its result. Rows that \
cannot be predicted are left out with the reason. A family is source x system x collective; overall figures are medians over families. Sizes from 64 MiB and peaks count as plateau, smaller ones as sweep.")]
pub struct Args {
    /// Measurement files
    #[arg(required = true, value_name = "FILE.csv")]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Fit the constants on half of the families and report on the other half, both ways
    #[arg(long)]
    cross_fit: bool,
    /// Fit the constants on all families and print them
    #[arg(long, hide = true)]
    fit_all: bool,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Failure> {
    if args.files.len() > FILES_MAX {
        return Err(Failure::input(format!("{} files; at most {FILES_MAX} at once", args.files.len())));
    }
    let mut cases = Cases::default();
    for path in &args.files {
        cases.add(&Table::read(path)?)?;
    }
    let fabrics = cases.fabrics();
    if args.fit_all {
        print!("{}", fit::all(&cases, &fabrics));
        return Ok(());
    }
    let report = score::score(&cases, &fabrics);
    let cross = args.cross_fit.then(|| fit::cross(&cases, &fabrics));
    match args.format {
        Format::Text => print!("{}", print::text(&report, cross.as_ref())),
        Format::Json => println!("{}", print::json(&report, cross.as_ref())?),
    }
    Ok(())
}
