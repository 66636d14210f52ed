//! Contention by counts: the merge of jobs in BandPilot's public code.

use place::MergeRule;
use predict::{HostShare, HostShareTable};
use topology::GpuMask;

/// `merge-counts`: GPUs 0 to n - 1 of a host represent any n of them. A merged set that exceeds a host's GPUs is skipped.
pub static MERGE_COUNTS: MergeRule = MergeRule { name: "merge-counts", join };

fn join(table: &HostShareTable, part: &HostShare, others: GpuMask) -> Option<HostShare> {
    let gpus = part.mask.count() + others.count();
    (gpus <= table.all_gpus(part.host).count()).then(|| table.part(part.host, GpuMask::first(gpus)))
}
