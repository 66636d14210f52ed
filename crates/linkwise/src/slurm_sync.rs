//! The cluster file from Slurm's books and the files of a site: `linkwise slurm sync` and `linkwise cluster sync --slurm`.

use crate::slurm_programs::{self, PROGRAM_TIME_MAX};
use console::Failure;
use import::SiteFile;
use import::site::{self, Books, Node, SiteError, TypeOf};
use import::switches::Wiring;
use slurm::{books, gres};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use topology::{Cluster, Host, HostType, count, file, names, read};

/// Arguments of `linkwise slurm sync`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  linkwise slurm sync --host-type hgx-h100 --topology /etc/slurm/topology.conf -o site.yaml
  linkwise slurm sync --topology /etc/slurm/topology.yaml --gres /etc/slurm/gres.conf --nvidia-smi nodes/ -o site.yaml --check

An existing file of -o is brought up to date: hosts, types and the class of the network stay as they were edited. --check writes nothing,
and exits with 1 if the file differs from Slurm.")]
pub struct Sync {
    /// Host type of the catalog or of the file for all nodes with GPUs, or one per GPU type of gres.conf: h100=hgx-h100,a100=dgx-a100
    #[arg(long, value_name = "[GPU=]TYPE", value_delimiter = ',')]
    host_type: Vec<String>,
    /// topology.conf or topology.yaml
    #[arg(long)]
    topology: Option<PathBuf>,
    /// Topology of a topology.yaml that has several
    #[arg(long, value_name = "NAME", requires = "topology")]
    topology_name: Option<String>,
    /// gres.conf: indices and devices of the GPUs, their cores and links
    #[arg(long)]
    gres: Option<PathBuf>,
    /// Folder with the outputs of nvidia-smi of the nodes: NODE.topo (`nvidia-smi topo -m`) and NODE.xml (`nvidia-smi -q -x`)
    #[arg(long, value_name = "DIR")]
    nvidia_smi: Option<PathBuf>,
    /// Name of the cluster [default: that of the file, else slurm]
    #[arg(long)]
    name: Option<String>,
    /// The cluster file; standard output if not named
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Write nothing; exit with 1 if the file differs from Slurm
    #[arg(long, requires = "output")]
    check: bool,
}

/// What is read besides Slurm's nodes.
#[derive(Default)]
struct Facts {
    gres: Vec<gres::NodeGpus>,
    /// Output of `nvidia-smi topo -m` by node.
    types: BTreeMap<String, HostType>,
    /// Output of `nvidia-smi -q -x` by node.
    devices: BTreeMap<String, Vec<import::devices::Device>>,
    wiring: Option<(Wiring, String)>,
}

fn note(text: impl std::fmt::Display) {
    console::say(&console::wrap(&format!("note: {text}"), 2).trim_end());
}

/// Runs the command.
pub fn run(a: &Sync) -> Result<(), Failure> {
    let nodes = slurm_programs::nodes(PROGRAM_TIME_MAX).map_err(Failure::input)?;
    if nodes.is_empty() {
        return Err(Failure::impossible("no node of Slurm has GPUs (Gres=gpu:...)"));
    }
    let old = match &a.output {
        Some(path) if path.exists() => Some(console::load_cluster(&path.display().to_string())?),
        _ => None,
    };
    let facts = facts(a)?;
    let (cluster, differences) = merged(a, old.as_ref(), &nodes, &facts)?;
    cluster.check().map_err(Failure::input)?;
    if old.is_some() {
        differences.iter().for_each(|d| console::say(&d));
    }
    let name = a.output.as_ref().map(|p| p.display().to_string()).unwrap_or_default();
    if a.check {
        let n = if old.is_some() { differences.len() } else { 1 };
        return match n {
            0 => {
                console::print(&format!("{name} is as Slurm has it\n"));
                Ok(())
            }
            _ if old.is_none() => Err(Failure::impossible(format!("{name} does not exist; run this without --check"))),
            n => Err(Failure::impossible(format!("{name}: {}; run this without --check", count(n, "difference")))),
        };
    }
    if old.is_some() && differences.is_empty() {
        console::say(&format!("{name} is as Slurm has it; not changed"));
        return Ok(());
    }
    crate::put::put(&file::write(&cluster), a.output.as_deref())?;
    if let Some(path) = &a.output {
        let (hosts, gpus) = (count(cluster.hosts.len(), "host"), count(cluster.gpu_count(), "GPU"));
        console::say(&format!("wrote {}: {hosts}, {gpus}", path.display()));
    }
    Ok(())
}

