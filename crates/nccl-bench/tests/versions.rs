//! Runs the releases of `make test` on a small matrix of hosts. LINKWISE_NCCL_VERSIONS gives other releases (`make test-nccl-matrix`).

mod common;

use common::{FIVE, rate, run, sizes, spec};
use nccl_bench::{BenchReport, PlannedCall};
use topology::Collective;
use topology::nccl::{Algorithm, GraphKind, PathType, Protocol};

fn versions() -> Vec<String> {
    let named = std::env::var("LINKWISE_NCCL_VERSIONS").unwrap_or_default();
    let named = if named.trim().is_empty() { "2.24 2.28 2.30 2.32".to_string() } else { named };
    named.split_whitespace().map(str::to_string).collect()
}

/// Checks that hold for every report.
fn check_whole(report: &BenchReport, what: &str) {
    assert_eq!(report.calls.len(), FIVE.len() * sizes().len(), "{what}");
    for c in &report.calls {
        let d = c
            .decision
            .as_ref()
            .unwrap_or_else(|| panic!("{what}: no decision for {} of {}", c.collective, c.size_bytes));
        let cell = rate(report, d.collective, d.algorithm, d.protocol);
        assert!(cell.bandwidth_gb_per_s > 0.0, "{what}: {d:?} is not in the table");
        assert!(
            c.size_bytes <= c.requested_bytes && c.requested_bytes - c.size_bytes < 4 * u64::from(report.ranks),
            "{what}: {c:?}"
        );
        let most = report.channels.coll.max(report.channels.nvls);
        assert!((1..=most).contains(&d.channels), "{what}: {d:?} of {most} channels");
        if report.version.at_least(2, 24, 0) {
            let (low, high) = c.channel_range.unwrap();
            assert_eq!(d.channels, high - low + 1);
        }
        let launch = c.launch.unwrap_or_else(|| panic!("{what}: no kernel for {c:?}"));
        assert_eq!((launch.kernels, launch.grid), (1, d.channels), "{what}: {c:?}");
        if report.version.at_least(2, 22, 0) {
            // NCCL's own model: latency plus bytes over bandwidth, up to its corrections (at most a factor of 2.5) and the table's rounding.
            let us = c.estimate_us.unwrap();
            let plain = cell.latency_us + c.size_bytes as f64 / cell.bandwidth_gb_per_s / 1e3;
            assert!(us >= 0.9 * plain - 0.1 && us <= 2.6 * plain, "{what}: {c:?} against {plain} us");
        }
    }
    assert_eq!(report.rings.len() as u32, report.channels.coll, "{what}");
    for ring in &report.rings {
        let mut ranks = ring.clone();
        ranks.sort_unstable();
        assert_eq!(ranks, (0..report.ranks).collect::<Vec<_>>(), "{what}: {ring:?}");
    }
    assert_eq!(report.trees.len() as u32, report.channels.coll, "{what}");
    for tree in &report.trees {
        assert_eq!(tree.iter().filter(|p| p.up.is_none()).count(), 1, "{what}: one root");
        assert_eq!(tree.iter().map(|p| p.down.len()).sum::<usize>() as u32, report.ranks - 1, "{what}: {tree:?}");
        for place in tree {
            for child in &place.down {
                assert_eq!(tree[*child as usize].up, Some(place.rank), "{what}: {tree:?}");
            }
        }
    }
    assert_eq!(report.absent, Vec::<String>::new(), "{what}: driver or NVML functions that the emulation lacks");
    assert_eq!(report.library_sha256.len(), 64);
}

