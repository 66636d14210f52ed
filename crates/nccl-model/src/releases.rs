//! Differences between the decisions of NCCL releases.

use topology::nccl::Version;

/// The oldest release of the model.
pub const OLDEST: Version = Version { major: 2, minor: 21, patch: None };
/// The newest release of the model.
pub const NEWEST: Version = Version { major: 2, minor: 32, patch: None };

/// True if the model covers a release: any patch of 2.21 to 2.32.
pub fn is_modelled(version: Version) -> bool {
    let minor = |v: Version| (v.major, v.minor);
    (minor(OLDEST)..=minor(NEWEST)).contains(&minor(version))
}

/// The decision rules of one release, each compared with the real library (`examples/check.rs`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReleaseRules {
    /// PAT's share of the tree's bandwidth; `None` in releases without PAT.
    pub pat: Option<f32>,
    /// Ring LL128 reaches 0.7 instead of 0.92 of the bandwidth on hosts with one rank.
    pub ring_ll128_thin: bool,
    /// An all-reduce crosses hosts 2 N times instead of 2 (N - 1) times.
    pub crosses_twice_n: bool,
    /// Rings with one rank per host use the tree's network latency.
    pub lone_ranks_pay_tree: bool,
    /// NVLS and NVLSTree use efficiency and heads instead of a factor 5/6.
    pub nvls_efficiency: bool,
    /// Only on Hopper, a small number of channels on fast NICs is doubled a second time.
    pub doubles_hopper_only: bool,
    /// The communicator has at least as many channels as NVLS.
    pub nvls_raises_channels: bool,
    /// NVLS between hosts uses at most the communicator's channels.
    pub nvls_within_channels: bool,
    /// The split of a call over channels counts LL traffic four times.
    pub ll_counts_four: bool,
    /// Minimum traffic of a channel, bytes.
    pub traffic_per_channel_min_bytes: u64,
    /// Rings inside a Blackwell host have a pipeline latency.
    pub plateau_inside: bool,
    /// Bytes per hop from which the pipeline latency falls.
    pub plateau_bytes_per_hop: u64,
    /// The tree patterns of all hosts count, not only that of the first host.
    pub agrees_on_pattern: bool,
    /// NVLS all-gather and reduce-scatter exclude the rank's own share.
    pub nvls_own_share: bool,
    /// Minimum `cross_nic` for which hosts swap pairs of channels. Searches before 2.23 report 1 instead of 2.
    pub swaps_from_cross_nic: u8,
    /// The factor 5/6 of NVLS applies to every collective, not only to all-reduce.
    pub nvls_sixth_for_all: bool,
    /// Hosts with an odd index swap pairs of channels only if their own search crossed NICs.
    pub swaps_own_pairs_only: bool,
    /// The tree correction also applies to NVLSTree on Blackwell.
    pub corrects_nvls_tree: bool,
    /// The cost model of 2.31: one function per algorithm, ties go to the last pair, PAT uses the smaller bandwidth.
    pub split_model: bool,
}

impl ReleaseRules {
    pub(crate) fn of(version: Version) -> ReleaseRules {
        let from = |minor| version.at_least(2, minor, 0);
        ReleaseRules {
            pat: from(23).then_some(if from(24) { 0.75 } else { 0.85 }),
            ring_ll128_thin: !from(23),
            crosses_twice_n: !from(23),
            lone_ranks_pay_tree: from(23),
            nvls_efficiency: from(28),
            doubles_hopper_only: !from(25),
            nvls_raises_channels: !from(28),
            nvls_within_channels: !from(28),
            ll_counts_four: from(26),
            traffic_per_channel_min_bytes: if from(29) { 32 << 10 } else { 16 << 10 },
            plateau_inside: from(31),
            plateau_bytes_per_hop: if from(32) { 256 << 10 } else { 512 << 10 },
            swaps_from_cross_nic: if from(23) { 2 } else { 1 },
            nvls_sixth_for_all: !from(23),
            agrees_on_pattern: from(26),
            nvls_own_share: from(27),
            swaps_own_pairs_only: from(28),
            corrects_nvls_tree: from(29),
            split_model: from(31),
        }
    }
}
