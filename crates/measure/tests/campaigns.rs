//! Campaigns: their readings, how they resume, and how they treat outliers.

use measure::simulated::{Irregularity, Simulated};
use measure::{
    Backend, BackendError, Campaign, CampaignEvent, CampaignHooks, CampaignPlan, CampaignSummary, DesignKind, Point,
    Reading,
};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use store::{Place, Quality, Query, Source, Store};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, Seconds};

/// A rough bound, GB/s: 200 within a host; across hosts 48 per GPU of the smallest part.
fn bound(a: &Allocation, _: Collective, _: Bytes) -> Bandwidth {
    let least = *a.counts().iter().min().unwrap() as f64;
    Bandwidth::from_gb_per_s(if a.host_count() == 1 { 200.0 } else { 48.0 * least })
}

fn cluster(name: &str) -> Cluster {
    topology::catalog::cluster(name).unwrap()
}

fn plan(c: &Cluster) -> CampaignPlan {
    CampaignPlan {
        idle: c.usable(),
        collective: Collective::AllReduce,
        sizes: vec![Bytes::mib(16)],
        intra: true,
        sample_size: 30,
        design: DesignKind::Stratified,
        seed: 1,
        scale: measure::Scale::SMALL,
        budget_gpu_minutes: None,
    }
}

/// The allocations of each batch.
type Batches = Vec<Vec<Allocation>>;

/// A backend with faults: it ends after a number of points, has a slow host, and gives outliers as first readings.
struct Faulty<B> {
    inner: B,
    ends_after: usize,
    slow: Option<HostId>,
    fails: fn(&Point) -> bool,
    /// Readings over two hosts take longer than a store accepts.
    endless: bool,
    batches: Batches,
}

impl<B: Backend> Faulty<B> {
    fn new(inner: B) -> Self {
        Faulty { inner, ends_after: usize::MAX, slow: None, fails: |_| false, endless: false, batches: Vec::new() }
    }
}

impl<B: Backend> Backend for Faulty<B> {
    fn source(&self) -> Source {
        self.inner.source()
    }
    fn identity(&self) -> String {
        self.inner.identity()
    }
    fn provenance(&self) -> String {
        self.inner.provenance()
    }
    fn width(&self) -> usize {
        self.inner.width()
    }
    fn expected(&self, p: &Point) -> Seconds {
        self.inner.expected(p)
    }
    fn measure(&mut self, p: &Point) -> Result<Reading, BackendError> {
        if self.ends_after == 0 {
            return Err(BackendError::Fatal("the machine room is on fire".into()));
        }
        self.ends_after -= 1;
        if (self.fails)(p) {
            return Err(BackendError::Point("no".into()));
        }
        let mut r = self.inner.measure(p)?;
        if self.slow.is_some_and(|h| !p.allocation.mask(h).is_empty()) {
            r.busbw = Bandwidth::from_gb_per_s(0.8 * r.busbw.gb_per_s());
        }
        if self.endless && p.allocation.host_count() == 2 {
            r.time = Some(Seconds(3e7));
        }
        Ok(r)
    }
    fn measure_batch(&mut self, points: &[Point]) -> Vec<Result<Reading, BackendError>> {
        self.batches.push(points.iter().map(|p| p.allocation.clone()).collect());
        points.iter().map(|p| self.measure(p)).collect()
    }
}

fn simulated(c: &Cluster, outlier_rate: f64) -> Simulated<'_, impl Fn(&Allocation, Collective, Bytes) -> Bandwidth> {
    Simulated::new(c, Irregularity { outlier_rate, ..Irregularity::default() }, bound)
}

fn run(
    plan: &CampaignPlan,
    store: &mut Store,
    backend: &mut dyn Backend,
) -> (Result<CampaignSummary, measure::CampaignError>, Vec<CampaignEvent>) {
    let mut events = Vec::new();
    let mut on_event = |e| events.push(e);
    let expected = |a: &Allocation, c, s| bound(a, c, s).gb_per_s();
    let result = Campaign::new(
        plan,
        store,
        backend,
        CampaignHooks { expected: &expected, now_unix_s: &|| 1.0, on_event: &mut on_event },
    )
    .unwrap()
    .run();
    (result, events)
}

