//! The rate of calls, and the distance of a proposal: the calls from the farthest rank to its first call.

/// Least distance, in calls, from the farthest rank to the first call of a proposal.
pub const AHEAD_MIN: u64 = 4;
/// Largest such distance, in calls.
pub const AHEAD_MAX: u64 = 1 << 20;

/// Time from the end of a cut of the network until messages pass again: a new connection attempt, 1 s, and a repetition. Added to the lead.
pub const RECOVERY_US: u64 = 1_500_000;
/// Longest window over which the rate of calls is measured, microseconds; shorter with a short lead.
const WINDOW_US_MAX: u64 = 5_000_000;
/// The first window ends after this time, microseconds, if it has so many calls.
const FIRST_WINDOW_US: u64 = 1_000_000;
const FIRST_WINDOW_CALLS: u64 = 64;
/// Windows in a row whose rates are within a tenth of the largest recent one, after which the rate counts as steady.
const STEADY_WINDOWS: u32 = 2;
/// The distance of a proposal in percent of what the rate says, for a rate that may rise and for a steady one.
const MARGIN_PERCENT: u128 = 150;
const MARGIN_STEADY_PERCENT: u128 = 110;

/// The rate of calls of the farthest rank, calls per second, as the largest of recent windows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Rate {
    /// Begin of the window: time and calls.
    since: Option<(u64, u64)>,
    per_s: u64,
    /// Windows in a row like the largest recent one.
    steady: u32,
}

impl Rate {
    /// The farthest rank has begun so many calls. With a lead, a window is at most as long.
    pub(super) fn note(&mut self, calls: u64, now_us: u64, lead_us: u64) {
        let (since_us, before) = *self.since.get_or_insert((now_us, calls));
        let us = now_us.saturating_sub(since_us);
        let is_first = self.per_s == 0 && calls - before >= FIRST_WINDOW_CALLS && us >= FIRST_WINDOW_US;
        if us >= lead_us.clamp(1, WINDOW_US_MAX) || is_first {
            let now = u128::from(calls - before) * 1_000_000 / u128::from(us);
            let is_like = now * 10 >= u128::from(self.per_s) * 9 && now * 9 <= u128::from(self.per_s) * 10;
            self.steady = if is_like { self.steady.saturating_add(1) } else { 0 };
            // An eighth less per window: a job that became slow is believed after some windows, a pause between bursts is not.
            self.per_s = (self.per_s - self.per_s / 8).max(now.min(u128::from(AHEAD_MAX)) as u64);
            self.since = Some((now_us, calls));
        }
    }

    /// Calls per second; 0 if unknown.
    pub(super) fn per_s(&self) -> u64 {
        self.per_s
    }

    /// Calls from the farthest rank to a proposal's first call: so many as the lead has by the rate, and at least `ahead`.
    pub(super) fn distance(&self, lead_us: u64, ahead: u64) -> u64 {
        let us = u128::from(lead_us + RECOVERY_US.min(lead_us));
        let percent = if self.steady >= STEADY_WINDOWS { MARGIN_STEADY_PERCENT } else { MARGIN_PERCENT };
        let calls = u128::from(self.per_s) * us * percent / 100_000_000;
        ahead.max(calls.min(u128::from(AHEAD_MAX)) as u64)
    }
}

/// The first call from `call` on with which a training step begins. `step`: a call with which one begins, and the calls of a step, if they are known.
pub(super) fn aligned(call: u64, step: Option<(u64, u64)>) -> u64 {
    let Some((begin, calls)) = step else { return call };
    let begin = begin % calls;
    call.checked_sub(begin).map_or(begin, |c| begin + c.next_multiple_of(calls))
}
