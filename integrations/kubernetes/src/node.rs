//! May a pod run on a node, and how much room is there? The same rules as the stock scheduler's filters for taints, selectors, required node affinity and
//! resources. The scheduler checks everything again; these rules keep linkwise from choosing a node that it would refuse.

use crate::quantity::milli;
use k8s_openapi::api::core::v1::{Container, Node, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration};
use std::collections::BTreeMap;

/// Amounts of resources, in thousandths.
pub type Amounts = BTreeMap<String, i128>;

/// Why a pod may not run on a node; none: it may. Room is not looked at. O(terms + taints).
pub fn refuses(node: &Node, pod: &Pod) -> Option<String> {
    let spec = node.spec.as_ref();
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
    if node.metadata.deletion_timestamp.is_some() {
        return Some("is being deleted".into());
    }
    let cordon =
        Taint { key: "node.kubernetes.io/unschedulable".into(), effect: "NoSchedule".into(), ..Taint::default() };
    if spec.and_then(|s| s.unschedulable) == Some(true) && !tolerations.iter().any(|t| tolerates(t, &cordon)) {
        return Some("is cordoned".into());
    }
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    if conditions.iter().any(|c| c.type_ == "Ready" && c.status != "True") {
        return Some("is not ready".into());
    }
    let taints = spec.and_then(|s| s.taints.as_deref()).unwrap_or_default();
    let hard = taints.iter().filter(|t| t.effect != "PreferNoSchedule");
    if let Some(taint) = hard.into_iter().find(|taint| !tolerations.iter().any(|t| tolerates(t, taint))) {
        return Some(format!("has the taint {}:{}", taint.key, taint.effect));
    }
    let pod = pod.spec.as_ref()?;
    let label = |key: &str| node.metadata.labels.as_ref()?.get(key).map(String::as_str);
    if let Some((key, value)) = pod.node_selector.iter().flatten().find(|(k, v)| label(k) != Some(v.as_str())) {
        return Some(format!("lacks the label {key}={value}"));
    }
    let required = pod
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    if required.is_some_and(|r| !r.node_selector_terms.iter().any(|t| term_matches(t, node))) {
        return Some("does not match the pod's node affinity".into());
    }
    None
}

/// True if two pods ask the same of nodes; their requests are not looked at.
pub fn is_like(a: &Pod, b: &Pod) -> bool {
    fn wishes(p: &Pod) -> impl PartialEq {
        let spec = p.spec.as_ref();
        let affinity = spec.and_then(|s| s.affinity.as_ref()?.node_affinity.as_ref());
        let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        (spec.and_then(|s| s.node_selector.as_ref()), required, spec.and_then(|s| s.tolerations.as_ref()))
    }
    wishes(a) == wishes(b)
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let effect = toleration.effect.as_deref().unwrap_or("");
    let key = toleration.key.as_deref().unwrap_or("");
    let value = toleration.value.as_deref().unwrap_or("");
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && (key == taint.key || (key.is_empty() && exists))
        && (exists || value == taint.value.as_deref().unwrap_or(""))
}

/// A term without requirements matches nothing.
fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let label = |key: &str| node.metadata.labels.as_ref()?.get(key).map(String::as_str);
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let name = node.metadata.name.as_deref();
    let field = |f: &NodeSelectorRequirement| f.key == "metadata.name" && holds(f, name);
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|e| holds(e, label(&e.key)))
        && fields.iter().all(field)
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let named = value.is_some_and(|v| values.iter().any(|w| w == v));
    let number = |text: &str| text.parse::<i64>().ok();
    let than = || Some((number(value?)?, number(values.first()?)?));
    match requirement.operator.as_str() {
        "In" => named,
        "NotIn" => !named,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => than().is_some_and(|(is, than)| is > than),
        "Lt" => than().is_some_and(|(is, than)| is < than),
        _ => false,
    }
}

/// What a pod requests: the larger of its containers together and of each init container with the sidecars before it, plus the overhead; and one pod.
pub fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = pod.spec.as_ref() else { return Amounts::new() };
    let of = |c: &Container| -> Amounts {
        let list = c.resources.iter().flat_map(|r| r.requests.iter().flatten());
        list.map(|(name, q)| (name.clone(), milli(&q.0).unwrap_or(0))).collect()
    };
    let mut sum = Amounts::new();
    let mut most = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let own = of(container);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut sum, &own);
            largest(&mut most, &sum);
        } else {
            let mut with = sum.clone();
            add(&mut with, &own);
            largest(&mut most, &with);
        }
    }
    spec.containers.iter().for_each(|c| add(&mut sum, &of(c)));
    largest(&mut sum, &most);
    let overhead = spec.overhead.iter().flatten().map(|(name, q)| (name.clone(), milli(&q.0).unwrap_or(0))).collect();
    add(&mut sum, &overhead);
    add(&mut sum, &Amounts::from([("pods".to_owned(), 1000)]));
    sum
}

