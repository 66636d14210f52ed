//! Overhead of the plugin: time spent in its entry points, by kind, and CPU time of its thread.
//!
//! Reading the clock costs as much as a short entry. After a thread's first calls only every 256th entry is therefore timed, and stands for all 256.
//! The part of an interrupted entry above [`LONG_NS`] counts once. Boundaries between epochs, where a call may wait for other ranks, are always timed
//! and counted separately.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The first entries of a thread, all timed; and the entries that one timed entry stands for afterwards.
const FIRST: u32 = 512;
const EVERY: u32 = 256;
/// An uninterrupted entry is shorter than this.
const LONG_NS: u64 = 4_000;

/// Kind of entry point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A decision.
    Decide = 0,
    /// A profiler event, or a step of the program.
    Event = 1,
    /// Init or finalize of a communicator: always timed.
    Setup = 2,
}

static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static NS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static BORDERS_NS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Per thread: entries until the next timed one; entries seen, up to [`FIRST`]; time at boundaries, ns.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    static SEEN: Cell<u32> = const { Cell::new(0) };
    static BORDER_NS: Cell<u64> = const { Cell::new(0) };
}

/// Runs an entry.
#[inline]
pub fn entry<T>(kind: Entry, f: impl FnOnce() -> T) -> T {
    let left = LEFT.get();
    if left > 0 && kind != Entry::Setup {
        LEFT.set(left - 1);
        return f();
    }
    timed(kind, f)
}

#[cold]
fn timed<T>(kind: Entry, f: impl FnOnce() -> T) -> T {
    let seen = SEEN.get();
    let stands_for = if kind == Entry::Setup || seen < FIRST { 1 } else { EVERY };
    if kind != Entry::Setup {
        SEEN.set(seen.saturating_add(1).min(FIRST));
        LEFT.set(if seen + 1 < FIRST { 0 } else { EVERY - 1 });
    }
    let (before, begin) = (BORDER_NS.get(), Instant::now());
    let result = f();
    let took = begin.elapsed().as_nanos() as u64;
    let own = took.saturating_sub(BORDER_NS.get() - before);
    let usual = own.min(LONG_NS);
    let add = |of: &[AtomicU64; 3], n: u64| _ = of.get(kind as usize).map(|c| c.fetch_add(n, Ordering::Relaxed));
    add(&COUNTS, u64::from(stands_for));
    add(&NS, if kind == Entry::Setup { own } else { usual * u64::from(stands_for) + (own - usual) });
    result
}

/// Runs a call's work at an epoch boundary, inside an entry.
pub fn boundary<T>(f: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = f();
    let took = begin.elapsed().as_nanos() as u64;
    BORDERS_NS.fetch_add(took, Ordering::Relaxed);
    BORDER_NS.set(BORDER_NS.get() + took);
    result
}

/// Overhead of the process so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Decisions, estimated.
    pub decisions: u64,
    /// Nanoseconds in decisions, without boundaries.
    pub decide_ns: u64,
    /// Events, estimated.
    pub events: u64,
    /// Nanoseconds in events.
    pub event_ns: u64,
    /// Nanoseconds in inits and finalizes.
    pub setup_ns: u64,
    /// Nanoseconds of calls at epoch boundaries, including waits for other ranks.
    pub boundary_ns: u64,
}

pub fn so_far() -> Cost {
    let load = |of: &[AtomicU64; 3], kind: Entry| of.get(kind as usize).map_or(0, |c| c.load(Ordering::Relaxed));
    Cost {
        decisions: load(&COUNTS, Entry::Decide),
        decide_ns: load(&NS, Entry::Decide),
        events: load(&COUNTS, Entry::Event),
        event_ns: load(&NS, Entry::Event),
        setup_ns: load(&NS, Entry::Setup),
        boundary_ns: BORDERS_NS.load(Ordering::Relaxed),
    }
}

/// CPU time of the calling thread, nanoseconds; 0 if the kernel does not provide it.
pub fn of_this_thread_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Differences are lower bounds, since other tests add to the same counters.
    #[test]
    fn entries_are_counted_apart_from_epoch_boundaries() {
        let before = so_far();
        let n = FIRST + 4 * EVERY;
        std::thread::spawn(move || {
            for _ in 0..n {
                entry(Entry::Decide, || std::hint::black_box(1 + 1));
            }
            entry(Entry::Setup, || boundary(|| std::thread::sleep(std::time::Duration::from_millis(300))));
        })
        .join()
        .unwrap();
        let after = so_far();
        assert!(after.decisions - before.decisions >= u64::from(n - EVERY), "{after:?}");
        assert!(after.decide_ns > before.decide_ns, "{after:?}");
        assert!(after.boundary_ns - before.boundary_ns >= 300_000_000, "{after:?}");
        assert!(
            after.setup_ns - before.setup_ns < after.boundary_ns - before.boundary_ns,
            "the wait is not in the entry: {after:?}"
        );
    }

    #[test]
    fn the_cpu_time_of_a_computing_thread_grows() {
        let before = of_this_thread_ns();
        let begin = Instant::now();
        while begin.elapsed().as_millis() < 60 {
            std::hint::black_box(begin);
        }
        assert!(before == 0 || of_this_thread_ns() > before);
    }
}
