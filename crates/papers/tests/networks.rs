//! What the fitted networks promise: published accuracy, symmetries, files, continual learning.

#[path = "common/tables.rs"]
mod common;

use papers::network::kinds::{LINEAR, NetworkKind, TRANSFORMER, TRANSFORMER_LITEGD, TRANSFORMER_NAIVE};
use papers::network::{CONTINUAL, Guard, LearnedNetwork, Training};
use predict::Learner;
use predict::accuracy::{accuracy, bandpilot_design, compared, figures, random_subsets};
use predict::{BandwidthModel, Candidates, Correction, FitError, FitOptions, FitReport, Kind, Model, ModelKinds, fit};
use std::any::Any;
use std::sync::OnceLock;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, catalog};

const SIZE: Bytes = Bytes::mib(256);
static NETWORKS: [&NetworkKind; 3] = [&TRANSFORMER, &TRANSFORMER_LITEGD, &TRANSFORMER_NAIVE];
static LEARNED: [&NetworkKind; 4] = [&TRANSFORMER, &TRANSFORMER_LITEGD, &TRANSFORMER_NAIVE, &LINEAR];

fn cluster() -> Cluster {
    catalog::cluster("h100").unwrap()
}

/// A smooth truth: what the fewest GPUs of a host carry, less where counts differ; after the drift (`slow`) a trunk between switches lost
/// links, and what spans all four hosts gets six tenths.
fn truth(a: &Allocation, slow: bool) -> f64 {
    let least = 45.0 * a.counts().into_iter().min().unwrap_or(1) as f64;
    let most = a.counts().into_iter().max().unwrap_or(1) as f64;
    let left = if slow && a.host_count() == 4 { 0.6 } else { 1.0 };
    left * (least.powi(-3) + 320f64.powi(-3)).powf(-1.0 / 3.0) * (1.0 - 0.01 * most)
}

fn pairs(n: usize, slow: bool, seed: u64) -> Vec<(Allocation, f64)> {
    random_subsets(&cluster(), n, seed)
        .into_iter()
        .map(|a| {
            let v = truth(&a, slow);
            (a, v)
        })
        .collect()
}

fn rows(pairs: &[(Allocation, f64)]) -> Vec<Measurement> {
    let row = |(a, v): &(Allocation, f64)| {
        let v = Bandwidth::from_gb_per_s(*v);
        Measurement::new(a.clone(), Collective::AllReduce, SIZE, v, Source::Simulated)
    };
    pairs.iter().map(row).collect()
}

/// Short training, for what does not depend on its length.
fn short() -> Training {
    Training { epochs: 12, ..Training::default() }
}

/// A fit with these settings of the training.
fn fit_with(
    cluster: &Cluster,
    rows: &[Measurement],
    kind: &NetworkKind,
    training: Training,
    seed: u64,
) -> Result<(Model, FitReport), FitError> {
    let learner = NetworkKind { training, ..*kind };
    fit(cluster, rows, &FitOptions::of(Kind::Learned(&learner)).seed(seed))
}

fn quick(kind: &NetworkKind, seed: u64) -> Model {
    let rows = rows(&pairs(60, false, 1));
    fit_with(&cluster(), &rows, kind, short(), seed).unwrap().0
}

fn learned(m: &Model) -> &LearnedNetwork {
    let Correction::Learned(l) = m.correction() else { panic!("not learned") };
    (&**l as &dyn Any).downcast_ref().expect("a network or a line")
}

fn load(text: &str) -> Result<Model, String> {
    let mut kinds = ModelKinds::shipped();
    papers::register_models(&mut kinds).unwrap();
    Model::load(text, &kinds)
}

#[test]
fn the_published_accuracy_is_reached_on_the_published_table_with_250_samples() {
    let cluster = cluster();
    let Some(tables) = common::h100("published accuracy", "16mib", &cluster) else { return };
    let mut train = tables.truths(random_subsets(&cluster, 300, 5));
    train.truncate(250);
    let mut rows = tables.intra_rows();
    rows.extend(tables.rows(&train));
    let (model, report) = fit_with(&cluster, &rows, &TRANSFORMER, Training::default(), 1).unwrap();
    let test = tables.truths(random_subsets(&cluster, 2500, 6));
    let a = accuracy(&model, tables.size, &test).unwrap();
    eprintln!("transformer, H100 16 MiB, 250 samples: {a:?}, {:?} epochs", report.training[0].epochs);
    // Their code reaches R2 0.91 and MAPE 6.3 % on this table.
    assert!(a.n > 2000 && a.r2 > 0.88 && a.mape_percent < 6.5, "{a:?}");
}

