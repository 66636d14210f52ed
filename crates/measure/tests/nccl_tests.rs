//! Readers of nccl-tests output, and command lines.

use measure::Point;
use measure::nccl_tests::{LaunchOptions, Launcher, command_line, parse_json, parse_text};
use proptest::prelude::*;
use std::path::Path;
use topology::{Allocation, Bytes, Collective, GpuMask, HostId};

const NEW: &str = "\
# nccl-tests version 2.19.6 nccl-headers=22707 nccl-library=22707
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 16777216 maxBytes 16777216 step: 1048576(bytes) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#
# Using devices
#  Rank  0 Group  0 Pid  11 on         n0 device  0 [0000:07:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  12 on         n1 device  3 [0000:0a:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    16777216       4194304     float     sum      -1   163.20  102.80  102.80      0   162.10  103.50  103.50    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 103.15
#
# Collective test concluded: all_reduce_perf
";

#[test]
fn the_text_of_the_current_version_is_read_completely() {
    let r = parse_text(NEW).unwrap();
    assert_eq!(r.version.as_deref(), Some("2.19.6"));
    assert_eq!(r.nccl_version.as_deref(), Some("2.27.7"));
    assert_eq!(r.collective, Some(Collective::AllReduce));
    assert_eq!((r.ranks.len(), r.ranks[1].host.as_str(), r.ranks[1].device), (2, "n1", 3));
    let row = r.row(16_777_216, 2).unwrap();
    assert_eq!(
        (row.out_of_place.time_us, row.out_of_place.busbw_gb_per_s, row.out_of_place.wrong),
        (163.2, 102.8, Some(0))
    );
    assert_eq!(row.in_place.unwrap().wrong, None);
    assert_eq!((row.redop.as_deref(), row.root), (Some("sum"), None));
    assert_eq!((r.average_busbw_gb_per_s, r.out_of_bounds), (Some(103.15), Some(0)));
}

#[test]
fn rows_of_every_version_give_the_same_numbers() {
    let cases = [
        // before `root` was printed, with an error magnitude instead of a count
        "# size count type redop time algbw busbw error time algbw busbw error\n 1024 256 float sum 10.5 1.25 2.5 2e-07 11.5 1.2 2.4 0e+00\n",
        // no header at all
        " 1024 256 float sum -1 10.5 1.25 2.5 0 11.5 1.2 2.4 0\n",
        "1024 256 float sum 10.5 1.25 2.5 0 11.5 1.2 2.4 0\n",
        // -I 1
        "# size count type redop root time algbw busbw #wrong i_min i_max i_p99 i_cv% time algbw busbw #wrong i_min i_max i_p99 i_cv%\n1024 256 float sum -1 10.5 1.25 2.5 0 9 12 11 3.1 11.5 1.2 2.4 0 9 12 11 3.1\n",
        "1024 256 float sum -1 10.5 1.25 2.5 0 9 12 11 3.1 11.5 1.2 2.4 0 9 12 11 3.1\n",
        // -S 1, behind and in front
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong timestamp\n1024 256 float sum -1 10.5 1.25 2.5 0 11.5 1.2 2.4 0 2026-07-01 12:00:01\n",
        "2026-07-01 12:00:01 1024 256 float sum -1 10.5 1.25 2.5 0 11.5 1.2 2.4 0\n",
        // -C 1, a second log in between, mpirun --tag-output
        "# size count type redop root cputime algbw busbw #wrong cputime algbw busbw #wrong\nn0:1:1 [0] NCCL INFO Bootstrap : Using eth0\n[1,0]<stdout>: 1024 256 float sum -1 10.5 1.25 2.5 0 11.5 1.2 2.4 0\n",
        // the first version's names
        "#      bytes             N    type      op    time  algbw  busbw      res    time  algbw  busbw      res\n 1024 256 float sum 10.5 1.25 2.5 0e+00 11.5 1.2 2.4 0e+00\n",
    ];
    for text in cases {
        let r = parse_text(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let row = &r.rows[0];
        let o = row.out_of_place;
        assert_eq!((row.size_bytes, o.time_us, o.algbw_gb_per_s, o.busbw_gb_per_s), (1024, 10.5, 1.25, 2.5), "{text}");
        assert_eq!(row.in_place.unwrap().busbw_gb_per_s, 2.4, "{text}");
    }
}

#[test]
fn an_error_in_a_text_is_reported_with_its_position() {
    let cut = &NEW[..NEW.find("162.10").unwrap()];
    let cases = [
        ("", "line 1, column 1: no result row"),
        (cut, "line 12, column 84: a row of 9 fields; 13 were expected (cut off?)"),
        (" 1024 256 float sum -1 ten 1.25 2.5 0 11.5 1.2 2.4 0\n", "line 1, column 24: `ten` is not a number"),
        (" 1024 256 float sum -1 inf 1.25 2.5 0 11.5 1.2 2.4 0\n", "line 1, column 24: `inf` is not a number"),
        (" 1024 x float sum -1 1 1.25 2.5 0 11.5 1.2 2.4 0\n", "line 1, column 7: `x` is not a whole number"),
        (
            "hi\nn0: Test NCCL failure common.cu:958 'unhandled cuda error'\n",
            "line 2, column 1: the run failed: n0: Test NCCL failure",
        ),
    ];
    for (text, expected) in cases {
        let found = parse_text(text).unwrap_err().to_string();
        assert!(found.starts_with(expected), "found {found}, expected {expected}");
    }
}

const JSON: &str = r#"{"version":"2.19.6","nccl_version":"22707","args":["/opt/nccl-tests/build/all_gather_perf","-b","16M"],
"env":["SECRET_TOKEN=hunter2"],"config":{"devices":[{"rank":0,"group":0,"pid":1,"hostname":"n0","device":0},{"rank":1,"hostname":"n1","device":"2"}]},
"results":[{"size":16777216,"count":2097152,"type":"float","redop":"none","root":-1,
"out_of_place":{"time":163.2,"alg_bw":102.8,"bus_bw":"51.4","nwrong":0},"in_place":{"cpu_time":160.0,"alg_bw":104.0,"bus_bw":52.0,"nwrong":"nan"}}],
"out_of_bounds":{"count":0,"okay":"true"},"average_bus_bandwidth":{"bandwidth":51.7,"okay":"true"}}"#;

