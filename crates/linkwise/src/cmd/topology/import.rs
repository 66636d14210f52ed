//! `linkwise topology import`: makes a cluster file from the files of a site.

use crate::put::put;
use console::Failure;
use import::host::{self, NicChoice};
use import::ports::{RdmaPort, read_ibstat, read_ibv_devinfo};
use import::switches::{NetworkOptions, Wiring, read_ibnetdiscover, read_slurm_conf, read_slurm_yaml, read_topograph};
use import::{SiteFile, detect};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use topology::read::{self, infer, merge};
use topology::{Bandwidth, Cluster, Host, HostType, Network, NetworkClass, Rails, catalog, count, file, names};

/// Arguments of `linkwise topology import`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  linkwise topology import host.txt --hosts 'gpu-[001-064]' -o site.yaml
  ssh gpu-001 nvidia-smi topo -m | linkwise topology import - --count 4
  linkwise topology import host.txt ibstat.txt /etc/slurm/topology.conf --gpu-model H100 -o site.yaml
  ibnetdiscover > ib.txt; linkwise topology import --host-type hgx-h100 ib.txt --hosts 'gpu-[001-064]' -o site.yaml")]
pub struct Import {
    /// Files about one host, and at most one about the switches (topology.conf, topology.yaml, ibnetdiscover, Topograph); the content shows the kind of each. - reads standard input
    #[arg(required_unless_present = "host_type")]
    files: Vec<PathBuf>,
    /// Write the cluster file here instead of standard output
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Name of the cluster [default: the host type's]
    #[arg(long)]
    name: Option<String>,
    /// Number of such hosts in the cluster
    #[arg(long, value_parser = host_count)]
    count: Option<u32>,
    /// Names of the hosts in Slurm's notation, such as n[0-3]; instead of --count [default: those of the file about the switches]
    #[arg(long, conflicts_with = "count")]
    hosts: Option<String>,
    /// Host type of the catalog, instead of files about a host
    #[arg(long, value_name = "TYPE")]
    host_type: Option<String>,
    /// GPU model if the files do not name it (H100, A100-SXM4-80GB, ...); sets link rates
    #[arg(long)]
    gpu_model: Option<String>,
    /// Board of the catalog whose NVLinks the hosts have, if the files do not show them
    #[arg(long, value_name = "TYPE")]
    board: Option<String>,
    /// Line rate of every NIC, Gbit/s, if the files do not name it
    #[arg(long, value_parser = console::number::real)]
    nic_gbit_per_s: Option<f64>,
    /// NICs that carry GPU traffic, such as 'mlx5_[0,3-9]' [default: by rule, with a note]
    #[arg(long, value_name = "LIST", conflicts_with_all = ["exclude_nics", "all_nics"])]
    nics: Option<String>,
    /// NICs for storage or management
    #[arg(long, value_name = "LIST", conflicts_with = "all_nics")]
    exclude_nics: Option<String>,
    /// Keep every NIC of the files
    #[arg(long)]
    all_nics: bool,
    /// Class of the network [default: what the files tell, else infiniband, with a note]
    #[arg(long, value_enum)]
    network: Option<NetworkArg>,
    /// Topology of a topology.yaml that has several
    #[arg(long, value_name = "NAME")]
    topology: Option<String>,
    /// Bandwidth below over bandwidth above the switches of a tier: 2, or leaf=2,spine=4
    #[arg(long, value_name = "[TIER=]RATIO", value_delimiter = ',')]
    oversubscription: Vec<String>,
    /// Whether NIC i of each host is on a leaf switch of its own, and how these meet [default: what the files tell, else none]
    #[arg(long, value_enum)]
    rails: Option<RailsArg>,
    /// GB200 and GB300 trays that share no NVLink with each other
    #[arg(long)]
    separate_trays: bool,
}

/// `--network`.
#[derive(Clone, Copy, clap::ValueEnum)]
enum NetworkArg {
    /// InfiniBand with GPUDirect RDMA
    Infiniband,
    /// RoCE with GPUDirect RDMA
    Roce,
    /// AWS Elastic Fabric Adapter
    Efa,
    /// RDMA through host memory
    RdmaNoGdr,
    /// Sockets
    Tcp,
}

impl NetworkArg {
    fn class(self) -> NetworkClass {
        match self {
            NetworkArg::Infiniband => NetworkClass::Infiniband,
            NetworkArg::Roce => NetworkClass::Roce,
            NetworkArg::Efa => NetworkClass::Efa,
            NetworkArg::RdmaNoGdr => NetworkClass::RdmaNoGdr,
            NetworkArg::Tcp => NetworkClass::Tcp,
        }
    }
}

/// `--rails`.
#[derive(Clone, Copy, clap::ValueEnum)]
enum RailsArg {
    /// Rails that meet in the layer above
    Joined,
    /// Rails without a path between them
    Separate,
    /// All NICs of a host on the same switch
    None,
}

fn host_count(text: &str) -> Result<u32, String> {
    console::number::whole_within(text, 1..=topology::HOSTS_MAX as u32)
}

/// The content and the name of a file; `-` is standard input.
fn read_source(path: &Path) -> Result<(Vec<u8>, String), Failure> {
    if path != Path::new("-") {
        return Ok((files::read_limited(path, read::FILE_SIZE_MAX)?, path.display().to_string()));
    }
    let mut bytes = Vec::new();
    let limit = read::FILE_SIZE_MAX as u64 + 1;
    std::io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut bytes)
        .map_err(|e| Failure::input(format!("cannot read standard input: {e}")))?;
    Ok((bytes, "standard input".into()))
}

