//! Short forms of bandwidths (three significant digits) and of lists of GPUs.

use topology::quantity::decimals;
use topology::{Allocation, Cluster, count};

/// Maximum length of a list of GPUs printed in full, characters: about two lines.
const LIST_CHARS_MAX: usize = 120;
/// Maximum length of a word in a cell, characters. Tables break longer ones.
const CELL_WORD_CHARS_MAX: usize = 18;
/// Number of hosts named when a list is longer than that.
const HOSTS_NAMED: usize = 3;

/// A bandwidth in GB/s: `401.4`, `8.25`, `0.0473`.
pub fn gb(gb_per_s: f64) -> String {
    format!("{gb_per_s:.*}", decimals(gb_per_s))
}

/// A bandwidth and its standard deviation with equal digits after the point: `0.0473 ± 0.0012`.
pub fn gb_with_std(gb_per_s: f64, std_gb_per_s: f64) -> String {
    format!("{} ± {}", gb(gb_per_s), std_of(gb_per_s, std_gb_per_s))
}

/// The standard deviation of a bandwidth, with the digits after the point that the bandwidth has.
pub fn std_of(gb_per_s: f64, std_gb_per_s: f64) -> String {
    format!("{std_gb_per_s:.*}", decimals(gb_per_s))
}

/// A short list of GPUs in full; for a longer list the number of GPUs and the first hosts: `2500 GPUs on 313 hosts
/// (n0000, n0001, n0002, ...)`.
pub fn gpus(cluster: &Cluster, a: &Allocation) -> String {
    gpus_within(cluster, a, LIST_CHARS_MAX)
}

/// [`gpus`] with another maximum length of a list in full.
pub fn gpus_within(cluster: &Cluster, a: &Allocation, chars_max: usize) -> String {
    let list = cluster.gpu_list(a);
    if list.chars().count() <= chars_max {
        return list;
    }
    let first: Vec<&str> = a.parts().iter().take(HOSTS_NAMED).map(|p| cluster.host(p.0).name.as_str()).collect();
    let more = if a.host_count() > first.len() { ", ..." } else { "" };
    format!("{} on {} ({}{more})", count(a.gpu_count(), "GPU"), count(a.host_count(), "host"), first.join(", "))
}

/// [`gpus_within`] for the cell of a table: also the short form where a word of the list would break.
pub fn gpus_in_cell(cluster: &Cluster, a: &Allocation, chars_max: usize) -> String {
    let longest = cluster.gpu_list(a).split_whitespace().map(str::len).max().unwrap_or(0);
    gpus_within(cluster, a, if longest > CELL_WORD_CHARS_MAX { 0 } else { chars_max })
}

/// The message about a reading far above the bandwidth that the links of its GPUs allow.
pub fn above_links(links_allow_gb_per_s: f64) -> String {
    format!(
        "that is more than the links allow ({} GB/s): is it in Gbit/s? or are the NIC rates in the cluster file too low?",
        gb(links_allow_gb_per_s)
    )
}

/// The message about a reading far below what the physics of its GPUs expects.
pub fn below_physics(physics_gb_per_s: f64) -> String {
    format!(
        "that is less than a thousandth of what these GPUs should get ({} GB/s): is it in GB/s?",
        gb(physics_gb_per_s)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bandwidth_has_three_significant_digits() {
        let shown = [0.0, 0.000_047_34, 0.0473, 0.999_6, 8.254, 9.996, 12.34, 401.44, 1e5].map(gb);
        assert_eq!(shown, ["0.0", "0.0000473", "0.0473", "1.000", "8.25", "10.00", "12.3", "401.4", "100000.0"]);
        assert_eq!(gb_with_std(0.0473, 0.001_24), "0.0473 ± 0.0012");
    }

    #[test]
    fn the_gpus_of_many_hosts_are_a_number_and_a_few_names() {
        let c = topology::catalog::cluster("h100").expect("a cluster of the catalogue");
        assert_eq!(gpus(&c, &c.usable()), "n[0-3]:[0-7]");
        assert_eq!(gpus_within(&c, &c.usable(), 5), "32 GPUs on 4 hosts (n0, n1, n2, ...)");
        let short = c.parse_gpus(["n0:[0,2]", "n1:[1,3]"]).expect("GPUs of the cluster");
        assert_eq!(gpus_in_cell(&c, &short, 80), "n0:[0,2] n1:[1,3]");
        let long = c.parse_gpus(["n[0,2-3]:[0,2,4-5,7]"]).expect("GPUs of the cluster");
        assert_eq!(gpus_in_cell(&c, &long, 80), "15 GPUs on 3 hosts (n0, n2, n3)");
    }
}
