//! The real NCCL library on hosts without a switch: a ring of four hosts in network namespaces, whose links lead to their two neighbours only. NCCL starts
//! over a management network and moves its bytes over the ring. Needs root.

use nccl_bench::bytes::{BytesCall, BytesSpec, HostPlace, Traffic};
use nccl_bench::{Bench, SimulatedNode};
use netns::NetBox;
use topology::{Cluster, Host, HostId, catalog};

#[test]
fn in_a_ring_without_a_switch_sends_rings_and_trees_reach_every_host() {
    let name = "in_a_ring_without_a_switch_sends_rings_and_trees_reach_every_host";
    let Some(mut netbox) = netns::or_skip(name, NetBox::ring(4, 200)) else { return };
    netbox.add_management().unwrap();
    let program = std::env::current_exe().unwrap();
    let plugin = program.parent().unwrap().join("liblinkwise_nccl_net.so");
    for algorithm in ["Ring", "Tree"] {
        let cluster =
            Cluster { name: "ring".into(), types: vec![catalog::host_type("hgx-h100").unwrap()], ..Cluster::default() };
        let mut s = BytesSpec::new(cluster, Vec::new(), "2.28.9".parse().unwrap());
        for h in 0..4 {
            s.cluster.hosts.push(Host { name: format!("host{h}"), ..Host::default() });
            s.nodes.push(SimulatedNode { host: HostId(h as u32), gpus: vec![0], nvlink_domain: None });
            let prefix = ["ip", "netns", "exec", netbox.namespace(h)].map(str::to_owned).to_vec();
            let rails = [netbox.interface(h, 0), netbox.interface(h, 1)].join(",");
            s.places.push(HostPlace {
                prefix,
                env: vec![("LINKWISE_NET_RAILS".into(), rails)],
                ..HostPlace::default()
            });
        }
        s.interfaces = "mgmt".into();
        s.net_plugin = Some(plugin.clone());
        let settings =
            [("LINKWISE_NET", "tcp"), ("LINKWISE_NET_RELAY", "1"), ("LINKWISE_TOKEN", "t"), ("NCCL_DEBUG", "INFO")];
        s.env.extend(settings.map(|(k, v)| (k.to_owned(), v.to_owned())));
        s.env.push(("NCCL_ALGO".into(), algorithm.into()));
        let sizes = [70_001, 5, 4096, 300_003];
        let row = |i: usize| (0..4).map(|k| sizes[(i * 3 + k) % sizes.len()]).collect();
        let mut all = vec![Traffic::AllReduce(400_000)];
        if algorithm == "Ring" {
            all.push(Traffic::SendRecv((0..4).map(row).collect()));
            all.extend([Traffic::AllGather, Traffic::ReduceScatter, Traffic::Broadcast].map(|t| t(400_000)));
        }
        s.calls.extend(all.into_iter().map(|t| BytesCall { repetitions: 3, ..BytesCall::new(t) }));
        let report = match Bench::new().and_then(|b| b.run_bytes(&s)) {
            Ok(report) => report,
            Err(e) if e.is_about_this_machine() => {
                println!("SKIP {name}: {e}");
                return;
            }
            Err(e) => panic!("{algorithm}: {e}"),
        };
        assert_eq!(report.wrong_bytes(), 0, "{algorithm}");
        assert_eq!(report.results.len(), s.calls.len() * 3 * 4);
        assert!(report.log.contains("Using network linkwise"), "{}", report.log);
        let counts = report.log.lines().find(|l| l.contains("messages sent")).unwrap_or_default();
        println!("{algorithm}: {counts}");
    }
}
