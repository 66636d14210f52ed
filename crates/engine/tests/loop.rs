//! Observe, learn, suspect, place, diagnose, correct and withdraw: the loop, through typed requests and through JSON.

mod common;

use common::{SIZE, cluster, engine, learning_model, model, rows, take};
use engine::{
    AllocateRequest, Answer, CorrectRequest, Engine, EngineError, ErrorForm, ErrorKind, ExplainRequest, FitRequest,
    LearnRequest, ModelKeeper, NotLearned, ObserveRequest, PlaceQuery, ReadingIn, ReadingsRequest, ReleaseRequest,
    Request, WithdrawRequest,
};
use std::path::Path;
use std::sync::{Arc, Mutex};
use store::state::Suspect;
use store::{Once, State, Store};
use topology::{Bytes, Cluster, Collective, HostId};

fn reading(gb_per_s: f64) -> ReadingIn {
    ReadingIn::new(Collective::AllReduce, Some(SIZE), gb_per_s)
}

fn observe(gpus: &str, readings: Vec<ReadingIn>) -> ObserveRequest {
    let gpus = Some(gpus.split(' ').map(str::to_owned).collect());
    ObserveRequest { job: "job".into(), gpus, readings, simulated: true, ..ObserveRequest::default() }
}

fn what_if(c: &Cluster, gpus: usize) -> PlaceQuery {
    PlaceQuery { commit: None, ..take(c, gpus, "x") }
}

/// A new store with the readings that the test models learn from.
fn filled_store(path: &Path, c: &Cluster) -> Store {
    let mut store = Store::create(path, c).unwrap();
    let records: Vec<store::Record> = rows(c).into_iter().map(Into::into).collect();
    store.insert_batch(&records).unwrap();
    store
}

/// The engine's prediction for GPUs, GB/s.
fn expected(e: &Engine, gpus: &str) -> f64 {
    let gpus = Some(gpus.split(' ').map(str::to_owned).collect());
    let a = e.explain(&ExplainRequest { gpus, ..ExplainRequest::default() }).unwrap();
    a.expected.predicted_busbw_gb_per_s
}

#[test]
fn every_reading_reports_its_effect_or_the_reason_for_none() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let e = engine(folder.path(), &c, learning_model(&c));
    let two = "n0:0 n0:1 n1:0 n1:1";
    let v = expected(&e, two);
    let other_size = ReadingIn { size_bytes: Some(Bytes::gib(4).0), ..reading(v) };
    let other_collective = ReadingIn { collective: Collective::AllGather, ..reading(v) };
    let a = e.observe(&observe(two, vec![reading(v * 1.03), other_size, other_collective]), 1.0).unwrap();
    let why: Vec<_> = a.readings.iter().map(|r| (r.taught.learned, r.taught.why_not)).collect();
    let expected = [(true, None), (false, Some(NotLearned::OtherSize)), (false, Some(NotLearned::OtherCollective))];
    assert_eq!((why.as_slice(), a.learned), (&expected[..], 1));
    assert_eq!(a.readings[0].taught.expected_gb_per_s, Some(v), "the prediction before the reading was learned");
    let one_host = e.observe(&observe("n0:0 n0:1", vec![reading(30.0)]), 2.0).unwrap();
    assert_eq!(one_host.readings[0].taught.why_not, Some(NotLearned::OneHost));
    let bound =
        Engine::builder(c.clone()).model(model(&c)).store(Store::create(&folder.path().join("b.db"), &c).unwrap());
    let v = bound.build().unwrap().observe(&observe(two, vec![reading(v)]), 1.0).unwrap();
    assert_eq!(v.readings[0].taught.why_not, Some(NotLearned::KindLearnsByFit));
}

