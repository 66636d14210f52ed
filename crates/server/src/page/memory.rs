//! What the pages remember while a server runs: requests of jobs, predictions beside what jobs then got, and slow results.

use crate::app::now_unix_s;
use crate::limits::{PAGE_ASKED_MAX, PAGE_SAID_MAX};
use engine::{Answer, DiagnoseAnswer, PlaceRequest, Request};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A prediction that was made before its reading was learned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    /// Time of the reading, seconds since 1970.
    pub at_unix_s: f64,
    /// Predicted bus bandwidth, GB/s.
    pub expected: f64,
    /// Reported bus bandwidth, GB/s.
    pub got: f64,
}

/// A result that is used again for a while, with the number of the newest event and the moment of its start.
pub struct Kept<T> {
    pub event: i64,
    pub at: Instant,
    pub value: T,
}

/// A place for a result.
type Slot<T> = Mutex<Option<Kept<T>>>;

/// The memory. It is empty after a start of the server.
#[derive(Default)]
pub struct Memory {
    asked: Mutex<VecDeque<(String, Value)>>,
    said: Mutex<VecDeque<Said>>,
    /// Held while a slow result is made.
    pub looks: tokio::sync::Mutex<()>,
    pub diagnosis: Slot<Result<Arc<DiagnoseAnswer>, String>>,
    pub history: Slot<Arc<Value>>,
}

pub fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

fn push<T>(list: &Mutex<VecDeque<T>>, new: T, most: usize) {
    let mut list = locked(list);
    list.push_back(new);
    if list.len() > most {
        list.pop_front();
    }
}

impl Memory {
    /// The part of a request that a job's page shows; none for a request that allocates nothing.
    pub fn asked(request: &Request) -> Option<Value> {
        let Request::Place(r) = request else { return None };
        r.commit.as_ref()?;
        let short = PlaceRequest {
            gpus: r.gpus,
            pods: r.pods.iter().copied().take(64).collect(),
            groups: r.groups.clone(),
            size_bytes: r.size_bytes,
            constraints: r.constraints.clone(),
            loss_weight: r.loss_weight,
            slack: r.slack.clone(),
            search: r.search.clone(),
            lease_s: r.lease_s,
            ..Default::default()
        };
        serde_json::to_value(short).ok()
    }

    /// Notes what an answer tells. `asked` is the request of the answer.
    pub fn answered(&self, asked: Option<Value>, answer: &Answer) {
        match answer {
            Answer::Place(a) => {
                if let (Some(asked), Some(c)) = (asked, a.committed.as_ref().filter(|c| !c.repeated)) {
                    push(&self.asked, (c.job.clone(), asked), PAGE_ASKED_MAX);
                }
            }
            Answer::Observe(a) if !a.repeated => {
                let at_unix_s = now_unix_s();
                for r in a.readings.iter().filter(|r| r.contention.is_none() && r.busbw_gb_per_s > 0.0) {
                    if let Some(expected) = r.taught.expected_gb_per_s.filter(|e| *e > 0.0) {
                        push(&self.said, Said { at_unix_s, expected, got: r.busbw_gb_per_s }, PAGE_SAID_MAX);
                    }
                }
            }
            Answer::Diagnose(a) => {
                // The number of the event is unknown here; the time limits the use.
                let value = Ok(Arc::new(a.clone()));
                *locked(&self.diagnosis) = Some(Kept { event: -1, at: Instant::now(), value });
            }
            _ => {}
        }
    }

    /// The request of a job, if it came since the start of the server.
    pub fn request_of(&self, job: &str) -> Option<Value> {
        locked(&self.asked).iter().rev().find(|(id, _)| id == job).map(|(_, r)| r.clone())
    }

    /// Predictions and what jobs got, oldest first.
    pub fn said(&self) -> Vec<Said> {
        locked(&self.said).iter().copied().collect()
    }
}
