//! How far the model is from the published four-host H100 table (all-reduce of 2 GiB and 16 MiB), without using it.
//!
//! `LINKWISE_DATA=... cargo run -p nccl-model --example accuracy [NCCL version]`. The table is sorted by GPUs and holds neither the
//! NCCL release nor the order of hosts: 2.27 and the largest count first are taken.

use nccl_model::{Communicator, LoadConstants};
use topology::nccl::Version;
use topology::{Collective, GpuMask, HostId};

fn main() -> Result<(), String> {
    let version: Version = std::env::args().nth(1).unwrap_or_else(|| "2.27".into()).parse()?;
    let folder = std::env::var("LINKWISE_DATA")
        .map_err(|_| "set LINKWISE_DATA to the folder of the published tables".to_owned())?;
    let cluster = topology::catalog::cluster("h100").ok_or("no h100 cluster in the catalog")?;
    for (file, size) in [("multihost_h100_2gib_half.csv", 2u64 << 30), ("multihost_h100_16mib.csv", 16 << 20)] {
        let path = format!("{folder}/bandpilot/{file}");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
        let mut rows = Vec::new();
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
            let comm = Communicator::build(version, &cluster, &order).map_err(|e| e.to_string())?;
            let got = comm.busbw_with(Collective::AllReduce, size, &LoadConstants::default()).ok_or("no bandwidth")?;
            rows.push((counts, measured, got));
        }
        for hosts in [0, 2, 3, 4] {
            let mut errors: Vec<f64> = rows
                .iter()
                .filter(|r| hosts == 0 || r.0.len() == hosts)
                .map(|(_, m, g)| (g.busbw.gb_per_s() / m - 1.0).abs())
                .collect();
            errors.sort_by(f64::total_cmp);
            let at = |q: f64| 100.0 * errors[((errors.len() - 1) as f64 * q) as usize];
            println!(
                "{file} hosts {hosts}: rows {} median {:.1} % p90 {:.1} % max {:.1} %",
                errors.len(),
                at(0.5),
                at(0.9),
                at(1.0)
            );
        }
        if std::env::args().nth(2).is_some() {
            rows.sort_by(|a, b| {
                (b.2.busbw.gb_per_s() / b.1).ln().abs().total_cmp(&(a.2.busbw.gb_per_s() / a.1).ln().abs())
            });
            for (c, m, g) in rows.iter().take(40) {
                println!("{c:?} measured {m} model {:.1} {:?}", g.busbw.gb_per_s(), g.limit);
            }
        }
    }
    Ok(())
}
