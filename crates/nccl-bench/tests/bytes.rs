//! NCCL moves real bytes: kernels are played on the CPU, every byte is checked at its receiver. Two releases here; LINKWISE_NCCL_VERSIONS gives
//! others (`make test-nccl-matrix`).

mod common;

use common::skip;
use nccl_bench::bytes::{BytesCall, BytesReport, BytesSpec, Element, HostPlace, Player, Reduction, Traffic};
use nccl_bench::{Bench, BenchError, layout, order};
use std::time::Duration;
use topology::nccl::Algorithm;

fn versions() -> Vec<String> {
    let named = std::env::var("LINKWISE_NCCL_VERSIONS").unwrap_or_default();
    let named = if named.trim().is_empty() { "2.24.3 2.32.3".to_string() } else { named };
    let supported =
        |v: &&str| v.parse().is_ok_and(|v| layout::RELEASES.contains(&nccl_bench::library::with_patch(v).unwrap_or(v)));
    named.split_whitespace().filter(supported).map(str::to_string).collect()
}

fn spec(counts: &[u8], version: &str) -> BytesSpec {
    let of = common::spec("hgx-h100", counts, version);
    BytesSpec::new(of.cluster, of.nodes, of.version)
}

fn with(mut spec: BytesSpec, env: &[(&str, &str)]) -> BytesSpec {
    spec.env.extend(env.iter().map(|(n, v)| (n.to_string(), v.to_string())));
    spec
}

/// Uneven messages between all pairs, some empty.
fn matrix(ranks: usize) -> Traffic {
    let sizes = [70_001, 0, 5, 4096, 1_000_003, 300];
    Traffic::SendRecv((0..ranks).map(|i| (0..ranks).map(|k| sizes[(i * 5 + k * 3) % sizes.len()]).collect()).collect())
}

fn five(bytes: u64) -> Vec<Traffic> {
    vec![
        Traffic::AllReduce(bytes),
        Traffic::AllGather(bytes),
        Traffic::ReduceScatter(bytes),
        Traffic::Broadcast(bytes),
        Traffic::Reduce(bytes),
    ]
}

/// A run's report; `None`, with a SKIP line, if this machine has no compiler or cannot get a library.
fn run(test: &str, spec: &BytesSpec) -> Option<BytesReport> {
    match Bench::new().and_then(|b| b.run_bytes(spec)) {
        Ok(report) => Some(report),
        Err(e) => skip(test, e),
    }
}

fn fails(test: &str, spec: &BytesSpec) -> Option<BenchError> {
    match Bench::new().and_then(|b| b.run_bytes(spec)) {
        Ok(report) => panic!("{} of {} bytes are wrong, and no error", report.wrong_bytes(), report.bytes()),
        Err(e) if e.is_about_this_machine() => skip(test, e),
        Err(e) => Some(e),
    }
}

#[test]
fn every_byte_of_sends_and_collectives_arrives_with_every_protocol() {
    let name = "every_byte_of_sends_and_collectives_arrives_with_every_protocol";
    for version in versions() {
        for protocol in ["Simple", "LL", "LL128"] {
            let mut s = with(spec(&[2, 2], &version), &[("NCCL_ALGO", "Ring"), ("NCCL_PROTO", protocol)]);
            s.calls.push(BytesCall { repetitions: 2, ..BytesCall::new(matrix(4)) });
            for (bytes, element, reduction) in [
                (1000, Element::F32, Reduction::Sum),
                (700_000, Element::Bf16, Reduction::Sum),
                (300_004, Element::I64, Reduction::Max),
                (123_456, Element::F16, Reduction::Min),
            ] {
                let call = |t| BytesCall { element, reduction, root: 1, ..BytesCall::new(t) };
                s.calls.extend(five(bytes).into_iter().map(call));
            }
            let Some(report) = run(name, &s) else { return };
            assert_eq!(report.results.len(), 4 * 22);
            assert!(report.bytes() > 10_000_000);
            let wrong: Vec<_> = report.results.iter().filter(|r| r.wrong_bytes > 0).collect();
            assert!(wrong.is_empty(), "{version} {protocol}: {wrong:?}");
            let decided = report.log.lines().filter(|l| l.contains("Algo RING")).count();
            assert_eq!(decided, 20, "{version} {protocol}");
        }
    }
}

