//! Readings that no hardware can have given.

use crate::error::EngineError;
use store::Measurement;
use topology::{Bytes, Cluster};

/// A reading above so many times what the links allow is refused unless it is forced.
///
/// Three: reduction in the switches (SHARP, NVLS) up to doubles what a ring's bus bandwidth can be, and the rest allows for rates in the
/// cluster file that are out of date. A slip of unit is a factor of 8 (Gbit/s) or 1,000 (MB/s), and is caught.
pub const IMPOSSIBLE_FACTOR: f64 = 3.0;

/// A size at which latency does not matter: what the links allow at any size is at most what they allow at this one.
const SIZE: Bytes = Bytes::gib(16);

/// Refuses the first reading that is impossible. O(readings) estimates of a microsecond. Where the physics knows no limit nothing is refused.
pub fn check(cluster: &Cluster, readings: &[Measurement]) -> Result<(), EngineError> {
    let fabric = fabric::Fabric::new(cluster);
    for m in readings {
        let v = m.busbw.gb_per_s();
        let bound = fabric.estimate(&m.allocation, m.collective, SIZE.max(m.size)).busbw.gb_per_s();
        if bound.is_finite() && bound > 0.0 && v > IMPOSSIBLE_FACTOR * bound {
            return Err(EngineError::Impossible {
                gpus: cluster.gpu_list(&m.allocation),
                busbw_gb_per_s: v,
                bound_gb_per_s: bound,
            });
        }
    }
    Ok(())
}
