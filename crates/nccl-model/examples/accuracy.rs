//! Error of the model on the published four-host H100 table (all-reduce of 2 GiB and 16 MiB), and the fit of its constants.
//!
//! `LINKWISE_DATA=... cargo run -p nccl-model --example accuracy -- [--nccl 2.27] [--fit] [--worst]`. Without `--fit` it compares the shipped
//! constants with the rows that they were fitted on. With `--fit` it fits constants on every second row and compares them with the other rows,
//! both ways, then fits them on all rows.
//! The table is sorted by GPUs and gives neither the NCCL release nor the order of hosts. The example assumes 2.27 and the largest count first.

use nccl_model::{Communicator, LoadConstants};
use topology::nccl::Version;
use topology::{Collective, GpuMask, HostId};

struct Row {
    counts: Vec<usize>,
    communicator: Communicator,
    size: u64,
    measured: f64,
}

impl Row {
    fn error(&self, k: &LoadConstants) -> f64 {
        let got = self.communicator.busbw_with(Collective::AllReduce, self.size, k);
        got.map_or(1.0, |g| g.busbw.gb_per_s() / self.measured - 1.0)
    }
}

/// Mean of the relative errors plus half of their root mean square.
fn loss(rows: &[&Row], k: &LoadConstants) -> f64 {
    let errors: Vec<f64> = rows.iter().map(|r| r.error(k).abs().min(0.4)).collect();
    let n = errors.len() as f64;
    errors.iter().sum::<f64>() / n + 0.5 * (errors.iter().map(|e| e * e).sum::<f64>() / n).sqrt()
}

type Field = fn(&mut LoadConstants) -> &mut f64;
const FIELDS: [Field; 11] = [
    |k| &mut k.nic,
    |k| &mut k.channel_gb_per_s,
    |k| &mut k.holding,
    |k| &mut k.tree,
    |k| &mut k.nvls_tree_gb_per_s,
    |k| &mut k.nvls_tree_many,
    |k| &mut k.start_us,
    |k| &mut k.start_over_latency,
    |k| &mut k.nvls_tree_start_us,
    |k| &mut k.nvls_tree_level_us,
    |k| &mut k.tree_packets,
];

/// Coordinate descent: changes one constant after another and halves the step when no change helps.
fn fit(rows: &[&Row]) -> LoadConstants {
    let mut best = LoadConstants::default();
    let mut least = loss(rows, &best);
    let mut step = 0.04;
    while step > 0.002 {
        let before = least;
        for field in FIELDS {
            for factor in [1.0 + step, 1.0 / (1.0 + step)] {
                let mut next = best;
                *field(&mut next) *= factor;
                let l = loss(rows, &next);
                if l < least {
                    (least, best) = (l, next);
                }
            }
        }
        if before - least < 1e-5 {
            step /= 2.0;
        }
    }
    best
}

fn print(title: &str, rows: &[&Row], k: &LoadConstants) {
    for size in [2u64 << 30, 16 << 20] {
        for hosts in [0, 2, 3, 4] {
            let of = rows.iter().filter(|r| r.size == size && (hosts == 0 || r.counts.len() == hosts));
            let mut errors: Vec<f64> = of.map(|r| r.error(k).abs()).collect();
            if errors.is_empty() {
                continue;
            }
            errors.sort_by(f64::total_cmp);
            let at = |q: f64| 100.0 * errors[((errors.len() - 1) as f64 * q) as usize];
            let hosts = if hosts == 0 { "all".into() } else { format!("{hosts} hosts") };
            println!(
                "{title:24} {:>6} {hosts:8} rows {:4} median {:4.1} % p90 {:5.1} % max {:5.1} %",
                topology::Bytes(size).to_string(),
                errors.len(),
                at(0.5),
                at(0.9),
                at(1.0)
            );
        }
    }
}

fn main() -> Result<(), String> {
    let args: Vec<String> = std::env::args().collect();
    let after = |name: &str| args.iter().position(|a| a == name).and_then(|i| args.get(i + 1));
    let version: Version = after("--nccl").map_or("2.27", String::as_str).parse()?;
    let folder = std::env::var("LINKWISE_DATA")
        .map_err(|_| "set LINKWISE_DATA to the folder of the published tables".to_owned())?;
    let cluster = topology::catalog::cluster("h100").ok_or("no h100 cluster in the catalog")?;
    let mut rows = Vec::new();
    for (file, size) in [("multihost_h100_2gib_half.csv", 2u64 << 30), ("multihost_h100_16mib.csv", 16 << 20)] {
        let path = format!("{folder}/bandpilot/{file}");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        for line in text.lines().skip(1) {
            let (counts, rest) = line.split_once(',').ok_or("a row without a comma")?;
            let counts: Vec<usize> = counts.split('+').map(|c| c.parse().unwrap_or(0)).filter(|c| *c > 0).collect();
            let measured: f64 =
                rest.split(',').next_back().and_then(|v| v.trim().parse().ok()).ok_or("a row without a number")?;
            if counts.len() < 2 {
                continue;
            }
            let order: Vec<_> =
                counts.iter().enumerate().map(|(i, c)| (HostId(i as u32), GpuMask::first(*c))).collect();
            let communicator = Communicator::build(version, &cluster, &order).map_err(|e| e.to_string())?;
            rows.push(Row { counts, communicator, size, measured });
        }
    }
    let all: Vec<&Row> = rows.iter().collect();
    print("as shipped", &all, &LoadConstants::default());
    if args.iter().any(|a| a == "--worst") {
        let mut worst = all.clone();
        let k = LoadConstants::default();
        worst.sort_by(|a, b| b.error(&k).abs().total_cmp(&a.error(&k).abs()));
        for r in worst.iter().filter(|r| r.size == 2 << 30).take(25) {
            let got = r.communicator.busbw_with(Collective::AllReduce, r.size, &k);
            println!("{:?} measured {} model {got:?}", r.counts, r.measured);
        }
    }
    if args.iter().any(|a| a == "--fit") {
        let part =
            |odd: usize| -> Vec<&Row> { rows.iter().enumerate().filter(|(i, _)| i % 2 == odd).map(|r| r.1).collect() };
        for (fitted, other) in [(0, 1), (1, 0)] {
            let k = fit(&part(fitted));
            print(["even rows, fit on odd", "odd rows, fit on even"][fitted], &part(other), &k);
        }
        println!("fitted on all rows: {:?}", fit(&all));
    }
    Ok(())
}