/// Bandwidth and quality by run id.
fn content(store: &Store) -> BTreeMap<String, (String, Quality)> {
    let all = store.records(&Query::all()).unwrap();
    all.into_iter()
        .map(|r| (r.run_id.unwrap(), (r.measurement.busbw.gb_per_s().to_string(), r.measurement.quality)))
        .collect()
}

fn fresh(folder: &Path, name: &str, c: &Cluster) -> Store {
    Store::create(&folder.join(name), c).unwrap()
}

#[test]
fn a_campaign_takes_one_full_table_per_type_spot_checks_and_the_samples() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster("het-ra");
    let mut store = fresh(folder.path(), "s.db", &c);
    let mut quiet =
        Simulated::new(&c, Irregularity { irregularity: 0.0, noise: 0.0, ..Irregularity::default() }, bound);
    let p = plan(&c);
    let mut nothing = |_| {};
    let expected = |a: &Allocation, co, s| bound(a, co, s).gb_per_s();
    let estimate = Campaign::new(
        &p,
        &mut store,
        &mut quiet,
        CampaignHooks { expected: &expected, now_unix_s: &|| 1.0, on_event: &mut nothing },
    )
    .unwrap()
    .estimate();
    let points: Vec<usize> = estimate.stages.iter().map(|s| s.points).collect();
    assert_eq!((points, estimate.already()), (vec![2 * 247, 2 * 8, 30], 0));
    let mut backend = Faulty::new(quiet);
    let summary = run(&p, &mut store, &mut backend).0.unwrap();
    assert_eq!(summary.readings_taken(), estimate.points());
    for (planned, done) in estimate.stages.iter().zip(&summary.stages) {
        assert!((planned.gpu_minutes - done.gpu_minutes).abs() < 1e-6 && planned.name == done.name, "{planned:?}");
    }
    let at = |h| store.count(&Query::all().place(Place::Host(HostId(h)))).unwrap();
    assert_eq!([at(0), at(1), at(2), at(3)], [247, 8, 247, 8]);
    assert_eq!(store.count(&Query::all().place(Place::SeveralHosts)).unwrap(), 30);
    // Tables of several hosts in parallel; never two points on one host, never two multi-host points together.
    assert!(backend.batches.iter().filter(|b| b.len() == 2).count() >= 247);
    for b in &backend.batches {
        let hosts: Vec<HostId> = b.iter().flat_map(|a| a.parts().iter().map(|p| p.0)).collect();
        assert_eq!(hosts.iter().collect::<HashSet<_>>().len(), hosts.len());
        assert!(b.len() == 1 || b.iter().all(|a| a.host_count() == 1));
    }
}

#[test]
fn a_campaign_stopped_anywhere_ends_with_the_same_store_as_an_uninterrupted_one() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster("h100");
    let p = CampaignPlan { sizes: vec![Bytes::mib(16), Bytes::gib(2)], ..plan(&c) };
    let mut whole = fresh(folder.path(), "whole.db", &c);
    let summary = run(&p, &mut whole, &mut simulated(&c, 0.05)).0.unwrap();
    assert!(summary.stages.iter().any(|s| s.rejected > 0), "no reading was rejected: {summary:?}");
    for every in [19, 60, 260] {
        let mut store = fresh(folder.path(), &format!("{every}.db"), &c);
        let mut taken = 0;
        for attempt in 0.. {
            let mut backend = Faulty { ends_after: every, ..Faulty::new(simulated(&c, 0.05)) };
            let (result, _) = run(&p, &mut store, &mut backend);
            match result {
                Ok(s) => {
                    taken += s.readings_taken();
                    break;
                }
                Err(e) => {
                    assert!(e.to_string().contains("on fire") && e.to_string().contains("to resume"), "{e}")
                }
            }
            assert!(attempt < 500);
        }
        assert!(taken <= every);
        assert_eq!(content(&store), content(&whole), "stopped every {every}");
    }
    let (again, events) = run(&p, &mut whole, &mut simulated(&c, 0.05));
    assert_eq!(again.unwrap().readings_taken(), 0);
    assert!(events.iter().all(|e| !matches!(e, CampaignEvent::Taken(_))));
}

