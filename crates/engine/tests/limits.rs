//! Requests that clients should not send are refused with a reason, or answered within limits. All bandwidths are
//! invented.

mod common;

use common::{SIZE, cluster, engine, learning_model, model};
use engine::{Answer, EngineError, ErrorForm, ObserveRequest, ReadingIn, ReadingsRequest, Request};
use serde_json::{Value, json};
use topology::{Bytes, Collective};

fn ask(e: &engine::Engine, request: &Value) -> Result<Answer, EngineError> {
    let request: Request = serde_json::from_value(request.clone()).unwrap_or_else(|e| panic!("{request}: {e}"));
    e.handle(&request, 1.0)
}

fn error(e: &engine::Engine, request: &Value) -> ErrorForm {
    ask(e, request).map_or_else(|e| e.form(), |a| panic!("{request} got {a:?}"))
}

#[test]
fn a_message_size_that_no_store_accepts_is_refused_before_a_job_is_placed() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(2);
    let e = engine(folder.path(), &c, model(&c));
    for size in [0, (1u64 << 50) + 1, u64::MAX] {
        let query = engine::PlaceQuery {
            commit: Some("j".into()),
            ..engine::PlaceQuery::new(place::Request::new(4, c.usable(), Bytes(size)))
        };
        let refused = e.place(&query, 1.0).unwrap_err();
        assert!(refused.code() == "bad_request" && refused.to_string().contains("size"), "{size}: {refused}");
        let asked = error(&e, &json!({"request": "explain", "gpus": ["n0"], "size_bytes": size}));
        assert_eq!(asked.code, "bad_request", "{size}");
    }
    ask(&e, &json!({"request": "place", "gpus": 4, "size_bytes": 1u64 << 50, "commit": "j"})).unwrap();
    let got =
        json!({"request": "observe", "job": "j", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 9.0}]});
    ask(&e, &got).unwrap(); // at the size of the job's placement
}

#[test]
fn a_demand_near_the_largest_number_is_answered_alike_when_the_commit_is_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(2);
    let e = engine(folder.path(), &c, model(&c));
    let jobs = json!([{"id": "a", "gpus": ["n0:0", "n1:0"], "demand_gb_per_s": 1e308}]);
    let request = json!({"request": "place", "gpus": 4, "jobs": jobs, "commit": "j", "key": "k"});
    let Answer::Place(first) = ask(&e, &request).unwrap() else { panic!() };
    let Answer::Place(again) = ask(&e, &request).unwrap() else { panic!() };
    assert_eq!((&first.gpus, &first.contention), (&again.gpus, &again.contention));
    assert!(again.committed.unwrap().repeated);
}

#[test]
fn an_unknown_field_is_an_error_in_every_request() {
    for request in ["place", "status", "diagnose", "fit", "explain", "readings"] {
        let e = serde_json::from_value::<Request>(json!({"request": request, "gpsu": 8})).unwrap_err().to_string();
        assert!(e.contains("gpsu"), "{request}: {e}");
    }
    assert!(serde_json::from_value::<Request>(json!({"request": "status"})).is_ok());
}

#[test]
fn readings_of_thousands_of_gpus_are_answered_alike_and_listed_page_by_page() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(1280);
    let store = store::Store::create(&folder.path().join("s.db"), &c).unwrap();
    let e = engine::Engine::builder(c.clone()).store(store).build().unwrap();
    let of = |n: usize| ObserveRequest {
        job: "j".into(),
        gpus: Some(vec!["n[0-1279]".into()]),
        readings: (1..=n).map(|i| ReadingIn::new(Collective::AllReduce, Some(Bytes(i as u64)), 1.0)).collect(),
        key: Some(format!("k{n}")),
        ..ObserveRequest::default()
    };
    let first = e.observe(&of(31), 1.0).unwrap();
    let again = e.observe(&of(31), 2.0).unwrap();
    assert!(again.repeated, "the answer was kept");
    assert_eq!(engine::ObserveAnswer { repeated: false, ..again }, first);
    assert!(e.observe(&of(103), 3.0).unwrap_err().to_string().contains("at most 102 at a time"));
    for i in 0..3 {
        e.observe(&ObserveRequest { key: Some(format!("more{i}")), ..of(31) }, 4.0).unwrap();
    }
    let newest = e.readings(&ReadingsRequest { limit: Some(1000), ..Default::default() }).unwrap();
    assert_eq!((newest.readings.len(), newest.more, newest.readings[101].id), (102, true, 124));
    let page = |after| e.readings(&ReadingsRequest { limit: Some(1000), after: Some(after), ..Default::default() });
    let (one, two) = (page(0).unwrap(), page(102).unwrap());
    assert_eq!((one.readings.len(), one.more, two.readings.len(), two.more), (102, true, 22, false));
}

