//! What the unit tests of a server share, and tests of [`App`].

use super::*;
use crate::limits::WAITING_MAX;

/// What connections share, of a server with a state and a model that needs no readings.
pub fn app(client_scope: Option<Scope>) -> (tempfile::TempDir, Arc<App>) {
    let folder = tempfile::tempdir().unwrap();
    let cluster = topology::catalog::cluster("h100").unwrap();
    let state = store::State::init(&folder.path().join("s.db"), &cluster, 0.0).unwrap();
    let store = store::Store::create(&folder.path().join("r.db"), &cluster).unwrap();
    let engine = Engine::builder(cluster).state(state).store(store).build().unwrap();
    let collective = Some(topology::Collective::AllReduce);
    engine.fit(&engine::FitRequest { kind: Some("nccl".into()), collective, seed: 0 }).unwrap();
    let app = App { client_scope, ..App::new(engine, &Config::default(), None) };
    (folder, Arc::new(app))
}

/// As many waiting requests as the server takes, until the value is dropped.
pub fn flood(app: &App) -> Vec<impl Sized + '_> {
    (0..WAITING_MAX).map(|_| Waits::new(&app.waiting, WAITING_MAX).expect("a place")).collect()
}

pub fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

#[test]
fn a_client_by_its_certificate_is_looked_up_once_in_a_while() {
    let (_folder, app) = app(Some(Scope::Read));
    run(async {
        let first = app.certified("ann").await.unwrap();
        assert!(app.known.lock().unwrap().contains_key(&certificate_hash("ann")));
        assert_eq!(app.certified("ann").await.unwrap(), first);
        assert!(app.certified("local").await.is_err() && app.known.lock().unwrap().len() == 1, "refusals are not kept");
    });
}

#[test]
fn a_flood_of_requests_keeps_no_client_unknown() {
    let (_folder, app) = app(Some(Scope::Read));
    let flood = flood(&app);
    run(async {
        assert_eq!(app.work(|_| Ok(())).await.unwrap_err().code, "overloaded");
        assert!(app.certified("ann").await.is_ok());
        assert!(matches!(app.entry(hash("lwt_x")).await, Ok(Entry::Unknown)));
    });
    drop(flood);
}

#[test]
fn wrong_tokens_of_an_address_keep_no_token_out_that_is_in_use() {
    let (_folder, app) = app(None);
    app.asks_for_tokens.store(true, Ordering::Release);
    let peer: SocketAddr = "127.0.0.1:9".parse().unwrap();
    app.remember(hash("lwt_right"), &Client::new("ann", Scope::Read));
    run(async {
        for i in 0..300 {
            assert!(app.client(Some(&format!("lwt_{i}")), Use::Bearer, peer).await.is_err());
        }
        let wrong = app.client(Some("lwt_x"), Use::Bearer, peer).await.unwrap_err();
        assert_eq!(wrong.code, "too_many_wrong_tokens");
        assert_eq!(app.client(Some("lwt_right"), Use::Bearer, peer).await.unwrap().name, "ann");
    });
}

#[test]
fn as_many_requests_wait_as_the_limit_says_and_an_end_makes_room() {
    let waiting = AtomicUsize::new(0);
    let mut all: Vec<Waits<'_>> =
        (0..WAITING_MAX).map(|_| Waits::new(&waiting, WAITING_MAX).expect("a place")).collect();
    assert_eq!(
        Waits::new(&waiting, WAITING_MAX).err().map(|p| (p.status, p.code.clone())),
        Some((503, "overloaded".into()))
    );
    all.pop();
    let last = Waits::new(&waiting, WAITING_MAX);
    assert!(last.is_ok() && Waits::new(&waiting, WAITING_MAX).is_err());
    drop((all, last));
    assert_eq!(waiting.load(Ordering::Acquire), 0);
}

#[test]
fn long_work_that_waits_takes_only_its_own_places() {
    let (_folder, app) = app(None);
    run(async {
        let all = u32::try_from(limits::workers(Kind::Long)).unwrap();
        let busy = app.workers[Kind::Long as usize].clone().acquire_many_owned(all).await.unwrap();
        let long: Vec<_> = (0..limits::LONG_WAITING_MAX)
            .map(|_| {
                tokio::spawn({
                    let app = app.clone();
                    async move { app.work_as(Kind::Long, |_| Ok(())).await }
                })
            })
            .collect();
        while app.waiting() < limits::LONG_WAITING_MAX {
            tokio::task::yield_now().await;
        }
        assert_eq!(app.work_as(Kind::Long, |_| Ok(())).await.unwrap_err().code, "overloaded");
        for kind in [Kind::Look, Kind::Change, Kind::Question] {
            assert!(app.work_as(kind, |_| Ok(())).await.is_ok(), "{kind:?}");
        }
        drop(busy);
        for work in long {
            assert!(work.await.unwrap().is_ok());
        }
        assert_eq!((app.waiting(), app.waiting_long.load(Ordering::Acquire)), (0, 0));
    });
}

#[test]
fn searches_that_examine_every_candidate_are_long_also_with_a_commit() {
    let (_folder, app) = app(None);
    let request = |text: &str| Request::Place(serde_json::from_str(text).unwrap());
    let kind = |text: &str| kind_of(&request(text));
    assert_eq!(kind(r#"{"gpus": 8}"#), Kind::Question);
    assert_eq!(kind(r#"{"gpus": 8, "commit": "a"}"#), Kind::Change);
    for search in LONG_SEARCHES {
        let known = request(&format!(r#"{{"gpus": 2, "search": "{search}"}}"#));
        assert!(app.engine.handle(&known, by(&Client::new("local", Scope::Administer))).is_ok(), "{search}");
        for more in ["", r#", "commit": "a""#] {
            assert_eq!(kind(&format!(r#"{{"gpus": 8, "search": "{search}"{more}}}"#)), Kind::Long);
        }
    }
}
