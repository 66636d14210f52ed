//! The versions of the model in a state: they survive a restart, and all processes that use the state use the same one. In a file and in
//! PostgreSQL.

mod common;
#[allow(dead_code)] // the tests of the store use the rest
#[path = "../../store/tests/common/postgres.rs"]
mod postgres;

use common::{SIZE, cluster, learning_model, row, rows};
use engine::{Engine, FitRequest, ObserveRequest, Progress, PromoteRequest, ReadingIn, VersionState};
use predict::{BandwidthModel, Model};
use std::path::PathBuf;
use store::state::{KeptModel, ModelText, ModelsChange};
use store::{By, ClusterStateStore, State, Store};
use topology::{Allocation, Cluster, Collective, GpuMask, HostId};

const SITE: By<'static> = By { who: "ada", why: "", at_unix_s: 5.0, own_only: false };

/// Where a test keeps its state and its readings.
struct Site {
    folder: tempfile::TempDir,
    url: Option<String>,
    cluster: Cluster,
}

impl Site {
    fn state(&self) -> PathBuf {
        self.url.as_ref().map_or(self.folder.path().join("s.db"), PathBuf::from)
    }

    fn store(&self) -> PathBuf {
        self.url.as_ref().map_or(self.folder.path().join("r.db"), PathBuf::from)
    }

    fn open(&self) -> State {
        State::open(&self.state()).unwrap()
    }

    /// An engine of a process that starts. The model counts only where the state has none.
    fn engine(&self, model: Option<Model>) -> Engine {
        let store = Store::create(&self.store(), &self.cluster).unwrap();
        let builder = Engine::builder(self.cluster.clone()).state(self.open()).store(store).models_in_state();
        model.into_iter().fold(builder, |b, m| b.model(m)).build().unwrap()
    }
}

/// Runs a test on a file, and on PostgreSQL where that is installed.
fn on_both(hosts: usize, test: impl Fn(&Site)) {
    let server = postgres::shared("tests_of_the_store_on_postgresql");
    for url in [None, server.map(|s| s.database())] {
        let site = Site { folder: tempfile::tempdir().unwrap(), url, cluster: cluster(hosts) };
        if site.url.is_none() || server.is_some() {
            State::init(&site.state(), &site.cluster, 0.0).unwrap();
            test(&site);
        }
        if server.is_none() {
            return;
        }
    }
}

/// Stores readings across all pairs of hosts at this share of the physics.
fn across(site: &Site, share: f64) {
    let c = &site.cluster;
    let fabric = fabric::Fabric::new(c);
    let hosts = c.hosts.len() as u32;
    let of = |(a, b): (HostId, HostId)| -> store::Record {
        let both = pair(a, b);
        let bound = fabric.estimate(&both, Collective::AllReduce, SIZE).busbw.gb_per_s();
        row(both, bound * share).into()
    };
    let pairs = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (HostId(a), HostId(b))));
    let intra = rows(c).into_iter().filter(|m| m.allocation.host_count() == 1).map(Into::into);
    let all: Vec<store::Record> = intra.chain(pairs.map(of)).collect();
    Store::create(&site.store(), c).unwrap().add(&all, None, 2.0).unwrap();
}

fn pair(a: HostId, b: HostId) -> Allocation {
    Allocation::new([(a, GpuMask::first(8)), (b, GpuMask::first(8))])
}

fn gp() -> FitRequest {
    FitRequest { kind: Some("gp".into()), collective: Some(Collective::AllReduce), seed: 0 }
}

/// A reading of hosts `a` and `b`, so much above the physics and the model: no slow part explains such a reading.
fn observed(site: &Site, job: &str, a: u32, b: u32, share: f64) -> ObserveRequest {
    let fabric = fabric::Fabric::new(&site.cluster);
    let bound = fabric.estimate(&pair(HostId(a), HostId(b)), Collective::AllReduce, SIZE).busbw.gb_per_s();
    let reading = ReadingIn::new(Collective::AllReduce, Some(SIZE), bound * share);
    let gpus = Some(site.cluster.gpu_names(&pair(HostId(a), HostId(b))));
    ObserveRequest {
        job: job.into(),
        gpus,
        readings: vec![reading],
        force: true,
        key: Some(job.into()),
        ..Default::default()
    }
}

fn predictions(e: &Engine) -> Vec<u64> {
    let (model, hosts) = (e.model().unwrap(), e.cluster().hosts.len() as u32);
    let pairs = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| pair(HostId(a), HostId(b))));
    pairs.map(|p| model.predict_allocation(SIZE, &p).busbw_gb_per_s.to_bits()).collect()
}

