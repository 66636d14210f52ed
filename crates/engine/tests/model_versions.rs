//! Versions of the model: a fit is used if it predicts readings that neither model has learned at least as well; an earlier version can be used again.

mod common;

use common::{SIZE, cluster, row, rows};
use engine::{Engine, FitRequest, Progress, PromoteRequest, VersionState};
use predict::{BandwidthModel, FitOptions, Kind, fit};
use store::{By, State, Store};
use topology::{Allocation, Cluster, Collective, GpuMask, HostId};

const SITE: By<'static> = By { who: "server", why: "", at_unix_s: 5.0, own_only: false };

/// Readings across all pairs of hosts at this share of the physics.
fn across(c: &Cluster, share: f64) -> Vec<store::Record> {
    let fabric = fabric::Fabric::new(c);
    let hosts = c.hosts.len() as u32;
    let pairs = (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (HostId(a), HostId(b))));
    let of = |(a, b): (HostId, HostId)| {
        let both = Allocation::new([(a, GpuMask::first(8)), (b, GpuMask::first(8))]);
        let bound = fabric.estimate(&both, Collective::AllReduce, SIZE).busbw.gb_per_s();
        row(both, bound * share).into()
    };
    pairs.map(of).collect()
}

/// An engine whose model is NCCL's own, with intra readings.
fn engine(folder: &std::path::Path, c: &Cluster) -> Engine {
    let mut store = Store::create(&folder.join("r.db"), c).unwrap();
    let intra: Vec<store::Record> =
        rows(c).into_iter().filter(|m| m.allocation.host_count() == 1).map(Into::into).collect();
    store.add(&intra, None, 1.0).unwrap();
    let cold = FitOptions { collective: Some(Collective::AllReduce), ..FitOptions::of(Kind::Nccl) };
    let model = fit(c, &[], &cold).unwrap().0;
    let state = State::init(&folder.join("s.db"), c, 0.0).unwrap();
    Engine::builder(c.clone()).state(state).store(store).model(model).build().unwrap()
}

fn add(folder: &std::path::Path, c: &Cluster, records: &[store::Record]) {
    Store::open(&folder.join("r.db"), c).unwrap().add(records, None, 2.0).unwrap();
}

fn kind(kind: &str) -> FitRequest {
    FitRequest { kind: Some(kind.into()), collective: Some(Collective::AllReduce), seed: 0 }
}

#[test]
fn a_fit_is_used_if_it_predicts_readings_that_are_new_for_both_at_least_as_well() {
    let (folder, c) = (tempfile::tempdir().unwrap(), cluster(8));
    let e = engine(folder.path(), &c);
    add(folder.path(), &c, &across(&c, 0.6));
    assert!(e.readings_since_fit().unwrap() >= 28);
    let better = e.refit(&kind("gp"), SITE, &Progress::default()).unwrap();
    let compared = better.compared.unwrap();
    assert!(better.promoted && !compared.seen_before && compared.fitted < compared.present, "{better:?}");
    assert_eq!((e.model().unwrap().kind(), e.readings_since_fit().unwrap()), ("gp", 0));

    // NCCL's own decisions know nothing of this site: they predict the new readings worse, and the model stays.
    add(folder.path(), &c, &across(&c, 0.61));
    let worse = e.refit(&kind("nccl"), SITE, &Progress::default()).unwrap();
    let compared = worse.compared.unwrap();
    assert!(!worse.promoted && !compared.seen_before && compared.fitted > compared.present, "{worse:?}");
    assert!(worse.why.contains("worse"), "{}", worse.why);
    assert_eq!(
        (e.model().unwrap().kind(), e.readings_since_fit().unwrap()),
        ("gp", 0),
        "a refused fit is not tried again"
    );
    let states: Vec<VersionState> = e.versions().iter().map(|v| v.state).collect();
    assert_eq!(states, [VersionState::Earlier, VersionState::Present, VersionState::Refused]);
    let events = e.events(&Default::default()).unwrap().events;
    let logged: Vec<(&str, &str)> = events.iter().map(|x| (x.what.as_str(), x.who.as_str())).collect();
    assert_eq!(logged, [("fit", "server"), ("fit_refused", "server")]);
    assert!(events.iter().all(|x| x.why.contains("held-back readings")), "{events:?}");
}

#[test]
fn a_rollback_returns_to_the_model_before_and_a_promotion_to_any_that_is_kept() {
    let (folder, c) = (tempfile::tempdir().unwrap(), cluster(4));
    let e = engine(folder.path(), &c);
    let back = |version| PromoteRequest { version, why: "jobs got slower".into() };
    assert_eq!(e.promote(&back(None), SITE).unwrap_err().code(), "unknown_version");
    add(folder.path(), &c, &across(&c, 0.6));
    let fitted = e.refit(&kind("gp"), SITE, &Progress::default()).unwrap();
    assert!(fitted.promoted, "{fitted:?}");
    let before = e.promote(&back(None), SITE).unwrap();
    assert_eq!((before.version, before.state, e.model().unwrap().kind()), (1, VersionState::Present, "nccl"));
    let again = e.promote(&back(Some(fitted.version)), SITE).unwrap();
    assert_eq!((again.kind.as_str(), e.model().unwrap().kind()), ("gp", "gp"));
    assert_eq!(e.promote(&back(Some(99)), SITE).unwrap_err().code(), "unknown_version");
    assert!(e.promote(&PromoteRequest { version: None, why: " ".into() }, SITE).is_err(), "a reason is needed");
    let last = e.events(&Default::default()).unwrap().events.pop().unwrap();
    assert_eq!((last.what.as_str(), last.why.as_str()), ("promote", "jobs got slower"));
    assert_eq!(e.versions().iter().filter(|v| v.state == VersionState::Present).count(), 1);
}

#[test]
fn a_cancelled_fit_changes_nothing() {
    let (folder, c) = (tempfile::tempdir().unwrap(), cluster(4));
    let e = engine(folder.path(), &c);
    add(folder.path(), &c, &across(&c, 0.6));
    let progress = Progress::default();
    progress.cancel();
    assert_eq!(e.refit(&kind("gp"), SITE, &progress).unwrap_err().code(), "cancelled");
    assert_eq!((e.model().unwrap().kind(), e.versions().len()), ("nccl", 1));
    assert!(e.events(&Default::default()).unwrap().events.is_empty());
}
