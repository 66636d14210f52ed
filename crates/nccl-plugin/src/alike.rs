//! What all ranks of a communicator must have alike, beside the plugin's own settings: NCCL's release and those of its settings that change cost
//! tables. A host whose `/etc/nccl.conf` says `NCCL_PROTO=Simple` computes other tables than the rest; with an arm that it cannot use, it would
//! launch something else, and NCCL hangs.
//!
//! NCCL puts the settings of `/etc/nccl.conf`, `~/.nccl.conf` and `NCCL_CONF_FILE` into the environment before it loads a plugin (2.24 to 2.32 on
//! the bench), so the environment has them all.
//!
//! Ranks compare one number ([`pack`]); differences that no setting explains are found in the tables themselves ([`crate::views`]).

/// The settings compared, by the group that a difference is reported as.
const GROUPS: [(&str, &[&str]); 3] = [
    ("NCCL_ALGO, NCCL_PROTO", &["NCCL_ALGO", "NCCL_PROTO"]),
    (
        "NCCL's counts of channels, CTAs or threads",
        &[
            "NCCL_MIN_NCHANNELS",
            "NCCL_MAX_NCHANNELS",
            "NCCL_MIN_NRINGS",
            "NCCL_MAX_NRINGS",
            "NCCL_NVLS_NCHANNELS",
            "NCCL_NCHANNELS_PER_NET_PEER",
            "NCCL_MIN_CTAS",
            "NCCL_MAX_CTAS",
            "NCCL_CTA_POLICY",
            "NCCL_NTHREADS",
            "NCCL_LL128_NTHREADS",
            "NCCL_THREAD_THRESHOLDS",
        ],
    ),
    (
        "NCCL's buffers or switches of algorithms",
        &[
            "NCCL_BUFFSIZE",
            "NCCL_LL_BUFFSIZE",
            "NCCL_LL128_BUFFSIZE",
            "NCCL_NVLS_CHUNKSIZE",
            "NCCL_NVLS_ENABLE",
            "NCCL_PAT_ENABLE",
            "NCCL_COLLNET_ENABLE",
            "NCCL_COLLNET_NODE_THRESHOLD",
            "NCCL_LL128_C2C",
            "NCCL_NET_OVERHEAD",
            "NCCL_GRAPH_FILE",
            "NCCL_TUNER_CONFIG_FILE",
        ],
    ),
];
const LINKWISE: &str = "LINKWISE_* settings, the settings file or the plugin's version";
const RELEASE: &str = "NCCL's release";

/// The compared settings of NCCL that are set, with their values, in the order of [`GROUPS`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NcclSettings {
    set: Vec<(&'static str, String)>,
    groups: [u64; GROUPS.len()],
}

impl NcclSettings {
    pub fn read(env: impl Fn(&str) -> Option<String>) -> Self {
        let mut all = NcclSettings::default();
        for ((_, names), hash) in GROUPS.iter().zip(&mut all.groups) {
            let set: Vec<(&str, String)> =
                names.iter().filter_map(|n| env(n).filter(|v| !v.is_empty()).map(|v| (*n, v))).collect();
            *hash = wire::bytes::hash(format!("{set:?}").as_bytes());
            all.set.extend(set);
        }
        all
    }
}

impl std::fmt::Display for NcclSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set: Vec<String> = self.set.iter().map(|(name, value)| format!("{name}={value}")).collect();
        f.write_str(&if set.is_empty() { "no setting of NCCL".into() } else { set.join(" ") })
    }
}

/// The number that ranks compare. The lower 32 bits are a hash of everything; the others, 6 or 7 bits of each part, name the part that differs.
pub fn pack(linkwise: u64, release: Option<u32>, nccl: &NcclSettings) -> u64 {
    let release = u64::from(release.unwrap_or(0));
    let parts = parts(linkwise, release, nccl);
    let all = wire::bytes::hash(format!("{parts:?}").as_bytes());
    let mut named = 0;
    for part in parts {
        named = named << PART_BITS | wire::bytes::hash(&part.to_le_bytes()) >> (64 - PART_BITS);
    }
    named << 32 | (all & 0xffff_ffff)
}

const PART_BITS: u32 = 6;

fn parts(linkwise: u64, release: u64, nccl: &NcclSettings) -> [u64; 5] {
    let [a, b, c] = nccl.groups;
    [linkwise, release, a, b, c]
}

/// The parts in which these bits of [`pack`] lie, as words.
pub fn differing(bits: u64) -> String {
    let names = [LINKWISE, RELEASE, GROUPS[0].0, GROUPS[1].0, GROUPS[2].0];
    let part = |i: usize| bits >> (32 + PART_BITS as usize * (names.len() - 1 - i)) & ((1 << PART_BITS) - 1);
    let all: Vec<&str> = names.iter().enumerate().filter(|(i, _)| part(*i) != 0).map(|(_, n)| *n).collect();
    if all.is_empty() { "settings".into() } else { all.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> NcclSettings {
        NcclSettings::read(|k| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| v.to_string()))
    }

    #[test]
    fn a_difference_is_found_and_named() {
        let (plain, simple) = (with(&[]), with(&[("NCCL_PROTO", "Simple")]));
        let channels = with(&[("NCCL_MAX_CTAS", "8"), ("NCCL_DEBUG", "INFO")]);
        let base = pack(1, Some(22_809), &plain);
        assert_eq!(base, pack(1, Some(22_809), &with(&[("NCCL_DEBUG", "WARN"), ("NCCL_PROTO", "")])));
        for (other, named) in [
            (pack(2, Some(22_809), &plain), LINKWISE),
            (pack(1, Some(23_007), &plain), RELEASE),
            (pack(1, Some(22_809), &simple), GROUPS[0].0),
            (pack(1, Some(22_809), &channels), GROUPS[1].0),
            (pack(1, Some(22_809), &with(&[("NCCL_BUFFSIZE", "1")])), GROUPS[2].0),
        ] {
            assert_eq!(differing(base ^ other), named);
        }
        assert_eq!(simple.to_string(), "NCCL_PROTO=Simple");
        assert_eq!(differing(1), "settings", "parts whose few bits are equal by chance");
    }
}
