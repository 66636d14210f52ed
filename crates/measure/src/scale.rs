//! Limits the size of a campaign by the size of the site.
//!
//! A run occupies all its GPUs, so runs over hundreds of hosts and many checks of every host cause most of the cost of a
//! campaign, but most jobs are small. [`Scale::of_site`] returns [`Scale::SMALL`] for a small site below one switch, and
//! lower limits for other sites: 128 hosts of 8 H100 take less than 300 GPU-minutes.

use crate::intra::SPOT_CHECKS;
use topology::{Allocation, Cluster};

/// Sites up to this many hosts, below one switch, are measured with [`Scale::SMALL`].
pub const SMALL_SITE_HOSTS: usize = 16;
/// Maximum number of hosts of one run on a larger site. Placement extrapolates to more hosts.
pub const HOSTS_PER_RUN: usize = 16;
/// Maximum number of hosts of one run of a rail sweep: the diagnosis compares no larger runs.
pub const HOSTS_PER_SWEEP: usize = 128;
/// Number of spot checks of one message size on a larger site, over all hosts. Every host gets at least one.
const SPOT_CHECKS_OF_SITE: usize = 128;
/// Maximum number of deviating hosts with a full table on a larger site. Other deviating hosts get [`SPOT_CHECKS`] checks
/// each.
const TABLES_OF_DEVIATING_MAX: usize = 2;

/// Limits of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Maximum number of hosts of one run.
    pub hosts_per_run: usize,
    /// Maximum number of hosts of one run of a rail sweep, which takes one GPU of each.
    pub hosts_per_sweep: usize,
    /// Number of spot checks of each host for each message size.
    pub spot_checks: usize,
    /// Maximum number of deviating hosts with a full table.
    pub tables_of_deviating: usize,
    /// Draw runs by the sizes of real jobs: the probability of `h` hosts is proportional to `1 / h²`. If the site has
    /// several switches, as many runs stay below one switch of each tier as go anywhere.
    pub by_job_size: bool,
}

impl Scale {
    /// Runs over any number of hosts, drawn uniformly, and all checks.
    pub const SMALL: Scale = Scale {
        hosts_per_run: usize::MAX,
        hosts_per_sweep: HOSTS_PER_SWEEP,
        spot_checks: SPOT_CHECKS,
        tables_of_deviating: usize::MAX,
        by_job_size: false,
    };

    /// The limits for a measurement of the `idle` GPUs. `hosts_per_run`: the option of the user; default [`HOSTS_PER_RUN`], or
    /// no limit on a small site.
    pub fn of_site(cluster: &Cluster, idle: &Allocation, hosts_per_run: Option<usize>) -> Scale {
        let hosts = idle.host_count();
        let switches = cluster.tiers().first().map_or(1, |_| cluster.switches_spanned(0, idle));
        let hosts_per_sweep = hosts_per_run.unwrap_or(HOSTS_PER_SWEEP).min(HOSTS_PER_SWEEP);
        if hosts <= SMALL_SITE_HOSTS && switches <= 1 {
            return Scale { hosts_per_run: hosts_per_run.unwrap_or(usize::MAX), hosts_per_sweep, ..Scale::SMALL };
        }
        Scale {
            hosts_per_run: hosts_per_run.unwrap_or(HOSTS_PER_RUN),
            hosts_per_sweep,
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
