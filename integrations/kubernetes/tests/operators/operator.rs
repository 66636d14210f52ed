//! Operators as processes: objects from the operator's chart, certificates for its webhooks, and the program.

use crate::common::{Lab, until};
use crate::helm::{Helm, Kinds, documents, program};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Error;
use kube::api::Api;
use kube::core::GroupVersionKind;
use kube::discovery::Discovery;
use lab_kubernetes::{DRIVER, Options};
use serde_json::{Value, json};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Kinds that need nodes with kubelets, or that only measure.
const LEFT_OUT: [&str; 5] = ["Deployment", "Service", "APIService", "FlowSchema", "PriorityLevelConfiguration"];
/// Names of the files of a certificate.
const FILES: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// An operator.
#[derive(Clone, Copy, Debug)]
pub struct Which {
    /// Its name, which is also that of the chart's release; the folder is `operators/NAME-VERSION`.
    pub name: &'static str,
    /// The service of its webhooks.
    pub service: &'static str,
    /// The secret in which it keeps a certificate that it makes itself; none: the test makes the certificate.
    pub secret: Option<&'static str>,
    /// More arguments.
    pub arguments: &'static [&'static str],
}

/// JobSet. Its own certificates would lie in a fixed folder outside of the test's.
pub const JOBSET: Which = Which { name: "jobset", service: "jobset-webhook-service", secret: None, arguments: &[] };
/// LeaderWorkerSet.
pub const LWS: Which =
    Which { name: "lws", service: "lws-webhook-service", secret: Some("lws-webhook-server-cert"), arguments: &[] };
/// Kueue, without the server of its extension API.
pub const KUEUE: Which = Which {
    name: "kueue",
    service: "kueue-webhook-service",
    secret: Some("kueue-webhook-server-cert"),
    arguments: &["--feature-gates=VisibilityOnDemand=false"],
};
/// Kueue whose quotas count the GPUs of claims.
pub const KUEUE_WITH_CLAIMS: Which =
    Which { arguments: &["--feature-gates=VisibilityOnDemand=false,DynamicResourceAllocation=true"], ..KUEUE };

/// A control plane with operators. The operators end first.
pub struct Site {
    _operators: Vec<Operator>,
    pub lab: Lab,
}

impl Site {
    /// None, after a SKIP line, if the control plane, Helm or an operator is not built.
    pub fn start(test: &str, which: &[Which]) -> Option<Site> {
        let missing = which.iter().find(|w| folder(w).is_none());
        if let Some(missing) = missing {
            println!("SKIP {test}: {} is not built: scripts/build-operators.sh builds it", missing.name);
            return None;
        }
        if program().is_none() {
            println!("SKIP {test}: Helm is not built: scripts/build-helm.sh builds it");
            return None;
        }
        let mut options = Options::default();
        options.controllers.push("statefulset-controller");
        let lab = Lab::with(test, 4, options)?;
        let operators = which.iter().map(|w| lab.runtime.block_on(Operator::start(&lab, *w))).collect();
        Some(Site { _operators: operators, lab })
    }
}

/// The newest release of an operator that is built.
fn folder(which: &Which) -> Option<PathBuf> {
    let entries = std::fs::read_dir(lab_kubernetes::folder().join("operators")).ok()?;
    let of = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&format!("{}-", which.name)));
    let mut found: Vec<PathBuf> = entries.filter_map(Result::ok).map(|e| e.path()).filter(of).collect();
    found.retain(|p| p.join("manager").is_file());
    found.sort();
    found.pop()
}

/// A running operator.
struct Operator(Child);

impl Operator {
    async fn start(lab: &Lab, which: Which) -> Operator {
        let built = folder(&which).unwrap();
        println!("{} runs", built.file_name().unwrap().to_string_lossy());
        let namespace = format!("{}-system", which.name);
        let own = lab.plane.folder().join(which.name);
        std::fs::create_dir_all(&own).unwrap();
        let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [webhooks, health] = ports.map(|l| l.local_addr().unwrap().port());
        let authority = which.secret.is_none().then(|| certificate(&own, &which, &namespace));
        let config = install(lab, &which, &built, &namespace, webhooks, authority.as_deref()).await;
        let config = configured(config, &which, &own, webhooks, health);
        std::fs::write(own.join("config.json"), config.to_string()).unwrap();
        let log = std::fs::File::create(own.join("log")).unwrap();
        let child = Command::new(built.join("manager"))
            .arg(format!("--config={}", own.join("config.json").display()))
            .args(which.arguments)
            .env_clear()
            .env("KUBECONFIG", lab.plane.kubeconfig())
            .current_dir(&own)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        lab.plane.end_too(child.id()).unwrap();
        let mut operator = Operator(child);
        if let Some(secret) = which.secret {
            operator.mount(lab, &namespace, secret, &own).await;
        }
        until(&format!("the webhooks of {} answer", which.name), || {
            operator.lives(&own);
            async { TcpStream::connect(("127.0.0.1", webhooks)).ok() }
        })
        .await;
        operator
    }

    /// What a kubelet does with the volume of a secret: its files, once the operator has made them.
    async fn mount(&mut self, lab: &Lab, namespace: &str, secret: &str, own: &Path) {
        let secrets: Api<Secret> = Api::namespaced(lab.client.clone(), namespace);
        let data = until(&format!("{secret} has a certificate"), || {
            self.lives(own);
            async {
                let data = secrets.get(secret).await.ok()?.data?;
                FILES.iter().all(|f| data.get(*f).is_some_and(|ByteString(b)| !b.is_empty())).then_some(data)
            }
        })
        .await;
        for file in FILES {
            std::fs::write(own.join(file), &data[file].0).unwrap();
        }
    }