/// Contents of all given files.
#[derive(Default)]
struct Site {
    hosts: Vec<merge::MergeSource>,
    ports: Option<Vec<RdmaPort>>,
    wiring: Option<(Wiring, String)>,
}

fn note(text: impl std::fmt::Display) {
    console::say(&console::wrap(&format!("note: {text}"), 2).trim_end());
}

pub fn run(a: Box<Import>) -> Result<(), Failure> {
    let named = match &a.hosts {
        Some(list) => Some(
            names::hostlist::expand(list, topology::HOSTS_MAX).map_err(|e| Failure::input(format!("--hosts: {e}")))?,
        ),
        None => None,
    };
    let site = read_files(&a, named.as_deref())?;
    let mut types = host_types(&a, &site)?;
    let mut class = site.wiring.as_ref().and_then(|(w, _)| w.class);
    for t in &mut types {
        let from_ports = apply(&a, t, &site)?;
        class = class.or(from_ports).or_else(|| host::class_by_names(t));
    }
    let class = network_class(&a, &types, class);
    let cluster = cluster(&a, types, named, class, &site)?;
    cluster.check().map_err(Failure::input)?;
    put(&file::write(&cluster), a.output.as_deref())?;
    if let Some(path) = &a.output {
        let hosts = cluster.hosts.len();
        let (hosts, gpus) = (count(hosts, "host"), count(cluster.gpu_count(), "GPU"));
        eprintln!("wrote {}: {hosts}, {gpus}", path.display());
    }
    Ok(())
}

fn read_files(a: &Import, named: Option<&[String]>) -> Result<Site, Failure> {
    let only: Option<BTreeSet<String>> = named.map(|n| n.iter().cloned().collect());
    let mut site = Site::default();
    for path in &a.files {
        let (bytes, name) = read_source(path)?;
        let text = read::text(&bytes, &name, read::FILE_SIZE_MAX)?;
        let wiring = match detect(text) {
            Some(kind @ (SiteFile::Ibstat | SiteFile::IbvDevinfo)) => {
                let read = if kind == SiteFile::Ibstat { read_ibstat } else { read_ibv_devinfo };
                if site.ports.replace(read(text, &name)?).is_some() {
                    let message = format!("{name} is a second list of ports; the files are about one host");
                    return Err(Failure::input(message));
                }
                continue;
            }
            Some(SiteFile::SlurmConf) => read_slurm_conf(text, &name)?,
            Some(SiteFile::SlurmYaml) => read_slurm_yaml(text, &name, a.topology.as_deref())?,
            Some(SiteFile::Ibnetdiscover) => read_ibnetdiscover(text, &name, only.as_ref())?,
            Some(SiteFile::Topograph) => read_topograph(text, &name)?,
            None => {
                let reading = read::read(text, &name)?;
                for refused in &reading.refused {
                    note(format!("left out: {refused}"));
                }
                site.hosts.push(merge::MergeSource { file: name, reading });
                continue;
            }
        };
        if let Some((_, first)) = &site.wiring {
            return Err(Failure::input(format!("{first} and {name} both describe the switches; give one of them")));
        }
        wiring.notes.iter().for_each(|n| note(format!("{name}: {n}")));
        site.wiring = Some((wiring, name));
    }
    Ok(site)
}

