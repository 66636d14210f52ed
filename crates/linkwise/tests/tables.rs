//! `linkwise tune export`, `tune import`, `watch` and `observe --inspector` as scripts see them.

mod common;

use common::{Folder, linkwise, said};

const PROCESS: &str = r#"{"kind":"process","pid":1,"host":"0b","host_name":"n0","mode":"adaptive","policy":"adaptive","nccl":"2.28.9","gpu":"NVIDIA H100 80GB HBM3","tuner_api":5,"profiler_api":5}"#;

/// The trace of a run whose arms are in use: AllReduce of 1 and 2 MiB at TREE/LL128, AllGather of 1 MiB at AUTO.
fn traces(folder: &Folder) -> String {
    let mut text = format!("{PROCESS}\n{{\"kind\":\"comm\",\"comm\":\"0a\",\"rank\":0,\"ranks\":8,\"nodes\":1}}\n");
    let mut call = 0;
    for (collective, bucket, arm, ran, channels) in [
        ("ALLREDUCE", 20, "TREE/LL128", "TREE/LL128", 8),
        ("ALLREDUCE", 21, "TREE/LL128", "TREE/LL128", 8),
        ("ALLGATHER", 20, "AUTO", "RING/LL", 4),
    ] {
        for _ in 0..5 {
            text += &format!(
                "{{\"kind\":\"call\",\"comm\":\"0a\",\"rank\":0,\"call\":{call},\"collective\":\"{collective}\",\"size_bytes\":{},\"auto\":\"RING/LL\",\"arm\":\"{arm}\",\"taken\":true}}\n",
                1u64 << bucket
            );
            text += &format!(
                "{{\"kind\":\"launched\",\"comm\":\"0a\",\"rank\":0,\"call\":{call},\"collective\":\"{collective}\",\"count\":1,\"size_bytes\":{},\"bucket\":{bucket},\"arm\":\"{ran}\",\"channels\":{channels},\"kernel_us\":null}}\n",
                1u64 << bucket
            );
            call += 1;
        }
        text += &format!(
            "{{\"kind\":\"finding\",\"comm\":\"0a\",\"epoch\":3,\"collective\":\"{collective}\",\"bucket\":{bucket},\"arm\":\"{arm}\",\"because\":\"faster\"}}\n"
        );
    }
    std::fs::write(folder.at("trace-1.jsonl"), text).unwrap();
    folder.at("trace-1.jsonl")
}

#[test]
fn what_a_run_found_is_exported_and_reads_back_in_both_forms() {
    let folder = Folder::new();
    let trace = traces(&folder);
    let (code, own, err) = said(linkwise("tune", &["export", &trace]));
    assert_eq!(code, 0, "{err}");
    let lines: Vec<&str> = own.lines().filter(|l| !l.starts_with("# collective")).collect();
    let made_on = "# linkwise: nccl=2.28.9 gpu=NVIDIA_H100_80GB_HBM3 ranks_per_node=8 hosts=1";
    assert_eq!(
        lines,
        [made_on, "ALLREDUCE 1048576 4194304 TREE/LL128 ranks=8 nodes=1"],
        "neighbouring sizes are one rule"
    );

    let (code, csv, err) = said(linkwise("tune", &["export", &trace, "--format", "csv"]));
    assert_eq!(code, 0, "{err}");
    let rules: Vec<&str> = csv.lines().filter(|l| !l.starts_with('#')).collect();
    // With the channels that ran, and with AUTO's own choices: the example tuner forces one channel elsewhere.
    assert_eq!(rules, ["allgather,741456,1482910,ring,ll,4,1,8", "allreduce,741456,2965820,tree,ll128,8,1,8"]);
    assert!(csv.contains("ONE channel for every call that no line matches"), "{csv}");

    // Through a file, and back.
    std::fs::write(folder.at("found.csv"), &csv).unwrap();
    let (code, imported, err) = said(linkwise("tune", &["import", &folder.at("found.csv")]));
    assert_eq!(code, 0, "{err}");
    assert!(imported.contains("ALLREDUCE 1048576 4194304 TREE/LL128@8 ranks=8 nodes=1\n"), "{imported}");
    assert!(imported.starts_with(made_on), "{imported}");
    std::fs::write(folder.at("found.table"), &imported).unwrap();
    let (_, again, _) = said(linkwise("tune", &["import", &folder.at("found.table"), "--format", "csv"]));
    assert_eq!(again, csv, "round trip");
    // The plugin of this installation reads the table: `run --profile` takes it.
    let (code, _, err) = said(linkwise("tune", &["export", &trace, "--output", &folder.at("out.table")]));
    assert_eq!((code, std::fs::read_to_string(folder.at("out.table")).unwrap()), (0, own), "{err}");
}

#[test]
fn what_cannot_be_exported_or_imported_is_one_clear_error() {
    let folder = Folder::new();
    let at = |name: &str, text: &str| {
        std::fs::write(folder.at(name), text).unwrap();
        folder.at(name)
    };
    let observed = at("trace-2.jsonl", &format!("{}\n", PROCESS.replace("adaptive", "observe")));
    for (args, code, words) in [
        (&["export", observed.as_str()][..], 1, "there is nothing to export"),
        (&["export", "/nowhere"], 2, "cannot read /nowhere"),
        (&["import", &at("words", "allreduce,0,1,hedge,simple,2,1,8\n")], 2, "line 1: algorithm `hedge` is not known"),
        (&["import", &at("none", "# nothing\n")], 2, "has no rule that can be used"),
        (&["import", &at("binary", "\u{0}\u{1},,\n")], 2, "line 1: 3 fields"),
    ] {
        let (got, _, err) = said(linkwise("tune", args));
        assert!(got == code && err.contains(words), "{args:?}: {got}: {err}");
    }
}

