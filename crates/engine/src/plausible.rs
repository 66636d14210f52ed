//! Refuses readings that no hardware can produce, and finds those that the links of the cluster file do not explain.

use crate::error::EngineError;
use store::Measurement;
use topology::{Allocation, Cluster, Collective};

/// A reading above this multiple of what the links allow is refused unless the request forces it.
///
/// The value 3 allows for outdated rates in the cluster file. A wrong unit is a factor of 8 (Gbit/s) or 1,000 (MB/s): it is detected where
/// the links are used by more than three eighths; else [`ABOVE_LINKS_FACTOR`] tells it.
pub const IMPOSSIBLE_FACTOR: f64 = 3.0;

/// A reading above this multiple of what the links allow gets a note: its unit or the rates in the cluster file may be wrong.
pub const ABOVE_LINKS_FACTOR: f64 = 1.3;

/// A reading may be so far in the future: clocks of hosts differ, and time zones are confused.
const FUTURE_S_MAX: f64 = 86_400.0;

/// A reading below this share of what the physics of its GPUs expects gets a note: its unit may be wrong (TB/s, or a wrong power of ten).
pub const BELOW_PHYSICS_SHARE: f64 = 1e-3;

/// What the links of an allocation allow, GB/s, if a prediction is above [`ABOVE_LINKS_FACTOR`] times that.
pub(crate) fn predicted_above_links(
    fabric: &fabric::Fabric<'_>,
    a: &Allocation,
    collective: Collective,
    busbw_gb_per_s: f64,
) -> Option<f64> {
    let most = fabric.links_alone(a, collective).gb_per_s();
    (most.is_finite() && most > 0.0 && busbw_gb_per_s > ABOVE_LINKS_FACTOR * most).then_some(most)
}

/// What the links of a reading's GPUs allow, GB/s; none if the physics gives no bound.
fn links_allow(fabric: &fabric::Fabric<'_>, m: &Measurement) -> Option<f64> {
    let most = fabric.links_alone(&m.allocation, m.collective).gb_per_s();
    (most.is_finite() && most > 0.0).then_some(most)
}

/// Refuses the first impossible reading. O(readings x hosts of a reading). Refuses nothing if the physics gives no bound.
pub fn check(cluster: &Cluster, readings: &[Measurement]) -> Result<(), EngineError> {
    let fabric = fabric::Fabric::new(cluster);
    for m in readings {
        let v = m.busbw.gb_per_s();
        if let Some(bound) = links_allow(&fabric, m).filter(|most| v > IMPOSSIBLE_FACTOR * most) {
            return Err(EngineError::Impossible {
                gpus: cluster.gpu_list(&m.allocation),
                busbw_gb_per_s: v,
                bound_gb_per_s: bound,
            });
        }
    }
    Ok(())
}

/// What the links of every reading's GPUs allow, GB/s, for readings above [`ABOVE_LINKS_FACTOR`] times that; None for the others. O(readings x
/// hosts of a reading).
pub fn above_links(cluster: &Cluster, readings: &[Measurement]) -> Vec<Option<f64>> {
    let fabric = fabric::Fabric::new(cluster);
    let one = |m: &Measurement| links_allow(&fabric, m).filter(|most| m.busbw.gb_per_s() > ABOVE_LINKS_FACTOR * most);
    readings.iter().map(one).collect()
}

/// What the physics of every reading's GPUs expects at its size, GB/s, for readings below [`BELOW_PHYSICS_SHARE`] of that; None for the
/// others. O(readings) estimates of about 1 us each.
pub fn below_physics(cluster: &Cluster, readings: &[Measurement]) -> Vec<Option<f64>> {
    let fabric = fabric::Fabric::new(cluster);
    let one = |m: &Measurement| {
        let expected = fabric.estimate(&m.allocation, m.collective, m.size).busbw.gb_per_s();
        (expected.is_finite() && m.busbw.gb_per_s() < BELOW_PHYSICS_SHARE * expected).then_some(expected)
    };
    readings.iter().map(one).collect()
}

/// Refuses a reading that was taken more than a day after `now_unix_s`.
pub fn check_time(m: &Measurement, now_unix_s: f64) -> Result<(), EngineError> {
    match m.taken_at_unix_s {
        Some(t) if t > now_unix_s + FUTURE_S_MAX => {
            let days = (t - now_unix_s) / 86_400.0;
            Err(EngineError::bad(format!(
                "a reading was taken at {t} s since 1970, {days:.0} days in the future; give seconds, not milliseconds, or leave the time out"
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_in_gbit_per_s_is_above_what_the_links_allow_and_one_at_their_rate_is_not() {
        let c = topology::catalog::cluster("h100").expect("a cluster of the catalogue");
        let (fabric, all) = (fabric::Fabric::new(&c), c.usable());
        let most = fabric.links_alone(&all, Collective::AllReduce).gb_per_s();
        let above = |v| predicted_above_links(&fabric, &all, Collective::AllReduce, v);
        assert_eq!((above(most), above(8.0 * most)), (None, Some(most)));
    }
}
