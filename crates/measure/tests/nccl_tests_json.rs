//! The JSON file of nccl-tests, in the form of the released writer (nccl-tests 2.17.3 to 2.17.9, `src/util.cu`): everything on one line,
//! booleans and roots as strings, numbers with six decimals, `nan` as a string and an infinite number bare.

use measure::nccl_tests::parse_json;
use proptest::prelude::*;
use topology::Collective;

/// What one process of the run reports: its first rank alone.
struct Process {
    host: &'static str,
    group: u32,
    device: usize,
}

type Half = Option<[f64; 4]>;

/// A run, as the released program writes it.
struct Run {
    program: &'static str,
    threads: usize,
    gpus: usize,
    processes: Vec<Process>,
    /// Size, and (time, algbw, busbw, wrong elements) of both halves; no half where that operation did not run.
    rows: Vec<(u64, Half, Half)>,
    checked: bool,
}

fn run(threads: usize, gpus: usize, hosts: &[&'static str]) -> Run {
    let processes = hosts.iter().map(|host| Process { host, group: 0, device: 0 }).collect();
    let half = |busbw| Some([163.2, 102.8, busbw, 0.0]);
    let rows = vec![(16_777_216, half(180.25), half(181.0))];
    Run { program: "./build/all_reduce_perf", threads, gpus, processes, rows, checked: true }
}

/// The writer's `%lf`, with its treatment of `nan`.
fn number(v: f64) -> String {
    match v {
        v if v.is_nan() => "\"nan\"".into(),
        v if v.is_infinite() => (if v > 0.0 { "inf" } else { "-inf" }).into(),
        v => format!("{v:.6}"),
    }
}

impl Run {
    fn half(&self, h: Option<[f64; 4]>) -> String {
        let Some([time, algbw, busbw, wrong]) = h else { return "null".into() };
        let wrong = if self.checked { number(wrong) } else { "null".into() };
        format!(r#"{{"time":{},"alg_bw":{},"bus_bw":{},"nwrong":{wrong}}}"#, number(time), number(algbw), number(busbw))
    }

    fn json(&self) -> String {
        let per_process = self.threads * self.gpus;
        let device = |(i, p): (usize, &Process)| {
            format!(
                r#"{{"rank":{},"group":{},"pid":{},"hostname":"{}","device":{},"device_hex":"0000:1b:00","device_info":"NVIDIA H100 80GB HBM3"}}"#,
                i * per_process,
                p.group,
                4711 + i,
                p.host,
                p.device
            )
        };
        let devices: Vec<String> = self.processes.iter().enumerate().map(device).collect();
        let row = |(size, out, inplace): &(u64, Option<[f64; 4]>, Option<[f64; 4]>)| {
            format!(
                r#"{{"size":{size},"count":{},"type":"float","redop":"sum","root":"    -1","out_of_place":{},"in_place":{},"actual_iterations":20,"experiment_name":"float_sum"}}"#,
                size / 4,
                self.half(*out),
                self.half(*inplace)
            )
        };
        let rows: Vec<String> = self.rows.iter().map(row).collect();
        format!(
            concat!(
                r#"{{"version":1,"start_time":"2025-11-03 10:11:12","args":["{}","-b","16M","-g","{}","-J","out.json"],"#,
                r#""env":["HOME=\/root","SECRET_TOKEN=hunter2"],"nccl_version":22809,"config":{{"nthreads":{},"ngpus":{},"#,
                r#""minimum_bytes":16777216,"maximum_bytes":16777216,"step_bytes":1048576,"warmup_iters":1,"iterations":20,"#,
                r#""aggregated_iterations":1,"validation":{},"graph":0,"blocking_collectives":"false","parallel_init":"false","#,
                r#""devices":[{}]}},"results":[{}],"out_of_bounds":{{"count":0,"okay":"true"}},"#,
                r#""average_bus_bandwidth":{{"bandwidth":180.625000,"okay":"unchecked"}},"errors":[""],"end_time":"2025-11-03 10:11:40"}}"#
            ),
            self.program.replace('/', "\\/"),
            self.gpus,
            self.threads,
            self.gpus,
            u8::from(self.checked),
            devices.join(","),
            rows.join(",")
        )
    }
}

#[test]
fn one_process_with_eight_gpus_is_eight_ranks() {
    let r = parse_json(&run(1, 8, &["n0"]).json()).unwrap();
    assert_eq!((r.rank_count, r.ranks.len()), (Some(8), 1));
    assert_eq!((r.collective, r.nccl_version.as_deref()), (Some(Collective::AllReduce), Some("2.28.9")));
    assert_eq!(r.version, None, "an integer is the version of the file's form");
    assert_eq!((r.rows[0].size_bytes, r.rows[0].out_of_place.busbw_gb_per_s), (16_777_216, 180.25));
    assert_eq!((r.rows[0].root, r.average_busbw_gb_per_s), (None, Some(180.625)));
    assert!(!format!("{r:?}").contains("hunter2"));
}

#[test]
fn a_run_whose_communicator_was_split_is_refused() {
    let mut split = run(1, 1, &["n0", "n0", "n1", "n1"]);
    (split.processes[1].group, split.processes[3].group) = (1, 1);
    let e = parse_json(&split.json()).unwrap_err().to_string();
    assert!(e.contains("2 groups") && e.contains("NCCL_TESTS_SPLIT"), "{e}");
}

#[test]
fn rows_without_a_bandwidth_are_left_out_and_named() {
    let good = Some([163.2, 102.8, 180.25, 0.0]);
    let mut r = run(1, 8, &["n0"]);
    r.rows = vec![
        (0, Some([0.0, f64::INFINITY, f64::INFINITY, 0.0]), good),
        (8, Some([f64::NAN, f64::NAN, f64::NAN, 0.0]), good),
        (16, None, good),
        (32, good, Some([0.0, f64::NEG_INFINITY, f64::INFINITY, 0.0])),
        (64, good, None),
    ];
    let read = parse_json(&r.json()).unwrap();
    assert_eq!(read.rows.iter().map(|r| r.size_bytes).collect::<Vec<_>>(), [32, 64]);
    assert!(read.rows.iter().all(|r| r.in_place.is_none()), "{:?}", read.rows);
    let whys = [
        "`results[0].out_of_place.alg_bw` is `\"inf\"`",
        "results[1].out_of_place.time",
        "results[2].out_of_place` is null",
    ];
    for (found, why) in read.left_out.iter().zip(whys) {
        assert!(found.contains(why), "{found}");
    }
    r.rows.truncate(3);
    assert!(parse_json(&r.json()).unwrap_err().to_string().contains("results[0].out_of_place.alg_bw"));
}

#[test]
fn an_unchecked_run_has_no_count_of_wrong_elements() {
    let mut r = run(1, 2, &["n0"]);
    r.checked = false;
    assert_eq!(parse_json(&r.json()).unwrap().rows[0].out_of_place.wrong, None);
}

#[test]
fn an_error_after_an_infinite_number_points_into_the_file() {
    let mut r = run(1, 2, &["n0"]);
    r.rows.insert(0, (0, Some([0.0, f64::INFINITY, f64::INFINITY, 0.0]), None));
    let text = r.json();
    let cut = &text[..text.find("\"errors\"").unwrap()];
    let e = parse_json(&format!("{cut}oops")).unwrap_err();
    assert_eq!((e.line, e.column), (1, cut.len() + 1), "{e}");
    let words = r#"{"results":[{"size":8,"count":2,"note":"a: inf, not a number: -inf \" :inf"}]}"#;
    assert!(
        parse_json(words).unwrap_err().to_string().contains("out_of_place` is missing"),
        "text in quotes stays text"
    );
}

proptest! {
    /// Any number of threads, GPUs and processes gives their product.
    #[test]
    fn ranks_are_processes_times_threads_times_gpus(threads in 1usize..5, gpus in 1usize..9, processes in 1usize..6) {
        let r = parse_json(&run(threads, gpus, &["n0", "n1", "n2", "n3", "n4"][..processes]).json()).unwrap();
        prop_assert_eq!(r.rank_count, Some(threads * gpus * processes));
    }

    #[test]
    fn every_finite_row_reads_back(rows in proptest::collection::vec((1u64..1 << 40, 0u32..1_000_000, 0u32..100_000, 0u32..50), 1..8)) {
        let mut r = run(1, 8, &["n0"]);
        r.rows = rows.iter().map(|&(size, t, b, w)| {
            let half = Some([f64::from(t) / 100.0, f64::from(b) / 200.0, f64::from(b) / 100.0, f64::from(w)]);
            (size, half, half)
        }).collect();
        let read = parse_json(&r.json()).unwrap();
        for (found, &(size, t, b, w)) in read.rows.iter().zip(&rows) {
            let o = found.out_of_place;
            prop_assert_eq!((found.size_bytes, o.wrong), (size, Some(u64::from(w))));
            prop_assert!((o.time_us - f64::from(t) / 100.0).abs() < 1e-6 && (o.busbw_gb_per_s - f64::from(b) / 100.0).abs() < 1e-6);
        }
        prop_assert_eq!(read.rows.len(), rows.len());
    }

    #[test]
    fn a_file_cut_or_changed_anywhere_never_panics(at in 0usize..2000, junk in "\\PC{0,6}|inf|-inf|\"") {
        let mut r = run(2, 4, &["n0", "n1"]);
        r.rows.push((0, Some([0.0, f64::INFINITY, f64::INFINITY, 0.0]), None));
        let whole = r.json();
        let at = at.min(whole.len());
        let _ = parse_json(&whole[..at]);
        let _ = parse_json(&format!("{}{junk}{}", &whole[..at], &whole[at..]));
    }
}
