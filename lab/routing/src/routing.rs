//! Real mixture-of-experts routing.

use super::sheet::{Cell, Sheet, ratio};
use super::{compare, network};
use console::Failure;
use files::read_text;
use route::read::{self, DispatchLayout, ExpertRouting};
use route::{Demand, Planner, RoutingNetwork, RoutingOptions, Rule, traffic};
use std::collections::BTreeMap;
use std::path::Path;

/// Experts of ESFT's model and of each of its tokens.
const EXPERTS: u32 = 64;
const PER_TOKEN: usize = 6;
/// Bytes of a token: hidden size 2048 in bf16.
const BYTES_PER_TOKEN: u64 = 4096;
/// Expert-parallel sizes and the cluster that stands for each.
const SIZES: [(usize, &str); 4] = [(4, "mesh4"), (8, "rails2x4"), (16, "rails4x4"), (32, "rails4x8")];

/// All routing files of a folder of public data, by name; empty if the folder has no `moe/esft`.
pub fn files(data: Option<&Path>) -> Result<Option<Vec<(String, ExpertRouting)>>, Failure> {
    let Some(root) = data.map(|d| d.join("moe").join("esft")).filter(|r| r.is_dir()) else { return Ok(None) };
    let mut found = Vec::new();
    let list = |dir: &Path| -> Result<Vec<std::path::PathBuf>, Failure> {
        let entries = std::fs::read_dir(dir).map_err(|e| Failure::file("read", dir, e))?;
        let mut all: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
        all.sort();
        Ok(all)
    };
    for domain in list(&root)?.into_iter().filter(|p| p.is_dir()) {
        for file in list(&domain)?.into_iter().filter(|p| p.extension().is_some_and(|e| e == "txt")) {
            let text = read_text(&file, read::FILE_SIZE_MAX)?;
            let short = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
            let routing = read::esft(&text, &short, EXPERTS, PER_TOKEN)?;
            found.push((short, routing));
        }
    }
    Ok(Some(found))
}

/// Largest over mean number of bytes that a rank receives, its own included.
fn receive_skew(d: &Demand) -> f64 {
    let n = d.ranks();
    let received: Vec<u64> = (0..n).map(|j| (0..n).map(|i| d.get(i, j)).sum()).collect();
    received.iter().copied().max().unwrap_or(0) as f64 * n as f64 / (received.iter().sum::<u64>() as f64).max(1.0)
}

/// The static rules of the table, in the order of its columns.
const RULES: [Rule; 4] = [Rule::DestinationRail, Rule::SourceRail, Rule::Stripe, Rule::TwoRails];

/// The traffic matrices of every layer of real routing, all with the same number of tokens.
fn real_demands(found: &[(String, ExpertRouting)], ranks: usize) -> Result<Vec<Demand>, Failure> {
    let layout = DispatchLayout { ranks, bytes_per_token: BYTES_PER_TOKEN, tokens: Some(64 << 10) };
    let demand =
        |(name, r): &(String, ExpertRouting)| r.demand(&layout).map_err(|e| Failure::input(format!("{name}: {e}")));
    found.iter().map(demand).collect()
}

/// One row of the table: for each rule and for linkwise the mean (worst) time divided by the optimum, and the rule that
/// is best most often.
fn row(planner: &mut Planner, net: &RoutingNetwork, label: &str, demands: &[Demand]) -> Result<Vec<Cell>, Failure> {
    let mut over_optimum: [Vec<f64>; RULES.len() + 1] = Default::default();
    let mut skew = 0.0;
    let mut best = BTreeMap::new();
    for d in demands {
        let c = compare(planner, net, d)?;
        let times = RULES.into_iter().map(|r| c.rule(r)).chain([c.linkwise]);
        over_optimum.iter_mut().zip(times).for_each(|(v, x)| v.push(x));
        skew += receive_skew(d) / demands.len() as f64;
        *best.entry(c.best_rule().0.name()).or_insert(0) += 1;
    }
    let both = |v: &Vec<f64>| {
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        Cell::from(format!("{mean:.2} ({:.2})", v.iter().copied().fold(0.0, f64::max)))
    };
    let most = best.iter().max_by_key(|b| *b.1).map_or("-", |b| b.0);
    let ranks = Cell::Number(net.rank_count() as f64, 0);
    let mut row = vec![ranks, Cell::from(label), Cell::Number(demands.len() as f64, 0), ratio(skew)];
    row.extend(over_optimum.iter().map(both));
    row.push(Cell::from(most));
    Ok(row)
}

/// Compares real routing with the synthetic skew.
pub fn routing(data: Option<&Path>, wanted: bool) -> Result<Sheet, Failure> {
    let columns = [
        "ranks",
        "routing",
        "cases",
        "receive skew",
        "destination-rail",
        "source-rail",
        "stripe",
        "two-rails",
        "linkwise",
        "best static",
    ];
    let mut sheet = Sheet::new(
        "routing",
        "Real mixture-of-experts routing (ESFT) and a hot rank: mean (worst) time over the optimum",
        &columns,
    );
    let found = match files(data)? {
        Some(found) => found,
        None if wanted => {
            return Err(Failure::input(
                "no folder of public data with moe/esft; name it with --data or LINKWISE_DATA (docs/data.md)",
            ));
        }
        None => {
            sheet.note("SKIP routing: no folder of public data with moe/esft; name it with --data or LINKWISE_DATA (docs/data.md).");
            return Ok(sheet);
        }
    };
    let mut planner = Planner::default();
    for (ep, cluster) in SIZES {
        let net = network(cluster, &RoutingOptions::default())?;
        let real = real_demands(&found, ep)?;
        let total = real.first().map_or(0, Demand::total) / ep as u64;
        let hot = [0.4, 0.7, 0.9].map(|r| traffic::hotspot(ep, total, r, 0));
        for (label, demands) in [("real", &real[..]), ("hot rank 0.4 to 0.9", &hot[..])] {
            sheet.row(row(&mut planner, &net, label, demands)?);
        }
    }
    sheet.note(format!(
        "{} layers of ESFT ({}), experts in contiguous blocks, 65,536 tokens of {BYTES_PER_TOKEN} bytes (repeated), a token once to each rank. Ranks are \
         placed on {}.",
        found.len(),
        found.iter().map(|f| f.0.as_str()).collect::<Vec<_>>().join(", "),
        SIZES.map(|s| format!("{} ({})", s.1, s.0)).join(", ")
    ));
    sheet.note("At 8 ranks the busiest receiver gets 1.1 to 1.6 times the mean with real routing, and 5 to 7 times the mean with a hot rank of 0.7 and more. The gain on real traffic is in the `real` rows.");
    Ok(sheet)
}
