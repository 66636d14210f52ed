//! Profiler events: a fixed pool, written by NCCL's threads and read by the worker. Handles are numbers, not pointers, so a stale, repeated or
//! invalid handle refers to no event.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tune::{Algorithm, Collective, Protocol};

/// Limit on collectives in progress; older ones are overwritten.
pub const POOL: usize = 1024;
/// NCCL's limit on channels.
const CHANNELS: usize = 64;
/// Duration of a channel whose end time is unknown.
const UNKNOWN_NS: u64 = u64::MAX;

/// A collective that NCCL enqueues, as reported to the profiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enqueued {
    /// Identifies the rank and communicator (the profiler's context).
    pub owner: u64,
    /// NCCL's number of the operation.
    pub sequence: u64,
    pub collective: Collective,
    /// Elements; of one rank's share for collectives with shares.
    pub count: u64,
    pub element_bytes: u8,
    /// The algorithm that NCCL chose.
    pub algorithm: Option<Algorithm>,
    /// The protocol that NCCL chose.
    pub protocol: Option<Protocol>,
    pub channels: u8,
}

/// An enqueued collective, with its GPU time if NCCL reported one for every channel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LaunchedCollective {
    pub enqueued: Enqueued,
    /// The longest channel, nanoseconds of the GPU's clock.
    pub kernel_ns: Option<u64>,
}

#[derive(Debug)]
struct EventSlot {
    /// Number of the event held, plus 1; 0 while it is being written.
    number_plus_one: AtomicU64,
    owner: AtomicU64,
    sequence: AtomicU64,
    count: AtomicU64,
    /// collective | element bytes << 8 | algorithm << 16 | protocol << 24 | channels << 32
    collective_code: AtomicU64,
    longest_ns: AtomicU64,
    stopped: AtomicU32,
    starts_ns: [AtomicU64; CHANNELS],
}

/// The events of a process.
#[derive(Debug)]
pub struct Events {
    begun: AtomicU64,
    read: AtomicU64,
    groups: AtomicU64,
    slots: [EventSlot; POOL],
}

impl Default for Events {
    fn default() -> Self {
        Self::new()
    }
}

impl Events {
    /// An empty pool. It is all zeros, so that a static takes no memory until it is used.
    pub const fn new() -> Self {
        Events {
            begun: AtomicU64::new(0),
            read: AtomicU64::new(0),
            groups: AtomicU64::new(0),
            slots: [const {
                EventSlot {
                    number_plus_one: AtomicU64::new(0),
                    owner: AtomicU64::new(0),
                    sequence: AtomicU64::new(0),
                    count: AtomicU64::new(0),
                    collective_code: AtomicU64::new(0),
                    longest_ns: AtomicU64::new(0),
                    stopped: AtomicU32::new(0),
                    starts_ns: [const { AtomicU64::new(0) }; CHANNELS],
                }
            }; POOL],
        }
    }

    fn slot(&self, number: u64) -> Option<&EventSlot> {
        self.slots.get((number % POOL as u64) as usize)
    }

