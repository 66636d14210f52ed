//! A placement request from flags and the files that they name.

use super::LIST_BYTES_MAX;
use console::Failure;
use console::number::whole;
use files::read_text;
use place::read::{Bad, Reader, without_drained};
use place::{Constraints, Group, Request, Split};
use std::path::{Path, PathBuf};
use topology::Allocation;

/// The job to place, in flags.
#[derive(clap::Args)]
pub struct Ask {
    /// How many GPUs
    #[arg(long, conflicts_with = "requests", required_unless_present_any = ["requests", "pods"], value_parser = whole::<usize>)]
    gpus: Option<usize>,
    /// GPUs of every pod, `4,4`: a pod lies on one host, several may share one; `1,1,1,1` is any split
    #[arg(long, value_delimiter = ',', conflicts_with = "requests", value_parser = whole::<usize>)]
    pods: Vec<usize>,
    /// Groups of ranks, `tensor=4,pipeline=2,data=2` (or `tensor=4:3` with a weight of 3 in the job's traffic): the sizes multiply to the
    /// GPUs, and the first is the lowest digit of a rank
    #[arg(long, value_delimiter = ',', conflicts_with = "requests", value_parser = group)]
    groups: Vec<Group>,
    /// Free GPUs: `n[0-3]:[0-7] n5:2 n6` (a host alone means all its GPUs), or a file with such a list
    #[arg(long, conflicts_with = "requests")]
    free: Option<String>,
    /// Only these hosts: `n0,n2` or `n[0-3]`
    #[arg(long, conflicts_with = "requests")]
    only_hosts: Option<String>,
    /// None of these hosts: `n3` or `n[4-7]`
    #[arg(long, conflicts_with = "requests")]
    exclude_hosts: Option<String>,
    /// Only GPUs of this model (`H100`), or hosts of this type (`hgx-h100`)
    #[arg(long, conflicts_with = "requests")]
    gpu_type: Option<String>,
    /// Fewest GPUs on any host that takes part
    #[arg(long, default_value_t = 0, conflicts_with = "requests", value_parser = whole::<usize>)]
    min_per_host: usize,
    /// Most hosts
    #[arg(long, conflicts_with = "requests", value_parser = whole::<usize>)]
    max_hosts: Option<usize>,
    /// No GPU whose nearest NIC is also near a running job's GPU
    #[arg(long, conflicts_with = "requests")]
    exclusive_nics: bool,
    /// Hosts may give different numbers of GPUs; without it all give the same number where that is feasible
    #[arg(long, conflicts_with_all = ["requests", "per_host"])]
    uneven: bool,
    /// GPUs on every host that takes part
    #[arg(long, conflicts_with = "requests", value_parser = whole::<usize>)]
    per_host: Option<usize>,
    /// Most GPUs on any host
    #[arg(long, conflicts_with = "requests", value_parser = whole::<usize>)]
    max_per_host: Option<usize>,
    /// Most switches of a tier (that of --switch-tier) that the job may span
    #[arg(long, conflicts_with = "requests", value_parser = whole::<usize>)]
    switches: Option<usize>,
    /// The tier of --switches, `leaf`; without it the tier nearest to the hosts
    #[arg(long, requires = "switches")]
    switch_tier: Option<String>,
    /// All GPUs below one switch of this tier (`leaf`), or on one `host`
    #[arg(long, value_name = "LEVEL", conflicts_with = "requests")]
    require_level: Option<String>,
    /// The same where it is possible and costs at most half of the bandwidth, else the next higher tier, and so on
    #[arg(long, value_name = "LEVEL", conflicts_with = "requests")]
    prefer_level: Option<String>,
    /// As few GPUs as possible below any one switch of this tier, or on any one `host`
    #[arg(long, value_name = "LEVEL", conflicts_with = "requests")]
    spread: Option<String>,
    /// Running jobs: a JSON file, [{"id":"a","gpus":["n0:0",...],"demand_gb_per_s":40},...]
    #[arg(long, conflicts_with = "requests")]
    jobs: Option<PathBuf>,
}

