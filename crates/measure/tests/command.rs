//! The command backend with correct and faulty commands.

use measure::command::{CommandBackend, CommandOptions};
use measure::{Backend, BackendError, Point};
use std::time::{Duration, Instant};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

fn cluster() -> Cluster {
    topology::catalog::cluster("h100").unwrap()
}

fn point(mask: u32) -> Point {
    let allocation = Allocation::new([(HostId(0), GpuMask(mask)), (HostId(1), GpuMask(8))]);
    Point { allocation, collective: Collective::AllReduce, size: Bytes::mib(16), repetition: 0 }
}

fn options(command: &str, timeout_ms: u64) -> CommandOptions {
    CommandOptions { timeout: Duration::from_millis(timeout_ms), ..CommandOptions::new(command) }
}

/// Shell code before every reply: reads the request's id and the number of starts.
const READ: &str = r#"while read -r line; do id=${line#*\"id\":}; id=${id%%[,\}]*}; "#;

fn busbw(b: &mut CommandBackend, mask: u32) -> Result<f64, BackendError> {
    b.measure(&point(mask)).map(|r| r.busbw.gb_per_s())
}

#[test]
fn one_start_serves_all_points_and_the_request_is_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let script = format!(
        "echo start >> {0}; {READ} echo \"$line\" >> {0}; echo '{{\"id\":'$id',\"busbw_gb_per_s\":12.5,\"time_us\":100,\"algorithm\":\"Ring\"}}'; done",
        log.display()
    );
    let c = cluster();
    let mut b = CommandBackend::new(&c, options(&script, 5000));
    for mask in 1..20 {
        let r = b.measure(&point(mask)).unwrap();
        assert_eq!(
            (r.busbw.gb_per_s(), r.time.unwrap().us().round(), r.algorithm.as_deref()),
            (12.5, 100.0, Some("Ring"))
        );
    }
    drop(b);
    let log = std::fs::read_to_string(log).unwrap();
    let mut lines = log.lines();
    assert_eq!(lines.next(), Some("start"));
    let first: serde_json::Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(
        first,
        serde_json::json!({"id":1,"gpus":["n0:0","n1:3"],"collective":"all_reduce","size_bytes":16777216})
    );
    assert_eq!(log.matches("start").count(), 1);
}

#[test]
fn a_command_that_crashes_on_every_third_request_loses_nothing() {
    let script = format!(
        "n=0; {READ} n=$((n+1)); [ $n = 3 ] && {{ echo bang >&2; exit 7; }}; echo '{{\"id\":'$id',\"busbw_gb_per_s\":1.5}}'; done"
    );
    let c = cluster();
    let mut b = CommandBackend::new(&c, options(&script, 5000));
    for mask in 1..10 {
        assert_eq!(busbw(&mut b, mask), Ok(1.5));
    }
}

#[test]
fn a_command_that_always_crashes_is_given_up_with_its_output() {
    let c = cluster();
    let mut b = CommandBackend::new(&c, options("echo no GPU here >&2; exit 3", 5000));
    let mut last = busbw(&mut b, 1);
    assert!(matches!(&last, Err(BackendError::Point(_))), "{last:?}");
    for _ in 0..3 {
        last = busbw(&mut b, 1);
    }
    let Err(BackendError::Fatal(why)) = last else { panic!("{last:?}") };
    assert!(why.contains("5 times in a row"), "{why}");
    let mut b = CommandBackend::new(&c, options("echo no GPU here >&2; exit 3", 5000));
    let Err(BackendError::Point(why)) = busbw(&mut b, 1) else { panic!() };
    assert!(why.contains("ended without an answer") && why.contains("no GPU here"), "{why}");
}

