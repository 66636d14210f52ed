//! Files of requests with the choices of other methods: one JSON object per line, from a replay of BandPilot's code
//! (`docs/data.md`).

use std::collections::BTreeMap;
use topology::{Allocation, Cluster};

/// Largest file, bytes.
pub const FILE_BYTES_MAX: usize = 64 << 20;
/// Longest line, bytes.
pub const LINE_BYTES_MAX: usize = 256 << 10;
/// Maximum number of requests in a file.
pub const REQUESTS_MAX: usize = 100_000;
/// Maximum number of running jobs in a request.
pub const JOBS_MAX: usize = 32;
/// Maximum number of other methods in a request.
pub const PEERS_MAX: usize = 32;
/// Largest accepted rate, GB/s.
const RATE_MAX: f64 = 1e6;
/// Longest stored name, characters.
const NAME_CHARS_MAX: usize = 200;

/// The load of the running jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// The jobs hold their GPUs and use no bandwidth.
    Idle,
    /// 25 to 75 % of their possible bandwidth.
    Common,
    /// All of their possible bandwidth.
    Intensive,
}

impl Load {
    /// All loads, ascending.
    pub const ALL: [Load; 3] = [Load::Idle, Load::Common, Load::Intensive];
}

/// A running job.
#[derive(Clone, Debug, PartialEq)]
pub struct Background {
    /// Its GPUs.
    pub gpus: Allocation,
    /// Its bandwidth without other jobs, GB/s.
    pub standalone_gb_per_s: f64,
    /// The bandwidth that it uses, GB/s; no meaning for an idle load.
    pub demand_gb_per_s: f64,
}

/// The choice of another method.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    pub name: String,
    /// The chosen GPUs.
    pub gpus: Allocation,
    /// Their bandwidth next to the running jobs, GB/s.
    pub truth_gb_per_s: f64,
    /// Their bandwidth without other jobs, GB/s, not truncated, if the file has it.
    pub standalone_gb_per_s: Option<f64>,
    /// Processor time of the decision, milliseconds.
    pub cpu_ms: Option<f64>,
}

/// A request with all data of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    pub id: String,
    /// Requested GPUs.
    pub k: usize,
    /// The load of the running jobs.
    pub load: Load,
    /// GPUs to choose from.
    pub available: Allocation,
    /// Running jobs.
    pub background: Vec<Background>,
    /// Best possible bandwidth, GB/s.
    pub optimum_gb_per_s: f64,
    /// GPUs per host of a choice with this bandwidth, if the file has it.
    pub optimum_counts: Option<Vec<u8>>,
    /// The choices of the other methods, in the order of the file (BandPilot first).
    pub peers: Vec<Peer>,
}

/// Why a file is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{file}, line {line}: {what}")]
pub struct ReadError {
    /// The file's name, as the caller gave it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// The found value and the expected value.
    pub what: String,
}

#[derive(serde::Deserialize)]
struct RequestLine {
    id: String,
    cluster: String,
    contention: Load,
    k: usize,
    available: Vec<String>,
    #[serde(default)]
    background: Vec<LineBackground>,
    optimum_gbps: f64,
    optimum_counts: Option<Vec<u8>>,
    bandpilot: Option<LinePeer>,
    #[serde(default)]
    others: BTreeMap<String, LinePeer>,
}

#[derive(serde::Deserialize)]
struct LineBackground {
    gpus: Gpus,
    standalone_gbps: f64,
    demand_gbps: f64,
}

#[derive(serde::Deserialize)]
struct LinePeer {
    gpus: Gpus,
    truth_gbps: f64,
    truth_standalone_gbps: Option<f64>,
    #[serde(alias = "decision_cpu_ms")]
    cpu_ms: Option<f64>,
}

/// The forms `["n0:1", "n0:2"]` and `"n0:1 n0:2"`.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Gpus {
    List(Vec<String>),
    Text(String),
}

impl Gpus {
    fn allocation(&self, cluster: &Cluster) -> Result<Allocation, String> {
        match self {
            Gpus::List(l) => Ok(cluster.parse_gpus(l.iter().map(String::as_str))?),
            Gpus::Text(t) => Ok(cluster.parse_gpus([t.as_str()])?),
        }
    }
}

/// Reads a file's text. `cluster_of` gives the cluster of a name in the file, or the reason why there is none. A file
/// may contain lines of several clusters. Each returned list belongs to one cluster, in the order of first appearance.
/// Blank lines are skipped; the first bad line is the error.
pub fn parse<'c>(
    text: &str,
    file: &str,
    cluster_of: &dyn Fn(&str) -> Result<&'c Cluster, String>,
) -> Result<Vec<(String, Vec<Scenario>)>, ReadError> {
    let error = |line: usize, what: String| ReadError { file: file.to_owned(), line, what };
    let mut out: Vec<(String, Vec<Scenario>)> = Vec::new();
    let mut requests = 0;
    for (i, line) in text.lines().enumerate() {
        let n = i + 1;
        if line.trim().is_empty() {
            continue;
        }
        if line.len() > LINE_BYTES_MAX {
            return Err(error(n, format!("{} bytes; a request has at most {LINE_BYTES_MAX}", line.len())));
        }
        requests += 1;
        if requests > REQUESTS_MAX {
            return Err(error(n, format!("more than {REQUESTS_MAX} requests; split the file")));
        }
        let raw: RequestLine = serde_json::from_str(line).map_err(|e| {
            let e = e.to_string();
            // serde_json counts lines inside this line.
            error(n, format!("{}; expected a JSON object of a request", e.replace(" at line 1 column", " at column")))
        })?;
        let cluster = cluster_of(&raw.cluster).map_err(|e| error(n, format!("field `cluster`: {e}")))?;
        let name = raw.cluster.clone();
        let scenario = scenario(raw, cluster).map_err(|e| error(n, e))?;
        match out.iter_mut().find(|(c, _)| *c == name) {
            Some((_, list)) => list.push(scenario),
            None => out.push((name, vec![scenario])),
        }
    }
    if out.is_empty() {
        return Err(error(1, "no request; expected one JSON object a line".into()));
    }
    Ok(out)
}

