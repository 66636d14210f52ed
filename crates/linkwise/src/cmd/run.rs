//! `linkwise run -- COMMAND`: runs a training job with the plugin and prints a report at its end.

use crate::job_report::{self, ModelArgs};
use console::Failure;
use job::launched::{self, LaunchedTask};
use job::{limits, signals};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Arguments of `linkwise run`.
#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Args {
    /// Policy that tries arms and keeps the best (listed below) [default: adaptive]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Fixed table of arms, as `linkwise tune profile` writes it, instead of a policy
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    profile: Option<PathBuf>,
    /// Change nothing; report which collectives ran, how many, their sizes, times and NCCL's choices
    #[arg(long, conflicts_with_all = ["policy", "profile"])]
    observe: bool,
    /// Ask NCCL for GPU times, which bandwidths and shares need (NCCL 2.27.3 and later; docs/plugin.md has the cost)
    #[arg(long)]
    kernel_times: bool,
    #[command(flatten)]
    model: ModelArgs,
    /// Also write the report as a page
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Keep the traces in this folder; it must be empty or new
    #[arg(long, value_name = "FOLDER")]
    trace: Option<PathBuf>,
    /// Rendezvous of several hosts: tcp:HOST:PORT, or folder:PATH on a shared file system
    #[arg(long, alias = "meeting", value_name = "ADDRESS")]
    rendezvous: Option<String>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const HELP: &str = "\
The plugin may change NCCL's choices of algorithm, protocol and channels; --observe changes nothing. It is experimental: the plugin has not \
been run on GPUs yet.

Every process that the command starts on this host inherits the settings, with torchrun, mpirun, srun and python alike. Ranks on other \
hosts need the same LINKWISE_* variables. How to combine it with a launcher:

  torchrun   on every host: linkwise run -- torchrun --nnodes 2 ... train.py
  srun       linkwise run --trace SHARED_FOLDER -- srun ... train.py
  mpirun     one host: linkwise run -- mpirun ...
             several: mpirun ... linkwise run --rendezvous ADDRESS -- python train.py

