//! How a campaign grows with its site.
//!
//! Every run occupies all its GPUs, so runs over hundreds of hosts and many checks of every host cost most of a campaign, while most jobs are
//! small. A small site is measured with [`Scale::SMALL`]; a large one, or one with several switches, with [`Scale::of_site`]: 128 hosts of 8
//! H100 take less than 300 GPU-minutes.

use crate::intra::SPOT_CHECKS;
use topology::{Allocation, Cluster};

/// Sites up to this many hosts, below one switch, are measured with [`Scale::SMALL`].
pub const SMALL_SITE_HOSTS: usize = 16;
/// Most hosts of one run on a larger site; placement extrapolates above it.
pub const HOSTS_PER_RUN: usize = 16;
/// Spot checks of a size on a larger site, all hosts together; every host gets one at least.
const SPOT_CHECKS_OF_SITE: usize = 128;
/// Full tables of deviating hosts on a larger site; more hosts get [`SPOT_CHECKS`] checks each.
const TABLES_OF_DEVIATING_MAX: usize = 2;

/// Limits of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Most hosts of one run.
    pub hosts_per_run: usize,
    /// Spot checks of each host.
    pub spot_checks: usize,
    /// Full tables of deviating hosts.
    pub tables_of_deviating: usize,
    /// Sample by the sizes of real jobs: runs over `h` hosts are drawn as `1 / h²`, half of them below one switch where there are several.
    pub by_job_size: bool,
}

impl Scale {
    /// Runs over any number of hosts, drawn evenly; full checks.
    pub const SMALL: Scale = Scale {
        hosts_per_run: usize::MAX,
        spot_checks: SPOT_CHECKS,
        tables_of_deviating: usize::MAX,
        by_job_size: false,
    };

    /// The scale of a site whose `idle` GPUs are measured. `hosts_per_run`: as the user says, instead of [`HOSTS_PER_RUN`].
    pub fn of_site(cluster: &Cluster, idle: &Allocation, hosts_per_run: Option<usize>) -> Scale {
        let hosts = idle.host_count();
        let switches = cluster.tiers().first().map_or(1, |_| cluster.switches_spanned(0, idle));
        if hosts <= SMALL_SITE_HOSTS && switches <= 1 {
            return Scale { hosts_per_run: hosts_per_run.unwrap_or(usize::MAX), ..Scale::SMALL };
        }
        Scale {
            hosts_per_run: hosts_per_run.unwrap_or(HOSTS_PER_RUN),
            spot_checks: (SPOT_CHECKS_OF_SITE / hosts.max(1)).clamp(1, SPOT_CHECKS),
            tables_of_deviating: if hosts <= SMALL_SITE_HOSTS { usize::MAX } else { TABLES_OF_DEVIATING_MAX },
            by_job_size: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_sites_are_measured_in_full_and_large_ones_with_a_check_per_host() {
        let site = |hosts: usize| {
            let c = topology::catalog::cluster(&format!("{hosts}xhgx-h100")).unwrap();
            Scale::of_site(&c, &c.usable(), None)
        };
        assert_eq!(site(4), Scale::SMALL);
        assert_eq!(site(16), Scale::SMALL);
        assert_eq!((site(64).hosts_per_run, site(64).spot_checks), (HOSTS_PER_RUN, 2));
        assert_eq!(site(1000).spot_checks, 1);
    }
}
