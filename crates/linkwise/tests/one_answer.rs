//! One core, many doors: every request asked of the engine, of the command and, where there is one, of the stream gets the same answer.
//! The state has suspects that move the choice. All readings are simulated.

use assert_cmd::Command;
use engine::{Engine, ModelKeeper, Request};
use serde_json::{Value, json};
use std::path::Path;
use store::state::Suspect;
use store::{State, Store};
use topology::HostId;

const FILES: [&str; 3] = ["s", "S.db", "m.json"];

fn linkwise(dir: &Path, args: &[&str], input: &str) -> (String, String) {
    let mut c = Command::cargo_bin("linkwise").expect("the built command");
    c.args(args).current_dir(dir).env("NO_COLOR", "1").env("USER", "ada").write_stdin(input);
    let o = c.output().expect("it runs");
    let (out, err) =
        (String::from_utf8_lossy(&o.stdout).into_owned(), String::from_utf8_lossy(&o.stderr).replace("\n  ", " "));
    assert_eq!(o.status.code(), Some(0), "{args:?}: {err}");
    (out, err)
}

fn answer(dir: &Path, args: &[&str]) -> Value {
    let out = linkwise(dir, args, "").0;
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {e}: {out}"))
}

/// A folder with a model, readings, and a state that suspects the host of which `place --gpus 8` would take all GPUs.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let d = dir.path();
    linkwise(d, &["measure", "--cluster", "h100", "--backend", "simulated", "--samples", "40", "--store", "S.db"], "");
    linkwise(d, &["fit", "--cluster", "h100", "--store", "S.db", "-o", "m.json"], "");
    linkwise(d, &["cluster", "init", "--cluster", "h100", "--state", "s"], "");
    linkwise(d, &["cluster", "allocate", "old", "n3:0", "n3:1", "n2:0", "n2:1", "--state", "s"], "");
    let first = answer(d, &["place", "--state", "s", "--model", "m.json", "--gpus", "8", "--format", "json"]);
    let host = first["rank_order"][0].as_str().expect("a GPU").split(':').next().expect("a host").to_owned();
    let mut state = State::open(&d.join("s")).expect("the state");
    let id = state.cluster().hosts.iter().position(|h| h.name == host).expect("its host");
    let (component, factor, probability) = ("host".to_owned(), 0.4, 0.9);
    state
        .set_suspects(&[Suspect { defect: 0, host: HostId(id as u32), component, factor, probability }])
        .expect("kept");
    dir
}

/// The same files in a folder of their own: requests that change them are asked of each copy once.
fn copy(of: &Path) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for f in FILES {
        std::fs::copy(of.join(f), dir.path().join(f)).expect("copied");
    }
    dir
}

struct File(std::path::PathBuf);

impl ModelKeeper for File {
    fn keep(&mut self, model: &predict::Model) -> Result<(), String> {
        std::fs::write(&self.0, model.save()?).map_err(|e| e.to_string())
    }
}

/// The engine as a server would hold it.
fn engine(dir: &Path) -> Engine {
    let state = State::open(&dir.join("s")).expect("the state");
    let cluster = state.cluster().clone();
    let store = Store::open(&dir.join("S.db"), &cluster).expect("the store");
    let text = std::fs::read_to_string(dir.join("m.json")).expect("the model");
    let model = predict::Model::load(&text, papers::models()).expect("a model");
    let known = Engine::builder(cluster).searches(papers::searches()).kinds(papers::models());
    let builder = known.state(state).store(store).model(model).keeper(File(dir.join("m.json")));
    builder.build().expect("an engine")
}

/// An answer without what a door adds or what depends on the clock.
fn bare(mut v: Value) -> Value {
    let map = v.as_object_mut().expect("an object");
    for added in ["answer", "elapsed_us", "id", "fit_s", "store"] {
        map.remove(added);
    }
    if map.contains_key("suspected") {
        map.remove("left_out"); // of observe: operations of a trace, which the door reads
    }
    without_times(&mut v);
    v
}

fn without_times(v: &mut Value) {
    match v {
        Value::Object(map) => {
            map.retain(|k, _| !k.ends_with("unix_s"));
            map.values_mut().for_each(without_times);
        }
        Value::Array(list) => list.iter_mut().for_each(without_times),
        _ => {}
    }
}