/// Reads the fields of one request. An error contains the request and the field.
struct Fields<'a> {
    id: String,
    cluster: &'a Cluster,
}

impl Fields<'_> {
    fn error(&self, field: &str, what: impl std::fmt::Display) -> String {
        format!("request `{}`, field `{field}`: {what}", self.id)
    }

    fn rate(&self, field: &str, v: f64) -> Result<f64, String> {
        let known = (0.0..=RATE_MAX).contains(&v);
        known.then_some(v).ok_or_else(|| self.error(field, format!("{v} is not a rate between 0 and {RATE_MAX} GB/s")))
    }

    fn gpus(&self, field: &str, g: &Gpus) -> Result<Allocation, String> {
        g.allocation(self.cluster).map_err(|e| self.error(field, e))
    }

    /// The running jobs. It is an error if two jobs share a GPU or if a job has an available GPU.
    fn background(&self, jobs: &[LineBackground], available: &Allocation) -> Result<Vec<Background>, String> {
        if jobs.len() > JOBS_MAX {
            return Err(format!("request `{}`: {} running jobs; at most {JOBS_MAX}", self.id, jobs.len()));
        }
        let mut taken = available.clone();
        let mut out = Vec::new();
        for b in jobs {
            let gpus = self.gpus("background.gpus", &b.gpus)?;
            if let Some(g) = gpus.gpus().find(|g| taken.mask(g.host).contains(usize::from(g.gpu))) {
                let g = self.cluster.gpu_name(g);
                return Err(self.error("background.gpus", format!("{g} is available or another job's")));
            }
            taken = Allocation::from_gpus(taken.gpus().chain(gpus.gpus()));
            out.push(Background {
                gpus,
                standalone_gb_per_s: self.rate("background.standalone_gbps", b.standalone_gbps)?,
                demand_gb_per_s: self.rate("background.demand_gbps", b.demand_gbps)?,
            });
        }
        Ok(out)
    }

    /// The choice of another method among the available GPUs.
    fn peer(&self, name: &str, p: &LinePeer, k: usize, available: &Allocation) -> Result<Peer, String> {
        let field = format!("{name}.gpus");
        let gpus = self.gpus(&field, &p.gpus)?;
        if !available.contains_all(&gpus) || gpus.gpu_count() != k {
            return Err(self.error(&field, format!("expected {k} of the available GPUs")));
        }
        let standalone = p.truth_standalone_gbps.map(|v| self.rate("truth_standalone_gbps", v));
        Ok(Peer {
            name: name.chars().take(NAME_CHARS_MAX).collect(),
            gpus,
            truth_gb_per_s: self.rate("truth_gbps", p.truth_gbps)?,
            standalone_gb_per_s: standalone.transpose()?,
            cpu_ms: p.cpu_ms.filter(|v| v.is_finite() && *v >= 0.0),
        })
    }
}

fn scenario(raw: RequestLine, cluster: &Cluster) -> Result<Scenario, String> {
    let fields = Fields { id: raw.id.chars().take(NAME_CHARS_MAX).collect(), cluster };
    let k = raw.k;
    let available = fields.gpus("available", &Gpus::List(raw.available))?;
    if k < 2 || k > available.gpu_count() {
        let n = available.gpu_count();
        return Err(fields.error("k", format!("{k} GPUs of {n} available; expected 2 to {n}")));
    }
    let background = fields.background(&raw.background, &available)?;
    if raw.others.len() >= PEERS_MAX {
        let (id, n) = (&fields.id, raw.others.len());
        return Err(format!("request `{id}`: {n} choices of others; at most {PEERS_MAX}"));
    }
    let others = raw.others.iter().map(|(n, p)| (n.as_str(), p));
    let peers = raw.bandpilot.iter().map(|p| ("BandPilot", p)).chain(others);
    let peers = peers.map(|(name, p)| fields.peer(name, p, k, &available)).collect::<Result<_, _>>()?;
    let optimum_counts = raw.optimum_counts;
    if let Some(c) = &optimum_counts
        && (c.len() != cluster.hosts.len() || c.iter().map(|c| usize::from(*c)).sum::<usize>() != k)
    {
        let h = cluster.hosts.len();
        return Err(fields.error("optimum_counts", format!("expected {h} counts that sum to {k}")));
    }
    let optimum_gb_per_s = fields.rate("optimum_gbps", raw.optimum_gbps)?;
    let (id, load) = (fields.id, raw.contention);
    Ok(Scenario { id, k, load, available, background, optimum_gb_per_s, optimum_counts, peers })
}