#[test]
fn every_version_searches_an_h100_host_and_decides_its_calls() {
    let name = "every_version_searches_an_h100_host_and_decides_its_calls";
    for version in versions() {
        let mut s = spec("hgx-h100", &[8], &version).with_calls(&FIVE, &sizes());
        let plain = s.calls.len();
        let captured = |collective, captured| PlannedCall { collective, size_bytes: 1 << 20, captured };
        s.calls.push(captured(Collective::AllReduce, true));
        for kind in [Collective::SendRecv, Collective::AllToAll] {
            s.calls.extend([captured(kind, false), captured(kind, true)]);
        }
        let Some(mut report) = run(name, &s) else { return };
        let extra = report.calls.split_off(plain);
        check_whole(&report, &version);
        // A captured call launches its kernel with the graph, twice.
        assert_eq!(extra[0].launch.unwrap().kernels, 2, "{version}: {:?}", extra[0]);
        assert!(extra[0].decision.is_some(), "{version}");
        for pair in extra[1..].chunks(2) {
            let (eager, graph) = (pair[0].launch.unwrap(), pair[1].launch.unwrap());
            assert_eq!((eager.kernels, graph.kernels), (1, 2), "{version}: {pair:?}");
            assert!(pair.iter().all(|c| c.decision.is_none()), "send and receive have no algorithm");
        }
        // 18 NVLink 4 of 20.6 GB/s.
        assert_eq!(report.nodes[0].total_bw_gb_per_s, 370.8);
        assert_eq!((report.ranks, report.nccl_nodes, report.channels.nvls), (8, 1, 16));
        // Since 2.28 NCCL's NVLS bandwidth uses R/steps instead of 5/6.
        let nvls = rate(&report, Collective::AllReduce, Algorithm::Nvls, Protocol::Simple);
        assert_eq!(nvls.bandwidth_gb_per_s, if report.version.at_least(2, 28, 0) { 272.0 } else { 266.7 }, "{version}");
        let last = report.calls[sizes().len() - 1].decision.unwrap();
        assert_eq!((last.algorithm, last.channels), (Algorithm::Nvls, 16), "{version}: 1 GiB all-reduce");
        let first = report.calls[0].decision.unwrap();
        assert_eq!(
            (first.algorithm, first.protocol, first.channels),
            (Algorithm::Ring, Protocol::Ll, 1),
            "{version}: 1 KiB"
        );
    }
}

#[test]
fn uneven_h100_hosts_agree_on_the_channels_of_the_smaller_one() {
    let name = "uneven_h100_hosts_agree_on_the_channels_of_the_smaller_one";
    for version in versions() {
        let Some(report) = run(name, &spec("hgx-h100", &[8, 3], &version).with_calls(&FIVE, &sizes())) else { return };
        check_whole(&report, &version);
        let ring = |node: usize| report.nodes[node].graphs.iter().find(|g| g.kind == GraphKind::Ring).unwrap();
        let (large, small) = (ring(0), ring(1));
        assert_eq!((large.channel_count, large.bw_inter_gb_per_s), (8, 48.0), "{version}");
        assert_eq!(
            (small.channel_count, small.bw_inter_gb_per_s, small.type_inter),
            (6, 24.0, PathType::Pxn),
            "{version}"
        );
        // Every channel visits all GPUs of the host and has its NICs; three GPUs use three NICs in turn.
        assert!(large.channels.iter().all(|c| c.gpus.len() == 8 && c.nics.len() == 2 && c.nics[0] == c.nics[1] ^ 1));
        assert_eq!(small.channels.iter().map(|c| c.nics[0]).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2], "{version}");
        let merged = report.merged_graphs.iter().find(|g| g.kind == GraphKind::Ring).unwrap();
        assert_eq!((merged.channel_count, merged.bw_inter_gb_per_s), (6, 24.0));
        assert_eq!((report.ranks, report.nccl_nodes), (11, 2));
        // Both ends log a network connection, with a NIC of the simulated plugin.
        let ends = |send| report.connections.iter().filter(|c| c.send == Some(send)).count();
        assert!(ends(true) > 0 && ends(true) == ends(false), "{version}");
        assert!(
            report.connections.iter().filter(|c| c.send.is_some()).all(|c| c.nic.is_some_and(|n| n < 8)),
            "{version}"
        );
    }
}