fn of_engine(e: &Engine, request: &Value) -> Value {
    let request: Request = serde_json::from_value(request.clone()).unwrap_or_else(|e| panic!("{request}: {e}"));
    // The clock of the command: jobs are listed by their age.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs_f64();
    bare(serde_json::to_value(e.handle(&request, now).unwrap_or_else(|e| panic!("{request:?}: {e}"))).expect("JSON"))
}

#[test]
fn every_way_to_ask_for_a_placement_gets_the_same_answer_while_components_are_suspected() {
    let dir = folder();
    let d = dir.path();
    let state = ["place", "--state", "s", "--model", "m.json", "--format", "json"];
    let asked: [(Value, &[&str]); 5] = [
        (json!({"gpus": 8}), &["--gpus", "8"]),
        (json!({"pods": [4, 4], "constraints": {"hosts_max": 2}}), &["--pods", "4,4", "--max-hosts", "2"]),
        (
            json!({"gpus": 12, "contention": "physical", "loss_weight": 0.5}),
            &["--gpus", "12", "--contention", "physical", "--loss-weight", "0.5"],
        ),
        (
            json!({"gpus": 6, "free": ["n0", "n1", "n2:4", "n2:5"], "search": "oracle"}),
            &["--gpus", "6", "--free", "n0 n1 n2:4 n2:5", "--search", "oracle"],
        ),
        (json!({"gpus": 1}), &["--gpus", "1"]),
    ];
    let e = engine(d);
    let lines: String = asked.iter().map(|(r, _)| format!("{r}\n")).collect();
    let stream = linkwise(d, &["place", "--state", "s", "--model", "m.json", "--requests", "-"], &lines).0;
    let mut avoided = 0;
    for ((request, flags), line) in asked.iter().zip(stream.lines()) {
        let mut whole = request.clone();
        whole["request"] = json!("place");
        let expected = of_engine(&e, &whole);
        let single = bare(answer(d, &[&state[..], flags].concat()));
        let streamed = bare(serde_json::from_str(line).expect("JSON"));
        assert_eq!(single, expected, "the command, {request}");
        assert_eq!(streamed, expected, "the stream, {request}");
        avoided += usize::from(!expected["avoided"].is_null());
    }
    assert!(avoided > 0, "the suspects moved no choice");
}

/// Names of searches, contention rules and limits, mixed by a fixed stream of numbers.
fn mixed(requests: usize) -> Vec<(Value, Vec<String>)> {
    let mut random = 7u64;
    let mut next = |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    let searches: Vec<&str> = papers::searches().search_names().collect();
    let mut out = Vec::new();
    for i in 0..requests {
        let (gpus, search) = (2 + next(9), searches[i % searches.len()]);
        let contention = ["merge", "merge-counts", "physical"][next(3)];
        let weight = [0.0, 0.5, 1.0][next(3)];
        let mut request = json!({"gpus": gpus, "search": search, "contention": contention, "loss_weight": weight});
        let mut flags: Vec<String> = ["--gpus", &gpus.to_string(), "--search", search].map(String::from).to_vec();
        flags.extend(["--contention", contention, "--loss-weight", &weight.to_string()].map(String::from));
        match next(4) {
            0 => {
                request["free"] = json!(["n[0-2]:[0-5]"]);
                flags.extend(["--free", "n[0-2]:[0-5]"].map(String::from));
            }
            1 => {
                request["constraints"] = json!({"excluded_hosts": ["n3"], "hosts_max": 3});
                flags.extend(["--exclude-hosts", "n3", "--max-hosts", "3"].map(String::from));
            }
            2 => {
                request["size_bytes"] = json!(1 << 20);
                flags.extend(["--size", "1MiB"].map(String::from));
            }
            _ => {}
        }
        out.push((request, flags));
    }
    out
}