#[test]
fn what_is_on_one_host_bypasses_every_network() {
    let cluster = cluster();
    for kind in LEARNED {
        let m = quick(kind, 0);
        let table = m.share_table(SIZE);
        let mut c = Candidates::new();
        for mask in [GpuMask::first(1), GpuMask::first(2), GpuMask(0b1111_0000), GpuMask::first(8)] {
            c.push(&[table.part(HostId(2), mask)]);
        }
        let mut means = Vec::new();
        m.means(SIZE, &c, &mut means);
        let expected: Vec<f64> = c.iter().map(|p| table.intra_gb_per_s(p[0].host, p[0].mask)).collect();
        assert_eq!(means, expected, "{}", kind.name());
        assert_eq!(means[0], 0.0, "one GPU sends nothing");
        assert_eq!(m.kind(), kind.name());
        assert_eq!(cluster.hosts.len(), table.host_count());
    }
}

#[test]
fn one_prediction_is_that_of_the_batch_and_does_not_depend_on_the_order_of_parts() {
    for kind in LEARNED {
        let m = quick(kind, 0);
        let table = m.share_table(SIZE);
        let mut allocations = random_subsets(&cluster(), 300, 9);
        allocations.push(Allocation::new([(HostId(1), GpuMask::first(3))]));
        let c = Candidates::of(table, &allocations);
        let mut means = Vec::new();
        m.means(SIZE, &c, &mut means);
        for (i, v) in means.iter().enumerate().step_by(7) {
            let mut parts = c.parts(i).to_vec();
            assert_eq!(m.mean(SIZE, &parts), *v, "{}", kind.name());
            parts.reverse();
            let close = (m.mean(SIZE, &parts) / v - 1.0).abs() < 1e-12;
            assert!(close, "{}", kind.name());
            let p = m.predict(SIZE, &parts);
            assert!(p.std_gb_per_s > 0.0 && p.std_gb_per_s.is_finite());
        }
    }
}

#[test]
fn gpus_of_equal_intra_bandwidth_are_alike_to_the_transformer_and_the_line_but_not_to_masks() {
    // Without intra readings the tables are analytic, and on NVSwitch hosts they depend on counts alone.
    let a = Allocation::new([(HostId(0), GpuMask(0b0000_1111)), (HostId(2), GpuMask(0b0011_0011))]);
    let b = Allocation::new([(HostId(0), GpuMask(0b1010_1010)), (HostId(2), GpuMask(0b1111_0000))]);
    for kind in LEARNED {
        let m = quick(kind, 0);
        let of = |a| m.predict_allocation(SIZE, a).busbw_gb_per_s;
        let alike = ["transformer", "linear"].contains(&kind.name());
        assert_eq!(of(&a) == of(&b), alike, "{}", kind.name());
    }
    // Hosts have places: to the line they are alike, to networks not.
    let moved = Allocation::new([(HostId(2), GpuMask(0b0000_1111)), (HostId(0), GpuMask(0b0011_0011))]);
    assert_eq!(a.split(), moved.split());
    let line = quick(&LINEAR, 0);
    let (x, y) = (line.predict_allocation(SIZE, &a), line.predict_allocation(SIZE, &moved));
    assert!((x.busbw_gb_per_s / y.busbw_gb_per_s - 1.0).abs() < 1e-9);
}

#[test]
fn a_seed_gives_one_model_and_a_file_gives_it_back_to_the_bit() {
    let test = random_subsets(&cluster(), 40, 3);
    for kind in LEARNED {
        let m = quick(kind, 4);
        let text = m.save().unwrap();
        assert_eq!(text, quick(kind, 4).save().unwrap(), "{}", kind.name());
        if kind.name() != "linear" {
            assert_ne!(text, quick(kind, 5).save().unwrap(), "{}", kind.name());
        }
        let mut again = load(&text).unwrap();
        for a in &test {
            assert_eq!(m.predict_allocation(SIZE, a), again.predict_allocation(SIZE, a), "{}", kind.name());
        }
        // What continual learning needs is in the file, too.
        let (mut m, new) = (m, pairs(5, true, 8));
        assert_eq!(m.learn(SIZE, &new, 1), kind.name() != "linear");
        assert_eq!(again.learn(SIZE, &new, 1), kind.name() != "linear");
        assert_eq!(m.predict_allocation(SIZE, &test[0]), again.predict_allocation(SIZE, &test[0]));
    }
}

