//! Handles of events that two profilers know: a fixed pool. A handle is a number, not a pointer, so a stale or invalid one refers to no event.
//!
//! NCCL names the parent of an event by its handle, also after the parent has stopped (kernels and network steps of a collective come later). A slot
//! therefore keeps its handles after the stop, until [`POOL`] newer events have begun. Slots of events that have not stopped are not reused before
//! [`LAPS`] times as many have begun; if the next [`TRIES`] slots are all in use, the site's profiler does not get the new event.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Events that are remembered: 2 MiB, allocated only where the site has a profiler.
pub const POOL: usize = 1 << 16;
/// Slots that a new event looks at.
const TRIES: usize = 16;
/// Turns of the pool after which an event that has not stopped counts as forgotten.
const LAPS: u64 = 4;
/// Marks a handle of linkwise alone, which takes no slot.
const OWN: usize = 1 << 63;

/// The handles of one event: the site's and linkwise's; 0 means none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pair {
    pub site: usize,
    pub own: usize,
}

#[derive(Debug, Default)]
struct HandleSlot {
    /// Number of the event held; 0 while it is being written.
    number: AtomicU64,
    open: AtomicBool,
    site: AtomicUsize,
    own: AtomicUsize,
}

/// The pool.
#[derive(Debug)]
pub struct Handles {
    next: AtomicU64,
    dropped: AtomicU64,
    slots: Box<[HandleSlot]>,
}

/// A slot that is reserved for an event which is about to begin.
#[derive(Debug)]
pub struct Reserved {
    number: u64,
}

impl Handles {
    pub fn new(slots: usize) -> Self {
        Handles {
            next: AtomicU64::new(1),
            dropped: AtomicU64::new(0),
            slots: (0..slots.max(1)).map(|_| HandleSlot::default()).collect(),
        }
    }

    fn slot(&self, number: u64) -> Option<&HandleSlot> {
        self.slots.get((number % self.slots.len() as u64) as usize)
    }

    /// A slot for a new event; `None` if those looked at belong to events that have not stopped.
    pub fn reserve(&self) -> Option<Reserved> {
        for _ in 0..TRIES {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let slot = self.slot(number)?;
            if slot.open.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                slot.number.store(0, Ordering::SeqCst);
                return Some(Reserved { number });
            }
            let held = slot.number.load(Ordering::SeqCst);
            let is_old = held != 0 && held + LAPS * self.slots.len() as u64 <= number;
            if is_old && slot.number.compare_exchange(held, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return Some(Reserved { number });
            }
        }
        self.dropped.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// The event's handles are known. Returns the handle for NCCL, 0 if neither profiler follows the event.
    pub fn fill(&self, reserved: Reserved, pair: Pair) -> usize {
        let Some(slot) = self.slot(reserved.number) else { return 0 };
        if pair == Pair::default() {
            slot.open.store(false, Ordering::Release);
            return 0;
        }
        slot.site.store(pair.site, Ordering::Relaxed);
        slot.own.store(pair.own, Ordering::Relaxed);
        slot.number.store(reserved.number, Ordering::SeqCst);
        reserved.number as usize
    }

    /// A handle for an event of linkwise alone; 0 if it does not follow the event.
    pub fn own_alone(own: usize) -> usize {
        if own == 0 { 0 } else { own | OWN }
    }

    /// The handles behind a handle that NCCL holds.
    pub fn get(&self, handle: usize) -> Pair {
        if handle & OWN != 0 {
            return Pair { site: 0, own: handle & !OWN };
        }
        let number = handle as u64;
        let Some(slot) = self.slot(number).filter(|s| number != 0 && s.number.load(Ordering::SeqCst) == number) else {
            return Pair::default();
        };
        let pair = Pair { site: slot.site.load(Ordering::Relaxed), own: slot.own.load(Ordering::Relaxed) };
        // Another event may have taken the slot meanwhile.
        if slot.number.load(Ordering::SeqCst) == number { pair } else { Pair::default() }
    }

    /// The event has stopped. Its handles stay known as a parent's until the slot is reused.
    pub fn stop(&self, handle: usize) -> Pair {
        let pair = self.get(handle);
        if pair != Pair::default()
            && handle & OWN == 0
            && let Some(slot) = self.slot(handle as u64)
        {
            slot.open.store(false, Ordering::Release);
        }
        pair
    }

    /// Events that were not forwarded, because the pool was full.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(h: &Handles, site: usize) -> usize {
        h.reserve().map_or(0, |r| h.fill(r, Pair { site, own: site + 1 }))
    }

    #[test]
    fn a_parent_is_known_after_its_stop_until_the_pool_has_turned() {
        let h = Handles::new(64);
        let parent = begin(&h, 1000);
        assert_eq!(h.stop(parent), Pair { site: 1000, own: 1001 });
        for i in 0..63 {
            let child = begin(&h, i + 1);
            assert_eq!(h.get(parent), Pair { site: 1000, own: 1001 });
            h.stop(child);
        }
        begin(&h, 5);
        assert_eq!(h.get(parent), Pair::default(), "the slot was reused");
    }

    #[test]
    fn open_events_keep_their_slots_and_a_full_pool_refuses_new_ones() {
        let h = Handles::new(8);
        let open: Vec<usize> = (0..8).map(|i| begin(&h, 10 * i + 10)).collect();
        assert!(open.iter().all(|o| *o != 0));
        assert_eq!((begin(&h, 999), h.dropped()), (0, 1));
        for (i, o) in open.iter().enumerate() {
            assert_eq!(h.get(*o).site, 10 * i + 10);
        }
        h.stop(open[3]);
        assert_ne!(begin(&h, 999), 0);
        // Events that never stop do not fill the pool for ever.
        let begun = (0..10).filter(|_| begin(&h, 999) != 0).count();
        assert!(begun >= 5 && h.get(open[0]) == Pair::default(), "{begun}");
        let own = Handles::own_alone(77);
        assert_eq!((h.get(own), h.stop(own)), (Pair { site: 0, own: 77 }, Pair { site: 0, own: 77 }));
        assert_eq!(Handles::own_alone(0), 0);
    }

    #[test]
    fn invalid_handles_and_events_without_a_follower_are_no_events() {
        let h = Handles::new(8);
        let live = begin(&h, 7);
        for wild in [0, live + 1, live + 8, usize::MAX >> 1] {
            assert_eq!(h.get(wild), Pair::default());
            h.stop(wild);
        }
        assert_eq!(h.get(live).site, 7);
        let reserved = h.reserve().unwrap();
        assert_eq!(h.fill(reserved, Pair::default()), 0);
        for _ in 0..100 {
            let reserved = h.reserve().unwrap();
            h.fill(reserved, Pair::default());
        }
    }

    #[test]
    fn threads_never_see_the_handles_of_another_event() {
        let h = Handles::new(256);
        std::thread::scope(|s| {
            for t in 0..4usize {
                let h = &h;
                s.spawn(move || {
                    let mut mine = std::collections::VecDeque::new();
                    for i in 0..20_000usize {
                        let site = (t << 32) + i + 1;
                        if let Some(r) = h.reserve() {
                            mine.push_back((h.fill(r, Pair { site, own: 0 }), site));
                        }
                        if mine.len() > 20 {
                            let (handle, site) = mine.pop_front().unwrap();
                            // A thread that stood still for four turns of the pool finds its events forgotten, never another's.
                            let found = h.stop(handle).site;
                            assert!(found == site || found == 0, "{found} for {site}");
                        }
                    }
                });
            }
        });
    }
}