    /// Panics with the end of its log if it has ended.
    fn lives(&mut self, own: &Path) {
        if let Ok(Some(status)) = self.0.try_wait() {
            let log = std::fs::read_to_string(own.join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            panic!("{} ended, {status}:\n{}", own.display(), lines[lines.len().saturating_sub(12)..].join("\n"));
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes an authority and a certificate for the service; the authority.
fn certificate(own: &Path, which: &Which, namespace: &str) -> Vec<u8> {
    let openssl = |arguments: &[&str]| {
        let done = Command::new("openssl").args(arguments).current_dir(own).output();
        let done = done.unwrap_or_else(|e| panic!("openssl: {e}: apt-get install openssl"));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    let host = format!("{}.{namespace}.svc", which.service);
    let new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    openssl(
        &[&["req", "-x509", "-days", "2", "-subj", "/CN=test", "-keyout", "ca.key", "-out", "ca.crt"][..], &new]
            .concat(),
    );
    openssl(&[&["req", "-subj", "/CN=webhooks", "-keyout", "tls.key", "-out", "tls.csr"][..], &new].concat());
    std::fs::write(own.join("names"), format!("subjectAltName=DNS:{host}")).unwrap();
    let sign = ["x509", "-req", "-days", "2", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"];
    openssl(&[&sign[..], &["-extfile", "names", "-out", "tls.crt"]].concat());
    std::fs::read(own.join("ca.crt")).unwrap()
}

/// Creates the objects of the operator's chart; the configuration that the chart has for the program.
async fn install(
    lab: &Lab,
    which: &Which,
    built: &Path,
    namespace: &str,
    webhooks: u16,
    authority: Option<&[u8]>,
) -> Value {
    let helm = Helm { program: program().unwrap(), kubeconfig: None, home: tempfile::tempdir().unwrap() };
    let chart = built.join("chart").display().to_string();
    let release = lab.plane.release();
    let arguments = ["template", which.name, &chart, "-n", namespace, "--kube-version", release, "--include-crds"];
    let mut objects = documents(&helm.run(&arguments).unwrap()).unwrap();
    objects.retain(|o| o.is_object() && LEFT_OUT.iter().all(|k| o["kind"] != *k));
    objects.insert(0, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
    // The API server asks the webhooks under the service's name and connects to loopback.
    let service = json!({"type": "ExternalName", "externalName": "localhost", "ports": [{"port": webhooks}]});
    let metadata = json!({"name": which.service, "namespace": namespace});
    objects.push(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service}));
    let (definitions, others): (Vec<Value>, Vec<Value>) =
        objects.into_iter().partition(|o| o["kind"] == "CustomResourceDefinition" || o["kind"] == "Namespace");
    let mut config = None;
    let new: Vec<GroupVersionKind> = definitions.iter().flat_map(served).collect();
    for (i, part) in [definitions, others].into_iter().enumerate() {
        // The resources of a new definition are found a moment after their group.
        until("all kinds are served", || async {
            let found = Discovery::new(lab.client.clone()).run().await.ok()?;
            (i == 0 || new.iter().all(|k| found.resolve_gvk(k).is_some())).then_some(())
        })
        .await;
        let kinds = Kinds::of(&lab.client).await;
        for mut object in part {
            let said = &object["data"]["controller_manager_config.yaml"];
            if let Some(text) = said.as_str() {
                config = Some(documents(text).unwrap().remove(0));
            }
            reached(&mut object, webhooks, authority);
            match kinds.create(&lab.client, &object, false).await {
                Ok(_) => {}
                Err(Error::Api(e)) if e.code == 409 => {}
                Err(e) => panic!("{}: {} {}: {e}", which.name, object["kind"], object["metadata"]["name"]),
            }
        }
    }
    config.expect("a configuration in the chart")
}

/// The kinds that a definition makes.
fn served(definition: &Value) -> Vec<GroupVersionKind> {
    let spec = &definition["spec"];
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let versions = spec["versions"].as_array().into_iter().flatten().filter(|v| v["served"] == true);
    versions
        .map(|v| GroupVersionKind::gvk(&text(&spec["group"]), &text(&v["name"]), &text(&spec["names"]["kind"])))
        .collect()
}

/// Sets port and authority wherever an object says how its webhooks are reached.
fn reached(object: &mut Value, webhooks: u16, authority: Option<&[u8]>) {
    match object {
        Value::Object(fields) => {
            if let Some(client) = fields.get_mut("clientConfig").filter(|c| c["service"].is_object()) {
                client["service"]["port"] = json!(webhooks);
                if let Some(authority) = authority {
                    client["caBundle"] = json!(ByteString(authority.to_vec()));
                }
            }
            fields.values_mut().for_each(|v| reached(v, webhooks, authority));
        }
        Value::Array(all) => all.iter_mut().for_each(|v| reached(v, webhooks, authority)),
        _ => {}
    }
}

/// The chart's configuration with ports and folders of the test.
fn configured(mut config: Value, which: &Which, own: &Path, webhooks: u16, health: u16) -> Value {
    config["webhook"] = json!({"port": webhooks, "certDir": own});
    config["metrics"] = json!({"bindAddress": "0"});
    config["health"]["healthProbeBindAddress"] = json!(format!("127.0.0.1:{health}"));
    config["leaderElection"] = json!({"leaderElect": false});
    if which.secret.is_none() {
        config["internalCertManagement"] = json!({"enable": false});
        config["metrics"]["certDir"] = json!(own);
    }
    if which.arguments == KUEUE_WITH_CLAIMS.arguments {
        let classes = json!([{"name": "nvidia.com/gpu", "deviceClassNames": [DRIVER]}]);
        config["resources"] = json!({"deviceClassMappings": classes});
    }
    config
}