/// True if two engines predict the same up to the last digits of a text.
fn alike(a: &Engine, b: &Engine) -> bool {
    let near = |(x, y): (&u64, &u64)| (f64::from_bits(*x) / f64::from_bits(*y) - 1.0).abs() < 1e-9;
    predictions(a).iter().zip(&predictions(b)).all(near)
}

#[test]
fn versions_with_their_reasons_and_comparisons_survive_a_restart_and_so_does_the_way_back() {
    on_both(6, |site| {
        let cold = predict::fit(&site.cluster, &[], &predict::FitOptions::of(predict::Kind::Nccl)).unwrap().0;
        let first = site.engine(Some(cold.clone()));
        across(site, 0.6);
        let fitted = first.refit(&gp(), SITE, &Progress::default()).unwrap();
        assert!(fitted.promoted, "{fitted:?}");
        let (before, versions, since) = (predictions(&first), first.versions(), first.readings_since_fit().unwrap());
        drop(first);

        let again = site.engine(Some(cold));
        assert_eq!((again.versions(), again.readings_since_fit().unwrap()), (versions, since));
        assert_eq!(predictions(&again), before, "the same figures after a restart");
        let present = again.versions().pop().unwrap();
        assert_eq!((present.state, present.who.as_str(), present.kind.as_str()), (VersionState::Present, "ada", "gp"));
        assert!(present.compared.is_some() && present.fit.is_some_and(|f| f.multi_host_readings == 15));

        let back = PromoteRequest { version: None, why: "jobs got slower".into() };
        assert_eq!(again.promote(&back, SITE).unwrap().version, 1);
        drop(again);
        let third = site.engine(None);
        assert_eq!((third.model().unwrap().kind(), third.versions()[0].why.as_str()), ("nccl", "jobs got slower"));
        let logged: Vec<String> =
            third.events(&Default::default()).unwrap().events.into_iter().map(|e| e.what).collect();
        assert_eq!(logged, ["fit", "promote"]);
        for _ in 0..12 {
            third.fit(&gp()).unwrap();
        }
        let kept = site.open().models().unwrap();
        assert_eq!(kept.versions.len(), engine::MODELS_KEPT_MAX, "older ones are removed");
        assert_eq!(kept.versions.iter().filter(|v| v.version == kept.present).count(), 1);
    });
}

#[test]
fn what_one_process_promotes_or_learns_the_others_use_and_no_reading_is_lost() {
    on_both(6, |site| {
        let (a, b) = (site.engine(Some(learning_model(&site.cluster))), site.engine(None));
        assert!(!b.sync_models().unwrap(), "nothing has changed");
        assert_eq!(predictions(&a), predictions(&b));
        let before = predictions(&b);
        let taught = a.observe(&observed(site, "a-1", 0, 1, 1.4), 10.0).unwrap();
        assert_eq!(taught.learned, 1, "{taught:?}");
        assert!(b.sync_models().unwrap() && predictions(&b) != before);
        assert!(alike(&a, &b));

        // Both learn at once, more than a checkpoint holds back.
        std::thread::scope(|s| {
            for (name, e) in [("a", &a), ("b", &b)] {
                s.spawn(move || {
                    for i in 0..40u32 {
                        let r = observed(site, &format!("{name}{i}"), i % 5, 5, 1.45 + f64::from(i) / 100.0);
                        assert_eq!(e.observe(&r, 20.0).unwrap().learned, 1);
                    }
                });
            }
        });
        a.sync_models().unwrap();
        b.sync_models().unwrap();
        let head = site.open().models().unwrap();
        assert_eq!(head.lesson, 81, "every reading was learned once");
        assert_eq!(head.versions[0].version, 0, "a checkpoint was written");
        assert!(site.open().lessons(0).unwrap().len() < 81);
        assert!(alike(&a, &b) && alike(&a, &site.engine(None)), "two processes and one that starts predict the same");
        let again = a.observe(&observed(site, "a3", 3, 5, 1.48), 30.0).unwrap();
        assert!(again.repeated && site.open().models().unwrap().lesson == 81);

        across(site, 0.5);
        let fitted = a.refit(&gp(), SITE, &Progress::default()).unwrap();
        assert!(fitted.promoted, "{fitted:?}");
        assert!(b.sync_models().unwrap() && predictions(&a) == predictions(&b));
        let back = PromoteRequest { version: None, why: "b returns".into() };
        assert_eq!(b.promote(&back, SITE).unwrap().version, 1);
        assert!(a.sync_models().unwrap() && predictions(&a) == predictions(&b));
        assert_eq!(predictions(&a), before, "the version as it was fitted");
    });
}

