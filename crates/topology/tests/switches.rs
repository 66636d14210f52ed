//! Switches above the hosts: sets of any size, counted and named.

use topology::{
    Allocation, Cluster, GpuMask, Host, HostId, NamedSwitch, NamedSwitches, Rails, SwitchError, Switches, Tier,
    catalog, file,
};

fn h100(hosts: usize, tiers: Vec<Tier>) -> Cluster {
    let mut c = catalog::cluster("h100").unwrap();
    c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect();
    c.network.tiers = tiers;
    c
}

fn named(name: &str, sets: &[&[u32]]) -> Tier {
    let switch = |(i, hosts): (usize, &&[u32])| NamedSwitch {
        name: format!("{name}-{i}"),
        hosts: hosts.iter().copied().map(HostId).collect(),
    };
    let switches = Switches::Named(NamedSwitches::new(sets.iter().enumerate().map(switch)).unwrap());
    Tier { name: name.into(), switches, oversubscription: 1.0 }
}

fn whole(hosts: &[u32]) -> Allocation {
    Allocation::new(hosts.iter().map(|h| (HostId(*h), GpuMask::first(8))))
}

#[test]
fn hosts_of_any_sets_are_found_below_their_switch() {
    let c = h100(7, vec![named("leaf", &[&[0, 4, 6], &[5, 1], &[2, 3]]), named("spine", &[&[0, 1, 4, 5, 6], &[2, 3]])]);
    c.check().unwrap();
    assert_eq!((0..7).map(|h| c.switch_of(0, HostId(h))).collect::<Vec<_>>(), [0, 1, 2, 2, 0, 1, 0]);
    assert_eq!(
        c.switches(0).map(|h| h.map(|h| h.0).collect()).collect::<Vec<Vec<_>>>(),
        [&[0, 4, 6][..], &[1, 5], &[2, 3]]
    );
    assert_eq!((c.switch_count(0), c.switch_count(1)), (3, 2));
    assert_eq!(c.switch_name(0, 1), "leaf-1");
    let a = Allocation::new([(HostId(0), GpuMask::first(8)), (HostId(1), GpuMask(3)), (HostId(4), GpuMask::first(6))]);
    assert_eq!(c.gpus_below(0, &a), [(0, 14), (1, 2)]);
    assert_eq!((c.switches_spanned(0, &a), c.switches_spanned(1, &a)), (2, 1));
    assert_eq!(c.largest_share_below_one_switch(0, &a), 14.0 / 16.0);
    assert_eq!(c.largest_share_below_one_switch(1, &a), 1.0);
}

#[test]
fn the_last_regular_switch_has_the_remaining_hosts() {
    let c = h100(10, vec![Tier::regular("leaf", 4, 2.0), Tier::regular("spine", 8, 4.0)]);
    c.check().unwrap();
    assert_eq!(c.switches(0).map(|h| h.len()).collect::<Vec<_>>(), [4, 4, 2]);
    assert_eq!(c.hosts_below(0, 2).collect::<Vec<_>>(), [HostId(8), HostId(9)]);
    assert_eq!(c.hosts_below(0, 3).len(), 0);
    assert_eq!(c.switch_name(1, 1), "spine 1");
    assert_eq!((c.oversubscription_up_to(0), c.oversubscription_up_to(1)), (2.0, 8.0));
    assert_eq!(c.switches_spanned(0, &whole(&[0, 3, 8])), 2);
}

#[test]
fn named_sets_of_equal_length_equal_regular_switches() {
    let regular = h100(8, vec![Tier::regular("leaf", 2, 1.0), Tier::regular("spine", 4, 1.0)]);
    let sets = h100(
        8,
        vec![named("leaf", &[&[0, 1], &[2, 3], &[4, 5], &[6, 7]]), named("spine", &[&[0, 1, 2, 3], &[4, 5, 6, 7]])],
    );
    for mask in 1u32..256 {
        let a = whole(&(0..8).filter(|h| mask >> h & 1 == 1).collect::<Vec<_>>());
        for t in 0..2 {
            assert_eq!(regular.gpus_below(t, &a), sets.gpus_below(t, &a), "{mask}");
        }
    }
}

#[test]
fn a_spine_that_divides_a_leaf_is_refused() {
    let e = h100(24, vec![Tier::regular("leaf", 8, 1.0), Tier::regular("spine", 12, 1.0)]).check().unwrap_err();
    assert_eq!(
        e,
        "tier `spine` divides the hosts of one switch of the tier below: `n8` and `n12` are both below `leaf 1`, but below \
         `spine 0` and `spine 1`"
    );
    let e = h100(4, vec![named("leaf", &[&[0, 2], &[1, 3]]), named("spine", &[&[0, 1], &[2, 3]])]).check().unwrap_err();
    assert_eq!(
        e,
        "tier `spine` divides the hosts of one switch of the tier below: `n0` and `n2` are both below `leaf-0`, but below \
         `spine-0` and `spine-1`"
    );
    h100(12, vec![Tier::regular("leaf", 8, 1.0), Tier::regular("spine", 12, 1.0)]).check().unwrap();
}