#[test]
fn every_byte_of_a_tree_arrives_with_every_protocol() {
    let name = "every_byte_of_a_tree_arrives_with_every_protocol";
    for version in versions() {
        for protocol in ["Simple", "LL", "LL128"] {
            let mut s = with(spec(&[2, 2, 2], &version), &[("NCCL_ALGO", "Tree"), ("NCCL_PROTO", protocol)]);
            for (bytes, element) in [(4, Element::F32), (1_000_000, Element::F16), (2_000_000, Element::I32)] {
                s.calls.push(BytesCall { element, ..BytesCall::new(Traffic::AllReduce(bytes)) });
            }
            let Some(report) = run(name, &s) else { return };
            assert_eq!(report.wrong_bytes(), 0, "{version} {protocol}: {:?}", report.results);
            assert_eq!(report.log.lines().filter(|l| l.contains("Algo TREE")).count(), 3, "{version} {protocol}");
        }
    }
}

#[test]
fn sums_have_the_bits_of_the_order_of_the_ring_or_tree() {
    let name = "sums_have_the_bits_of_the_order_of_the_ring_or_tree";
    let elements = [Element::F32, Element::F16, Element::Bf16, Element::F64, Element::I32];
    let newest = versions().pop(); // the order is the player's, not a release's
    for (version, algorithm, protocol) in newest.iter().flat_map(|v| {
        [
            (v, Algorithm::Ring, "Simple"),
            (v, Algorithm::Ring, "LL128"),
            (v, Algorithm::Tree, "Simple"),
            (v, Algorithm::Tree, "LL"),
        ]
    }) {
        let word = if algorithm == Algorithm::Ring { "Ring" } else { "Tree" };
        let mut s = with(spec(&[2, 2, 1], version), &[("NCCL_ALGO", word), ("NCCL_PROTO", protocol)]);
        for element in elements {
            let kept = |t| BytesCall { element, root: 2, keep_output: true, ..BytesCall::new(t) };
            s.calls.push(kept(Traffic::AllReduce(60_000)));
            if algorithm == Algorithm::Ring {
                s.calls.extend([kept(Traffic::ReduceScatter(60_000)), kept(Traffic::Reduce(20_000))]);
            }
        }
        let Some(report) = run(name, &s) else { return };
        let what = format!("{version} {word} {protocol}");
        for (i, call) in s.calls.iter().enumerate() {
            let orders =
                order::check(&report, i as u32, call, algorithm).unwrap_or_else(|e| panic!("{what} {call:?}: {e}"));
            assert!(orders.elements > 0);
            let all_reduce = matches!(call.traffic, Traffic::AllReduce(_));
            if call.element == Element::F32 && all_reduce {
                // Every rank begins some piece of a ring; a tree has one order per channel.
                assert!(
                    orders.seen.len() >= if algorithm == Algorithm::Ring { 5 } else { 1 },
                    "{what}: {:?}",
                    orders.seen
                );
                // The same outputs are wrong in the order of another ring.
                let mut other = report.clone();
                other.rings = vec![vec![0, 2, 4, 1, 3]];
                other.trees.iter_mut().for_each(|t| {
                    let down = t.iter().position(|p| p.down.len() > 1).map(|p| t[p].down.remove(0));
                    if let (Some(child), Some(leaf)) =
                        (down, t.iter().position(|p| p.down.is_empty() && Some(p.rank) != down))
                    {
                        t[leaf].down.push(child);
                    } else {
                        t.clear();
                    }
                });
                assert!(
                    order::check(&other, i as u32, call, algorithm).is_err(),
                    "{what}: a wrong order was not noticed"
                );
            }
        }
    }
}

#[test]
fn captured_calls_are_replayed_with_new_data_every_time() {
    let name = "captured_calls_are_replayed_with_new_data_every_time";
    for version in versions() {
        let mut s = spec(&[2, 2], &version);
        let captured = |t| BytesCall { captured: true, repetitions: 4, ..BytesCall::new(t) };
        s.calls.push(captured(matrix(4)));
        s.calls.extend(five(500_000).into_iter().map(captured));
        let Some(report) = run(name, &s) else { return };
        assert_eq!(report.results.len(), 4 * 4 * 6);
        assert_eq!(report.wrong_bytes(), 0, "{version}: {:?}", report.results);
    }
}

