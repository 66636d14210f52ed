//! RDMA under the real NCCL library, on the emulated libibverbs (`lab/ibverbs`): **emulated RDMA**, no device. Once this plugin's queue pairs, once NCCL's
//! own InfiniBand transport over the same library. Kernels are played on the CPU; every byte is checked.

mod common;

use common::{every_call, library, run, set, spec, try_run, versions};
use nccl_bench::BenchError;
use nccl_bench::bytes::{BytesCall, BytesReport, BytesSpec, HostPlace, Traffic};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DEVICES: &str = "emu1=127.0.0.1,emu2=127.0.0.2,emu3=127.0.0.3";
/// Longer is a hang of the test.
const TIME_MAX: Duration = Duration::from_secs(180);

/// Two hosts whose three rails have emulated devices.
fn over_queue_pairs(version: &str, gpus: u8) -> BytesSpec {
    let emulated = library("liblinkwise_ibverbs.so");
    let settings = [
        ("LINKWISE_NET", "tcp"),
        ("LINKWISE_NET_RAILS", "127.0.0.1,127.0.0.2,127.0.0.3"),
        ("LINKWISE_NET_TRANSPORT", "verbs"),
        ("LINKWISE_NET_IBVERBS", emulated.to_str().unwrap()),
        ("LINKWISE_EMU_IBVERBS", DEVICES),
    ];
    spec(version, 2, gpus, &settings)
}

/// The number behind `what` in the plugin's last line of counts.
fn count(report: &BytesReport, what: &str) -> u64 {
    let line = report.log.lines().rfind(|l| l.contains("messages sent")).unwrap_or_default();
    let rest = line.split_once(what).unwrap_or_else(|| panic!("no `{what}` in {line:?}")).1.trim_start();
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// Bytes of rank 0 by rail.
fn by_rail(report: &BytesReport) -> Vec<u64> {
    let line = report.log.lines().rfind(|l| l.contains("messages sent")).unwrap_or_default();
    let words = line.split_once("bytes by rail ").and_then(|l| l.1.split_once(',')).unwrap_or_default().0;
    words.split_whitespace().map(|w| w.parse().unwrap()).collect()
}

#[test]
fn every_byte_of_sends_and_collectives_is_written_by_queue_pairs() {
    let name = "every_byte_of_sends_and_collectives_is_written_by_queue_pairs";
    for version in versions("2.24.3 2.28.9 2.32.3") {
        for off in ["0", "1"] {
            let mut s = over_queue_pairs(&version, 2);
            set(&mut s, &[("NCCL_P2P_DISABLE", off), ("NCCL_SHM_DISABLE", off)]);
            s.calls = every_call(2);
            let Some(report) = run(name, &s) else { return };
            assert_eq!((report.wrong_bytes(), report.results.len()), (0, 4 * 2 * 6), "{version}");
            assert!(report.log.contains("Using network linkwise"), "{version}: {}", report.log);
            assert!(report.log.contains("RDMA devices emu1, emu2, emu3"), "{version}: {}", report.log);
            if !report.log.contains("messages sent") {
                println!("{version}: tells plugins of no end, so there are no counts");
                assert!(version.starts_with("2.24") || version.starts_with("2.27"), "{version}: no counts");
                continue;
            }
            let (written, sent) = (count(&report, "written by RDMA devices"), by_rail(&report));
            println!("{version}: {written} bytes written, bytes by rail {sent:?}");
            assert!(written * 10 > sent.iter().sum::<u64>() * 9, "{version}: {written} of {sent:?}");
            assert!(off == "0" || sent.iter().all(|b| *b > 0), "{version}: {sent:?}");
        }
    }
}

#[test]
fn nccl_s_own_infiniband_transport_moves_every_byte_over_the_emulated_library() {
    let name = "nccl_s_own_infiniband_transport_moves_every_byte_over_the_emulated_library";
    let folder = tempfile::tempdir().unwrap();
    let versioned = match linkwise_ibverbs::versions::compile(&library("liblinkwise_ibverbs.so"), folder.path()) {
        Ok(file) => file,
        Err(e) => {
            println!("SKIP {name}: no C compiler: {e}");
            return;
        }
    };
    for version in versions("2.24.3 2.32.3") {
        // Devices without a place in /sys/class/infiniband would be merged into one by 2.30 and later, which no GPU has a path to.
        let settings = [
            ("LINKWISE_EMU_IBVERBS", DEVICES),
            ("NCCL_NET", "IB"),
            ("NCCL_IB_DISABLE", "0"),
            ("NCCL_NET_MERGE_LEVEL", "LOC"),
        ];
        let mut s = spec(&version, 2, 2, &settings);
        s.net_plugin = None;
        s.places = vec![HostPlace { preload: Some(versioned.clone()), ..HostPlace::default() }; 2];
        s.calls = every_call(2);
        let Some(report) = run(name, &s) else { return };
        assert_eq!((report.wrong_bytes(), report.results.len()), (0, 4 * 2 * 6), "{version}");
        assert!(report.log.contains("Using network IB"), "{version}: {}", report.log);
        println!("{version}: {} bytes in all outputs", report.bytes());
    }
}

/// Processes of the run whose devices die by files in this folder: rank and process.
fn processes(folder: &Path) -> Vec<(u32, u32)> {
    let own = folder.to_str().unwrap();
    let all = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    all.filter_map(|pid: u32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        let vars: Vec<&str> = environ.split(|b| *b == 0).filter_map(|v| std::str::from_utf8(v).ok()).collect();
        let is_ours = program.file_name()? == "mover" && vars.iter().any(|v| v.ends_with(own));
        let rank = vars.iter().find_map(|v| v.strip_prefix("RANK="))?.parse().ok()?;
        is_ours.then_some((rank, pid))
    })
    .collect()
}

