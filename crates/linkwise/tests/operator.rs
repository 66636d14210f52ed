//! The operator's day as scripts see it: a state, placements that take their GPUs, observations, the doctor. All readings are simulated.

use assert_cmd::Command;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;

fn run(dir: &Path, args: &[&str]) -> Output {
    let mut c = Command::cargo_bin("linkwise").expect("the built command");
    c.args(args).current_dir(dir).env("NO_COLOR", "1").output().expect("it runs")
}

fn ok(dir: &Path, args: &[&str]) -> String {
    let o = run(dir, args);
    assert_eq!(o.status.code(), Some(0), "{args:?}: {}", text(&o.stderr));
    text(&o.stdout)
}

fn refused(dir: &Path, args: &[&str], code: i32) -> String {
    let o = run(dir, args);
    let err = text(&o.stderr).replace("\n  ", " ");
    assert_eq!(o.status.code(), Some(code), "{args:?}: {err}");
    assert!(err.starts_with("error: ") && err.trim().lines().count() == 1, "one clear error: {err}");
    err
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let out = ok(dir, args);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {e}: {out}"))
}

/// A folder with a fitted model and a new state.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let d = dir.path();
    ok(d, &["measure", "--cluster", "h100", "--backend", "simulated", "--samples", "60", "--store", "S.db"]);
    ok(d, &["fit", "--cluster", "h100", "--store", "S.db", "-o", "m.json"]);
    ok(d, &["cluster", "init", "--cluster", "h100", "--state", "s"]);
    dir
}

fn names(v: &Value) -> Vec<String> {
    v.as_array().expect("a list").iter().map(|g| g.as_str().expect("a name").to_owned()).collect()
}

#[test]
fn a_state_tells_what_it_holds_and_refuses_with_codes_that_scripts_rely_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let d = dir.path();
    let e = refused(d, &["cluster", "show", "--state", "s"], 2);
    assert!(e.contains("`linkwise cluster init"), "{e}");
    ok(d, &["cluster", "init", "--cluster", "h100", "--state", "s"]);
    let e = refused(d, &["cluster", "init", "--cluster", "h100", "--state", "s"], 1);
    assert!(e.contains("already") && e.contains("move the file away"), "{e}");
    ok(d, &["cluster", "allocate", "a", "n0", "n1:0", "--state", "s"]);
    assert!(!ok(d, &["cluster", "show", "--help"]).contains("--key"), "a view has no key");
    let again = json(d, &["cluster", "allocate", "a", "n1:0", "n0", "--state", "s", "--format", "json"]);
    assert_eq!(again["already"], true);
    assert!(refused(d, &["cluster", "allocate", "b", "n1:0", "--state", "s"], 1).contains("held by job `a`"));
    assert!(refused(d, &["cluster", "allocate", "b", "n9:0", "--state", "s"], 2).contains("n9"));
    assert!(refused(d, &["cluster", "allocate", "b b", "n1:1", "--state", "s"], 2).contains("cannot be a job id"));
    assert!(refused(d, &["cluster", "release", "zz", "--state", "s"], 2).contains("jobs that do: a"));
    ok(d, &["cluster", "drain", "n3", "n2:1", "--reason", "fan", "--state", "s"]);
    assert!(refused(d, &["cluster", "allocate", "b", "n3:0", "--state", "s"], 1).contains("drained (fan)"));
    let now = json(d, &["cluster", "show", "--state", "s", "--format", "json"]);
    assert_eq!(names(&now["free"]).len(), 32 - 9 - 9);
    assert_eq!((now["jobs"][0]["id"].as_str(), now["drained"][0]["reason"].as_str()), (Some("a"), Some("fan")));
    let undo = ["cluster", "drain", "n3", "--undo", "--state", "s", "--key", "u"];
    assert!(ok(d, &undo).starts_with("undrained 8"));
    assert!(ok(d, &undo).starts_with("done before under this key: undrained 8"));
    ok(d, &["cluster", "release", "a", "--state", "s"]);
    let shown = ok(d, &["cluster", "show", "--state", "s"]);
    assert!(shown.contains("31 free, 0 held by 0 jobs, 1 drained"), "{shown}");
    assert!(
        refused(d, &["cluster", "init", "--cluster", "h100", "--state", "no/such/folder/s"], 2).contains("cannot open")
    );
}