#[test]
fn every_search_and_contention_rule_answers_or_refuses_alike_through_every_door() {
    let dir = folder();
    let d = dir.path();
    let asked = mixed(54);
    let lines: String = asked.iter().map(|(r, _)| format!("{r}\n")).collect();
    let stream = linkwise(d, &["place", "--state", "s", "--model", "m.json", "--requests", "-"], &lines).0;
    let e = engine(d);
    let (mut avoided, mut refused) = (0, 0);
    for ((request, flags), line) in asked.iter().zip(stream.lines()) {
        let mut whole = request.clone();
        whole["request"] = json!("place");
        let whole: Request = serde_json::from_value(whole).expect("a request");
        let streamed: Value = serde_json::from_str(line).expect("JSON");
        let mut c = Command::cargo_bin("linkwise").expect("the built command");
        let common = ["place", "--state", "s", "--model", "m.json", "--format", "json"];
        let single = c.args(common).args(flags).current_dir(d).output().expect("it runs");
        match e.handle(&whole, 0.0) {
            Ok(expected) => {
                let expected = bare(serde_json::to_value(expected).expect("JSON"));
                avoided += usize::from(!expected["avoided"].is_null());
                assert_eq!(bare(streamed), expected, "the stream, {request}");
                assert_eq!(
                    bare(serde_json::from_slice(&single.stdout).expect("JSON")),
                    expected,
                    "the command, {request}"
                );
            }
            Err(expected) => {
                refused += 1;
                assert_eq!(streamed["error"], json!(expected.form()), "the stream, {request}");
                let said = String::from_utf8_lossy(&single.stderr).replace("\n  ", " ");
                assert!(single.status.code() != Some(0) && said.contains(&expected.to_string()), "{request}: {said}");
            }
        }
    }
    assert!(avoided > 0 && refused < asked.len() / 2, "{avoided} choices avoided a suspect, {refused} were refused");
}