#[test]
fn an_a100_host_has_twelve_links_and_no_nvls() {
    for version in versions() {
        let Some(report) = run(
            "an_a100_host_has_twelve_links_and_no_nvls",
            &spec("dgx-a100", &[8], &version).with_calls(&FIVE, &sizes()),
        ) else {
            return;
        };
        check_whole(&report, &version);
        assert_eq!(report.nodes[0].total_bw_gb_per_s, 240.0, "{version}");
        assert_eq!((report.channels.coll, report.channels.nvls), (24, 0), "{version}");
        assert_eq!(rate(&report, Collective::AllReduce, Algorithm::Nvls, Protocol::Simple).bandwidth_gb_per_s, 0.0);
    }
}

#[test]
fn a_b200_host_has_links_of_twice_the_rate() {
    for version in versions() {
        let s = spec("hgx-b200", &[8], &version);
        if !nccl_bench::library::with_patch(s.version).unwrap().at_least(2, 25, 0) {
            continue; // 2.24 and older do not know the chip
        }
        let Some(report) = run("a_b200_host_has_links_of_twice_the_rate", &s.with_calls(&FIVE, &sizes())) else {
            return;
        };
        check_whole(&report, &version);
        let wanted = if report.version.at_least(2, 27, 0) { 721.8 } else { 720.0 };
        assert_eq!(report.nodes[0].total_bw_gb_per_s, wanted, "{version}");
        assert!(report.calls[sizes().len() - 1].decision.is_some_and(|d| d.algorithm == Algorithm::Nvls), "{version}");
    }
}

/// Search results by number of GPUs of an H100 host in a job on several hosts, from earlier runs of 2.23 and 2.27 with another topology file:
/// channels and GB/s of ring, tree (inside / between) and NVLS.
type Search = (usize, f64, (usize, f64, f64), Option<(usize, f64)>);
const SEARCHES: [Search; 6] = [
    (2, 24.0, (2, 48.0, 24.0), None),
    (4, 24.0, (4, 48.0, 24.0), None),
    (6, 24.0, (6, 48.0, 24.0), Some((3, 48.0))),
    (5, 48.0, (5, 48.0, 48.0), Some((5, 48.0))),
    (6, 48.0, (6, 48.0, 48.0), Some((6, 48.0))),
    (7, 48.0, (7, 48.0, 48.0), Some((7, 45.0))),
];

#[test]
fn a_hosts_search_depends_only_on_its_own_gpus() {
    let counts = [1u8, 2, 3, 5, 6, 7]; // four GPUs take ten times as long, eight are searched above
    let version = versions().remove(0);
    let Some(report) = run("a_hosts_search_depends_only_on_its_own_gpus", &spec("hgx-h100", &counts, &version)) else {
        return;
    };
    for ((node, count), (ring, ring_bw, tree, nvls)) in report.nodes.iter().zip(counts).zip(SEARCHES) {
        let of = |kind| node.graphs.iter().find(|g| g.kind == kind);
        let (r, t, n) = (of(GraphKind::Ring).unwrap(), of(GraphKind::Tree).unwrap(), of(GraphKind::Nvls));
        assert_eq!(
            (r.channel_count, r.bw_intra_gb_per_s, r.bw_inter_gb_per_s),
            (ring, ring_bw, ring_bw),
            "{count} GPUs"
        );
        assert_eq!((t.channel_count, t.bw_intra_gb_per_s, t.bw_inter_gb_per_s), tree, "{count} GPUs");
        assert_eq!(n.map(|n| (n.channel_count, n.bw_intra_gb_per_s)), nvls, "{count} GPUs");
    }
    let merged = report.merged_graphs.iter().map(|g| (g.kind, g.channel_count)).collect::<Vec<_>>();
    assert_eq!(merged, [(GraphKind::Ring, 2), (GraphKind::Tree, 2)], "a host with one GPU has no NVLS");
}