#[test]
fn what_no_defect_explains_after_a_few_jobs_is_learned() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(12);
    let e = engine(folder.path(), &c, learning_model(&c));
    let pair = |i: u32| format!("n{} n{}", 2 * i, 2 * i + 1);
    let before = expected(&e, &pair(5));
    let jobs: Vec<_> =
        (0..5).map(|i| e.observe(&observe(&pair(i), vec![reading(0.6 * before)]), f64::from(i)).unwrap()).collect();
    let why: Vec<_> = jobs.iter().map(|a| (a.readings[0].taught.learned, a.readings[0].taught.why_not)).collect();
    assert_eq!(why, [(true, None); 5], "five jobs on five pairs of hosts: no slow part explains them");
    let after = expected(&e, &pair(5)) / before;
    // What the model has learned is no slow part as well, also after the jobs have reported again.
    for i in 0..5 {
        let again = e.observe(&observe(&pair(i), vec![reading(0.61 * before)]), f64::from(10 + i)).unwrap();
        assert_eq!(again.suspected, Some(Vec::new()));
    }
    assert!((0.5..0.7).contains(&after), "the pair without a reading is at {after} of its prediction");
}

#[test]
fn an_observation_under_a_key_is_stored_and_learned_once_with_the_same_answer() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let e = engine(folder.path(), &c, learning_model(&c));
    let two = "n0:0 n0:1 n1:0 n1:1";
    let request =
        ObserveRequest { key: Some("epilog-7".into()), ..observe(two, vec![reading(expected(&e, two) * 0.97)]) };
    let first = e.observe(&request, 1.0).unwrap();
    let after = expected(&e, two);
    let again = e.observe(&request, 2.0).unwrap();
    assert!(again.repeated && !first.repeated);
    assert_eq!(engine::ObserveAnswer { repeated: false, ..again }, first);
    assert_eq!(expected(&e, two), after, "the reading was not learned twice");
    assert_eq!(e.readings(&ReadingsRequest::default()).unwrap().readings.len(), 1);
    let other = ObserveRequest { readings: vec![reading(1.0)], ..request };
    let error = e.observe(&other, 3.0).unwrap_err();
    assert_eq!((error.code(), error.kind()), ("key_reused", ErrorKind::Malformed));
}

/// A keeper that fails the first time, like a full disk.
struct FullOnce(Arc<Mutex<u32>>);

impl ModelKeeper for FullOnce {
    fn keep(&mut self, _: &predict::Model) -> Result<(), String> {
        let mut calls = self.0.lock().unwrap();
        *calls += 1;
        if *calls == 1 { Err("no space left".into()) } else { Ok(()) }
    }
}

#[test]
fn a_retry_after_a_model_that_could_not_be_saved_stores_nothing_twice_and_learns() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let calls = Arc::new(Mutex::new(0));
    let e = Engine::builder(c.clone())
        .model(learning_model(&c))
        .store(Store::create(&folder.path().join("s.db"), &c).unwrap())
        .keeper(FullOnce(calls.clone()))
        .build()
        .unwrap();
    let two = "n0:0 n0:1 n1:0 n1:1";
    let before = expected(&e, two);
    let request = ObserveRequest { key: Some("k".into()), ..observe(two, vec![reading(before * 0.98)]) };
    let error = e.observe(&request, 1.0).unwrap_err();
    assert!(matches!(error, EngineError::ModelNotKept(_)) && error.kind() == ErrorKind::Broken);
    assert_eq!(expected(&e, two), before, "a model that is not saved is not used");
    let again = e.observe(&request, 2.0).unwrap();
    assert_eq!((again.learned, *calls.lock().unwrap()), (1, 2));
    assert_eq!(e.readings(&ReadingsRequest::default()).unwrap().readings.len(), 1);
}

/// The key of a repeated request.
fn once(request: &ObserveRequest) -> Once {
    let text = serde_json::to_string(&ObserveRequest { key: None, ..request.clone() }).unwrap();
    Once::new(request.key.as_deref().unwrap(), &text).unwrap()
}

/// An engine that cannot save its first model, so that a first observation is stored but not answered.
fn cut_off(folder: &Path, c: &Cluster) -> Engine {
    Engine::builder(c.clone())
        .model(learning_model(c))
        .state(State::init(&folder.join("s.state"), c, 0.0).unwrap())
        .store(Store::create(&folder.join("s.db"), c).unwrap())
        .keeper(FullOnce(Arc::new(Mutex::new(0))))
        .build()
        .unwrap()
}