const STATUS: &str = r#"{"linkwise_status":1,"at_unix_s":AT,"job":"0a","host":"0b","host_name":"n0","pid":7,"mode":"adaptive","policy":"adaptive","site_tuner":"gib","stopped":false,"frozen":false,"changes":2,"left_out":0,"comms":[{"comm":"00000000000000ab","rank":0,"ranks":8,"nodes":1,"leads":true,"calls":900,"epoch":3,"waits":1,"longest_wait_us":1500,"waiting_us":2000000,"dropped":0,"silent":[3,5],"slots":[{"collective":"AllReduce","size_bytes":1048576,"arm":"RING/LL","because":"faster"}]}]}"#;

#[test]
fn the_status_of_running_jobs_is_shown_with_the_silent_ranks() {
    let folder = Folder::new();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let (code, _, err) = said(linkwise("watch", &[&folder.at("."), "--once"]));
    assert!(code == 1 && err.contains("has no status file"), "{err}");
    std::fs::write(folder.at("status-0b-7.json"), STATUS.replace("AT", &now.to_string())).unwrap();
    std::fs::write(folder.at("status-0b-8.json"), STATUS.replace("AT", "1000").replace("\"pid\":7", "\"pid\":8"))
        .unwrap();
    let (code, out, err) = said(linkwise("watch", &[&folder.at("."), "--once"]));
    assert_eq!(code, 0, "{err}");
    for words in [
        "1 process writes its status, 1 has stopped writing",
        "site's tuner gib",
        "silent ranks: 3, 5",
        "RING/LL",
        "1MiB",
    ] {
        assert!(out.replace("\n  ", " ").contains(words), "{words}: {out}");
    }
    assert_eq!(out.matches("WAITING").count(), 1, "a process that has ended does not wait: {out}");
    let (_, json, _) = said(linkwise("watch", &[&folder.at("."), "--once", "--format", "json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["processes"][0]["comms"][0]["slots"][0]["arm"], "RING/LL");
    let most = u64::MAX.to_string();
    for pid in ["7", "8"] {
        let text = STATUS.replace("AT", &now.to_string()).replace("\"pid\":7", &format!("\"pid\":{pid}"));
        let text = text.replace("\"waits\":1,", &format!("\"waits\":{most},"));
        let text = text
            .replace("\"dropped\":0", &format!("\"dropped\":{most}"))
            .replace("\"changes\":2", &format!("\"changes\":{most}"));
        std::fs::write(folder.at(&format!("status-0b-{pid}.json")), text).unwrap();
    }
    let (code, out, err) = said(linkwise("watch", &[&folder.at("."), "--once"]));
    assert!(code == 0 && out.contains("RING/LL"), "sums of large numbers: {code} {err}");
    let (code, _, err) = said(linkwise("watch", &["/nowhere", "--once"]));
    assert!(code == 2 && err.contains("cannot read /nowhere"), "{err}");
}

#[test]
fn dumps_of_nccl_inspector_become_readings() {
    let folder = Folder::new();
    let dumps = folder.at("dumps");
    std::fs::create_dir(&dumps).unwrap();
    let line = |rank: u32, sn: u32, us: u32| {
        format!(
            "{{\"header\":{{\"id\":\"0xab\",\"rank\":{rank},\"n_ranks\":2,\"nnodes\":1}},\"metadata\":{{\"hostname\":\"n0\",\"pid\":{rank}}},\"coll_perf\":{{\"coll\":\"AllReduce\",\"coll_sn\":{sn},\"coll_msg_size_bytes\":16777216,\"coll_exec_time_us\":{us},\"coll_timing_source\":\"kernel_gpu\"}}}}\n"
        )
    };
    for rank in 0..2 {
        let text: String = (0..5).map(|sn| line(rank, sn, 200 + 100 * rank)).collect();
        std::fs::write(format!("{dumps}/n0-pid{rank}.log"), text).unwrap();
    }
    let store = folder.at("S.db");
    let base = ["--store", &store, "--cluster", "h100", "--job", "j", "--gpus", "n0:[0-1]", "--inspector"];
    let observe = |dumps: &str, more: &[&str]| said(linkwise("observe", &[&base[..], &[dumps], more].concat()));
    let (code, out, err) = observe(&dumps, &["--format", "json"]);
    assert_eq!(code, 0, "{err}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    // 16 MiB in 200 us: the rank that arrives last does not wait.
    let busbw = json["readings"][0]["busbw_gb_per_s"].as_f64().unwrap();
    assert!((busbw - 83.886).abs() < 0.01, "{out}");
    let (_, listed, _) =
        said(linkwise("readings", &["list", "--store", &store, "--cluster", "h100", "--format", "json"]));
    assert!(listed.contains("NCCL Inspector, median of 5 operations"), "{listed}");
    // One rank's dump is no job.
    let (code, _, err) = observe(&format!("{dumps}/n0-pid0.log"), &[]);
    assert!(code == 2 && err.contains("its collectives have times of 1 of 2 ranks"), "{err}");
    std::fs::create_dir(folder.at("empty")).unwrap();
    let (code, _, err) = observe(&folder.at("empty"), &[]);
    assert!(
        code == 2 && err.contains("no file of a job in this folder; NCCL Inspector writes HOST-pidPID.log"),
        "{err}"
    );
}
