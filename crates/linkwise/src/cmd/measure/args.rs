//! The arguments of `linkwise measure`.

use console::Format;
use measure::DesignKind;
use std::path::PathBuf;

/// Arguments of `linkwise measure`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  A simulated cluster: intra tables and 100 multi-host samples
    linkwise measure --cluster h100 --backend simulated --store sim.db

  Real hosts through Slurm: see the commands, then run them; after a stop the same command goes on
    linkwise measure --cluster site.yaml --backend nccl-tests --launcher srun --dry-run
    linkwise measure --cluster site.yaml --backend nccl-tests --launcher srun --store site.db

  No more than ten GPU-hours, fewer samples if need be
    linkwise measure ... --budget-gpu-minutes 600 --clip

  Your own benchmark: it reads one JSON request per line and answers each with one line
    linkwise measure --cluster h100 --backend command --command './bench' --store own.db
    request {\"id\":1,\"gpus\":[\"n0:0\",\"n1:3\"],\"collective\":\"all_reduce\",\"size_bytes\":16777216}
    answer  {\"id\":1,\"busbw_gb_per_s\":123.4}   or   {\"id\":1,\"error\":\"...\"}

  Published tables, whose hosts are called 26 and 27; and everything out again
    linkwise measure --cluster h100 --store pub.db --import t.csv --host-map 26=n0,27=n1
    linkwise measure --cluster h100 --store pub.db --export all.csv

Exit codes: 0 done, 1 the request cannot be met (budget, backend), 2 bad input or usage.")]
pub struct Args {
    /// A built-in cluster or a cluster file
    #[arg(long)]
    pub cluster: String,
    /// What takes the readings
    #[arg(long, value_enum)]
    pub backend: Option<BackendKind>,
    /// The benchmark of --backend command, run by sh and started once
    #[arg(long, value_name = "CMD")]
    pub command: Option<String>,
    /// Where measurements are kept; made if it does not exist
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Multi-host samples per size, on top of the intra tables
    #[arg(long, default_value_t = 100, value_parser = topology::number::whole::<usize>)]
    pub samples: usize,
    /// How multi-host samples are chosen (adaptive: where a model fitted on the samples so far is least sure)
    #[arg(long, value_enum, default_value = "stratified")]
    pub design: DesignArg,
    /// Sizes, separated by commas
    #[arg(long, default_value = "16MiB")]
    pub sizes: String,
    /// Of designs, spot checks and the simulated hardware
    #[arg(long, default_value_t = 1, value_parser = topology::number::whole::<u64>)]
    pub seed: u64,
    /// What to run
    #[arg(long, default_value = "all_reduce")]
    pub collective: String,
    /// No intra tables and spot checks
    #[arg(long)]
    pub no_intra: bool,
    /// Idle GPUs ('n[0-3]:[0-7]', n0:1, whole hosts n2) or a file that lists them; nothing else is used [default: all that are not drained]
    #[arg(long, value_name = "LIST|FILE")]
    pub idle: Option<String>,
    /// Refuse, or with --clip take fewer samples, if this run would need more; also ends a run that gets there
    #[arg(long, value_name = "MINUTES", value_parser = topology::number::real)]
    pub budget_gpu_minutes: Option<f64>,
    /// Take as many samples as the budget allows instead of refusing
    #[arg(long, requires = "budget_gpu_minutes")]
    pub clip: bool,
    /// What starts nccl-tests
    #[arg(long, value_enum, default_value = "local")]
    pub launcher: LauncherKind,
    /// More arguments of mpirun or srun, separated by spaces
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    pub launcher_args: String,
    /// The host that this machine is, for the local launcher
    #[arg(long, value_name = "HOST")]
    pub local_host: Option<String>,
    /// Folder of all_reduce_perf and the others [default: found by PATH]
    #[arg(long, value_name = "DIR")]
    pub nccl_tests: Option<PathBuf>,
    /// nccl-tests' -n
    #[arg(long, default_value_t = 20, value_parser = topology::number::whole::<u32>)]
    pub iterations: u32,
    /// nccl-tests' -w
    #[arg(long, default_value_t = 5, value_parser = topology::number::whole::<u32>)]
    pub warmup: u32,
    /// Print the nccl-tests commands and run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Time limit of one point
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = topology::number::real)]
    pub timeout_s: f64,
    /// Attempts at one point, for --backend command
    #[arg(long, default_value_t = 3, value_parser = topology::number::whole::<u32>)]
    pub attempts: u32,
    /// Simulated: standard deviation between like allocations, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = topology::number::real)]
    pub irregularity: f64,
    /// Simulated: standard deviation between readings, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = topology::number::real)]
    pub noise: f64,
    /// Simulated: readings that are far too low, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = topology::number::real)]
    pub outliers: f64,
    /// CSV to bring in: linkwise's own header, or host,gpus,... and counts,gpus,... tables; may be repeated
    #[arg(long, value_name = "FILE.csv")]
    pub import: Vec<PathBuf>,
    /// Which host a name of an imported table is: 26=n0,27=n1; a repeated name is the table of several hosts
    #[arg(long, value_name = "NAME=HOST,...", default_value = "")]
    pub host_map: String,
    /// Write everything that the store holds as CSV; - is standard output
    #[arg(long, value_name = "FILE.csv")]
    pub export: Option<PathBuf>,
    /// Form of the summary
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// `--backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BackendKind {
    /// The fabric's physics with seeded irregularity and noise
    Simulated,
    /// NVIDIA's nccl-tests
    NcclTests,
    /// Your own benchmark
    Command,
}

/// `--launcher`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LauncherKind {
    /// One process on this machine
    Local,
    /// Open MPI
    Mpirun,
    /// Slurm
    Srun,
}

/// `--design`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DesignArg {
    /// Random GPUs
    Random,
    /// Spread over host counts and splits, with weight on near-balanced ones
    Stratified,
    /// The most unbalanced splits
    WorstCase,
    /// Where the model is uncertain
    Adaptive,
}

impl DesignArg {
    /// In the words of `measure`.
    pub fn kind(self) -> DesignKind {
        match self {
            DesignArg::Random => DesignKind::Random,
            DesignArg::Stratified => DesignKind::Stratified,
            DesignArg::WorstCase => DesignKind::WorstCase,
            DesignArg::Adaptive => DesignKind::Adaptive,
        }
    }
}