#[test]
fn a_retry_learns_the_present_values_of_the_stored_readings() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let e = cut_off(folder.path(), &c);
    let two = "n0:0 n0:1 n1:0 n1:1";
    let v = expected(&e, two);
    let request = ObserveRequest { key: Some("k".into()), ..observe(two, vec![reading(v * 0.98), reading(v * 1.02)]) };
    e.observe(&request, 1.0).unwrap_err();
    let by = || ("a".to_owned(), "b".to_owned());
    let (who, why) = by();
    e.withdraw(&WithdrawRequest { id: 1, who, why, key: None }, 2.0).unwrap();
    let (who, why) = by();
    e.correct(&CorrectRequest { id: 2, busbw_gb_per_s: v, who, why, ..Default::default() }, 2.0).unwrap();
    let again = e.observe(&request, 3.0).unwrap();
    let taught: Vec<_> = again.readings.iter().map(|r| (r.id, r.taught.learned, r.taught.why_not)).collect();
    assert_eq!(taught, [(Some(1), false, Some(NotLearned::Gone)), (Some(2), true, None)]);
    assert_eq!((again.learned, again.readings[1].busbw_gb_per_s), (1, v));
}

#[test]
fn a_retry_works_after_the_job_and_its_neighbours_have_ended() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let e = cut_off(folder.path(), &c);
    let allocate = |job: &str, gpus: &[&str]| {
        let gpus = gpus.iter().map(|g| (*g).to_owned()).collect();
        e.allocate(&AllocateRequest { job: job.into(), gpus, ..Default::default() }, 1.0).unwrap();
    };
    allocate("job", &["n0:0", "n1:0"]);
    allocate("far", &["n2:0", "n3:0"]);
    let v = expected(&e, "n0:0 n1:0");
    let request = ObserveRequest { gpus: None, key: Some("k".into()), ..observe("n0", vec![reading(v)]) };
    e.observe(&request, 1.0).unwrap_err();
    let release = |job: &str| e.release(&ReleaseRequest { jobs: vec![job.into()], ..Default::default() }, 2.0).unwrap();
    release("job");
    release("far");
    let again = e.observe(&request, 3.0).unwrap();
    assert_eq!((again.learned, again.readings[0].gpus.to_string()), (1, "n0:0 n1:0".into()));
}

#[test]
fn a_retry_after_the_model_was_saved_teaches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let e = engine(folder.path(), &c, learning_model(&c));
    let two = "n0:0 n0:1 n1:0 n1:1";
    let before = expected(&e, two);
    let request = ObserveRequest { key: Some("k".into()), ..observe(two, vec![reading(before * 0.98)]) };
    // The state after a kill between saving the model and answering.
    let mut store = Store::open(&folder.path().join("s.db"), &c).unwrap();
    let two_gpus = c.parse_gpus(two.split(' ')).unwrap();
    store.add(&[common::row(two_gpus, before * 0.98).into()], Some(&once(&request)), 1.0).unwrap();
    store.mark_taught(&once(&request), true).unwrap();
    let again = e.observe(&request, 2.0).unwrap();
    assert_eq!((again.learned, again.readings[0].taught.why_not), (0, Some(NotLearned::TaughtBefore)));
    assert_eq!(expected(&e, two), before);
    assert!(e.observe(&request, 3.0).unwrap().repeated);
}

/// A slow keeper that reports when it begins.
struct Slow(Arc<Mutex<u32>>);

impl ModelKeeper for Slow {
    fn keep(&mut self, _: &predict::Model) -> Result<(), String> {
        *self.0.lock().unwrap() += 1;
        std::thread::sleep(std::time::Duration::from_millis(300));
        Ok(())
    }
}

