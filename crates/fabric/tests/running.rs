//! One more job among many: the prepared sharing gives what sharing every link anew gives, with a small part of the work.

use fabric::maxmin::{self, MaxMinFlow};
use fabric::{Claim, Fabric, RunningClaims, SharedLink};
use proptest::prelude::*;
use std::collections::BTreeMap;
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, Host, HostId, Tier, catalog};

const SIZE: Bytes = Bytes::gib(1);

fn h100(hosts: usize, tiers: Vec<Tier>) -> Cluster {
    let mut c = catalog::cluster("h100").unwrap();
    c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect();
    c.network.tiers = tiers;
    c
}

fn claim(f: &Fabric, a: &Allocation) -> Claim {
    Claim {
        loads: f.loads(a, Collective::AllReduce, SIZE),
        demand_gb_per_s: f.estimate(a, Collective::AllReduce, SIZE).busbw.gb_per_s(),
    }
}

/// Every link of every claim, shared at once.
fn anew(f: &Fabric, claims: &[&Claim]) -> (Vec<f64>, usize) {
    let mut index: BTreeMap<SharedLink, usize> = BTreeMap::new();
    let mut capacities = Vec::new();
    for c in claims {
        for (link, load) in &c.loads {
            let at = *index.entry(*link).or_insert_with(|| {
                capacities.push(f.line_rate_gb_per_s(*link));
                capacities.len() - 1
            });
            capacities[at] = f64::max(capacities[at], load * c.demand_gb_per_s);
        }
    }
    let flow = |c: &&Claim| MaxMinFlow {
        links: c.loads.iter().map(|(l, s)| (index[l], *s)).collect(),
        demand: c.demand_gb_per_s,
        priority: 1.0,
    };
    let flows: Vec<MaxMinFlow> = claims.iter().map(flow).collect();
    (maxmin::share(&capacities, &flows).unwrap(), flows.iter().map(|f| f.links.len()).sum())
}

/// Jobs on disjoint GPUs of the hosts; job 0 is the new one.
fn jobs(owner: &[u8]) -> Vec<Allocation> {
    (0..6u8)
        .map(|j| {
            let mask = |h: usize| (0..8).filter(|g| owner[h * 8 + g] == j).fold(0u32, |m, g| m | 1 << g);
            Allocation::new((0..owner.len() / 8).map(|h| (HostId(h as u32), GpuMask(mask(h)))))
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn one_more_job_gets_and_leaves_what_sharing_every_link_gives(
        owner in prop::collection::vec(0u8..7, 64), leaf in 1.0f64..8.0, spine in 1.0f64..4.0, one_nic: bool,
    ) {
        let mut c = h100(8, vec![Tier::regular("leaf", 2, leaf), Tier::regular("spine", 4, spine)]);
        if one_nic {
            c.types[0].nics.truncate(1);
        }
        let f = Fabric::new(&c);
        let claims: Vec<Claim> = jobs(&owner).iter().map(|a| claim(&f, a)).collect();
        let running = RunningClaims::new(&f, claims[1..].to_vec());
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.max(1e-3);
        let (before, _) = anew(&f, &claims[1..].iter().collect::<Vec<_>>());
        for (a, b) in running.now().iter().zip(&before) {
            prop_assert!(close(*a, *b), "{a} {b}");
        }
        let (after, _) = anew(&f, &claims.iter().collect::<Vec<_>>());
        let joined = running.with(&f, &claims[0]);
        prop_assert!(close(joined.own_gb_per_s, after[0]), "{joined:?} {after:?}");
        let mut rates = running.now().to_vec();
        joined.others_gb_per_s.iter().for_each(|&(j, r)| rates[j] = r);
        for (a, b) in rates.iter().zip(&after[1..]) {
            prop_assert!(close(*a, *b), "{rates:?} {after:?}");
        }
    }
}

#[test]
fn among_94_jobs_on_1280_hosts_a_candidate_shares_a_small_part_of_the_links() {
    let c = h100(1280, vec![Tier::regular("leaf", 16, 50.0), Tier::regular("spine", 128, 1.0)]);
    let f = Fabric::new(&c);
    // Jobs of 13 hosts each, seven GPUs per host, across leaves.
    let job = |j: u32| {
        Allocation::new(
            (0..13).map(|i| (HostId((j * 13 + i * 7) % 1280), GpuMask(if i % 2 == 0 { 0x0f } else { 0x70 }))),
        )
    };
    let claims: Vec<Claim> = (0..94).map(|j| claim(&f, &job(j))).collect();
    let running = RunningClaims::new(&f, claims.clone());
    let candidate = Allocation::new((0..32u32).map(|i| (HostId(i * 37 % 1280), GpuMask(0x80))));
    let own = claim(&f, &candidate);
    let joined = running.with(&f, &own);
    let all: Vec<&Claim> = std::iter::once(&own).chain(&claims).collect();
    let (rates, links) = anew(&f, &all);
    assert!((joined.own_gb_per_s / rates[0] - 1.0).abs() < 1e-6, "{} {}", joined.own_gb_per_s, rates[0]);
    assert!(joined.links > 0 && joined.links * 20 < links, "{} of {links} links of claims", joined.links);
}
