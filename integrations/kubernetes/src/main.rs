//! `linkwise-kubernetes`: the controller, the facts, the collector and the advice as programs.

use clap::{Parser, Subcommand};
use kube::Config;
use linkwise_kubernetes::advise::{self, AdviseArgs};
use linkwise_kubernetes::facts::run::{CollectArgs, FactsArgs};
use linkwise_kubernetes::facts::supervise::{self, WithCluster};
use linkwise_kubernetes::leader::Candidate;
use linkwise_kubernetes::pulse::{self, Alive};
use linkwise_kubernetes::{Settings, client, controller, facts};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest time to give the lease back at the end.
const RESIGN: Duration = Duration::from_secs(5);

/// Gangs of pods get the exact GPUs that linkwise chooses, and the stock scheduler binds them
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Places gated gangs until it is stopped
    ///
    /// The API is that of the service account it runs under, or of KUBECONFIG. Several may run: one leads.
    Controller(Settings),
    /// Keeps the cluster object, the server's cluster file and the taints of suspected GPUs up to date
    Facts(FactsArgs),
    /// Collects what nvidia-smi and sysfs say about this node into its HostFacts object
    Collect(CollectArgs),
    /// Annotates pods whose GPUs the scheduler chose with what they could have had; changes nothing else
    Advise(AdviseArgs),
    /// Runs the server on a cluster file, and starts it again when the file changes
    WithCluster(WithCluster),
    /// Ends with 0 if a program with --pulse FILE works, for the probes of a pod
    Alive(Alive),
}

fn main() -> ExitCode {
    let mut command = Cli::parse().command;
    if let Command::Alive(a) = &command {
        return pulse::alive(a, std::time::SystemTime::now()).map_or_else(|e| fail(&e), |()| ExitCode::SUCCESS);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(e) => return fail(&format!("no threads: {e}")),
    };
    if let Command::WithCluster(a) = &command {
        // The server is a process of its own; SIGTERM ends it before this one.
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        runtime.spawn(async move {
            stopped().await;
            asked.store(true, Ordering::Relaxed);
        });
        return supervise::run(a, &|| stop.load(Ordering::Relaxed));
    }
    let lease = match &mut command {
        Command::Controller(settings) => {
            let identity = settings.identity.get_or_insert_with(controller::identity).clone();
            Some((settings.namespace.clone(), identity))
        }
        _ => None,
    };
    runtime.block_on(async {
        let no_api =
            |e: String| fail(&format!("no API of Kubernetes: {e}; run it in a pod, or set KUBECONFIG to a file"));
        let client = match Config::infer().await.map_err(|e| e.to_string()) {
            Ok(config) => client::once(config).map_err(|e| e.to_string()),
            Err(e) => Err(e),
        };
        let client = match client {
            Ok(client) => client,
            Err(e) => return no_api(e),
        };
        let say = |line: &str| eprintln!("linkwise-kubernetes: {line}");
        let api = client.clone();
        let run = async {
            match command {
                Command::Controller(settings) => controller::run(api, settings, Arc::default(), say).await,
                Command::Facts(a) => facts::run::facts(api, a, say).await,
                Command::Collect(a) => facts::run::collect(api, a, say).await,
                Command::Advise(a) => advise::run(api, a, say).await,
                Command::WithCluster(_) | Command::Alive(_) => Ok(()),
            }
        };
        tokio::select! {
            ended = run => match ended {
                Ok(()) => ExitCode::SUCCESS,
                Err(e) => fail(&e),
            },
            () = stopped() => {
                if let Some((namespace, identity)) = lease {
                    let given_back = Candidate::resign(client, &namespace, &identity);
                    let _ = tokio::time::timeout(RESIGN, given_back).await;
                }
                ExitCode::SUCCESS
            }
        }
    })
}

/// Ends at SIGTERM or Ctrl-C. The next leader finishes what this one began.
async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

fn fail(text: &str) -> ExitCode {
    eprintln!("error: {text}");
    ExitCode::FAILURE
}
