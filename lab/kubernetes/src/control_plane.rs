//! The processes of a control plane.

use crate::watchdog::Watchdog;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{
    AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext,
};
use kube::{Client, Config};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take until it answers. A machine of two cores under a load of 40 needs two minutes.
const READY: Duration = Duration::from_secs(300);
/// Lines of a log in an error.
const LOG_LINES: usize = 12;

/// A program of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The store of all objects.
    Etcd,
    /// The API.
    ApiServer,
    /// The stock scheduler.
    Scheduler,
    /// The loops of [`Options::controllers`].
    ControllerManager,
}

impl Part {
    /// All, in the order of their start.
    pub const ALL: [Part; 4] = [Part::Etcd, Part::ApiServer, Part::Scheduler, Part::ControllerManager];

    fn program(self) -> &'static str {
        match self {
            Part::Etcd => "etcd",
            Part::ApiServer => "kube-apiserver",
            Part::Scheduler => "kube-scheduler",
            Part::ControllerManager => "kube-controller-manager",
        }
    }
}

/// A user of the API beside the administrator.
#[derive(Clone, Debug)]
pub struct User {
    /// Name, such as `system:serviceaccount:linkwise:controller`.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
}

/// What a control plane is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// Release of Kubernetes: a folder of [`folder`].
    pub release: String,
    /// Loops of kube-controller-manager; none: the program does not run.
    pub controllers: Vec<&'static str>,
    /// More arguments of kube-apiserver, such as `--feature-gates=...`.
    pub api_server: Vec<String>,
    /// More arguments of kube-scheduler.
    pub scheduler: Vec<String>,
    /// Users with a token each; RBAC gives them nothing.
    pub users: Vec<User>,
}

impl Default for Options {
    /// The release `LINKWISE_TEST_KUBERNETES_RELEASE`, or the newest one that is built, with the loops that claims, owners, jobs and disruption
    /// budgets need.
    fn default() -> Options {
        let named = std::env::var("LINKWISE_TEST_KUBERNETES_RELEASE").ok();
        Options {
            release: named.or_else(|| releases().pop()).unwrap_or_else(|| "1.36.3".into()),
            controllers: vec![
                "resourceclaim-controller",
                "garbage-collector-controller",
                "job-controller",
                "disruption-controller",
            ],
            api_server: Vec::new(),
            scheduler: Vec::new(),
            users: Vec::new(),
        }
    }
}

/// Why there is no control plane.
#[derive(Debug)]
pub enum Unavailable {
    /// The binaries are not built.
    NotBuilt(String),
    /// A program did not start; the end of its log.
    Failed(String),
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unavailable::NotBuilt(what) => {
                write!(f, "{what}: run `make build-kubernetes`")
            }
            Unavailable::Failed(what) => f.write_str(what),
        }
    }
}

/// The folder of binaries: `LINKWISE_TEST_KUBERNETES_BIN`, or `~/.cache/linkwise/kubernetes`. It has a folder per release.
pub fn folder() -> PathBuf {
    match std::env::var_os("LINKWISE_TEST_KUBERNETES_BIN") {
        Some(folder) => folder.into(),
        None => PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/linkwise/kubernetes"),
    }
}

/// The releases whose programs are all built, oldest first.
pub fn releases() -> Vec<String> {
    let whole = |at: &Path| Part::ALL.iter().all(|p| at.join(p.program()).is_file());
    let Ok(entries) = std::fs::read_dir(folder()) else { return Vec::new() };
    let mut found: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|e| whole(&e.path()))
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    found.sort_by_key(|r| r.split('.').map(|n| n.parse().unwrap_or(0)).collect::<Vec<u32>>());
    found
}

/// True if a release is of this minor version or a later one.
pub fn is_at_least(release: &str, minor: u32) -> bool {
    release.split('.').nth(1).and_then(|m| m.parse::<u32>().ok()).is_some_and(|m| m >= minor)
}