#[test]
fn an_incomplete_text_is_never_used_and_is_removed() {
    on_both(4, |site| {
        let e = site.engine(Some(learning_model(&site.cluster)));
        let (before, head) = (predictions(&e), site.open().models().unwrap());
        // A process is killed after some parts.
        let mut other: Box<dyn ClusterStateStore> = Box::new(site.open());
        let id = other.begin_model_text().unwrap();
        other.put_model_part(id, 0, "{\"half").unwrap();
        drop(other);
        let started = site.engine(None);
        assert!(!e.sync_models().unwrap() && predictions(&started) == before);

        // A version of it is refused, and nothing changes.
        let mut state = site.open();
        let mut models = head.clone();
        let text = ModelText { id, parts: 2, bytes: 12, digest: "0-12".into() };
        models.versions.push(KeptModel { version: 2, text, lesson: 0, about: "{}".into() });
        let change = ModelsChange { models: &models, learned: &[], log: None };
        assert!(state.change_models(&change).unwrap_err().to_string().contains("not complete"));
        assert_eq!(state.models().unwrap(), head);
        // A change that is based on an older revision is not made.
        e.observe(&observed(site, "j", 0, 1, 1.4), 1.0).unwrap();
        let late = ModelsChange { models: &head, learned: &[], log: None };
        assert_eq!(state.change_models(&late).unwrap(), None);
        for _ in 0..20 {
            state.begin_model_text().unwrap();
        }
        assert_eq!(state.model_part(id, 0).unwrap(), None, "what was left is removed");

        // A part that is damaged: the present model stays, and a start says what is wrong.
        let present = head.versions[0].text.id;
        state.put_model_part(present, 0, "damaged").unwrap();
        assert_eq!(predictions(&started).len(), before.len());
        let store = Store::create(&site.store(), &site.cluster).unwrap();
        let opened = Engine::builder(site.cluster.clone()).state(site.open()).store(store).models_in_state().build();
        let refused = opened.err().unwrap();
        assert_eq!(refused.code(), "kept_model", "{refused}");
        assert!(refused.with_remedy().contains("--model FILE"), "{}", refused.with_remedy());
    });
}

#[test]
fn a_model_file_is_taken_in_once() {
    on_both(3, |site| {
        let text = learning_model(&site.cluster).save().unwrap();
        let with = |text: &str| {
            let store = Store::create(&site.store(), &site.cluster).unwrap();
            let builder = Engine::builder(site.cluster.clone()).state(site.open()).store(store).models_in_state();
            builder.model_text(text).unwrap().build().unwrap()
        };
        assert_eq!(with(&text).versions().len(), 1);
        assert_eq!(with(&text).versions().len(), 1, "the same file again is no new version");
        let other = common::model(&site.cluster).save().unwrap();
        let e = with(&other);
        assert_eq!((e.versions().len(), e.versions()[1].state), (2, VersionState::Present));
        assert_eq!(e.model_text(Some(1)).unwrap(), text, "a version comes out as it went in");
    });
}

#[test]
fn readings_of_a_fit_that_was_killed_count_as_new_after_the_restart_and_those_of_a_refused_one_do_not() {
    on_both(4, |site| {
        let first = site.engine(Some(learning_model(&site.cluster)));
        across(site, 0.7);
        let new = first.readings_since_fit().unwrap();
        assert!(new > 0);
        // A fit marks its readings before it begins, so that no other process fits them meanwhile. Then its process is killed.
        let mut state = site.open();
        let mut marked = state.models().unwrap();
        marked.tried_until = Store::create(&site.store(), &site.cluster).unwrap().revision().unwrap().last_id;
        assert!(state.change_models(&ModelsChange { models: &marked, learned: &[], log: None }).unwrap().is_some());
        first.sync_models().unwrap();
        assert_eq!(first.readings_since_fit().unwrap(), 0, "another process fits them, as far as this one knows");
        let again = site.engine(None);
        assert_eq!(again.readings_since_fit().unwrap(), new, "after a restart");
        let answer = again.refit(&FitRequest::default(), SITE, &Progress::default()).unwrap();
        assert_eq!(again.readings_since_fit().unwrap(), 0, "{}", answer.why);
        assert_eq!(site.engine(None).readings_since_fit().unwrap(), 0, "after another restart: {}", answer.why);
    });
}
