//! What the chart's accounts may do: every verb on every resource is asked, and what must be refused is tried.

use crate::helm::Kinds;
use futures_util::{StreamExt, stream};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::json;
use std::collections::BTreeSet;

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
/// Verbs that lift rights, with what they are asked for.
const LIFTING: [(&str, &str, &str); 5] = [
    ("bind", "rbac.authorization.k8s.io", "clusterroles"),
    ("escalate", "rbac.authorization.k8s.io", "clusterroles"),
    ("impersonate", "", "users"),
    ("impersonate", "", "serviceaccounts"),
    ("approve", "certificates.k8s.io", "signers"),
];
/// What every account may ask about itself.
const OF_ALL: [&str; 3] = [
    "create authentication.k8s.io/selfsubjectreviews",
    "create authorization.k8s.io/selfsubjectaccessreviews",
    "create authorization.k8s.io/selfsubjectrulesreviews",
];

/// `verbs group/resource` that a user has in a namespace, sorted.
pub async fn of(client: &Client, kinds: &Kinds, user: &str, namespace: &str) -> BTreeSet<String> {
    let mut resources = kinds.all();
    // Synthetic ones, which no discovery shows.
    for name in ["resourceclaims/binding", "resourceclaims/driver"] {
        resources.push(("resource.k8s.io".into(), name.into(), true));
    }
    let asked = resources.iter().flat_map(|(g, r, namespaced)| {
        VERBS.iter().map(move |v| (g.clone(), r.clone(), (*v).to_owned(), *namespaced, String::new()))
    });
    let extra = ["arbitrary-node:update", "arbitrary-node:patch", "associated-node:update"].map(|v| {
        (
            "resource.k8s.io".to_owned(),
            "resourceclaims/driver".to_owned(),
            v.to_owned(),
            true,
            "gpu.nvidia.com".to_owned(),
        )
    });
    let lifting = LIFTING.map(|(v, g, r)| (g.to_owned(), r.to_owned(), v.to_owned(), false, String::new()));
    let review = |(group, resource, verb, namespaced, name): (String, String, String, bool, String)| async move {
        let (plain, sub) = resource.split_once('/').map_or((resource.as_str(), None), |(r, s)| (r, Some(s)));
        // For synthetic rights of the whole cluster the API server asks without a namespace.
        let namespace = if namespaced && sub != Some("binding") { namespace } else { "" };
        let body: SubjectAccessReview = serde_json::from_value(json!({"metadata": {}, "spec": {"user": user,
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {"group": group, "resource": plain, "subresource": sub, "verb": verb, "namespace": namespace,
                "name": name}}}))
        .unwrap();
        let api: Api<SubjectAccessReview> = Api::all(client.clone());
        let answer = api.create(&PostParams::default(), &body).await.unwrap();
        let allowed = answer.status.is_some_and(|s| s.allowed);
        allowed
            .then(|| format!("{verb} {}{resource}", if group.is_empty() { String::new() } else { format!("{group}/") }))
    };
    let all: Vec<_> = asked.chain(extra).chain(lifting).collect();
    let mut rights: BTreeSet<String> =
        stream::iter(all.into_iter().map(review)).buffer_unordered(32).filter_map(|r| async move { r }).collect().await;
    for known in OF_ALL {
        rights.remove(known);
    }
    rights
}

/// The same as lines: `resource: verbs`.
pub fn lines(rights: &BTreeSet<String>) -> Vec<String> {
    let mut by: std::collections::BTreeMap<&str, Vec<&str>> = std::collections::BTreeMap::new();
    for right in rights {
        let (verb, resource) = right.split_once(' ').unwrap();
        by.entry(resource).or_default().push(verb);
    }
    by.into_iter().map(|(r, v)| format!("{r}: {}", v.join(" "))).collect()
}

fn refused<T: std::fmt::Debug>(what: &str, got: Result<T, Error>) {
    match got {
        Err(Error::Api(s)) if s.code == 403 => {}
        other => panic!("{what}: {other:?} instead of 403"),
    }
}

/// Tries what must be refused to the controller, with real requests.
pub async fn tries(controller: &Client, collector: &Client) {
    let (post, patch) = (PostParams::default(), PatchParams::default());
    let in_a = |c: &Client| -> Api<Pod> { Api::namespaced(c.clone(), "team-a") };
    let secrets: Api<Secret> = Api::all(controller.clone());
    refused("secrets of all namespaces", secrets.list(&ListParams::default()).await);
    let own: Api<Secret> = Api::namespaced(controller.clone(), "linkwise");
    refused("secrets of its own namespace", own.list(&ListParams::default()).await);
    let pod: Pod = serde_json::from_value(
        json!({"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}),
    )
    .unwrap();
    refused("make a pod", in_a(controller).create(&post, &pod).await);
    refused("delete a pod", in_a(controller).delete("x", &DeleteParams::default()).await);
    let elsewhere: Api<Pod> = Api::namespaced(controller.clone(), "team-b");
    let note = Patch::Merge(json!({"metadata": {"annotations": {"linkwise.dev/reason": "x"}}}));
    refused("patch a pod of a namespace that is not named", elsewhere.patch("x", &patch, &note).await);
    let nodes: Api<Node> = Api::all(controller.clone());
    refused("taint a node", nodes.patch("n0", &patch, &Patch::Merge(json!({"spec": {"unschedulable": true}}))).await);
    let claims: Api<ResourceClaim> = Api::namespaced(controller.clone(), "team-b");
    refused(
        "allocate elsewhere",
        claims.patch_status("x", &patch, &Patch::Merge(json!({"status": {"allocation": null}}))).await,
    );
    let claims: Api<ResourceClaim> = Api::namespaced(controller.clone(), "team-a");
    refused("delete a claim", claims.delete("x", &DeleteParams::default()).await);
    refused("a collector reads pods", in_a(collector).list(&ListParams::default()).await);
    let claims: Api<ResourceClaim> = Api::all(collector.clone());
    refused("a collector reads claims", claims.list(&ListParams::default()).await);
}
