//! linkwise's own loop of measuring, learning and placing, where a reading is the bandwidth of real NCCL in the box.
//!
//! The box differs from its cluster file, as sites do: a NIC is slower than it should be. Only readings show it.

use crate::spec;
use nccl_bench::bytes::{BytesCall, Traffic};
use nccl_bench::{Bench, BenchError};
use netns::{NetBox, NetBoxError};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Calls of a measurement, and the first ones that do not count.
const CALLS: u32 = 5;
/// See [`CALLS`].
const WARM_CALLS: u32 = 2;
/// GPUs of a host.
pub const GPUS: u8 = 4;

/// Hosts with one NIC each, below leaf switches.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Number of hosts.
    pub hosts: usize,
    /// Hosts of a leaf.
    pub per_leaf: usize,
    /// Rate of a NIC, Mbit/s.
    pub mbit: u32,
    /// Rate of a leaf's uplink, Mbit/s.
    pub uplink_mbit: u32,
    /// A host whose NIC has another rate than the file says, Mbit/s.
    pub slow: (usize, u32),
}

impl Site {
    /// The box of this site.
    ///
    /// # Errors
    /// See [`NetBoxError`].
    pub fn netbox(&self) -> Result<NetBox, NetBoxError> {
        let netbox = NetBox::leaf_spine(self.hosts, 1, self.per_leaf, self.mbit, self.uplink_mbit)?;
        netbox.rate(self.slow.0, 0, self.slow.1)?;
        Ok(netbox)
    }

    /// The cluster file of its operator, who does not know the slow NIC.
    pub fn cluster_file(&self) -> String {
        let Site { hosts, per_leaf, mbit, uplink_mbit, .. } = self;
        format!(
            "name: box
network:
  class: tcp
  tiers:
  - {{name: leaf, hosts_per_switch: {per_leaf}, oversubscription: {}}}
host_types:
- name: boxed
  gpu_model: NVIDIA H100 80GB HBM3
  gpus: {GPUS}
  sockets: [[0, 1, 2, 3]]
  nvlink: {{link_rate_gb_per_s: 25, switched: true, links: 18}}
  nics:
  - {{name: eth0, line_rate_gbit_per_s: {}, socket: 0}}
hosts:
- {{name: 'n[0-{}]', type: boxed}}
",
            (*per_leaf as f64 * f64::from(*mbit)) / f64::from(*uplink_mbit),
            f64::from(*mbit) / 1e3,
            hosts - 1
        )
    }

    /// An even split on the fewest free hosts below as few leaves as possible, the first in order: what an operator gets without readings. `free` is
    /// the number of free GPUs of each host; `None` if there is no even split.
    pub fn even(&self, free: &[u8], gpus: usize) -> Option<Vec<(usize, u8)>> {
        (1..=self.hosts).filter(|n| gpus.is_multiple_of(*n) && gpus / n <= usize::from(GPUS)).find_map(|n| {
            let each = (gpus / n) as u8;
            let able: Vec<usize> = (0..self.hosts).filter(|h| free[*h] >= each).collect();
            let below =
                |leaf: usize| -> Vec<usize> { able.iter().copied().filter(|h| h / self.per_leaf == leaf).collect() };
            let leaves = (0..self.hosts.div_ceil(self.per_leaf)).map(below);
            let chosen = leaves.into_iter().find(|l| l.len() >= n).or((able.len() >= n).then_some(able.clone()))?;
            Some(chosen.into_iter().take(n).map(|h| (h, each)).collect())
        })
    }
}

/// Bus bandwidth of an all-reduce of `size_bytes` on these GPUs of each host, GB/s: the median of three calls after two. A wrong byte is an error.
///
/// # Errors
/// As [`Bench::run_bytes`].
pub fn busbw_gb_per_s(
    bench: &Bench,
    netbox: &NetBox,
    hosts: &[(usize, u8)],
    size_bytes: u64,
) -> Result<f64, BenchError> {
    let call = BytesCall { repetitions: CALLS, ..BytesCall::new(Traffic::AllReduce(size_bytes)) };
    let report = bench.run_bytes(&spec(netbox, hosts, "2.28.9", vec![call])?)?;
    if report.wrong_bytes() > 0 {
        return Err(BenchError::Spec(format!("{} wrong bytes", report.wrong_bytes())));
    }
    let seconds: Vec<f64> = (WARM_CALLS..CALLS).filter_map(|k| report.seconds(0, k)).collect();
    let ranks = f64::from(report.ranks);
    Ok(2.0 * (ranks - 1.0) / ranks * size_bytes as f64 / stats::upper_median(&seconds) / 1e9)
}

/// Hosts and GPU counts of names such as `n3:1`, in the order of the hosts.
///
/// # Errors
/// A name that is none.
pub fn hosts_of<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<(usize, u8)>, String> {
    let mut counts = BTreeMap::new();
    for name in names {
        let host = name.split(':').next().and_then(|h| h.strip_prefix('n')).and_then(|n| n.parse::<usize>().ok());
        *counts.entry(host.ok_or(format!("`{name}` is no GPU of the box"))?).or_insert(0) += 1;
    }
    Ok(counts.into_iter().collect())
}

/// What a request got.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// Free GPUs of each host, and how many are asked for.
    pub free: Vec<u8>,
    /// See `free`.
    pub gpus: usize,
    /// linkwise's choice: host and number of GPUs.
    pub chosen: Vec<(usize, u8)>,
    /// Measured bandwidth of the choice, GB/s.
    pub chosen_gb_per_s: f64,
    /// [`Site::even`].
    pub even: Vec<(usize, u8)>,
    /// Measured bandwidth of the even split, GB/s.
    pub even_gb_per_s: f64,
}

