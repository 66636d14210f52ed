//! The log of changes, as answers; and the entries of changes that a store holds.

use crate::error::EngineError;
use crate::handle::{Answer, Request};
use crate::hold::Engine;
use serde::{Deserialize, Serialize};
use store::By;
use store::state::{Event, Token};
use topology::Allocation;

/// Number of events of an answer if the request has no limit.
const LIMIT_DEFAULT: usize = 100;
/// Maximum number of events of an answer.
const LIMIT_MAX: usize = 1000;

/// Lists changes, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsRequest {
    /// Only events after this number; none: the newest ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<i64>,
    /// Maximum number of events, 1 to 1,000; none: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Changes, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct EventsAnswer {
    /// The events.
    pub events: Vec<Event>,
    /// Number of the newest event of the state.
    pub last: i64,
}

impl Engine {
    /// Lists changes of the state.
    pub fn events(&self, r: &EventsRequest) -> Result<EventsAnswer, EngineError> {
        let limit = r.limit.unwrap_or(LIMIT_DEFAULT);
        if !(1..=LIMIT_MAX).contains(&limit) {
            return Err(EngineError::bad(format!("`limit` is {limit}; 1 to {LIMIT_MAX} was expected")));
        }
        let state = self.reads()?;
        let last = state.last_event()?;
        let after = r.after.unwrap_or(last.saturating_sub(limit as i64));
        Ok(EventsAnswer { events: state.events(after, limit)?, last })
    }

    /// Number of the newest change. Reads one row.
    pub fn last_event(&self) -> Result<i64, EngineError> {
        Ok(self.reads()?.last_event()?)
    }

    /// The token with this hash, also a revoked one. Reads one row.
    pub fn token(&self, hash: &str) -> Result<Option<Token>, EngineError> {
        Ok(self.reads()?.token(hash)?)
    }

    /// True if a token has this name, also a revoked one. Reads one row.
    pub fn has_token_named(&self, name: &str) -> Result<bool, EngineError> {
        Ok(self.reads()?.has_token_named(name)?)
    }

    /// True if a token was ever made. Reads one row.
    pub fn has_tokens(&self) -> Result<bool, EngineError> {
        Ok(self.reads()?.has_tokens()?)
    }

    /// Logs a change that the state does not hold itself: of readings and models. The change is made already: a request that
    /// is killed in between leaves it without an entry.
    pub(crate) fn log_answer(&self, request: &Request, answer: &Answer, by: By<'_>) -> Result<(), EngineError> {
        if !self.has_state() {
            return Ok(());
        }
        let none = Allocation::default();
        let (by, what, subject, gpus) = match (request, answer) {
            (Request::Observe(r), Answer::Observe(a)) if !a.repeated => {
                let gpus = a.readings.first().map_or(none, |x| x.gpus.allocation(self.cluster()));
                (by, "observe", r.job.clone(), gpus)
            }
            (Request::Fit(_), Answer::Fit(a)) => (by, "fit", a.kind.clone(), none),
            (Request::Correct(r), Answer::Correct(a)) if !a.repeated => {
                (By { who: &r.who, why: &r.why, ..by }, "correct", r.id.to_string(), none)
            }
            (Request::Withdraw(r), Answer::Withdraw(a)) if !a.repeated => {
                (By { who: &r.who, why: &r.why, ..by }, "withdraw", r.id.to_string(), none)
            }
            (Request::Diagnose(_), Answer::Diagnose(a)) => (by, "diagnose", count_of(a.defects.len()), none),
            _ => return Ok(()),
        };
        Ok(self.state()?.log(&by, what, &subject, &gpus)?)
    }
}

fn count_of(defects: usize) -> String {
    format!("{defects} defect{}", if defects == 1 { "" } else { "s" })
}