/// Waits until bytes move between the ranks: the emulated devices of a run have been used for `time`. `None` if the run `has_ended` before.
fn until_it_runs(folder: &Path, time: Duration, has_ended: &AtomicBool) -> Option<Vec<(u32, u32)>> {
    let begin = Instant::now();
    let moves = |pid: u32| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let names = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
        names.filter(|n| n.trim() == "emulated-rdma").count() > 3
    };
    while begin.elapsed() < TIME_MAX {
        let all = processes(folder);
        if all.len() == 2 && all.iter().all(|p| moves(p.1)) {
            std::thread::sleep(time);
            return Some(all);
        }
        if has_ended.load(Ordering::Relaxed) {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("no queue pair after {TIME_MAX:?}");
}

/// Runs `run`, and beside it `strike` with the run's processes once bytes move. `None`, with a SKIP line, if this machine cannot run it.
fn struck<R: Send, S: Send>(
    folder: &Path,
    run: impl FnOnce() -> Option<R> + Send,
    strike: impl FnOnce(Vec<(u32, u32)>) -> S + Send,
) -> Option<(R, S)> {
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let striker = scope.spawn(|| until_it_runs(folder, Duration::from_millis(300), &has_ended).map(strike));
        let run = scope.spawn(run).join();
        has_ended.store(true, Ordering::Relaxed);
        let struck = striker.join().unwrap();
        run.unwrap().map(|r| (r, struck.expect("the run ended before bytes moved")))
    })
}

fn long_run(version: &str, folder: &Path, repetitions: u32) -> BytesSpec {
    let mut s = over_queue_pairs(version, 1);
    set(&mut s, &[("LINKWISE_EMU_IBVERBS_DEAD", folder.to_str().unwrap())]);
    let traffic = Traffic::SendRecv(vec![vec![0, 3_000_000], vec![3_000_000, 0]]);
    s.calls.push(BytesCall { repetitions, ..BytesCall::new(traffic) });
    s.calls.push(BytesCall { repetitions: repetitions / 4, ..BytesCall::new(Traffic::AllReduce(2_000_000)) });
    s
}

#[test]
fn what_this_machine_cannot_run_is_skipped_at_once() {
    let folder = tempfile::tempdir().unwrap();
    assert!(struck(folder.path(), || None::<()>, |_| ()).is_none());
    assert_eq!(until_it_runs(folder.path(), Duration::ZERO, &AtomicBool::new(true)), None);
}

#[test]
fn a_device_that_dies_under_nccl_costs_no_byte_and_no_call() {
    let name = "a_device_that_dies_under_nccl_costs_no_byte_and_no_call";
    let folder = tempfile::tempdir().unwrap();
    for version in versions("2.28.9") {
        let s = long_run(&version, folder.path(), 200);
        let kill = |_| {
            // Two of three: one of them is the home rail, or the neighbour that takes over from it.
            for device in ["emu3", "emu1"] {
                std::fs::write(folder.path().join(device), "").unwrap();
                println!("{device} is dead");
                std::thread::sleep(Duration::from_millis(700));
            }
        };
        let Some((report, ())) = struck(folder.path(), || run(name, &s), kill) else { return };
        assert_eq!((report.wrong_bytes(), report.results.len()), (0, 2 * (200 + 50)), "{version}");
        let (written, sent) = (count(&report, "written by RDMA devices"), by_rail(&report));
        let over_tcp = sent.iter().sum::<u64>() - written;
        let repeated = count(&report, "chunks repeated");
        println!("{version}: {written} bytes written, {over_tcp} over TCP, rails {sent:?}, chunks repeated {repeated}");
        assert!(repeated > 0, "no chunk was under way on a device that died");
        assert!(over_tcp > 10_000_000, "the rails of dead devices go on over TCP: {over_tcp}");
        assert!(written > 10_000_000, "{written}");
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_others_with_an_error() {
    let name = "a_rank_that_is_killed_ends_the_others_with_an_error";
    // A rank that dies between two calls leaves the other at the bench's barrier: nothing is under way that could fail. Then another one is killed.
    let attempts = 5;
    for version in versions("2.28.9") {
        for attempt in 1..=attempts {
            let folder = tempfile::tempdir().unwrap();
            let mut s = long_run(&version, folder.path(), 50_000);
            // The killed rank's shell stays, so that the bench does not end the other rank at once. The run's own watchdogs come later than the plugin.
            let shell = ["sh", "-c", "\"$@\"; exec sleep 170", "sh"].map(str::to_owned).to_vec();
            s.places = vec![HostPlace::default(), HostPlace { prefix: shell, ..HostPlace::default() }];
            (s.stall, s.deadline) = (TIME_MAX, Duration::from_secs(40));
            let kill = |all: Vec<(u32, u32)>| {
                let (_, pid) = all.into_iter().find(|p| p.0 == 1).unwrap();
                std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
                Instant::now()
            };
            let run = || try_run(name, &s).map(|r| (r, Instant::now()));
            let Some(((result, end), death)) = struck(folder.path(), run, kill) else { return };
            let since = end - death;
            if matches!(result, Err(BenchError::Deadline { .. })) && attempt < attempts {
                println!("{version}: it died at the barrier");
                continue;
            }
            let Err(BenchError::Node { host, reason, warnings, .. }) = result else { panic!("{result:?}") };
            println!("{version}: {host} failed {since:?} after the death: {reason}");
            assert_eq!(host, "host0");
            assert!(reason.contains("rank 0: the communicator has failed"), "{reason}");
            assert!(warnings.iter().any(|w| w.contains("NET/linkwise: a connection has failed")), "{warnings:?}");
            assert!(since < Duration::from_secs(30), "documented bound: {since:?}");
            break;
        }
    }
}
