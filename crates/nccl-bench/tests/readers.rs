//! Tests of the readers of NCCL's log and graph dump: their values, and no panic on any text. They need no library.

use nccl_bench::read::{CHANNELS_MAX, graphs, log};
use nccl_bench::{ChannelCounts, KernelLaunch};
use proptest::prelude::*;
use topology::Collective;
use topology::nccl::{Algorithm, GraphKind, PathType, Protocol};

fn corpus(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../../fuzz/corpus/nccl_log/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

#[test]
fn every_line_of_interest_is_read() {
    let l = log::read(&corpus("words_of_2_28.txt"));
    assert_eq!((l.version_code, l.nccl_nodes, l.bandwidths, l.done), (Some(22809), Some(2), Some((48.0, 370.8)), true));
    let (device, g) = &l.graphs[0];
    assert_eq!((*device, g.kind, g.cross_nic, g.channel_count), (0, GraphKind::Ring, 2, 8));
    assert_eq!(
        (g.bw_intra_gb_per_s, g.type_intra, g.type_inter, g.same_channels),
        (48.0, PathType::Nvl, PathType::Pix, false)
    );
    assert_eq!(l.ring_next.iter().map(|(k, v)| (*k, *v)).collect::<Vec<_>>(), [((0, 0), 1), ((0, 1), 2)]);
    assert_eq!(l.trees[&(0, 0)], (None, vec![1, 2]));
    assert_eq!(l.trees[&(1, 0)], (Some(2), vec![1]));
    assert_eq!(l.nvls_heads[&0], [0, 2]);
    assert_eq!(l.channels, Some(ChannelCounts { coll: 16, collnet: 16, nvls: 16, p2p: 16, p2p_per_peer: 2 }));
    assert_eq!(l.rates.len(), 6);
    let of = |a, p| l.rates.iter().find(|r| (r.algorithm, r.protocol) == (a, p)).unwrap();
    assert_eq!(of(Algorithm::Tree, Protocol::Ll128).bandwidth_gb_per_s, 124.8);
    assert_eq!(of(Algorithm::Ring, Protocol::Ll).bandwidth_gb_per_s, 0.0, "-1 is not available");
    let c = &l.calls[0];
    assert_eq!((c.collective, c.size_bytes, c.requested_bytes), (Collective::AllReduce, 1024, 1025));
    assert_eq!((c.estimate_us, c.launch), (Some(20.468645), Some(KernelLaunch { kernels: 1, grid: 4, block: 512 })));
    let d = c.decisions[0];
    assert_eq!((d.algorithm, d.protocol, d.channels), (Algorithm::Tree, Protocol::Ll, Some((0, 3))));
    let over_network = &l.connections[0];
    assert_eq!((over_network.nic, over_network.through, over_network.send), (Some(3), Some(1), Some(true)));
    assert_eq!((l.connections[1].from, l.connections[1].to, l.connections[1].send), (0, 1, None));
    assert_eq!(l.warnings, ["something is odd"]);
}

#[test]
fn releases_before_2_24_write_numbers() {
    let l = log::read(&corpus("numbers_of_2_23.txt"));
    let d = l.calls[0].decisions[0];
    assert_eq!(
        (d.algorithm, d.protocol, d.channels, d.time_us),
        (Algorithm::Ring, Protocol::Ll, None, Some(15.391896))
    );
    assert!(l.calls[0].captured && !l.done);
    assert_eq!(l.errors, ["ncclGroupEnd failed with 2: out of sockets"]);
}

#[test]
fn a_decision_of_a_simulation_is_none() {
    let l = log::read(
        "@linkwise call 0 reduce 4096 4096 plain\n@linkwise simulate 0\nh:1:2 [0] NCCL INFO 4096 Bytes -> Algo 1 proto 0 time 1.0\n",
    );
    assert!(l.calls[0].decisions.is_empty());
}

#[test]
fn graphs_name_gpus_by_host_rank_and_domain() {
    let node = graphs::DumpContext { gpus: &[6, 1], first_rank: 1, domain: vec![(8, 8), (8, 8)] };
    let found = graphs::read(&corpus("graphs.xml"), &node).unwrap();
    assert_eq!(found.len(), 2, "a search without channels is left out");
    assert_eq!((&found[0].channels[0].gpus[..], &found[0].channels[0].nics[..]), (&[7, 9][..], &[0, 1][..]));
    // An NVLS channel is its head.
    assert_eq!((&found[1].channels[0].gpus[..], &found[1].channels[0].nics[..]), (&[1][..], &[0][..]));
    let alone = graphs::DumpContext { gpus: &[6], first_rank: 1, domain: Vec::new() };
    assert!(graphs::read(&corpus("graphs.xml"), &alone).unwrap_err().contains("host 1 of its domain"));
}

#[test]
fn text_that_is_not_a_graph_dump_is_refused_with_a_reason() {
    let node = graphs::DumpContext::default();
    for (text, wanted) in [
        ("", "not XML"),
        ("<system/>", "<system>, not <graphs>"),
        ("<graphs><graph id=\"9\"/></graphs>", "id 9"),
        ("<graphs><graph id=\"0\"><channel><disk dev=\"0\"/></channel></graph></graphs>", "<disk>"),
        ("<graphs><graph id=\"0\"><channel><gpu dev=\"300\"/></channel></graph></graphs>", "out of range"),
    ] {
        let e = graphs::read(text, &node).unwrap_err();
        assert!(e.contains(wanted), "{text}: {e}");
    }
    let bomb = "<graphs>".repeat(100_000);
    assert!(graphs::read(&bomb, &node).unwrap_err().contains("nested"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_text_makes_the_readers_panic(text in "\\PC{0,400}") {
        log::read(&text);
        let _ = graphs::read(&text, &graphs::DumpContext::default());
    }

    #[test]
    fn a_log_with_wrong_bytes_makes_no_reader_panic(at in 0usize..2000, what in "[ -~]{0,12}", cut in 0usize..2500) {
        for name in ["words_of_2_28.txt", "numbers_of_2_23.txt", "graphs.xml"] {
            let mut text = corpus(name);
            let at = at.min(text.len());
            text.replace_range(at..(at + what.len()).min(text.len()), &what);
            text.truncate(cut.min(text.len()));
            let l = log::read(&text);
            prop_assert!(l.rates.iter().all(|r| r.latency_us >= 0.0 && r.bandwidth_gb_per_s >= 0.0));
            prop_assert!(l.ring_next.keys().all(|(c, _)| (*c as usize) < CHANNELS_MAX));
            prop_assert!(l.trees.keys().all(|(c, _)| (*c as usize) < CHANNELS_MAX));
            let _ = graphs::read(&text, &graphs::DumpContext { gpus: &[0], first_rank: 0, domain: vec![(8, 8)] });
        }
    }
}
