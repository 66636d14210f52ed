//! The chart on a real control plane: rendered, checked by the API server, installed, with the least rights; its policies; facts in and out.
//!
//! One control plane, one release, in the order of an installation. Needs the programs of `scripts/build-kubernetes.sh` and `scripts/build-helm.sh`;
//! without them the test says SKIP.

mod cluster;
mod helm;
mod policies;
mod rights;

use helm::{Helm, Kinds, chart, program};
use kube::api::{Api, ListParams, PostParams};
use lab_kubernetes::{ControlPlane, Options, Site, User, is_at_least, or_skip};
use linkwise_kubernetes::facts::resource::{GpuCluster, definitions, gpu_cluster};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const CONTROLLER: &str = "system:serviceaccount:linkwise:linkwise-controller";
const COLLECTOR: &str = "system:serviceaccount:linkwise:linkwise-collector";
const NAME: &str = "the_chart_installs_with_the_least_rights_and_its_policies_hold";

#[test]
fn the_charts_definitions_are_those_of_the_types() {
    let folder = chart().join("crds");
    for (d, name) in definitions().iter().zip(["gpuclusters.yaml", "hostfacts.yaml"]) {
        let text = format!(
            "# Made from the types by LINKWISE_CHART=update cargo test --workspace --test install definitions\n{}",
            serde_saphyr::to_string(d).unwrap()
        );
        let path = folder.join(name);
        if std::env::var("LINKWISE_CHART").as_deref() == Ok("update") {
            std::fs::write(&path, &text).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap_or_default() == text,
            "{name} differs: LINKWISE_CHART=update writes it"
        );
    }
}

#[test]
fn a_wrong_value_is_refused_by_name() {
    let Some(program) = program() else {
        println!("SKIP a_wrong_value_is_refused_by_name: no Helm: scripts/build-helm.sh builds it");
        return;
    };
    let helm = Helm { program, kubeconfig: None, home: tempfile::tempdir().unwrap() };
    for (value, word) in [
        ("mode=x", "/mode"),
        ("namespaces={Team}", "/namespaces/0"),
        ("taints.effect=NoExecute", "/taints/effect"),
        ("nmespaces={a}", "nmespaces"),
        ("namespaces={kube-system}", "/namespaces/0"),
        ("image.tag=a b", "/image/tag"),
        ("image.repository=a b", "/image/repository"),
        ("networkPolicy.apiServerCidrs={999.1.1.1/99}", "/networkPolicy/apiServerCidrs/0"),
        ("networkPolicy.apiServerCidrs={10.0.0.1/33}", "/networkPolicy/apiServerCidrs/0"),
        ("networkPolicy.apiServerCidrs={fd00::1::2/64}", "/networkPolicy/apiServerCidrs/0"),
        ("server.storage.className=A B", "/server/storage/className"),
        ("collector.runtimeClassName=A/B", "/collector/runtimeClassName"),
        ("controller.resources.limits.memory=1", "/controller/resources/limits/memory"),
        ("server.resources.limits.memory=1Mi", "/server/resources/limits/memory"),
        ("collector.resources.limits.cpu=many", "/collector/resources/limits/cpu"),
        ("controller.extraArgs={--lease-seconds=0}", "/controller/extraArgs/0"),
        ("controller.extraArgs={--lease-seconds}", "/controller/extraArgs/0"),
        ("controller.extraArgs={--start-deadline-seconds=86401}", "/controller/extraArgs/0"),
        ("controller.extraArgs={30}", "/controller/extraArgs/0"),
        ("server.url=http://user:pw@x", "/server/url"),
        ("controller.replicas=0", "/controller/replicas"),
    ] {
        let e = helm.template("1.36.3", &[value]).unwrap_err();
        assert!(e.contains(word), "{value}: {e}");
    }
    let good = [
        "image.repository=registry.example:5000/team/linkwise,image.tag=1.2.3_x",
        "networkPolicy.apiServerCidrs={10.0.0.0/8,192.168.255.1/32,fd00::/8,::1/128,2001:db8:0:1:2:3:4:5/64}",
        "server.storage.className=fast.example,collector.runtimeClassName=",
        "controller.resources.limits.memory=64Mi,server.resources.limits.memory=0.5Gi,collector.resources.limits.memory=134217728",
        "controller.extraArgs={--lease-seconds=3600,--pass-seconds=0,--preempt=false}",
        "server.url=https://linkwise.example:8443",
    ];
    for values in good {
        helm.template("1.36.3", &[values]).unwrap_or_else(|e| panic!("{values}: {e}"));
    }
    // 1.35 has no MutatingAdmissionPolicy by default: plain pods are left alone.
    let chart = chart().display().to_string();
    let older = ["template", "linkwise", &chart, "--kube-version", "1.35.0", "--set", "namespaces={team-a}"];
    assert!(!helm.run(&older).unwrap().contains("MutatingAdmissionPolicy"));
    assert!(helm.run(&["template", "linkwise", &chart, "--kube-version", "1.33.0"]).unwrap_err().contains("1.34"));
}

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect() }
}

