//! Arms: the choices of a policy.

use nccl_types::{Algorithm, Protocol};
use std::fmt;
use std::str::FromStr;

/// One choice. Text form: `AUTO`, `TREE/SIMPLE`, `RING/LL128@8` (eight channels) or `AUTO@4`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arm {
    /// The algorithm and protocol, or `None` for the choice of NCCL's own cost model.
    pub forced: Option<(Algorithm, Protocol)>,
    /// The number of channels, 1 to 64, or `None` for NCCL's choice.
    pub channels: Option<u8>,
}

/// The largest number of channels that NCCL supports.
pub const CHANNELS_MAX: u8 = 64;

impl Arm {
    /// NCCL's own choice.
    pub const AUTO: Arm = Arm { forced: None, channels: None };

    /// An algorithm and a protocol, with NCCL's channel count.
    pub const fn new(algorithm: Algorithm, protocol: Protocol) -> Self {
        Arm { forced: Some((algorithm, protocol)), channels: None }
    }

    /// True for NCCL's own choice.
    pub fn is_auto(self) -> bool {
        self == Arm::AUTO
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.forced {
            None => "AUTO".to_string(),
            Some((a, p)) => format!("{}/{}", a.capitals(), p.capitals()),
        };
        f.pad(&self.channels.map_or(name.clone(), |c| format!("{name}@{c}")))
    }
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (name, channels) = match text.split_once('@') {
            None => (text, None),
            Some((name, c)) => {
                let n = c.trim().parse::<u8>().ok().filter(|n| (1..=CHANNELS_MAX).contains(n));
                let n =
                    n.ok_or_else(|| format!("`{text}`: channels are a number from 1 to {CHANNELS_MAX}, not {c:?}"))?;
                (name, Some(n))
            }
        };
        if name.eq_ignore_ascii_case("auto") {
            return Ok(Arm { forced: None, channels });
        }
        let (a, p) = name.split_once('/').ok_or_else(|| {
            format!("`{text}` is not an arm; write AUTO, TREE/SIMPLE or RING/LL128@8 (eight channels)")
        })?;
        let algorithm = a.parse().map_err(|e| format!("`{text}`: algorithm {e}"))?;
        let protocol = p.parse().map_err(|e| format!("`{text}`: protocol {e}"))?;
        Ok(Arm { forced: Some((algorithm, protocol)), channels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_arm_reads_back_as_it_is_written(a in 0usize..7, p in 0usize..3, auto: bool, c in proptest::option::of(1u8..=64)) {
            let forced = (!auto).then(|| (Algorithm::ALL[a], Protocol::ALL[p]));
            let arm = Arm { forced, channels: c };
            prop_assert_eq!(arm.to_string().parse::<Arm>(), Ok(arm));
        }
    }

    #[test]
    fn a_text_that_is_not_an_arm_is_refused_with_the_reason() {
        for bad in ["", "TREE", "TREE/", "TREE/FAST", "HEDGE/LL", "RING/LL@0", "RING/LL@65", "AUTO@x"] {
            let error = bad.parse::<Arm>().unwrap_err();
            assert!(error.contains(bad), "{error}");
        }
    }
}
