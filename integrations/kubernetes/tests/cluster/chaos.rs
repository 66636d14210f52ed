//! Gangs in random order under kills of the controller, the API server and etcd, and cuts of the network.
//!
//! Two controllers compete, each behind a proxy of its own. A watcher looks at all claims all the time: no device may be in two claims, and no allocation
//! may be other than linkwise's or change. A gang whose pods are not all bound within the deadline after the first one counts as half-started.

use crate::common::*;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt};
use lab_kubernetes::{Kubelet, Life, Part, Proxy};
use linkwise_kubernetes::Settings;
use linkwise_kubernetes::names::GANG;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Gangs, without `LINKWISE_TEST_KUBERNETES_GANGS`.
const GANGS: usize = 16;
/// Nodes.
const NODES: usize = 6;
/// Gangs that exist at the same time.
const AT_ONCE: usize = 6;
/// Time in which all pods of a gang must be bound after the first one. API server and etcd are down meanwhile now and then.
const START_DEADLINE_S: u64 = 60;

fn number(name: &str, none: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(none)
}

struct Chaos {
    random: ChaCha8Rng,
    kills: BTreeMap<&'static str, usize>,
}

impl Chaos {
    fn below(&mut self, n: usize) -> usize {
        (self.random.next_u64() % n as u64) as usize
    }
}