/// The host types of the files, or those of the catalog.
fn host_types(a: &Import, site: &Site) -> Result<Vec<HostType>, Failure> {
    if let Some(name) = &a.host_type {
        if let Some(first) = site.hosts.first() {
            return Err(Failure::input(format!(
                "--host-type stands instead of files about a host, but {} is one",
                first.file
            )));
        }
        let known = || catalog::host_types().into_iter().map(|t| t.name).collect::<Vec<_>>().join(", ");
        let t = catalog::host_type(name)
            .ok_or_else(|| Failure::input(format!("--host-type: the catalog has no `{name}`; it has {}", known())))?;
        return Ok(vec![t]);
    }
    let (types, notes) = match &site.hosts[..] {
        [] => {
            return Err(Failure::input(
                "no file describes a host: add the output of `nvidia-smi topo -m`, or --host-type (`linkwise topology types` lists them)",
            ));
        }
        // One file may describe several systems: each becomes its own host type.
        [one] => {
            let notes: Vec<String> = one.reading.notes.iter().map(|n| format!("{}: {n}", one.file)).collect();
            (one.reading.types.clone(), notes)
        }
        several => {
            let (t, notes) = merge::merge(several).map_err(Failure::input)?;
            (vec![t], notes)
        }
    };
    notes.iter().filter(|n| !decided_by_flag(a, site, n)).for_each(note);
    Ok(types)
}

/// True if a note describes an assumption that a flag or another file replaces. Such a note is not printed.
fn decided_by_flag(a: &Import, site: &Site, note: &str) -> bool {
    let known_model = a.gpu_model.as_deref().and_then(infer::model_by_name);
    let has_rates = site.ports.iter().flatten().any(|p| p.rate_gbit_per_s > 0.0)
        || site.wiring.as_ref().is_some_and(|(w, _)| !w.port_gbit_per_s.is_empty());
    ((a.nic_gbit_per_s.is_some() || has_rates) && note.contains("(--nic-gbit-per-s)"))
        || (a.gpu_model.is_some() && note.contains("(--gpu-model)"))
        || (known_model.is_some() && (note.contains("NVLink taken as") || note.contains("PCIe taken as")))
}

/// Applies what flags and other files say about a host type. Returns the class that its ports tell.
fn apply(a: &Import, t: &mut HostType, site: &Site) -> Result<Option<NetworkClass>, Failure> {
    if let Some(model) = &a.gpu_model {
        host::apply_model(t, model).iter().for_each(note);
    }
    if let Some(said) = host::board(t, a.board.as_deref()).map_err(|e| Failure::input(of_file(site, &e)))? {
        note(said);
    }
    refuse_unknown_links(t, site)?;
    let mut class = None;
    if let Some(ports) = &site.ports {
        let (told, notes) = host::apply_ports(t, ports);
        class = told;
        notes.iter().for_each(note);
    }
    if let Some((w, file)) = &site.wiring {
        rates_of_fabric(t, w, file);
    }
    if let Some(gbit) = a.nic_gbit_per_s {
        if !(gbit > 0.0 && gbit <= 10_000.0) {
            return Err(Failure::input(format!("--nic-gbit-per-s {gbit}: above 0 and at most 10000 is possible")));
        }
        for nic in &mut t.nics {
            nic.line_rate = Bandwidth::from_gbit_per_s(gbit);
        }
    }
    let choice = match (&a.nics, &a.exclude_nics, a.all_nics) {
        (Some(list), ..) => NicChoice::Only(list.clone()),
        (_, Some(list), _) => NicChoice::Without(list.clone()),
        (_, _, true) => NicChoice::All,
        _ => NicChoice::ByRule,
    };
    let flag = if a.nics.is_some() { "--nics" } else { "--exclude-nics" };
    for said in host::choose_nics(t, &choice).map_err(|e| Failure::input(format!("{flag}: {e}")))? {
        note(said);
    }
    if t.nics.is_empty() {
        note(format!("host type `{}` has no NIC: jobs over several hosts cannot be predicted", t.name));
    }
    t.check().map_err(Failure::input)?;
    Ok(class)
}