#[test]
fn too_few_readings_are_refused_with_what_to_do() {
    for kind in LEARNED {
        let few = rows(&pairs(7, false, 1));
        match fit(&cluster(), &few, &FitOptions::of(Kind::Learned(kind))) {
            Err(e @ FitError::TooFew { found: 7, needed: 8, .. }) => {
                let text = e.to_string();
                assert!(text.contains(kind.name()) && text.contains("linkwise measure"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn damaged_files_are_refused_with_one_sentence() {
    for kind in LEARNED {
        let text = quick(kind, 0).save().unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let damage = |at: &str, with: serde_json::Value| {
            let mut v = value.clone();
            let slot = v.pointer_mut(at);
            *slot.unwrap_or_else(|| panic!("{}: no {at}", kind.name())) = with;
            load(&v.to_string()).err()
        };
        let base = "/correction/learned";
        let s = format!("{base}/sizes/0");
        let mut cases = vec![
            (format!("{base}/sizes"), serde_json::json!([])),
            (format!("{base}/network"), serde_json::json!("gpt")),
            (format!("{s}/target/sd"), serde_json::json!(0.0)),
            (format!("{s}/sd"), serde_json::json!(1e300)),
            (format!("{s}/seen"), serde_json::json!(0)),
        ];
        if kind.name() == "linear" {
            cases.push((format!("{base}/network"), serde_json::json!("transformer")));
            cases.push((format!("{s}/line/weights/3"), serde_json::json!(1e30)));
            cases.push((format!("{s}/line/alone_gb_per_s"), serde_json::json!([])));
        } else {
            cases.push((format!("{base}/network"), serde_json::Value::Null));
            cases.push((format!("{s}/parameters/100"), serde_json::json!(1e9)));
            cases.push((format!("{s}/parameters/100"), serde_json::json!(1e300)));
            cases.push((format!("{s}/parameters"), serde_json::json!([1.0, 2.0])));
            cases.push((format!("{s}/reader/bits"), serde_json::json!(31)));
            cases.push((format!("{s}/reader/intra/mean"), serde_json::Value::Null));
        }
        match kind.name() {
            "transformer-litegd" => {
                let hostile = serde_json::json!([[[["n0", 3]], 5.0]]);
                cases.push((format!("{s}/replay"), hostile));
                cases.push((format!("{s}/replay/0/1"), serde_json::json!(-1.0)));
            }
            "transformer" | "transformer-naive" => {
                cases.push((format!("{s}/fisher"), serde_json::json!([0.5])));
                cases.push((format!("{s}/fisher/7"), serde_json::json!(-1.0)));
            }
            _ => {}
        }
        for (at, with) in cases {
            let e = damage(&at, with.clone()).unwrap_or_else(|| panic!("{} loads with {at} = {with}", kind.name()));
            assert!(!e.is_empty() && !e.contains('\n') && e.len() < 400, "{e}");
        }
    }
}

/// A network that knows the cluster before host 3 lost half of its speed.
fn before_the_drift(kind: &NetworkKind) -> &'static Model {
    static MODELS: [OnceLock<Model>; 2] = [OnceLock::new(), OnceLock::new()];
    let at = usize::from(kind.name() == "transformer-litegd");
    MODELS[at].get_or_init(|| {
        // Two in three random subsets of 32 GPUs touch all hosts: more of them, so that there is something to forget.
        let all = pairs(700, false, 21);
        let few: Vec<_> = all.iter().filter(|p| p.0.host_count() < 4).take(125).cloned().collect();
        let four = all.into_iter().filter(|p| p.0.host_count() == 4).take(125);
        let rows = rows(&few.into_iter().chain(four).collect::<Vec<_>>());
        let training = Training { epochs: 100, ..Training::default() };
        fit_with(&cluster(), &rows, kind, training, 2).unwrap().0
    })
}

#[test]
fn old_knowledge_survives_a_drift_that_plain_training_forgets_it_in() {
    // Jobs on all hosts report less than before; the others are not measured meanwhile and did not change.
    let drifted = |p: &(Allocation, f64)| p.0.host_count() == 4;
    let new: Vec<_> = pairs(200, true, 31).into_iter().filter(drifted).take(60).collect();
    let new_test: Vec<_> = pairs(600, true, 32).into_iter().filter(drifted).collect();
    let old_test: Vec<_> = pairs(2000, false, 33).into_iter().filter(|p| !drifted(p)).collect();
    for kind in [&TRANSFORMER, &TRANSFORMER_LITEGD] {
        let model = before_the_drift(kind);
        let errors = |l: &LearnedNetwork| {
            [&old_test, &new_test].map(|rows| {
                let c = Candidates::of(model.share_table(SIZE), rows.iter().map(|r| &r.0));
                let mut means = Vec::new();
                l.means(SIZE, &c, &mut means);
                let pairs: Vec<(f64, f64)> = means.into_iter().zip(rows.iter().map(|r| r.1)).collect();
                figures(&pairs).unwrap().mape_percent
            })
        };
        let after = |guard| {
            let mut l = learned(model).clone();
            assert!(LearnedNetwork::learn(&mut l, model.share_table(SIZE), SIZE, &new, guard, &CONTINUAL, 3).is_some());
            errors(&l)
        };
        let ([old0, new0], [old1, new1], [old2, new2]) =
            (errors(learned(model)), after(Guard::Published), after(Guard::None));
        eprintln!(
            "{}: MAPE % old / new: before {old0:.1} / {new0:.1}, guarded {old1:.1} / {new1:.1}, plain {old2:.1} / {new2:.1}",
            kind.name()
        );
        assert!(new0 > 50.0, "{}: it did not know of the drift", kind.name());
        // Replay keeps old readings that the new ones contradict, and so learns them half; the penalty knows no readings.
        let share = if kind.name() == "transformer" { 0.35 } else { 0.7 };
        assert!(new1 < share * new0, "{}: the new went from {new0} to {new1} only", kind.name());
        assert!(old1 < 0.65 * old2, "{}: plain training forgets: {old2}, guarded {old1}", kind.name());
    }
}

#[test]
fn a_single_observation_moves_a_network_towards_it_and_nonsense_does_not() {
    let mut m = quick(&TRANSFORMER, 0);
    let a = Allocation::new([(HostId(1), GpuMask::first(5)), (HostId(2), GpuMask::first(5))]);
    let before = m.predict_allocation(SIZE, &a).busbw_gb_per_s;
    let reading = 0.7 * before;
    assert!(m.update(&a, SIZE, reading));
    let after = m.predict_allocation(SIZE, &a).busbw_gb_per_s;
    assert!((after - reading).abs() < (before - reading).abs(), "{before} -> {after}, reading {reading}");
    for nonsense in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(!m.update(&a, SIZE, nonsense));
    }
    let alone = Allocation::new([(HostId(1), GpuMask::first(5))]);
    assert!(!m.update(&alone, SIZE, 100.0), "one host has no network");
    assert_eq!(m.predict_allocation(SIZE, &a).busbw_gb_per_s, after);
}

#[test]
fn footprints_are_those_of_the_papers() {
    for (kind, least, most) in [(&TRANSFORMER, 290, 354), (&TRANSFORMER_LITEGD, 560, 642)] {
        let m = quick(kind, 0);
        let l = learned(&m);
        assert_eq!(l.parameter_bytes(), 4 * l.parameter_count());
        assert!((least..=most).contains(&(l.parameter_bytes() / 1024)), "{}", l.parameter_bytes());
    }
    assert_eq!(learned(&quick(&LINEAR, 0)).parameter_count(), 11);
}

#[test]
fn several_sizes_have_a_network_each_and_others_take_the_nearest() {
    let at = |size: Bytes, n: usize, by: f64| {
        rows(&pairs(n, false, 1)).into_iter().map(move |mut m| {
            m.size = size;
            m.busbw = Bandwidth::from_gb_per_s(m.busbw.gb_per_s() * by);
            m
        })
    };
    let mixed: Vec<_> =
        at(Bytes::mib(16), 40, 0.5).chain(at(Bytes::gib(2), 40, 1.0)).chain(at(Bytes::gib(8), 3, 1.0)).collect();
    let m = fit_with(&cluster(), &mixed, &LINEAR, short(), 0).unwrap().0;
    let a = Allocation::new([(HostId(1), GpuMask::first(5)), (HostId(2), GpuMask::first(5))]);
    let of = |s| m.predict_allocation(s, &a).busbw_gb_per_s;
    assert!((of(Bytes::mib(16)) / of(Bytes::gib(2)) - 0.5).abs() < 0.05);
    assert_eq!(learned(&m).by_size.len(), 2, "three readings are too few");
    assert!(of(Bytes::gib(8)).is_finite());
}

#[test]
fn figures_are_what_their_names_say() {
    assert!(figures(&[]).is_none());
    let f = figures(&[(1.0, 1.0), (2.0, 4.0), (3.0, 1.0)]).unwrap();
    assert_eq!((f.n, f.mae_gb_per_s), (3, 4.0 / 3.0));
    assert!((f.mape_percent - 100.0 * (0.5 + 2.0) / 3.0).abs() < 1e-9);
    assert!((f.r2 - (1.0 - 8.0 / 6.0)).abs() < 1e-9, "{}", f.r2);
    assert_eq!(figures(&[(2.0, 2.0), (3.0, 3.0)]).unwrap().r2, 1.0);
}

#[test]
fn test_sets_span_hosts_take_only_what_exists_and_differ_as_they_should() {
    for name in ["h100", "het-4mix"] {
        let cluster = catalog::cluster(name).unwrap();
        let none = vec![predict::HostReadings::new(); cluster.hosts.len()];
        let physics = fabric::Fabric::new(&cluster);
        let intra = predict::IntraTables::new(&cluster, &none, &|_, m| 100.0 - m.count() as f64);
        let table = predict::HostShareTable::new(&cluster, &intra, &physics.tables());
        let spread = |list: &[Allocation]| {
            let range = |a: &Allocation| a.counts().iter().max().unwrap() - a.counts().iter().min().unwrap();
            list.iter().map(range).sum::<usize>() as f64 / list.len() as f64
        };
        let (random, compared, design) =
            (random_subsets(&cluster, 300, 1), compared(&cluster, &table, 300, 1), bandpilot_design(&cluster, 250, 1));
        assert_eq!((random.len(), compared.len(), design.len()), (300, 300, 250));
        for a in random.iter().chain(&compared).chain(&design) {
            assert!(a.host_count() > 1 && cluster.usable().contains_all(a));
        }
        assert!(spread(&compared) < spread(&random), "decisions compare near-balanced splits");
        let hosts = |l: &[Allocation]| l.iter().filter(|a| a.host_count() == 2).count();
        assert!(hosts(&compared) > 2 * hosts(&random), "and fewer hosts");
        let mut distinct = design.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), 250);
    }
}

#[test]
fn hosts_of_any_size_and_mixed_types_can_be_learned() {
    let cluster = catalog::cluster("het-4mix").unwrap();
    let data: Vec<_> = random_subsets(&cluster, 60, 2)
        .into_iter()
        .map(|a| {
            let v = 10.0 + a.host_count() as f64;
            (a, v)
        })
        .collect();
    for kind in NETWORKS {
        let m = fit_with(&cluster, &rows(&data), kind, short(), 0).unwrap().0;
        let a = accuracy(&m, SIZE, &data).unwrap();
        assert!(a.mape_percent.is_finite() && a.n == 60);
    }
}

#[test]
fn a_model_file_of_an_older_layout_is_refused_with_what_to_do() {
    let text = include_str!("fixtures/linear-model.json");
    let e = load(text).unwrap_err();
    assert!(e.contains("another version of linkwise") && e.contains("fit again"), "{e}");
}

#[test]
fn kinds_are_registered_once() {
    let mut kinds = ModelKinds::shipped();
    papers::register_models(&mut kinds).unwrap();
    assert_eq!(kinds.names(), "bound, gp, nccl, transformer, transformer-litegd, transformer-naive, linear");
    assert_eq!(papers::register_models(&mut kinds).unwrap_err().0, "transformer");
    assert!(kinds.all().iter().all(|k| kinds.by_name(k.name()) == Some(*k) && !k.about().is_empty()));
}
