//! The programs of facts: a pass every few seconds, and a node's collector.

use super::resource::{HostFacts, host_facts};
use super::sync::{Settings, Sync};
use super::taints::Effect;
use super::{collected, explain};
use crate::ask::Server;
use crate::names::{FIELD_MANAGER, REASON};
use crate::pulse::{Pulse, PulseArgs};
use crate::settings::ServerArgs;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Field manager of a collector.
const COLLECTOR: &str = "linkwise-collector";
/// Claims that one pass explains; the next pass goes on.
const EXPLAINED_MAX: usize = 200;

/// Settings of `facts`, as flags.
#[derive(Args, Clone, Debug)]
pub struct FactsArgs {
    /// linkwise's server.
    #[command(flatten)]
    pub server: ServerArgs,
    /// The file for probes.
    #[command(flatten)]
    pub pulse: PulseArgs,
    /// Driver of the GPUs
    #[arg(long, default_value = "gpu.nvidia.com", value_name = "DRIVER")]
    pub driver: String,
    /// Namespace whose claims are explained; may be repeated; none: all. An empty name is no namespace
    #[arg(long, value_name = "NAMESPACE")]
    pub in_namespace: Vec<String>,
    /// Name of the GpuCluster object
    #[arg(long, default_value = "linkwise", value_name = "NAME")]
    pub cluster: String,
    /// Cluster file to write for a server in the same pod
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Make DeviceTaintRules of suspected GPUs and NICs, with this effect
    #[arg(long, value_name = "EFFECT", value_enum)]
    pub taint: Option<Effect>,
    /// Least probability of a suspicion that makes a rule, 0.01 to 1
    #[arg(long, default_value_t = 0.5, value_name = "PROBABILITY", value_parser = probability)]
    pub taint_from: f64,
    /// Time between two passes, seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every_seconds: u64,
}

fn probability(text: &str) -> Result<f64, String> {
    let p = text.parse::<f64>().ok().filter(|p| (0.01..=1.0).contains(p));
    p.ok_or_else(|| "a probability of 0.01 to 1 was expected".into())
}

/// Settings of `collect`, as flags.
#[derive(Args, Clone, Debug)]
pub struct CollectArgs {
    /// Name of the node
    #[arg(long, value_name = "NAME")]
    pub node: String,
    /// The program nvidia-smi
    #[arg(long, default_value = "nvidia-smi", value_name = "PROGRAM")]
    pub nvidia_smi: PathBuf,
    /// Time between two collections, seconds; 0: once
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=604_800))]
    pub every_seconds: u64,
}

/// Passes for ever. A failed pass is told once and tried again.
///
/// # Errors
/// The address of the server cannot be used.
pub async fn facts(client: Client, a: FactsArgs, say: impl Fn(&str)) -> Result<(), String> {
    let pulse = Arc::new(Pulse::new(&a.pulse));
    let server = Server::new(&a.server)?.with_pulse(&pulse);
    let sync = Sync::new(
        client.clone(),
        Settings {
            cluster: a.cluster.clone(),
            driver: a.driver.clone(),
            file: a.file.clone(),
            taint: a.taint,
            taint_from: a.taint_from,
        },
    );
    let mut told = HashMap::new();
    let mut once = |about: &'static str, text: String| {
        if told.get(about) != Some(&text) {
            if !text.is_empty() {
                say(&text);
            }
            told.insert(about, text);
        }
    };
    let mut tick = tokio::time::interval(Duration::from_secs(a.every_seconds));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        pulse.beat();
        tick.tick().await;
        let suspects = server.suspects().await;
        once("server", suspects.as_ref().err().map(ToString::to_string).unwrap_or_default());
        let world = sync.world(suspects.ok()).await;
        let pass = match &world {
            Ok(world) => sync.write_of(world, Timestamp::now()).await.map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        if let Ok(d) = &pass {
            d.status.differences.iter().for_each(|line| say(line));
        }
        once("pass", pass.err().unwrap_or_default());
        pulse.beat();
        let Ok(world) = world else { continue };
        let explained = explain_claims(&client, &world.claims, &a.driver, &a.in_namespace, &pulse).await;
        once("explain", explained.err().map(|e| format!("the explanation of a claim: {e}")).unwrap_or_default());
    }
}