#[test]
fn every_other_request_gets_the_same_answer_from_the_engine_and_from_the_command() {
    let (of_engine_dir, of_command_dir) = {
        let dir = folder();
        let other = copy(dir.path());
        (dir, other)
    };
    let d = of_command_dir.path();
    let e = engine(of_engine_dir.path());
    let place = ["place", "--state", "s", "--model", "m.json", "--gpus", "8", "--commit", "new", "--format", "json"];
    let store = ["--store", "S.db", "--state", "s", "--format", "json"];
    let cluster = ["--state", "s", "--format", "json"];
    let observe = |more: &[&'static str]| -> Vec<&'static str> {
        [
            &["observe", "--store", "S.db", "--state", "s", "--model", "m.json", "--format", "json", "--simulated"][..],
            more,
        ]
        .concat()
    };
    let model = ["--model", "m.json", "--state", "s", "--format", "json"];
    let by = ["--who", "ada", "--why", "typo"];
    // With a time of its own: how probable a defect is depends on when readings were taken.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock");
    let later = (now.as_secs() + 3600) as f64; // after the campaign; a day later would be refused
    let line = json!({"collective": "all_reduce", "size_bytes": 1 << 24, "busbw_gb_per_s": 70.0, "at_unix_s": later});
    std::fs::write(d.join("t.jsonl"), format!("{line}\n")).expect("written");
    let trace = measure::trace::parse_trace(&format!("{line}\n"), 4).expect("a trace");
    let provenance = format!("linkwise observe, {:?} trace, 1 operations, t.jsonl", trace.form);
    let observed = json!({"request": "observe", "job": "old", "simulated": true, "key": "k", "readings": [{
        "collective": "all_reduce", "size_bytes": 1 << 24, "busbw_gb_per_s": 70.0, "time_s": trace.kinds[0].time.0,
        "taken_at_unix_s": later, "provenance": provenance}]});
    let asked: Vec<(Value, Vec<&str>)> = vec![
        (json!({"request": "place", "gpus": 8, "commit": "new"}), place.to_vec()),
        (json!({"request": "place", "gpus": 8, "commit": "new"}), place.to_vec()), // repeated: the answer of then
        (
            json!({"request": "allocate", "job": "b", "gpus": ["n3:6", "n3:7"]}),
            [&["cluster", "allocate", "b", "n3:6", "n3:7"][..], &cluster].concat(),
        ),
        (json!({"request": "status"}), [&["cluster", "show"][..], &cluster].concat()),
        (observed.clone(), observe(&["--job", "old", "--trace", "t.jsonl", "--key", "k"])),
        (observed, observe(&["--job", "old", "--trace", "t.jsonl", "--key", "k"])), // repeated: stored once
        (
            json!({"request": "readings", "job": "old", "limit": 5}),
            [&["readings", "list", "--job", "old", "--limit", "5"][..], &store].concat(),
        ),
        (
            json!({"request": "correct", "id": 3, "busbw_gb_per_s": 55.5, "who": "ada", "why": "typo"}),
            [&["readings", "correct", "3", "--busbw", "55.5"][..], &by, &store].concat(),
        ),
        (
            json!({"request": "withdraw", "id": 4, "who": "ada", "why": "typo", "key": "w"}),
            [&["readings", "withdraw", "4", "--key", "w"][..], &by, &store].concat(),
        ),
        (
            json!({"request": "drain", "gpus": ["n3"], "reason": "fan"}),
            [&["cluster", "drain", "n3", "--reason", "fan"][..], &cluster].concat(),
        ),
        (
            json!({"request": "undrain", "gpus": ["n3:5", "n3:6"]}),
            [&["cluster", "drain", "n3:5", "n3:6", "--undo"][..], &cluster].concat(),
        ),
        (
            json!({"request": "release", "jobs": ["old", "b"], "key": "r"}),
            [&["cluster", "release", "old", "b", "--key", "r"][..], &cluster].concat(),
        ),
        (
            json!({"request": "release", "jobs": ["old", "b"], "key": "r"}),
            [&["cluster", "release", "old", "b", "--key", "r"][..], &cluster].concat(),
        ),
        (
            json!({"request": "explain", "gpus": ["n0", "n1:0", "n1:1"], "size_bytes": 1 << 24}),
            ["explain", "--gpus", "n0 n1:[0-1]", "--size", "16MiB"].iter().chain(&model).copied().collect(),
        ),
        (
            json!({"request": "explain", "job": "new"}),
            ["explain", "--job", "new"].iter().chain(&model).copied().collect(),
        ),
        (
            json!({"request": "learn", "readings": [260, 261], "key": "l"}),
            ["readings", "learn", "260", "261", "--store", "S.db", "--key", "l"]
                .iter()
                .chain(&model)
                .copied()
                .collect(),
        ),
        (
            json!({"request": "learn", "readings": [260, 261], "key": "l"}), // repeated: taught once
            ["readings", "learn", "260", "261", "--store", "S.db", "--key", "l"]
                .iter()
                .chain(&model)
                .copied()
                .collect(),
        ),
        (json!({"request": "diagnose"}), [&["doctor"][..], &store].concat()),
        (json!({"request": "status"}), [&["cluster", "show"][..], &cluster].concat()),
        (
            json!({"request": "fit", "kind": "bound"}),
            vec!["fit", "--cluster", "h100", "--store", "S.db", "--model", "bound", "-o", "m.json", "--format", "json"],
        ),
        (
            json!({"request": "place", "gpus": 3}), // with the model as it was fitted just now
            vec!["place", "--state", "s", "--model", "m.json", "--gpus", "3", "--format", "json"],
        ),
    ];
    for (i, (request, args)) in asked.iter().enumerate() {
        let mut of_command = bare(answer(d, args));
        if request["request"] == "fit" {
            of_command.as_object_mut().expect("an object").remove("model"); // the file
        }
        assert_eq!(of_command, of_engine(&e, request), "request {i}, {request}");
    }
}

#[test]
fn what_place_prints_while_components_are_suspected() {
    let dir = folder();
    let args = ["place", "--state", "s", "--model", "m.json", "--gpus", "8"];
    let (text, note) = linkwise(dir.path(), &args, "");
    let json = bare(answer(dir.path(), &[&args[..], &["--format", "json"]].concat()));
    let timeless: String = text
        .split_inclusive(' ')
        .zip(text.split_inclusive(' ').skip(1).chain([""]))
        .map(|(word, next)| if next.starts_with("us)") { "T " } else { word })
        .collect();
    insta::assert_snapshot!("place_text", format!("{note}{timeless}"));
    insta::assert_snapshot!("place_json", serde_json::to_string_pretty(&json).expect("JSON"));
}