#[test]
fn outliers_are_repeated_the_median_counts_and_the_rejected_reading_stays_in_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster("h100");
    let mut store = fresh(folder.path(), "s.db", &c);
    let backend = simulated(&c, 0.03);
    let truth: BTreeMap<GpuMask, f64> = measure::intra::table(GpuMask::first(8), 1)
        .into_iter()
        .map(|m| {
            (m, backend.truth(&Allocation::new([(HostId(0), m)]), Collective::AllReduce, Bytes::mib(16)).gb_per_s())
        })
        .collect();
    let mut backend = backend;
    let summary = run(&plan(&c), &mut store, &mut backend).0.unwrap();
    let rejected = store.count(&Query { quality: Some(Quality::Rejected), ..Query::all() }).unwrap();
    assert!(rejected >= 4, "{rejected} of about 8 planted");
    assert_eq!(rejected, summary.stages.iter().map(|s| s.rejected).sum::<usize>());
    let table = store.intra_table(HostId(0), Collective::AllReduce, Bytes::mib(16)).unwrap();
    assert_eq!(table.len(), 247);
    for (mask, v) in table {
        let error = (v.gb_per_s() / truth[&mask] - 1.0).abs();
        assert!(error < 0.1, "{mask}: {v} for {} after repetition", truth[&mask]);
    }
}

#[test]
fn a_deviating_host_is_named_and_its_full_table_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster("h100");
    let mut store = fresh(folder.path(), "s.db", &c);
    let mut backend = Faulty { slow: Some(HostId(2)), ..Faulty::new(simulated(&c, 0.0)) };
    let (summary, events) = run(&plan(&c), &mut store, &mut backend);
    assert!(summary.unwrap().deviating_hosts.contains(&"n2".to_owned()));
    assert_eq!(store.count(&Query::all().place(Place::Host(HostId(2)))).unwrap(), 247);
    assert!(events.iter().any(|e| matches!(e, CampaignEvent::Note(n) if n.starts_with("n2 deviates from the median of the 4 hosts of hgx-h100 by -"))));
}

/// A site of `hosts` hosts; `slow` of them run at 0.8 of their rate. Returns the names of deviating hosts, the number of hosts with a full
/// table, and the notes.
fn spot_checks(hosts: usize, noise: f64, seed: u64, slow: &[u32]) -> (Vec<String>, usize, Vec<String>) {
    struct Slow<'s, B>(B, &'s [u32]);
    impl<B: Backend> Backend for Slow<'_, B> {
        fn source(&self) -> Source {
            self.0.source()
        }
        fn provenance(&self) -> String {
            self.0.provenance()
        }
        fn width(&self) -> usize {
            self.0.width()
        }
        fn expected(&self, p: &Point) -> Seconds {
            self.0.expected(p)
        }
        fn measure(&mut self, p: &Point) -> Result<Reading, BackendError> {
            let mut r = self.0.measure(p)?;
            if self.1.iter().any(|h| !p.allocation.mask(HostId(*h)).is_empty()) {
                r.busbw = Bandwidth::from_gb_per_s(0.8 * r.busbw.gb_per_s());
            }
            Ok(r)
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(&format!("{hosts}xhgx-h100"));
    let scale = measure::Scale::of_site(&c, &c.usable(), None);
    let plan = CampaignPlan { sample_size: 0, scale, seed, ..plan(&c) };
    let mut store = fresh(folder.path(), "s.db", &c);
    let mut backend = Slow(Simulated::new(&c, Irregularity { noise, seed, ..Irregularity::default() }, bound), slow);
    let (summary, events) = run(&plan, &mut store, &mut backend);
    let tables = c.host_ids().filter(|h| store.count(&Query::all().place(Place::Host(*h))).unwrap() >= 247).count();
    let note = |e: CampaignEvent| if let CampaignEvent::Note(n) = e { Some(n) } else { None };
    (summary.unwrap().deviating_hosts, tables, events.into_iter().filter_map(note).collect())
}

#[test]
fn noise_alone_escalates_almost_no_host() {
    for (hosts, percent) in [(128, 1), (24, 2)] {
        let deviating: usize = (1..=8).map(|seed| spot_checks(hosts, 0.03, seed, &[]).0.len()).sum();
        assert!(100 * deviating <= percent * 8 * hosts, "{deviating} of {} healthy hosts", 8 * hosts);
    }
}

