//! A loop says that it goes on: it writes a file again and again. `alive` looks at the file, for the probes of a pod.

use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Shortest time between two writes.
const BEAT: Duration = Duration::from_secs(1);

/// The file of a loop, as a flag.
#[derive(Args, Clone, Debug, Default)]
pub struct PulseArgs {
    /// File to write while the program works, for `alive`
    #[arg(long, value_name = "FILE")]
    pub pulse: Option<PathBuf>,
}

/// Arguments of `alive`.
#[derive(Args, Clone, Debug)]
pub struct Alive {
    /// The file that the program writes
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Age of the file from which on the program is called dead, seconds
    #[arg(long, default_value_t = 120, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub within_seconds: u64,
}

/// The pulse of a loop. Requests inside the loop beat, too: each has a deadline.
#[derive(Debug, Default)]
pub struct Pulse {
    file: Option<PathBuf>,
    last: Mutex<Option<Instant>>,
}

impl Pulse {
    /// A pulse; without a file it does nothing.
    pub fn new(args: &PulseArgs) -> Pulse {
        Pulse::at(args.pulse.clone())
    }

    /// A pulse in a file; without one it does nothing.
    pub fn at(file: Option<PathBuf>) -> Pulse {
        Pulse { file, last: Mutex::default() }
    }

    /// True if there is a file: a probe looks at it.
    pub fn is_on(&self) -> bool {
        self.file.is_some()
    }

    /// Says that the loop goes on. A failed write is not told here: the probe finds the old file.
    pub fn beat(&self) {
        let Some(file) = &self.file else { return };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|at| at.elapsed() >= BEAT) {
            let _ = std::fs::write(file, "alive\n");
            *last = Some(Instant::now());
        }
    }
}

/// Looks at a pulse. A file from the future is young: the clock went back.
///
/// # Errors
/// The file is missing or too old, in words.
pub fn alive(a: &Alive, now: SystemTime) -> Result<(), String> {
    let written = modified(&a.file).map_err(|e| format!("{}: {e}", a.file.display()))?;
    let age = now.duration_since(written).unwrap_or_default().as_secs();
    if age <= a.within_seconds {
        return Ok(());
    }
    Err(format!("{}: written {age} s ago; {} s are allowed", a.file.display(), a.within_seconds))
}

fn modified(file: &Path) -> std::io::Result<SystemTime> {
    std::fs::metadata(file)?.modified()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_alive_while_it_writes_and_dead_some_time_after() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pulse");
        let a = Alive { file: file.clone(), within_seconds: 60 };
        let error = alive(&a, SystemTime::now()).unwrap_err();
        assert!(error.contains("pulse"), "{error}");
        let pulse = Pulse::new(&PulseArgs { pulse: Some(file.clone()) });
        pulse.beat();
        let after = |s: u64| alive(&a, SystemTime::now() + Duration::from_secs(s));
        assert_eq!(after(0), Ok(()));
        assert!(after(120).unwrap_err().contains("60 s are allowed"));
        // The clock went back.
        assert_eq!(alive(&a, SystemTime::now() - Duration::from_secs(3600)), Ok(()));
        // An old file is made young by the next beat.
        std::fs::File::open(&file).unwrap().set_modified(SystemTime::now() - Duration::from_secs(600)).unwrap();
        assert!(after(0).is_err());
        std::thread::sleep(BEAT);
        pulse.beat();
        assert_eq!(after(0), Ok(()));
        Pulse::default().beat();
    }
}