#[test]
fn the_json_file_is_read_and_its_environment_is_not() {
    let r = parse_json(JSON).unwrap();
    assert_eq!(r.collective, Some(Collective::AllGather));
    assert_eq!(r.nccl_version.as_deref(), Some("2.27.7"));
    let row = &r.rows[0];
    assert_eq!((row.out_of_place.busbw_gb_per_s, row.in_place.unwrap().wrong), (51.4, None));
    assert_eq!((r.ranks[1].host.as_str(), r.ranks[1].device), ("n1", 2));
    assert!(!format!("{r:?}").contains("hunter2"));
}

#[test]
fn an_error_in_a_json_file_is_reported_with_its_field() {
    let cases = [
        (JSON.replace("\"alg_bw\":102.8,", ""), "`results[0].out_of_place.alg_bw` is missing"),
        (JSON.replace("\"51.4\"", "\"nan\""), "`results[0].out_of_place.bus_bw` is `\"nan\"`, not a number"),
        (JSON.replace("16777216,\"count\"", "-1,\"count\""), "`results[0].size` is not a whole number"),
        ("{}".into(), "`results` is missing"),
        (r#"{"results":[],"errors":["boom"]}"#.into(), "`results` is empty: the run has no result; errors: [\"boom\"]"),
        ("{\n\"results\": [}".into(), "line 2, column 13"),
        ("[".repeat(100_000), "recursion limit"),
    ];
    for (text, expected) in cases {
        let found = parse_json(&text).unwrap_err().to_string();
        assert!(found.contains(expected), "found {found}, expected {expected}");
    }
}

proptest! {
    #[test]
    fn the_readers_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..1500, at in 0usize..1500, junk in "\\PC{0,8}") {
        let noise = String::from_utf8_lossy(&bytes);
        let _ = (parse_text(&noise), parse_json(&noise));
        for whole in [NEW, JSON] {
            let cut: String = whole.chars().take(cut).collect();
            let _ = (parse_text(&cut), parse_json(&cut));
            let mut broken: Vec<char> = whole.chars().collect();
            let at = at.min(broken.len());
            broken.splice(at..at, junk.chars());
            let broken: String = broken.into_iter().collect();
            let _ = (parse_text(&broken), parse_json(&broken));
        }
    }

    #[test]
    fn any_printed_row_reads_back(size in 1u64..1 << 40, count in 1u64..1 << 40, time in 1u32..1_000_000, bw in 0u32..100_000, wrong in proptest::option::of(0u64..1000)) {
        let (time, bw) = (f64::from(time) / 100.0, f64::from(bw) / 100.0);
        let w = wrong.map_or("N/A".to_owned(), |w| w.to_string());
        let text = format!("{size:>12} {count:>12} {:>10} {:>6} {:>6} {time:.2} {bw:.2} {bw:.2} {w} {time:.2} {bw:.2} {bw:.2} {w}\n", "bfloat16", "none", 3);
        let row = parse_text(&text).unwrap().rows.remove(0);
        prop_assert_eq!((row.size_bytes, row.count, row.root, row.redop), (size, count, Some(3), None));
        prop_assert_eq!((row.out_of_place.time_us, row.out_of_place.busbw_gb_per_s, row.out_of_place.wrong), (time, bw, wrong));
    }
}