#[test]
fn garbage_long_lines_strange_ids_and_late_answers_are_skipped() {
    let script = format!(
        "{READ} echo hello; echo '{{\"id\":'$((id+1))',\"busbw_gb_per_s\":9}}'; echo '[1'; head -c 200000 /dev/zero | tr '\\0' x; echo; printf '\\377\\376\\n'; echo '{{\"id\":\"x\"}}'; echo '{{\"id\":'$id',\"busbw_gb_per_s\":2.5}}'; echo '{{\"id\":'$id',\"busbw_gb_per_s\":7}}'; done"
    );
    let c = cluster();
    let mut b = CommandBackend::new(&c, options(&script, 5000));
    for mask in 1..6 {
        // An early answer with the next id is indistinguishable from a valid one, so it is used.
        let found = busbw(&mut b, mask).unwrap();
        assert!(found == 2.5 || (mask > 1 && found == 9.0), "{found}");
    }
}

#[test]
fn an_error_answer_is_retried_and_then_reported() {
    let c = cluster();
    let script = format!(
        "n=0; {READ} n=$((n+1)); if [ $n = 1 ]; then echo '{{\"id\":'$id',\"error\":\"busy\"}}'; else echo '{{\"id\":'$id',\"busbw_gb_per_s\":4}}'; fi; done"
    );
    assert_eq!(busbw(&mut CommandBackend::new(&c, options(&script, 5000)), 1), Ok(4.0));
    let script = format!("{READ} echo '{{\"id\":'$id',\"error\":\"GPU fell off the bus\"}}'; done");
    let e = busbw(&mut CommandBackend::new(&c, options(&script, 5000)), 1);
    assert_eq!(e, Err(BackendError::Point("the command reports: GPU fell off the bus".into())));
    for bad in ["-1", "1e9", "\\\"4\\\"", "null"] {
        let script = format!("{READ} echo \"{{\\\"id\\\":$id,\\\"busbw_gb_per_s\\\":{bad}}}\"; done");
        let e = busbw(&mut CommandBackend::new(&c, options(&script, 5000)), 1);
        assert!(
            matches!(&e, Err(BackendError::Point(why)) if why.contains("no valid `busbw_gb_per_s`")),
            "{bad}: {e:?}"
        );
    }
}

#[test]
fn a_command_that_neither_reads_nor_writes_costs_the_time_limits_and_is_killed_with_its_children() {
    let c = cluster();
    let folder = tempfile::tempdir().unwrap();
    let pids = folder.path().join("pids");
    let script = format!("sleep 1000 & echo $! >> {0}; echo $$ >> {0}; sleep 1000", pids.display());
    let start = Instant::now();
    let mut b = CommandBackend::new(&c, options(&script, 300));
    let e = busbw(&mut b, 0xff);
    assert!(matches!(&e, Err(BackendError::Point(why)) if why.contains("no answer within 0.3 s")), "{e:?}");
    drop(b);
    assert!(start.elapsed() < Duration::from_secs(20));
    let pids = std::fs::read_to_string(pids).unwrap();
    assert_eq!(pids.lines().count(), 6, "three attempts, three starts");
    for pid in pids.lines() {
        // The process is gone, or a zombie that init will reap. The signal takes effect when the kernel schedules the
        // process.
        let status = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let ended = |status: &str| status.is_empty() || status.contains(") Z ");
        while !ended(&status()) && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(ended(&status()), "{pid} is still running: {}", status());
    }
}

#[test]
fn a_flood_of_output_neither_blocks_nor_fills_memory() {
    let c = cluster();
    let mut b = CommandBackend::new(&c, options("yes garbage", 10_000));
    let e = busbw(&mut b, 1);
    assert!(matches!(&e, Err(BackendError::Point(why)) if why.contains("lines and none is the answer")), "{e:?}");
}

#[test]
fn the_command_ends_with_the_campaign() {
    let c = cluster();
    let folder = tempfile::tempdir().unwrap();
    let ended = folder.path().join("ended");
    let script = format!("{READ} echo '{{\"id\":'$id',\"busbw_gb_per_s\":1}}'; done; echo yes > {}", ended.display());
    let mut b = CommandBackend::new(&c, options(&script, 5000));
    busbw(&mut b, 1).unwrap();
    let pid = b.process_id().unwrap();
    drop(b);
    assert_eq!(std::fs::read_to_string(ended).unwrap(), "yes\n", "the command was killed before it could exit");
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}