#[test]
fn a_defective_reference_escalates_itself_and_no_healthy_host() {
    for hosts in [4, 16, 128] {
        let (deviating, tables, notes) = spot_checks(hosts, 0.01, 1, &[0]);
        assert_eq!(deviating, ["n0"], "{hosts} hosts: {notes:?}");
        assert_eq!(tables, 2, "its own table, and that of a usual host: {notes:?}");
        let said =
            |n: &String| n.starts_with("n0 deviates from the median of the") && n.contains("taking the table of");
        assert!(notes.iter().any(said), "{notes:?}");
    }
}

#[test]
fn slow_hosts_are_escalated_in_spite_of_noise_and_of_a_slow_reference() {
    for seed in 1..=4 {
        let (deviating, ..) = spot_checks(128, 0.03, seed, &[0, 5, 77]);
        assert!(["n0", "n5", "n77"].iter().all(|n| deviating.iter().any(|d| d == n)), "seed {seed}: {deviating:?}");
        assert!(deviating.len() <= 4, "seed {seed}: {deviating:?}");
    }
    // A third of the hosts does not hide itself in the spread.
    let third: Vec<u32> = (0..64).step_by(3).collect();
    let (deviating, ..) = spot_checks(64, 0.01, 1, &third);
    let found = third.iter().filter(|h| deviating.contains(&format!("n{h}"))).count();
    assert!(
        found + 1 >= third.len() && deviating.len() <= third.len() + 1,
        "{found} of {}: {deviating:?}",
        third.len()
    );
}

#[test]
fn only_idle_gpus_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster("h100");
    let mut store = fresh(folder.path(), "s.db", &c);
    let idle = c.parse_gpus(["n0:1 n0:2 n0:5 n1:0 n1:2 n3"]).unwrap();
    let p = CampaignPlan { idle: idle.clone(), ..plan(&c) };
    run(&p, &mut store, &mut simulated(&c, 0.1)).0.unwrap();
    let all = store.measurements(&Query::all()).unwrap();
    assert!(all.len() > 247 && all.iter().all(|m| idle.contains_all(&m.allocation)));
    assert!(all.iter().all(|m| m.source == Source::Simulated && m.taken_at_unix_s == Some(1.0)));
}

#[test]
fn a_budget_ends_a_run_cleanly_and_the_next_run_continues() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster("h100");
    let mut store = fresh(folder.path(), "s.db", &c);
    let p = CampaignPlan { budget_gpu_minutes: Some(20.0), ..plan(&c) };
    let first = run(&p, &mut store, &mut simulated(&c, 0.0)).0.unwrap();
    assert!(first.stopped_by_budget && first.gpu_minutes() <= 20.0 && first.readings_taken() > 10);
    let rest = run(&plan(&c), &mut store, &mut simulated(&c, 0.0)).0.unwrap();
    assert!(!rest.stopped_by_budget);
    let mut whole = fresh(folder.path(), "whole.db", &c);
    run(&plan(&c), &mut whole, &mut simulated(&c, 0.0)).0.unwrap();
    assert_eq!(content(&store), content(&whole));
}

#[test]
fn a_withdrawn_reading_is_not_measured_again_when_a_campaign_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster("h100");
    let mut store = fresh(folder.path(), "s.db", &c);
    run(&plan(&c), &mut store, &mut simulated(&c, 0.0)).0.unwrap();
    let by = store::By { who: "ada", why: "the switch was rebooted", at_unix_s: 2.0, own_only: false };
    for id in [1, 40] {
        store.withdraw(id, &by, None).unwrap();
    }
    let left = content(&store);
    let again = run(&plan(&c), &mut store, &mut simulated(&c, 0.0)).0.unwrap();
    assert_eq!((again.readings_taken(), content(&store)), (0, left));
}

