//! Steps of the program, as it says through `linkwise_step_begin` and `linkwise_step_end`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Most steps between two looks of the worker.
const STEPS_MAX: usize = 1024;

/// A finished step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// When it began.
    pub begin: Instant,
    /// When it ended.
    pub end: Instant,
}

static SAID: AtomicBool = AtomicBool::new(false);
static STATE: Mutex<(Option<Instant>, Vec<Step>)> = Mutex::new((None, Vec::new()));

/// The program begins a step.
pub fn begin() {
    SAID.store(true, Ordering::Relaxed);
    STATE.lock().unwrap_or_else(|e| e.into_inner()).0 = Some(Instant::now());
}

/// The program ends the step.
pub fn end() {
    let mut state = STATE.lock().unwrap_or_else(|e| e.into_inner());
    if let Some(begin) = state.0.take()
        && state.1.len() < STEPS_MAX
    {
        state.1.push(Step { begin, end: Instant::now() });
    }
}

/// Does the program say its steps?
pub fn is_said() -> bool {
    SAID.load(Ordering::Relaxed)
}

/// The steps that ended since the last look.
pub fn take() -> Vec<Step> {
    std::mem::take(&mut STATE.lock().unwrap_or_else(|e| e.into_inner()).1)
}
