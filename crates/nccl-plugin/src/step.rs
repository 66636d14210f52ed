//! Training steps, reported by the program through `linkwise_step_begin` and `linkwise_step_end`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Limit on steps between two polls of the worker.
const STEPS_MAX: usize = 1024;

/// A finished step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    pub begin: Instant,
    pub end: Instant,
}

static REPORTED: AtomicBool = AtomicBool::new(false);
static STEPS: Mutex<(Option<Instant>, Vec<Step>)> = Mutex::new((None, Vec::new()));

pub fn begin() {
    REPORTED.store(true, Ordering::Relaxed);
    STEPS.lock().unwrap_or_else(|e| e.into_inner()).0 = Some(Instant::now());
}

pub fn end() {
    let mut state = STEPS.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(begin) = state.0.take()
        && state.1.len() < STEPS_MAX
    {
        state.1.push(Step { begin, end: Instant::now() });
    }
}

/// True once the program has reported a step.
pub fn is_reported() -> bool {
    REPORTED.load(Ordering::Relaxed)
}

/// Removes and returns the finished steps.
pub fn drain() -> Vec<Step> {
    std::mem::take(&mut STEPS.lock().unwrap_or_else(|e| e.into_inner()).1)
}