#[test]
fn every_operation_in_place_and_out_of_place_gives_the_right_result() {
    let name = "every_operation_in_place_and_out_of_place_gives_the_right_result";
    for version in versions() {
        let mut s = spec(&[2, 2], &version); // four ranks: a quarter is exact in every float
        let elements = [Element::U8, Element::I32, Element::F16, Element::Bf16, Element::F32, Element::F64];
        for (i, reduction) in
            [Reduction::Prod, Reduction::Avg, Reduction::Max, Reduction::Min, Reduction::Sum].into_iter().enumerate()
        {
            for (k, element) in elements.into_iter().enumerate() {
                let in_place = (i + k) % 2 == 0;
                for traffic in [Traffic::AllReduce(40_000), Traffic::ReduceScatter(40_000)] {
                    s.calls.push(BytesCall { reduction, element, in_place, ..BytesCall::new(traffic) });
                }
            }
        }
        for traffic in [Traffic::AllGather(40_000), Traffic::Broadcast(40_000), Traffic::Reduce(40_000)] {
            s.calls.push(BytesCall { in_place: true, root: 3, ..BytesCall::new(traffic) });
        }
        let Some(report) = run(name, &s) else { return };
        let wrong: Vec<_> =
            report.results.iter().filter(|r| r.wrong_bytes > 0).map(|r| (&s.calls[r.call as usize], r)).collect();
        assert!(wrong.is_empty(), "{version}: {wrong:?}");
    }
}

#[test]
fn thousands_of_calls_reuse_the_queue_of_works() {
    let name = "thousands_of_calls_reuse_the_queue_of_works";
    for version in versions() {
        let mut s = with(spec(&[1, 1], &version), &[("NCCL_WORK_FIFO_BYTES", "16384")]);
        s.calls.push(BytesCall { repetitions: 600, ..BytesCall::new(Traffic::AllReduce(64)) });
        s.calls
            .push(BytesCall { repetitions: 100, ..BytesCall::new(Traffic::SendRecv(vec![vec![8, 64], vec![1, 8]])) });
        let Some(report) = run(name, &s) else { return };
        assert_eq!((report.results.len(), report.wrong_bytes()), (1400, 0), "{version}");
    }
}

#[test]
fn copies_inside_a_host_take_the_time_of_their_links() {
    let name = "copies_inside_a_host_take_the_time_of_their_links";
    for protocol in ["Simple", "LL128"] {
        let mut s = with(spec(&[3], "2.28.9"), &[("NCCL_PROTO", protocol)]);
        let (bytes, slow, fast) = (4_000_000u64, 200, 2000);
        let pairs = vec![(0, 1, slow), (0, 2, fast)];
        s.places = vec![HostPlace { pair_mbit_per_s: pairs, ..HostPlace::default() }];
        for to in [1, 2, 1, 2] {
            let mut matrix = vec![vec![0; 3]; 3];
            matrix[0][to] = bytes;
            s.calls.push(BytesCall { repetitions: 2, ..BytesCall::new(Traffic::SendRecv(matrix)) });
        }
        let Some(report) = run(name, &s) else { return };
        assert_eq!(report.wrong_bytes(), 0);
        // The second repetition: connections exist.
        let best = |a, b| report.seconds(a, 1).unwrap().min(report.seconds(b, 1).unwrap());
        let (of_slow, of_fast) = (best(0, 2), best(1, 3));
        let least = bytes as f64 * 8.0 / (f64::from(slow) * 1e6) - 0.002; // a burst of 1 ms, and the clock
        assert!(of_slow > least && of_slow > 3.0 * of_fast, "{of_slow} s and {of_fast} s; at least {least} s");
    }
}

/// Lines by which NCCL says that it has mapped a user buffer into a peer's process.
fn mapped_buffers(report: &BytesReport) -> usize {
    report.log.lines().filter(|l| l.contains("IPC") && l.contains("regist") && l.contains("buffer")).count()
}