#[test]
fn failed_points_are_counted_and_repeated_by_the_next_run_and_ten_in_a_row_stop_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster("h100");
    let mut store = fresh(folder.path(), "s.db", &c);
    let some: fn(&Point) -> bool = |p| p.allocation.host_count() == 1 && p.allocation.parts()[0].1 == GpuMask(0b110);
    let summary = run(&plan(&c), &mut store, &mut Faulty { fails: some, ..Faulty::new(simulated(&c, 0.0)) }).0.unwrap();
    assert!(summary.failed() >= 1);
    let again = run(&plan(&c), &mut store, &mut simulated(&c, 0.0)).0.unwrap();
    assert_eq!((again.failed(), again.readings_taken()), (0, summary.failed()));
    let mut other = fresh(folder.path(), "t.db", &c);
    let e =
        run(&plan(&c), &mut other, &mut Faulty { fails: |_| true, ..Faulty::new(simulated(&c, 0.0)) }).0.unwrap_err();
    assert!(e.to_string().contains("10 points failed in a row"), "{e}");
}

#[test]
fn a_reading_that_cannot_be_stored_is_a_failed_point_and_the_campaign_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster("h100");
    let mut store = fresh(folder.path(), "s.db", &c);
    let summary =
        run(&plan(&c), &mut store, &mut Faulty { endless: true, ..Faulty::new(simulated(&c, 0.0)) }).0.unwrap();
    assert!(summary.failed() >= 1 && summary.readings_taken() > 200, "{summary:?}");
    assert_eq!(content(&store).len(), summary.readings_taken());
}

#[test]
fn an_adaptive_campaign_with_a_model_resumes_to_the_same_points() {
    /// The uncertainty is highest far from the mean of the readings, so that a wrong replay would change the choice.
    #[derive(Default)]
    struct Model(f64);
    impl measure::Uncertainty for Model {
        fn refit(&mut self, measured: &[store::Measurement]) -> Result<(), String> {
            self.0 = measured.iter().map(|m| m.busbw.gb_per_s()).sum::<f64>() / measured.len() as f64;
            Ok(())
        }
        fn std(&self, a: &[Allocation]) -> Vec<f64> {
            a.iter().map(|a| ((a.gpu_count() as f64 * 7.3 + self.0) % 5.0) + a.host_count() as f64).collect()
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let c = cluster("h100");
    let p = CampaignPlan { design: DesignKind::Adaptive, ..plan(&c) };
    let with_model = |store: &mut Store, ends_after| {
        let mut backend = Faulty { ends_after, ..Faulty::new(simulated(&c, 0.0)) };
        let (mut model, mut on_event) = (Model::default(), |_| {});
        let expected = |a: &Allocation, co, s| bound(a, co, s).gb_per_s();
        Campaign::new(
            &p,
            store,
            &mut backend,
            CampaignHooks { expected: &expected, now_unix_s: &|| 1.0, on_event: &mut on_event },
        )
        .unwrap()
        .with_model(&mut model)
        .run()
    };
    let mut whole = fresh(folder.path(), "whole.db", &c);
    with_model(&mut whole, usize::MAX).unwrap();
    assert_eq!(whole.count(&Query::all().place(Place::SeveralHosts)).unwrap(), 30);
    let mut store = fresh(folder.path(), "s.db", &c);
    while with_model(&mut store, 33).is_err() {}
    assert_eq!(content(&store), content(&whole));
}

#[test]
fn a_campaign_over_hosts_whose_names_make_a_list_longer_than_a_run_id_ends_and_is_resumed() {
    let mut c = cluster("h100");
    let one = c.hosts[0].clone();
    let letters = |i: usize| (0..11).map(|b| char::from(b'a' + (i >> b & 1) as u8)).collect::<String>();
    let name = |i| format!("{}-{}", letters(i), "rack".repeat(14)); // no numbers that a list could join
    c.hosts = (0..1280).map(|i| topology::cluster::Host { name: name(i), ..one.clone() }).collect();
    assert!(c.gpu_list(&c.usable()).len() > store::RUN_ID_BYTES_MAX);
    let plan = CampaignPlan { intra: false, sample_size: 40, ..plan(&c) };
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::create(&folder.path().join("s.db"), &c).unwrap();
    let first = run(&plan, &mut store, &mut simulated(&c, 0.0)).0.unwrap();
    assert_eq!((first.stages[2].points, first.failed()), (40, 0));
    assert!(content(&store).keys().all(|id| id.len() <= store::RUN_ID_BYTES_MAX));
    let again = run(&plan, &mut store, &mut simulated(&c, 0.0)).0.unwrap();
    assert_eq!((again.stages[2].points, again.readings_taken()), (40, 0), "every run is known");
}
