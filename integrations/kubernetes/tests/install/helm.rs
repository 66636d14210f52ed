//! Helm, and what it renders.

use kube::api::{Api, DynamicObject, PostParams};
use kube::core::{GroupVersionKind, discovery::Scope};
use kube::discovery::Discovery;
use kube::{Client, Error, ResourceExt};
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The namespace and the name of the release.
pub const RELEASE: &str = "linkwise";

/// The newest Helm that `scripts/build-helm.sh` built.
pub fn program() -> Option<PathBuf> {
    let entries = std::fs::read_dir(lab_kubernetes::folder()).ok()?;
    let name = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("helm-3"));
    let mut found: Vec<PathBuf> = entries.filter_map(Result::ok).map(|e| e.path()).filter(name).collect();
    found.sort();
    found.pop()
}

/// The chart.
pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("chart")
}

/// Helm on a control plane.
pub struct Helm {
    pub program: PathBuf,
    pub kubeconfig: Option<PathBuf>,
    pub home: tempfile::TempDir,
}

impl Helm {
    /// Runs Helm; standard output, or standard error if it fails.
    pub fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null()).env_clear().env("HOME", self.home.path());
        if let Some(k) = &self.kubeconfig {
            command.env("KUBECONFIG", k);
        }
        let output = command.output().map_err(|e| e.to_string())?;
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Renders the chart with values.
    pub fn template(&self, release: &str, values: &[&str]) -> Result<Vec<Value>, String> {
        let chart = chart().display().to_string();
        let mut arguments = vec!["template", RELEASE, &chart, "-n", RELEASE, "--kube-version", release];
        values.iter().for_each(|v| arguments.extend(["--set", v]));
        documents(&self.run(&arguments)?)
    }
}

/// The documents of a YAML stream.
pub fn documents(text: &str) -> Result<Vec<Value>, String> {
    let each = text.split("\n---").map(|d| d.trim_start_matches("---"));
    let some = each.filter(|d| d.lines().any(|l| !l.trim().is_empty() && !l.trim_start().starts_with('#')));
    some.map(|d| serde_saphyr::from_str::<Value>(d).map_err(|e| format!("{e}\n{d}"))).collect()
}

/// Finds the resources of kinds.
pub struct Kinds(Discovery);

impl Kinds {
    pub async fn of(client: &Client) -> Kinds {
        Kinds(Discovery::new(client.clone()).run().await.unwrap())
    }

    /// Creates an object; `dry`: the API server checks and admits, and stores nothing.
    pub async fn create(&self, client: &Client, object: &Value, dry: bool) -> Result<DynamicObject, Error> {
        let object = DynamicObject::deserialize(object).unwrap();
        let types = object.types.clone().unwrap();
        let gvk = GroupVersionKind::try_from(&types).unwrap();
        let (resource, can) = self.0.resolve_gvk(&gvk).unwrap_or_else(|| panic!("no kind {gvk:?}"));
        let api: Api<DynamicObject> = match can.scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => {
                Api::namespaced_with(client.clone(), &object.namespace().unwrap_or_else(|| RELEASE.into()), &resource)
            }
        };
        api.create(&PostParams { dry_run: dry, field_manager: Some("test".into()) }, &object).await
    }

    /// Group, resource and whether namespaced, of all resources and subresources.
    pub fn all(&self) -> Vec<(String, String, bool)> {
        let mut out = Vec::new();
        for group in self.0.groups() {
            let versions: Vec<&str> = group.versions().collect();
            for (resource, can) in versions.iter().flat_map(|v| group.versioned_resources(v)) {
                let namespaced = can.scope == Scope::Namespaced;
                out.push((resource.group.clone(), resource.plural.clone(), namespaced));
                for (sub, _) in &can.subresources {
                    let name = sub.plural.rsplit('/').next().unwrap_or_default();
                    out.push((resource.group.clone(), format!("{}/{name}", resource.plural), namespaced));
                }
            }
        }
        out.sort();
        out.dedup();
        out
    }
}
