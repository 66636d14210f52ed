//! Clusters composed of measured tables by the papers' rule: the minimum of the hosts' own rows and of the network between them.
//!
//! - BandPilot (section 5.1.1): "the minimum of the pre-computed intra-host bandwidths of the involved hosts and the
//!   modeled inter-host link bandwidth", where the latter is one fourth of the H100 cluster's. In this module: one
//!   fourth of the 16 MiB row of the sorted counts, and the row of the exact subset on every host that gives two GPUs
//!   or more.
//! - BandPilot's public code, with which `facts/bandpilot.md` compares: the full 2 GiB row, truncated to a whole
//!   number.
//! - LiteGD (section 6.1): the same minimum with a fixed switch bandwidth ([`super::switch`]).
//!
//! On one host: the row of the subset.

use super::outliers::{self, Outliers};
use super::tables::{CountKey, CountRows, IntraRows, files, read_counts, read_intra};
use super::{Options, Switch};
use console::Failure;
use std::path::Path;
use topology::{Allocation, Cluster, GpuMask, HostId};
use truths::{About, Irregularity, Optimum, Parts, Truth};

/// Tables of host types: name in the catalog, and the name of host and file.
const TYPES: [(&str, &str); 5] =
    [("rtx4090", "4090"), ("dgx1-v100", "v100"), ("a6000", "a6000"), ("a800", "a800"), ("hgx-h100", "h100_26")];
/// Share of the H100 network's bandwidth in BandPilot's simulated clusters.
const NETWORK_SHARE: f64 = 0.25;
/// Maximum number of hosts whose pairs have different rates: every set of hosts is visited.
const PAIRED_HOSTS_MAX: usize = 16;
/// Maximum number of GPUs of a cluster behind a switch: sums of counts are bits of one word.
const GPUS_MAX: usize = 127;

/// The rule that composes BandPilot's clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Rule {
    /// The paper's rule: one fourth of the 16 MiB row.
    #[default]
    Paper,
    /// The public code's rule: the 2 GiB row, truncated to a whole number.
    PublicCode,
}

/// A cluster with measured hosts and a network that follows from a rule.
#[derive(Clone, Debug)]
pub struct ComposedCluster {
    about: About,
    /// By host.
    intra: Vec<IntraRows>,
    between: Between,
    whole_numbers: bool,
}

#[derive(Clone, Debug)]
enum Between {
    /// Rows of the sorted counts, and their share.
    Counts(CountRows, f64),
    /// GB/s between every two hosts.
    Pairs(Vec<Vec<f64>>),
}

/// Rate of a NIC of the measured H100 hosts, GB/s; every GPU has one.
const H100_NIC_GB_PER_S: f64 = 50.0;

/// The cluster that models see. Its NICs differ from those of the hosts: one NIC per GPU at its share of the measured
/// rate, or the switch's rate.
fn shown(cluster: &Cluster, options: &Options) -> Cluster {
    match (options.switch, options.rule) {
        (Some(Switch::Uniform(v)), _) => truths::with_one_nic(cluster, v),
        (Some(Switch::Random), _) => truths::with_one_nic(cluster, super::switch::RANDOM_GB_PER_S.end),
        (None, Rule::Paper) => truths::with_own_nics(cluster, Some(H100_NIC_GB_PER_S * NETWORK_SHARE)),
        (None, Rule::PublicCode) => truths::with_own_nics(cluster, Some(H100_NIC_GB_PER_S)),
    }
}

/// The composed truth of a cluster. Errors: a host type without a measured table.
pub fn load(dir: &Path, cluster: &Cluster, options: &Options) -> Result<ComposedCluster, Failure> {
    let mut changed = 0;
    let by_type = intra_by_type(dir, cluster, options, &mut changed)?;
    let (size, collective) = (by_type[0].size, by_type[0].collective);
    let intra: Vec<IntraRows> = cluster.hosts.iter().map(|h| by_type[h.host_type].clone()).collect();
    let (between, how) = match options.switch {
        Some(switch) => (pairs_behind(switch, cluster, options.seed)?, format!("a switch of {switch} (LiteGD's rule)")),
        None => {
            let (prefix, share, how) = match options.rule {
                Rule::Paper => (
                    "multihost_h100_16mib",
                    NETWORK_SHARE,
                    "the H100 row of the sorted counts over four (BandPilot's rule)",
                ),
                Rule::PublicCode => {
                    ("multihost_h100_2gib", 1.0, "the 2 GiB H100 row (BandPilot's public code), whole numbers")
                }
            };
            (Between::Counts(h100_counts(dir, prefix, options.outliers, &mut changed)?, share), how.to_owned())
        }
    };
    let mut description = format!("composed of measured intra tables ({collective} {size}) and {how}");
    if options.outliers != Outliers::Keep {
        description += &format!("; {changed} flagged rows {}", options.outliers.word());
    }
    Ok(ComposedCluster {
        about: About {
            name: format!("composed {}", cluster.name),
            description,
            cluster: shown(cluster, options),
            size,
            collective,
            simulated: true,
        },
        intra,
        between,
        whole_numbers: options.switch.is_none() && options.rule == Rule::PublicCode,
    })
}

