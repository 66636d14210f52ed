//! The plugin's state in one process: settings and NICs, read once; the endpoint, started with the first listener or connection.

use crate::abi::{LOG, library, wrap};
use crate::config::{self, Config, Transport};
use crate::nics::{self, Nic, Sys};
use net::plan::Source;
use net::{Endpoint, Rail, Settings, Verbs};
use plugin_base::read::{READ_TIME_MAX, read_file_until};
use plugin_base::threads;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time that the end of the process waits for the last acknowledgements of closed connections.
const DRAIN_TIME_MAX: Duration = Duration::from_millis(300);

/// The devices that the plugin offers to NCCL.
#[derive(Debug, Default)]
pub struct Offer {
    /// One device each; empty: the plugin stays out of the way.
    pub nics: Vec<Nic>,
    pub config: Config,
}

static OFFER: OnceLock<Offer> = OnceLock::new();
static ENDPOINT: OnceLock<Option<Endpoint>> = OnceLock::new();

/// Settings and NICs, read once. The log names the reason if there is no device.
pub fn offer() -> &'static Offer {
    OFFER.get_or_init(|| {
        for line in config::misspelt(std::env::vars_os().map(|(name, _)| name)) {
            LOG.warn(&line);
        }
        let deadline = Instant::now() + READ_TIME_MAX;
        let config = match Config::load(|k| std::env::var(k).ok(), |path, most| read_file_until(path, most, deadline)) {
            Ok(c) => c,
            Err(e) => {
                LOG.warn(&format!("{e}; NCCL uses its own network transport"));
                return Offer::default();
            }
        };
        match nics::rails(&config, &library::interfaces(), &Sys(Path::new("/sys"))) {
            Ok(nics) => {
                let list: Vec<String> = nics.iter().map(|n| format!("{} ({})", n.name, n.ip)).collect();
                LOG.info(&format!("every connection uses the rails {}", list.join(", ")));
                Offer { nics, config }
            }
            Err(why) => {
                if let Some(refused) = wrap::refused() {
                    LOG.warn(refused);
                }
                LOG.info(&format!("{why}; NCCL uses its own network transport"));
                Offer { nics: Vec::new(), config }
            }
        }
    })
}

/// The endpoint; `None` if it cannot be started, which is logged once.
pub fn endpoint() -> Option<&'static Endpoint> {
    ENDPOINT
        .get_or_init(|| {
            let offer = offer();
            let rail = |n: &Nic| Rail {
                name: n.name.clone(),
                ip: n.ip,
                prefix: n.prefix,
                rate: u64::from(n.speed_mbit_per_s) * 125_000,
            };
            let mut settings = Settings::new(offer.nics.iter().map(rail).collect());
            settings.token = offer.config.token.clone().into_bytes();
            settings.chunk = offer.config.chunk;
            settings.share = offer.config.share;
            settings.relay = offer.config.relay;
            settings.plan = match &offer.config.plan {
                Source::Fixed(table) => Source::Fixed(table.of(&offer.nics.iter().map(|n| n.ip).collect::<Vec<_>>())),
                other => other.clone(),
            };
            settings.verbs =
                (offer.config.transport == Transport::Verbs).then(|| Verbs { library: offer.config.ibverbs.clone() });
            settings.log = |text| LOG.warn(text);
            settings.spawn = |f| threads::spawn("linkwise-net", f).map(drop);
            if offer.config.threads > 0 {
                settings.threads = offer.config.threads;
            }
            // I/O threads run until the process ends, so the library must stay.
            plugin_base::library::keep();
            library::close_sockets_in_children();
            match Endpoint::start(settings) {
                Ok(e) => {
                    let devices: Vec<String> = e.devices().into_iter().flatten().collect();
                    if !devices.is_empty() {
                        LOG.info(&format!("RDMA devices {}", devices.join(", ")));
                    }
                    Some(e)
                }
                Err(e) => {
                    LOG.warn(&format!("the rails cannot be used: {e}"));
                    None
                }
            }
        })
        .as_ref()
}

/// The process ends: closed connections get [`DRAIN_TIME_MAX`] for their last bytes.
pub fn end() {
    if let Some(Some(e)) = ENDPOINT.get() {
        e.drain(DRAIN_TIME_MAX);
    }
}

/// Logs the traffic of the rails.
pub fn log_counts() {
    let Some(Some(e)) = ENDPOINT.get() else { return };
    let (c, n) = (e.counts(), offer().nics.len());
    let get = |a: &std::sync::atomic::AtomicU64| a.load(Ordering::Relaxed);
    let bytes: Vec<String> = c.bytes.iter().take(n).map(|b| get(b).to_string()).collect();
    LOG.info(&format!(
        "{} messages sent; bytes by rail {}, relayed {}; chunks repeated {}, received twice {}; rails lost {}, returned {}; bytes written by RDMA devices {}",
        get(&c.messages),
        bytes.join(" "),
        get(&c.relayed),
        get(&c.repeated),
        get(&c.copies),
        get(&c.lost_paths),
        get(&c.returned_paths),
        get(&c.rdma)
    ));
}
