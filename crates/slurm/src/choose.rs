//! From a question of the plugin to an order.

use crate::message::{Ask, ToPlugin, nameable};
use crate::policy::{Decided, Policy};
use engine::{ConstraintsIn, Engine, JobIn, PlaceAnswer, PlaceRequest};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use topology::{Allocation, Cluster, GpuMask, HostId, list, names};

/// An answer, and the note for the job's AdminComment.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The answer.
    pub answer: ToPlugin,
    /// With GPUs one JSON object, else the reason in words.
    pub note: String,
}

/// Slurm's node names and GRES indices on linkwise's cluster.
pub struct Nodes<'c> {
    cluster: &'c Cluster,
    by_name: HashMap<&'c str, HostId>,
}

impl<'c> Nodes<'c> {
    /// The names of a cluster. O(hosts).
    pub fn new(cluster: &'c Cluster) -> Nodes<'c> {
        let by_name = cluster.host_ids().map(|h| (names::slurm::node_name(cluster.host(h)), h)).collect();
        Nodes { cluster, by_name }
    }

    /// The GPUs of the question that the cluster has. O(GPUs).
    pub fn free(&self, ask: &Ask) -> Allocation {
        let part = |(name, indices): &(String, Vec<u8>)| {
            let id = *self.by_name.get(name.as_str())?;
            let (host, all) = (self.cluster.host(id), self.cluster.type_of(id).all_gpus());
            let of = |minor: &u8| match host.gpu_minors.as_slice() {
                [] => nameable(*minor).then_some(usize::from(*minor)),
                minors => minors.iter().position(|m| m == minor),
            };
            let mask = GpuMask::from_indices(indices.iter().filter_map(of));
            Some((id, GpuMask(mask.0 & all.0)))
        };
        Allocation::new(ask.free.iter().filter_map(part))
    }

    /// The nodes in the order of ranks, if it differs from the order in which Slurm numbers them: that of the cluster file.
    fn rank_order(&self, a: &PlaceAnswer) -> Option<String> {
        let by_host = |name: &str| self.cluster.host_ids().find(|h| self.cluster.host(*h).name == name);
        let mut ranks: Vec<HostId> = Vec::new();
        for g in a.rank_order.names() {
            let host = by_host(g.rsplit_once(':')?.0)?;
            if ranks.last() != Some(&host) {
                ranks.push(host);
            }
        }
        let slurms = a.gpus.allocation(self.cluster).parts().iter().map(|p| p.0).collect::<Vec<_>>();
        let name = |h: &HostId| names::slurm::node_name(self.cluster.host(*h));
        (ranks.len() == slurms.len() && ranks != slurms).then(|| ranks.iter().map(name).collect::<Vec<_>>().join(","))
    }

    /// Node names and GRES indices of an allocation. O(GPUs).
    pub fn order(&self, gpus: &Allocation) -> Vec<(String, Vec<u8>)> {
        let part = |&(id, mask): &(HostId, GpuMask)| {
            let host = self.cluster.host(id);
            let minor = |g: usize| host.gpu_minors.get(g).copied().unwrap_or(g as u8);
            let mut minors: Vec<u8> = mask.iter().map(minor).collect();
            minors.sort_unstable();
            (names::slurm::node_name(host).to_owned(), minors)
        };
        gpus.parts().iter().map(part).collect()
    }
}

/// What is known besides the question.
pub struct Known<'a> {
    /// The running jobs.
    pub jobs: &'a [JobIn],
    /// GPUs to leave out.
    pub suspected: &'a Allocation,
    /// The policy of the job.
    pub decided: &'a Decided,
}

