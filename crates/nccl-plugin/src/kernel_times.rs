//! Whether to ask NCCL for the GPU times of kernels (its kernel-channel events). Off unless asked for: releases of NCCL crash with them.

use crate::config::KernelTimes;

/// `/dev/shm` below this size is too small with releases that report kernel times through it, bytes. Containers have 64 MiB by default.
const SHARED_MEMORY_MIN: u64 = 128 << 20;

/// What is known about the process.
#[derive(Debug, Clone, Copy)]
pub struct Release {
    /// As in `ncclGetVersion`: 22809 is 2.28.9. `None` if NCCL cannot be asked.
    pub version: Option<u32>,
    /// The profiler interface in use.
    pub api: u32,
    /// Size of `/dev/shm`, bytes.
    pub shared_memory: Option<u64>,
}

impl Release {
    /// Why kernel times are known to crash here; the numbers are those of issues of NVIDIA/nccl.
    pub fn known_to_crash(&self) -> Option<&'static str> {
        let small = self.shared_memory.is_none_or(|b| b < SHARED_MEMORY_MIN);
        match (self.version.map(|v| v / 100), self.version) {
            (Some(227), Some(22_705..)) => Some(
                "NCCL 2.27.5 to 2.27.7 ends jobs with all-to-all then (\"Proxy append out of bounds\", issue 2039)",
            ),
            (Some(228), Some(22_809..)) => Some("NCCL 2.28.9 was seen to crash then (issue 1992)"),
            (Some(230), Some(23_003)) => Some("NCCL 2.30.3 crashes then in all-to-all (issue 2112)"),
            (Some(229 | 230), _) | (None, _) if self.api == 6 && small => {
                Some("NCCL 2.29 and 2.30 crash then if /dev/shm is small (pull request 2326); it needs 128 MiB")
            }
            (Some(231..), _) => Some("NCCL 2.31 and 2.32 crashed then on the bench"),
            (None, _) if self.api >= 7 => Some("NCCL 2.31 and 2.32 crashed then on the bench"),
            _ => None,
        }
    }
}

/// Whether to ask for them, or why not although the settings do.
pub fn decide(asked: KernelTimes, release: Release) -> Result<bool, String> {
    match (asked, release.known_to_crash()) {
        (KernelTimes::Off, _) => Ok(false),
        (KernelTimes::On, Some(why)) => {
            Err(format!("GPU times are not asked for: {why}; LINKWISE_KERNEL_TIMES=force asks for them nevertheless"))
        }
        (KernelTimes::On, None) | (KernelTimes::Force, _) => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_off_by_default_and_refused_where_releases_crash() {
        let release = |version, api, mib: u64| Release { version, api, shared_memory: Some(mib << 20) };
        for (release, refused) in [
            (release(Some(22_703), 4, 64), None),
            (release(Some(22_707), 4, 9999), Some("2039")),
            (release(Some(22_803), 5, 64), None),
            (release(Some(22_809), 5, 9999), Some("1992")),
            (release(Some(22_907), 6, 64), Some("2326")),
            (release(Some(22_907), 6, 256), None),
            (release(Some(23_003), 6, 9999), Some("2112")),
            (release(Some(23_007), 6, 256), None),
            (release(Some(23_203), 7, 9999), Some("on the bench")),
            (release(None, 7, 9999), Some("on the bench")),
            (release(None, 5, 64), None),
        ] {
            assert_eq!(decide(KernelTimes::Off, release), Ok(false));
            assert_eq!(decide(KernelTimes::Force, release), Ok(true));
            match (decide(KernelTimes::On, release), refused) {
                (Ok(on), None) => assert!(on),
                (Err(why), Some(part)) => assert!(why.contains(part) && why.contains("force"), "{why}"),
                other => panic!("{release:?}: {other:?}"),
            }
        }
    }
}