#[test]
fn one_key_in_two_threads_teaches_once_and_a_fit_never_comes_between_storing_and_teaching() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let path = folder.path().join("s.db");
    let store = filled_store(&path, &c);
    let kept = Arc::new(Mutex::new(0));
    let e = Engine::builder(c.clone()).model(learning_model(&c)).store(store).keeper(Slow(kept.clone()));
    let e = e.build().unwrap();
    let two = "n0:0 n0:1 n1:0 n1:1";
    let request = ObserveRequest { key: Some("k".into()), ..observe(two, vec![reading(expected(&e, two) * 0.98)]) };
    let answers = std::thread::scope(|s| {
        let threads = [1.0, 2.0].map(|at| {
            let (e, request) = (&e, &request);
            s.spawn(move || e.observe(request, at).unwrap().repeated)
        });
        threads.map(|t| t.join().unwrap())
    });
    assert!(answers[0] != answers[1] && *kept.lock().unwrap() == 1, "{answers:?}");
    let other = Store::open(&path, &c).unwrap();
    let stored = || other.count(&store::Query::all()).unwrap();
    let before = stored();
    std::thread::scope(|s| {
        s.spawn(|| e.fit(&FitRequest { kind: Some("gp".into()), ..Default::default() }).unwrap());
        while *kept.lock().unwrap() < 2 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        s.spawn(|| e.observe(&observe(two, vec![reading(40.0)]), 3.0).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert_eq!(stored(), before, "the reading is stored when the fit is over");
    });
    assert_eq!(stored(), before + 1);
}

#[test]
fn a_bandwidth_that_no_link_can_carry_is_refused_unless_it_is_forced() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(2);
    let e = engine(folder.path(), &c, model(&c));
    for gpus in ["n0 n1", "n0"] {
        let error = e.observe(&observe(gpus, vec![reading(99_999.0)]), 1.0).unwrap_err();
        assert_eq!((error.code(), error.kind()), ("impossible_reading", ErrorKind::Malformed));
        assert!(error.to_string().contains("the links allow") && error.remedy().contains("force"), "{error}");
    }
    assert!(e.readings(&ReadingsRequest::default()).unwrap().readings.is_empty());
    let forced = ObserveRequest { force: true, ..observe("n0 n1", vec![reading(99_999.0)]) };
    let id = e.observe(&forced, 1.0).unwrap().readings[0].id.unwrap();
    // A possible bandwidth is accepted: 8 GPUs with a NIC of 50 GB/s each, doubled by reduction in the switches.
    e.observe(&observe("n0 n1", vec![reading(400.0 * 1.9)]), 1.0).unwrap();
    let who = || ("ada".to_owned(), "wrong unit".to_owned());
    let (who, why) = who();
    let correct =
        CorrectRequest { id, busbw_gb_per_s: 88_888.0, who: who.clone(), why: why.clone(), ..Default::default() };
    assert_eq!(e.correct(&correct, 2.0).unwrap_err().code(), "impossible_reading");
    let done = e.correct(&CorrectRequest { busbw_gb_per_s: 99.9, ..correct }, 2.0).unwrap();
    assert_eq!(done.change.old_busbw_gb_per_s, 99_999.0);
    e.withdraw(&WithdrawRequest { id, who, why, key: None }, 3.0).unwrap();
    let listed = |withdrawn| e.readings(&ReadingsRequest { withdrawn, ..Default::default() }).unwrap().readings;
    assert_eq!((listed(false).len(), listed(true).len()), (1, 2));
    let told = &listed(true)[0];
    assert!(told.withdrawn && told.changes.len() == 2 && told.changes[0].who == "ada");
}

#[test]
fn no_fit_and_no_diagnosis_uses_withdrawn_readings() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let path = folder.path().join("s.db");
    let store = filled_store(&path, &c);
    let e = Engine::builder(c.clone()).store(store).build().unwrap();
    let fit = FitRequest { kind: Some("bound".into()), ..Default::default() };
    let before = e.fit(&fit).unwrap();
    let low = observe("n2:0 n2:1 n3:0 n3:1", vec![reading(0.5)]);
    let id = e.observe(&ObserveRequest { only_store: true, ..low }, 1.0).unwrap().readings[0].id.unwrap();
    let stray = |e: &Engine| e.diagnose(&Default::default()).unwrap().readings;
    let with = stray(&e);
    assert_eq!(e.learn(&LearnRequest { readings: vec![id], key: None }, 3.0).unwrap().readings.len(), 1);
    e.withdraw(&WithdrawRequest { id, who: "a".into(), why: "b".into(), key: None }, 2.0).unwrap();
    assert_eq!(stray(&e), with - 1);
    assert_eq!(e.fit(&fit).unwrap(), before);
    assert_eq!(e.learn(&LearnRequest { readings: vec![id], key: None }, 3.0).unwrap_err().code(), "bad_request");
    assert_eq!(e.fit(&FitRequest { kind: Some("tea-leaves".into()), ..fit }).unwrap_err().code(), "unknown_kind");
}