/// Refuses a host whose NVLinks are unknown: an NCCL file written by hand or by a cloud has none, and only the GPU
/// model could supply them.
fn refuse_unknown_links(t: &HostType, site: &Site) -> Result<(), Failure> {
    let [only] = &site.hosts[..] else { return Ok(()) };
    let cannot_tell = only.reading.notes.iter().any(|n| n.starts_with(read::nccl_xml::NO_GPU_ELEMENTS));
    if cannot_tell && t.nvlink.is_none() && t.gpu_model == "unknown" && t.gpu_count() > 1 {
        return Err(Failure::input(format!(
            "{}: the file shows neither the GPU model nor NVLinks, so {} GPUs would count as joined by PCIe alone. Add the output of \
             `nvidia-smi topo -m` of the host, or name the model with --gpu-model or the board with --board",
            only.file,
            t.gpu_count()
        )));
    }
    Ok(())
}

/// Sets each NIC to the median rate of the ports with its name in the fabric.
fn rates_of_fabric(t: &mut HostType, w: &Wiring, file: &str) {
    let mut set = 0;
    for nic in &mut t.nics {
        let mut rates: Vec<f64> =
            w.port_gbit_per_s.iter().filter(|((_, d), _)| *d == nic.name).map(|(_, r)| *r).collect();
        rates.sort_unstable_by(f64::total_cmp);
        if let Some(rate) = rates.get(rates.len() / 2) {
            nic.line_rate = Bandwidth::from_gbit_per_s(*rate);
            set += 1;
        }
    }
    if set > 0 {
        note(format!("rates of {} taken from {file}", count(set, "NIC")));
    } else if !w.port_gbit_per_s.is_empty() && !t.nics.is_empty() {
        note(format!(
            "{file} names its ports otherwise than the host does ({}); their rates are not used",
            t.nics[0].name
        ));
    }
}

fn of_file(site: &Site, message: &str) -> String {
    site.hosts.first().map_or(message.to_owned(), |s| format!("{}: {message}", s.file))
}

/// The class of the network. Prints a note if no file or flag gives it.
fn network_class(a: &Import, types: &[HostType], told: Option<NetworkClass>) -> NetworkClass {
    if let Some(n) = a.network {
        return n.class();
    }
    let name = types.iter().find_map(|t| t.nics.first()).map(|n| n.name.as_str());
    match (told, name) {
        (Some(class), _) => {
            note(format!(
                "network taken as {} by the names of its ports or the file that describes it (--network)",
                class.words()
            ));
            class
        }
        (None, Some(name)) => {
            note(format!(
                "no file tells InfiniBand from RoCE (`{name}` may be either): taken as InfiniBand with GPUDirect RDMA (--network, or add the output of `ibstat` or `ibv_devinfo`)"
            ));
            NetworkClass::Infiniband
        }
        (None, None) => {
            note("no file tells the class of the network: taken as InfiniBand (--network)");
            NetworkClass::Infiniband
        }
    }
}