#[test]
#[ignore = "slow: `make test-kubernetes` runs it"]
fn random_gangs_survive_kills_and_cuts_whole_or_not_at_all() {
    let name = "random_gangs_survive_kills_and_cuts_whole_or_not_at_all";
    let gangs = number("LINKWISE_TEST_KUBERNETES_GANGS", GANGS);
    let seed = number("LINKWISE_TEST_KUBERNETES_SEED", 1) as u64;
    let Some(mut lab) = Lab::start(name, NODES) else { return };
    let mut chaos = Chaos { random: ChaCha8Rng::seed_from_u64(seed), kills: BTreeMap::new() };
    let begin = Instant::now();
    let settings = Settings { lease_seconds: 2, start_deadline_seconds: START_DEADLINE_S, ..lab.settings() };
    let handle = lab.runtime.handle().clone();
    let _kubelet =
        handle.block_on(async { Kubelet::start(lab.client.clone(), Life::For(Duration::from_millis(1500))) });
    let proxies = [0, 1].map(|_| handle.block_on(Proxy::to(lab.plane.port())).unwrap());
    let client = |lab: &Lab, i: usize| -> Client {
        let config = handle.block_on(lab.plane.config_as(lab.account, proxies[i].port()));
        let _in = handle.enter();
        linkwise_kubernetes::client::once(config).unwrap()
    };
    let mut controllers = [0, 1].map(|i| Controller::start(&lab, client(&lab, i), settings.clone()));
    let mut watcher = Watcher::default();
    let (mut made, mut done) = (0, 0);
    let mut running: BTreeMap<String, usize> = BTreeMap::new();
    let mut ended: BTreeSet<String> = BTreeSet::new();
    // When the first pod of a gang was bound, and how long the others took after it.
    let mut starts: BTreeMap<String, (Instant, Option<Duration>)> = BTreeMap::new();
    let mut healed_at: [Option<Instant>; 2] = [None, None];
    let mut next_fault = Instant::now() + Duration::from_secs(3);
    let mut totals = [0_u64; 4];
    let mut add = |c: &Controller| {
        use std::sync::atomic::Ordering::Relaxed;
        let of = &c.counters;
        for (total, n) in totals.iter_mut().zip([&of.placed, &of.undone, &of.restarted, &of.writes]) {
            *total += n.load(Relaxed);
        }
    };
    while done < gangs {
        assert!(
            begin.elapsed() < Duration::from_secs(120 + 20 * gangs as u64),
            "{done} of {gangs} gangs ended; {running:?}"
        );
        // New gangs, whose pods and claims come in any order.
        while made < gangs && running.len() < AT_ONCE {
            let sizes: Vec<usize> = (0..1 + chaos.below(4)).map(|_| [1, 1, 2, 3, 4, 8][chaos.below(6)]).collect();
            let gang = format!("g{made}");
            if handle.block_on(make_in_any_order(&lab, &mut chaos, &gang, &sizes)) {
                running.insert(gang, sizes.len());
                made += 1;
            } else {
                break; // the API is down
            }
        }
        // A fault.
        if Instant::now() >= next_fault {
            next_fault = Instant::now() + Duration::from_millis(1500 + 100 * chaos.below(30) as u64);
            let which = chaos.below(2);
            match chaos.below(6) {
                0..=2 => {
                    add(&controllers[which]);
                    controllers[which] = Controller::start(&lab, client(&lab, which), settings.clone());
                    *chaos.kills.entry("controller").or_default() += 1;
                }
                3 => {
                    lab.plane.kill_part(Part::ApiServer);
                    lab.plane.start_part(Part::ApiServer).unwrap();
                    *chaos.kills.entry("API server").or_default() += 1;
                }
                4 => {
                    lab.plane.kill_part(Part::Etcd);
                    lab.plane.start_part(Part::Etcd).unwrap();
                    *chaos.kills.entry("etcd").or_default() += 1;
                }
                _ => {
                    proxies[which].cut();
                    healed_at[which] = Some(Instant::now() + Duration::from_millis(500 + 100 * chaos.below(50) as u64));
                    *chaos.kills.entry("network").or_default() += 1;
                }
            }
        }
        for (proxy, until) in proxies.iter().zip(&mut healed_at) {
            if until.is_some_and(|at| at <= Instant::now()) {
                proxy.heal();
                *until = None;
            }
        }
        // What must hold now.
        let now = handle.block_on(async {
            let claims: Api<ResourceClaim> = Api::all(lab.client.clone());
            let pods = lab.pods("a").list(&ListParams::default()).await.ok()?.items;
            Some((claims.list(&ListParams::default()).await.ok()?.items, pods))
        });
        let Some((claims, pods)) = now else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        watcher.look(&claims).unwrap();
        let mut by_gang: BTreeMap<String, Vec<&Pod>> = BTreeMap::new();
        for pod in &pods {
            by_gang.entry(pod.labels()[GANG].clone()).or_default().push(pod);
        }
        let listed: BTreeSet<String> = by_gang.keys().cloned().collect();
        for (gang, pods) in by_gang {
            let size = running[&gang];
            let bound = pods.iter().filter(|p| p.spec.as_ref().unwrap().node_name.is_some()).count();
            if bound > 0 {
                let (begin, took) = starts.entry(gang.clone()).or_insert_with(|| (Instant::now(), None));
                if bound == size {
                    took.get_or_insert(begin.elapsed());
                } else if took.is_none() {
                    // The deadline is the controller's; the API may have been down for as long as a start takes.
                    assert!(begin.elapsed().as_secs() < START_DEADLINE_S + 60, "{gang}: {bound} of {size} pods bound");
                }
            }
            let over = pods.iter().filter(|p| linkwise_kubernetes::plan::is_over(p)).count();
            if over == size {
                ended.insert(gang.clone());
            }
            if ended.contains(&gang) {
                handle.block_on(async {
                    for pod in &pods {
                        delete_pod(&lab, "a", &pod.name_any()).await;
                        let _ = lab.claims("a").delete(&pod.name_any(), &Default::default()).await;
                    }
                });
            }
        }
        // A delete or its answer may be lost: a gang is done when a list has none of its pods any more.
        let gone: Vec<String> = ended.difference(&listed).cloned().collect();
        for gang in gone {
            ended.remove(&gang);
            running.remove(&gang);
            done += 1;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for proxy in &proxies {
        proxy.heal();
    }
    handle.block_on(all_released(&lab));
    controllers.iter().for_each(&mut add);
    let [placed, undone, restarted, writes] = totals;
    let slowest = starts.values().filter_map(|(_, took)| *took).max().unwrap_or_default();
    println!(
        "{gangs} gangs in {:.0} s; faults {:?}; {} looks; {placed} placed, {undone} taken back, {restarted} started again; {:.1} writes a gang; longest time from the first bound pod of a gang to the last {:.1} s",
        begin.elapsed().as_secs_f64(),
        chaos.kills,
        watcher.looks,
        writes as f64 / gangs as f64,
        slowest.as_secs_f64()
    );
    assert!(watcher.looks >= gangs, "{}", watcher.looks);
}

/// Makes pods and claims of a gang in random order; false if the API is down and nothing was made.
async fn make_in_any_order(lab: &Lab, chaos: &mut Chaos, gang: &str, sizes: &[usize]) -> bool {
    let mut left: BTreeSet<usize> = (0..2 * sizes.len()).collect();
    let mut any = false;
    while !left.is_empty() {
        let at = *left.iter().nth(chaos.below(left.len())).unwrap();
        let (i, is_claim) = (at / 2, at.is_multiple_of(2));
        let name = format!("{gang}-{i}");
        let made = if is_claim {
            let claim = serde_json::from_value(gpu_claim(&name, sizes[i])).unwrap();
            lab.claims("a").create(&PostParams::default(), &claim).await.map(drop)
        } else {
            let pod = serde_json::from_value(pod(&name, gang, sizes.len(), Some(&name), json!({}))).unwrap();
            lab.pods("a").create(&PostParams::default(), &pod).await.map(drop)
        };
        match made {
            Ok(()) => {}
            Err(kube::Error::Api(e)) if e.code == 409 => {} // made before its answer was lost
            Err(_) if !any => return false,
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        }
        any = true;
        left.remove(&at);
    }
    true
}
