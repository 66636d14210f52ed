//! `linkwise topology`: draws a cluster, and makes a cluster file from the output of nvidia-smi, NCCL and P2P tests.

mod import;

use crate::put::put;
use clap::ValueEnum;
use console::Failure;
use console::{load_cluster, text_width};
use serde_json::json;
use std::path::PathBuf;
use topology::{HostType, catalog, file};

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
    /// Make a cluster file from what a site has: a host's `nvidia-smi topo -m`, NCCL XML, P2P matrices and ibstat or ibv_devinfo, and the switches from Slurm, ibnetdiscover or Topograph
    Import(Box<import::Import>),
    /// Print the JSON Schema of the cluster file
    Schema,
    /// List the host types of the catalog
    Types {
        /// Output format
        #[arg(long, value_enum, default_value = "text")]
        format: ListFormat,
    },
}

/// Output format of a list.
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
        Topology::Import(a) => import::run(a),
        Topology::Schema => put(&file::json_schema(), None),
        Topology::Types { format } => types(format),
    }
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