/// The value, or none after a line `SKIP test: reason` if the binaries are not built.
///
/// # Panics
/// The binaries are built and do not start.
pub fn or_skip<T>(test: &str, got: Result<T, Unavailable>) -> Option<T> {
    match got {
        Ok(value) => Some(value),
        Err(e @ Unavailable::NotBuilt(_)) => {
            println!("SKIP {test}: {e}");
            None
        }
        Err(Unavailable::Failed(why)) => panic!("{test}: {why}"),
    }
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    options: Options,
    binaries: PathBuf,
    folder: tempfile::TempDir,
    watchdog: Watchdog,
    etcd: [u16; 2],
    api: u16,
    children: BTreeMap<Part, Child>,
    /// Token of the administrator, then those of the users.
    tokens: Vec<String>,
}

impl ControlPlane {
    /// Starts all programs and waits until the API answers. 6 to 10 s on an idle machine.
    ///
    /// # Errors
    /// The binaries are not built, or a program ends or does not answer within five minutes.
    pub fn start(options: Options) -> Result<ControlPlane, Unavailable> {
        let binaries = folder().join(&options.release);
        if let Some(p) = Part::ALL.iter().find(|p| !binaries.join(p.program()).is_file()) {
            return Err(Unavailable::NotBuilt(format!(
                "{} of Kubernetes {} is not built",
                p.program(),
                options.release
            )));
        }
        let failed = |e: std::io::Error| Unavailable::Failed(format!("the folder of the control plane: {e}"));
        let folder = tempfile::Builder::new().prefix("linkwise-kubernetes-").tempdir().map_err(failed)?;
        let [etcd, peer, api] = free_ports().map_err(failed)?;
        let watchdog = Watchdog::of(folder.path()).map_err(failed)?;
        let tokens: Vec<String> = (0..=options.users.len()).map(|_| secret()).collect();
        let plane = ControlPlane {
            options,
            binaries,
            folder,
            watchdog,
            etcd: [etcd, peer],
            api,
            children: BTreeMap::new(),
            tokens,
        };
        plane.write_files().map_err(failed)?;
        let mut plane = plane;
        for part in Part::ALL {
            plane.start_part(part)?;
        }
        Ok(plane)
    }