fn options(a: &Import) -> Result<NetworkOptions, Failure> {
    let mut out = NetworkOptions::default();
    for text in &a.oversubscription {
        let (name, ratio) = text.split_once('=').unwrap_or(("", text));
        let ratio = ratio.trim().strip_suffix(":1").unwrap_or(ratio.trim());
        let ratio = ratio.parse::<f64>().ok().filter(|r| (1.0..=1000.0).contains(r)).ok_or_else(|| {
            Failure::input(format!("--oversubscription: `{text}` is no ratio of 1 or more, such as 2 or leaf=2"))
        })?;
        out.oversubscription.push((name.trim().to_owned(), ratio));
    }
    Ok(out)
}

fn cluster(
    a: &Import,
    types: Vec<HostType>,
    named: Option<Vec<String>>,
    class: NetworkClass,
    site: &Site,
) -> Result<Cluster, Failure> {
    let of_file =
        || a.files.first().and_then(|f| f.file_stem()).map_or("cluster".into(), |s| s.to_string_lossy().into_owned());
    let name = match (&a.name, &types[..]) {
        (Some(name), _) => name.clone(),
        (None, [one]) => one.name.clone(),
        (None, _) => of_file(),
    };
    let mut hosts: Vec<Host> = if types.len() > 1 {
        if a.count.is_some_and(|c| c > 1) || a.hosts.is_some() {
            let message = "--count and --hosts are for files about one host; these describe";
            return Err(Failure::input(format!("{message} {} systems", types.len())));
        }
        let host = |(i, _)| Host { name: format!("n{i}"), host_type: i, ..Host::default() };
        types.iter().enumerate().map(host).collect()
    } else {
        let of_wiring = site.wiring.as_ref().map(|(w, _)| w.hosts.clone()).filter(|h| !h.is_empty());
        let names = match (named, a.count, of_wiring) {
            (Some(names), ..) => names,
            (None, None, Some(names)) => names,
            (None, n, _) => (0..n.unwrap_or(1)).map(|i| format!("n{i}")).collect(),
        };
        names.into_iter().map(|name| Host { name, ..Host::default() }).collect()
    };
    refuse_nvl72(a, &types, &hosts)?;
    if let ([ty], Some((w, _))) = (&types[..], &site.wiring) {
        w.record_defects(ty, &mut hosts).iter().for_each(note);
    }
    let options = options(a)?;
    let mut network = match &site.wiring {
        Some((w, file)) => {
            let made = w.network(&hosts, class, &options, file);
            let (network, notes) = made.map_err(|e| Failure::input(format!("{file}: {e}")))?;
            notes.iter().for_each(note);
            network
        }
        None => {
            if !options.oversubscription.is_empty() {
                return Err(Failure::input(
                    "--oversubscription needs a file about the switches; without one describe `network.tiers` in the cluster file",
                ));
            }
            if hosts.len() > 1 {
                note(
                    "no file describes the switches: taken as one non-blocking switch (add topology.conf, ibnetdiscover, or `network.tiers` to the cluster file)",
                );
            }
            Network { class, ..Network::default() }
        }
    };
    match a.rails {
        Some(RailsArg::Joined) => network.rails = Some(Rails::Joined),
        Some(RailsArg::Separate) => network.rails = Some(Rails::Separate),
        Some(RailsArg::None) => network.rails = None,
        None => {}
    }
    Ok(Cluster { name, types, hosts, network })
}

/// Refuses NVL72 racks: their trays share NVLink, and linkwise models NVLink inside one host only.
fn refuse_nvl72(a: &Import, types: &[HostType], hosts: &[Host]) -> Result<(), Failure> {
    let tray = types.iter().find(|t| host::shares_nvlink_with_other_hosts(&t.gpu_model));
    match tray {
        Some(t) if hosts.len() > 1 && !a.separate_trays => Err(Failure::input(format!(
            "{} hosts with `{}`: the trays of an NVL72 rack share NVLink, and linkwise models NVLink inside one host only (at most {} GPUs). \
             It would predict the network's bandwidth between trays, several times too little. Import one tray, or say --separate-trays \
             if no NVLink joins the hosts",
            hosts.len(),
            t.gpu_model,
            topology::GPUS_PER_HOST_MAX
        ))),
        _ => Ok(()),
    }
}
