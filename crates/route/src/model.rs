//! How long a plan takes, beyond the seconds of its busiest link: relays have to be filled, and pieces have to be issued.
//!
//! `completion = congestion + forwards x (start + chunk / rate) + pieces x issue`, with the most forwards of any path, the rate of its slowest
//! link, the smaller of a chunk and the largest message, and the most pieces that a rank sends or receives. A model: nothing here is measured
//! by linkwise. Where a relay begins to pay ([`Costs::crossover_bytes`]) follows from it.

use crate::demand::Demand;
use crate::network::Network;
use crate::rules::Rule;

/// What forwarding and pieces cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Largest piece that a relay holds before it passes it on. NCCL's NVLink chunk: 512 KiB.
    pub chunk_bytes: u64,
    /// Starting a relay: the handshake of two hops instead of one. Assumed; NCCL's send over NVLink takes 6.3 us in all.
    pub forward_s: f64,
    /// Issuing one more piece. Assumed; of the order of a work request.
    pub piece_s: f64,
    /// A simpler rule must finish so many times sooner to be preferred over less congestion.
    pub margin: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Costs { chunk_bytes: 512 << 10, forward_s: 5e-6, piece_s: 0.1e-6, margin: 1.05 }
    }
}

impl Costs {
    /// Forwarding and pieces are free: only congestion counts.
    pub const FREE: Costs = Costs { chunk_bytes: 0, forward_s: 0.0, piece_s: 0.0, margin: 1.0 };

    /// Seconds beyond congestion of `forwards` relays one after another, and so many pieces.
    pub fn extra_s(&self, forwards: usize, largest_bytes: u64, slowest_gb_per_s: f64, pieces: usize) -> f64 {
        let fill = self.chunk_bytes.min(largest_bytes) as f64 / (slowest_gb_per_s * 1e9);
        forwards as f64 * (self.forward_s + fill) + pieces as f64 * self.piece_s
    }

    pub(crate) fn of_rule(&self, net: &Network, shape: &Shape, rule: Rule) -> f64 {
        let slots = net.slots.max(1);
        let (forwards, per_pair) = match rule {
            Rule::Direct | Rule::DestinationRail | Rule::SourceRail => (1, 1),
            Rule::TwoRails => (2, 2.min(slots)),
            Rule::Stripe | Rule::Weighted => (2, slots),
        };
        let between = if shape.between > 0 { forwards.min(2 * (slots - 1)) } else { 0 };
        let largest = shape.largest / per_pair as u64;
        self.extra_s(
            between.max(shape.forced_inside),
            largest,
            shape.slowest_gb_per_s,
            shape.inside + shape.between * per_pair,
        )
    }

    /// Of a plan that splits what it likes.
    pub(crate) fn of_split(&self, net: &Network, shape: &Shape) -> f64 {
        let forwards = if shape.between > 0 && net.slots > 1 { 2 } else { net.relays_in_series() };
        let pieces = shape.inside + shape.between * net.slots.max(1) + net.slots.max(2);
        self.extra_s(forwards, shape.largest / 2, shape.slowest_gb_per_s, pieces)
    }

    /// Bytes of a single message from which `paths` equal paths of a rate finish sooner than one, all but one of them over a relay.
    pub fn crossover_bytes(&self, paths: usize, gb_per_s: f64) -> u64 {
        let rate = gb_per_s * 1e9;
        let saved = (1.0 - 1.0 / paths as f64) / rate; // seconds per byte
        let extra = self.extra_s(1, u64::MAX, gb_per_s, paths - 1);
        let whole = extra / saved;
        // Where the piece is smaller than a chunk it fills the relay sooner.
        let small = self.extra_s(1, 0, gb_per_s, paths - 1) / (saved - 1.0 / (paths as f64 * rate));
        let piece = small / paths as f64;
        if piece.is_finite() && piece > 0.0 && piece <= self.chunk_bytes as f64 { small as u64 } else { whole as u64 }
    }
}

/// What the model needs to know of a demand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    /// Most messages of a rank inside its host, and to or from other hosts.
    pub inside: usize,
    pub between: usize,
    /// Largest message.
    pub largest: u64,
    /// 1 where some pair of a host has no direct link.
    pub forced_inside: usize,
    pub slowest_gb_per_s: f64,
}

impl Shape {
    pub fn of(net: &Network, demand: &Demand) -> Self {
        let mut shape = Shape::default();
        for i in 0..net.rank_count() {
            let own = net.ranks_of(net.host(i));
            let (mut inside, mut all) = (0, 0);
            for (j, &b) in demand.row(i).iter().enumerate() {
                all += usize::from(b > 0);
                shape.largest = shape.largest.max(b);
                if own.contains(&j) && b > 0 && j != i {
                    inside += 1;
                    shape.forced_inside |= usize::from(!net.is_direct(i, j));
                }
            }
            let self_sent = usize::from(demand.get(i, i) > 0);
            shape.inside = shape.inside.max(inside);
            shape.between = shape.between.max(all - inside - self_sent);
        }
        let rates = net.links.iter().map(|l| l.capacity_gb_per_s).filter(|c| *c > 0.0);
        shape.slowest_gb_per_s = rates.fold(f64::INFINITY, f64::min);
        shape
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossover_is_where_both_ways_take_the_same_time() {
        for paths in [2, 3, 7] {
            for costs in [Costs::default(), Costs { chunk_bytes: 128 << 10, ..Costs::default() }] {
                let bytes = costs.crossover_bytes(paths, 120.0);
                let one = bytes as f64 / 120e9;
                let split = one / paths as f64 + costs.extra_s(1, bytes / paths as u64, 120.0, paths - 1);
                assert!((one / split - 1.0).abs() < 0.01, "{paths} paths: {bytes} bytes, {one} and {split} s");
            }
        }
    }
}
