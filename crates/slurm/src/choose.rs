//! From a question of the plugin to an order.

use crate::decider::{Decider, place};
use crate::message::{Ask, ToPlugin, nameable};
use crate::policy::{Decided, Policy};
use engine::{ConstraintsIn, JobIn, PlaceAnswer, PlaceRequest};
use serde_json::json;
use std::collections::{BTreeSet, HashMap, HashSet};
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

    /// The GPUs of these nodes and indices that the cluster has. O(GPUs).
    pub fn gpus(&self, nodes: &[(String, Vec<u8>)]) -> Allocation {
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
        Allocation::new(nodes.iter().filter_map(part))
    }

    /// The nodes in the order of ranks, as a list of Slurm in that order, if it differs from the order in which Slurm numbers them: that of the cluster
    /// file. O(hosts + GPUs).
    fn rank_order(&self, a: &PlaceAnswer) -> Option<String> {
        let by_host: HashMap<&str, HostId> =
            self.cluster.host_ids().map(|h| (self.cluster.host(h).name.as_str(), h)).collect();
        let mut ranks: Vec<HostId> = Vec::new();
        for g in a.rank_order.names() {
            let host = *by_host.get(g.rsplit_once(':')?.0)?;
            if ranks.last() != Some(&host) {
                ranks.push(host);
            }
        }
        let slurms = a.gpus.allocation(self.cluster).parts().iter().map(|p| p.0).collect::<Vec<_>>();
        let name = |h: &HostId| names::slurm::node_name(self.cluster.host(*h));
        (ranks.len() == slurms.len() && ranks != slurms).then(|| list::compress(ranks.iter().map(name)))
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
pub fn choose(decider: &dyn Decider, ask: &Ask, known: &Known<'_>, now_unix_s: f64) -> Verdict {
    let Known { jobs, suspected, decided } = *known;
    if decided.policy == Policy::Off {
        return pass(match decided.from {
            "comment" => "linkwise=off",
            "qos" => "policy off of its QOS",
            _ => "policy off of the site",
        });
    }
    let nodes = Nodes::new(decider.cluster());
    let free = nodes.gpus(&ask.free);
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
    let mut why = String::from(if ask.exclusive {
        "too few whole nodes are free and sound"
    } else {
        "too few free GPUs are sound"
    });
    let tries =
        if sound.gpu_count() < ask.gpus { Vec::new() } else { requests(decider.cluster(), ask, &sound, &must, jobs) };
    for mut request in tries {
        request.slack = decided.policy.slack();
        match place(decider, request, now_unix_s) {
            Ok(answer) => {
                let order = nodes.order(&answer.gpus.allocation(decider.cluster()));
                if fits(ask, &order, &must) {
                    let left_out = free.gpu_count() - sound.gpu_count();
                    return Verdict { note: note(&answer, decided, left_out, &nodes), answer: ToPlugin::Take(order) };
                }
                why = "the best choice has other nodes than the job asks for".into();
            }
            Err(e) if e.kind == engine::ErrorKind::Impossible => why = e.to_string(),
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

/// Beginning of the note of a choice. The plugin and the task prolog know linkwise's own comments by it.
const TOOK: &str = r#"{"linkwise":"took","#;

/// What the choice gains, as one short line.
fn note(a: &PlaceAnswer, decided: &Decided, left_out: usize, nodes: &Nodes<'_>) -> String {
    let mut v = json!({"split": a.split});
    if ["comment", "qos"].contains(&decided.from) {
        v["policy"] = format!("{} ({})", decided.policy, decided.from).into();
    }
    if let Some(why) = &decided.ignored {
        v["ignored"] = why.as_str().into();
    }
    if left_out > 0 {
        v["suspected_gpus_left_out"] = left_out.into();
    }
    match nodes.rank_order(a) {
        Some(order) if order.len() <= ORDER_BYTES_MAX => v["rank_order"] = order.into(),
        Some(_) => v["rank_order_too_long"] = true.into(),
        None => {}
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
    let rest = v.to_string();
    format!("{TOOK}{}", rest.strip_prefix('{').unwrap_or(&rest))
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
        switches_max: (ask.switches > 0).then_some(ask.switches as u64),
        ..ConstraintsIn::default()
    };
    if ask.exclusive {
        return whole_nodes(cluster, ask, free, must, &base, &constraints);
    }
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

/// The requests of a job that gets whole nodes: the fewest nodes of one size that meet it, largest size first. A node of which a GPU
/// is missing is none of them. O(GPUs).
fn whole_nodes(
    cluster: &Cluster,
    ask: &Ask,
    free: &Allocation,
    must: &HashSet<String>,
    base: &PlaceRequest,
    constraints: &ConstraintsIn,
) -> Vec<PlaceRequest> {
    let whole = |&&(h, m): &&(HostId, GpuMask)| m == cluster.type_of(h).all_gpus();
    let whole: Vec<(HostId, GpuMask)> = free.parts().iter().filter(whole).copied().collect();
    let sizes: BTreeSet<usize> = whole.iter().map(|(_, m)| m.count()).collect();
    let of = |size: usize| {
        let tasks = size.checked_div(ask.per_task).unwrap_or(usize::MAX);
        let tasks = if ask.tasks_per_node > 0 { tasks.min(ask.tasks_per_node) } else { tasks };
        let for_tasks = if tasks == usize::MAX { 1 } else { ask.tasks.div_ceil(tasks.max(1)) };
        let nodes = ask.gpus.div_ceil(size).max(for_tasks).max(ask.nodes_min).max(must.len());
        let named = |h: &HostId| must.len() < nodes || must.contains(names::slurm::node_name(cluster.host(*h)));
        let fit: Vec<_> = whole.iter().filter(|(h, m)| m.count() == size && named(h)).copied().collect();
        let enough = fit.len() >= nodes && nodes <= ask.nodes_max && ask.per_node <= size && tasks > 0;
        enough.then(|| PlaceRequest {
            gpus: Some((nodes * size) as u64),
            free: Some(cluster.gpu_names(&Allocation::new(fit))),
            constraints: Some(ConstraintsIn { per_host: Some(size as u64), ..constraints.clone() }),
            ..base.clone()
        })
    };
    sizes.into_iter().rev().filter_map(of).collect()
}

/// True if the order has the nodes that the job asks for. Slurm checks it again.
fn fits(ask: &Ask, order: &[(String, Vec<u8>)], must: &HashSet<String>) -> bool {
    let within = (ask.nodes_min..=ask.nodes_max).contains(&order.len());
    let tasks = !ask.tasks_set || ask.tasks == 0 || order.len() <= ask.tasks;
    within && tasks && must.iter().all(|n| order.iter().any(|(name, _)| name == n))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::message::{FromPlugin, read};
    use engine::Engine;
    use topology::{GpuId, catalog};

    pub(crate) fn engine() -> Engine {
        engine_of(|_| ())
    }

    fn engine_of(change: impl Fn(&mut Cluster)) -> Engine {
        let mut cluster = catalog::cluster("h100").unwrap();
        change(&mut cluster);
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
    fn the_order_of_many_nodes_fits_into_a_note_as_a_list_of_slurm() {
        let mut cluster = catalog::cluster("h100").unwrap();
        cluster.hosts = (0..64).map(|i| topology::Host { name: format!("n{i}"), ..cluster.hosts[0].clone() }).collect();
        let request = PlaceRequest { gpus: Some(8), ..PlaceRequest::default() };
        let mut a = place(&engine(), request, 0.0).unwrap();
        let all = |hosts: &[u32]| {
            let ids: Vec<_> = hosts.iter().flat_map(|h| (0..8).map(|gpu| GpuId { host: HostId(*h), gpu })).collect();
            engine::GpuList::ordered(&cluster, &ids)
        };
        let nodes = Nodes::new(&cluster);
        a.gpus = all(&(0..64).collect::<Vec<_>>());
        a.rank_order = a.gpus.clone();
        assert_eq!(nodes.rank_order(&a), None, "Slurm's own order");
        a.rank_order = all(&(32..64).chain(0..32).collect::<Vec<_>>());
        assert_eq!(nodes.rank_order(&a).as_deref(), Some("n[32-63,0-31]"));
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
        assert!([&pack, &best].iter().all(|v| v.note.starts_with(TOOK)), "{}", pack.note);
        let off = of("off");
        assert_eq!((off.answer, off.note.as_str()), (ToPlugin::Pass, "linkwise=off"));
    }

    #[test]
    fn jobs_of_whole_nodes_get_the_fewest_nodes_with_all_of_their_gpus() {
        let whole = |words: &str| hosts(&format!("exclusive=1 {words}"));
        // n2 has four free GPUs only.
        assert_eq!(whole("gpus=2 nodes=1-0").iter().map(|h| h.1).collect::<Vec<_>>(), [8]);
        assert_eq!(whole("gpus=9 nodes=1-0").iter().map(|h| h.1).collect::<Vec<_>>(), [8, 8]);
        assert_eq!(whole("gpus=2 node=1 nodes=2-2").iter().map(|h| h.1).collect::<Vec<_>>(), [8, 8]);
        assert_eq!(whole("gpus=9 task=3 tasks=3 set=1 nodes=1-0").len(), 2, "two tasks of three GPUs fit on a node");
        assert_eq!(whole("gpus=8 tasks=6 tasks_per_node=2 nodes=1-0").len(), 3);
        assert_eq!(whole("gpus=1 nodes=1-1 must=n3"), [("n3".to_owned(), 8)]);
        let bad = engine().cluster().parse_gpus(["n0:3", "n1:0"]).unwrap();
        let v = verdict(&engine(), &format!("gpus=8 exclusive=1 nodes=1-0 {ALL}"), &bad, &Decided::default());
        assert_eq!(v.answer, ToPlugin::Take(vec![("n3".into(), (0..8).collect())]), "a suspected GPU spoils its node");
        let v = verdict(&engine(), &format!("gpus=9 exclusive=1 nodes=1-0 {ALL}"), &bad, &Decided::default());
        assert_eq!(v.answer, ToPlugin::Wait, "{}", v.note);
    }

    #[test]
    fn a_number_of_switches_is_obeyed() {
        let engine = engine_of(|c| c.network.tiers = vec![topology::Tier::regular("leaf", 2, 4.0)]);
        let leaves = |words: &str| {
            // Best without a limit: a whole host below each leaf, where two hosts of one leaf have four free GPUs each.
            let free = "free=n0:0.1.2.3,n1:0.1.2.3,n2:0.1.2.3.4.5.6.7,n3:0.1";
            let v = verdict(&engine, &format!("{words} {free}"), &Allocation::default(), &Decided::default());
            match v.answer {
                ToPlugin::Take(order) => {
                    order.iter().map(|o| ["n0", "n1"].contains(&o.0.as_str())).collect::<BTreeSet<_>>().len()
                }
                _ => 0,
            }
        };
        assert_eq!(leaves("gpus=10 nodes=1-0 switches=1"), 1);
        assert_eq!(leaves("gpus=16 nodes=1-0 switches=2"), 2);
        assert_eq!(leaves("gpus=12 nodes=1-0 switches=1"), 0, "no leaf has 12 free GPUs: Slurm waits or goes on");
        assert_eq!(leaves("gpus=12 nodes=1-0 switches=0"), 2);
    }

    #[test]
    fn a_wrong_policy_is_in_the_note() {
        let decided = Decided { ignored: Policy::read("fast").err(), from: "site", ..Decided::default() };
        let v = verdict(&engine(), &format!("gpus=2 nodes=1-0 {ALL}"), &Allocation::default(), &decided);
        assert!(v.note.contains("\"ignored\":\"linkwise=fast is no policy"), "{}", v.note);
    }
}
