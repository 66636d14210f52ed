//! Bad readings: a single one, or a few, decide nothing about other allocations.

#[path = "common/fleet.rs"]
mod fleet;

use fleet::{Fleet, OP, SIZE, normal};
use predict::{FitOptions, Kind, Model, Prediction, fit};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, catalog};

fn model(cluster: &Cluster, rows: &[Measurement]) -> Model {
    fit(cluster, rows, &FitOptions::of(Kind::Gp)).expect("fits").0
}

fn pair(a: u32, b: u32) -> Allocation {
    Allocation::new([a, b].map(|h| (HostId(h), GpuMask(0xff))))
}

/// Readings of 32 pairs of whole hosts among 16.
fn pairs(seed: u64) -> (Fleet, Vec<Measurement>) {
    let mut fleet = Fleet::new(16, false, seed);
    let rows = (0..32u32)
        .map(|i| {
            let a = i % 16;
            fleet.measure(pair(a, (a + 1 + i / 16 * 4 + i % 3) % 16), i as usize)
        })
        .collect();
    (fleet, rows)
}

fn reading(a: Allocation, gb_per_s: f64) -> Measurement {
    let mut m = Measurement::new(a, OP, SIZE, Bandwidth::from_gb_per_s(gb_per_s), Source::Simulated);
    m.taken_at_unix_s = Some(fleet::START_UNIX_S + 1e5);
    m
}

/// The largest move of any pair's prediction, in deviations of the prediction without the bad readings.
fn farthest_move(clean: &Model, bad: &Model, not: &[Allocation]) -> (f64, String) {
    let all = (0..16).flat_map(|a| (a + 1..16).map(move |b| pair(a, b))).filter(|a| !not.contains(a));
    all.map(|a| {
        let (p, q) = (clean.predict_allocation(SIZE, &a), bad.predict_allocation(SIZE, &a));
        (moved(p, q), format!("{a:?}: {p:?}, with bad readings {q:?}"))
    })
    .reduce(|a, b| if b.0 > a.0 { b } else { a })
    .expect("pairs")
}

/// How far a prediction moved, in its own deviations.
fn moved(without: Prediction, with: Prediction) -> f64 {
    (without.busbw_gb_per_s - with.busbw_gb_per_s).abs() / without.std_gb_per_s
}

#[test]
fn one_bad_reading_among_32_of_pairs_moves_no_other_pair_beyond_two_deviations() {
    for (seed, value) in [(1, 20.0), (2, 20.0), (3, 1.0), (4, 2000.0), (5, 1e6)] {
        let (fleet, mut rows) = pairs(seed);
        let clean = model(&fleet.cluster, &rows);
        rows.push(reading(pair(0, 3), value));
        let bad = model(&fleet.cluster, &rows);
        let (z, at) = farthest_move(&clean, &bad, &[pair(0, 3)]);
        assert!(z < 2.0, "seed {seed}, {value} GB/s: {z} deviations, {at}");
    }
}

#[test]
fn three_bad_readings_among_32_of_pairs_move_no_other_pair_beyond_two_deviations() {
    let far = [pair(0, 3), pair(5, 9), pair(7, 12)];
    for (seed, values) in [(1, [20.0; 3]), (2, [20.0, 25.0, 15.0]), (3, [1.0, 30.0, 1e5])] {
        let (fleet, mut rows) = pairs(seed);
        let clean = model(&fleet.cluster, &rows);
        rows.extend(far.iter().zip(values).map(|(a, v)| reading(a.clone(), v)));
        let bad = model(&fleet.cluster, &rows);
        let (z, at) = farthest_move(&clean, &bad, &far);
        assert!(z < 2.0, "seed {seed}, {values:?} GB/s: {z} deviations, {at}");
    }
}

