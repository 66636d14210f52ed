//! The policy as a table for the plugin (`linkwise run --profile`): one line per range of sizes whose arm is not AUTO.

use crate::policy_file::PolicyFile;
use ::tune::Arm;
use std::fmt::Write;

/// Powers of two that a table distinguishes.
const EXPONENTS: u32 = ::tune::bucket::BUCKETS as u32;

/// The text of the table, for calls alone or during computation. Sizes between measured ones are interpolated as in the
/// policy `profile`.
pub fn text(file: &PolicyFile, is_overlapped: bool) -> Result<String, String> {
    let profile = file.profile(is_overlapped)?;
    let p = &file.provenance;
    let mut out = format!(
        "# By linkwise {} tune profile, sha256 {}\n# {}; collective, from, to, arm: place of the measurement; AUTO elsewhere\n",
        p.linkwise,
        file.sha256,
        if is_overlapped { "During computation" } else { "Calls alone" }
    );
    let place = match (p.ranks, p.hosts) {
        (Some(ranks), Some(hosts)) => format!(" ranks={ranks} nodes={hosts}"),
        _ => String::new(),
    };
    let arm = |exponent: u32| if exponent < EXPONENTS { profile.arm_for(1 << exponent) } else { Arm::AUTO };
    let mut from = 0;
    for to in 1..=EXPONENTS {
        if arm(to) == arm(from) {
            continue;
        }
        if !arm(from).is_auto() {
            let size = |exponent: u32| 1u64.checked_shl(exponent).map_or("max".to_owned(), |s| s.to_string());
            let _ = writeln!(out, "{} {} {} {}{place}", p.collective, size(from), size(to), arm(from));
        }
        from = to;
    }
    Ok(out)
}
