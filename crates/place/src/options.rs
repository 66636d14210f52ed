//! The few masks per host and count that can be part of a best allocation.

use predict::{HostShare, HostShareTable};
use topology::{Allocation, GpuMask};

/// The masks of one host worth combining, by count.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// `by_count[c - 1]`: parts with `c` GPUs that no other part dominates.
    pub by_count: Vec<Vec<HostShare>>,
}

/// Intra bandwidth of the GPUs that a mask leaves free on its host, GB/s; decides between masks that are equal for the
/// job.
fn leftover_gb_per_s(table: &HostShareTable, part: &HostShare, free: GpuMask) -> f64 {
    table.intra_gb_per_s(part.host, free.minus(part.mask))
}

/// For every host of `free`, the masks of up to `gpus_max` GPUs that can matter.
///
/// Masks of one count whose NICs have equal rate differ for every model only in intra bandwidth, and a higher intra
/// bandwidth never lowers a prediction. So only the mask with the highest intra bandwidth is kept; ties go to the mask
/// that leaves the best-connected GPUs free. Masks with different NIC rates are all kept, since a correction may prefer
/// either. O(2^GPUs) per host.
pub fn host_options(table: &HostShareTable, free: &Allocation, gpus_max: usize) -> Vec<HostOptions> {
    free.parts()
        .iter()
        .map(|&(host, mask)| {
            let counts = mask.count().min(gpus_max);
            let mut by_count: Vec<Vec<HostShare>> = vec![Vec::new(); counts];
            for m in mask.subsets() {
                let c = m.count();
                if c > counts {
                    continue;
                }
                let part = table.part(host, m);
                let slot: &mut Vec<HostShare> = &mut by_count[c - 1];
                match slot.iter_mut().find(|p| p.nic_gb_per_s == part.nic_gb_per_s) {
                    None => slot.push(part),
                    Some(p) => {
                        let better = part.intra_gb_per_s > p.intra_gb_per_s
                            || (part.intra_gb_per_s == p.intra_gb_per_s
                                && leftover_gb_per_s(table, &part, mask) > leftover_gb_per_s(table, p, mask));
                        if better {
                            *p = part;
                        }
                    }
                }
            }
            HostOptions { by_count }
        })
        .collect()
}