#[test]
fn each_host_is_below_exactly_one_switch() {
    let switch = |name: &str, hosts: &[u32]| NamedSwitch {
        name: name.into(),
        hosts: hosts.iter().copied().map(HostId).collect(),
    };
    let new = |list: Vec<NamedSwitch>| NamedSwitches::new(list).unwrap_err();
    assert_eq!(
        new(vec![switch("a", &[0, 1]), switch("b", &[1])]),
        SwitchError::TwoSwitches { host: HostId(1), first: 0, second: 1 }
    );
    assert_eq!(new(vec![switch("a", &[0]), switch("b", &[])]), SwitchError::NoHosts { switch: 1 });
    assert_eq!(new(vec![switch("a", &[0]), switch("a", &[1])]), SwitchError::SameName { first: 0, second: 1 });
    let e = h100(3, vec![named("leaf", &[&[0], &[2]])]).check().unwrap_err();
    assert_eq!(e, "host `n1` is below no switch of tier `leaf`");
    assert!(h100(2, vec![named("leaf", &[&[0], &[1, 2]])]).check().is_err());
}

#[test]
fn a_cluster_stored_before_switches_had_names_is_read() {
    let text = r#"{"name":"leaf","hosts_per_switch":4,"oversubscription":2.0}"#;
    let tier: Tier = serde_json::from_str(text).unwrap();
    assert_eq!(tier, Tier::regular("leaf", 4, 2.0));
    assert_eq!(serde_json::to_string(&tier).unwrap(), text);
    let c = h100(3, vec![named("leaf", &[&[0, 2], &[1]])]);
    assert_eq!(serde_json::from_str::<Cluster>(&serde_json::to_string(&c).unwrap()).unwrap(), c);
}

const NAMED: &str = "
network:
  tiers:
  - name: leaf
    oversubscription: 2
    switches:
    - {name: leaf-a, hosts: 'n[0-2,5]'}
    - {name: leaf-b, hosts: 'n[3-4]'}
  - {name: spine, hosts_per_switch: 6}
hosts: [{name: 'n[0-5]', type: hgx-h100}]
";

#[test]
fn a_file_names_switches_and_their_hosts() {
    let c = file::read(NAMED, "c.yaml").unwrap();
    assert_eq!(c.switches(0).map(|h| h.map(|h| h.0).collect()).collect::<Vec<Vec<_>>>(), [&[0, 1, 2, 5][..], &[3, 4]]);
    assert_eq!(file::read(&file::write(&c), "again.yaml").unwrap(), c);
}

#[test]
fn the_example_with_named_switches_says_which_hosts_share_one() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/named-switches-rails.yaml");
    let c = file::read(&std::fs::read_to_string(path).unwrap(), "named-switches-rails.yaml").unwrap();
    assert_eq!(c.tiers().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["leaf", "spine"]);
    assert_eq!(c.switches(0).map(|h| h.len()).collect::<Vec<_>>(), [8, 5, 6]);
    let host = |name: &str| c.host_index()[name];
    assert_eq!(c.switch_of(0, host("gpu-005")), c.switch_of(0, host("gpu-015")));
    assert_eq!(c.switch_name(0, c.switch_of(0, host("gpu-009"))), "leaf-b");
    assert_eq!(c.network.rails, Some(Rails::Joined));
    assert_eq!(file::read(&file::write(&c), "again.yaml").unwrap(), c);
}

#[test]
fn errors_of_named_switches_name_host_switch_and_line() {
    let error = |from: &str, to: &str| {
        let text = NAMED.replace(from, to);
        assert_ne!(text, NAMED);
        let e = file::read(&text, "c.yaml").unwrap_err();
        format!("{}:{}: {}; {}", e.line(), e.column(), e.message(), e.remedy())
    };
    let all = [
        error("n[3-4]", "n[2-4]"),
        error("n[3-4]", "n4"),
        error("n[3-4]", "n[3-4,6]"),
        error("n[3-4]", "n[3-4"),
        error("leaf-b", "leaf-a"),
        error("hosts_per_switch: 6", "hosts_per_switch: 3"),
        error("hosts_per_switch: 6", "oversubscription: 6"),
        error("oversubscription: 2\n", "hosts_per_switch: 2\n"),
        error("{name: leaf-b, hosts: 'n[3-4]'}", "{name: leaf-b}"),
        error("oversubscription: 2\n", "oversubscription: 0.5\n"),
    ];
    insta::assert_snapshot!(all.join("\n"), @r"
    8:29: host `n2` is below two switches of tier `leaf`: `leaf-a` and `leaf-b`; name each host once in a tier
    4:5: host `n3` is below no switch of tier `leaf`; repair this tier
    8:29: no host is named `n6`; did you mean `n0`?; name hosts of the list `hosts`
    8:29: the bracket of `n[3-4` is not closed (character 2); write hosts as Slurm does: n[0-3,7]
    8:7: two switches of tier `leaf` are named `leaf-a`; give each switch of a tier a name of its own
    9:5: tier `spine` divides the hosts of one switch of the tier below: `n0` and `n5` are both below `leaf-a`, but below `spine 0` and `spine 1`; repair this tier
    9:5: tier `spine` has neither of `hosts_per_switch` and `switches`; write `hosts_per_switch: 8` where all switches have as many hosts, else `switches: [{name: leaf-0, hosts: 'n[0-7]'}]`
    4:5: tier `leaf` has both of `hosts_per_switch` and `switches`; write `hosts_per_switch: 8` where all switches have as many hosts, else `switches: [{name: leaf-0, hosts: 'n[0-7]'}]`
    8:8: the field `hosts` is missing; add `hosts:` to this entry
    4:5: tier `leaf` has an oversubscription of 0.5; 1 is non-blocking, 2 means half; repair this tier
    ");
}