fn point(parts: &[(u32, u32)]) -> Point {
    let allocation = Allocation::new(parts.iter().map(|(h, m)| (HostId(*h), GpuMask(*m))));
    Point { allocation, collective: Collective::AllReduce, size: Bytes::mib(16), repetition: 0 }
}

#[test]
fn each_launcher_gets_its_own_command_line() {
    let c = topology::catalog::cluster("h100").unwrap();
    let with = |launcher, p: &Point| {
        let options = LaunchOptions { launcher, folder: Some("/opt/nt".into()), ..LaunchOptions::default() };
        command_line(&c, p, &options, Path::new("HOSTFILE"))
    };
    let one = point(&[(2, 0b1011)]);
    let two = point(&[(0, 0b11), (3, 0b100)]);
    assert_eq!(
        with(Launcher::Local, &one).unwrap().to_string(),
        "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1,3 /opt/nt/all_reduce_perf -b 16777216 -e 16777216 -t 1 -g 3 -n 20 -w 5"
    );
    assert!(with(Launcher::Local, &two).unwrap_err().contains("need --launcher mpirun or srun"));
    let bench = "/opt/nt/all_reduce_perf -b 16777216 -e 16777216 -t 1 -g 1 -n 20 -w 5";
    assert_eq!(
        with(Launcher::Mpirun, &two).unwrap().to_string(),
        format!(
            "mpirun --host n0:2 -np 2 env CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=0,1 {bench} : --host n3:1 -np 1 env CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2 {bench}"
        )
    );
    let srun = with(Launcher::Srun, &two).unwrap();
    assert_eq!(srun.hostfile.as_deref(), Some("n0\nn0\nn3\n"));
    let text = srun.to_string();
    assert!(
        text.starts_with(
            "SLURM_HOSTFILE=HOSTFILE srun --nodes=2 --ntasks=3 --distribution=arbitrary --nodelist=n0,n3 sh -c 'case"
        ),
        "{text}"
    );
    assert!(
        text.contains("n0) export CUDA_VISIBLE_DEVICES=0,1;; n3) export CUDA_VISIBLE_DEVICES=2;;")
            && text.ends_with(bench),
        "{text}"
    );
}

#[test]
fn a_host_name_that_a_shell_would_run_is_refused() {
    let mut c = topology::catalog::cluster("h100").unwrap();
    for name in ["n0; reboot", "$(id)", "-x", "", "a b"] {
        c.hosts[0].name = name.into();
        for launcher in [Launcher::Local, Launcher::Mpirun, Launcher::Srun] {
            let options = LaunchOptions { launcher, ..LaunchOptions::default() };
            assert!(command_line(&c, &point(&[(0, 3)]), &options, Path::new("H")).is_err(), "{name}");
        }
    }
}

#[test]
fn a_run_that_hangs_ends_at_the_time_limit_and_a_failed_run_gives_the_reason() {
    use measure::nccl_tests::NcclTests;
    use measure::{Backend, BackendError};
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let c = topology::catalog::cluster("h100").unwrap();
    let with = |script: &str| {
        let path = folder.path().join("all_reduce_perf");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let options = LaunchOptions { folder: Some(folder.path().into()), ..LaunchOptions::default() };
        NcclTests::new(&c, options, std::time::Duration::from_millis(400)).measure(&point(&[(0, 3)]))
    };
    let why = |r: Result<measure::Reading, BackendError>| match r {
        Err(BackendError::Point(why)) => why,
        other => panic!("{other:?}"),
    };
    let start = std::time::Instant::now();
    assert!(why(with("exec sleep 1000")).contains("still running after 0.4 s"));
    assert!(why(with("trap '' TERM; sleep 1000 & wait; wait")).contains("still running after 0.4 s"));
    assert!(start.elapsed() < std::time::Duration::from_secs(20));
    let failed = why(with("echo 'n0: Test CUDA failure common.cu:1 invalid device ordinal' >&2; exit 2"));
    assert!(failed.contains("exit status: 2") && failed.contains("invalid device ordinal"), "{failed}");
    assert!(why(with("echo '1024 256 float sum -1 1 1 1 0 1 1 1 0'")).contains("no row of 16777216 bytes"));
    assert!(why(with("echo '16777216 256 float sum -1 1 1 1 3 1 1 1 0'")).contains("3 elements are wrong"));
    assert_eq!(with("echo '16777216 256 float sum -1 1 1 7.5 0 1 1 1 0'").unwrap().busbw.gb_per_s(), 7.5);
}
