//! The network and the demand that the arguments name.

use console::Failure;
use console::{load_cluster, number};
use files::read_limited;
use route::network::{LinkOverride, RoutingNetworkError};
use route::read::{self, DemandFormat, DispatchLayout};
use route::{Demand, RoutingNetwork, RoutingOptions, builtin};
use std::path::PathBuf;
use topology::diagnose::did_you_mean;
use topology::{Bytes, Cluster};

/// Which cluster, and what is known beyond its file.
#[derive(clap::Args)]
pub struct On {
    /// Built-in cluster (mesh4, cube8, rails2x4, rails4x8, rails64x8, h100 and others) or cluster file
    #[arg(long)]
    pub cluster: String,
    /// The job's GPUs (n[0-3]:[0-7], n0:3, whole hosts n0), in host order [default: all usable ones]
    #[arg(long)]
    pub gpus: Option<String>,
    /// Rate of a link that differs from the file: FROM>TO=GB_PER_S, or FROM>TO=xSHARE; 0 is dead; repeatable
    #[arg(long = "link", value_name = "FROM>TO=RATE")]
    pub links: Vec<LinkOverride>,
    /// Limit on the bytes that a GPU reads to forward for others, GB/s
    #[arg(long, value_name = "GB_PER_S", value_parser = number::real)]
    pub relay_read: Option<f64>,
    /// Limit on the bytes that a GPU writes to forward for others, GB/s
    #[arg(long, value_name = "GB_PER_S", value_parser = number::real)]
    pub relay_write: Option<f64>,
}

impl On {
    /// Builds the network.
    pub fn network(&self) -> Result<RoutingNetwork, Failure> {
        let cluster = self::cluster(&self.cluster)?;
        let gpus = self.gpus.as_ref().map(|list| cluster.parse_gpus([list.as_str()])).transpose();
        let options = RoutingOptions {
            gpus: gpus.map_err(|e| Failure::input(format!("--gpus: {e}")))?,
            relay_read_gb_per_s: self.relay_read,
            relay_write_gb_per_s: self.relay_write,
            overrides: self.links.clone(),
            ..RoutingOptions::default()
        };
        RoutingNetwork::of(&cluster, &options).map_err(|e| match e {
            RoutingNetworkError::TooManyRanks(_) => Failure::input(format!("{e}: --gpus 'n[0-3]:[0-7]'")),
            e => Failure::input(e),
        })
    }
}

/// A cluster built into the router, or any other built-in cluster or cluster file.
pub fn cluster(name: &str) -> Result<Cluster, Failure> {
    match builtin::cluster(name) {
        Some(c) => Ok(c),
        None => load_cluster(name).map_err(|f| match f {
            Failure::Input(m) if m.contains("neither a built-in cluster") => {
                let near = did_you_mean(name, builtin::NAMES).filter(|_| !m.contains("did you mean"));
                let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
                Failure::Input(format!("{m}. For routing also: {}{hint}", builtin::NAMES.join(", ")))
            }
            other => other,
        }),
    }
}

/// Which demand.
#[derive(clap::Args)]
pub struct Traffic {
    /// Demand: a square CSV of bytes (rows send, columns receive), JSON, PARAM replays (one file per rank), or an ESFT routing file
    #[arg(required = true, value_name = "DEMAND")]
    pub files: Vec<PathBuf>,
    /// Ranks over which a routing file's experts and tokens are spread
    #[arg(long, value_name = "N", value_parser = number::whole::<usize>)]
    pub ep: Option<usize>,
    /// Bytes of one token, for a routing file (hidden size times bytes per value)
    #[arg(long, value_name = "B", value_parser = Bytes::parse, default_value = "14336")]
    pub bytes_per_token: Bytes,
    /// Experts of the layer, for a routing file
    #[arg(long, default_value_t = 64, value_parser = number::whole::<u32>)]
    pub experts: u32,
    /// Experts of one token, for a routing file
    #[arg(long, default_value_t = 6, value_parser = number::whole::<usize>)]
    pub experts_per_token: usize,
    /// Tokens of the whole batch, for a routing file: the first ones, repeated if the file has fewer
    #[arg(long, value_parser = number::whole::<usize>)]
    pub tokens: Option<usize>,
    /// Number of the all-to-all in a replay, from 0
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = number::whole::<usize>)]
    pub operation: usize,
}

/// Maximum number of tokens of a batch.
const TOKENS_MAX: usize = 100_000_000;

impl Traffic {
    /// Reads the demand, which must fit this number of ranks.
    pub fn demand(&self, ranks: usize) -> Result<Demand, Failure> {
        let mut texts = Vec::new();
        for path in &self.files {
            let name = path.display().to_string();
            let bytes = read_limited(path, read::FILE_SIZE_MAX)?;
            let text = topology::read::text(&bytes, &name, read::FILE_SIZE_MAX)?;
            texts.push((name, text.to_string()));
        }
        let (name, text) = &texts[0];
        let kind = match self.ep {
            Some(_) => DemandFormat::Esft,
            None => read::detect_format(text),
        };
        if texts.len() > 1 && kind != DemandFormat::Param {
            return Err(Failure::input(format!(
                "{} files were given, but {name} is no PARAM replay; only replays come as a file per rank",
                texts.len()
            )));
        }
        match kind {
            DemandFormat::Csv => read::csv(text, name).map_err(Failure::from),
            DemandFormat::Json => read::json(text, name).map_err(Failure::from),
            DemandFormat::Param => read::param(&texts, self.operation).map_err(Failure::from),
            DemandFormat::Esft => {
                let ep = self.ep.ok_or_else(|| {
                    Failure::input(format!(
                        "{name} looks like a routing file (tokens to experts); say over how many ranks its experts are spread: --ep {ranks}"
                    ))
                })?;
                if self.tokens.is_some_and(|t| t == 0 || t > TOKENS_MAX) {
                    return Err(Failure::input(format!("--tokens takes 1 to {TOKENS_MAX}")));
                }
                let routing = read::esft(text, name, self.experts, self.experts_per_token)?;
                let dispatch =
                    DispatchLayout { ranks: ep, bytes_per_token: self.bytes_per_token.0, tokens: self.tokens };
                routing.demand(&dispatch).map_err(|e| Failure::input(format!("{name}: {e}")))
            }
        }
    }
}
