//! The quantity that a policy minimises.

use crate::arm::{Arm, CHANNELS_MAX};
use crate::policy::Reading;

/// Assumed number of channels if neither the arm nor the reading gives one.
pub const CHANNELS_ASSUMED: u8 = 8;

/// The quantity that a policy minimises. Costs are in microseconds, so that gates and tables have one unit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Objective {
    /// The time of the call.
    #[default]
    Time,
    /// The time, increased by this share per channel: every channel takes a multiprocessor from concurrent computation.
    /// At 0.01 an arm with 4 channels may take 3.7 % longer than one with 8 and still be as good.
    TimeAndChannels {
        /// 0 to 1, per channel.
        price_per_channel: f64,
    },
}

impl Objective {
    /// Errors: a price that is not from 0 to 1.
    pub fn with_price(price_per_channel: f64) -> Result<Self, String> {
        match price_per_channel {
            0.0 => Ok(Objective::Time),
            p if (0.0..=1.0).contains(&p) => Ok(Objective::TimeAndChannels { price_per_channel: p }),
            p => Err(format!(
                "a price of {p} per channel; a share of the time from 0 to 1 was expected, for example 0.01"
            )),
        }
    }

    /// The cost of a time on this many channels. If the count is unknown, the arm's own count is used, else
    /// [`CHANNELS_ASSUMED`]. It is the same for every arm and therefore favours none.
    pub fn cost_us(self, time_us: f64, arm: Arm, channels: Option<u8>) -> f64 {
        match self {
            Objective::Time => time_us,
            Objective::TimeAndChannels { price_per_channel } => {
                let n =
                    channels.filter(|c| (1..=CHANNELS_MAX).contains(c)).or(arm.channels).unwrap_or(CHANNELS_ASSUMED);
                time_us * (1.0 + price_per_channel * f64::from(n))
            }
        }
    }

    /// The cost of an accepted reading.
    pub fn of(self, time_us: f64, arms: &[Arm], reading: &Reading) -> f64 {
        self.cost_us(time_us, arms.get(reading.arm).copied().unwrap_or(Arm::AUTO), reading.channels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_costs_its_price_and_an_unknown_count_favours_no_arm() {
        let priced = Objective::with_price(0.01).unwrap();
        let few: Arm = "RING/SIMPLE@4".parse().unwrap();
        assert!((priced.cost_us(100.0, few, None) - 104.0).abs() < 1e-9);
        assert!(
            (priced.cost_us(100.0, few, Some(16)) - 116.0).abs() < 1e-9,
            "the used count takes precedence over the requested one"
        );
        let plain: Arm = "TREE/LL".parse().unwrap();
        assert_eq!(priced.cost_us(100.0, Arm::AUTO, None), priced.cost_us(100.0, plain, None));
        assert_eq!(Objective::with_price(0.0), Ok(Objective::Time));
        assert_eq!(Objective::Time.cost_us(7.0, few, Some(64)), 7.0);
        for bad in [-0.1, 1.5, f64::NAN] {
            assert!(Objective::with_price(bad).unwrap_err().contains("0 to 1"));
        }
    }
}