#[test]
fn peers_of_a_host_write_into_registered_buffers() {
    let name = "peers_of_a_host_write_into_registered_buffers";
    for version in versions() {
        for (counts, algorithm) in [(&[4][..], "Ring"), (&[4], "Tree"), (&[2, 2], "Ring"), (&[3, 3], "Tree")] {
            let ranks = counts.iter().map(|c| *c as usize).sum();
            let settings = [
                ("NCCL_LOCAL_REGISTER", "1"),
                ("NCCL_GRAPH_REGISTER", "1"),
                ("NCCL_DEBUG_SUBSYS", "INIT,TUNING,REG"),
                ("NCCL_ALGO", algorithm),
                ("NCCL_PROTO", "Simple"),
            ];
            let mut s = with(spec(counts, &version), &settings);
            let mut traffics = vec![matrix(ranks), Traffic::AllReduce(3_000_000)];
            if algorithm == "Ring" {
                traffics = vec![matrix(ranks)];
                traffics.extend(five(3_000_000));
            }
            for traffic in traffics {
                let call = BytesCall { registered: true, repetitions: 3, ..BytesCall::new(traffic) };
                s.calls.push(BytesCall { captured: true, ..call.clone() });
                s.calls.push(call);
            }
            let Some(report) = run(name, &s) else { return };
            let mapped = mapped_buffers(&report);
            println!("{version} {counts:?} {algorithm}: {mapped} buffers mapped");
            let wrong: Vec<_> = report.results.iter().filter(|r| r.wrong_bytes > 0).take(4).collect();
            assert!(wrong.is_empty(), "{version} {counts:?} {algorithm}: {wrong:?}");
            assert!(mapped > 0, "{version} {counts:?} {algorithm}: no peer maps a buffer");
        }
    }
}

#[test]
fn a_profiler_sees_the_start_and_end_of_every_channel_of_a_kernel() {
    let name = "a_profiler_sees_the_start_and_end_of_every_channel_of_a_kernel";
    let folder = tempfile::tempdir().unwrap();
    let plugin = folder.path().join("libprofiler.so");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/profiler.c");
    let built =
        std::process::Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).args([&plugin, &source]).status();
    if !built.is_ok_and(|s| s.success()) {
        eprintln!("SKIP {name}: no C compiler");
        return;
    }
    for version in ["2.28.9", "2.32.3"] {
        let out = folder.path().join(version);
        let mut s =
            with(spec(&[1, 1], version), &[("LINKWISE_TEST_PROFILE", out.to_str().unwrap()), ("NCCL_ALGO", "Ring")]);
        s.profiler_plugin = Some(plugin.clone());
        s.calls.push(BytesCall { repetitions: 100, ..BytesCall::new(Traffic::AllReduce(100_000)) });
        let Some(report) = run(name, &s) else { return };
        assert_eq!(report.wrong_bytes(), 0);
        for rank in 0..2 {
            let text = std::fs::read_to_string(format!("{}.{rank}", out.display())).unwrap();
            let counts: Vec<u64> = text.split_whitespace().map(|w| w.parse().unwrap()).collect();
            assert!(counts[0] >= 100 && counts[0] == counts[1] && counts[2] == 0, "{version} rank {rank}: {counts:?}");
        }
    }
}

#[test]
fn without_kernels_every_byte_of_other_ranks_is_wrong() {
    let name = "without_kernels_every_byte_of_other_ranks_is_wrong";
    let mut s = spec(&[1, 1], "2.28.9");
    s.player = Player::Nothing;
    s.calls.push(BytesCall::new(Traffic::SendRecv(vec![vec![0, 100_000], vec![50_000, 0]])));
    let Some(report) = run(name, &s) else { return };
    assert!(report.wrong_bytes() > 149_000 && report.wrong_bytes() <= 150_000, "{:?}", report.results); // a byte may be right by chance
    let first = report.results[0].first_wrong.unwrap();
    assert_eq!((first.channel, first.step), (None, None), "no step wrote it");
}

#[test]
fn parts_in_the_order_of_another_release_are_found_with_channel_and_step() {
    let name = "parts_in_the_order_of_another_release_are_found_with_channel_and_step";
    for version in ["2.27.7", "2.28.9"] {
        // With two channels per peer both orders are the same.
        let channels = [("NCCL_NCHANNELS_PER_NET_PEER", "4"), ("NCCL_MIN_P2P_NCHANNELS", "4")];
        let mut s = with(spec(&[1, 1], version), &channels);
        s.player = Player::WrongParts;
        s.places = vec![HostPlace::default(), HostPlace { player: Some(Player::Plays), ..HostPlace::default() }];
        s.calls.push(BytesCall::new(Traffic::SendRecv(vec![vec![0, 4_000_000], vec![4_000_000, 0]])));
        let Some(report) = run(name, &s) else { return };
        assert!(report.wrong_bytes() > 1_000_000, "{version}: {:?}", report.results);
        let first = report.results.iter().find_map(|r| r.first_wrong).unwrap();
        assert!(first.channel.is_some() && first.step.is_some() && first.peer.is_some_and(|p| p >= 0), "{first:?}");
    }
}

