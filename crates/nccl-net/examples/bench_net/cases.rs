//! Traffic of the bench, and the least time that it can take.

use crate::{OVERHEAD, Options};
use netns::NetBox;
use rand::{RngExt, SeedableRng};
use route::read::{DispatchLayout, esft};

/// Experts of the model of the public routing files, and of each token.
const EXPERTS: u32 = 64;
const EXPERTS_PER_TOKEN: usize = 6;

/// Bytes from rank to rank, scaled so that the busiest host sends or receives `mb` megabytes. `experts:FILE` is the dispatch of a file of public
/// routing, `hot-rank:RATIO` sends this part of each rank's bytes to rank 0. Bytes inside a host do not count.
pub fn matrix(o: &Options, case: &str) -> Result<Vec<Vec<u64>>, String> {
    let n = o.hosts * o.local;
    let host = |r: usize| r / o.local;
    let mut m = match case.split_once(':') {
        Some(("experts", file)) => experts(file, n)?,
        Some(("hot-rank", ratio)) => {
            let ratio: f64 = ratio.parse().map_err(|e| format!("{case}: {e}"))?;
            let rest = (1.0 - ratio) / (n - 2).max(1) as f64;
            (0..n)
                .map(|i| {
                    (0..n)
                        .map(|j| {
                            if j == 0 {
                                ratio
                            } else if j == i {
                                0.0
                            } else {
                                rest
                            }
                        })
                        .collect()
                })
                .collect()
        }
        _ => synthetic(o, case)?,
    };
    for (i, row) in m.iter_mut().enumerate() {
        row.iter_mut().enumerate().filter(|(j, _)| host(*j) == host(i)).for_each(|(_, v)| *v = 0.0);
    }
    let of = |h: usize, sends: bool| -> f64 {
        let pairs = (0..n).flat_map(|i| (0..n).map(move |j| (i, j)));
        pairs.filter(|(i, j)| host(if sends { *i } else { *j }) == h).map(|(i, j)| m[i][j]).sum()
    };
    let top = (0..o.hosts).flat_map(|h| [of(h, true), of(h, false)]).fold(0.0, f64::max);
    Ok(m.iter().map(|r| r.iter().map(|v| (v / top * o.mb * 1e6) as u64 / 4 * 4).collect()).collect())
}

/// Tokens that the ranks send to the ranks of their experts.
fn experts(file: &str, ranks: usize) -> Result<Vec<Vec<f64>>, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {file}: {e}"))?;
    let routing = esft(&text, file, EXPERTS, EXPERTS_PER_TOKEN).map_err(|e| e.to_string())?;
    let layout = DispatchLayout { ranks, bytes_per_token: 1, tokens: Some(64 << 10) };
    let demand = routing.demand(&layout).map_err(|e| e.to_string())?;
    Ok((0..ranks).map(|i| (0..ranks).map(|j| demand.get(i, j) as f64).collect()).collect())
}

fn synthetic(o: &Options, case: &str) -> Result<Vec<Vec<f64>>, String> {
    let n = o.hosts * o.local;
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
    let first = |r: usize| r.is_multiple_of(o.local) && r / o.local < 2;
    let mut m = vec![vec![0.0; n]; n];
    for (i, row) in m.iter_mut().enumerate() {
        for (j, v) in row.iter_mut().enumerate().filter(|(j, _)| j / o.local != i / o.local) {
            *v = match case {
                "uniform" => 1.0,
                "hot-destination" if first(j) => 8.0,
                "hot-source" if first(i) => 8.0,
                "hot-destination" | "hot-source" => 0.4,
                "hot-pair" if first(i) && first(j) => 40.0,
                "hot-pair" => 0.2,
                "zipf" => rng.random_range(1e-3..1.0f64).powf(-1.0 / 0.9),
                _ => {
                    let all = "uniform, hot-destination, hot-source, hot-pair, zipf, hot-rank:RATIO, experts:FILE";
                    return Err(format!("`{case}` is none of {all}"));
                }
            };
        }
    }
    Ok(m)
}

/// The least time of a case, seconds: on rails, the bytes of the busiest host over all its rails; without a switch, the optimum of a linear program
/// over all walks (`crates/route`).
pub fn theory(o: &Options, case: &str, netbox: &NetBox) -> Result<f64, String> {
    let rate = f64::from(o.mbit) * 1e6 / 8.0 / OVERHEAD;
    if o.shape == "rails" {
        return Ok(o.mb * 1e6 / (rate * o.rails as f64));
    }
    let mut cluster = route::builtin::cluster("mesh4")
        .filter(|_| o.hosts <= 4 && o.local == 1)
        .ok_or("without a switch: 3x1 or 4x1")?;
    let kind = cluster.types.first_mut().ok_or("no host type")?;
    let n = kind.gpu_count();
    let cell = |i: usize, j: usize| match netbox.nic_to(i, j) {
        Some(_) if i != j => topology::Bandwidth::from_gb_per_s(rate / 1e6),
        _ => topology::Bandwidth::ZERO,
    };
    kind.p2p = Some((0..n).map(|i| (0..n).map(|j| cell(i, j)).collect()).collect());
    let net = route::RoutingNetwork::of(&cluster, &route::RoutingOptions::default()).map_err(|e| e.to_string())?;
    let mut demand = route::Demand::new(n).map_err(|e| e.to_string())?;
    for (i, row) in matrix(o, case)?.iter().enumerate() {
        for (j, bytes) in row.iter().enumerate() {
            demand.set(i, j, *bytes).map_err(|e| e.to_string())?;
        }
    }
    // The network's rates are in units of 1000 of the box's.
    route::exact::any_path_optimum_s(&net, &demand).map(|s| s * 1e3).map_err(|e| e.to_string())
}
