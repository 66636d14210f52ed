//! The rhythm of a training loop: how many calls one step has, and at which call a step begins.
//!
//! Where the program reports its steps, a rhythm is found as soon as [`ALIKE`] steps had the same calls. Otherwise it is
//! the shortest period after which the sequence of groups (their slots) repeats **and** their distances in time do. With
//! one slot the sequence alone says nothing: K calls of one size look alike, but the distance before a step's first call
//! is longer than those inside of it.

use std::collections::{BTreeMap, VecDeque};

/// Steps in a row with the same calls.
pub const ALIKE: usize = 4;
/// Steps in a row that are needed in addition for every time that the calls changed before, and at most.
const ALIKE_AFTER_CHANGE: usize = 4;
const ALIKE_MAX: usize = 48;
/// Reported steps without a rhythm after which there is none.
pub const STEPS_MAX: usize = 64;
/// Groups at which a period is looked for the first time, and those at which the search is given up.
pub const GROUPS_MIN: usize = 18;
pub const GROUPS_MAX: usize = 2048;
/// Calls that are remembered.
const CALLS_MAX: usize = 8192;
/// Periods that the groups must contain.
const PERIODS_MIN: usize = 3;
/// The longest distance is at most this share of the time: else too few steps were seen.
const LONGEST_SHARE: f64 = 0.2;
/// Two distances that differ by more than this share of the longer one do not repeat.
const ALIKE_SHARE: f64 = 0.3;
/// A distance counts by its length, up to this many times the typical one: one pause must not decide.
const WEIGHT_MAX: f64 = 1.5;
/// A period is none if more than this share of the time does not repeat.
const DIFFERENT_MAX: f64 = 0.5;
/// The same for a period that is known: what is tried changes distances, too.
const DIFFERENT_KNOWN_MAX: f64 = 0.6;
/// A longer period must repeat better by this share of the time.
const BETTER_SHARE: f64 = 0.15;

/// A call of the leading rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeenCall {
    /// Number of the call in the communicator.
    pub number: u64,
    /// The slot, as a number of the caller's.
    pub slot: u32,
    /// The outermost group; 0 if NCCL reports none.
    pub group: u32,
    /// When the group began, nanoseconds.
    pub at_ns: u64,
}

/// The calls of one slot in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotCadence {
    /// Calls per step.
    pub calls: u64,
    /// Groups with such calls.
    pub groups: u64,
}

/// A loop whose steps all have the same calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cadence {
    /// Number of a call with which a step begins.
    pub begin: u64,
    /// Calls of the communicator per step.
    pub calls: u64,
    /// The calls of each slot.
    pub slots: BTreeMap<u32, SlotCadence>,
    /// The program reported its steps.
    pub told: bool,
}

impl Cadence {
    /// The same steps, except for the call at which one begins.
    fn is_alike(&self, other: &Cadence) -> bool {
        (self.calls, self.told, &self.slots) == (other.calls, other.told, &other.slots)
    }
}

/// What is known of the rhythm.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Rhythm {
    /// Too few calls so far.
    #[default]
    Unknown,
    /// Steps have the same calls.
    Steady(Cadence),
    /// There is none: the reason.
    None(String),
}

/// Finds the rhythm in the calls of one rank.
#[derive(Debug, Clone, Default)]
pub struct CadenceFinder {
    calls: VecDeque<SeenCall>,
    /// First calls of the newest reported steps that had any.
    steps: VecDeque<u64>,
    reported: usize,
    /// Calls of the newest reported step, steps in a row that had as many, and how often the number changed.
    newest: u64,
    alike: usize,
    changes: usize,
    /// Groups since the search began, and how many it needs next.
    groups: usize,
    next_search: usize,
    last_group: u32,
    rhythm: Rhythm,
    /// The period in groups.
    period: Option<usize>,
}

impl CadenceFinder {
    /// The rhythm now.
    pub fn rhythm(&self) -> &Rhythm {
        &self.rhythm
    }

