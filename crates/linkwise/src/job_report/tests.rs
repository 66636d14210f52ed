use super::*;
use job::report::OmittedCounts;
use proptest::prelude::*;

const TRACE: &str = r#"{"kind":"process","host_name":"n0","visible_gpus":"0,1,2,3,4,5,6,7","local_rank":null,"scripted":false,"version":"0.1.0","pid":1,"host":"00","mode":"adaptive","policy":"round-robin","tuner_api":5,"profiler_api":5}
{"kind":"comm","comm":"0a","rank":0,"ordinal":0,"ranks":8,"nodes":1}
{"kind":"call","comm":"0a","rank":0,"call":0,"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"AUTO","taken":true}
{"kind":"call","comm":"0a","rank":0,"call":1,"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"RING/LL","taken":true}
{"kind":"call","comm":"0a","rank":0,"call":2,"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"RING/SIMPLE","taken":true}
{"kind":"call","comm":"0a","rank":0,"call":3,"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"RING/SIMPLE","taken":true}
{"kind":"call","comm":"0a","rank":0,"call":4,"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"RING/SIMPLE","taken":true}
{"kind":"call","comm":"0a","rank":1,"call":0,"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"AUTO","taken":true}
{"kind":"launched","comm":"0a","rank":0,"collective":"ALLREDUCE","count":262144,"size_bytes":1048576,"bucket":20,"call":0,"arm":"TREE/LL128","channels":8,"kernel_us":90.0}
{"kind":"launched","comm":"0a","rank":1,"collective":"ALLREDUCE","count":262144,"size_bytes":1048576,"bucket":20,"call":0,"arm":"TREE/LL128","channels":8,"kernel_us":50.0}
{"kind":"launched","comm":"0a","rank":0,"collective":"ALLREDUCE","count":262144,"size_bytes":1048576,"bucket":20,"call":2,"arm":"RING/SIMPLE","channels":8,"kernel_us":70.0}
{"kind":"sample","comm":"0a","collective":"ALLREDUCE","bucket":20,"arm":"AUTO","source":"step","time_us":100.0}
{"kind":"sample","comm":"0a","collective":"ALLREDUCE","bucket":20,"arm":"RING/LL","source":"step","time_us":150.0}
{"kind":"sample","comm":"0a","collective":"ALLREDUCE","bucket":20,"arm":"RING/SIMPLE","source":"step","time_us":78.0}
{"kind":"sample","comm":"0a","collective":"ALLREDUCE","bucket":20,"arm":"RING/SIMPLE","source":"step","time_us":82.0}
{"kind":"sample","comm":"0a","collective":"ALLREDUCE","bucket":20,"arm":"RING/SIMPLE","source":"step","time_us":80.0}
{"kind":"finding","comm":"0a","epoch":3,"collective":"ALLREDUCE","bucket":20,"arm":"RING/SIMPLE","because":"20 % less"}
{"kind":"step","time_us":100.0}
{"kind":"step","time_us":150.0}
{"kind":"step","time_us":78.0}
{"kind":"step","time_us":82.0}
{"kind":"step","time_us":80.0}
{"kind":"cost","run_us":2000000,"decisions":4000,"decide_us":800,"events":8000,"event_us":1200,"setup_us":500,"border_us":1500,"worker_us":10000}
{"kind":"end","comm":"0a","rank":0,"calls":3,"lost":0,"waits":2,"longest_wait_us":1500}
"#;

/// The text with its lines joined: line breaks depend on the width.
fn text(report: &JobReport) -> String {
    super::text(report).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn no_line_of_the_text_is_wider_than_80_columns_and_no_word_is_broken() {
    let text = super::text(&read(TRACE));
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    for word in ["TREE/LL128", "RING/SIMPLE", "allreduce", "100.0", "80.0 ± 2.0", "20 % less"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

fn folder(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace-1.jsonl");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn read_with(text: &str, model: &ModelArgs) -> Result<JobReport, Failure> {
    let (_kept, path) = folder(text);
    super::read(&[path], model)
}

fn read(text: &str) -> JobReport {
    read_with(text, &ModelArgs::default()).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_trace_says_what_was_chosen_and_what_it_saved() {
    let r = read(TRACE);
    assert_eq!((r.processes.len(), r.rows.len()), (1, 1));
    let row = &r.rows[0];
    assert_eq!((row.calls, row.ranks, row.auto.as_str(), row.arm.as_str()), (5, 8, "TREE/LL128", "RING/SIMPLE"));
    assert_eq!((row.auto_us, row.arm_us), (Some(100.0), Some(80.0)));
    assert_eq!((row.auto_samples, row.arm_samples), (1, 3));
    assert_eq!((row.auto_variance_us2, row.arm_variance_us2), (None, Some(4.0)));
    assert_eq!(row.saved_ms, Some((0.0 - 50.0 + 3.0 * 20.0) / 1e3));
    assert_eq!(row.break_even_calls, Some(3), "50 us lost while trying, 20 us won per call");
    for said in [text(&r), html(&r).unwrap()] {
        for words in ["20 % less", "80.0 ± 2.0", "1 + 3", "step"] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}

/// A trace whose steps or groups hold 24 calls of one size each: `steps` of them at AUTO (100 us), then `steps` with an
/// arm (80 us).
fn trace_of_steps(source: &str, steps: u64) -> String {
    let mut out: Vec<String> = TRACE.lines().take(2).map(String::from).collect();
    for step in 0..2 * steps {
        let (arm, time_us) = if step < steps { ("AUTO", 100.0) } else { ("RING/SIMPLE", 80.0) };
        for call in 0..24 {
            out.push(format!(
                r#"{{"kind":"call","comm":"0a","rank":0,"call":{},"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"{arm}","taken":true,"group":{}}}"#,
                24 * step + call,
                step + 1
            ));
        }
        out.push(format!(
            r#"{{"kind":"sample","comm":"0a","collective":"ALLREDUCE","bucket":20,"arm":"{arm}","source":"{source}","time_us":{time_us:.1}}}"#
        ));
        if source == "step" {
            out.push(format!(r#"{{"kind":"step","time_us":{time_us:.1}}}"#));
        }
    }
    out.join("\n") + "\n"
}

#[test]
fn a_step_of_many_calls_is_saved_once_and_not_once_per_call() {
    for source in ["step", "interval"] {
        let row = read(&trace_of_steps(source, 10)).rows.remove(0);
        assert_eq!((row.calls, row.source.as_str()), (480, source));
        assert!((row.saved_ms.unwrap() - 10.0 * 20.0 / 1e3).abs() < 1e-9, "{source}: {:?} ms", row.saved_ms);
    }
    // With source `calls`, times are per call.
    let row = read(&trace_of_steps("calls", 10)).rows.remove(0);
    assert!((row.saved_ms.unwrap() - 240.0 * 20.0 / 1e3).abs() < 1e-9);
}

#[test]
fn only_times_after_the_choice_count_as_saved() {
    let sample = |arm: &str, time_us: f64, fresh: bool, steady: bool| {
        format!(
            r#"{{"kind":"sample","comm":"0a","collective":"ALLREDUCE","bucket":20,"arm":"{arm}","source":"step","time_us":{time_us:.1},"calls":24,"steady":{steady},"fresh":{fresh}}}"#
        )
    };
    let finding = |gain: &str| {
        format!(
            r#"{{"kind":"finding","comm":"0a","epoch":3,"collective":"ALLREDUCE","bucket":20,"arm":"RING/SIMPLE","because":"b","spent_steps":2.0,"gain":{gain}}}"#
        )
    };
    let calls: Vec<String> =
        trace_of_steps("step", 10).lines().filter(|l| !l.contains("sample")).map(String::from).collect();
    // What chose the arm says 60 us; what came later says 90; a step that another arm still touches says 10.
    let chosen = [sample("AUTO", 100.0, false, true), sample("RING/SIMPLE", 60.0, false, true), finding("null")];
    let early = read(&(calls.join("\n") + "\n" + &chosen.join("\n") + "\n")).rows.remove(0);
    assert_eq!(early.saved_ms, None, "nothing is known yet");
    let later = [
        sample("AUTO", 100.0, true, true),
        sample("RING/SIMPLE", 90.0, true, true),
        sample("RING/SIMPLE", 10.0, true, false),
        finding("0.1"),
    ];
    let all = calls.iter().chain(&chosen).chain(&later).cloned().collect::<Vec<_>>().join("\n") + "\n";
    let row = read(&all).rows.remove(0);
    assert_eq!((row.auto_us, row.arm_us), (Some(100.0), Some(90.0)));
    // Ten steps with the arm save a tenth of 100 us each; comparing has cost two steps.
    assert!((row.saved_ms.unwrap() - (10.0 * 10.0 - 200.0) / 1e3).abs() < 1e-9, "{:?}", row.saved_ms);
}

#[test]
fn where_nccl_tells_no_rank_the_calls_of_one_communicator_in_one_process_count() {
    let process = |pid: u64, calls: &[u64]| {
        let head = TRACE.lines().next().unwrap().replace("\"pid\":1", &format!("\"pid\":{pid}"));
        let call = |c: &u64| {
            format!(
                r#"{{"kind":"call","comm":"0a","rank":-1,"call":{c},"collective":"ALLREDUCE","size_bytes":1048576,"auto":"TREE/LL128","arm":"AUTO","taken":true}}"#
            )
        };
        let calls: Vec<String> = calls.iter().map(call).collect();
        format!("{head}\n{}\n", calls.join("\n"))
    };
    let folder = tempfile::tempdir().unwrap();
    // Two processes with two GPUs each: each process records every call twice, in batches.
    for pid in [1, 2] {
        let text = process(pid, &[0, 1, 2, 0, 1, 2, 3, 4, 3, 4]);
        std::fs::write(folder.path().join(format!("trace-{pid}.jsonl")), text).unwrap();
    }
    let r = super::read(&[folder.path().to_owned()], &ModelArgs::default()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((r.processes.len(), r.rows[0].calls, r.rows[0].bytes), (2, 5, 5 << 20));
}

#[test]
fn what_a_table_or_a_report_leaves_out_is_said() {
    let mut r = read(TRACE);
    r.rows = vec![r.rows[0].clone(); ::report::TABLE_ROWS_MAX + 7];
    r.left_out = OmittedCounts { times: 3, ..OmittedCounts::default() };
    for said in [text(&r), html(&r).unwrap()] {
        assert!(said.contains("7 more rows are in --format json"), "{said}");
        assert!(said.contains("3 times; give fewer traces"), "{said}");
    }
    assert!(text(&r).contains("disagree; 20 of them"));
}

#[test]
fn gpu_times_stand_beside_what_decides_and_a_disagreement_is_said() {
    let r = read(TRACE);
    let row = &r.rows[0];
    assert_eq!((row.auto_kernel_us, row.arm_kernel_us), (Some(50.0), Some(70.0)), "of the rank that came last");
    assert!(
        row.disagrees() && text(&r).contains("the step and the GPU time disagree about RING/SIMPLE; the first decides")
    );
    // Times that the ranks agreed on take precedence over the times in these traces.
    let agreed = r#"{"kind":"sample","comm":"0a","collective":"ALLREDUCE","bucket":20,"arm":"AUTO","source":"kernel","time_us":44.0}"#;
    let r = read(&format!("{TRACE}{agreed}\n"));
    assert_eq!(
        (r.rows[0].auto_kernel_us, r.rows[0].auto_us, r.rows[0].source.as_str()),
        (Some(44.0), Some(100.0), "step")
    );
}

#[test]
fn bytes_time_bandwidth_and_share_of_the_steps_follow() {
    let r = read(TRACE);
    let row = &r.rows[0];
    assert_eq!(row.bytes, 5 << 20);
    // Two of the five calls were timed, 50 and 70 us; the report assumes their mean for all five.
    assert!((row.kernels_ms.unwrap() - 0.300).abs() < 1e-9, "{:?}", row.kernels_ms);
    assert!((row.share.unwrap() - 0.3 / 0.49).abs() < 1e-9, "of 0.49 ms of steps");
    let busbw = 1048576.0 / 70.0 / 1e3 * 2.0 * 7.0 / 8.0;
    assert!((row.busbw_gb_per_s.unwrap() - busbw).abs() < 1e-9);
    let said = text(&r);
    for words in ["5MiB", "61.2 %", "26.2", "of the steps", "5 steps of 0.1 ms"] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn what_the_plugin_cost_is_said_as_a_share_of_the_run() {
    let r = read(TRACE);
    let c = r.cost.unwrap();
    assert!((c.share - 0.002).abs() < 1e-12 && c.decision_ns == 200.0 && c.event_ns == 150.0, "{c:?}");
    assert!(
        text(&r)
            .contains("The plugin cost 0.200 % of a run of 2.0 s: 4000 decisions of 200 ns and 8000 events of 150 ns")
    );
}

#[test]
fn observing_shows_what_was_called_and_nothing_was_chosen() {
    let r = read(&TRACE.replace("\"mode\":\"adaptive\"", "\"mode\":\"observe\""));
    let said = text(&r);
    for words in [
        "calls: 5",
        "calls",
        "bytes",
        "AUTO chose",
        "GPU us",
        "busbw GB/s",
        "share",
        "headroom",
        "allreduce",
        "TREE/LL128",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(!said.contains("in use"), "{said}");
}

#[test]
fn a_model_predicts_where_the_hardware_is_known_and_else_says_why_not() {
    assert!(text(&read(TRACE)).contains("1 rows: no model: the hardware is unknown; name it with --cluster"));
    let on = |cluster: &str, gpus: Option<&str>| ModelArgs {
        cluster: Some(cluster.into()),
        gpus: gpus.map(String::from),
        nccl: None,
    };
    // Rank 1 wrote no trace, so its GPU is unknown.
    let r = read_with(TRACE, &on("h100", None)).unwrap_or_else(|e| panic!("{e}"));
    let why = r.rows[0].predicted.as_ref().unwrap_err();
    assert!(
        why.starts_with("no model: rank 1 of 8 is in none of these traces")
            && why.ends_with("name the GPUs with --gpus"),
        "{why}"
    );
    let r = read_with(TRACE, &on("h100", Some("n0"))).unwrap_or_else(|e| panic!("{e}"));
    let p = r.rows[0].predicted.as_ref().unwrap();
    assert!(p.model.starts_with("model of NCCL 2.28") && p.auto_us > 1.0 && p.auto_us < 1000.0, "{p:?}");
    assert!(
        p.best_us <= p.auto_us && (0.0..1.0).contains(&p.headroom) && p.arm_us.is_some_and(|t| t > p.best_us * 0.999),
        "{p:?}"
    );
    assert!(text(&r).contains("predicted AUTO us") && text(&r).contains("not measured"));
    let r = read_with(TRACE, &on("h100", Some("n0 n1"))).unwrap_or_else(|e| panic!("{e}"));
    assert!(r.rows[0].predicted.is_ok(), "inside a host, and both hosts are alike");
    let r = read_with(TRACE, &on("h100", Some("n0:0 n0:1"))).unwrap_or_else(|e| panic!("{e}"));
    assert!(r.rows[0].predicted.as_ref().unwrap_err().contains("name its GPUs only"));
    let e = read_with(TRACE, &on("h100", Some("n99"))).err().unwrap().to_string();
    assert!(e.contains("--gpus") && e.contains("n99"), "{e}");
}

#[test]
fn all_ranks_in_one_process_are_found_by_what_it_sees() {
    let rest: String = (1..8)
        .map(|r| {
            format!("{{\"kind\":\"comm\",\"comm\":\"0a\",\"rank\":{r},\"ordinal\":{r},\"ranks\":8,\"nodes\":1}}\n")
        })
        .collect();
    let r = read_with(&format!("{TRACE}{rest}"), &ModelArgs { cluster: Some("h100".into()), ..ModelArgs::default() });
    let r = r.unwrap_or_else(|e| panic!("{e}"));
    assert!(r.rows[0].predicted.is_ok(), "{:?}", r.rows[0].predicted);
}

#[test]
fn a_file_that_is_no_trace_is_refused_with_its_line_and_a_cut_off_one_is_read() {
    let e = read_with(&format!("{TRACE}no trace\n{TRACE}"), &ModelArgs::default()).err().unwrap().to_string();
    assert!(e.contains("trace-1.jsonl: line 25: expected"), "{e}");
    let r = read(&TRACE[..TRACE.len() - 30]);
    assert!(r.cut_off == 1 && text(&r).contains("1 traces end in the middle of a line"));
}

#[test]
fn scripted_times_are_called_simulated() {
    let r = read(&TRACE.replace("\"scripted\":false", "\"scripted\":true"));
    assert!(text(&r).contains("SIMULATED") && html(&r).unwrap().contains("SIMULATED"));
}

proptest! {
    #[test]
    fn no_trace_makes_the_report_panic(lines in proptest::collection::vec(
        prop_oneof![9 => proptest::sample::select(TRACE.lines().collect::<Vec<_>>()).prop_map(String::from), 1 => "\\PC{0,40}"], 0..30),
        cut in 0usize..200,
    ) {
        let mut all = lines.join("\n");
        let mut at = all.len().saturating_sub(cut);
        while !all.is_char_boundary(at) {
            at -= 1;
        }
        all.truncate(at);
        if let Ok(r) = read_with(&all, &ModelArgs { cluster: Some("h100".into()), gpus: Some("n0".into()), nccl: Some("2.28".parse().unwrap()) }) {
            text(&r);
            html(&r).unwrap();
        }
    }
}
