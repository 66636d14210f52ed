//! Advice on NCCL's settings as JSON, the same in `nccl advise` and `place`.

use nccl_model::Advice;
use serde_json::{Value, json};

/// One setting with its gain and reason as JSON.
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
