//! Accuracy of every kind of model on the published H100 tables:
//! `cargo run -p papers --example networks -- [16mib|2gib] [samples] [seeds] [random|published] [kind ...]`

#[path = "../tests/common/tables.rs"]
mod common;

use papers::network::Training;
use papers::network::kinds::{LINEAR, NetworkKind, TRANSFORMER, TRANSFORMER_LITEGD, TRANSFORMER_NAIVE};
use predict::accuracy::{accuracy, bandpilot_design, compared, random_subsets, shuffle};
use predict::{BandwidthModel, FitOptions, Kind, Learner, fit};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::collections::HashSet;
use topology::{Allocation, catalog};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let size = args.first().map_or("16mib", String::as_str);
    let samples: usize = args.get(1).and_then(|s| s.parse().ok()).unwrap_or(250);
    let seeds: u64 = args.get(2).and_then(|s| s.parse().ok()).unwrap_or(3);
    let published = args.get(3).is_some_and(|d| d == "published");
    let kinds: Vec<&str> = args.iter().skip(4).map(String::as_str).collect();
    let cluster = catalog::cluster("h100").expect("built in");
    let Some(tables) = common::h100("networks", size, &cluster) else { return };
    println!("{size}, {samples} samples; R2 / MAPE % / MAE GB/s on random subsets, on splits not seen, on decisions");
    let learners = [&TRANSFORMER, &TRANSFORMER_LITEGD, &TRANSFORMER_NAIVE, &LINEAR];
    let all = [Kind::Bound, Kind::Gp, Kind::Nccl].into_iter().chain(learners.map(|l| Kind::Learned(l)));
    for kind in all.filter(|k| kinds.is_empty() || kinds.contains(&k.name())) {
        let learner = learners.into_iter().find(|l| l.name() == kind.name());
        let network = learner.is_some() && kind.name() != "linear";
        for logarithm in [true, false] {
            if !logarithm && !network {
                continue;
            }
            for seed in 0..seeds {
                // The requested number of the table's rows.
                let draws = if published { bandpilot_design } else { random_subsets };
                let mut train = tables.truths(draws(&cluster, samples * 3, 1000 + seed));
                shuffle(&mut train, &mut ChaCha8Rng::seed_from_u64(seed));
                train.truncate(samples);
                let seen: HashSet<String> = train.iter().map(|r| Allocation::split(&r.0)).collect();
                let mut rows = tables.intra_rows();
                rows.extend(tables.rows(&train));
                let training = Training { logarithm, ..Training::default() };
                let learner = learner.map(|l| NetworkKind { training, ..*l });
                let kind = learner.as_ref().map_or(kind, |l| Kind::Learned(l));
                let start = std::time::Instant::now();
                let (model, report) = match fit(&cluster, &rows, &FitOptions::of(kind).seed(seed)) {
                    Ok(m) => m,
                    Err(e) => {
                        println!("{}: {e}", kind.name());
                        continue;
                    }
                };
                let seconds = start.elapsed().as_secs_f64();
                let random = tables.truths(random_subsets(&cluster, 2500, 77));
                let unseen: Vec<_> = random.iter().filter(|r| !seen.contains(&r.0.split())).cloned().collect();
                let decisions = tables.truths(compared(&cluster, model.share_table(tables.size), 2500, 78));
                let text = [random, unseen, decisions].map(|rows| match accuracy(&model, tables.size, &rows) {
                    Some(a) => format!("{:6.3} {:5.1} {:5.2}", a.r2, a.mape_percent, a.mae_gb_per_s),
                    None => "-".into(),
                });
                let epochs: Vec<_> = report.training.iter().map(|p| (p.epochs, p.best_epoch)).collect();
                let scale = if logarithm { "log" } else { "raw" };
                println!("{:18} {scale} seed {seed}: {}  {seconds:.1} s {epochs:?}", kind.name(), text.join(" | "));
            }
        }
    }
}
