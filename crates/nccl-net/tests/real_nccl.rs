//! The plugin in the real NCCL library: processes on this machine, kernels played on the CPU, every byte checked. `LINKWISE_NCCL_VERSIONS` selects
//! other releases; `cargo run -p nccl-net --example bench_net` measures over shaped rails.

mod common;

use common::{every_call, run, set, spec, versions};
use nccl_bench::bytes::{BytesCall, Traffic};

const RAILS: [(&str, &str); 2] = [("LINKWISE_NET", "tcp"), ("LINKWISE_NET_RAILS", "127.0.0.1,127.0.0.2,127.0.0.3")];

#[test]
fn every_byte_of_sends_and_collectives_arrives_over_three_rails() {
    let name = "every_byte_of_sends_and_collectives_arrives_over_three_rails";
    for version in versions("2.24.3 2.32.3") {
        // With P2P and shared memory off, traffic inside a host goes through the plugin, too.
        for off in ["0", "1"] {
            let mut s = spec(&version, 2, 2, &RAILS);
            set(&mut s, &[("NCCL_P2P_DISABLE", off), ("NCCL_SHM_DISABLE", off)]);
            s.calls = every_call(2);
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