/// Writes the reason of a choice, which the controller leaves on the claim, beside its devices; the number of claims that were written. `namespaces`:
/// only claims of these; none: of all.
///
/// # Errors
/// The API does not answer, or refuses a claim: the others are written before. Claims that are gone are no error.
pub async fn explain_claims(
    client: &Client,
    claims: &[ResourceClaim],
    driver: &str,
    namespaces: &[String],
    pulse: &Pulse,
) -> Result<usize, kube::Error> {
    let apply = PatchParams { field_manager: Some(explain::MANAGER.into()), ..PatchParams::default() };
    let mut written = 0;
    let mut refused = None;
    for claim in claims {
        if !namespaces.is_empty() && !claim.namespace().is_some_and(|n| namespaces.contains(&n)) {
            continue;
        }
        let Some(reason) = claim.annotations().get(REASON).filter(|_| is_from_linkwise(claim)) else { continue };
        let Some(patch) = explain::patch(claim, driver, reason, &crate::say::now_seconds()) else { continue };
        let api: Api<ResourceClaim> = Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
        pulse.beat();
        match api.patch_status(&claim.name_any(), &apply, &Patch::Apply(&patch)).await {
            Ok(_) => written += 1,
            // Gone, or deallocated meanwhile: its devices are no longer its own.
            Err(kube::Error::Api(e)) if matches!(e.code, 404 | 409 | 422) => {}
            Err(e @ kube::Error::Api(_)) => drop(refused.get_or_insert(e)),
            Err(e) => return Err(e),
        }
        if written >= EXPLAINED_MAX {
            break;
        }
    }
    refused.map_or(Ok(written), Err)
}

/// True if the controller wrote the reason last. A user of the namespace can write the annotation, too, and would speak with linkwise's voice.
fn is_from_linkwise(claim: &ResourceClaim) -> bool {
    let owns = |fields: &serde_json::Value| !fields["f:metadata"]["f:annotations"][format!("f:{REASON}")].is_null();
    let mut owners = claim.managed_fields().iter().filter(|e| e.fields_v1.as_ref().is_some_and(|f| owns(&f.0)));
    owners.clone().next().is_some() && owners.all(|e| e.manager.as_deref() == Some(FIELD_MANAGER))
}

/// Collects this node's facts into its `HostFacts`, once or for ever.
///
/// # Errors
/// Once: nvidia-smi fails, or the API refuses. For ever: none; failures are told and tried again.
pub async fn collect(client: Client, a: CollectArgs, say: impl Fn(&str)) -> Result<(), String> {
    loop {
        let done = collect_once(&client, &a).await;
        if a.every_seconds == 0 {
            return done;
        }
        if let Err(e) = done {
            say(&e);
        }
        tokio::time::sleep(Duration::from_secs(a.every_seconds)).await;
    }
}

async fn collect_once(client: &Client, a: &CollectArgs) -> Result<(), String> {
    let program = a.nvidia_smi.clone();
    let collected = tokio::task::spawn_blocking(move || collected::collect(&program, Path::new("/sys"))).await;
    let facts = collected.map_err(|e| e.to_string())??;
    let api: Api<HostFacts> = Api::all_with(client.clone(), &host_facts());
    let apply = PatchParams { field_manager: Some(COLLECTOR.into()), force: true, ..PatchParams::default() };
    let object = HostFacts::new(&a.node, &host_facts(), facts);
    api.patch(&a.node, &apply, &Patch::Apply(&object)).await.map(drop).map_err(|e| format!("HostFacts {}: {e}", a.node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::sync::Mutex;

    fn claim(namespace: &str, name: &str, manager: &str) -> Value {
        let fields = json!({"f:metadata": {"f:annotations": {format!("f:{REASON}"): {}}}});
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {},
            "metadata": {"name": name, "namespace": namespace, "annotations": {REASON: "one GPU"},
                "managedFields": [{"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields}]},
            "status": {"allocation": {"devices": {"results": [
                {"request": "r", "driver": "gpu.nvidia.com", "pool": "n0", "device": "gpu-0"}]}}}})
    }

    #[test]
    fn a_refusal_ends_no_pass_and_only_reasons_of_the_controller_in_named_namespaces_are_told() {
        let claims = [
            claim("a", "denied", FIELD_MANAGER),
            claim("a", "ours", FIELD_MANAGER),
            claim("a", "forged", "kubectl-edit"),
            claim("b", "elsewhere", FIELD_MANAGER),
        ];
        let claims: Vec<ResourceClaim> = claims.map(|c| serde_json::from_value(c).unwrap()).into();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let paths = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            assert_ne!(request.method(), Method::GET, "the claims of the pass are used");
            let (code, body) = if path.contains("/denied/") {
                (
                    403,
                    json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"}),
                )
            } else {
                (200, claim("a", "ours", FIELD_MANAGER))
            };
            paths.lock().unwrap().push(path);
            let answer = Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap();
            async move { Ok::<_, std::convert::Infallible>(answer) }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let done = runtime.block_on(async {
            let client = Client::new(service, "default");
            explain_claims(&client, &claims, "gpu.nvidia.com", &["a".to_owned()], &Pulse::default()).await
        });
        assert!(matches!(&done, Err(kube::Error::Api(e)) if e.code == 403), "{done:?}");
        let asked = asked.lock().unwrap();
        assert_eq!(asked.len(), 2, "{asked:?}");
        assert!(
            asked[0].contains("/denied/") && asked[1].contains("/namespaces/a/resourceclaims/ours/status"),
            "{asked:?}"
        );
    }
}
