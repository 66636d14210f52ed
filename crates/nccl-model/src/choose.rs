//! AUTO: the algorithm, protocol, channels and threads of a call.

use crate::agreed::CostModelInput;
use crate::constants::{TREE_CORRECTION, TREE_CORRECTIONS};
use crate::machines::CpuArch;
use crate::releases::ReleaseRules;
use crate::table::{CostTable, TableCell, collective_index};
use topology::Collective;
use topology::nccl::{Algorithm, PathType, Protocol};

/// Minimum number of threads per channel.
const THREADS_MIN: u32 = 96;
/// Threads per warp.
const WARP: u32 = 32;

/// How NCCL runs one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallChoice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The protocol.
    pub protocol: Protocol,
    /// NCCL's own time estimate, microseconds.
    pub time_us: f32,
    /// Number of channels of the call.
    pub channels: u32,
    /// Threads per channel.
    pub threads: u32,
}

/// NCCL's time estimate for an algorithm and protocol, microseconds; `None` if NCCL does not offer the pair. O(1).
pub fn time_us(
    agreed: &CostModelInput,
    table: &CostTable,
    collective: Collective,
    (algorithm, protocol): (Algorithm, Protocol),
    size_bytes: u64,
) -> Option<f32> {
    let TableCell { mut latency_us, bandwidth_gb_per_s: mut bandwidth } = table.cell(collective, algorithm, protocol);
    if bandwidth <= 0.0 {
        return None;
    }
    let rules = ReleaseRules::of(agreed.version);
    let bucket = (size_bytes >> 6).checked_ilog2().unwrap_or(0) as usize;
    if collective == Collective::AllReduce {
        let blackwell = agreed.machines.capability_min >= 100 && agreed.machines.cpu.arch == CpuArch::X86;
        let limit = match algorithm {
            Algorithm::Tree => TREE_CORRECTIONS,
            Algorithm::NvlsTree if rules.corrects_nvls_tree && blackwell => TREE_CORRECTIONS + 1,
            _ => 0,
        };
        if bucket < limit {
            bandwidth *= TREE_CORRECTION[protocol as usize][bucket];
        }
    }
    if algorithm == Algorithm::Ring && protocol == Protocol::Simple {
        latency_us *= ring_plateau(agreed, &rules, collective, size_bytes);
    }
    Some(latency_us + size_bytes as f32 / (1000.0 * bandwidth))
}

/// Factor of the latency of a Simple ring with a full pipeline.
fn ring_plateau(agreed: &CostModelInput, rules: &ReleaseRules, collective: Collective, size_bytes: u64) -> f32 {
    let per_hop = size_bytes / (u64::from(agreed.channels) * u64::from(agreed.ranks));
    if per_hop < 64 {
        return 1.0;
    }
    if agreed.hosts > 1 {
        return match collective {
            Collective::AllReduce if agreed.machines.capability_min < 80 => 1.9,
            Collective::AllReduce => 1.4,
            _ => 1.0,
        };
    }
    let steps = match collective {
        Collective::AllReduce => 2 * (agreed.ranks - 1),
        Collective::AllGather | Collective::ReduceScatter => agreed.ranks - 1,
        _ => return 1.0,
    };
    if !rules.plateau_inside || agreed.machines.capability_min < 100 || agreed.ring.type_intra != PathType::Nvl {
        return 1.0;
    }
    // Derived from the library's own estimates (all-reduce and reduce-scatter, 2 to 8 ranks, 1 KiB to 4 GiB): the
    // factor grows with the steps and falls to three quarters between 256 and 512 KiB per hop (in 2.31 between 512 KiB
    // and 1 MiB, observed at two sizes).
    let by_steps = 1.0 - 0.25f32.powi(steps as i32 - 1);
    let by_size = 1.0 - 0.25 * ((per_hop as f32 / rules.plateau_bytes_per_hop as f32) - 1.0).clamp(0.0, 1.0);
    1.0 + 0.4 * by_steps * by_size
}