#[test]
fn a_rank_that_waits_too_long_is_reported_with_channel_and_step() {
    let name = "a_rank_that_waits_too_long_is_reported_with_channel_and_step";
    let mut s = spec(&[1, 1], "2.28.9");
    s.stall = Duration::from_secs(2);
    s.places = vec![HostPlace::default(), HostPlace { player: Some(Player::Nothing), ..HostPlace::default() }];
    s.calls.push(BytesCall::new(Traffic::AllReduce(1 << 20)));
    let Some(e) = fails(name, &s) else { return };
    let BenchError::Stuck { waits, .. } = &e else { panic!("{e}") };
    assert!(waits[0].starts_with("rank 0: channel 0 step ") && waits[0].contains("rank 1"), "{e}");
}

#[test]
fn an_algorithm_that_is_not_played_is_named() {
    let name = "an_algorithm_that_is_not_played_is_named";
    let mut s = with(spec(&[1, 1, 1], "2.28.9"), &[("NCCL_PAT_ENABLE", "1"), ("NCCL_ALGO", "PAT")]);
    s.calls.push(BytesCall::new(Traffic::AllGather(1 << 20)));
    let Some(e) = fails(name, &s) else { return };
    assert!(e.to_string().contains("all-gather by PAT") && matches!(e, BenchError::NotPlayed { .. }), "{e}");
}

#[test]
fn a_release_that_was_not_tested_is_refused() {
    let s = spec(&[1, 1], "2.21.5");
    let e = Bench::in_cache("/nowhere").run_bytes(&s).unwrap_err().to_string();
    assert!(
        e.contains("2.21.5") && e.contains("2.24.3, 2.27.7, 2.28.9, 2.30.7, 2.32.3") && e.contains("choose one"),
        "{e}"
    );
}

/// A small generator, so that the damaged files are the same in every run.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

#[test]
fn a_damaged_layout_ends_with_an_error_and_never_with_a_signal() {
    let name = "a_damaged_layout_ends_with_an_error_and_never_with_a_signal";
    let mut s = spec(&[1, 1], "2.28.9");
    s.stall = Duration::from_secs(1);
    s.deadline = Duration::from_secs(20);
    s.calls.push(BytesCall::new(Traffic::SendRecv(vec![vec![0, 300_000], vec![300_000, 0]])));
    s.calls.push(BytesCall::new(Traffic::AllReduce(300_000)));
    let library =
        match nccl_bench::library::default_cache().and_then(|c| nccl_bench::Library::get_or_fetch(&c, s.version)) {
            Ok(library) => library,
            Err(e) => return skip(name, e).unwrap_or_default(),
        };
    let good = std::fs::read_to_string(layout::Layout::get_or_read(&library).unwrap().path).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    s.layout = Some(file.path().into());
    let mut state = 7;
    let mut refused = 0;
    for round in 0..30 {
        let mut lines: Vec<String> = good.lines().map(str::to_string).collect();
        let fields: Vec<usize> =
            (0..lines.len()).filter(|i| lines[*i].starts_with("field ") || lines[*i].starts_with("struct ")).collect();
        let at = fields[next(&mut state) as usize % fields.len()];
        match round % 3 {
            0 => drop(lines.remove(at)),
            _ => {
                let mut words: Vec<String> = lines[at].split(' ').map(str::to_string).collect();
                let value: u64 = words[2].parse().unwrap();
                words[2] =
                    if next(&mut state).is_multiple_of(2) { (value + 64) % 1024 } else { next(&mut state) % 100_000 }
                        .to_string();
                lines[at] = words.join(" ");
            }
        }
        std::fs::write(file.path(), lines.join("\n") + "\n").unwrap();
        match Bench::new().and_then(|b| b.run_bytes(&s)) {
            Ok(_) => {}
            Err(e) if e.is_about_this_machine() => return skip(name, e).unwrap_or_default(),
            Err(e) => {
                assert!(!e.to_string().contains("signal"), "{}: {e}", lines.get(at).map_or("removed", |l| l));
                refused += 1;
            }
        }
    }
    assert!(refused > 15, "{refused} of 30 damaged files were noticed");
}
