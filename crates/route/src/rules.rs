//! Static rules: where bytes go without looking at the demand.

use crate::network::Network;

/// Most slots (NICs of one host).
pub const SLOTS_MAX: usize = topology::host::NICS_PER_HOST_MAX;
/// Most paths of a pair: relays and the direct way of the largest host, or slots.
pub const PATHS_MAX: usize = 32;

/// A rule that every rank can follow by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The path with the fewest hops: the direct link in a host; between hosts the receiver's rail, as rails give no path from NIC to NIC
    /// across. The same loads as [`Rule::DestinationRail`].
    Direct,
    /// NCCL with PXN: to the GPU of the own host that sits at the receiver's rail, then over the network.
    DestinationRail,
    /// Out of the own NIC, then over NVLink at the receiver.
    SourceRail,
    /// Equal parts over all rails.
    Stripe,
    /// Half over the own rail, half over the next: UCX as shipped (`MAX_RNDV_RAILS=2`).
    TwoRails,
    /// Parts over all rails by the rate of the slower NIC; over all two-hop paths where there is no direct link.
    Weighted,
}

impl Rule {
    /// Those that comparisons show, simplest first. [`Rule::Weighted`] is linkwise's own start.
    pub const BASELINES: [Rule; 5] =
        [Rule::Direct, Rule::DestinationRail, Rule::SourceRail, Rule::Stripe, Rule::TwoRails];
    /// All of them, simplest first.
    pub const ALL: [Rule; 6] =
        [Rule::Direct, Rule::DestinationRail, Rule::SourceRail, Rule::Stripe, Rule::TwoRails, Rule::Weighted];

    /// Its name on the command line and in reports.
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

    /// The shares of the paths between two different ranks: (path, share), shares sum to 1. None at all where no path is left.
    pub fn shares(self, net: &Network, src: usize, dst: usize, out: &mut Shares) {
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
            Rule::Direct | Rule::DestinationRail => out.push(pick(mask, net.home[dst]), 1.0),
            Rule::SourceRail => out.push(pick(mask, net.home[src]), 1.0),
            Rule::TwoRails => {
                let (first, second) = two(mask, net.home[src]);
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

/// The wanted slot, or the next that is alive. `mask` is not 0.
#[inline]
pub(crate) fn pick(mask: u32, wanted: u8) -> usize {
    let w = u32::from(wanted);
    let turned = mask >> w;
    let k = if turned != 0 { w + turned.trailing_zeros() } else { mask.trailing_zeros() };
    k as usize
}

/// The own slot and the next that is alive.
#[inline]
pub(crate) fn two(mask: u32, wanted: u8) -> (usize, usize) {
    let first = pick(mask, wanted);
    (first, pick(mask, ((first + 1) % SLOTS_MAX) as u8))
}

/// Shares of the paths of one pair, without allocation.
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
    /// Empties it.
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
    /// (path, share), by path.
    #[inline]
    pub fn as_slice(&self) -> &[(u16, f64)] {
        &self.items[..self.len]
    }
}
