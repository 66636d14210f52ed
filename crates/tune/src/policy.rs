//! The interface of policies: one policy decides for the calls of one key.

use std::fmt;

/// Additional facts about a call, equal on every rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Context {
    /// True if computation runs during the collective; `None` if unknown.
    pub overlapped: Option<bool>,
    /// Share of the step that is computation, 0 to 1, if known.
    pub compute_intensity: Option<f64>,
}

/// Why a policy chose an arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// To measure the arm.
    Explore,
    /// Because the arm is in use.
    Exploit,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Phase::Explore => "explore",
            Phase::Exploit => "exploit",
        })
    }
}

/// The arm of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArmDecision {
    /// Position in the list of arms that the policy was made with.
    pub arm: usize,
    /// Reason for the choice.
    pub phase: Phase,
}

/// The measured time of one call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reading {
    /// The call, counted from 0 in the order of [`Policy::decide`].
    pub call: u64,
    /// Index of the arm of the call.
    pub arm: usize,
    /// Microseconds, finite and above 0; `None` for a lost reading.
    pub time_us: Option<f64>,
    /// Number of channels of the call, if known. Some objectives include a price per channel.
    pub channels: Option<u8>,
}

/// Decides for the calls of one key.
///
/// Calls and readings are two streams. [`decide`](Policy::decide) is called once per call, in order, possibly many
/// calls ahead: an epoch is decided before its first call runs. [`learn`](Policy::learn) gets the times of calls in any
/// order, late, or never. The same arms and the same order of both streams give the same decisions, bit for bit, on
/// every machine.
pub trait Policy: Send {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// The arm of the next call.
    fn decide(&mut self, context: Context) -> ArmDecision;

    /// Adds the time of a call. An invalid reading (a call never decided, an arm out of range, a time that is not
    /// finite and above 0) counts as lost.
    fn learn(&mut self, reading: Reading);

    /// The arm that runs while the policy does not explore.
    fn in_use(&self) -> usize;

    /// Why that arm is in use, in one line.
    fn because(&self) -> String;
}