#[test]
fn a_request_teaches_a_reading_once_and_pages_after_a_reading_are_complete() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let e = engine(folder.path(), &c, learning_model(&c));
    let two = "n0:0 n0:1 n1:0 n1:1";
    let readings = [0.98, 0.99, 1.0, 1.01, 1.02].map(|f| reading(expected(&e, two) * f)).to_vec();
    e.observe(&ObserveRequest { only_store: true, ..observe(two, readings) }, 1.0).unwrap();
    let mut rejected: store::Record = common::row(c.parse_gpus(two.split(' ')).unwrap(), 1.0).into();
    rejected.measurement.quality = store::Quality::Rejected;
    Store::open(&folder.path().join("s.db"), &c).unwrap().insert(&rejected).unwrap();
    for bad in [vec![2, 3, 2], vec![1, 6]] {
        assert_eq!(e.learn(&LearnRequest { readings: bad, key: None }, 3.0).unwrap_err().code(), "bad_request");
    }
    assert_eq!(e.learn(&LearnRequest { readings: vec![1, 2], key: None }, 3.0).unwrap().learned, 2);
    let page = |after, limit| {
        let a = e.readings(&ReadingsRequest { after, limit: Some(limit), ..Default::default() }).unwrap();
        (a.readings.iter().map(|r| r.id).collect::<Vec<_>>(), a.more)
    };
    assert_eq!(page(None, 2), (vec![5, 6], true));
    assert_eq!(page(Some(0), 2), (vec![1, 2], true));
    assert_eq!(page(Some(2), 2), (vec![3, 4], true));
    assert_eq!(page(Some(4), 2), (vec![5, 6], false));
    let none = ReadingsRequest { limit: Some(0), ..Default::default() };
    assert_eq!(e.readings(&none).unwrap_err().code(), "bad_request");
}

