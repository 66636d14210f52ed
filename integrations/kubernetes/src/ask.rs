//! Asks linkwise's server for GPUs.
//!
//! The server's state is a mirror here: the controller allocates in it first, because the other doors of the site use the same GPUs, and brings it up to
//! the claims afterwards ([`crate::controller`]). kube's client carries the requests, with its TLS and its token files.

use crate::names::JOB_PREFIX;
use crate::pulse::Pulse;
use crate::settings::ServerArgs;
use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Longest answer of the server: 10,240 GPUs have 2 MB.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Longest time of a request. The server ends a decision after 60 s.
const DEADLINE: Duration = Duration::from_secs(70);
/// Entries of a page of a list.
const PAGE: usize = 1000;

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AskError {
    /// The server refused: no room, a token without the scope, ...
    #[error("linkwise's server: {detail}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its stable code.
        code: String,
        /// Its words.
        detail: String,
    },
    /// No connection, no answer in time, or one that is not understood.
    #[error("linkwise's server does not answer: {0}")]
    Silent(String),
}

/// The GPUs of a job.
#[derive(Clone, Debug)]
pub struct Choice {
    /// GPUs of every pod, by UUID, in the order of the request.
    pub pods: Vec<Vec<String>>,
    /// The reason, one line.
    pub reason: String,
}

#[derive(Deserialize)]
struct Problem {
    code: String,
    detail: String,
}

#[derive(Deserialize)]
struct Hosts {
    hosts: Vec<Host>,
}

#[derive(Deserialize)]
struct Host {
    name: String,
    gpus: Vec<Gpu>,
}

#[derive(Deserialize)]
struct Gpu {
    #[serde(default)]
    uuid: Option<String>,
    #[serde(default)]
    job: Option<String>,
    #[serde(default)]
    drained: Option<String>,
}

#[derive(Deserialize)]
struct Placed {
    pods: Vec<Vec<String>>,
    predicted_busbw_gb_per_s: f64,
    split: String,
    #[serde(default)]
    packed: Option<Scored>,
    #[serde(default)]
    price: Option<Price>,
}

/// A prediction.
#[derive(Clone, Debug, Deserialize)]
pub struct Predicted {
    /// GPUs per host, largest first.
    pub split: String,
    /// Bus bandwidth, GB/s.
    pub predicted_busbw_gb_per_s: f64,
}

/// A choice that was not taken.
#[derive(Clone, Debug, Deserialize)]
pub struct Possible {
    /// GPUs of every pod, by name.
    pub pods: Vec<Vec<String>>,
    /// GPUs per host, largest first.
    pub split: String,
    /// Bus bandwidth, GB/s.
    pub predicted_busbw_gb_per_s: f64,
}

#[derive(Deserialize)]
struct Scored {
    split: String,
    predicted_busbw_gb_per_s: f64,
}

#[derive(Deserialize)]
struct Price {
    keeps_rule: bool,
}

/// A client of the server.
#[derive(Clone)]
pub struct Server {
    client: Client,
    pulse: Arc<Pulse>,
    /// Name of every GPU whose UUID the server knows, and back.
    names: HashMap<String, String>,
    uuids: HashMap<String, String>,
    /// UUIDs of GPUs that are drained or held by another door, such as Slurm.
    kept: HashSet<String>,
}

impl Server {
    /// A client. No request is sent. Call it in a tokio runtime.
    ///
    /// # Errors
    /// The address or the certificate cannot be used.
    pub fn new(args: &ServerArgs) -> Result<Server, String> {
        let url = args.server.parse().map_err(|e| format!("--server {}: {e}", args.server))?;
        let mut config = Config::new(url);
        config.connect_timeout = Some(Duration::from_secs(10));
        config.read_timeout = Some(DEADLINE);
        config.auth_info.token_file = args.server_token_file.as_ref().map(|f| f.display().to_string());
        config.root_cert_file.clone_from(&args.server_ca);
        let client = Client::try_from(config).map_err(|e| format!("--server {}: {e}", args.server))?;
        let (names, uuids, kept) = (HashMap::new(), HashMap::new(), HashSet::new());
        Ok(Server { client, pulse: Arc::default(), names, uuids, kept })
    }

    /// The same client; every request is a beat, because one may take 70 s.
    pub fn with_pulse(mut self, pulse: &Arc<Pulse>) -> Server {
        self.pulse = Arc::clone(pulse);
        self
    }

    /// The server's suspected parts.
    ///
    /// # Errors
    /// No answer.
    pub async fn suspects(&self) -> Result<Vec<crate::facts::taints::Suspect>, AskError> {
        let mut cluster = self.send(Method::GET, "/v1/cluster", None, None).await?;
        let suspects = cluster.get_mut("suspects").map(Value::take).unwrap_or_default();
        serde_json::from_value(suspects).map_err(|e| AskError::Silent(format!("/v1/cluster: {e}")))
    }