    /// An outermost group begins. Returns its number, from 1, as the handle.
    pub fn group(&self) -> u64 {
        self.groups.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A collective is enqueued. Returns its handle, which is not 0.
    pub fn enqueued(&self, e: &Enqueued) -> u64 {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let Some(slot) = self.slot(number) else { return 0 };
        slot.number_plus_one.store(0, Ordering::SeqCst);
        slot.owner.store(e.owner, Ordering::Relaxed);
        slot.sequence.store(e.sequence, Ordering::Relaxed);
        slot.count.store(e.count, Ordering::Relaxed);
        let collective_code = u64::from(e.collective.number())
            | u64::from(e.element_bytes) << 8
            | e.algorithm.map_or(0xff, |a| a as u64) << 16
            | e.protocol.map_or(0xff, |p| p as u64) << 24
            | u64::from(e.channels) << 32;
        slot.collective_code.store(collective_code, Ordering::Relaxed);
        slot.longest_ns.store(0, Ordering::Relaxed);
        slot.stopped.store(0, Ordering::Relaxed);
        slot.number_plus_one.store(number + 1, Ordering::SeqCst);
        (number + 1) << 8
    }

    fn held(&self, handle: u64) -> Option<&EventSlot> {
        let number = (handle >> 8).checked_sub(1)?;
        self.slot(number).filter(|s| s.number_plus_one.load(Ordering::SeqCst) == number + 1)
    }

    /// A channel of a collective has started on the GPU. Returns a handle, or 0 if the collective is unknown.
    pub fn channel_started(&self, collective: u64, channel: u8, at_ns: u64) -> u64 {
        let Some(start) = self.held(collective).and_then(|s| s.starts_ns.get(usize::from(channel))) else { return 0 };
        start.store(at_ns, Ordering::Relaxed);
        (collective & !0xff) | (u64::from(channel) + 1)
    }

    /// A channel has stopped.
    pub fn channel_stopped(&self, channel: u64, at_ns: u64) {
        let Some(c) = (channel & 0xff).checked_sub(1) else { return };
        let Some(slot) = self.held(channel) else { return };
        let Some(start) = slot.starts_ns.get(c as usize).map(|s| s.load(Ordering::Relaxed)) else { return };
        // Some releases report 0 for either time: then the collective has no GPU time.
        let took = if start == 0 || at_ns <= start { UNKNOWN_NS } else { at_ns - start };
        slot.longest_ns.fetch_max(took, Ordering::Relaxed);
        slot.stopped.fetch_add(1, Ordering::Release);
    }

    /// The number of the event that [`next`](Events::next) would return.
    pub fn head(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Removes the oldest complete event. Without `kernels` an event is complete at once; with it, once all its channels have stopped or `POOL / 2`
    /// newer events have begun. One reader at a time.
    pub fn next(&self, kernels: bool) -> Option<LaunchedCollective> {
        loop {
            let (at, begun) = (self.read.load(Ordering::Relaxed), self.begun.load(Ordering::Acquire));
            if at >= begun {
                return None;
            }
            let slot = self.slot(at)?;
            let number_plus_one = slot.number_plus_one.load(Ordering::SeqCst);
            if number_plus_one != at + 1 && begun - at < POOL as u64 {
                return None; // being written
            }
            let collective_code = slot.collective_code.load(Ordering::Relaxed);
            let channels = (collective_code >> 32 & 0xff) as u8;
            let complete = slot.stopped.load(Ordering::Acquire) >= u32::from(channels);
            if kernels && !complete && begun - at < POOL as u64 / 2 {
                return None;
            }
            self.read.store(at + 1, Ordering::Relaxed);
            let longest = slot.longest_ns.load(Ordering::Relaxed);
            let enqueued = Enqueued {
                owner: slot.owner.load(Ordering::Relaxed),
                sequence: slot.sequence.load(Ordering::Relaxed),
                collective: match Collective::tuned_of_number((collective_code & 0xff) as usize) {
                    Some(c) => c,
                    None => continue,
                },
                count: slot.count.load(Ordering::Relaxed),
                element_bytes: (collective_code >> 8) as u8,
                algorithm: Algorithm::of_number((collective_code >> 16 & 0xff) as usize),
                protocol: Protocol::of_number((collective_code >> 24 & 0xff) as usize),
                channels,
            };
            if slot.number_plus_one.load(Ordering::SeqCst) == at + 1 {
                return Some(LaunchedCollective {
                    enqueued,
                    kernel_ns: (kernels && complete && longest > 0 && longest < UNKNOWN_NS).then_some(longest),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enqueued(sequence: u64) -> Enqueued {
        Enqueued {
            owner: 7,
            sequence,
            collective: Collective::AllReduce,
            count: 1000,
            element_bytes: 4,
            algorithm: Some(Algorithm::Ring),
            protocol: None,
            channels: 2,
        }
    }

    #[test]
    fn the_longest_channel_is_the_time() {
        let events = Box::new(Events::new());
        let handle = events.enqueued(&enqueued(1));
        let (a, b) = (events.channel_started(handle, 0, 100), events.channel_started(handle, 5, 110));
        events.channel_stopped(b, 510);
        assert_eq!(events.next(true), None, "one channel runs");
        events.channel_stopped(a, 200);
        assert_eq!(events.next(true), Some(LaunchedCollective { enqueued: enqueued(1), kernel_ns: Some(400) }));
        assert_eq!(events.next(true), None);
    }

    #[test]
    fn a_collective_with_a_channel_without_times_has_no_time_and_blocks_no_event() {
        let events = Box::new(Events::new());
        for sequence in 0..2 {
            let handle = events.enqueued(&enqueued(sequence));
            let (a, b) = (events.channel_started(handle, 0, 100), events.channel_started(handle, 1, 100 * sequence));
            events.channel_stopped(a, 200);
            events.channel_stopped(b, 300);
        }
        assert_eq!(events.next(true), Some(LaunchedCollective { enqueued: enqueued(0), kernel_ns: None }));
        assert_eq!(events.next(true), Some(LaunchedCollective { enqueued: enqueued(1), kernel_ns: Some(200) }));
    }

    #[test]
    fn stale_and_invalid_handles_find_no_event() {
        let events = Box::new(Events::new());
        let old = events.enqueued(&enqueued(0));
        for i in 0..POOL as u64 {
            events.enqueued(&enqueued(i));
        }
        assert_eq!(events.channel_started(old, 0, 1), 0);
        for wild in [0, 1, 255, u64::MAX, u64::MAX << 8] {
            assert_eq!(events.channel_started(wild, 63, 1), 0);
            events.channel_stopped(wild, 2);
        }
        let live = events.enqueued(&enqueued(5));
        assert_eq!(events.channel_started(live, 200, 1), 0, "no such channel");
    }

    #[test]
    fn events_without_kernels_are_complete_at_once() {
        let events = Box::new(Events::new());
        events.enqueued(&enqueued(3));
        assert_eq!(events.next(false), Some(LaunchedCollective { enqueued: enqueued(3), kernel_ns: None }));
    }
}