#[test]
fn a_repeated_change_of_the_state_is_reported_as_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(2);
    let e = engine(folder.path(), &c, model(&c));
    for (key, text) in [
        ("a", r#"{"request":"allocate","job":"b","gpus":["n0:0"],"key":"a"}"#),
        ("d", r#"{"request":"drain","gpus":["n1"],"key":"d"}"#),
        ("u", r#"{"request":"undrain","gpus":["n1"],"key":"u"}"#),
    ] {
        let request: Request = serde_json::from_str(text).unwrap();
        let repeated = || serde_json::to_value(e.handle(&request, 1.0).unwrap()).unwrap()["repeated"].clone();
        assert_eq!((repeated(), repeated()), (false.into(), true.into()), "{key}");
    }
}

/// Suspects a whole host with a probability that moves a job.
fn suspect(folder: &Path, host: u32) {
    let mut state = State::open(&folder.join("s.state")).unwrap();
    let (component, factor, probability) = ("host".to_owned(), 0.4, 0.9);
    state.set_suspects(&[Suspect { defect: 0, host: HostId(host), component, factor, probability }]).unwrap();
}

#[test]
fn an_answer_lists_the_avoided_suspects_and_those_that_the_choice_uses() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(2);
    let e = engine(folder.path(), &c, model(&c));
    let first = e.place(&what_if(&c, 4), 1.0).unwrap();
    assert!(first.avoided.is_none() && first.suspects_touched.is_empty());
    let host = c.hosts.iter().position(|h| h.name == first.gpus.0[0].host).unwrap() as u32;
    suspect(folder.path(), host);
    let moved = e.place(&what_if(&c, 4), 1.0).unwrap();
    let avoided = moved.avoided.unwrap();
    assert_eq!((avoided.first_choice, avoided.suspects.len()), (first.gpus, 1));
    assert!(avoided.expected_instead_gb_per_s > avoided.expected_with_suspects_gb_per_s);
    assert!(avoided.predicted_gb_per_s > avoided.expected_with_suspects_gb_per_s);
    assert!(moved.suspects_touched.is_empty());
    // All 16 GPUs are needed: the choice uses the suspect, and the answer names it.
    let all = e.place(&what_if(&c, 16), 1.0).unwrap();
    assert!(all.avoided.is_none());
    assert_eq!(all.suspects_touched[0].host, c.hosts[host as usize].name);
    let told = e.explain(&ExplainRequest { gpus: Some(vec!["n0".into(), "n1".into()]), ..Default::default() }).unwrap();
    assert!(told.expected_with_suspects_gb_per_s < told.expected.predicted_busbw_gb_per_s);
}

#[test]
fn any_request_and_its_answer_go_through_json_and_back() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let e = engine(folder.path(), &c, learning_model(&c));
    suspect(folder.path(), 0);
    let requests = [
        r#"{"request":"place","gpus":4}"#,
        r#"{"request":"place","pods":[2,2],"constraints":{"excluded_hosts":["n1"],"hosts_max":2},"search":"oracle"}"#,
        r#"{"request":"place","gpus":8,"free":["n2","n3"],"jobs":[{"id":"a","gpus":["n0:0","n1:0"],"demand_gb_per_s":5.5}],"contention":"physical","loss_weight":0.5}"#,
        r#"{"request":"place","gpus":8,"constraints":{"only_hosts":["n1"]},"commit":"train-7","key":"k1"}"#,
        r#"{"request":"allocate","job":"b","gpus":["n2:0","n2:1"]}"#,
        r#"{"request":"status"}"#,
        r#"{"request":"observe","job":"train-7","readings":[{"collective":"all_reduce","busbw_gb_per_s":40.5}]}"#,
        r#"{"request":"observe","job":"x","gpus":["n0:0","n1:0"],"readings":[{"collective":"all_reduce","size_bytes":16777216,"busbw_gb_per_s":20}],"simulated":true,"key":"k2"}"#,
        r#"{"request":"readings","hosts":["n0"]}"#,
        r#"{"request":"correct","id":2,"busbw_gb_per_s":21,"who":"ada","why":"typo"}"#,
        r#"{"request":"learn","readings":[2]}"#,
        r#"{"request":"withdraw","id":2,"who":"ada","why":"wrong job","key":"k3"}"#,
        r#"{"request":"explain","job":"train-7"}"#,
        r#"{"request":"drain","gpus":["n3"],"reason":"fan"}"#,
        r#"{"request":"undrain","gpus":["n3"]}"#,
        r#"{"request":"release","jobs":["train-7","b"]}"#,
        r#"{"request":"fit","kind":"nccl"}"#,
    ];
    for text in requests {
        let request: Request = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let back: Request = serde_json::from_value(serde_json::to_value(&request).unwrap()).unwrap();
        assert_eq!(back, request);
        let answer = e.handle(&request, 5.0).unwrap_or_else(|e| panic!("{text}: {e}"));
        let json = serde_json::to_value(&answer).unwrap();
        assert_eq!(json["answer"], serde_json::to_value(&request).unwrap()["request"]);
        let back: Answer = serde_json::from_value(json).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(back, answer);
    }
    let bad = [r#"{"request":"place","gpu":4}"#, r#"{"request":"plaice"}"#, r#"{"gpus":4}"#];
    assert!(bad.iter().all(|b| serde_json::from_str::<Request>(b).is_err()));
    let refused: Request = serde_json::from_str(r#"{"request":"place","gpus":400}"#).unwrap();
    let error = e.handle(&refused, 5.0).unwrap_err();
    let form: ErrorForm = serde_json::from_value(serde_json::to_value(&error).unwrap()).unwrap();
    assert_eq!((form.code.as_str(), form.kind), ("not_enough_free", ErrorKind::Impossible));
    assert!(!form.message.is_empty() && !form.remedy.is_empty());
}

#[test]
fn a_query_is_the_same_after_it_was_written_as_a_request() {
    let c = cluster(4);
    let text = r#"{"pods":[2,2],"free":["n2","n3"],"size_bytes":1024,"constraints":{"only_hosts":["n2","n3"],"gpu_type":"H100",
        "gpus_per_host_min":2,"exclusive_nics":true},"jobs":[{"id":"a","gpus":["n0:0","n1:0"]}],"contention":"physical",
        "loss_weight":0.5,"search":"oracle","seed":7,"measured":[{"gpus":["n2:0","n3:0"],"busbw_gb_per_s":4.5}],"commit":"j","key":"k"}"#;
    let request: engine::PlaceRequest = serde_json::from_str(text).unwrap();
    let known = place::Registry::shipped();
    let query = request.read(&c, &known, SIZE).unwrap();
    assert_eq!(engine::PlaceRequest::of(&c, &query).read(&c, &known, SIZE).unwrap(), query);
}

