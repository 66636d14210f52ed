//! What the NCCL plugin does in running jobs, as metrics: read from the folder of its status files.
//!
//! Jobs write the files, so they are hostile: files, texts and series have limits, and a file that cannot be read is counted. The
//! folder is read at most every [`LOOK`], however many clients ask.

use crate::limits::PLUGIN_SERIES_MAX;
use job::status::{CommStatus, ProcessStatus, STALE_S, read_folder};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Shortest time between two readings of the folder. The plugin writes every 2 s.
pub const LOOK: Duration = Duration::from_secs(2);

type Labels = Vec<(&'static str, String)>;
type Values = Family<Labels, Gauge<f64, AtomicU64>>;

/// The folder, and what it had.
pub struct PluginStatus {
    folder: PathBuf,
    seen: Mutex<Option<(Instant, Arc<Registry>)>>,
    /// Held while the folder is read: a file system that hangs holds one thread and no more.
    reading: Mutex<()>,
}

impl PluginStatus {
    /// A folder of status files. It may be made later.
    pub fn new(folder: PathBuf) -> PluginStatus {
        PluginStatus { folder, seen: Mutex::default(), reading: Mutex::default() }
    }

    /// What was found last.
    pub fn known(&self) -> Option<(Instant, Arc<Registry>)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The metrics of the files. Reads the folder; call it where blocking is allowed. While another call reads, the answer is what is
    /// known.
    pub fn metrics(&self, now_unix_s: u64) -> Option<Arc<Registry>> {
        let known = self.known();
        let fresh = known.as_ref().is_some_and(|(at, _)| at.elapsed() < LOOK);
        let reading = self.reading.try_lock();
        if fresh || matches!(reading, Err(TryLockError::WouldBlock)) {
            return known.map(|k| k.1);
        }
        let (processes, broken) = match read_folder(&self.folder) {
            Ok((processes, broken)) => (processes, broken.len()),
            Err(_) => (Vec::new(), 1),
        };
        let registry = Arc::new(series(&processes, broken, now_unix_s));
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), registry.clone()));
        Some(registry)
    }
}

/// A value of a communicator: its name, what it is, and where it stands.
type Value = (&'static str, &'static str, fn(&CommStatus) -> f64);

const VALUES: [Value; 7] = [
    ("plugin_calls", "Collective calls of a communicator so far", |c| c.calls as f64),
    ("plugin_epoch", "Epoch in force: the number of changes that all ranks made together", |c| c.epoch as f64),
    ("plugin_waits", "Calls so far that waited for other ranks", |c| c.waits as f64),
    ("plugin_longest_wait_seconds", "Longest wait of a call so far", |c| c.longest_wait_us as f64 / 1e6),
    ("plugin_waiting_seconds", "Time for which a call waits now; 0: none waits", |c| {
        c.waiting_us.unwrap_or(0) as f64 / 1e6
    }),
    ("plugin_silent_ranks", "Ranks that have not answered their leader", |c| c.silent.len() as f64),
    ("plugin_dropped_records", "Records lost so far because the plugin's worker was too slow", |c| c.dropped as f64),
];

fn series(processes: &[ProcessStatus], broken: usize, now: u64) -> Registry {
    let mut registry = Registry::with_prefix("linkwise");
    let live = |p: &&ProcessStatus| p.age_s(now) <= STALE_S;
    let count = |state: &dyn Fn(&ProcessStatus) -> bool| processes.iter().filter(live).filter(|p| state(p)).count();
    let states = [
        ("live", count(&|_| true)),
        ("silent", processes.len() - count(&|_| true)),
        ("stopped", count(&|p| p.stopped)),
        ("frozen", count(&|p| p.frozen)),
    ];
    let number = Values::default();
    for (state, n) in states {
        number.get_or_create(&vec![("state", state.to_owned())]).set(n as f64);
    }
    let about = "Processes with a status file: live, silent for more than 15 s, and of the live ones stopped or frozen";
    registry.register("plugin_processes", about, number);
    let refused = Gauge::<i64>::default();
    refused.set(broken as i64);
    registry.register("plugin_files_refused", "Status files that cannot be read", refused);

    let mut left_out = 0;
    let families: Vec<Values> = VALUES.iter().map(|_| Values::default()).collect();
    let arms = Values::default();
    let (mut comms, mut arm_count) = (0, 0);
    let all = processes.iter().filter(live).flat_map(|p| p.comms.iter().map(move |c| (p, c)));
    for (p, c) in all.filter(|(_, c)| c.leads || c.rank == 0) {
        if comms == PLUGIN_SERIES_MAX {
            left_out += 1;
            continue;
        }
        comms += 1;
        let of = vec![("comm", c.comm.clone()), ("host", p.host_name.clone()), ("rank", c.rank.to_string())];
        for ((_, _, value), family) in VALUES.iter().zip(&families) {
            family.get_or_create(&of).set(value(c));
        }
        for s in &c.slots {
            if arm_count == PLUGIN_SERIES_MAX {
                left_out += 1;
                continue;
            }
            arm_count += 1;
            let (size, arm) = (s.size_bytes.to_string(), s.arm.clone());
            let of = vec![
                ("comm", c.comm.clone()),
                ("collective", s.collective.clone()),
                ("size_bytes", size),
                ("arm", arm),
            ];
            arms.get_or_create(&of).set(1.0);
        }
    }
    for ((name, about, _), family) in VALUES.iter().zip(families) {
        registry.register(*name, *about, family);
    }
    registry.register("plugin_arm", "1 for the arm in use, by communicator, collective and size", arms);
    let rest = Gauge::<i64>::default();
    rest.set(left_out);
    registry.register("plugin_left_out", "Communicators and arms beyond the limit of series", rest);
    registry
}