    fn write_files(&self) -> std::io::Result<()> {
        let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
            .map_err(|_| std::io::Error::other("no random numbers"))?;
        std::fs::write(self.at("accounts.key"), pem("PRIVATE KEY", key.as_ref()))?;
        // The API server reads no public key out of ring's private one.
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.as_ref(), &SystemRandom::new())
            .map_err(|_| std::io::Error::other("the key of service accounts is not read back"))?;
        let public = [P256_PUBLIC_KEY, pair.public_key().as_ref()].concat();
        std::fs::write(self.at("accounts.pub"), pem("PUBLIC KEY", &public))?;
        let mut tokens = format!("{},admin,0,system:masters\n", self.tokens[0]);
        for (i, user) in self.options.users.iter().enumerate() {
            let _ = writeln!(tokens, "{},{},{},\"{}\"", self.tokens[i + 1], user.name, i + 1, user.groups.join(","));
        }
        std::fs::write(self.at("tokens.csv"), tokens)?;
        let config = serde_json::json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": false},
            "clientConnection": {"kubeconfig": self.kubeconfig(), "qps": 500, "burst": 1000},
        });
        std::fs::write(self.at("scheduler.json"), config.to_string())?;
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": self.url(), "certificate-authority": self.certificate()}}],
            "users": [{"name": "admin", "user": {"token": self.tokens[0]}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "admin"}}],
        });
        std::fs::write(self.kubeconfig(), config.to_string())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The release.
    pub fn release(&self) -> &str {
        &self.options.release
    }

    /// Its folder, which goes away with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Another process that ends when the owner of the control plane dies. Its command line must have a path in [`ControlPlane::folder`].
    ///
    /// # Errors
    /// The list of the watchdog cannot be written.
    pub fn end_too(&self, process: u32) -> std::io::Result<()> {
        self.watchdog.watch(process)
    }

    /// The address of the API.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.api)
    }

    /// The port of the API.
    pub fn port(&self) -> u16 {
        self.api
    }

    /// A configuration file with the administrator's token, for programs.
    pub fn kubeconfig(&self) -> PathBuf {
        self.at("kubeconfig.json")
    }

    /// The authority of the API's certificate.
    pub fn certificate(&self) -> PathBuf {
        self.at("certificates/apiserver.crt")
    }

    /// The token of a user of [`Options::users`], or of `admin`.
    pub fn token(&self, user: &str) -> Option<&str> {
        let at = match user {
            "admin" => 0,
            user => self.options.users.iter().position(|u| u.name == user)? + 1,
        };
        Some(&self.tokens[at])
    }

    /// Starts a program and waits until it answers.
    ///
    /// # Errors
    /// The program ends, or does not answer within five minutes.
    pub fn start_part(&mut self, part: Part) -> Result<(), Unavailable> {
        if part == Part::ControllerManager && self.options.controllers.is_empty() {
            return Ok(());
        }
        let name = part.program();
        let failed = |e: std::io::Error| Unavailable::Failed(format!("{name}: {e}"));
        let log = std::fs::File::options().create(true).append(true).open(self.log(part)).map_err(failed)?;
        let mut command = Command::new(self.binaries.join(name));
        command.args(self.arguments(part)).current_dir(self.folder.path()).stdin(Stdio::null());
        command.env_clear().stdout(log.try_clone().map_err(failed)?).stderr(log);
        let child = command.spawn().map_err(failed)?;
        self.watchdog.watch(child.id()).map_err(failed)?;
        self.children.insert(part, child);
        match part {
            Part::Etcd => self.until(part, |s| get(s.etcd[0], "/health").is_some_and(|a| a.contains("true"))),
            Part::ApiServer => self.until(part, |s| s.readable()),
            Part::Scheduler | Part::ControllerManager => Ok(()),
        }
    }

    /// Kills a program at once.
    pub fn kill_part(&mut self, part: Part) {
        if let Some(mut child) = self.children.remove(&part) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The log of a program.
    pub fn log(&self, part: Part) -> PathBuf {
        self.at(&format!("{}.log", part.program()))
    }

    fn until(&mut self, part: Part, ready: impl Fn(&ControlPlane) -> bool) -> Result<(), Unavailable> {
        let begin = Instant::now();
        loop {
            if ready(self) {
                return Ok(());
            }
            let ended = self.children.get_mut(&part).is_some_and(|c| matches!(c.try_wait(), Ok(Some(_))));
            if ended || begin.elapsed() > READY {
                let log = std::fs::read_to_string(self.log(part)).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
                let how = if ended { "ended" } else { "does not answer" };
                return Err(Unavailable::Failed(format!("{} {how}:\n{tail}", part.program())));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// True if the API is ready. The question is asked by a client of its own runtime, because the caller may be in none.
    fn readable(&self) -> bool {
        if !self.certificate().is_file() {
            return false;
        }
        let config = self.config_as("admin", self.api);
        std::thread::scope(|scope| {
            let ask = scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
                runtime.block_on(async {
                    let client = Client::try_from(config.await).ok()?;
                    let request = http_get("/readyz");
                    let answer = tokio::time::timeout(Duration::from_secs(5), client.request_text(request)).await;
                    answer.ok()?.ok().filter(|text| text == "ok")
                })
            });
            ask.join().ok().flatten().is_some()
        })
    }

    /// A configuration of a client for a user of [`Options::users`] or `admin`, on another port such as that of a [`crate::Proxy`].
    ///
    /// # Panics
    /// The user is unknown.
    pub fn config_as(&self, user: &str, port: u16) -> impl Future<Output = Config> + Send + use<> {
        let token = self.token(user).unwrap_or_else(|| panic!("no user `{user}`")).to_owned();
        let certificate = self.certificate();
        let named = |config: &mut Kubeconfig| {
            config.clusters = vec![NamedCluster {
                name: "lab".into(),
                cluster: Some(Cluster {
                    server: Some(format!("https://127.0.0.1:{port}")),
                    certificate_authority: Some(certificate.display().to_string()),
                    ..Cluster::default()
                }),
                ..NamedCluster::default()
            }];
            config.auth_infos = vec![NamedAuthInfo {
                name: "user".into(),
                auth_info: Some(AuthInfo { token: Some(token.into()), ..AuthInfo::default() }),
                ..NamedAuthInfo::default()
            }];
            config.contexts = vec![NamedContext {
                name: "lab".into(),
                context: Some(Context { cluster: "lab".into(), user: Some("user".into()), ..Context::default() }),
                ..NamedContext::default()
            }];
            config.current_context = Some("lab".into());
        };
        let mut config = Kubeconfig::default();
        named(&mut config);
        async move {
            let options = KubeConfigOptions::default();
            Config::from_custom_kubeconfig(config, &options).await.unwrap_or_else(|e| panic!("configuration: {e}"))
        }
    }

    /// The administrator's client. Call it in a tokio runtime.
    ///
    /// # Panics
    /// The configuration is refused.
    pub async fn client(&self) -> Client {
        self.client_as("admin").await
    }

    /// The client of a user of [`Options::users`].
    ///
    /// # Panics
    /// The user is unknown.
    pub async fn client_as(&self, user: &str) -> Client {
        Client::try_from(self.config_as(user, self.api).await).unwrap_or_else(|e| panic!("client: {e}"))
    }

    fn arguments(&self, part: Part) -> Vec<String> {
        let path = |p: PathBuf| p.display().to_string();
        let [client, peer] = self.etcd.map(|port| format!("http://127.0.0.1:{port}"));
        let mut arguments: Vec<String> = match part {
            Part::Etcd => vec![
                format!("--data-dir={}", path(self.at("etcd"))),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=default={peer}"),
                "--unsafe-no-fsync".into(), // no kill of a process loses a write; only a crash of the machine does
            ],
            Part::ApiServer => vec![
                format!("--etcd-servers={client}"),
                format!("--cert-dir={}", path(self.at("certificates"))),
                "--bind-address=127.0.0.1".into(),
                "--advertise-address=127.0.0.1".into(),
                format!("--secure-port={}", self.api),
                "--service-cluster-ip-range=10.96.0.0/16".into(),
                "--service-account-issuer=https://kubernetes.default.svc".into(),
                format!("--service-account-key-file={}", path(self.at("accounts.pub"))),
                format!("--service-account-signing-key-file={}", path(self.at("accounts.key"))),
                format!("--token-auth-file={}", path(self.at("tokens.csv"))),
                "--authorization-mode=RBAC".into(),
                // No controller makes service accounts here, and no kubelet removes the taints of new nodes.
                "--disable-admission-plugins=ServiceAccount,DefaultTolerationSeconds,TaintNodesByCondition".into(),
                "--endpoint-reconciler-type=none".into(),
            ],
            Part::Scheduler => {
                vec![format!("--config={}", path(self.at("scheduler.json"))), "--secure-port=0".into()]
            }
            Part::ControllerManager => vec![
                format!("--kubeconfig={}", path(self.kubeconfig())),
                format!("--controllers={}", self.options.controllers.join(",")),
                "--leader-elect=false".into(),
                "--secure-port=0".into(),
                "--kube-api-qps=500".into(),
                "--kube-api-burst=1000".into(),
                "--use-service-account-credentials=false".into(),
            ],
        };
        match part {
            Part::ApiServer => arguments.extend(self.options.api_server.iter().cloned()),
            Part::Scheduler => arguments.extend(self.options.scheduler.iter().cloned()),
            Part::Etcd | Part::ControllerManager => {}
        }
        arguments
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for part in Part::ALL.into_iter().rev() {
            self.kill_part(part);
        }
    }
}

/// Three free ports of loopback. Another process may take one before it is used; the start then fails with the program's own message.
fn free_ports() -> std::io::Result<[u16; 3]> {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0"));
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(listeners) {
        *port = listener?.local_addr()?.port();
    }
    Ok(ports)
}

/// What stands before the point of a P-256 key in its SubjectPublicKeyInfo (RFC 5480).
const P256_PUBLIC_KEY: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Bytes as PEM.
fn pem(kind: &str, bytes: &[u8]) -> String {
    let mut text = format!("-----BEGIN {kind}-----\n");
    for line in STANDARD.encode(bytes).as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text + &format!("-----END {kind}-----\n")
}

/// 32 hexadecimal digits.
fn secret() -> String {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).unwrap_or_else(|_| panic!("no random numbers"));
    bytes.iter().fold(String::new(), |mut text, b| {
        let _ = write!(text, "{b:02x}");
        text
    })
}

fn http_get(path: &str) -> http::Request<Vec<u8>> {
    http::Request::get(path).body(Vec::new()).unwrap_or_default()
}

/// The answer to a plain GET on loopback; none if there is none within a second.
fn get(port: u16, path: &str) -> Option<String> {
    use std::io::{Read, Write};
    let mut to = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    to.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    write!(to, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    to.take(1 << 16).read_to_string(&mut answer).ok()?;
    Some(answer)
}
