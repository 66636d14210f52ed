//! A fit and a diagnosis that are cancelled end in the middle of their work, and cost nothing when they are not.
//!
//! `LINKWISE_TEST_READINGS=100000 LINKWISE_TEST_HOSTS=1024 cargo test --workspace --test cancel -- --nocapture` prints how long the end takes
//! at the size of a large site.

#[path = "../../predict/tests/common/fleet.rs"]
mod fleet;

use engine::{DiagnoseRequest, Engine, EngineError, FitRequest, Progress, RefitAnswer};
use fleet::Fleet;
use predict::{FitOptions, Kind, Stop, fit};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use store::{By, Measurement, Record, State, Store};

const SITE: By<'static> = By { who: "server", why: "", at_unix_s: 5.0, own_only: false };

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |n| n.parse().unwrap())
}

/// An engine without a model, and its readings.
fn engine(folder: &Path) -> (Engine, Vec<Measurement>) {
    let mut fleet = Fleet::new(number("LINKWISE_TEST_HOSTS", 64), false, 1);
    let rows = fleet.readings(0..number("LINKWISE_TEST_READINGS", 600));
    let mut store = Store::create(&folder.join("r.db"), &fleet.cluster).unwrap();
    let records: Vec<Record> = rows.iter().cloned().map(Record::from).collect();
    records.chunks(5_000).for_each(|batch| _ = store.insert_batch(batch).unwrap());
    let state = State::init(&folder.join("s.db"), &fleet.cluster, 0.0).unwrap();
    (Engine::builder(fleet.cluster.clone()).state(state).store(store).build().unwrap(), rows)
}

/// Processor time of this thread.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

/// A refit that is cancelled when it reaches a step; its processor time, and the time from the wish to the end.
fn refit(e: &Engine, cancel_at: Option<usize>) -> (Result<RefitAnswer, EngineError>, Duration, Duration) {
    let progress = Progress::default();
    std::thread::scope(|s| {
        let fits = s.spawn(|| {
            let start = cpu();
            (e.refit(&FitRequest::default(), SITE, &progress), cpu() - start)
        });
        let mut wished = Instant::now();
        if let Some(step) = cancel_at {
            while progress.step() < step && !fits.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(number("LINKWISE_TEST_CANCEL_AFTER_MS", 0) as u64));
            wished = Instant::now();
            progress.cancel();
        }
        let (done, cpu) = fits.join().unwrap();
        (done, cpu, wished.elapsed())
    })
}

#[test]
fn a_cancelled_fit_ends_in_the_middle_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (e, _) = engine(folder.path());
    let (done, cancelled, end) = refit(&e, Some(2));
    assert_eq!(done.unwrap_err().code(), "cancelled");
    assert!(e.model_if_any().is_none() && e.versions().is_empty());
    println!("cancelled as it fitted, a fit took {cancelled:.2?} of a processor and ended {end:.2?} after the wish");
    let (done, whole, _) = refit(&e, None);
    assert!(done.unwrap().promoted);
    println!("the whole fit takes {whole:.2?}");
    assert!(cancelled < whole / 2, "cancelled {cancelled:?}, whole {whole:?}");
}

#[test]
fn a_fit_that_could_be_cancelled_has_the_same_bits() {
    let mut fleet = Fleet::new(16, true, 2);
    let rows = fleet.readings(0..150);
    let (flag, set) = (AtomicBool::new(false), AtomicBool::new(true));
    let options = |stop| FitOptions { stop, ..FitOptions::of(Kind::Gp) };
    let text = |stop| fit(&fleet.cluster, &rows, &options(stop)).map(|m| m.0.save().unwrap());
    assert!(text(Stop::default()).unwrap() == text(Stop::when(&flag)).unwrap());
    assert_eq!(text(Stop::when(&set)).unwrap_err().to_string(), "the fit was cancelled");
}

#[test]
fn a_cancelled_diagnosis_keeps_the_suspects() {
    let folder = tempfile::tempdir().unwrap();
    let (e, _) = engine(folder.path());
    let before = e.snapshot().unwrap().suspects.clone();
    let progress = Progress::default();
    let (done, end) = std::thread::scope(|s| {
        let runs = s.spawn(|| e.diagnose_until(&DiagnoseRequest::default(), SITE, &progress));
        while progress.step() < 1 && !runs.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let wished = Instant::now();
        progress.cancel();
        (runs.join().unwrap(), wished.elapsed())
    });
    println!("a diagnosis ended {end:.2?} after the wish");
    assert_eq!(done.unwrap_err().code(), "cancelled");
    assert_eq!(e.snapshot().unwrap().suspects, before);
    assert!(e.events(&Default::default()).unwrap().events.is_empty());
}
