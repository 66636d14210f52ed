//! Groups of ranks: every rank is in one group of each kind, and the order of ranks keeps the first kind inside hosts.

use place::groups::ranks_of;
use place::{Group, GroupKind, Request, answer};
use predict::{FitOptions, Kind, Model, fit};
use proptest::prelude::*;
use std::collections::BTreeSet;
use topology::{Allocation, Bytes, Cluster, GpuMask, Host, HostId, catalog};

const SIZE: Bytes = Bytes::mib(16);

fn cluster(hosts: usize) -> Cluster {
    let mut c = catalog::cluster("h100").unwrap();
    c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect();
    c
}

fn model(cluster: &Cluster) -> Model {
    fit(cluster, &[], &FitOptions::of(Kind::Nccl)).unwrap().0
}

fn groups(sizes: [usize; 3]) -> Vec<Group> {
    let kinds = [GroupKind::Tensor, GroupKind::Pipeline, GroupKind::Data];
    kinds.into_iter().zip(sizes).map(|(kind, size)| Group { kind, size, weight: 1.0 }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn every_rank_is_in_exactly_one_group_of_each_kind(sizes in proptest::collection::vec(1usize..6, 1..5)) {
        let ranks: usize = sizes.iter().product();
        for which in 0..sizes.len() {
            let all = ranks_of(&sizes, which);
            prop_assert_eq!(all.len(), ranks / sizes[which]);
            prop_assert!(all.iter().all(|g| g.len() == sizes[which]));
            let seen: BTreeSet<usize> = all.iter().flatten().copied().collect();
            prop_assert_eq!(seen, (0..ranks).collect::<BTreeSet<_>>());
            prop_assert_eq!(all.iter().map(Vec::len).sum::<usize>(), ranks);
        }
        // Two ranks share at most one group.
        for a in 0..sizes.len() {
            for b in 0..a {
                for g in ranks_of(&sizes, a) {
                    for h in ranks_of(&sizes, b) {
                        prop_assert!(g.iter().filter(|r| h.contains(r)).count() <= 1);
                    }
                }
            }
        }
    }

    #[test]
    fn the_order_of_ranks_is_a_permutation_of_the_choice_with_tensor_groups_inside_hosts(
        masks in proptest::collection::vec(0u32..256, 6), tensor in 1usize..5, pipeline in 1usize..4, data in 1usize..4,
    ) {
        let cluster = cluster(6);
        let free = Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))));
        let k = tensor * pipeline * data;
        let mut r = Request { groups: groups([tensor, pipeline, data]), ..Request::new(k, free.clone(), SIZE) };
        r.constraints.split = place::Split::EqualIfFeasible;
        match answer(&cluster, &model(&cluster), &r) {
            Err(e) => prop_assert!(["not_enough_free", "pods_do_not_fit", "pod_too_large"].contains(&e.code()), "{}", e),
            Ok(a) => {
                prop_assert_eq!(a.rank_order.len(), k);
                prop_assert_eq!(Allocation::from_gpus(a.rank_order.iter().copied()), a.choice.allocation.clone());
                prop_assert!(a.pods.is_empty(), "the request names no pods");
                let fits = free.parts().iter().any(|p| p.1.count() >= tensor);
                for g in &a.groups[0].ranks {
                    let hosts: BTreeSet<u32> = g.iter().map(|r| a.rank_order[*r].host.0).collect();
                    prop_assert!(!fits || hosts.len() == 1, "{:?} of {}", g, a.choice.allocation.split());
                }
                for g in &a.groups {
                    prop_assert_eq!(g.busbw_gb_per_s > 0.0, g.group.size > 1, "{:?}", g);
                }
            }
        }
    }
}

#[test]
fn data_groups_meet_on_one_rail_and_share_no_nic() {
    let cluster = cluster(4);
    let model = model(&cluster);
    // Four hosts of eight: tensor inside, data across.
    let r = Request { groups: groups([8, 1, 4]), ..Request::new(32, cluster.usable(), SIZE) };
    let a = answer(&cluster, &model, &r).unwrap();
    for g in &a.groups[2].ranks {
        let indices: BTreeSet<u8> = g.iter().map(|r| a.rank_order[*r].gpu).collect();
        assert_eq!(indices.len(), 1, "{g:?}");
    }
    assert!(a.groups[0].busbw_gb_per_s > a.groups[2].busbw_gb_per_s);
}

#[test]
fn groups_that_do_not_multiply_to_the_gpus_are_refused() {
    let cluster = cluster(2);
    let model = model(&cluster);
    let code = |groups: Vec<Group>| {
        let r = Request { groups, ..Request::new(8, cluster.usable(), SIZE) };
        answer(&cluster, &model, &r).unwrap_err().code()
    };
    assert_eq!(code(groups([2, 2, 3])), "groups_product");
    assert_eq!(code(groups([0, 2, 4])), "bad_group");
    let twice = vec![groups([2, 1, 1])[0], Group { kind: GroupKind::Tensor, size: 4, weight: 1.0 }];
    assert_eq!(code(twice), "bad_group");
    let nan = vec![Group { kind: GroupKind::Data, size: 8, weight: f64::NAN }];
    assert_eq!(code(nan), "bad_group");
}