#[test]
fn the_chart_installs_with_the_least_rights_and_its_policies_hold() {
    let Some(program) = program() else {
        println!("SKIP {NAME}: no Helm: scripts/build-helm.sh builds it");
        return;
    };
    let accounts = ["system:serviceaccounts", "system:serviceaccounts:linkwise"];
    let newest = Options::default();
    let gate = "--feature-gates=DRADeviceTaintRules=true".to_owned();
    let options = Options {
        api_server: if is_full(&newest.release) {
            vec![gate.clone(), "--runtime-config=resource.k8s.io/v1beta2=true".into()]
        } else {
            Vec::new()
        },
        scheduler: if is_full(&newest.release) { vec![gate] } else { Vec::new() },
        users: vec![
            user(CONTROLLER, &accounts),
            user(COLLECTOR, &accounts),
            user("slurm-bridge", &["system:masters"]),
            user("system:kube-scheduler", &["system:masters"]),
        ],
        ..newest
    };
    let Some(plane) = or_skip(NAME, ControlPlane::start(options)) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(all(&plane, program));
}

/// From 1.36 on pods are gated by a policy, and taints are an API of v1beta2.
fn is_full(release: &str) -> bool {
    is_at_least(release, 36)
}

async fn all(plane: &ControlPlane, program: std::path::PathBuf) {
    let begin = std::time::Instant::now();
    let full = is_full(plane.release());
    let said = |what: &str| println!("{:6.1} s  {what}", begin.elapsed().as_secs_f64());
    let client = plane.client().await;
    let helm = Helm { program, kubeconfig: Some(plane.kubeconfig()), home: tempfile::tempdir().unwrap() };
    let folder = tempfile::tempdir().unwrap();
    Site { nodes: 4, gpus: 8 }.create(&client).await.unwrap();
    // Pod Security: nothing but restricted pods in linkwise's namespace.
    policies::namespace(&client, "linkwise", json!({"pod-security.kubernetes.io/enforce": "restricted"})).await;
    policies::namespace(&client, "team-a", json!({"linkwise.dev/place": "true"})).await;
    policies::namespace(&client, "team-b", json!({})).await;
    policies::namespace(&client, "team-c", json!({"linkwise.dev/place": "true"})).await;
    said("control plane and site");

    let path = chart().display().to_string();
    let mut values = vec!["namespaces={team-a}"];
    if full {
        values.extend(["taints.enabled=true", "taints.effect=NoSchedule"]);
    }
    helm.run(&["lint", &path, "--strict"]).unwrap();
    let rendered = helm.template(plane.release(), &values).unwrap();
    let kinds = Kinds::of(&client).await;
    for object in &rendered {
        kinds
            .create(&client, object, true)
            .await
            .unwrap_or_else(|e| panic!("{} {}: {e}", object["kind"], object["metadata"]["name"]));
    }
    said(&format!("{} objects checked by the API server", rendered.len()));
    let mut install = vec!["install", "linkwise", &path, "-n", "linkwise"];
    values.iter().for_each(|v| install.extend(["--set", v]));
    helm.run(&install).unwrap();
    said("installed");
    // A second release would have a lease of its own, and give the same GPUs.
    let second = ["install", "second", &path, "-n", "team-b", "--set", "namespaces={team-b}"];
    let refused = helm.run(&second).unwrap_err();
    assert!(refused.contains("release linkwise in namespace linkwise places pods already"), "{refused}");
    pods_are_restricted(&client, &rendered).await;

    let kinds = Kinds::of(&client).await;
    let (controller, collector) = (plane.client_as(CONTROLLER).await, plane.client_as(COLLECTOR).await);
    let in_a = rights::of(&client, &kinds, CONTROLLER, "team-a").await;
    let in_b = rights::of(&client, &kinds, CONTROLLER, "team-b").await;
    let own = rights::of(&client, &kinds, CONTROLLER, "linkwise").await;
    let of_collector = rights::of(&client, &kinds, COLLECTOR, "linkwise").await;
    let less = |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<BTreeSet<_>>();
    let told = [
        ("everywhere", in_b.clone()),
        ("in named namespaces", less(&in_a, &in_b)),
        ("in its own namespace", less(&own, &in_b)),
        ("of the collector", of_collector),
    ];
    let told: Vec<String> =
        told.iter().map(|(what, r)| format!("{what}\n  {}", rights::lines(r).join("\n  "))).collect();
    // Older releases lack some of the resources.
    if full {
        insta::assert_snapshot!("rights", told.join("\n"));
    }
    rights::tries(&controller, &collector).await;
    said("rights");

    if full {
        policies::gate(&client).await;
        said("gate");
    }
    let (foreign, scheduler) = (plane.client_as("slurm-bridge").await, plane.client_as("system:kube-scheduler").await);
    policies::guard(&client, &controller, &foreign, &scheduler).await;
    policies::place(&client, &controller).await;
    said("guard");
    policies::facts(&client).await;
    said("facts of one's own node");
    cluster::object(&client, &controller, folder.path()).await;
    said("the cluster as an object");
    cluster::alarm(&client, &controller, folder.path()).await;
    cluster::explanation(&client, &controller, &collector).await;
    said("alarm and explanation");
    if full {
        cluster::taints(&client, &controller, folder.path()).await;
        said("taints");
    }

    helm.run(&["upgrade", "linkwise", &path, "-n", "linkwise", "--set", "namespaces={team-a}", "--set", "mode=advise"])
        .unwrap();
    policies::advise(&client, &controller).await;
    said("advise");
    helm.run(&["uninstall", "linkwise", "-n", "linkwise"]).unwrap();
    let clusters: Api<GpuCluster> = Api::all_with(client.clone(), &gpu_cluster());
    assert_eq!(
        clusters.list(&ListParams::default()).await.unwrap().items.len(),
        1,
        "what was edited outlives the release"
    );
    let roles: Api<k8s_openapi::api::rbac::v1::ClusterRole> = Api::all(client.clone());
    let ours = ListParams::default().labels("app.kubernetes.io/name=linkwise");
    assert!(roles.list(&ours).await.unwrap().items.is_empty());
    said("upgraded and removed");
}

