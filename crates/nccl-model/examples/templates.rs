//! Records the real library's search results on hosts of the catalog into `templates/`:
//!
//! `cargo run -p nccl-model --example templates -- --hosts hgx-h100,dgx-a100 --versions 2.28,2.32 [--fresh]`
//!
//! Records one search for every [`nccl_model::templates::Signature`], on one host and with other hosts. Skips searches that are already
//! recorded for a release, unless `--fresh` is given.

use nccl_bench::{Bench, BenchSpec, SimulatedNode};
use nccl_model::templates::{HostTemplates, RecordedSearch, Signature};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use topology::nccl::{Graph, GraphKind, Version};
use topology::{GpuMask, HostId};

fn argument(name: &str, default: &str) -> Vec<String> {
    let args: Vec<String> = std::env::args().collect();
    let value = args.iter().position(|a| a == name).and_then(|i| args.get(i + 1)).cloned();
    value.unwrap_or_else(|| default.to_owned()).split(',').map(|s| s.trim().to_owned()).collect()
}

fn main() -> Result<(), String> {
    let fresh = std::env::args().any(|a| a == "--fresh");
    let bench = Bench::new().map_err(|e| e.to_string())?;
    let hosts = argument("--hosts", "hgx-h100,dgx-a100,hgx-b200,h100-4gpu,gb200-tray,a800");
    let versions = argument("--versions", "2.24,2.28,2.30,2.32");
    for host in hosts {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("templates/{host}.json"));
        let old = std::fs::read_to_string(&path).ok().filter(|_| !fresh).and_then(|t| serde_json::from_str(&t).ok());
        let mut templates: HostTemplates =
            old.unwrap_or(HostTemplates { host_type: host.clone(), searches: Vec::new() });
        let cluster =
            topology::catalog::cluster(&format!("2x{host}")).ok_or(format!("{host} is not in the catalog"))?;
        let of = cluster.type_of(HostId(0));
        // The smallest set with a signature represents all of them.
        let mut kinds: BTreeMap<Signature, GpuMask> = BTreeMap::new();
        for several in [false, true] {
            for mask in of.all_gpus().subsets().filter(|m| several || m.count() > 1) {
                let mask_of = kinds.entry(Signature::of(of, mask, several)).or_insert(mask);
                *mask_of = (*mask_of).min(mask);
            }
        }
        eprintln!("{host}: {} different sets of GPUs", kinds.len());
        for version in &versions {
            let version: Version = version.parse()?;
            for (signature, &mask) in &kinds {
                let several = signature.several_hosts();
                let gpus: Vec<u8> = mask.iter().map(|g| g as u8).collect();
                let same = |v: &Version| (v.major, v.minor) == (version.major, version.minor);
                let known =
                    |r: &RecordedSearch| (r.gpus == gpus && r.several_hosts == several) && r.releases.iter().any(same);
                if templates.searches.iter().any(known) {
                    continue;
                }
                let mut nodes = vec![SimulatedNode::new(HostId(0), mask)];
                if several {
                    nodes.push(SimulatedNode::new(HostId(1), GpuMask::first(1)));
                }
                let mut spec = BenchSpec::new(cluster.clone(), nodes, version);
                spec.deadline = Duration::from_secs(90);
                let report = match bench.run(&spec) {
                    Ok(r) => r,
                    Err(e) => {
                        eprintln!("{host} {mask} several hosts {several}: {e}");
                        continue;
                    }
                };
                // CollNet graphs need a plugin and are not modelled.
                let wanted = |g: &&Graph| {
                    matches!(g.kind, GraphKind::Ring | GraphKind::Tree | GraphKind::Nvls) && g.channel_count > 0
                };
                let graphs: Vec<Graph> = report.nodes[0].graphs.iter().filter(wanted).cloned().collect();
                let like = templates
                    .searches
                    .iter_mut()
                    .find(|r| r.gpus == gpus && r.several_hosts == several && r.graphs == graphs);
                match like {
                    Some(r) => r.releases.push(report.version),
                    None => templates.searches.push(RecordedSearch {
                        gpus,
                        several_hosts: several,
                        releases: vec![report.version],
                        graphs,
                    }),
                }
                save(&path, &mut templates)?;
            }
            eprintln!("{host} {version}: done");
        }
    }
    Ok(())
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