#[test]
fn bad_readings_that_are_learned_one_by_one_move_no_other_pair_beyond_two_deviations() {
    let far = [pair(0, 3), pair(5, 9), pair(7, 12)];
    let (fleet, rows) = pairs(6);
    let clean = model(&fleet.cluster, &rows);
    let mut bad = clean.clone();
    for (a, v) in far.iter().zip([20.0, 15.0, 1e5]) {
        for _ in 0..3 {
            bad.update(a, SIZE, v);
        }
        let (z, at) = farthest_move(&clean, &bad, &far);
        assert!(z < 2.0, "{v} GB/s: {z} deviations, {at}");
    }
}

/// Readings of `n` random allocations of a cluster.
fn random_rows(cluster: &Cluster, n: usize, rng: &mut ChaCha8Rng) -> Vec<Measurement> {
    let physics = fabric::Fabric::new(cluster).tables();
    let hosts: Vec<f64> = cluster.host_ids().map(|_| (0.01 * normal(rng)).exp()).collect();
    (0..n)
        .map(|_| {
            let a = random_allocation(cluster, rng);
            let v = physics.on(cluster).estimate(&a, Collective::AllReduce, SIZE).busbw.gb_per_s();
            let host = a.parts().iter().map(|p| hosts[p.0.index()]).fold(1.0, f64::min);
            reading(a, v * host * (0.02 * normal(rng)).exp())
        })
        .collect()
}

fn random_allocation(cluster: &Cluster, rng: &mut ChaCha8Rng) -> Allocation {
    let n = rng.random_range(2..=cluster.hosts.len().min(6));
    let mut hosts: Vec<HostId> = cluster.host_ids().collect();
    let even = rng.random_range(0..3) > 0;
    let most = cluster.types.iter().map(|t| t.gpu_count()).min().expect("a type");
    let count = rng.random_range(1..=most);
    Allocation::new((0..n).map(|_| {
        let h = hosts.swap_remove(rng.random_range(0..hosts.len()));
        let own = if even { count } else { rng.random_range(1..=cluster.type_of(h).gpu_count()) };
        (h, GpuMask::first(own))
    }))
}

/// How far one odd reading moves other predictions of a random cluster: the most, in deviations, and where.
fn move_by_one(seed: u64) -> (f64, String) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let which = ["16xhgx-h100", "h100", "8xhgx-h100+8xa800", "16xa800"][rng.random_range(0..4)];
    let cluster = catalog::cluster(which).expect("built in");
    let n = rng.random_range(32..70);
    let mut rows = random_rows(&cluster, n, &mut rng);
    let clean = model(&cluster, &rows);
    let mut odd = random_rows(&cluster, 1, &mut rng).remove(0);
    let ln_factor: f64 =
        if seed.is_multiple_of(2) { rng.random_range(-9.0..-0.2) } else { rng.random_range(0.2..14.0) };
    odd.busbw = Bandwidth::from_gb_per_s(odd.busbw.gb_per_s() * ln_factor.exp());
    let own = odd.allocation.clone();
    rows.push(odd);
    let bad = model(&cluster, &rows);
    let mut others: Vec<Allocation> = rows[..n].iter().map(|m| m.allocation.clone()).collect();
    others.extend((0..60).map(|_| random_allocation(&cluster, &mut rng)));
    let all = others.iter().filter(|a| **a != own).map(|a| {
        let (p, q) = (clean.predict_allocation(SIZE, a), bad.predict_allocation(SIZE, a));
        // A reading far from all others may leave a prediction near it uncertain; then the deviation says so. A fit of so few readings
        // knows no prediction better than to 2 %, whatever it says.
        let std_gb_per_s = p.std_gb_per_s.max(q.std_gb_per_s).max(0.02 * p.busbw_gb_per_s);
        (
            moved(Prediction { std_gb_per_s, ..p }, q),
            format!("{which}, {n} readings and {own:?} x {}: {a:?} {p:?}, with it {q:?}", ln_factor.exp()),
        )
    });
    all.reduce(|a, b| if b.0 > a.0 { b } else { a }).expect("allocations")
}