/// Answers a question. O(search).
pub fn choose(engine: &Engine, ask: &Ask, known: &Known<'_>, now_unix_s: f64) -> Verdict {
    let Known { jobs, suspected, decided } = *known;
    if decided.policy == Policy::Off {
        return pass(match decided.from {
            "comment" => "linkwise=off",
            "qos" => "policy off of its QOS",
            _ => "policy off of the site",
        });
    }
    if ask.exclusive {
        return pass("--exclusive: whole nodes");
    }
    let nodes = Nodes::new(engine.cluster());
    let free = nodes.free(ask);
    let sound = without(&free, suspected);
    let must: HashSet<String> = match list::expand(&ask.must, topology::HOSTS_MAX) {
        _ if ask.must.is_empty() => HashSet::new(),
        Ok(names) => names.into_iter().collect(),
        Err(e) => return pass(&format!("the required nodes cannot be read: {e}")),
    };
    if let Some(name) = must.iter().find(|n| !nodes.by_name.contains_key(n.as_str())) {
        return pass(&format!("the cluster file has no node {name}"));
    }
    if free.gpu_count() < ask.gpus {
        return pass("the cluster file has too few of the free GPUs");
    }
    let mut why = String::from("too few free GPUs are sound");
    let tries =
        if sound.gpu_count() < ask.gpus { Vec::new() } else { requests(engine.cluster(), ask, &sound, &must, jobs) };
    for mut request in tries {
        request.slack = decided.policy.slack();
        match engine.place_request(&request, now_unix_s) {
            Ok(answer) => {
                let order = nodes.order(&answer.gpus.allocation(engine.cluster()));
                if fits(ask, &order, &must) {
                    let left_out = free.gpu_count() - sound.gpu_count();
                    return Verdict { note: note(&answer, decided, left_out, &nodes), answer: ToPlugin::Take(order) };
                }
                why = "the best choice has other nodes than the job asks for".into();
            }
            Err(e) if e.kind() == engine::ErrorKind::Impossible => why = e.to_string(),
            Err(e) => return pass(&e.to_string()),
        }
    }
    Verdict { answer: ToPlugin::Wait, note: short(&why) }
}

fn without(a: &Allocation, b: &Allocation) -> Allocation {
    let out: HashMap<HostId, GpuMask> = b.parts().iter().copied().collect();
    let keep = |&(h, m): &(HostId, GpuMask)| (h, GpuMask(m.0 & !out.get(&h).map_or(0, |o| o.0)));
    Allocation::new(a.parts().iter().map(keep))
}

fn pass(why: &str) -> Verdict {
    Verdict { answer: ToPlugin::Pass, note: short(why) }
}

/// The plugin writes the reason into a comment of its own.
fn short(why: &str) -> String {
    why.chars().take(80).collect()
}

/// Maximum length of the order of ranks in a note, bytes: the plugin cuts notes.
const ORDER_BYTES_MAX: usize = 200;

/// What the choice gains, as one short line.
fn note(a: &PlaceAnswer, decided: &Decided, left_out: usize, nodes: &Nodes<'_>) -> String {
    let mut v = json!({"linkwise": "took", "split": a.split});
    if ["comment", "qos"].contains(&decided.from) {
        v["policy"] = format!("{} ({})", decided.policy, decided.from).into();
    }
    if let Some(why) = &decided.ignored {
        v["ignored"] = why.as_str().into();
    }
    if left_out > 0 {
        v["suspected_gpus_left_out"] = left_out.into();
    }
    if let Some(order) = nodes.rank_order(a).filter(|o| o.len() <= ORDER_BYTES_MAX) {
        v["rank_order"] = order.into();
    }
    if a.gpus.gpu_count() > 1 {
        v["busbw_gb_per_s"] = a.predicted_busbw_gb_per_s.into();
        if let Some(p) = &a.packed {
            v["packed_gb_per_s"] = p.predicted_busbw_gb_per_s.into();
        }
        let gain = a.price.gained_busbw_gb_per_s;
        v["reason"] = if a.price.keeps_rule {
            "simple rule: no choice is better by more than its uncertainty".into()
        } else {
            format!("{gain:.1} GB/s more than the simple rule").into()
        };
    }
    v.to_string()
}