#[test]
fn eight_processes_that_place_and_commit_at_the_same_time_share_the_cluster_without_overlap() {
    let dir = folder();
    let d = dir.path();
    let got: Vec<(String, Vec<String>)> = std::thread::scope(|s| {
        let worker = |w: usize| {
            let mut mine = Vec::new();
            for n in 0.. {
                let job = format!("w{w}-{n}");
                let o = run(
                    d,
                    &[
                        "place", "--state", "s", "--model", "m.json", "--gpus", "2", "--commit", &job, "--format",
                        "json",
                    ],
                );
                match o.status.code() {
                    Some(0) => {
                        let v: Value = serde_json::from_slice(&o.stdout).expect("JSON");
                        mine.push((job, names(&v["gpus"])));
                    }
                    Some(1) => break, // nothing is left
                    code => panic!("{code:?}: {}", text(&o.stderr)),
                }
            }
            mine
        };
        let workers: Vec<_> = (0..8).map(|w| s.spawn(move || worker(w))).collect();
        workers.into_iter().flat_map(|w| w.join().expect("a worker")).collect()
    });
    let mut holder = BTreeMap::new();
    for (job, gpus) in &got {
        for g in gpus {
            assert_eq!(holder.insert(g.clone(), job.clone()), None, "{g} was allocated twice");
        }
    }
    assert_eq!(holder.len(), 32, "GPUs are left");
    let now = json(d, &["cluster", "show", "--state", "s", "--format", "json"]);
    assert!(names(&now["free"]).is_empty());
    for j in now["jobs"].as_array().expect("jobs") {
        let id = j["id"].as_str().expect("an id");
        assert!(names(&j["gpus"]).iter().all(|g| holder[g] == id));
    }
    assert!(refused(d, &["place", "--state", "s", "--model", "m.json", "--gpus", "1"], 1).contains("free"));
}

#[test]
fn jobs_of_the_state_are_the_contention_and_a_committed_name_is_taken() {
    let dir = folder();
    let d = dir.path();
    ok(d, &["cluster", "allocate", "old", "n0:0", "n0:1", "n1:0", "n1:1", "--state", "s"]);
    let args = ["place", "--state", "s", "--model", "m.json", "--gpus", "8", "--format", "json", "--commit", "new"];
    let v = json(d, &args);
    assert_eq!(v["contention"]["jobs"][0]["id"], "old", "{v}");
    assert!(names(&v["gpus"]).iter().all(|g| !["n0:0", "n0:1", "n1:0", "n1:1"].contains(&g.as_str())));
    let again = json(d, &args);
    assert_eq!((&again["gpus"], &again["committed"]["repeated"]), (&v["gpus"], &Value::Bool(true)));
    let larger = ["place", "--state", "s", "--model", "m.json", "--gpus", "9", "--commit", "new"];
    assert!(refused(d, &larger, 1).contains("job `new` already holds"));
    let now = json(d, &["cluster", "show", "--state", "s", "--format", "json"]);
    assert_eq!(now["jobs"].as_array().map(Vec::len), Some(2));
    let e = refused(d, &["place", "--cluster", "het-ra", "--state", "s", "--model", "m.json", "--gpus", "8"], 2);
    assert!(e.contains("belongs to another cluster (`h100`, given: `het-ra`)"), "{e}");
}