#[test]
fn a_request_that_needs_a_missing_part_names_it() {
    let c = cluster(2);
    let e = Engine::builder(c.clone()).build().unwrap();
    let code = |r: &str| e.handle(&serde_json::from_str(r).unwrap(), 0.0).unwrap_err().code();
    assert_eq!(code(r#"{"request":"place","gpus":4}"#), "no_model");
    assert_eq!(code(r#"{"request":"status"}"#), "no_state");
    assert_eq!(code(r#"{"request":"readings"}"#), "no_store");
    assert_eq!(code(r#"{"request":"diagnose"}"#), "no_store");
    let stranger = Cluster { name: "another".into(), ..cluster(3) };
    let other = Engine::builder(stranger).model(model(&c)).build().map(|_| ()).unwrap_err();
    assert_eq!(other.code(), "other_cluster");
    let unknown = e.check_search("exakt").unwrap_err();
    assert!(unknown.code() == "unknown_search" && unknown.to_string().contains("did you mean `exact`?"), "{unknown}");
}

/// Suspected components with their probabilities in percent.
fn suspected(e: &Engine) -> Vec<(String, f64)> {
    let told = e.learn(&LearnRequest::default(), 3.0).unwrap().suspected;
    let parse = |s: &String| {
        let (name, p) = s.rsplit_once(" (").unwrap();
        (name.to_owned(), p.trim_end_matches(" %)").parse().unwrap())
    };
    told.iter().map(parse).collect()
}

/// Asserts the same components with the same probabilities, within the tolerance of the monitor. Equal probabilities may be in any order.
fn alike(a: &[(String, f64)], b: &[(String, f64)]) {
    let map = |v: &[(String, f64)]| -> std::collections::BTreeMap<String, f64> { v.iter().cloned().collect() };
    let (a, b) = (map(a), map(b));
    for (name, p) in a.iter().chain(&b) {
        let (x, y) = (a.get(name).copied().unwrap_or(0.0), b.get(name).copied().unwrap_or(0.0));
        assert!((x - y).abs() < 1.0, "{name} ({p} %): {x} % and {y} %");
    }
}

#[test]
fn suspects_updated_reading_by_reading_equal_those_of_all_readings_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let e = engine(folder.path(), &c, model(&c));
    let fresh = || engine(folder.path(), &c, model(&c));
    let mut store = Store::open(&folder.path().join("s.db"), &c).unwrap();
    let records: Vec<store::Record> = rows(&c).into_iter().map(Into::into).collect();
    store.insert_batch(&records).unwrap();
    let before = suspected(&e); // the invented tables of n0 and n1 differ from those of the other hosts
    // From now on n2 sends at half its rate.
    let mut ids = Vec::new();
    for (i, gpus) in
        ["n2:0 n2:1 n0:0 n0:1", "n2:2 n2:3 n1:2 n1:3", "n2:0 n2:1 n3:0 n3:1", "n2:4 n2:5 n0:4 n0:5"].iter().enumerate()
    {
        let low = expected(&e, gpus) * 0.5;
        ids.extend(e.observe(&observe(gpus, vec![reading(low)]), 100.0 + i as f64).unwrap().readings[0].id);
        alike(&suspected(&e), &suspected(&fresh()));
    }
    let low = suspected(&e);
    assert!(low.iter().filter(|(name, p)| name.contains("n2") && *p > 1.0).count() > 0, "{low:?}");
    assert_ne!(low, before);
    for id in ids {
        e.withdraw(&WithdrawRequest { id, who: "a".into(), why: "b".into(), key: None }, 200.0).unwrap();
    }
    alike(&suspected(&e), &before); // withdrawn readings no longer count
}

#[test]
fn learning_under_a_key_teaches_once_and_answers_alike_after_the_reading_was_withdrawn() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let e = engine(folder.path(), &c, learning_model(&c));
    let two = "n0:0 n0:1 n1:0 n1:1";
    let before = expected(&e, two);
    let stored = ObserveRequest { only_store: true, ..observe(two, vec![reading(before * 0.97)]) };
    let id = e.observe(&stored, 1.0).unwrap().readings[0].id.unwrap();
    let request = LearnRequest { readings: vec![id], key: Some("k".into()) };
    let first = e.learn(&request, 2.0).unwrap();
    let after = expected(&e, two);
    assert!(first.learned == 1 && !first.repeated, "{first:?}; {before} to {after}");
    e.withdraw(&WithdrawRequest { id, who: "ada".into(), why: "typo".into(), key: None }, 3.0).unwrap();
    let again = e.learn(&request, 4.0).unwrap();
    assert_eq!(again, engine::LearnAnswer { repeated: true, ..first });
    assert_eq!(expected(&e, two), after);
    let other = LearnRequest { readings: vec![id + 1], key: Some("k".into()) };
    assert_eq!(e.learn(&other, 5.0).unwrap_err().code(), "key_reused");
}

#[test]
fn a_retry_teaches_nothing_that_a_fit_has_learned_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let e = engine(folder.path(), &c, learning_model(&c));
    let two = "n0:0 n0:1 n1:0 n1:1";
    let v = expected(&e, two) * 0.98;
    let request = ObserveRequest { key: Some("k".into()), ..observe(two, vec![reading(v)]) };
    // The state after a kill between storing and teaching, and a fit after it.
    let mut store = Store::open(&folder.path().join("s.db"), &c).unwrap();
    let readings: Vec<store::Record> = rows(&c).into_iter().map(Into::into).collect();
    store.insert_batch(&readings).unwrap();
    let two_gpus = c.parse_gpus(two.split(' ')).unwrap();
    store.add(&[common::row(two_gpus, v).into()], Some(&once(&request)), 1.0).unwrap();
    e.fit(&FitRequest::default()).unwrap();
    let fitted = expected(&e, two);
    let again = e.observe(&request, 2.0).unwrap();
    assert_eq!((again.learned, again.readings[0].taught.why_not), (0, Some(NotLearned::TaughtBefore)));
    assert_eq!(expected(&e, two), fitted);
}

#[test]
fn a_model_knows_hosts_by_name_when_hosts_come_go_and_change_places() {
    let c = cluster(4);
    let of = |c: &Cluster| Engine::builder(c.clone()).model(learning_model(&cluster(4))).build();
    let mut other = c.clone();
    other.hosts.reverse(); // n3 n2 n1 n0
    other.hosts[0].name = "new".into();
    let unused = topology::HostType { name: "unused".into(), ..c.types[0].clone() };
    other.types.insert(0, unused);
    other.hosts.iter_mut().for_each(|h| h.host_type += 1);
    let (before, after) = (of(&c).unwrap(), of(&other).unwrap());
    for gpus in ["n0:0 n0:1 n1:0 n1:1", "n2:0 n2:1 n1:0 n1:1"] {
        assert_eq!(expected(&before, gpus), expected(&after, gpus), "{gpus}");
    }
    assert!(expected(&after, "new:0 new:1 n1:0 n1:1") > 0.0);
    let stranger = Cluster { name: "another".into(), ..c.clone() };
    assert_eq!(of(&stranger).err().unwrap().code(), "other_cluster");
    let mut smaller = c.clone();
    smaller.types[0].gpus.pop();
    assert!(of(&smaller).is_err());
}
