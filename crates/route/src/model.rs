//! The completion time of a plan: the congestion plus the time to fill relays and to issue pieces.
//!
//! `completion = congestion + forwards x (start + chunk / rate) + pieces x issue`.
//!
//! - `forwards`: the largest number of forwards of any path.
//! - `rate`: the rate of the slowest link.
//! - `chunk`: the smaller of a chunk and the largest message.
//! - `pieces`: the largest number of pieces that a rank sends or receives.
//!
//! linkwise has not measured these costs. [`RelayCosts::crossover_bytes`] gives the size from which a relay saves time.

use crate::demand::Demand;
use crate::network::RoutingNetwork;
use crate::rules::Rule;

/// The time that forwarding and pieces cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RelayCosts {
    /// Largest piece that a relay holds before it forwards it, bytes. NCCL's NVLink chunk is 512 KiB.
    pub chunk_bytes: u64,
    /// Time to start a relay, seconds: the handshake of two hops instead of one. Assumed; NCCL's whole send over NVLink takes 6.3 us.
    pub forward_s: f64,
    /// Time to issue one more piece, seconds. Assumed; about a work request.
    pub piece_s: f64,
    /// A simpler rule replaces a plan with less congestion if the plan takes more than this multiple of the rule's
    /// completion time.
    pub margin: f64,
}

impl Default for RelayCosts {
    fn default() -> Self {
        RelayCosts { chunk_bytes: 512 << 10, forward_s: 5e-6, piece_s: 0.1e-6, margin: 1.05 }
    }
}

impl RelayCosts {
    /// Seconds beyond the congestion for `forwards` relays in series and this number of pieces.
    pub fn extra_s(&self, forwards: usize, largest_bytes: u64, slowest_gb_per_s: f64, pieces: usize) -> f64 {
        let fill = self.chunk_bytes.min(largest_bytes) as f64 / (slowest_gb_per_s * 1e9);
        forwards as f64 * (self.forward_s + fill) + pieces as f64 * self.piece_s
    }

    pub(crate) fn rule_overhead_s(&self, net: &RoutingNetwork, stats: &MessageStats, rule: Rule) -> f64 {
        let slots = net.slots.max(1);
        let (forwards, per_pair) = match rule {
            Rule::Direct | Rule::DestinationRail | Rule::SourceRail => (1, 1),
            Rule::TwoRails => (2, 2.min(slots)),
            Rule::Stripe | Rule::Weighted => (2, slots),
        };
        let between = if stats.between > 0 { forwards.min(2 * (slots - 1)) } else { 0 };
        let largest = stats.largest / per_pair as u64;
        self.extra_s(
            between.max(stats.forced_inside),
            largest,
            stats.slowest_gb_per_s,
            stats.inside + stats.between * per_pair,
        )
    }

    /// Seconds beyond the congestion of a plan with arbitrary splits.
    pub(crate) fn split_overhead_s(&self, net: &RoutingNetwork, stats: &MessageStats) -> f64 {
        let forwards = if stats.between > 0 && net.slots > 1 { 2 } else { net.relays_in_series() };
        let pieces = stats.inside + stats.between * net.slots.max(1) + net.slots.max(2);
        self.extra_s(forwards, stats.largest / 2, stats.slowest_gb_per_s, pieces)
    }

    /// Size in bytes from which one message completes sooner over `paths` paths of equal rate, all but one over a relay, than over one path.
    pub fn crossover_bytes(&self, paths: usize, gb_per_s: f64) -> u64 {
        let rate = gb_per_s * 1e9;
        let saved = (1.0 - 1.0 / paths as f64) / rate; // seconds per byte
        let extra = self.extra_s(1, u64::MAX, gb_per_s, paths - 1);
        let whole = extra / saved;
        // A piece smaller than a chunk fills the relay sooner.
        let small = self.extra_s(1, 0, gb_per_s, paths - 1) / (saved - 1.0 / (paths as f64 * rate));
        let piece = small / paths as f64;
        if piece.is_finite() && piece > 0.0 && piece <= self.chunk_bytes as f64 { small as u64 } else { whole as u64 }
    }
}

/// The numbers of a demand that the time model uses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MessageStats {
    /// Maximum number of messages of a rank inside its host, and between hosts.
    pub inside: usize,
    pub between: usize,
    /// Largest message, bytes.
    pub largest: u64,
    /// 1 if some pair inside a host has bytes but no direct link.
    pub forced_inside: usize,
    pub slowest_gb_per_s: f64,
}

impl MessageStats {
    pub fn of(net: &RoutingNetwork, demand: &Demand) -> Self {
        let mut stats = MessageStats::default();
        for i in 0..net.rank_count() {
            let own = net.ranks_of(net.host(i));
            let (mut inside, mut all) = (0, 0);
            for (j, &b) in demand.row(i).iter().enumerate() {
                all += usize::from(b > 0);
                stats.largest = stats.largest.max(b);
                if own.contains(&j) && b > 0 && j != i {
                    inside += 1;
                    stats.forced_inside |= usize::from(!net.is_direct(i, j));
                }
            }
            let self_sent = usize::from(demand.get(i, i) > 0);
            stats.inside = stats.inside.max(inside);
            stats.between = stats.between.max(all - inside - self_sent);
        }
        let rates = net.links.iter().map(|l| l.capacity_gb_per_s).filter(|c| *c > 0.0);
        stats.slowest_gb_per_s = rates.fold(f64::INFINITY, f64::min);
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_crossover_one_path_and_split_paths_take_the_same_time() {
        for paths in [2, 3, 7] {
            for costs in [RelayCosts::default(), RelayCosts { chunk_bytes: 128 << 10, ..RelayCosts::default() }] {
                let bytes = costs.crossover_bytes(paths, 120.0);
                let one = bytes as f64 / 120e9;
                let split = one / paths as f64 + costs.extra_s(1, bytes / paths as u64, 120.0, paths - 1);
                assert!((one / split - 1.0).abs() < 0.01, "{paths} paths: {bytes} bytes, {one} and {split} s");
            }
        }
    }
}