#[test]
fn an_observation_is_recorded_learned_and_suspected_in_every_form() {
    let dir = folder();
    let d = dir.path();
    ok(d, &["cluster", "allocate", "a", "n0:0", "n0:1", "n1:0", "n1:1", "--state", "s"]);
    let observe = |more: &[&str]| -> Value {
        let mut args = vec!["observe", "--store", "S.db", "--job", "a", "--format", "json", "--simulated"];
        args.extend(more);
        json(d, &args)
    };
    let v = observe(&["--state", "s", "--busbw", "75", "--model", "m.json"]);
    assert_eq!((v["learned"].as_u64(), v["readings"][0]["gpus"].as_array().map(Vec::len)), (Some(1), Some(4)), "{v}");
    let trace = "{\"collective\":\"all_reduce\",\"size_bytes\":16777216,\"busbw_gb_per_s\":76}\n";
    std::fs::write(d.join("t.jsonl"), trace.repeat(3)).expect("written");
    let v = observe(&["--state", "s", "--trace", "t.jsonl"]);
    assert_eq!(v["readings"][0]["busbw_gb_per_s"], 76.0);
    // Another job on the same NICs: nothing is learned from what is shared.
    ok(d, &["cluster", "allocate", "b", "n0:2", "n1:2", "--state", "s"]);
    let v = observe(&[
        "--gpus",
        "n0:2 n1:2 n2:0",
        "--cluster",
        "h100",
        "--state",
        "s",
        "--busbw",
        "30",
        "--model",
        "m.json",
    ]);
    assert_eq!(v["learned"], 0, "{v}");
    assert!(v["readings"][0]["contention"].as_str().is_some_and(|c| c.contains('b')), "{v}");
    let e = refused(d, &["observe", "--store", "S.db", "--job", "zz", "--state", "s", "--busbw", "1"], 2);
    assert!(e.contains("no job `zz` holds GPUs"), "{e}");
    let bad = ["observe", "--store", "S.db", "--job", "a", "--state", "s", "--busbw", "-1"];
    assert_eq!(run(d, &bad).status.code(), Some(2));
    std::fs::write(d.join("bad.jsonl"), "{}").expect("written");
    let e = refused(d, &["observe", "--store", "S.db", "--job", "a", "--state", "s", "--trace", "bad.jsonl"], 2);
    assert!(e.contains("bad.jsonl: line 1"), "{e}");
    // 31 GB/s of 128: something is slow, and the state knows; the doctor says no more than that.
    ok(d, &["cluster", "release", "a", "b", "--state", "s"]);
    ok(
        d,
        &["cluster", "allocate", "a", "n2:0", "n2:1", "n2:2", "n2:3", "n3:0", "n3:1", "n3:2", "n3:3", "--state", "s"],
    );
    let v = observe(&["--state", "s", "--busbw", "60", "--model", "m.json"]);
    assert!(v["suspected"].as_array().is_some_and(|s| s.len() > 4), "{v}");
    let now = json(d, &["cluster", "show", "--state", "s", "--format", "json"]);
    assert!(
        now["suspects"].as_array().is_some_and(|s| s.iter().all(|x| x["host"] == "n2" || x["host"] == "n3")),
        "{now}"
    );
    ok(d, &["cluster", "release", "a", "--state", "s"]);
    for h in ["n0", "n1", "n2", "n3"] {
        let four: Vec<String> = (4..8).map(|g| format!("{h}:{g}")).collect();
        let mut args = vec!["cluster", "allocate", h, "--state", "s"];
        args.extend(four.iter().map(String::as_str));
        ok(d, &args);
    }
    let v = json(d, &["place", "--state", "s", "--model", "m.json", "--gpus", "8", "--format", "json"]);
    assert!(names(&v["gpus"]).iter().all(|g| g.starts_with("n0") || g.starts_with("n1")), "{v}");
    let v = json(d, &["doctor", "--store", "S.db", "--state", "s", "--format", "json"]);
    assert!(v["defects"][0]["worth_measuring"].is_array() && v["defects"][0]["named"] == false, "{v}");
    // A suspicion that names nothing is no defect for scripts.
    let suspicion = ok(d, &["doctor", "--store", "S.db", "--state", "s", "--exit-code"]);
    assert!(suspicion.contains("SUSPICION") && suspicion.lines().all(|l| l.chars().count() <= 80), "{suspicion}");
}

#[test]
fn a_fit_that_replaces_a_model_waits_for_those_who_teach_it_and_sees_what_they_stored() {
    let dir = folder();
    let d = dir.path();
    let lock = files::FileLock::acquire(&d.join("m.json")).expect("the lock"); // as an observation has it
    let fit = std::thread::scope(|s| {
        let fit =
            s.spawn(|| json(d, &["fit", "--cluster", "h100", "--store", "S.db", "-o", "m.json", "--format", "json"]));
        std::thread::sleep(std::time::Duration::from_secs(2)); // long enough to read the store without the lock
        let args = ["observe", "--cluster", "h100", "--store", "S.db", "--job", "j", "--simulated", "--busbw", "108"];
        ok(d, &[&args[..], &["--gpus", "n0:[0-2] n1:[0-2] n2:[0-2]"]].concat());
        drop(lock);
        fit.join().expect("the fit")
    });
    let after = json(d, &["fit", "--cluster", "h100", "--store", "S.db", "-o", "n.json", "--format", "json"]);
    assert_eq!(
        fit["multi_host_readings"], after["multi_host_readings"],
        "the reading is in the store, but not in the model"
    );
}