/// The measured table of every host type. Adds the number of outliers to `changed`.
fn intra_by_type(
    dir: &Path,
    cluster: &Cluster,
    options: &Options,
    changed: &mut usize,
) -> Result<Vec<IntraRows>, Failure> {
    let mut by_type = Vec::new();
    for t in &cluster.types {
        let Some((_, name)) = TYPES.iter().find(|x| x.0 == t.name) else {
            let known: Vec<&str> = TYPES.iter().map(|x| x.0).collect();
            return Err(Failure::impossible(format!(
                "cluster `{}`: no measured table of host type `{}`; there are tables of {}",
                cluster.name,
                t.name,
                known.join(", ")
            )));
        };
        let file = dir.join(format!("intra_{name}_16mib.csv"));
        let mut rows = read_intra(&file, name, t)?;
        if options.outliers != Outliers::Keep {
            *changed += outliers::intra(t, &mut rows, options.outliers);
        }
        by_type.push(rows);
    }
    Ok(by_type)
}

/// The rates between hosts behind a switch.
fn pairs_behind(switch: Switch, cluster: &Cluster, seed: u64) -> Result<Between, Failure> {
    let hosts = cluster.hosts.len();
    if cluster.gpu_count() > GPUS_MAX || (switch == Switch::Random && hosts > PAIRED_HOSTS_MAX) {
        return Err(Failure::impossible(format!(
            "cluster `{}` has {hosts} hosts and {} GPUs; clusters behind a switch have at most {GPUS_MAX} GPUs, and \
             {PAIRED_HOSTS_MAX} hosts if it is random",
            cluster.name,
            cluster.gpu_count()
        )));
    }
    Ok(Between::Pairs(switch.pairs(hosts, seed)))
}

/// The H100 rows of the sorted counts in all files that begin with `prefix`. Adds the number of outliers to `changed`.
fn h100_counts(dir: &Path, prefix: &str, outliers: Outliers, changed: &mut usize) -> Result<CountRows, Failure> {
    let four = topology::catalog::cluster("h100").expect("built in");
    let mut all: Option<CountRows> = None;
    for file in files(dir, prefix)? {
        for mut t in read_counts(&file, &four)? {
            if outliers != Outliers::Keep {
                *changed += outliers::counts(&four, &mut t, outliers);
            }
            match &mut all {
                Some(c) => c.by_counts.extend(t.by_counts),
                None => all = Some(t),
            }
        }
    }
    all.ok_or_else(|| {
        Failure::input(format!("{} holds no {prefix}*.csv; docs/data.md names the source", dir.display()))
    })
}

impl ComposedCluster {
    /// Bandwidth of the network between some hosts, GB/s.
    fn between(&self, parts: Parts) -> Option<f64> {
        match &self.between {
            Between::Counts(rows, share) => {
                Some(share * rows.by_counts.get(&CountKey::of(parts.iter().map(|p| p.1.count()))?)?)
            }
            Between::Pairs(pairs) => {
                let mut slowest = f64::INFINITY;
                for (i, (a, _)) in parts.iter().enumerate() {
                    for (b, _) in &parts[i + 1..] {
                        slowest = slowest.min(pairs[a.index()][b.index()]);
                    }
                }
                Some(slowest)
            }
        }
    }
}

impl Truth for ComposedCluster {
    fn about(&self) -> &About {
        &self.about
    }
    fn of_parts(&self, parts: Parts, _: Irregularity) -> Option<f64> {
        let value = match parts {
            [] => return None,
            [(h, m)] => self.intra[h.index()].get(*m)?,
            _ => {
                let mut low = self.between(parts)?;
                for (h, m) in parts.iter().filter(|p| p.1.count() > 1) {
                    low = low.min(self.intra[h.index()].get(*m)?);
                }
                low
            }
        };
        Some(if self.whole_numbers { value.floor() } else { value })
    }
    /// A row is one reading, so its scatter is unknown.
    fn noise(&self, _hosts: usize) -> f64 {
        0.0
    }
    /// The mask with the best row, and one without a row if there is any: across hosts only the row's bandwidth
    /// matters.
    fn masks_that_matter(
        &self,
        host: HostId,
        free: GpuMask,
        count: usize,
        _alone: bool,
        _: Irregularity,
    ) -> Vec<GpuMask> {
        let (mut best, mut hole) = (None::<(f64, GpuMask)>, None);
        for m in free.subsets().filter(|m| m.count() == count) {
            match self.intra[host.index()].get(m) {
                Some(v) if best.is_none_or(|b| v > b.0) => best = Some((v, m)),
                Some(_) => {}
                None => hole = Some(m),
            }
        }
        best.map(|b| b.1).into_iter().chain(hole).collect()
    }
    fn merits(&self, host: HostId, mask: GpuMask) -> Option<Vec<f64>> {
        Some(vec![self.intra[host.index()].get(mask).unwrap_or(f64::NAN)])
    }
    fn optimum(&self, free: &Allocation, k: usize, irregularity: Irregularity) -> Optimum {
        match &self.between {
            Between::Pairs(pairs) => super::min_rule::optimum(self, &self.intra, pairs, free, k),
            Between::Counts(..) => truths::enumerate(self, free, k, irregularity),
        }
    }
}