/// A loop's result.
#[derive(Debug, Clone, PartialEq)]
pub struct Learned {
    /// What `linkwise fit` said.
    pub fit: String,
    /// One entry per request.
    pub placed: Vec<Placed>,
}

/// Runs the commands of an operator in `folder`: `measure` (`samples` allocations of the box), `fit`, and `place` for each request (free GPUs of each
/// host, number of GPUs); then measures every choice and every even split. `programs`: folder of `linkwise` and `box-bench`.
///
/// # Errors
/// A command that fails, with what it said.
pub fn measure_fit_place(
    folder: &Path,
    programs: &Path,
    site: &Site,
    (samples, size_bytes): (usize, u64),
    requests: &[(Vec<u8>, usize)],
) -> Result<Learned, String> {
    let linkwise = |arguments: &[&str]| {
        let out = Command::new(programs.join("linkwise")).args(arguments).current_dir(folder).output();
        let out = out.map_err(|e| format!("linkwise {arguments:?}: {e}"))?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let said = String::from_utf8_lossy(&out.stderr);
        if out.status.success() { Ok(text) } else { Err(format!("linkwise {arguments:?}: {text}{said}")) }
    };
    std::fs::write(folder.join("box.yaml"), site.cluster_file()).map_err(|e| e.to_string())?;
    let benchmark = format!(
        "{} --hosts {} --per-leaf {} --mbit {} --uplink-mbit {} --slow {}:{}",
        programs.join("box-bench").display(),
        site.hosts,
        site.per_leaf,
        site.mbit,
        site.uplink_mbit,
        site.slow.0,
        site.slow.1
    );
    let size = size_bytes.to_string();
    let of = ["--cluster", "box.yaml", "--store", "box.db"];
    let sampling = ["--all-idle", "--no-intra", "--samples", &samples.to_string(), "--sizes", &size].map(str::to_owned);
    let mut measure = vec!["measure", "--backend", "command", "--command", &benchmark];
    measure.extend(of.iter().copied().chain(sampling.iter().map(String::as_str)));
    linkwise(&measure)?;
    let fit = linkwise(&[&["fit", "--output", "model.json"], &of[..]].concat())?;
    let mut placed = Vec::new();
    for (free, gpus) in requests {
        let hosts = (0..site.hosts).filter(|h| free[*h] > 0);
        let list: Vec<String> = hosts.map(|h| format!("n{h}:[0-{}]", free[h] - 1)).collect();
        let gpu_count = gpus.to_string();
        let answer = linkwise(&[
            "place",
            "--cluster",
            "box.yaml",
            "--model",
            "model.json",
            "--gpus",
            &gpu_count,
            "--size",
            &size,
            "--free",
            &list.join(" "),
            "--format",
            "json",
        ])?;
        let answer: Value = serde_json::from_str(&answer).map_err(|e| format!("{e}: {answer}"))?;
        let chosen = hosts_of(answer["gpus"].as_array().into_iter().flatten().filter_map(Value::as_str))?;
        let even = site.even(free, *gpus).ok_or("no even split")?;
        placed.push(Placed { free: free.clone(), gpus: *gpus, chosen, chosen_gb_per_s: 0.0, even, even_gb_per_s: 0.0 });
    }
    let netbox = site.netbox().map_err(|e| e.to_string())?;
    let bench = Bench::new().map_err(|e| e.to_string())?;
    let measured =
        |hosts: &[(usize, u8)]| busbw_gb_per_s(&bench, &netbox, hosts, size_bytes).map_err(|e| e.to_string());
    for p in &mut placed {
        p.even_gb_per_s = measured(&p.even)?;
        p.chosen_gb_per_s = if p.chosen == p.even { p.even_gb_per_s } else { measured(&p.chosen)? };
    }
    Ok(Learned { fit, placed })
}

/// The table in Markdown.
pub fn markdown(placed: &[Placed]) -> String {
    let list = |hosts: &[(usize, u8)]| hosts.iter().map(|(h, n)| format!("n{h}:{n}")).collect::<Vec<_>>().join(" ");
    let mut out =
        String::from("| GPUs | free | even split | MB/s | linkwise | MB/s | ratio |\n|---|---|---|---|---|---|---|\n");
    for p in placed {
        let free: Vec<(usize, u8)> = p.free.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
        out += &format!(
            "| {} | {} | {} | {:.1} | {} | {:.1} | {:.2} |\n",
            p.gpus,
            list(&free),
            list(&p.even),
            1e3 * p.even_gb_per_s,
            list(&p.chosen),
            1e3 * p.chosen_gb_per_s,
            p.chosen_gb_per_s / p.even_gb_per_s
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: Site = Site { hosts: 6, per_leaf: 3, mbit: 100, uplink_mbit: 60, slow: (1, 30) };

    #[test]
    fn the_even_split_stays_below_one_leaf_where_it_can() {
        assert_eq!(SITE.even(&[4; 6], 8), Some(vec![(0, 4), (1, 4)]));
        assert_eq!(SITE.even(&[4, 0, 0, 4, 4, 4], 8), Some(vec![(3, 4), (4, 4)]));
        assert_eq!(SITE.even(&[4, 0, 0, 4, 0, 0], 8), Some(vec![(0, 4), (3, 4)]));
        assert_eq!(SITE.even(&[3, 3, 2, 2, 2, 2], 8), Some(vec![(0, 2), (1, 2), (2, 2), (3, 2)]));
        assert_eq!(SITE.even(&[1, 0, 0, 0, 0, 0], 8), None);
    }

    #[test]
    fn names_of_gpus_are_counted_by_host() {
        assert_eq!(hosts_of(["n3:1", "n0:0", "n3:0"]), Ok(vec![(0, 1), (3, 2)]));
        assert!(hosts_of(["gpu7"]).is_err());
    }
}
