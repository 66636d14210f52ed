//! The settings of the controller.

use crate::pulse::PulseArgs;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Where linkwise's server is, as flags.
#[derive(Args, Clone, Debug)]
pub struct ServerArgs {
    /// Address of linkwise's server
    #[arg(long, default_value = "http://127.0.0.1:7878", value_name = "URL")]
    pub server: String,
    /// File with the token for the server; it is read again when it changes
    #[arg(long, value_name = "FILE")]
    pub server_token_file: Option<PathBuf>,
    /// File with the authorities of the server's certificate
    #[arg(long, value_name = "FILE")]
    pub server_ca: Option<PathBuf>,
}

/// Settings of the controller, as flags.
#[derive(Args, Clone, Debug)]
pub struct Settings {
    /// linkwise's server.
    #[command(flatten)]
    pub server: ServerArgs,
    /// The file for probes.
    #[command(flatten)]
    pub pulse: PulseArgs,
    /// Device class whose claims are placed; may be repeated
    #[arg(long, default_value = "gpu.nvidia.com", value_name = "CLASS")]
    pub device_class: Vec<String>,
    /// Namespace whose pods are placed; may be repeated; none: all. An empty name is no namespace
    #[arg(long, value_name = "NAMESPACE")]
    pub in_namespace: Vec<String>,
    /// Driver of the devices
    #[arg(long, default_value = "gpu.nvidia.com", value_name = "DRIVER")]
    pub driver: String,
    /// Namespace of the leader's lease: the same for all controllers of a cluster
    #[arg(long, default_value = "linkwise", value_name = "NAMESPACE")]
    pub namespace: String,
    /// Name of this process in the lease; none: the host name and the process
    #[arg(long, value_name = "NAME")]
    pub identity: Option<String>,
    /// Length of the leader's lease, seconds
    #[arg(long, default_value_t = 15, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub lease_seconds: u64,
    /// Time in which all pods of a released gang must be bound, seconds; then the gang starts again
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub start_deadline_seconds: u64,
    /// Time after which a waiting gang lets no younger gang of its priority pass, seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=604_800))]
    pub pass_seconds: u64,
    /// Evict gangs of lower priority when a gang has no room, as kube-scheduler would; disruption budgets are kept
    #[arg(long, default_value_t = true, value_name = "BOOL", action = clap::ArgAction::Set)]
    pub preempt: bool,
}

impl Settings {
    /// The defaults, for a server.
    pub fn of(server: &str) -> Settings {
        Settings {
            server: ServerArgs { server: server.into(), server_token_file: None, server_ca: None },
            pulse: PulseArgs::default(),
            device_class: vec!["gpu.nvidia.com".into()],
            in_namespace: Vec::new(),
            driver: "gpu.nvidia.com".into(),
            namespace: "linkwise".into(),
            identity: None,
            lease_seconds: 15,
            start_deadline_seconds: 300,
            pass_seconds: 600,
            preempt: true,
        }
    }

    /// True if pods of this namespace are placed.
    pub fn places(&self, namespace: &str) -> bool {
        self.in_namespace.is_empty() || self.in_namespace.iter().any(|n| n == namespace)
    }

    /// Length of the leader's lease.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        settings: Settings,
    }

    #[test]
    fn without_the_flag_all_namespaces_are_placed_and_with_an_empty_name_none() {
        let of = |flags: &[&str]| Line::parse_from([&["x"], flags].concat()).settings;
        assert!(of(&[]).places("a"));
        // What the chart gives if no namespace is named.
        assert!(!of(&["--in-namespace="]).places("a"));
        let two = of(&["--in-namespace=a", "--in-namespace=b"]);
        assert!(two.places("a") && two.places("b") && !two.places("c"));
    }
}