fn facts(a: &Sync) -> Result<Facts, Failure> {
    let mut facts = Facts::default();
    if let Some(path) = &a.gres {
        let text = files::read_text(path, gres::FILE_BYTES_MAX)?;
        facts.gres = gres::read(&text, &path.display().to_string()).map_err(Failure::input)?;
    }
    if let Some(path) = &a.topology {
        let (text, name) = (files::read_text(path, import::switches::FILE_BYTES_MAX)?, path.display().to_string());
        let wiring = match import::detect(&text) {
            Some(SiteFile::SlurmYaml) => import::switches::read_slurm_yaml(&text, &name, a.topology_name.as_deref())?,
            _ => import::switches::read_slurm_conf(&text, &name)?,
        };
        wiring.notes.iter().for_each(|n| note(format!("{name}: {n}")));
        facts.wiring = Some((wiring, name));
    }
    if let Some(folder) = &a.nvidia_smi {
        read_nodes(folder, &mut facts)?;
    }
    Ok(facts)
}

/// `NODE.topo` and `NODE.xml` of a folder; other files are left out with a note.
fn read_nodes(folder: &Path, facts: &mut Facts) -> Result<(), Failure> {
    let failed = |e| Failure::file("read", folder, e);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .map_err(failed)?
        .map(|e| Ok(e.map_err(failed)?.path()))
        .collect::<Result<_, Failure>>()?;
    paths.sort();
    for path in paths {
        let (name, file) =
            (path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), path.display().to_string());
        let text = |max| files::read_regular_text(&path, max);
        match path.extension().and_then(|e| e.to_str()) {
            Some("topo") => {
                let reading = read::read(&text(read::FILE_SIZE_MAX)?, &file)?;
                let one = reading.single().cloned();
                let one = one.ok_or_else(|| Failure::input(format!("{file} does not describe one host")))?;
                facts.types.insert(name, one);
            }
            Some("xml") => {
                let devices = import::devices::read(&text(import::devices::FILE_BYTES_MAX)?, &file)?;
                facts.devices.insert(name, devices);
            }
            _ => note(format!("{file} is left out: NODE.topo or NODE.xml was expected")),
        }
    }
    Ok(())
}

/// Slurm's books.
const BOOKS: Books = Books { scheduler: "Slurm", node_name: names::slurm::node_name };

/// The cluster that the file should have, and its differences from the one that it has.
fn merged(
    a: &Sync,
    old: Option<&Cluster>,
    nodes: &[books::Node],
    facts: &Facts,
) -> Result<(Cluster, Vec<String>), Failure> {
    let listed = nodes.iter().map(|n| Ok(Node { uuids: uuids(n, facts)?, ..site_node(a, n, facts) }));
    let listed = listed.collect::<Result<Vec<Node>, Failure>>()?;
    let wiring = facts.wiring.as_ref().map(|(w, name)| (w, name.as_str()));
    let made = site::update(old, &listed, wiring, BOOKS).map_err(|e| match e {
        SiteError::Gpus { .. } => Failure::impossible(e.to_string()),
        SiteError::Gone => {
            Failure::input("nodes are gone and the file has switches; name the switches with --topology")
        }
        SiteError::Rule(e) => {
            Failure::input(format!("{e}; if nodes were added or removed, name their switches with --topology"))
        }
        SiteError::Type(_) | SiteError::Switches(_) => Failure::input(e.to_string()),
    })?;
    let site::Updated { mut cluster, mut differences, notes } = made;
    notes.iter().for_each(note);
    match &a.name {
        Some(n) => cluster.name.clone_from(n),
        None if old.is_none() => cluster.name = "slurm".into(),
        None => {}
    }
    for node in nodes {
        let Some(host) = cluster.hosts.iter_mut().find(|h| names::slurm::node_name(h) == node.name) else { continue };
        contradictions(&cluster.types[host.host_type], node, facts).into_iter().for_each(note);
        minors(host, node, facts, &mut differences);
    }
    Ok((cluster, differences))
}

