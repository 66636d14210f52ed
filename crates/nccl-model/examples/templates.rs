//! Records the real library's search results on hosts of the catalog into `templates/`:
//!
//! `cargo run -p nccl-model --example templates -- --hosts hgx-h100,dgx-a100 --versions 2.28,2.32 [--fresh]`
//!
//! Records one search for every [`nccl_model::templates::Signature`], on one host and with other hosts. Skips searches that are already
//! recorded for a release, unless `--fresh` is given.

use nccl_bench::{Bench, BenchError, BenchReport, BenchSpec, SimulatedNode};
use nccl_model::templates::{HostTemplates, RecordedSearch, Signature};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use topology::nccl::{Graph, GraphKind, Version};
use topology::{Cluster, GpuMask, HostId};

fn argument(name: &str, default: &str) -> Vec<String> {
    let args: Vec<String> = std::env::args().collect();
    let value = args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).cloned();
    value.unwrap_or_else(|| default.to_owned()).split(',').map(|s| s.trim().to_owned()).collect()
}

fn main() -> Result<(), String> {
    let fresh = std::env::args().any(|a| a == "--fresh");
    let bench = Bench::new().map_err(|e| e.to_string())?;
    let versions = argument("--versions", "2.24,2.28,2.30,2.32");
    for host in argument("--hosts", "hgx-h100,dgx-a100,hgx-b200,h100-4gpu,gb200-tray,a800") {
        let mut recorder = Recorder::open(&bench, &host, fresh)?;
        let sets = recorder.distinct_sets();
        eprintln!("{host}: {} different sets of GPUs", sets.len());
        for version in &versions {
            let version: Version = version.parse()?;
            for (signature, &mask) in &sets {
                recorder.record(version, mask, signature.several_hosts())?;
            }
            eprintln!("{host} {version}: done");
        }
    }
    Ok(())
}

/// Adds searches to the file of one host type.
struct Recorder<'a> {
    bench: &'a Bench,
    /// Two hosts of the type.
    cluster: Cluster,
    path: PathBuf,
    templates: HostTemplates,
}

impl<'a> Recorder<'a> {
    fn open(bench: &'a Bench, host: &str, fresh: bool) -> Result<Self, String> {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("templates/{host}.json"));
        let old = std::fs::read_to_string(&path).ok().filter(|_| !fresh).and_then(|t| serde_json::from_str(&t).ok());
        let templates = old.unwrap_or(HostTemplates { host_type: host.to_owned(), searches: Vec::new() });
        let cluster =
            topology::catalog::cluster(&format!("2x{host}")).ok_or(format!("{host} is not in the catalog"))?;
        Ok(Recorder { bench, cluster, path, templates })
    }

    /// Every signature with the smallest set of GPUs that has it.
    fn distinct_sets(&self) -> BTreeMap<Signature, GpuMask> {
        let host_type = self.cluster.type_of(HostId(0));
        let mut sets: BTreeMap<Signature, GpuMask> = BTreeMap::new();
        for several in [false, true] {
            for mask in host_type.all_gpus().subsets().filter(|m| several || m.count() > 1) {
                let smallest = sets.entry(Signature::of(host_type, mask, several)).or_insert(mask);
                *smallest = (*smallest).min(mask);
            }
        }
        sets
    }

    /// Searches on `mask` of a host, alone or with another host, unless the release's search is recorded. Prints why a run failed.
    fn record(&mut self, version: Version, mask: GpuMask, several_hosts: bool) -> Result<(), String> {
        let gpus: Vec<u8> = mask.iter().map(|g| g as u8).collect();
        let same_release = |v: &Version| (v.major, v.minor) == (version.major, version.minor);
        let same_set = |r: &RecordedSearch| r.gpus == gpus && r.several_hosts == several_hosts;
        if self.templates.searches.iter().any(|r| same_set(r) && r.releases.iter().any(same_release)) {
            return Ok(());
        }
        let report = match self.search(version, mask, several_hosts) {
            Ok(report) => report,
            Err(e) => {
                eprintln!("{} {mask} several hosts {several_hosts}: {e}", self.templates.host_type);
                return Ok(());
            }
        };
        // CollNet graphs need a plugin and are not modelled.
        let modelled =
            |g: &&Graph| matches!(g.kind, GraphKind::Ring | GraphKind::Tree | GraphKind::Nvls) && g.channel_count > 0;
        let graphs: Vec<Graph> = report.nodes[0].graphs.iter().filter(modelled).cloned().collect();
        match self.templates.searches.iter_mut().find(|r| same_set(r) && r.graphs == graphs) {
            Some(equal) => equal.releases.push(report.version),
            None => {
                let releases = vec![report.version];
                self.templates.searches.push(RecordedSearch { gpus, several_hosts, releases, graphs });
            }
        }
        save(&self.path, &mut self.templates)
    }

    fn search(&self, version: Version, mask: GpuMask, several_hosts: bool) -> Result<BenchReport, BenchError> {
        let mut nodes = vec![SimulatedNode::new(HostId(0), mask)];
        if several_hosts {
            nodes.push(SimulatedNode::new(HostId(1), GpuMask::first(1)));
        }
        let mut spec = BenchSpec::new(self.cluster.clone(), nodes, version);
        spec.deadline = Duration::from_secs(90);
        self.bench.run(&spec)
    }
}

/// Writes one search per line, sorted, so that diffs show only changes.
fn save(path: &std::path::Path, templates: &mut HostTemplates) -> Result<(), String> {
    templates.searches.iter_mut().for_each(|r| {
        r.releases.sort();
        r.releases.dedup();
    });
    templates.searches.sort_by(|a, b| {
        (a.several_hosts, a.gpus.len(), &a.gpus, &a.releases).cmp(&(
            b.several_hosts,
            b.gpus.len(),
            &b.gpus,
            &b.releases,
        ))
    });
    let lines: Result<Vec<String>, _> = templates.searches.iter().map(serde_json::to_string).collect();
    let lines = lines.map_err(|e| e.to_string())?.join(",\n");
    let text = format!("{{\"host_type\":\"{}\",\"searches\":[\n{lines}\n]}}\n", templates.host_type);
    std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}