#[test]
fn a_model_file_that_is_a_link_is_taught_where_it_points() {
    let dir = folder();
    let d = dir.path();
    std::os::unix::fs::symlink("m.json", d.join("link.json")).expect("a link");
    let before = std::fs::read(d.join("m.json")).expect("the model");
    let args = ["observe", "--cluster", "h100", "--store", "S.db", "--job", "j", "--simulated", "--busbw", "108"];
    let out = ok(d, &[&args[..], &["--gpus", "n0:[0-2] n1:[0-2]", "--model", "link.json"]].concat());
    assert!(out.contains("has learned 1 reading"), "{out}");
    assert_ne!(std::fs::read(d.join("m.json")).expect("the model"), before);
    assert!(d.join("link.json").is_symlink());
}

#[test]
fn what_an_error_quotes_does_not_reach_the_terminal_as_an_escape_sequence() {
    let dir = tempfile::tempdir().expect("a folder");
    let d = dir.path();
    ok(d, &["cluster", "init", "--cluster", "h100", "--state", "s"]);
    for args in [
        &["cluster", "release", "\u{1b}[31mx", "--state", "s"][..],
        &["readings", "list", "--store", "\u{1b}[31mx", "--state", "s"],
        &["topology", "show", "\u{1b}[31mx"],
    ] {
        let e = refused(d, args, 2);
        assert!(!e.contains('\u{1b}') && e.contains("[31mx"), "{e:?}");
    }
}

#[test]
fn a_trace_is_recorded_once_though_the_job_was_released_before_the_retry() {
    let dir = folder();
    let d = dir.path();
    ok(d, &["cluster", "allocate", "j", "n0:0", "n0:1", "n1:0", "n1:1", "--state", "s"]);
    let line = "{\"collective\":\"all_reduce\",\"size_bytes\":16777216,\"busbw_gb_per_s\":70.0}\n";
    std::fs::write(d.join("t.jsonl"), line.repeat(3)).expect("written");
    let args = ["observe", "--store", "S.db", "--state", "s", "--job", "j", "--trace", "t.jsonl", "--format", "json"];
    let keyed = [&args[..], &["--key", "j/epilog"]].concat();
    assert_eq!(json(d, &keyed)["repeated"], false);
    ok(d, &["cluster", "release", "j", "--state", "s"]);
    assert_eq!(json(d, &keyed)["repeated"], true);
    assert!(refused(d, &[&args[..], &["--key", "new"]].concat(), 2).contains("no job `j` holds GPUs"));
    assert!(refused(d, &args, 2).contains("no job `j` holds GPUs"));
}

#[test]
fn the_doctor_ends_with_1_on_a_defect_only_where_a_script_asks_for_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let d = dir.path();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/slow-nic.yaml");
    let slow = std::fs::read_to_string(example).expect("the example");
    let healthy = slow.replace(", degraded: {nics: {mlx5_3: 0.5}}", "");
    assert_ne!(slow, healthy, "the example has a slow NIC");
    std::fs::write(d.join("slow.yaml"), slow).expect("written");
    std::fs::write(d.join("healthy.yaml"), healthy).expect("written");
    for (file, code) in [("slow.yaml", 1), ("healthy.yaml", 0)] {
        let store = format!("{file}.db");
        ok(d, &["measure", "--cluster", file, "--backend", "simulated", "--samples", "60", "--store", &store]);
        let doctor = ["doctor", "--cluster", "healthy.yaml", "--store", &store];
        ok(d, &doctor);
        let o = run(d, &[&doctor[..], &["--exit-code"]].concat());
        assert_eq!(o.status.code(), Some(code), "{file}: {}{}", text(&o.stdout), text(&o.stderr));
    }
}

