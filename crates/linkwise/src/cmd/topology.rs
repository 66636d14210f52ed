//! `linkwise topology`: draw a cluster, make a cluster file of what nvidia-smi, NCCL and P2P tests print.

use clap::ValueEnum;
use console::Failure;
use console::{load_cluster, text_width};
use serde_json::json;
use std::io::Read;
use std::path::{Path, PathBuf};
use topology::read::{self, infer, merge};
use topology::{Bandwidth, Cluster, Host, HostType, catalog, file, names};

/// Sub-commands of `linkwise topology`.
#[derive(clap::Subcommand)]
pub enum Topology {
    /// Draw a cluster
    Show {
        /// A built-in cluster or a cluster file
        cluster: String,
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: Format,
        /// Write to a file instead of standard output
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
    /// Make a cluster file from `nvidia-smi topo -m` output, NCCL topology XML and P2P matrices of one host
    Import(Import),
    /// Print the JSON Schema of the cluster file
    Schema,
    /// List the host types of the catalog
    Types {
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: ListFormat,
    },
}

/// Arguments of `linkwise topology import`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  linkwise topology import host.txt --hosts 'gpu-[001-064]' -o site.yaml
  ssh gpu-001 nvidia-smi topo -m | linkwise topology import - --count 4")]
pub struct Import {
    /// Files about one host; the content shows the kind of each. - reads standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Write the cluster file here instead of standard output
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Name of the cluster [default: the host type's]
    #[arg(long)]
    name: Option<String>,
    /// Number of such hosts in the cluster
    #[arg(long, default_value_t = 1, value_parser = count)]
    count: u32,
    /// Names of the hosts in Slurm's notation, such as n[0-3]; instead of --count
    #[arg(long, conflicts_with = "count")]
    hosts: Option<String>,
    /// GPU model if the files do not name it (H100, A100-SXM4-80GB, ...); sets link rates
    #[arg(long)]
    gpu_model: Option<String>,
    /// Line rate of every NIC, Gbit/s, if the files do not name it
    #[arg(long, value_parser = console::number::real)]
    nic_gbit_per_s: Option<f64>,
}

/// A list for people or for scripts.
type ListFormat = console::Format;

/// Output of `linkwise topology show`.
#[derive(Clone, Copy, ValueEnum)]
pub enum Format {
    /// For the terminal, as wide as it is (80 columns without one)
    Text,
    /// The cluster file as JSON, every host type spelled out
    Json,
    /// The cluster file
    Yaml,
    /// A self-contained picture
    Svg,
}

/// Runs it.
pub fn run(args: Topology) -> Result<(), Failure> {
    match args {
        Topology::Show { cluster, format, output } => {
            let cluster = load_cluster(&cluster)?;
            let text = match format {
                Format::Text => draw::text_within(&cluster, text_width()),
                Format::Json => file::to_json(&cluster),
                Format::Yaml => file::write(&cluster),
                Format::Svg => draw::svg(&cluster),
            };
            put(&text, output.as_deref())
        }
        Topology::Import(a) => import(a),
        Topology::Schema => put(&file::json_schema(), None),
        Topology::Types { format } => types(format),
    }
}

/// To a file or to standard output.
fn put(text: &str, output: Option<&Path>) -> Result<(), Failure> {
    match output {
        None => console::print(text),
        Some(path) => files::write_atomic(path, text)?,
    }
    Ok(())
}

fn count(text: &str) -> Result<u32, String> {
    console::number::whole_within(text, 1..=topology::HOSTS_MAX as u32)
}

fn types(format: ListFormat) -> Result<(), Failure> {
    let types = catalog::host_types();
    if format == ListFormat::Json {
        let entry = |t: &HostType| json!({"name": t.name, "description": t.description, "gpu_model": t.gpu_model, "gpus": t.gpu_count()});
        return console::print_json(&types.iter().map(entry).collect());
    }
    let mut table = console::table(&["type", "description"], 0..0);
    table.add_rows(types.iter().map(|t| [t.name.to_string(), t.description.to_string()]));
    console::print(&console::text_of(&table));
    Ok(())
}

/// The bytes and the name of a file; `-` is standard input.
fn read_source(path: &Path) -> Result<(Vec<u8>, String), Failure> {
    if path != Path::new("-") {
        return Ok((files::read_limited(path, read::TOPOLOGY_SIZE_MAX)?, path.display().to_string()));
    }
    let mut bytes = Vec::new();
    let limit = read::TOPOLOGY_SIZE_MAX as u64 + 1;
    std::io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|e| Failure::input(format!("cannot read standard input: {e}")))?;
    Ok((bytes, "standard input".into()))
}

fn import(a: Import) -> Result<(), Failure> {
    let mut sources = Vec::new();
    for path in &a.files {
        let (bytes, name) = read_source(path)?;
        let text = read::text(&bytes, &name, read::TOPOLOGY_SIZE_MAX)?;
        let reading = read::read(text, &name)?;
        for refused in &reading.refused {
            eprintln!("note: left out: {refused}");
        }
        sources.push(merge::MergeSource { file: name, reading });
    }
    let (mut types, notes) = match &sources[..] {
        // One file may describe several systems: each becomes a type of its own.
        [one] => {
            let notes: Vec<String> = one.reading.notes.iter().map(|n| format!("{}: {n}", one.file)).collect();
            (one.reading.types.clone(), notes)
        }
        several => {
            let (t, notes) = merge::merge(several).map_err(Failure::input)?;
            (vec![t], notes)
        }
    };
    for note in notes.iter().filter(|n| !decided_by_flag(&a, n)) {
        eprintln!("note: {note}");
    }
    for t in &mut types {
        apply(&a, t)?;
    }
    let cluster = cluster(&a, types)?;
    cluster.check().map_err(Failure::input)?;
    put(&file::write(&cluster), a.output.as_deref())?;
    if let Some(path) = &a.output {
        let hosts = cluster.hosts.len();
        let plural = if hosts == 1 { "" } else { "s" };
        eprintln!("wrote {}: {hosts} host{plural}, {} GPUs", path.display(), cluster.gpu_count());
    }
    Ok(())
}

/// The note is about an assumption that a flag replaces: it would contradict the flag.
fn decided_by_flag(a: &Import, note: &str) -> bool {
    let known_model = a.gpu_model.as_deref().and_then(infer::model_by_name);
    (a.nic_gbit_per_s.is_some() && note.contains("(--nic-gbit-per-s)"))
        || (known_model.is_some() && (note.contains("NVLink taken as") || note.contains("PCIe taken as")))
}

/// What the user knows better than the files.
fn apply(a: &Import, t: &mut HostType) -> Result<(), Failure> {
    if let Some(model) = &a.gpu_model {
        let facts = infer::model_by_name(model);
        t.gpu_model.clone_from(model);
        if let Some(facts) = facts {
            t.nvlink = match (t.nvlink, infer::nvlink(&t.gpu_paths, Some(facts))) {
                (Some(had), Some((found, why))) => {
                    eprintln!("note: {why}");
                    Some(topology::NvLinkFabric { switched: had.switched || found.switched, ..found })
                }
                (had, _) => had,
            };
            t.pcie.generation = facts.pcie_generation;
            eprintln!("note: PCIe taken as Gen{} x{} ({})", t.pcie.generation, t.pcie.lanes, facts.name);
        } else {
            eprintln!("note: link rates of `{model}` are not known; those of the files stay");
        }
    }
    if let Some(gbit) = a.nic_gbit_per_s {
        if !(gbit > 0.0 && gbit <= 10_000.0) {
            return Err(Failure::input(format!("--nic-gbit-per-s {gbit}: above 0 and at most 10000 is possible")));
        }
        for nic in &mut t.nics {
            nic.line_rate = Bandwidth::from_gbit_per_s(gbit);
        }
    }
    Ok(())
}

fn cluster(a: &Import, types: Vec<HostType>) -> Result<Cluster, Failure> {
    let of_file = || a.files[0].file_stem().map_or("cluster".into(), |s| s.to_string_lossy().into_owned());
    let name = match (&a.name, &types[..]) {
        (Some(name), _) => name.clone(),
        (None, [one]) => one.name.clone(),
        (None, _) => of_file(),
    };
    let hosts: Vec<Host> = if types.len() > 1 {
        if a.count > 1 || a.hosts.is_some() {
            let message = "--count and --hosts are for files about one host; these describe";
            return Err(Failure::input(format!("{message} {} systems", types.len())));
        }
        let host = |(i, _)| Host { name: format!("n{i}"), host_type: i, ..Host::default() };
        types.iter().enumerate().map(host).collect()
    } else {
        let names = match &a.hosts {
            Some(list) => names::hostlist::expand(list, topology::HOSTS_MAX)
                .map_err(|e| Failure::input(format!("--hosts: {e}")))?,
            None => (0..a.count).map(|i| format!("n{i}")).collect(),
        };
        names.into_iter().map(|name| Host { name, ..Host::default() }).collect()
    };
    Ok(Cluster { name, types, hosts, ..Cluster::default() })
}