#[test]
fn one_reading_moves_no_other_prediction_by_more_than_three_deviations() {
    let seeds: u64 = std::env::var("LINKWISE_ROBUST_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(40);
    let far: Vec<(u64, String)> = (0..seeds)
        .map(|s| (s, move_by_one(s)))
        .filter(|m| m.1.0 > 3.0)
        .map(|(s, m)| (s, format!("{} {}", m.0, m.1)))
        .collect();
    eprintln!("{} of {seeds}: {far:#?}", far.len());
    // Measured: 2 of 400.
    assert!(far.len() as u64 * 100 <= seeds, "{} of {seeds}: {far:#?}", far.len());
}

/// Every split of two to four hosts, as a table.
fn table(cluster: &Cluster) -> Vec<Measurement> {
    let physics = fabric::Fabric::new(cluster);
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let splits = (1..=8u32).flat_map(|a| (1..=a).flat_map(move |b| (0..=b).map(move |c| [a, b, c])));
    splits
        .step_by(2)
        .chain([[8, 8, 0]])
        .map(|s| {
            let a = Allocation::new(s.iter().enumerate().map(|(h, n)| (HostId(h as u32), GpuMask::first(*n as usize))));
            let v = physics.estimate(&a, OP, Bytes::mib(16)).busbw.gb_per_s() * (0.02 * normal(&mut rng)).exp();
            Measurement::new(a, OP, Bytes::mib(16), Bandwidth::from_gb_per_s(v), Source::Simulated)
        })
        .filter(|m| m.allocation.host_count() > 1)
        .collect()
}

#[test]
fn one_absurd_reading_of_two_hosts_does_not_change_two_others() {
    let cluster = catalog::cluster("h100").expect("built in");
    let mut rows = table(&cluster);
    let size = Bytes::mib(16);
    let before = model(&cluster, &rows).predict_allocation(size, &pair(1, 2));
    let odd = Measurement::new(pair(0, 3), OP, size, Bandwidth::from_gb_per_s(5.0), Source::Job);
    rows.push(odd);
    let after = model(&cluster, &rows).predict_allocation(size, &pair(1, 2));
    assert!(moved(before, after) < 0.5, "{before:?}, with 5 GB/s on two other hosts {after:?}");
}

#[test]
fn the_same_reading_twice_is_one_reading() {
    let (fleet, mut rows) = pairs(9);
    let a = pair(2, 11);
    rows.push(reading(a.clone(), 300.0));
    rows.push(reading(a.clone(), 440.0));
    let once = model(&fleet.cluster, &rows);
    rows.push(rows[rows.len() - 2].clone());
    let twice = model(&fleet.cluster, &rows);
    assert_eq!(once.predict_allocation(SIZE, &a), twice.predict_allocation(SIZE, &a));
    let mut learned = once.clone();
    let other = pair(4, 13);
    assert!(learned.update(&other, SIZE, 430.0));
    let first = learned.predict_allocation(SIZE, &other);
    assert!(learned.update(&other, SIZE, 430.0));
    assert_eq!(first, learned.predict_allocation(SIZE, &other), "the same value is learned twice");
}

/// Readings of 40 random allocations of 16 hosts without whole pairs, and what two more of whole pairs are: as the physics says.
fn few_pairs(seed: u64) -> (Cluster, Vec<Measurement>) {
    let cluster = catalog::cluster("16xhgx-h100").expect("built in");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let is_pair = |m: &Measurement| m.allocation.parts().len() == 2 && m.allocation.gpu_count() == 16;
    let mut rows = random_rows(&cluster, 60, &mut rng);
    rows.retain(|m| !is_pair(m));
    rows.truncate(40);
    let physics = fabric::Fabric::new(&cluster);
    rows.extend([pair(0, 1), pair(2, 3)].map(|a| {
        let v = physics.estimate(&a, OP, SIZE).busbw.gb_per_s() * (0.02 * normal(&mut rng)).exp();
        reading(a, v)
    }));
    (cluster, rows)
}

#[test]
fn readings_of_one_split_that_agree_on_separate_hosts_are_believed_one_by_one() {
    for (seed, share) in [(1, 0.6), (2, 0.6), (3, 0.8), (4, 1.4), (5, 0.3)] {
        let (cluster, rows) = few_pairs(seed);
        let clean = model(&cluster, &rows);
        let unread = pair(14, 15);
        let before = clean.predict_allocation(SIZE, &unread).busbw_gb_per_s;
        let mut learned = clean.clone();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for (n, host) in (0..5).map(|i| 4 + 2 * i).enumerate() {
            let a = pair(host, host + 1);
            let v = clean.predict_allocation(SIZE, &a).busbw_gb_per_s * share * (0.01 * normal(&mut rng)).exp();
            assert!(learned.update(&a, SIZE, v));
            let moved = learned.predict_allocation(SIZE, &unread).busbw_gb_per_s / before;
            if n == 0 {
                assert!(
                    (moved - 1.0).abs() < 0.08,
                    "seed {seed}: one reading at {share} moved another pair to {moved}"
                );
            }
        }
        let after = learned.predict_allocation(SIZE, &unread).busbw_gb_per_s / before;
        assert!((after / share - 1.0).abs() < 0.15, "seed {seed}: five jobs got {share}, the model says {after}");
        // Other splits stay what their own readings say.
        for m in rows.iter().filter(|m| m.allocation.gpu_count() != 16) {
            let (p, q) =
                (clean.predict_allocation(SIZE, &m.allocation), learned.predict_allocation(SIZE, &m.allocation));
            let off = |p: Prediction| (p.busbw_gb_per_s / m.busbw.gb_per_s()).ln().abs();
            assert!(off(q) < off(p) + 0.1, "seed {seed}: {m:?}: {p:?}, then {q:?}");
        }
    }
}

#[test]
fn readings_that_agree_on_one_host_are_not_believed_of_others() {
    let (cluster, rows) = few_pairs(6);
    let clean = model(&cluster, &rows);
    let mut learned = clean.clone();
    for other in 5..12 {
        let a = pair(4, other);
        let v = clean.predict_allocation(SIZE, &a).busbw_gb_per_s * 0.6;
        learned.update(&a, SIZE, v);
    }
    let unread = pair(14, 15);
    let (p, q) = (clean.predict_allocation(SIZE, &unread), learned.predict_allocation(SIZE, &unread));
    assert!((q.busbw_gb_per_s / p.busbw_gb_per_s - 1.0).abs() < 0.1, "{p:?}, with a slow host {q:?}");
}

#[test]
fn pairs_of_two_kinds_do_not_turn_the_others_with_every_reading() {
    let cluster = catalog::cluster("64xhgx-h100").expect("built in");
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut rows = random_rows(&cluster, 40, &mut rng);
    let physics = fabric::Fabric::new(&cluster);
    rows.extend((0..3).map(|i| {
        let a = pair(2 * i, 2 * i + 1);
        let v = physics.estimate(&a, OP, SIZE).busbw.gb_per_s();
        reading(a, v)
    }));
    let clean = model(&cluster, &rows);
    let unread = pair(62, 63);
    let before = clean.predict_allocation(SIZE, &unread).busbw_gb_per_s;
    let (mut learned, mut turns, mut last) = (clean, 0, 1.0f64);
    for i in 3..30 {
        let share = if i % 2 == 0 { 0.6 } else { 1.0 };
        learned.update(&pair(2 * i, 2 * i + 1), SIZE, share * before);
        let now = learned.predict_allocation(SIZE, &unread).busbw_gb_per_s / before;
        turns += u32::from((now / last).ln().abs() > 0.2);
        last = now;
    }
    assert!(turns <= 1, "{turns} turns in 27 readings");
}