    /// A call of the leading rank, in order.
    pub fn call(&mut self, call: SeenCall) {
        if call.group == 0 || call.group != self.last_group {
            self.groups += 1;
        }
        self.last_group = call.group;
        if self.calls.len() == CALLS_MAX {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
        if self.reported == 0 && self.groups > self.next_search.max(GROUPS_MIN) {
            self.next_search = if self.groups >= GROUPS_MAX { self.groups + GROUPS_MAX } else { 2 * self.groups };
            self.search();
        }
    }

    /// The program reported a step; its first call has this number.
    pub fn step(&mut self, first: u64) {
        if self.reported == 0 {
            self.rhythm = Rhythm::Unknown;
        }
        self.reported += 1;
        if let Some(calls) = self.steps.back().map(|before| first.saturating_sub(*before)) {
            self.changes += usize::from(self.alike > 0 && calls != self.newest);
            self.alike = if calls == self.newest { self.alike + 1 } else { 1 };
            self.newest = calls;
        }
        self.steps.push_back(first);
        if self.steps.len() > ALIKE + 1 {
            self.steps.pop_front();
        }
        let found = self.of_steps();
        match (&mut self.rhythm, found) {
            (Rhythm::Steady(old), Some(new)) if old.is_alike(&new) => old.begin = new.begin,
            (_, Some(new)) => self.rhythm = Rhythm::Steady(new),
            (Rhythm::Unknown, None) if self.reported >= STEPS_MAX => {
                self.rhythm = Rhythm::None(format!("{} reported steps: their calls vary", self.reported));
            }
            _ => {}
        }
    }

    /// The cadence of the newest reported steps, if they are alike.
    fn of_steps(&self) -> Option<Cadence> {
        if self.steps.len() <= ALIKE || self.alike < (ALIKE + ALIKE_AFTER_CHANGE * self.changes).min(ALIKE_MAX) {
            return None;
        }
        let pairs = self.steps.iter().zip(self.steps.iter().skip(1));
        let mut all = pairs.map(|(from, to)| (to.saturating_sub(*from), self.count(*from, *to)));
        let (calls, slots) = all.next()?;
        all.all(|one| one == (calls, slots.clone())).then_some(())?;
        Some(Cadence { begin: *self.steps.back()?, calls, slots, told: true })
    }

    /// The calls by slot from call `from` to before call `to`.
    fn count(&self, from: u64, to: u64) -> BTreeMap<u32, SlotCadence> {
        let begin = self.calls.partition_point(|c| c.number < from);
        let end = self.calls.partition_point(|c| c.number < to);
        let mut out: BTreeMap<u32, (SlotCadence, u32)> = BTreeMap::new();
        for call in self.calls.range(begin..end.max(begin)) {
            let (slot, group) = out.entry(call.slot).or_insert((SlotCadence::default(), 0));
            slot.calls += 1;
            if call.group == 0 || call.group != *group {
                slot.groups += 1;
            }
            *group = call.group;
        }
        out.into_iter().map(|(k, v)| (k, v.0)).collect()
    }

    /// Looks for a period in the newest groups.
    fn search(&mut self) {
        let groups = self.newest_groups();
        let found = period(&groups, self.period);
        self.period = found.or(self.period);
        let found = found.and_then(|p| {
            // A step begins after the longest distance: there the host waited.
            let last = groups.len() - 1;
            let at = (0..p).map(|i| last - p + i).max_by_key(|i| groups[i + 1].at_ns - groups[*i].at_ns)? + 1;
            let begin = groups[at].first;
            let from = groups[last - p].first;
            let calls = groups[last].first - from;
            Some(Cadence { begin, calls, slots: self.count(from, from + calls), told: false })
        });
        match (&mut self.rhythm, found) {
            (Rhythm::Steady(old), Some(new)) if old.is_alike(&new) => old.begin = new.begin,
            (_, Some(new)) => self.rhythm = Rhythm::Steady(new),
            (_, None) if self.groups >= GROUPS_MAX => {
                let longest = GROUPS_MAX / PERIODS_MIN;
                self.rhythm =
                    Rhythm::None(format!("steps not told, and the calls do not repeat within {longest} groups"));
            }
            (_, None) => self.rhythm = Rhythm::Unknown,
        }
    }

    /// The newest groups, the last one (which may go on) included.
    fn newest_groups(&self) -> Vec<Group> {
        let mut out: Vec<Group> = Vec::new();
        let mut current = None;
        for call in &self.calls {
            let same = call.group != 0 && current == Some(call.group);
            current = Some(call.group);
            match out.last_mut().filter(|_| same) {
                Some(group) => group.content = mix(group.content, call.slot),
                None => out.push(Group { content: mix(0, call.slot), first: call.number, at_ns: call.at_ns }),
            }
        }
        // The first third may be a program that is still warming up.
        let from = (out.len() / 3).max(out.len().saturating_sub(GROUPS_MAX));
        out.split_off(from)
    }
}

/// A group of the leading rank.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// Hash of its slots in order.
    content: u64,
    /// Its first call.
    first: u64,
    at_ns: u64,
}

