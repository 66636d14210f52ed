//! `linkwise nccl`: what NCCL would choose on some GPUs, why it is as fast or slow as it is, and which settings are worth trying.
//!
//! [`view`] makes a communicator of the arguments, from the model or, with `--exact`, from the real library on simulated hosts;
//! [`explain`] and [`advise`] say what follows; [`findings`] puts limits into words.

mod advise;
mod explain;
mod findings;
mod view;

use console::Failure;
use nccl_model::Advice;
use serde_json::{Value, json};

/// `linkwise nccl ...`
#[derive(clap::Subcommand)]
pub enum Nccl {
    /// Show NCCL's choice at every size, its limit, and where releases, physics and measurements differ
    Explain(Box<explain::Args>),
    /// Find settings worth trying on these GPUs
    Advise(Box<advise::Args>),
}

/// Runs it.
pub fn run(command: Nccl) -> Result<(), Failure> {
    match command {
        Nccl::Explain(a) => explain::run(*a),
        Nccl::Advise(a) => advise::run(*a),
    }
}

/// A setting with its gain and reason as JSON, for `nccl advise` and `place`.
pub fn advice_json(advice: &Advice) -> Value {
    json!({
        "settings": advice.settings.iter().map(|(k, v)| json!({"name": k, "value": v})).collect::<Vec<_>>(),
        "before_busbw_gb_per_s": advice.before_gb_per_s, "after_busbw_gb_per_s": advice.after_gb_per_s,
        "gain": advice.gain(), "gain_source": advice.gain_source(),
        "measured_before_gb_per_s": advice.measured.map(|m| m.0), "measured_after_gb_per_s": advice.measured.map(|m| m.1),
        "reason": advice.reason,
        "checked_in_library": advice.effect.is_some(), "effect": advice.effect,
    })
}
