//! Cost of predictions of the papers' networks and of a Gaussian process: one candidate, and a batch of an exact search.

use papers::network::Training;
use papers::network::kinds::{LINEAR, NetworkKind, TRANSFORMER, TRANSFORMER_LITEGD, TRANSFORMER_NAIVE};
use predict::accuracy::random_subsets;
use predict::{BandwidthModel, Candidates, FitOptions, Kind, Learner, Model, fit};
use store::{Measurement, Source};
use topology::{Bandwidth, Bytes, Collective, catalog};

const SIZE: Bytes = Bytes::gib(2);
const KINDS: [&str; 5] = ["transformer", "transformer-litegd", "transformer-naive", "linear", "gp"];

fn main() {
    divan::main();
}

/// A model of a hundred simulated readings; networks train a few epochs only, because the cost of inference does not depend on training.
fn model(kind: &str, epochs: usize) -> Model {
    let cluster = catalog::cluster("h100").expect("built in");
    let physics = fabric::Fabric::new(&cluster);
    let rows: Vec<Measurement> = random_subsets(&cluster, 100, 1)
        .into_iter()
        .map(|a| {
            let v = physics.estimate(&a, Collective::AllReduce, SIZE).busbw;
            let v = Bandwidth::from_gb_per_s(v.gb_per_s() * (1.0 + 0.01 * (a.gpu_count() % 5) as f64));
            Measurement::new(a, Collective::AllReduce, SIZE, v, Source::Simulated)
        })
        .collect();
    let training = Training { epochs, patience: epochs, ..Training::default() };
    let networks = [&TRANSFORMER, &TRANSFORMER_LITEGD, &TRANSFORMER_NAIVE, &LINEAR];
    let learner = networks.into_iter().find(|n| n.name() == kind).map(|n| NetworkKind { training, ..*n });
    let kind = learner.as_ref().map_or(Kind::Gp, |l| Kind::Learned(l));
    fit(&cluster, &rows, &FitOptions::of(kind)).expect("fits").0
}

#[divan::bench(args = KINDS)]
fn one_candidate(bencher: divan::Bencher, kind: &str) {
    let m = model(kind, 2);
    let allocations = random_subsets(&catalog::cluster("h100").expect("built in"), 1, 2);
    let c = Candidates::of(m.share_table(SIZE), &allocations);
    bencher.bench_local(|| m.mean(SIZE, c.parts(0)));
}

#[divan::bench(args = KINDS)]
fn five_hundred_candidates(bencher: divan::Bencher, kind: &str) {
    let m = model(kind, 2);
    let allocations = random_subsets(&catalog::cluster("h100").expect("built in"), 500, 2);
    let c = Candidates::of(m.share_table(SIZE), &allocations);
    let mut out = Vec::new();
    bencher.bench_local(|| m.means(SIZE, &c, &mut out));
}

#[divan::bench(args = ["transformer", "transformer-litegd", "transformer-naive"], sample_count = 3, sample_size = 1)]
fn ten_epochs_of_a_hundred_readings(bencher: divan::Bencher, kind: &str) {
    bencher.bench_local(|| model(kind, 10));
}