/// A node with the type that --host-type names for it, else the one that its nvidia-smi shows.
fn site_node(a: &Sync, node: &books::Node, facts: &Facts) -> Node {
    let named = a.host_type.iter().find_map(|t| t.split_once('=').filter(|(g, _)| *g == node.gpu_type).map(|(_, t)| t));
    let name = named.or_else(|| a.host_type.iter().find(|t| !t.contains('=')).map(String::as_str));
    let host_type = match (name, facts.types.get(&node.name)) {
        (Some(name), _) => TypeOf::Named(name.into()),
        (None, Some(found)) => TypeOf::Found(Box::new(found.clone())),
        (None, None) => TypeOf::Unknown(format!(
            "write --host-type {}=TYPE, or collect its `nvidia-smi topo -m` (--nvidia-smi)",
            node.gpu_type
        )),
    };
    Node { name: node.name.clone(), gpus: node.gpus, host_type, uuids: Vec::new() }
}

/// What gres.conf and nvidia-smi say otherwise than the type of the host. The file stays as it is: an operator decides.
fn contradictions(t: &HostType, node: &books::Node, facts: &Facts) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(facts.types.get(&node.name).and_then(|found| site::other_links(&node.name, found, t)));
    let Some(g) = gres::of(&facts.gres, &node.name) else { return notes };
    if !g.minors.is_empty() && g.minors.len() != node.gpus {
        notes.push(format!(
            "{}: gres.conf names {}, Slurm has {}",
            node.name,
            count(g.minors.len(), "device"),
            node.gpus
        ));
    }
    let linked = g.links.iter().flatten().any(|l| *l > 0);
    if g.links.iter().any(|l| !l.is_empty()) && linked != t.nvlink.is_some() {
        let says = if linked { "has links" } else { "has no links" };
        notes.push(format!("{}: gres.conf {says} between the GPUs, and type {} says otherwise", node.name, t.name));
    }
    // GPUs of one socket have the same cores.
    for (i, a) in g.cores.iter().enumerate().filter(|(i, c)| !c.is_empty() && *i < t.gpus.len()) {
        for (j, b) in g.cores.iter().enumerate().skip(i + 1).filter(|(j, c)| !c.is_empty() && *j < t.gpus.len()) {
            if (a == b) != (t.gpus[i].socket == t.gpus[j].socket) {
                notes.push(format!(
                    "{}: by Cores= of gres.conf, GPUs {i} and {j} are on {} socket, by type {} they are not",
                    node.name,
                    if a == b { "one" } else { "another" },
                    t.name
                ));
                return notes;
            }
        }
    }
    notes
}

/// UUIDs of a node's GPUs; empty if its nvidia-smi was not collected or does not tell them all.
fn uuids(node: &books::Node, facts: &Facts) -> Result<Vec<String>, Failure> {
    let Some(found) = facts.devices.get(&node.name) else { return Ok(Vec::new()) };
    if found.len() != node.gpus {
        let n = count(found.len(), "GPU");
        return Err(Failure::impossible(format!("{}: nvidia-smi -q -x shows {n}, Slurm has {}", node.name, node.gpus)));
    }
    let uuids: Vec<String> = found.iter().map(|d| d.uuid.clone()).collect();
    Ok(if uuids.iter().all(|u| !u.is_empty()) { uuids } else { Vec::new() })
}

/// The index of gres.conf of every GPU of nvidia-smi.
fn minors(host: &mut Host, node: &books::Node, facts: &Facts, differences: &mut Vec<String>) {
    let Some(found) = facts.devices.get(&node.name) else { return };
    let by_file = gres::of(&facts.gres, &node.name).map(|g| g.minors.as_slice()).filter(|m| m.len() == node.gpus);
    let index = |d: &import::devices::Device| match by_file {
        Some(minors) => minors.iter().position(|m| Some(*m) == d.minor).map(|i| i as u8),
        None => d.minor,
    };
    let Some(mut indices) = found.iter().map(index).collect::<Option<Vec<u8>>>() else {
        note(format!("{}: gres.conf has not the devices that nvidia-smi shows", node.name));
        return;
    };
    if indices.iter().enumerate().all(|(i, m)| i == usize::from(*m)) {
        indices.clear();
    }
    if host.gpu_minors != indices {
        differences.push(format!("{}: other order of the devices", node.name));
        host.gpu_minors = indices;
    }
}