    /// Predicted bandwidth of GPUs, GB/s, and their split.
    ///
    /// # Errors
    /// An unknown GPU, no model, or no answer.
    pub async fn predict(&self, names: &[String]) -> Result<Predicted, AskError> {
        let body = json!({"gpus": folded(names)});
        let answer = self.send(Method::POST, "/v1/explain", None, Some(body)).await?;
        serde_json::from_value(answer).map_err(|e| AskError::Silent(format!("/v1/explain: {e}")))
    }

    /// What pods of these sizes would get from the free GPUs. Nothing is allocated.
    ///
    /// # Errors
    /// No such choice, or no answer.
    pub async fn what_if(&self, pods: &[usize], free: &[String]) -> Result<Possible, AskError> {
        let body = json!({"pods": pods, "free": folded(free)});
        let answer = self.send(Method::POST, "/v1/place", None, Some(body)).await?;
        serde_json::from_value(answer).map_err(|e| AskError::Silent(format!("/v1/place: {e}")))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<Value>,
    ) -> Result<Value, AskError> {
        self.pulse.beat();
        let silent = |e: &dyn std::fmt::Display| AskError::Silent(e.to_string());
        let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        let body = body.map(|b| b.to_string()).unwrap_or_default();
        let request = request.body(Body::from(body.into_bytes())).map_err(|e| silent(&e))?;
        let answer = tokio::time::timeout(DEADLINE, async {
            let answer = self.client.send(request).await.map_err(|e| silent(&e))?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|e| silent(&e))?;
            Ok::<_, AskError>((status, body.to_bytes()))
        });
        let (status, bytes) =
            answer.await.map_err(|_| silent(&format!("no answer within {} s", DEADLINE.as_secs())))??;
        if (200..300).contains(&status) {
            return if bytes.is_empty() {
                Ok(Value::Null)
            } else {
                serde_json::from_slice(&bytes).map_err(|e| silent(&e))
            };
        }
        match serde_json::from_slice::<Problem>(&bytes) {
            Ok(p) if status < 500 => Err(AskError::Refused { status, code: p.code, detail: p.detail }),
            Ok(p) => Err(AskError::Silent(p.detail)),
            Err(_) => Err(AskError::Silent(format!("status {status}"))),
        }
    }

    /// Reads the names of all GPUs. O(GPUs).
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn read_names(&mut self) -> Result<(), AskError> {
        let hosts = self.send(Method::GET, "/v1/hosts", None, None).await?;
        let hosts: Hosts = serde_json::from_value(hosts).map_err(|e| AskError::Silent(format!("/v1/hosts: {e}")))?;
        self.names.clear();
        self.uuids.clear();
        self.kept.clear();
        for host in hosts.hosts {
            for (index, gpu) in host.gpus.into_iter().enumerate() {
                if let Some(uuid) = gpu.uuid.filter(|u| !u.is_empty()) {
                    let name = format!("{}:{index}", host.name);
                    if gpu.drained.is_some() || gpu.job.is_some_and(|j| !j.starts_with(JOB_PREFIX)) {
                        self.kept.insert(uuid.clone());
                    }
                    self.uuids.insert(name.clone(), uuid.clone());
                    self.names.insert(uuid, name);
                }
            }
        }
        Ok(())
    }

    /// Name of a GPU.
    pub fn name(&self, uuid: &str) -> Option<&str> {
        self.names.get(uuid).map(String::as_str)
    }

    /// True if the server knew the GPU when its names were read, and neither a drain nor another door kept it.
    pub fn gives(&self, uuid: &str) -> bool {
        self.names.contains_key(uuid) && !self.kept.contains(uuid)
    }

    /// Allocates GPUs to a job: for every pod its number, all of one pod on one host. `free` are the names to choose from. The same job and pods give
    /// the same answer again.
    ///
    /// # Errors
    /// No such choice, or no answer.
    pub async fn allocate(&self, job: &str, pods: &[usize], free: &[String]) -> Result<Choice, AskError> {
        let body = json!({"pods": pods, "free": folded(free), "commit": job});
        let answer = self.send(Method::POST, "/v1/allocations", Some(job), Some(body)).await?;
        let placed: Placed =
            serde_json::from_value(answer).map_err(|e| AskError::Silent(format!("/v1/allocations: {e}")))?;
        let uuid = |name: &String| {
            let unknown = || AskError::Silent(format!("the answer has {name}, whose UUID is unknown"));
            self.uuids.get(name).cloned().ok_or_else(unknown)
        };
        let chosen: Result<Vec<Vec<String>>, AskError> =
            placed.pods.iter().map(|p| p.iter().map(uuid).collect()).collect();
        Ok(Choice { pods: chosen?, reason: reason(&placed) })
    }

    /// Records that a job holds these GPUs.
    ///
    /// # Errors
    /// Another job holds one of them, or no answer.
    pub async fn record(&self, job: &str, names: &[String]) -> Result<(), AskError> {
        let body = json!({"gpus": folded(names)});
        self.send(Method::PUT, &of_job(job), None, Some(body)).await.map(drop)
    }

    /// Releases a job. A job that is unknown is released.
    ///
    /// # Errors
    /// No answer.
    pub async fn release(&self, job: &str) -> Result<(), AskError> {
        match self.send(Method::DELETE, &of_job(job), None, None).await {
            Err(AskError::Refused { status: 404, .. }) => Ok(()),
            other => other.map(drop),
        }
    }

    /// The number of GPUs that a job holds; none: it is unknown.
    ///
    /// # Errors
    /// No answer.
    pub async fn gpus_of(&self, job: &str) -> Result<Option<usize>, AskError> {
        match self.send(Method::GET, &of_job(job), None, None).await {
            Err(AskError::Refused { status: 404, .. }) => Ok(None),
            other => other.map(|v| v["gpus"].as_array().map(Vec::len)),
        }
    }

    /// Reports what a job measured, once.
    ///
    /// # Errors
    /// Readings that no hardware can produce, or no answer.
    pub async fn report(&self, job: &str, readings: &[Value]) -> Result<(), AskError> {
        let body = json!({"job": job, "readings": readings});
        self.send(Method::POST, "/v1/readings", Some(&format!("readings:{job}")), Some(body)).await.map(drop)
    }

    /// The jobs whose id begins with `prefix`.
    ///
    /// # Errors
    /// No answer.
    pub async fn jobs(&self, prefix: &str) -> Result<Vec<String>, AskError> {
        let mut found: Vec<String> = Vec::new();
        let mut after = String::new();
        loop {
            let page = self.send(Method::GET, &format!("/v1/allocations?limit={PAGE}{after}"), None, None).await?;
            let jobs: Vec<&str> =
                page["jobs"].as_array().into_iter().flatten().filter_map(|j| j["id"].as_str()).collect();
            found.extend(jobs.iter().filter(|j| j.starts_with(prefix)).map(|j| (*j).to_owned()));
            match jobs.last() {
                Some(last) if jobs.len() == PAGE => after = format!("&after={}", escaped(last)),
                _ => return Ok(found),
            }
        }
    }
}