/// The engine's requests for a question, most wanted first. A later one is tried if an earlier one cannot be met, or is met with other
/// nodes than the job asks for.
fn requests(
    cluster: &Cluster,
    ask: &Ask,
    free: &Allocation,
    must: &HashSet<String>,
    jobs: &[JobIn],
) -> Vec<PlaceRequest> {
    let base = PlaceRequest {
        gpus: Some(ask.gpus as u64),
        free: Some(cluster.gpu_names(free)),
        jobs: jobs.to_vec(),
        ..PlaceRequest::default()
    };
    let hosts_max = if ask.tasks_set && ask.tasks > 0 { ask.nodes_max.min(ask.tasks) } else { ask.nodes_max };
    let mut constraints = ConstraintsIn {
        hosts_max: (hosts_max < cluster.hosts.len()).then_some(hosts_max as u64),
        ..ConstraintsIn::default()
    };
    if !must.is_empty() && must.len() >= ask.nodes_min {
        let named = |h: &&topology::Host| must.contains(names::slurm::node_name(h));
        constraints.only_hosts = Some(cluster.hosts.iter().filter(named).map(|h| h.name.clone()).collect());
    }
    if ask.tasks_per_node > 0 && ask.per_task > 0 {
        constraints.gpus_per_host_max = Some((ask.tasks_per_node * ask.per_task) as u64);
    }
    let with = |c: ConstraintsIn| PlaceRequest {
        constraints: Some(c).filter(|c| *c != ConstraintsIn::default()),
        ..base.clone()
    };
    let even = |n: usize| (n > 0 && ask.gpus.is_multiple_of(n)).then_some((ask.gpus / n) as u64);
    if ask.per_node > 0 {
        return vec![with(ConstraintsIn { per_host: Some(ask.per_node as u64), ..constraints })];
    }
    // As many tasks on every node, and so many GPUs per task: every node gives the same number of GPUs.
    let uniform = (ask.tasks_per_node > 0 && ask.per_task > 0).then_some((ask.tasks_per_node * ask.per_task) as u64);
    let uniform = uniform.filter(|n| (ask.gpus as u64).is_multiple_of(*n));
    let uniform = uniform.map(|n| with(ConstraintsIn { per_host: Some(n), ..constraints.clone() }));
    if ask.per_task > 1 && ask.tasks > 0 {
        let pods = vec![ask.per_task as u64; ask.tasks];
        return uniform.into_iter().chain([PlaceRequest { pods, ..with(constraints) }]).collect();
    }
    let fewest = ask.nodes_min.max(must.len()).max(1);
    let mut all: Vec<PlaceRequest> = uniform.into_iter().collect();
    if fewest == hosts_max || fewest > 1 {
        // Equal counts on so many nodes, else counts so small that no fewer nodes hold the job.
        if let Some(per_host) = even(fewest) {
            all.push(with(ConstraintsIn { per_host: Some(per_host), ..constraints.clone() }));
        }
        let most = ask.gpus.div_ceil(fewest) as u64;
        let most = constraints.gpus_per_host_max.map_or(most, |m| m.min(most));
        all.push(with(ConstraintsIn { uneven: Some(true), gpus_per_host_max: Some(most), ..constraints.clone() }));
    }
    all.push(with(constraints));
    all
}