#[test]
fn a_reading_of_zero_bandwidth_is_refused_and_after_one_near_zero_every_prediction_is_a_finite_number() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let e = engine(folder.path(), &c, learning_model(&c));
    let gpus = || Some(vec!["n0:0".to_owned(), "n1:0".into()]);
    let of = |busbw_gb_per_s: f64| {
        let stuck = ReadingIn::new(Collective::AllReduce, Some(SIZE), busbw_gb_per_s);
        ObserveRequest { job: "stuck".into(), gpus: gpus(), readings: vec![stuck], ..Default::default() }
    };
    let refused = e.observe(&of(0.0), 1.0).unwrap_err();
    assert!(refused.to_string().contains("0 GB/s cannot be recorded"), "{refused}");
    let tiny = e.observe(&of(1e-9), 1.0).unwrap_err();
    assert!(tiny.to_string().contains("is not between 1e-6"), "{tiny}");
    e.observe(&of(1e-6), 1.0).unwrap();
    let explained = engine::ExplainRequest { gpus: gpus(), ..Default::default() };
    let v = e.explain(&explained).unwrap().expected;
    assert!(v.predicted_busbw_gb_per_s.is_finite() && v.std_gb_per_s.is_finite(), "{v:?}");
    assert!(v.predicted_busbw_gb_per_s > 0.0, "{v:?}");
}

#[test]
fn an_answer_names_the_switches_that_readings_show_and_the_line_that_adds_them_to_the_file() {
    let c = cluster(5);
    let with = |switches: Value| {
        let mut saved: Value = serde_json::from_str(&model(&c).save().unwrap()).unwrap();
        let rates = json!({"tiers": {"found": {"uplinks": 1.0, "kept": 0.7}}, "switches": switches});
        saved.as_object_mut().unwrap().insert("rates".into(), rates);
        predict::Model::load(&saved.to_string(), &predict::ModelKinds::shipped()).unwrap()
    };
    let said = |of: &topology::Cluster, model: predict::Model| {
        let folder = tempfile::tempdir().unwrap();
        let e = engine(folder.path(), of, model);
        let a = e.place(&engine::PlaceQuery::new(place::Request::new(16, of.usable(), SIZE)), 1.0).unwrap();
        (a.found_switches, a.found_switches_yaml)
    };
    assert_eq!(said(&c, model(&c)), (None, None));
    let (sentence, line) = said(&c, with(json!([["n0", "n1"], ["n2", "n3"], ["n4"]])));
    let sentence = sentence.unwrap();
    assert!(sentence.contains("3 switches of up to 2 hosts") && sentence.contains("n[0-1]"), "{sentence}");
    // The line describes the same switches.
    let file = |line: &str| {
        let text = format!("name: h100\nnetwork:\n  {line}\nhosts: [{{name: 'n[0-4]', type: hgx-h100}}]\n");
        topology::file::read(&text, "site.yaml").unwrap_or_else(|e| panic!("{text}: {e}"))
    };
    let below = |c: &topology::Cluster| (0..5).map(|h| c.switch_of(0, topology::HostId(h))).collect::<Vec<_>>();
    assert_eq!(below(&file(&line.unwrap())), [0, 0, 1, 1, 2]);
    let (_, line) = said(&c, with(json!([["n0", "n3"], ["n1"], ["n2", "n4"]])));
    assert_eq!(below(&file(&line.unwrap())), [0, 1, 2, 0, 2]);
    // A file that has switches is believed.
    let mut told = c.clone();
    told.network.tiers = vec![topology::Tier::regular("leaf", 2, 1.0)];
    assert_eq!(said(&told, with(json!([["n0", "n1"], ["n2", "n3"], ["n4"]])).on(&told)), (None, None));
}