/// The path of a job, whatever its name is.
fn of_job(job: &str) -> String {
    format!("/v1/allocations/{}", escaped(job))
}

/// A text as a segment of a path or a value of a query.
fn escaped(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~:".contains(&b);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Names of GPUs in linkwise's notation, an item per host: `n0:[0,3]`. O(GPUs log).
fn folded(names: &[String]) -> Vec<String> {
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in names {
        if let Some((host, index)) = name.rsplit_once(':') {
            hosts.entry(host).or_default().push(index);
        }
    }
    hosts.into_iter().map(|(host, gpus)| format!("{host}:[{}]", gpus.join(","))).collect()
}

/// The names of GPUs as one text, for annotations.
pub fn listed(names: &[String]) -> String {
    folded(names).join(",")
}

fn reason(placed: &Placed) -> String {
    if placed.predicted_busbw_gb_per_s <= 0.0 {
        return "one GPU".into();
    }
    let chosen = format!("split {}, predicted {:.0} GB/s", placed.split, placed.predicted_busbw_gb_per_s);
    let rule = if placed.price.as_ref().is_some_and(|p| p.keeps_rule) { ", as the simple rule" } else { "" };
    match &placed.packed {
        Some(p) => format!("{chosen}{rule}; packed {} would have {:.0} GB/s", p.split, p.predicted_busbw_gb_per_s),
        None => format!("{chosen}{rule}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pulse::PulseArgs;

    #[test]
    fn any_name_of_a_job_makes_a_path() {
        assert_eq!(of_job("k8s:a:g.x:00ff.1"), "/v1/allocations/k8s:a:g.x:00ff.1");
        let odd = of_job("a b/../\u{e4}?x#y%\n");
        assert_eq!(odd, "/v1/allocations/a%20b%2F..%2F%C3%A4%3Fx%23y%25%0A");
        assert!(odd.parse::<http::Uri>().is_ok());
    }

    #[test]
    fn a_request_without_an_answer_is_a_beat() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pulse");
        let args = ServerArgs { server: "http://127.0.0.1:1".into(), server_token_file: None, server_ca: None };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let pulse = Arc::new(Pulse::new(&PulseArgs { pulse: Some(file.clone()) }));
            let server = Server::new(&args).unwrap().with_pulse(&pulse);
            assert!(server.release("k8s:a:g:1").await.is_err());
        });
        assert!(file.exists());
    }
}
