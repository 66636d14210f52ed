//! `linkwise run -- COMMAND`: a training job with the plugin, and a report at its end.

mod launched;

use super::tune::report::{self, ModelArgs, Report};
use crate::failure::Failure;
use launched::Task;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Arguments of `linkwise run`.
#[derive(clap::Args)]
#[command(long_about = "Run a job with the NCCL plugin, and report at its end.

Every process that the command starts on this host inherits the settings: torchrun, mpirun, srun and python alike. Ranks on other hosts need \
the same LINKWISE_* variables. Where to put it:

  torchrun   before it, on every host (it is started once per host):  linkwise run -- torchrun --nnodes 2 ... train.py
  srun       before it: srun passes the environment on; --trace on a shared file system and --meeting tcp:HOST:PORT for several hosts
  mpirun     before it for one host; for several, mpirun -x passes variables on, or: mpirun ... linkwise run --meeting ... -- python train.py

Started several times for one job (after srun or mpirun), task 0 writes the report; the others' traces lie beside its own in --trace, and \
`linkwise tune report` reads all of them. Ranks that cannot agree stay at what NCCL does by itself.

Signals go to the command; its exit code is that of linkwise run, whatever becomes of the report.")]
pub struct Args {
    /// The policy that tries arms and keeps the best
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// A fixed table of arms instead of a policy
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    profile: Option<PathBuf>,
    /// Change nothing: which collectives, how many, how large, how long, what NCCL chose
    #[arg(long, conflicts_with_all = ["policy", "profile"])]
    observe: bool,
    /// Ask NCCL for GPU times: bandwidths and shares need them (2.27.3 and later; what they cost is in docs/plugin.md)
    #[arg(long)]
    kernel_times: bool,
    #[command(flatten)]
    model: ModelArgs,
    /// Write the report as a page, too
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Keep the traces in this folder, which must be empty or new
    #[arg(long, value_name = "FOLDER")]
    trace: Option<PathBuf>,
    /// Where the processes of several hosts meet: tcp:HOST:PORT, or folder:PATH on a shared file system
    #[arg(long, value_name = "PLACE")]
    meeting: Option<String>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs it. Ends the process with the command's exit code where that is not 0.
pub fn run(args: Args) -> Result<(), Failure> {
    let library = super::plugin::library()?;
    if let Some(name) = &args.policy {
        super::tune::check_policy(name)?;
    }
    if let Some(cluster) = &args.model.cluster {
        super::shared::load_cluster(cluster)?; // before the job, not after it
    }
    let task = Task::of(|k| std::env::var(k).ok());
    let temporary = tempfile::Builder::new().prefix("linkwise-trace-").tempdir();
    let temporary = temporary.map_err(|e| Failure::input(format!("cannot create a folder for traces: {e}")))?;
    let folder = match &args.trace {
        None => temporary.path().to_path_buf(),
        Some(path) => empty(&task.as_ref().map_or(path.clone(), |t| path.join(format!("task-{}", t.number))))?,
    };
    conflicts();
    let status = start(&args, task.as_ref(), &library, &folder)?;
    if task.as_ref().is_none_or(|t| t.number == 0)
        && let Err(e) = tell(&args, task.as_ref(), &library, &folder)
    {
        eprintln!("{e}"); // the job's exit code counts, not the report's
    }
    drop(temporary);
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    if code != 0 {
        std::process::exit(code);
    }
    Ok(())
}

/// A new or empty folder.
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

/// The report of what ran here.
fn tell(args: &Args, task: Option<&Task>, library: &Path, folder: &Path) -> Result<(), Failure> {
    let report = Report::read(&[folder.to_path_buf()], &args.model)?;
    if report.processes.is_empty() {
        eprint!("{}", nobody(library));
        return Ok(());
    }
    eprint!("{}", report::text(&report));
    if let (Some(task), Some(path)) = (task, &args.trace) {
        eprintln!("This is task 0 of {}; of all of them: linkwise tune report {}", task.count, path.display());
    }
    if let Some(path) = &args.report {
        let page = report::html(&report)?;
        std::fs::write(path, page).map_err(|e| Failure::file("write", path, e))?;
        eprintln!("report: {}", path.display());
    }
    Ok(())
}

/// Settings that fight with the plugin.
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

fn start(args: &Args, task: Option<&Task>, library: &Path, folder: &Path) -> Result<ExitStatus, Failure> {
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
    let said = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    match &args.meeting {
        Some(place) => {
            command.env("LINKWISE_MEETING", place);
        }
        // Nothing said: this host alone, unless a launcher of several hosts has already set the scene.
        None if !said("LINKWISE_MEETING") && !said("MASTER_ADDR") => {
            let unique = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            let alone = format!("local:{}-{unique}", std::process::id());
            match task.map(|t| t.meeting()) {
                None => _ = command.env("LINKWISE_MEETING", alone),
                Some(Ok(place)) => _ = command.env("LINKWISE_MEETING", place),
                Some(Err(why)) if args.observe => drop(why), // nothing to agree on
                Some(Err(why)) => eprintln!("linkwise: {why}: everything stays at AUTO"),
            }
        }
        None => {}
    }
    // Registered before the command starts: none gets lost.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2])
        .map_err(|e| Failure::input(format!("cannot pass signals on: {e}")))?;
    let mut child = command.spawn().map_err(|e| {
        Failure::input(format!("cannot start `{}`: {e}; is it on the PATH?", program.to_string_lossy()))
    })?;
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let handle = signals.handle();
    let passing = std::thread::spawn(move || {
        for signal in signals.forever() {
            // From the keyboard the whole group has it already.
            let from_keyboard = signal == SIGINT || signal == SIGQUIT;
            let to_group = from_keyboard
                && rustix::termios::tcgetpgrp(std::io::stdin()).is_ok_and(|g| g == rustix::process::getpgrp());
            if let (Some(pid), Some(signal), false) = (pid, rustix::process::Signal::from_named_raw(signal), to_group) {
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    });
    let status = child.wait().map_err(|e| Failure::input(format!("waiting for the command: {e}")));
    handle.close();
    let _ = passing.join();
    status
}

/// What to say when no process loaded the plugin.
fn nobody(library: &Path) -> String {
    format!(
        "linkwise: no process of this command loaded the plugin. The usual reasons:\n\
         - no process used NCCL, or none made a communicator of two or more ranks\n\
         - NCCL is linked statically into the program, or older than 2.21 (`linkwise plugin check` lists releases)\n\
         - the program or its launcher overwrites NCCL_TUNER_PLUGIN, or does not pass the environment on (mpirun: -x NCCL_TUNER_PLUGIN ...)\n\
         - {} does not exist in the container or on the other hosts\n\
         - NCCL 2.27.3 takes no absolute path: use another patch\n\
         NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING,ENV says what NCCL tried to load.\n",
        library.display()
    )
}
