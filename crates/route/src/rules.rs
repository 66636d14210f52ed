//! Static rules: shares of paths that do not depend on the demand.

use crate::network::RoutingNetwork;

/// Maximum number of slots: NICs of one host.
pub const SLOTS_MAX: usize = topology::host::NICS_PER_HOST_MAX;
/// Maximum number of paths of a pair: the direct path and the relays of the largest host, or the slots.
pub const PATHS_MAX: usize = 32;

/// A rule that every rank can apply without coordination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The path with the fewest hops. Inside a host that is the direct link, between hosts the receiver's rail, because rails do not connect
    /// NICs of different indices. The same loads as [`Rule::DestinationRail`].
    Direct,
    /// NCCL with PXN: over NVLink to the GPU on the receiver's rail, then over the network.
    DestinationRail,
    /// Over the sender's rail, then over NVLink on the receiver's host.
    SourceRail,
    /// Equal shares over all rails.
    Stripe,
    /// Half over the sender's rail, half over the next: UCX's default (`MAX_RNDV_RAILS=2`).
    TwoRails,
    /// Shares over all rails in proportion to the rate of the slower NIC; over all two-hop paths inside a host without a direct link.
    Weighted,
}

impl Rule {
    /// The rules that comparisons show, simplest first. [`Rule::Weighted`] is only a start of linkwise's planner.
    pub const BASELINES: [Rule; 5] =
        [Rule::Direct, Rule::DestinationRail, Rule::SourceRail, Rule::Stripe, Rule::TwoRails];
    /// All rules, simplest first.
    pub const ALL: [Rule; 6] =
        [Rule::Direct, Rule::DestinationRail, Rule::SourceRail, Rule::Stripe, Rule::TwoRails, Rule::Weighted];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Direct => "direct",
            Rule::DestinationRail => "destination-rail",
            Rule::SourceRail => "source-rail",
            Rule::Stripe => "stripe",
            Rule::TwoRails => "two-rails",
            Rule::Weighted => "weighted-stripe",
        }
    }

    /// Writes (path, share) of two different ranks into `out`. The shares sum to 1; `out` is empty if no path is left. O(paths).
    pub fn shares(self, net: &RoutingNetwork, src: usize, dst: usize, out: &mut Shares) {
        out.clear();
        let (a, b) = (net.host(src), net.host(dst));
        if a == b {
            let paths = net.intra_paths(src, dst);
            if self == Rule::Weighted {
                let shares = net.intra_shares(src, dst).iter().enumerate();
                shares.filter(|(_, s)| **s > 0.0).for_each(|(p, &s)| out.push(p, s));
            } else if !paths.is_empty() {
                out.push(0, 1.0);
            }
            return;
        }
        let mask = net.slots_between(a, b);
        if mask == 0 {
            return;
        }
        match self {
            Rule::Direct | Rule::DestinationRail => out.push(nearest_alive_slot(mask, net.home[dst]), 1.0),
            Rule::SourceRail => out.push(nearest_alive_slot(mask, net.home[src]), 1.0),
            Rule::TwoRails => {
                let (first, second) = own_and_next_slot(mask, net.home[src]);
                if first == second {
                    out.push(first, 1.0);
                } else {
                    out.push(first, 0.5);
                    out.push(second, 0.5);
                }
            }
            Rule::Stripe => {
                let share = 1.0 / f64::from(mask.count_ones());
                (0..SLOTS_MAX).filter(|k| mask >> k & 1 == 1).for_each(|k| out.push(k, share));
            }
            Rule::Weighted => {
                let w = net.weights_between(a, b);
                w.iter().enumerate().filter(|(_, w)| **w > 0.0).for_each(|(k, &w)| out.push(k, w));
            }
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The wanted slot, or the next slot of `mask`. `mask` must not be 0.
#[inline]
pub(crate) fn nearest_alive_slot(mask: u32, wanted: u8) -> usize {
    let w = u32::from(wanted);
    let turned = mask >> w;
    let k = if turned != 0 { w + turned.trailing_zeros() } else { mask.trailing_zeros() };
    k as usize
}

/// The wanted slot or the next slot of `mask`, and the one after it.
#[inline]
pub(crate) fn own_and_next_slot(mask: u32, wanted: u8) -> (usize, usize) {
    let first = nearest_alive_slot(mask, wanted);
    (first, nearest_alive_slot(mask, ((first + 1) % SLOTS_MAX) as u8))
}

/// Shares of the paths of one pair, stored without allocation.
#[derive(Clone, Debug)]
pub struct Shares {
    items: [(u16, f64); PATHS_MAX],
    len: usize,
}

impl Default for Shares {
    fn default() -> Self {
        Shares { items: [(0, 0.0); PATHS_MAX], len: 0 }
    }
}

impl Shares {
    /// Removes all paths.
    #[inline]
    pub fn clear(&mut self) {
        self.len = 0;
    }
    /// Adds a path.
    #[inline]
    pub fn push(&mut self, path: usize, share: f64) {
        self.items[self.len] = (path as u16, share);
        self.len += 1;
    }
    /// (path, share), in the order of `push`.
    #[inline]
    pub fn as_slice(&self) -> &[(u16, f64)] {
        &self.items[..self.len]
    }
}