Ranks find each other at --rendezvous, else where a launcher of several hosts says (MASTER_ADDR and MASTER_PORT, which torchrun sets for its \
workers; Slurm's list of hosts), else on this host. Ranks that cannot agree keep NCCL's own choices.

If linkwise runs once per task (after srun or mpirun), task 0 writes the report. --trace keeps the traces of every task, and `linkwise tune \
report` reads all of them.

Signals go to the command. The exit code is the command's, even if the report fails.";

fn after_help() -> String {
    format!("{HELP}\n\nPolicies:\n{}", autotune::list_of_policies())
}

/// Runs the command. If its exit code is not 0, this process exits with the same code.
pub fn run(args: Args) -> Result<(), Failure> {
    let library = crate::plugin_library::find()?;
    if let Some(name) = &args.policy {
        autotune::check_policy(name).map_err(Failure::input)?;
    }
    if let Some(cluster) = &args.model.cluster {
        console::load_cluster(cluster)?; // an error must come before the job, not after it
    }
    let task = LaunchedTask::of(env);
    let reports = task.as_ref().is_none_or(|t| t.number == 0);
    if let Some(path) = args.report.as_deref().filter(|_| reports) {
        writable(path)?; // before the job, too
    }
    let mut temporary = None;
    let folder = match &args.trace {
        None => {
            let made = tempfile::Builder::new().prefix("linkwise-trace-").tempdir();
            let made = made.map_err(|e| Failure::input(format!("cannot create a folder for traces: {e}")))?;
            temporary.insert(made).path().to_path_buf()
        }
        Some(path) => empty(&task.as_ref().map_or(path.clone(), |t| path.join(format!("task-{}", t.number))))?,
    };
    conflicts();
    if let (None, None, Some(launcher)) = (&args.trace, &task, launched::reaches_other_hosts(&args.command, env)) {
        eprintln!(
            "linkwise: where {launcher} starts processes on other hosts their traces stay there, in {}, and the report does not have them; \
             give --trace a folder that all hosts see",
            folder.display()
        );
    }
    let status = start(&args, task.as_ref(), &library, &folder)?;
    if reports && let Err(e) = tell(&args, task.as_ref(), &library, &folder) {
        eprintln!("{e}"); // the exit code is that of the job, not of the report
        temporary.take().map(tempfile::TempDir::keep);
        eprintln!("linkwise: the traces are kept; to try again: linkwise tune report {}", folder.display());
    }
    drop(temporary);
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    if code != 0 {
        std::process::exit(code);
    }
    Ok(())
}

/// A variable of this process's environment; `None` if it is not UTF-8.
fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Checks that a file can be written at `path`. Leaves an existing file unchanged and creates none.
fn writable(path: &Path) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::file("write", path, e);
    if path.exists() {
        return std::fs::OpenOptions::new().append(true).open(path).map(drop).map_err(failed);
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::tempfile_in(folder).map(drop).map_err(failed)
}

/// Checks that `path` is a new or empty folder.
fn empty(path: &Path) -> Result<PathBuf, Failure> {
    std::fs::create_dir_all(path).map_err(|e| Failure::file("create", path, e))?;
    let empty = std::fs::read_dir(path).is_ok_and(|mut d| d.next().is_none());
    if !empty {
        return Err(Failure::input(format!(
            "{} is not empty; traces of another run would mix with this one's",
            path.display()
        )));
    }
    path.canonicalize().map_err(|e| Failure::file("open", path, e))
}

/// Prints the report of the processes that ran on this host.
fn tell(args: &Args, task: Option<&LaunchedTask>, library: &Path, folder: &Path) -> Result<(), Failure> {
    let report = job_report::read(&[folder.to_path_buf()], &args.model)?;
    if report.processes.is_empty() {
        eprint!("{}", not_loaded(library, folder));
        return Ok(());
    }
    eprint!("{}", job_report::text(&report));
    match (task, &args.trace) {
        (Some(t), Some(path)) => {
            eprintln!("This is task 0 of {}; of all of them: linkwise tune report {}", t.count, path.display());
        }
        (Some(t), None) => eprintln!(
            "This is task 0 of {}: processes of the others are not in it; --trace FOLDER keeps the traces of all of them",
            t.count
        ),
        (None, _) => {}
    }
    if let Some(path) = &args.report {
        let page = job_report::html(&report)?;
        files::write_atomic(path, page)?;
        eprintln!("report: {}", path.display());
    }
    Ok(())
}

/// Warns of settings that conflict with the plugin.
fn conflicts() {
    for name in ["NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN"] {
        if let Some(value) = std::env::var_os(name).filter(|v| !v.is_empty()) {
            eprintln!("linkwise: {name}={} is replaced for this job", value.to_string_lossy());
        }
    }
    for name in ["NCCL_ALGO", "NCCL_PROTO"] {
        if let Some(value) = std::env::var_os(name).filter(|v| !v.is_empty()) {
            eprintln!("linkwise: {name}={} is respected: only what it allows is tried", value.to_string_lossy());
        }
    }
}

fn start(args: &Args, task: Option<&LaunchedTask>, library: &Path, folder: &Path) -> Result<ExitStatus, Failure> {
    let mut words = args.command.iter();
    let program = words.next().ok_or_else(|| Failure::input("no command"))?;
    let mut command = Command::new(program);
    command.args(words);
    command.env("NCCL_TUNER_PLUGIN", library).env("NCCL_PROFILER_PLUGIN", library).env("LINKWISE_TRACE", folder);
    let mode = match (&args.profile, args.observe) {
        (Some(path), _) => {
            let path = path.canonicalize().map_err(|e| Failure::file("open", path, e))?;
            command.env("LINKWISE_PROFILE", path);
            "profile"
        }
        (None, true) => "observe",
        (None, false) => "adaptive",
    };
    command.env("LINKWISE_MODE", mode);
    if let Some(policy) = &args.policy {
        command.env("LINKWISE_POLICY", policy);
    }
    if args.kernel_times {
        command.env("LINKWISE_KERNEL_TIMES", "1");
    }
    if let Some(place) = &args.rendezvous {
        command.env("LINKWISE_RENDEZVOUS", place);
    }
    // The fallback applies only if neither the user nor a launcher of several hosts sets a rendezvous. A launcher
    // around this process sets one: its other processes would choose other places.
    let said = |name: &str| env(name).is_some_and(|v| !v.is_empty());
    let by_launcher = said("MASTER_ADDR") && (said("MASTER_PORT") || said("LINKWISE_PORT"));
    let unique = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let alone = || Some(format!("local:{}-{unique}", std::process::id()));
    command.env_remove("LINKWISE_MEETING_ELSE"); // the former name: an older `linkwise run` around this one may set it
    match task.map_or_else(alone, LaunchedTask::rendezvous).filter(|_| !by_launcher) {
        Some(place) => command.env("LINKWISE_RENDEZVOUS_FALLBACK", place),
        None => command.env_remove("LINKWISE_RENDEZVOUS_FALLBACK"), // an outer `linkwise run` may have set it
    };
    let named = args.rendezvous.is_some() || said("LINKWISE_RENDEZVOUS") || said("LINKWISE_MEETING");
    let known = named || by_launcher;
    if let Some(t) = task.filter(|t| t.rendezvous().is_none() && !t.hosts_known && !known && !args.observe) {
        eprintln!(
            "linkwise: {} tasks, perhaps on several hosts, have no rendezvous: unless the command sets one (torchrun sets MASTER_ADDR and \
             MASTER_PORT) all communicators stay at AUTO; give --rendezvous tcp:HOST:PORT with any of the hosts",
            t.count
        );
    }
    limits::raise_open_files();
    // Signals are caught before the command starts, so that none is lost.
    let caught = signals::caught().map_err(Failure::input)?;
    let mut child = command.spawn().map_err(|e| {
        Failure::input(format!("cannot start `{}`: {e}; is it on the PATH?", program.to_string_lossy()))
    })?;
    let passing = signals::SignalForwarder::to(child.id(), caught);
    let status = child.wait().map_err(|e| Failure::input(format!("waiting for the command: {e}")));
    passing.end();
    status
}

/// The message if no process loaded the plugin.
fn not_loaded(library: &Path, folder: &Path) -> String {
    format!(
        "linkwise: no process of this command loaded the plugin. The usual reasons:\n\
         - no process used NCCL, or none made a communicator of two or more ranks\n\
         - NCCL is linked statically into the program, or older than 2.21 (`linkwise plugin check` lists releases)\n\
         - the program or its launcher overwrites NCCL_TUNER_PLUGIN, or does not pass the environment on (mpirun: -x NCCL_TUNER_PLUGIN ...)\n\
         - {} does not exist in the container or on the other hosts\n\
         - they ran on other hosts: their traces are there, in {}; give --trace a folder that all hosts see\n\
         - NCCL 2.27.3 takes no absolute path: use another patch\n\
         NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING,ENV says what NCCL tried to load.\n",
        library.display(),
        folder.display()
    )
}
