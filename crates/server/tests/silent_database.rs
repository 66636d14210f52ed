//! A database that takes requests and never answers: the server says so to its clients, lives on, and goes on with the database.

mod common;
#[allow(dead_code)] // other tests use the rest
#[path = "../../store/tests/common/postgres.rs"]
mod postgres;
#[path = "../../store/tests/common/relay.rs"]
mod relay;

use common::{Said, Server};
use engine::{Engine, FitRequest};
use relay::{Relay, Swallows};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};
use store::{State, Store};
use topology::Collective;

/// Longest wait for a server to use its database again.
const PATIENCE: Duration = Duration::from_secs(120);

fn server(url: &str, hosts: usize) -> Server {
    let cluster = common::cluster(hosts);
    let state = State::init(Path::new(url), &cluster, 0.0).unwrap();
    let store = Store::create(Path::new(url), &cluster).unwrap();
    let engine = Engine::builder(cluster).state(state).store(store).models_in_state().build().unwrap();
    engine.fit(&FitRequest { kind: Some("nccl".into()), collective: Some(Collective::AllReduce), seed: 0 }).unwrap();
    Server::of(tempfile::tempdir().unwrap(), engine, |c| c)
}

/// Sends a request again until it is not refused as unavailable.
fn until_available(mut ask: impl FnMut() -> Said) -> Said {
    let start = Instant::now();
    loop {
        let said = ask();
        if said.status != 503 {
            return said;
        }
        assert!(start.elapsed() < PATIENCE, "{said:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_database_that_never_answers_is_a_503_for_every_request_and_no_end_of_the_server() {
    let Some(postgres) = postgres::Server::start() else {
        return postgres::skip("tests_of_the_store_on_postgresql");
    };
    let relay = Relay::to(&postgres.socket());
    let s = server(&relay.url(&postgres.database()), 4);
    let job = |name: &str| json!({"gpus": 8, "commit": name});
    assert_eq!(s.post_once("/v1/allocations", "k0", &job("before")).status, 201);

    for (round, what) in [Swallows::Requests, Swallows::Answers].into_iter().enumerate() {
        relay.swallow(what);
        let (key, name) = (format!("k-{round}"), format!("during-{round}"));
        std::thread::scope(|t| {
            let asked = [
                t.spawn(|| s.post_once("/v1/allocations", &key, &job(&name))),
                t.spawn(|| s.post("/v1/place", &json!({"gpus": 8}))),
                t.spawn(|| s.get("/v1/cluster")),
                t.spawn(|| s.get("/v1/readings")),
                t.spawn(|| s.get("/readyz")),
                t.spawn(|| s.send("DELETE", "/v1/allocations/none", &[], b"")),
            ];
            assert_eq!(s.get("/healthz").status, 200, "the process lives");
            for said in asked.map(|a| a.join().unwrap()) {
                let (status, code) = said.code();
                assert_eq!(status, 503, "{what:?}: {said:?}");
                assert!(["unreachable", "outcome_unknown"].contains(&&*code), "{what:?}: {said:?}");
                assert_eq!(said.header("retry-after"), "1");
            }
        });
        // Pages say it in words.
        let page = s.get("/");
        assert!(page.status == 503 && page.header("content-type").starts_with("text/html"), "{page:?}");
        relay.swallow(Swallows::Nothing);
        let made = until_available(|| s.post_once("/v1/allocations", &key, &job(&name)));
        assert_eq!(made.status, 201, "{made:?}");
        let again = s.post_once("/v1/allocations", &key, &job(&name)).json();
        assert_eq!((&again["gpus"], &again["committed"]["repeated"]), (&made.json()["gpus"], &json!(true)));
        assert_eq!(until_available(|| s.get("/readyz")).status, 200);
        assert_eq!(until_available(|| s.get("/v1/readings")).status, 200);
    }
    let now = s.get("/v1/cluster").json();
    assert_eq!((now["jobs"].as_array().unwrap().len(), s.get("/v1/allocations").json()["free"].as_u64()), (3, Some(8)));
}