/// True if the order has the nodes that the job asks for. Slurm checks it again.
fn fits(ask: &Ask, order: &[(String, Vec<u8>)], must: &HashSet<String>) -> bool {
    let within = (ask.nodes_min..=ask.nodes_max).contains(&order.len());
    let tasks = !ask.tasks_set || ask.tasks == 0 || order.len() <= ask.tasks;
    within && tasks && must.iter().all(|n| order.iter().any(|(name, _)| name == n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{FromPlugin, read};
    use topology::catalog;

    fn engine() -> Engine {
        let cluster = catalog::cluster("h100").unwrap();
        // Readings of the physics themselves; simulated.
        let fabric = fabric::Fabric::new(&cluster);
        let size = topology::Bytes::mib(16);
        let all = |hosts: &[&str]| cluster.parse_gpus(hosts.iter().copied()).unwrap();
        let sets =
            [all(&["n0:[0-1]"]), all(&["n0:[0-3]"]), all(&["n0"]), all(&["n0", "n1"]), all(&["n1:[0-3]", "n2:[0-3]"])];
        let reading = |a: &Allocation| {
            let busbw = fabric.estimate(a, topology::Collective::AllReduce, size).busbw;
            store::Measurement::new(a.clone(), topology::Collective::AllReduce, size, busbw, store::Source::Simulated)
        };
        let readings: Vec<_> = sets.iter().map(reading).collect();
        let model = predict::fit(&cluster, &readings, &predict::FitOptions::of(predict::Kind::Bound)).unwrap().0;
        Engine::builder(cluster).model(model).build().unwrap()
    }

    fn ask(words: &str) -> Ask {
        match read(&format!("ask 1 1 {words}")).unwrap() {
            FromPlugin::Ask(a) => *a,
            other => panic!("{other:?}"),
        }
    }

    fn verdict(engine: &Engine, words: &str, suspected: &Allocation, decided: &Decided) -> Verdict {
        choose(engine, &ask(words), &Known { jobs: &[], suspected, decided }, 0.0)
    }

    const ALL: &str = "free=n0:0.1.2.3.4.5.6.7,n1:0.1.2.3.4.5.6.7,n2:4.5.6.7,n3:0.1.2.3.4.5.6.7";

    fn hosts(words: &str) -> Vec<(String, usize)> {
        let v = verdict(&engine(), &format!("{words} {ALL}"), &Allocation::default(), &Decided::default());
        match v.answer {
            ToPlugin::Take(order) => order.into_iter().map(|(n, g)| (n, g.len())).collect(),
            other => panic!("{other:?}: {}", v.note),
        }
    }

    #[test]
    fn the_nodes_that_a_job_asks_for_are_obeyed() {
        assert_eq!(hosts("gpus=8 nodes=1-0").len(), 1);
        assert_eq!(hosts("gpus=8 nodes=2-2").iter().map(|h| h.1).collect::<Vec<_>>(), [4, 4]);
        assert_eq!(hosts("gpus=8 node=4 nodes=2-2").iter().map(|h| h.1).collect::<Vec<_>>(), [4, 4]);
        assert_eq!(hosts("gpus=4 nodes=1-0 must=n2"), [("n2".to_owned(), 4)]);
        let two = hosts("gpus=8 nodes=1-0 must=n[1,3]");
        assert_eq!(two.iter().map(|h| h.0.as_str()).collect::<Vec<_>>(), ["n1", "n3"]);
        assert_eq!(hosts("gpus=7 nodes=3-3").len(), 3);
    }

    #[test]
    fn suspected_and_held_gpus_are_left_out() {
        let engine = engine();
        let bad = engine.cluster().parse_gpus(["n0:3", "n1:0"]).unwrap();
        let v = verdict(&engine, &format!("gpus=8 nodes=1-0 {ALL}"), &bad, &Decided::default());
        let ToPlugin::Take(order) = v.answer else { panic!("{}", v.note) };
        assert!(v.note.contains("\"suspected_gpus_left_out\":2"), "{}", v.note);
        assert_eq!(order.iter().map(|o| o.0.as_str()).collect::<Vec<_>>(), ["n3"]);
    }

    #[test]
    fn a_request_that_no_free_gpus_meet_waits_and_an_unknown_node_goes_to_slurm() {
        let none = Allocation::default();
        let v = verdict(&engine(), "gpus=8 node=8 nodes=1-1 free=n0:0.1.2.3,n1:0.1.2.3", &none, &Decided::default());
        assert_eq!(v.answer, ToPlugin::Wait);
        for words in ["gpus=1 nodes=1-0 must=other free=n0:0", "gpus=1 nodes=1-0 free=other:0"] {
            assert_eq!(verdict(&engine(), words, &none, &Decided::default()).answer, ToPlugin::Pass, "{words}");
        }
    }

    #[test]
    fn tasks_per_node_make_equal_counts() {
        let counts = |words: &str| hosts(words).iter().map(|h| h.1).collect::<Vec<_>>();
        assert_eq!(counts("gpus=8 task=1 tasks=8 tasks_per_node=2 nodes=4-4 set=1"), [2, 2, 2, 2]);
        assert_eq!(counts("gpus=12 task=2 tasks=6 tasks_per_node=2 nodes=1-0 set=1"), [4, 4, 4]);
    }

    #[test]
    fn the_policy_decides_between_few_nodes_and_bandwidth() {
        // Two nodes could hold 12 GPUs as 8+4; three as 4+4+4.
        let words = "gpus=12 nodes=1-0 free=n0:0.1.2.3.4.5.6.7,n1:0.1.2.3,n2:0.1.2.3";
        let of = |name: &str| {
            let policy = Policy::read(name).unwrap();
            let decided = Decided { policy, from: "comment", ignored: None };
            verdict(&engine(), words, &Allocation::default(), &decided)
        };
        let nodes = |v: &Verdict| match &v.answer {
            ToPlugin::Take(order) => order.len(),
            other => panic!("{other:?}: {}", v.note),
        };
        let bandwidth = |v: &Verdict| {
            let v: serde_json::Value = serde_json::from_str(&v.note).unwrap();
            v["busbw_gb_per_s"].as_f64().unwrap()
        };
        let (pack, best) = (of("pack"), of("best"));
        assert_eq!(nodes(&pack), 2, "{}", pack.note);
        assert!(bandwidth(&best) >= bandwidth(&pack), "{} {}", best.note, pack.note);
        assert!(pack.note.contains("\"policy\":\"pack (comment)\""), "{}", pack.note);
        let off = of("off");
        assert_eq!((off.answer, off.note.as_str()), (ToPlugin::Pass, "linkwise=off"));
    }

    #[test]
    fn a_wrong_policy_is_in_the_note() {
        let decided = Decided { ignored: Policy::read("fast").err(), from: "site", ..Decided::default() };
        let v = verdict(&engine(), &format!("gpus=2 nodes=1-0 {ALL}"), &Allocation::default(), &decided);
        assert!(v.note.contains("\"ignored\":\"linkwise=fast is no policy"), "{}", v.note);
    }
}