impl Ask {
    /// Builds the request from the flags.
    pub fn request(&self, reader: &Reader) -> Result<Request, Failure> {
        let flag = |name: &str, e: Bad| Failure::input(format!("{name}: {}", e.message));
        let jobs = match &self.jobs {
            None => Vec::new(),
            Some(file) => {
                let text = read_text(file, LIST_BYTES_MAX)?;
                reader.jobs_of_text(&text).map_err(|e| flag(&file.display().to_string(), e))?
            }
        };
        let free = match &self.free {
            None => reader.not_held(&jobs),
            Some(list) => {
                let text = free_text(list)?;
                let named =
                    reader.gpus(std::iter::once(text.as_str()), "--free").map_err(|e| Failure::input(e.message))?;
                without_drained(reader.cluster(), &named)
            }
        };
        let hosts = |list: &Option<String>, name: &str| match list {
            None => Ok(Vec::new()),
            Some(l) => reader.hosts(std::iter::once(l.as_str()), name).map_err(|e| Failure::input(e.message)),
        };
        let constraints = Constraints {
            only_hosts: hosts(&self.only_hosts, "--only-hosts")?,
            excluded_hosts: hosts(&self.exclude_hosts, "--exclude-hosts")?,
            gpu_type: self.gpu_type.clone(),
            gpus_per_host_min: self.min_per_host,
            hosts_max: self.max_hosts,
            exclusive_nics: self.exclusive_nics,
            gpus_per_host_max: self.max_per_host,
            switches_max: self.switches,
            switch_tier: self.switch_tier.clone(),
            require_level: self.require_level.clone(),
            prefer_level: self.prefer_level.clone(),
            spread: self.spread.clone(),
            split: Split::of(self.uneven, self.per_host).map_err(Failure::input)?,
        };
        let of_pods = || self.pods.iter().fold(0usize, |s, p| s.saturating_add(*p));
        let d = reader.defaults();
        Ok(Request {
            pods: self.pods.clone(),
            groups: self.groups.clone(),
            constraints,
            jobs,
            contention: d.contention,
            loss_weight: d.loss_weight,
            slack: d.slack,
            ..Request::new(self.gpus.unwrap_or_else(of_pods), free, d.size)
        })
    }
}

/// Parses `tensor=4` or `tensor=4:0.5`.
fn group(text: &str) -> Result<Group, String> {
    let wrong = || format!("`{text}` is no group; `tensor=4` or `tensor=4:0.5` was expected");
    let (kind, size) = text.split_once('=').ok_or_else(wrong)?;
    let (size, weight) = size.split_once(':').unwrap_or((size, "1"));
    let weight = weight.parse().map_err(|_| wrong())?;
    Ok(Group { kind: kind.parse()?, size: size.parse().map_err(|_| wrong())?, weight })
}

/// A list from the command line, or the content of the file that the argument names.
fn free_text(list: &str) -> Result<String, Failure> {
    let path = Path::new(list);
    if !list.contains([' ', ',']) && path.is_file() {
        Ok(read_text(path, LIST_BYTES_MAX)?)
    } else {
        Ok(list.to_owned())
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadingLine {
    gpus: Vec<String>,
    busbw_gb_per_s: f64,
}

/// Maximum number of lines of a readings file.
const READINGS_MAX: usize = 1000;

/// Reads allocations and their measured bandwidths, GB/s.
pub fn read_readings(reader: &Reader, file: &Path) -> Result<Vec<(Allocation, f64)>, Failure> {
    let text = read_text(file, LIST_BYTES_MAX)?;
    let lines = text.lines().enumerate().filter(|l| !l.1.trim().is_empty()).take(READINGS_MAX);
    lines
        .map(|(i, line)| {
            let bad = |e: String| Failure::input(format!("{}:{}: {e}", file.display(), i + 1));
            let r: ReadingLine = serde_json::from_str(line).map_err(|e| bad(e.to_string()))?;
            if !(r.busbw_gb_per_s > 0.0 && r.busbw_gb_per_s < 1e6) {
                return Err(bad(format!("`busbw_gb_per_s` is {}, a positive number was expected", r.busbw_gb_per_s)));
            }
            let gpus = reader.gpus(r.gpus.iter().map(String::as_str), "gpus").map_err(|e| bad(e.message))?;
            Ok((gpus, r.busbw_gb_per_s))
        })
        .collect()
}