/// AUTO's choice for a call of `size_bytes` bytes. For all-gather and reduce-scatter NCCL counts the whole buffer of
/// all ranks. `None` for collectives without an algorithm (all-to-all, send and receive) and for communicators of one
/// rank. O(algorithms x protocols).
pub fn choose(
    agreed: &CostModelInput,
    table: &CostTable,
    collective: Collective,
    size_bytes: u64,
) -> Option<CallChoice> {
    collective_index(collective)?;
    if agreed.ranks < 2 {
        return None;
    }
    let split = ReleaseRules::of(agreed.version).split_model;
    let mut best: Option<(f32, Algorithm, Protocol)> = None;
    for &algorithm in Algorithm::ALL {
        for &protocol in Protocol::ALL {
            let Some(time) = time_us(agreed, table, collective, (algorithm, protocol), size_bytes) else { continue };
            // Ties go to the first pair up to 2.30, and to the last pair from 2.31 on.
            if best.is_none_or(|b| time < b.0 || split && time == b.0) {
                best = Some((time, algorithm, protocol));
            }
        }
    }
    let (time_us, algorithm, protocol) = best?;
    let (channels, threads) = on_channels(agreed, collective, algorithm, protocol, size_bytes);
    Some(CallChoice { algorithm, protocol, time_us, channels, threads })
}

/// Number of channels of a call, and threads per channel.
pub(crate) fn on_channels(
    agreed: &CostModelInput,
    collective: Collective,
    algorithm: Algorithm,
    protocol: Protocol,
    size_bytes: u64,
) -> (u32, u32) {
    let (most, threads) = channels_and_threads(agreed, algorithm, protocol, size_bytes);
    (split_traffic(agreed, collective, protocol, size_bytes, most), threads)
}

/// Maximum number of channels of a call, and threads per channel.
fn channels_and_threads(
    agreed: &CostModelInput,
    algorithm: Algorithm,
    protocol: Protocol,
    size_bytes: u64,
) -> (u32, u32) {
    let slow_ring = !ReleaseRules::of(agreed.version).split_model
        && agreed.ring.bw_intra_gb_per_s * agreed.ring.channels as f32 <= 12.0;
    let limit = match (algorithm, protocol) {
        (Algorithm::Nvls | Algorithm::NvlsTree | Algorithm::CollNetDirect | Algorithm::CollNetChain, _) => 640,
        (_, Protocol::Ll128) => 640,
        (Algorithm::Ring, Protocol::Simple) if slow_ring => 256,
        _ => 512,
    };
    let per_thread: u64 = match (algorithm, protocol) {
        (Algorithm::Ring, Protocol::Ll) => 8 * u64::from(agreed.ranks),
        (_, Protocol::Simple) => 64,
        _ => 8,
    };
    let (mut channels, mut threads) = (agreed.channels, limit);
    match algorithm {
        Algorithm::Nvls | Algorithm::NvlsTree => {
            channels = agreed.nvls_channels;
            if agreed.hosts > 1 && ReleaseRules::of(agreed.version).nvls_within_channels {
                channels = channels.min(agreed.channels);
            }
        }
        // PAT always uses all channels.
        Algorithm::Pat => {}
        _ => {
            let short =
                |channels: u32, threads: u32| size_bytes < u64::from(channels) * u64::from(threads) * per_thread;
            while channels > 1 && short(channels, threads) {
                channels -= 1;
            }
            while short(channels, threads) && threads.is_multiple_of(128) {
                threads /= 2;
            }
        }
    }
    if protocol == Protocol::Simple {
        threads += match algorithm {
            Algorithm::Ring => WARP,
            Algorithm::Tree => 4 * WARP,
            _ => 0,
        };
    }
    threads = threads.max(THREADS_MIN);
    if matches!(algorithm, Algorithm::Tree | Algorithm::Pat) {
        threads = 640;
    }
    (channels.max(1), threads)
}

/// Number of channels after the scheduler splits the call. Every channel gets at least a minimum of traffic.
fn split_traffic(
    agreed: &CostModelInput,
    collective: Collective,
    protocol: Protocol,
    size_bytes: u64,
    most: u32,
) -> u32 {
    let ranks = u64::from(agreed.ranks);
    let per_byte: u64 =
        match collective {
            Collective::AllReduce => 2,
            Collective::AllGather | Collective::ReduceScatter => ranks,
            _ => 1,
        } * if protocol == Protocol::Ll && ReleaseRules::of(agreed.version).ll_counts_four { 4 } else { 1 };
    let bytes = match collective {
        Collective::AllGather | Collective::ReduceScatter => size_bytes / ranks,
        _ => size_bytes,
    };
    // A cell is the minimum traffic of a channel, rounded up to a multiple of 16 bytes.
    let least = ReleaseRules::of(agreed.version).traffic_per_channel_min_bytes;
    let cell = least.div_ceil(per_byte).div_ceil(16) * 16;
    let cells = bytes.div_ceil(cell).max(1);
    let traffic = bytes * per_byte;
    let per_channel = traffic.div_ceil(u64::from(most)).max(least);
    let cells_per_channel = per_channel.div_ceil(cell * per_byte).min(cells).max(1);
    (cells.div_ceil(cells_per_channel) as u32).clamp(1, most)
}
