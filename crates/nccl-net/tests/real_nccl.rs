//! The plugin in the real NCCL library: processes on this machine, kernels played on the CPU, every byte checked. `LINKWISE_NCCL_VERSIONS` selects
//! other releases; `cargo run -p nccl-net --example bench_net` measures over shaped rails.

use nccl_bench::bytes::{BytesCall, BytesReport, BytesSpec, Traffic};
use nccl_bench::{Bench, SimulatedNode};
use topology::{Cluster, Host, HostId, catalog};

fn versions(usually: &str) -> Vec<String> {
    let named = std::env::var("LINKWISE_NCCL_VERSIONS").unwrap_or_default();
    let named = if named.trim().is_empty() { usually.to_owned() } else { named };
    named.split_whitespace().map(str::to_owned).collect()
}

fn spec(version: &str, hosts: usize, gpus: u8, settings: &[(&str, &str)]) -> BytesSpec {
    let program = std::env::current_exe().unwrap();
    let plugin = program.parent().unwrap().join("liblinkwise_nccl_net.so");
    let t = catalog::host_type("hgx-h100").unwrap();
    let cluster = Cluster { name: "net".into(), types: vec![t], ..Cluster::default() };
    let mut s = BytesSpec::new(cluster, Vec::new(), version.parse().unwrap());
    for h in 0..hosts {
        s.cluster.hosts.push(Host { name: format!("host{h}"), ..Host::default() });
        s.nodes.push(SimulatedNode { host: HostId(h as u32), gpus: (0..gpus).collect(), nvlink_domain: None });
    }
    s.net_plugin = Some(plugin);
    s.env.push(("NCCL_DEBUG".into(), "INFO".into()));
    s.env.extend(settings.iter().map(|(k, v)| (k.to_string(), v.to_string())));
    s
}

/// `None`, with a SKIP line, if this machine has no compiler or cannot get a library.
fn run(test: &str, spec: &BytesSpec) -> Option<BytesReport> {
    match Bench::new().and_then(|b| b.run_bytes(spec)) {
        Ok(report) => Some(report),
        Err(e) if e.is_about_this_machine() => {
            println!("SKIP {test}: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

const RAILS: [(&str, &str); 2] = [("LINKWISE_NET", "tcp"), ("LINKWISE_NET_RAILS", "127.0.0.1,127.0.0.2,127.0.0.3")];

#[test]
fn every_byte_of_sends_and_collectives_arrives_over_three_rails() {
    let name = "every_byte_of_sends_and_collectives_arrives_over_three_rails";
    for version in versions("2.24.3 2.32.3") {
        // With P2P and shared memory off, traffic inside a host goes through the plugin, too.
        for off in ["0", "1"] {
            let mut s = spec(&version, 2, 2, &RAILS);
            s.env.extend(["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"].map(|k| (k.to_owned(), off.to_owned())));
            let sizes = [70_001, 0, 5, 4096, 1_000_003, 300];
            let row = |i: usize| (0..4).map(|k| sizes[(i * 5 + k * 3) % sizes.len()]).collect();
            let mut all = vec![Traffic::SendRecv((0..4).map(row).collect())];
            all.extend([Traffic::AllReduce, Traffic::AllGather, Traffic::ReduceScatter].map(|t| t(800_000)));
            all.extend([Traffic::Broadcast, Traffic::Reduce].map(|t| t(800_000)));
            s.calls.extend(all.into_iter().map(|t| BytesCall { repetitions: 2, ..BytesCall::new(t) }));
            let Some(report) = run(name, &s) else { return };
            assert_eq!((report.wrong_bytes(), report.results.len()), (0, 4 * 2 * 6), "{version}");
            assert!(report.log.contains("Using network linkwise"), "{version}: {}", report.log);
        }
    }
}

#[test]
fn with_nothing_to_do_the_plugin_offers_no_device_and_nccl_uses_its_sockets() {
    let name = "with_nothing_to_do_the_plugin_offers_no_device_and_nccl_uses_its_sockets";
    // 2.28.9 releases the context of a plugin without devices together with its own InfiniBand transport.
    for version in versions("2.24.3 2.27.7 2.28.9 2.30.7 2.32.3") {
        let mut s = spec(&version, 2, 1, &[("LINKWISE_NET", "off")]);
        s.calls.push(BytesCall::new(Traffic::AllReduce(100_000)));
        let Some(report) = run(name, &s) else { return };
        assert_eq!(report.wrong_bytes(), 0);
        assert!(report.log.contains("NET/linkwise: LINKWISE_NET is off; NCCL uses its own network transport"));
        assert!(report.log.contains("Using network Socket"), "{version}: {}", report.log);
    }
}
