//! Where releases of NCCL decide differently.

use topology::nccl::Version;

/// The oldest release that is modelled.
pub const OLDEST: Version = Version { major: 2, minor: 21, patch: None };
/// The newest release that is modelled.
pub const NEWEST: Version = Version { major: 2, minor: 32, patch: None };

/// Is this release modelled (any patch of 2.21 to 2.32)?
pub fn is_modelled(version: Version) -> bool {
    let minor = |v: Version| (v.major, v.minor);
    (minor(OLDEST)..=minor(NEWEST)).contains(&minor(version))
}

/// What this release does. Facts: NCCL's release differences, each checked against the real library (see [`checked`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// PAT exists; its share of the tree's bandwidth.
    pub pat: Option<f32>,
    /// Ring LL128 keeps 0.7 instead of 0.92 of the bandwidth when hosts have one rank.
    pub ring_ll128_thin: bool,
    /// An all-reduce crosses hosts 2 N times instead of 2 (N - 1) times.
    pub crosses_twice_n: bool,
    /// Rings of one rank per host pay the tree's latency of the network.
    pub lone_ranks_pay_tree: bool,
    /// NVLS and NVLSTree count efficiency and heads instead of 5/6.
    pub nvls_efficiency: bool,
    /// Only Hopper doubles few channels of fast NICs again.
    pub doubles_hopper_only: bool,
    /// The NVLS channels are a floor for all channels.
    pub nvls_raises_channels: bool,
    /// NVLS between hosts takes no more channels than the communicator has.
    pub nvls_within_channels: bool,
    /// The LL protocol counts its traffic four times when a call is split over channels.
    pub ll_counts_four: bool,
    /// Bytes of traffic that a channel gets at least.
    pub traffic_per_channel_min_bytes: u64,
    /// Rings inside a Blackwell host pay for their pipeline.
    pub plateau_inside: bool,
    /// Every host's own tree pattern counts, not the first host's alone.
    pub agrees_on_pattern: bool,
    /// NVLS gathers and scatters lose the local rank's own share.
    pub nvls_own_share: bool,
    /// Hosts of odd number exchange channel pairs only if their own search crossed NICs.
    pub swaps_own_pairs_only: bool,
    /// NVLSTree on Blackwell is corrected as Tree is.
    pub corrects_nvls_tree: bool,
    /// The cost model of 2.31: per algorithm, ties to the highest, smaller of both bandwidths.
    pub split_model: bool,
}

impl Rules {
    pub(crate) fn of(version: Version) -> Rules {
        let from = |minor| version.at_least(2, minor, 0);
        Rules {
            pat: from(23).then_some(if from(24) { 0.75 } else { 0.85 }),
            ring_ll128_thin: !from(23),
            crosses_twice_n: !from(23),
            lone_ranks_pay_tree: from(23),
            nvls_efficiency: from(28),
            doubles_hopper_only: !from(25),
            nvls_raises_channels: !from(28),
            nvls_within_channels: !from(28),
            ll_counts_four: from(27),
            traffic_per_channel_min_bytes: if from(30) { 32 << 10 } else { 16 << 10 },
            plateau_inside: from(31),
            agrees_on_pattern: from(25),
            nvls_own_share: from(27),
            swaps_own_pairs_only: from(28),
            corrects_nvls_tree: from(29),
            split_model: from(31),
        }
    }
}