/// Adds amounts.
pub fn add(to: &mut Amounts, more: &Amounts) {
    for (name, n) in more {
        *to.entry(name.clone()).or_default() += n;
    }
}

fn largest(of: &mut Amounts, and: &Amounts) {
    for (name, n) in and {
        let now = of.entry(name.clone()).or_default();
        *now = (*now).max(*n);
    }
}

/// What a node can give.
pub fn allocatable(node: &Node) -> Amounts {
    let list = node.status.iter().flat_map(|s| s.allocatable.iter().flatten());
    list.map(|(name, q)| (name.clone(), milli(&q.0).unwrap_or(0))).collect()
}

/// The first resource of which a node has too little, with what is free and what is asked, in thousandths; none: it fits.
pub fn lacks(allocatable: &Amounts, used: &Amounts, asked: &Amounts) -> Option<String> {
    asked.iter().filter(|(_, n)| **n > 0).find_map(|(name, n)| {
        let free = allocatable.get(name).copied().unwrap_or(0) - used.get(name).copied().unwrap_or(0);
        (free < *n).then(|| name.clone())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(spec: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n0", "labels": {"rack": "r1", "gen": "9"}}, "spec": spec,
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
        .unwrap()
    }

    fn pod(spec: Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = spec.get("containers").cloned().unwrap_or(json!([]));
        serde_json::from_value(json!({"metadata": {}, "spec": spec})).unwrap()
    }

    fn affinity(terms: Value) -> Pod {
        pod(
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}),
        )
    }

    #[test]
    fn taints_and_cordons_refuse_all_pods_but_those_that_tolerate_them() {
        let plain = pod(json!({}));
        let tainted = node(json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}));
        assert_eq!(refuses(&tainted, &plain).unwrap(), "has the taint gpu:NoSchedule");
        for (toleration, is) in [
            (json!({"key": "gpu", "value": "yes"}), true),
            (json!({"key": "gpu", "value": "no"}), false),
            (json!({"key": "gpu", "operator": "Exists"}), true),
            (json!({"operator": "Exists"}), true),
            (json!({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}), false),
        ] {
            let tolerant = pod(json!({"tolerations": [toleration]}));
            assert_eq!(refuses(&tainted, &tolerant).is_none(), is, "{tolerant:?}");
        }
        assert_eq!(refuses(&node(json!({"unschedulable": true})), &plain).unwrap(), "is cordoned");
        // The cluster autoscaler's mark of a node that it removes; that of a candidate is soft.
        let leaving =
            node(json!({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}]}));
        assert!(refuses(&leaving, &plain).is_some());
        let soft = node(json!({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}));
        assert_eq!(refuses(&soft, &plain), None);
    }

    #[test]
    fn selectors_and_required_affinity_are_obeyed() {
        let n = node(json!({}));
        assert_eq!(refuses(&n, &pod(json!({"nodeSelector": {"rack": "r1"}}))), None);
        assert_eq!(refuses(&n, &pod(json!({"nodeSelector": {"rack": "r2"}}))).unwrap(), "lacks the label rack=r2");
        for (terms, is) in [
            (json!([{"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1", "r2"]}]}]), true),
            (json!([{"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["r1"]}]}]), false),
            (json!([{"matchExpressions": [{"key": "other", "operator": "NotIn", "values": ["r1"]}]}]), true),
            (json!([{"matchExpressions": [{"key": "gen", "operator": "Gt", "values": ["8"]}]}]), true),
            (json!([{"matchExpressions": [{"key": "gen", "operator": "Lt", "values": ["9"]}]}]), false),
            (
                json!([{"matchExpressions": [{"key": "other", "operator": "Exists"}]}, {"matchFields":
                [{"key": "metadata.name", "operator": "In", "values": ["n0"]}]}]),
                true,
            ),
            (json!([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n0"]}]}]), false),
            (json!([{}]), false),
        ] {
            assert_eq!(refuses(&n, &affinity(terms.clone())).is_none(), is, "{terms}");
        }
    }

    #[test]
    fn requests_are_those_of_containers_init_containers_sidecars_and_overhead() {
        let cpu = |c: &str| json!({"name": "c", "resources": {"requests": {"cpu": c}}});
        let mut sidecar = cpu("1");
        sidecar["restartPolicy"] = json!("Always");
        let asked =
            requests(&pod(json!({"containers": [cpu("2"), cpu("500m")], "initContainers": [sidecar, cpu("4")],
            "overhead": {"cpu": "100m"}})));
        assert_eq!(asked["cpu"], 5100); // the init container with the sidecar, and the overhead
        assert_eq!(asked["pods"], 1000);
        let has = Amounts::from([("cpu".to_owned(), 8000), ("pods".to_owned(), 2000)]);
        assert_eq!(lacks(&has, &Amounts::new(), &asked), None);
        assert_eq!(lacks(&has, &Amounts::from([("cpu".to_owned(), 3000)]), &asked).unwrap(), "cpu");
        assert_eq!(lacks(&has, &Amounts::from([("pods".to_owned(), 2000)]), &asked).unwrap(), "pods");
    }
}