/// The pods of every workload are admitted where only restricted ones are, and another is refused there.
async fn pods_are_restricted(client: &kube::Client, rendered: &[Value]) {
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client.clone(), "linkwise");
    let classes: Api<k8s_openapi::api::node::v1::RuntimeClass> = Api::all(client.clone());
    let class = serde_json::from_value(json!({"metadata": {"name": "nvidia"}, "handler": "nvidia"})).unwrap();
    classes.create(&PostParams::default(), &class).await.unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let mut seen = 0;
    for workload in rendered.iter().filter(|o| o["spec"]["template"]["spec"]["containers"].is_array()) {
        let mut pod = workload["spec"]["template"].clone();
        pod["metadata"]["name"] = json!("p");
        // What the controller of stateful sets adds.
        for claim in workload["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
            let volume = json!({"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": "x"}});
            pod["spec"]["volumes"].as_array_mut().unwrap().push(volume);
        }
        pods.create(&dry, &serde_json::from_value(pod.clone()).unwrap())
            .await
            .unwrap_or_else(|e| panic!("{}: {e}", workload["kind"]));
        pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = json!(true);
        let refused = pods.create(&dry, &serde_json::from_value(pod).unwrap()).await;
        assert!(refused.is_err_and(|e| e.to_string().contains("PodSecurity")), "{}", workload["kind"]);
        seen += 1;
    }
    assert_eq!(seen, 2);
}
