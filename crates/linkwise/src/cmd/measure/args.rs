//! The arguments of `linkwise measure`.

use console::Format;
use measure::DesignKind;
use std::path::PathBuf;

/// Arguments of `linkwise measure`.
#[derive(clap::Args)]
#[command(after_help = "\
Touches idle GPUs only. Without --idle a real backend asks each host (nvidia-smi), and with --launcher srun Slurm, before the first
run; after every run it asks the run's hosts again and drops the reading if another process uses them. --state leaves out the GPUs of jobs.
A host of which a part is in use is left out. Inside a Slurm job the GPUs of that job are the idle ones.

Examples:
  A simulated cluster: intra tables and 100 multi-host samples
    linkwise measure --cluster h100 --backend simulated --store sim.db

  Real hosts through Slurm: print the commands, then run them; rerun the same command to resume
    linkwise measure --cluster site.yaml --backend nccl-tests --launcher srun --dry-run
    linkwise measure --cluster site.yaml --backend nccl-tests --launcher srun --store site.db

  The same on named GPUs, without asking hosts or Slurm
    linkwise measure ... --idle 'n[0-7]'

  At most ten GPU-hours, with fewer samples if necessary
    linkwise measure ... --budget-gpu-minutes 600 --clip

  Your own benchmark: one JSON request per line on standard input, one answer per line
    linkwise measure --cluster h100 --backend command --command './bench' --store own.db
    request {\"id\":1,\"gpus\":[\"n0:0\",\"n1:3\"],\"collective\":\"all_reduce\",
             \"size_bytes\":16777216}
    answer  {\"id\":1,\"busbw_gb_per_s\":123.4}   or   {\"id\":1,\"error\":\"...\"}

  Published tables whose hosts are named 26 and 27; and an export of the store
    linkwise measure --cluster h100 --store pub.db --import t.csv --host-map 26=n0,27=n1
    linkwise measure --cluster h100 --store pub.db --export all.csv

Exit codes: 0 done, 1 the request cannot be met (budget, backend), 2 bad input or usage, 130 stopped by Ctrl-C (readings are kept).")]
pub struct Args {
    /// A built-in cluster or a cluster file
    #[arg(long)]
    pub cluster: String,
    /// Source of the readings
    #[arg(long, value_enum)]
    pub backend: Option<BackendKind>,
    /// Benchmark of --backend command, started once by sh
    #[arg(long, value_name = "CMD")]
    pub command: Option<String>,
    /// Store of the measurements; created if missing
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Multi-host samples per size, on top of the intra tables
    #[arg(long, default_value_t = 100, value_parser = console::number::whole::<usize>)]
    pub samples: usize,
    /// How multi-host samples are chosen (adaptive: where a model fitted on the samples so far is least sure)
    #[arg(long, value_enum, default_value = "stratified")]
    pub design: DesignArg,
    /// Sizes, separated by commas
    #[arg(long, default_value = "16MiB")]
    pub sizes: String,
    /// Random seed (sampling, spot checks, simulated hardware)
    #[arg(long, default_value_t = 1, value_parser = console::number::whole::<u64>)]
    pub seed: u64,
    /// Collective: all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, sendrecv
    #[arg(long, default_value = "all_reduce")]
    pub collective: String,
    /// Skip intra tables and spot checks
    #[arg(long)]
    pub no_intra: bool,
    /// Idle GPUs ('n[0-3]:[0-7]', n0:1, whole hosts n2) or a file that lists them; only these are used [default: those that the hosts, Slurm and the state say are idle]
    #[arg(long, value_name = "LIST|FILE")]
    pub idle: Option<String>,
    /// All GPUs that are not drained are idle; hosts and Slurm are not asked
    #[arg(long, conflicts_with = "idle")]
    pub all_idle: bool,
    /// State file: GPUs that a job holds, and drained ones, are not used
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Whom to ask which GPUs are idle, separated by commas [default: hosts, with --launcher srun slurm,hosts; none with --idle, --all-idle or --backend simulated]
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "all_idle")]
    pub ask: Vec<AskArg>,
    /// How to reach a host, for --ask hosts; with --launcher local this machine is asked
    #[arg(long, value_name = "CMD", default_value = "ssh -o BatchMode=yes -o ConnectTimeout=10 {host}")]
    pub ask_with: String,
    /// Most hosts of one run [default: 16 on sites of more than 16 hosts or of several switches]
    #[arg(long, value_name = "N", value_parser = console::number::whole::<usize>)]
    pub max_hosts: Option<usize>,
    /// Budget of this run: refuses a plan that needs more (--clip takes fewer samples), and stops a run that reaches it
    #[arg(long, value_name = "MINUTES", value_parser = console::number::real)]
    pub budget_gpu_minutes: Option<f64>,
    /// Take as many samples as the budget allows instead of refusing
    #[arg(long, requires = "budget_gpu_minutes")]
    pub clip: bool,
    /// Launcher of nccl-tests
    #[arg(long, value_enum, default_value = "local")]
    pub launcher: LauncherKind,
    /// Further arguments of mpirun or srun, separated by spaces
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    pub launcher_args: String,
    /// Name of this machine in the cluster, for the local launcher
    #[arg(long, value_name = "HOST")]
    pub local_host: Option<String>,
    /// Folder of the nccl-tests programs [default: found by PATH]
    #[arg(long, value_name = "DIR")]
    pub nccl_tests: Option<PathBuf>,
    /// Iterations per measurement (nccl-tests' -n)
    #[arg(long, default_value_t = 20, value_parser = console::number::whole::<u32>)]
    pub iterations: u32,
    /// Warm-up iterations (nccl-tests' -w)
    #[arg(long, default_value_t = 5, value_parser = console::number::whole::<u32>)]
    pub warmup: u32,
    /// Print the nccl-tests commands without running them
    #[arg(long)]
    pub dry_run: bool,
    /// Time limit of one measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = console::number::real)]
    pub timeout_s: f64,
    /// Attempts per measurement, for --backend command
    #[arg(long, default_value_t = 3, value_parser = console::number::whole::<u32>)]
    pub attempts: u32,
    /// Simulated: standard deviation between comparable allocations, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = console::number::real)]
    pub irregularity: f64,
    /// Simulated: standard deviation between readings, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = console::number::real)]
    pub noise: f64,
    /// Simulated: readings that are far too low, percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = console::number::real)]
    pub outliers: f64,
    /// CSV to import: linkwise's own header, or host,gpus,... and counts,gpus,... tables; repeatable
    #[arg(long, value_name = "FILE.csv")]
    pub import: Vec<PathBuf>,
    /// Also import readings above what the links allow
    #[arg(long, requires = "import")]
    pub force: bool,
    /// Hosts of the names in imported tables: 26=n0,27=n1, or n*=gpu-* for all names that begin so; repeat a name that stands for several
    /// hosts
    #[arg(long, value_name = "NAME=HOST,...", default_value = "")]
    pub host_map: String,
    /// Export the store as CSV; - writes to standard output
    #[arg(long, value_name = "FILE.csv")]
    pub export: Option<PathBuf>,
    /// Output format of the summary
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

/// `--ask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AskArg {
    /// Each host, by nvidia-smi
    Hosts,
    /// sinfo and scontrol
    Slurm,
    /// Neither hosts nor Slurm
    None,
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
    /// Each rail over all hosts, for `linkwise doctor`
    RailSweep,
}

impl DesignArg {
    /// The design as the crate `measure` names it.
    pub fn kind(self) -> DesignKind {
        match self {
            DesignArg::Random => DesignKind::Random,
            DesignArg::Stratified => DesignKind::Stratified,
            DesignArg::WorstCase => DesignKind::WorstCase,
            DesignArg::Adaptive => DesignKind::Adaptive,
            DesignArg::RailSweep => DesignKind::RailSweep,
        }
    }
}