fn mix(hash: u64, slot: u32) -> u64 {
    (hash ^ u64::from(slot).wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

/// The shortest period of the groups, in groups; see the module documentation. The period `before` stays if the groups
/// still repeat with it, and with no part of it as well. O(groups squared / 3).
fn period(groups: &[Group], before: Option<usize>) -> Option<usize> {
    let n = groups.len().checked_sub(1)?; // the last group may go on
    let gaps: Vec<f64> = groups.windows(2).map(|w| w[1].at_ns.saturating_sub(w[0].at_ns) as f64).collect();
    let total: f64 = gaps.iter().sum();
    let longest = gaps.iter().copied().fold(0.0, f64::max);
    if total <= 0.0 || longest > LONGEST_SHARE * total {
        return None;
    }
    let most = WEIGHT_MAX * typical(&gaps);
    let weight = |gap: f64| gap.min(most);
    // The share of the time that does not repeat after p groups.
    let different = |p: usize| -> Option<f64> {
        if (p..n).any(|i| groups[i].content != groups[i - p].content) {
            return None;
        }
        let (mut bad, mut all) = (0.0, 0.0);
        for (a, b) in (p..n).map(|i| (gaps[i], gaps[i - p])) {
            let weight = weight(a.max(b));
            all += weight;
            bad += if (a - b).abs() > ALIKE_SHARE * a.max(b) { weight } else { 0.0 };
        }
        (all > 0.0).then(|| bad / all)
    };
    if let Some(known) = before.filter(|p| *p <= n / PERIODS_MIN)
        && let Some(d) = different(known).filter(|d| *d <= DIFFERENT_KNOWN_MAX)
    {
        // A first noise may have shown a multiple of the period.
        let as_well = |p: &usize| known.is_multiple_of(*p) && different(*p).is_some_and(|e| e <= d);
        return (1..known).find(as_well).or(before);
    }
    let all: Vec<(usize, f64)> = (1..=n / PERIODS_MIN).filter_map(|p| Some((p, different(p)?))).collect();
    let least = all.iter().map(|d| d.1).fold(f64::INFINITY, f64::min);
    all.iter().find(|d| d.1 <= (least + BETTER_SHARE).min(DIFFERENT_MAX)).map(|d| d.0)
}

/// The distance at three quarters of the time: a quarter of the time lies in longer ones.
fn typical(gaps: &[f64]) -> f64 {
    let sorted = stats::sorted(gaps);
    let most = 0.75 * sorted.iter().sum::<f64>();
    let mut sum = 0.0;
    let past = |g: &&f64| {
        sum += **g;
        sum >= most
    };
    sorted.iter().find(past).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stats::random::Random;

    /// A loop of `k` calls of the given slots per step: 1 ms of pause per step, 0.02 ms between calls, noise of 3 %.
    fn seen(slots: &[u32], steps: usize, told: bool) -> (CadenceFinder, u64) {
        let mut random = Random::new(7);
        let (mut finder, mut at, mut number) = (CadenceFinder::default(), 0.0, 0);
        for _ in 0..steps {
            if told {
                finder.step(number);
            }
            for slot in slots {
                finder.call(SeenCall { number, slot: *slot, group: number as u32 + 1, at_ns: at as u64 });
                number += 1;
                at += 20_000.0 * random.log_normal(0.3);
            }
            at += 1e6 * random.log_normal(0.03);
        }
        (finder, number)
    }

    fn steady(finder: &CadenceFinder) -> &Cadence {
        let Rhythm::Steady(c) = finder.rhythm() else { panic!("{:?}", finder.rhythm()) };
        c
    }

    #[test]
    fn the_period_of_calls_of_one_size_is_found_from_their_distances() {
        for k in [1, 2, 4, 5, 8, 64] {
            let (finder, number) = seen(&vec![3; k], (GROUPS_MAX / k).min(200) + 2, false);
            let c = steady(&finder);
            assert_eq!((c.calls, c.slots[&3].calls), (k as u64, k as u64), "K = {k}");
            assert!(c.begin < number && c.begin.is_multiple_of(k as u64), "K = {k}: {c:?}");
        }
    }

    #[test]
    fn the_period_of_several_sizes_is_their_sequence() {
        let (finder, _) = seen(&[1, 2, 2, 5, 2], 40, false);
        let c = steady(&finder);
        assert_eq!((c.calls, c.slots[&2].calls, c.slots[&5].calls), (5, 3, 1));
    }

    #[test]
    fn reported_steps_give_the_cadence_after_five_steps() {
        let (finder, _) = seen(&[1, 1, 1, 2], ALIKE + 1, true);
        let c = steady(&finder);
        assert_eq!((c.told, c.calls, c.begin, c.slots[&1].calls), (true, 4, 4 * ALIKE as u64, 3));
    }

    #[test]
    fn calls_that_do_not_repeat_have_no_rhythm() {
        let mut random = Random::new(5);
        let (mut finder, mut told) = (CadenceFinder::default(), CadenceFinder::default());
        let mut at = 0;
        for number in 0..3 * GROUPS_MAX as u64 {
            at += 1 + random.below(1_000_000) as u64;
            let slot = random.below(3) as u32;
            finder.call(SeenCall { number, slot, group: number as u32 + 1, at_ns: at });
            if random.below(3) == 0 {
                told.step(number);
            }
            told.call(SeenCall { number, slot, group: number as u32 + 1, at_ns: at });
        }
        assert!(matches!(finder.rhythm(), Rhythm::None(_)) && matches!(told.rhythm(), Rhythm::None(_)));
    }

    #[test]
    fn a_multiple_of_the_period_gives_way_to_it_once_steps_are_alike() {
        let (mut finder, mut at, mut number) = (CadenceFinder::default(), 0, 0);
        let mut calls_after = BTreeMap::new();
        for step in 0..250 + 10 {
            // A busy machine: the even ones of the first steps take longer.
            let pause = if step < 10 && step % 2 == 0 { 2_000_000 } else { 1_000_000 };
            for _ in 0..8 {
                finder.call(SeenCall { number, slot: 3, group: number as u32 + 1, at_ns: at });
                number += 1;
                at += 20_000;
            }
            at += pause;
            if let Rhythm::Steady(c) = finder.rhythm() {
                calls_after.insert(step, c.calls);
            }
        }
        assert!(calls_after.values().any(|c| *c == 16), "the first steps suggest pairs: {calls_after:?}");
        assert_eq!(steady(&finder).calls, 8);
    }
}
