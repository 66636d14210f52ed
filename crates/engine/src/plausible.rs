//! Refuses readings that no hardware can produce.

use crate::error::EngineError;
use store::Measurement;
use topology::{Bytes, Cluster};

/// A reading above this multiple of the physical bound is refused unless the request forces it.
///
/// The value 3: reduction in the switches (SHARP, NVLS) up to doubles the bus bandwidth of a ring, and the rest allows for outdated rates
/// in the cluster file. A wrong unit is a factor of 8 (Gbit/s) or 1,000 (MB/s) and is detected.
pub const IMPOSSIBLE_FACTOR: f64 = 3.0;

/// A size at which latency is negligible: the bound at this size is an upper limit for all sizes.
const SIZE: Bytes = Bytes::gib(16);

/// Refuses the first impossible reading. O(readings) estimates of about 1 us each. Refuses nothing if the physics gives no bound.
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
