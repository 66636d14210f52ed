//! A server on a free port, and two clients: one of the registry, and one that writes bytes.
#![allow(dead_code)] // each test binary uses only some of these

pub mod npm;
pub mod provider;

use engine::{Engine, FitRequest};
use serde_json::Value;
use server::auth::{Scope, hash, new_token};
use server::{Config, Running, start};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;
use store::state::NewToken;
use store::{By, State, Store};
use topology::cluster::Host;
use topology::{Cluster, Collective};

/// Longest wait for an answer: a server that gives none fails its test.
const ANSWER_MAX: Duration = Duration::from_secs(240);

/// `hosts` hosts of eight H100 each.
pub fn cluster(hosts: usize) -> Cluster {
    let mut c = topology::catalog::cluster("h100").unwrap();
    let one = c.hosts[0].clone();
    c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..one.clone() }).collect();
    c
}

/// The same; the UUIDs of the first host's GPUs are known.
pub fn cluster_with_uuids(hosts: usize) -> Cluster {
    let mut c = cluster(hosts);
    c.hosts[0].gpu_uuids = (0..8).map(|g| format!("GPU-0-{g}")).collect();
    c
}

/// An engine with a state, a store and a model that needs no readings.
pub fn engine(folder: &Path, hosts: usize) -> Engine {
    engine_of(folder, cluster(hosts))
}

/// The same for a cluster.
pub fn engine_of(folder: &Path, cluster: Cluster) -> Engine {
    let path = folder.join("s.db");
    let state = if path.exists() { State::open(&path) } else { State::init(&path, &cluster, 0.0) };
    let store = Store::create(&folder.join("r.db"), &cluster).unwrap();
    let engine = Engine::builder(cluster).state(state.unwrap()).store(store).build().unwrap();
    let cold = FitRequest { kind: Some("nccl".into()), collective: Some(Collective::AllReduce), seed: 0 };
    engine.fit(&cold).unwrap();
    engine
}

/// A server that stops when the value is dropped.
pub struct Server {
    running: Option<Running>,
    pub folder: tempfile::TempDir,
    pub at: SocketAddr,
    agent: ureq::Agent,
    pub token: Option<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.take().into_iter().for_each(Running::stop);
    }
}

/// What a server said.
#[derive(Debug)]
pub struct Said {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub text: String,
}

impl Said {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|e| panic!("{e}: {}", self.text))
    }
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
    /// The status, and the code of a problem.
    pub fn code(&self) -> (u16, String) {
        let v = self.json();
        assert_eq!(v["status"], self.status, "{}", self.text);
        assert_eq!(self.header("content-type"), "application/problem+json");
        assert!(!v["remedy"].as_str().unwrap().is_empty() && !v["detail"].as_str().unwrap().is_empty(), "{v}");
        (self.status, v["code"].as_str().unwrap().into())
    }
}

impl Server {
    pub fn new(hosts: usize) -> Server {
        Server::with(hosts, |c| c)
    }

    pub fn with(hosts: usize, change: impl FnOnce(Config) -> Config) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let engine = engine(folder.path(), hosts);
        Server::of(folder, engine, change)
    }

    pub fn of(folder: tempfile::TempDir, engine: Engine, change: impl FnOnce(Config) -> Config) -> Server {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let running = start(engine, &change(Config { listen, ..Config::default() })).unwrap();
        let config = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0);
        let config = config.timeout_global(Some(ANSWER_MAX));
        let at = running.address();
        Server { at, running: Some(running), folder, agent: config.build().into(), token: None }
    }

    /// Stops the server and keeps its files.
    pub fn stop(mut self) -> tempfile::TempDir {
        self.running.take().into_iter().for_each(Running::stop);
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }

    pub fn token(&self, name: &str, scope: Scope, until_unix_s: Option<f64>) -> String {
        let token = new_token().unwrap();
        let new = NewToken { name: name.into(), hash: hash(&token), scope: scope.to_string(), until_unix_s };
        State::open(&self.folder.path().join("s.db")).unwrap().add_token(&new, &By::from(1.0)).unwrap();
        token
    }

    /// Sends a request with any method, header and body.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Said {
        let mut request = ureq::http::Request::builder().method(method).uri(format!("http://{}{path}", self.at));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(t) = &self.token {
            request = request.header("authorization", format!("Bearer {t}"));
        }
        let mut response = match body.is_empty() {
            true => self.agent.run(request.body(()).unwrap()).unwrap(),
            false => self.agent.run(request.body(body).unwrap()).unwrap(),
        };
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut text = String::new();
        response.body_mut().as_reader().read_to_string(&mut text).unwrap();
        Said { status, headers, text }
    }

    pub fn get(&self, path: &str) -> Said {
        self.send("GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Said {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    /// The same under an idempotency key.
    pub fn post_once(&self, path: &str, key: &str, body: &Value) -> Said {
        let headers = [("content-type", "application/json"), ("idempotency-key", key)];
        self.send("POST", path, &headers, body.to_string().as_bytes())
    }

    /// Writes bytes, then reads until the server closes or says nothing for some seconds. Errors of the connection end the reading.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut s = TcpStream::connect(self.at).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = s.write_all(bytes);
        read_all(&mut s)
    }
}

/// Says that a test has nothing to run here.
pub fn skip(test: &str, why: &str) {
    eprintln!("SKIP {test}: {why}");
}

/// Everything that comes until the end of a connection.
pub fn read_all(s: &mut TcpStream) -> String {
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    while let Ok(n) = s.read(&mut part) {
        if n == 0 {
            break;
        }
        all.extend_from_slice(&part[..n]);
    }
    String::from_utf8_lossy(&all).into_owned()
}