#[test]
fn on_a_healthy_restless_site_the_doctor_names_nothing_and_rarely_suspects() {
    let dir = tempfile::tempdir().expect("a folder");
    let d = dir.path();
    let cluster = ["--cluster", "128xhgx-h100"];
    let (mut named, mut suspected) = (0, 0);
    for seed in ["1", "2", "4", "7", "11", "14"] {
        let store = format!("{seed}.db");
        // Readings scatter by 10 %, and one in twenty is 30 to 70 % of the truth.
        let site = ["--backend", "simulated", "--noise", "10", "--outliers", "5", "--seed", seed, "--store", &store];
        ok(d, &[&["measure"], &cluster[..], &site[..]].concat());
        let answer = json(d, &["doctor", cluster[0], cluster[1], "--store", &store, "--format", "json"]);
        let defects = answer["defects"].as_array().expect("a list");
        named += defects.iter().filter(|x| x["named"] == true).count();
        suspected += defects.len();
    }
    assert_eq!(named, 0);
    assert!(
        suspected <= 6,
        "{suspected} suspicions on six healthy sites; ten were usual with a fixed share of outliers"
    );
}

#[test]
fn a_rail_sweep_and_the_readings_that_the_doctor_asks_for_find_a_slow_nic() {
    let dir = tempfile::tempdir().expect("a folder");
    let d = dir.path();
    ok(
        d,
        &["measure", "--cluster", "32xhgx-h100", "--backend", "simulated", "--design", "rail-sweep", "--store", "s.db"],
    );
    let answer = json(d, &["doctor", "--cluster", "32xhgx-h100", "--store", "s.db", "--format", "json"]);
    assert_eq!(answer["defects"], serde_json::json!([]), "healthy");
    let rail_3: String = (0..32).map(|h| format!("n{h}:3 ")).collect();
    let rail_3 = rail_3.trim();
    let observe = ["observe", "--store", "s.db", "--cluster", "32xhgx-h100", "--job", "j", "--simulated", "--gpus"];
    ok(d, &[&observe[..], &[rail_3, "--busbw", "22"]].concat());
    let half: String = (0..16).map(|h| format!("n{h}:3 ")).collect();
    ok(d, &[&observe[..], &[half.trim(), "--busbw", "22"]].concat());
    let answer = json(d, &["doctor", "--cluster", "32xhgx-h100", "--store", "s.db", "--format", "json"]);
    let asked = answer["measure_next"].to_string();
    assert!(asked.contains("n1") || asked.contains("n0"), "the next reading is among the suspects: {answer}");
}

#[test]
fn a_slow_reading_that_repeats_is_no_outlier_and_a_slow_host_is_not_its_own_reference() {
    let dir = tempfile::tempdir().expect("a folder");
    let d = dir.path();
    let site = |degraded: &str| {
        format!(
            "name: s\nhosts:\n- {{name: 'h[0-4]', type: hgx-h100}}\n- {{name: h5, type: hgx-h100{degraded}}}\n- {{name: 'h[6-15]', type: hgx-h100}}\n"
        )
    };
    std::fs::write(d.join("healthy.yaml"), site("")).expect("a file");
    std::fs::write(d.join("slow.yaml"), site(", degraded: {host: 0.6}")).expect("a file");
    let doctor = |store: &str| json(d, &["doctor", "--cluster", "healthy.yaml", "--store", store, "--format", "json"]);
    // The campaign measures the slow host in full, so its table is one of two.
    let measure = |cluster: &str, store: &str| {
        ok(d, &["measure", "--cluster", cluster, "--backend", "simulated", "--samples", "20", "--store", store])
    };
    measure("slow.yaml", "slow.db");
    let found = doctor("slow.db");
    assert_eq!(found["defects"][0]["candidates"][0]["component"], "host h5", "{found}");
    assert_eq!(found["defects"][0]["named"], true, "{found}");
    // Three readings of one job, half as fast as expected.
    measure("healthy.yaml", "healthy.db");
    assert_eq!(doctor("healthy.db")["defects"], serde_json::json!([]));
    for _ in 0..3 {
        let observe = ["observe", "--store", "healthy.db", "--cluster", "healthy.yaml", "--job", "j", "--simulated"];
        ok(d, &[&observe[..], &["--gpus", "h[6,9]:[0-7]", "--busbw", "70"]].concat());
    }
    let found = doctor("healthy.db");
    let defects = found["defects"].as_array().expect("a list");
    assert!(defects.iter().any(|x| x.to_string().contains("h6") || x.to_string().contains("h9")), "{found}");
}
