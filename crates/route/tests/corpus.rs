//! Replays the fuzz targets' hand-written corpora without a fuzzer, also with cut and changed characters.

use route::network::LinkOverride;
use route::read::{self, DispatchLayout};
use route::traffic::TrafficShape;
use route::{Demand, PlanError, Planner, RoutingNetwork, RoutingOptions, builtin};
use std::path::PathBuf;

fn corpus(target: &str) -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let name = |p: &PathBuf| p.file_name().unwrap().to_string_lossy().into_owned();
    files.iter().map(|p| (name(p), std::fs::read_to_string(p).unwrap())).collect()
}

/// Runs every reader on one text and plans each demand of 8 ranks. Returns the number of readers that accept the text.
fn read_all(text: &str) -> usize {
    let results = [read::csv(text, "f"), read::json(text, "f"), read::param(&[("f".into(), text.into())], 0)];
    let routing = read::esft(text, "f", 64, 2)
        .map(|r| r.demand(&DispatchLayout { ranks: 8, bytes_per_token: 9, tokens: None }).unwrap());
    let all = results.into_iter().chain([routing]);
    all.map(|r| match r {
        Ok(d) => {
            plan(&d);
            1
        }
        Err(e) => {
            assert!(e.line() >= 1 && e.column() >= 1 && !e.message().is_empty() && !e.remedy().is_empty());
            0
        }
    })
    .sum()
}

fn plan(demand: &Demand) {
    if demand.ranks() == 8 {
        let net = RoutingNetwork::of(&builtin::cluster("rails2x4").unwrap(), &RoutingOptions::default()).unwrap();
        Planner::default().plan(&net, demand).unwrap();
    }
}

#[test]
fn every_demand_of_the_corpus_is_read_by_one_reader() {
    for (name, text) in corpus("route_demand") {
        assert_eq!(read_all(&text), 1, "{name}");
    }
}

#[test]
fn cuts_and_flips_of_the_corpus_never_panic() {
    for (_, text) in corpus("route_demand") {
        for at in 0..text.len() {
            if text.is_char_boundary(at) {
                read_all(&text[..at]);
                for c in ["", "-", "9999999999999999999", "\t", "[", "\u{fffd}"] {
                    read_all(&format!("{}{c}{}", &text[..at], &text[(at + 1).min(text.len())..]));
                }
            }
        }
    }
}

#[test]
fn links_of_the_corpus_make_networks_that_plan_or_give_an_error() {
    let mut outcomes = Vec::new();
    for (name, text) in corpus("route_link") {
        let overrides: Vec<LinkOverride> = text.lines().map(|l| l.parse().unwrap()).collect();
        for cluster in ["mesh4", "rails2x4"] {
            let known: Vec<LinkOverride> = overrides
                .iter()
                .filter(|o| cluster != "mesh4" || !format!("{o:?}").contains("rail"))
                .cloned()
                .collect();
            let options = RoutingOptions { overrides: known, ..RoutingOptions::default() };
            let net = match RoutingNetwork::of(&builtin::cluster(cluster).unwrap(), &options) {
                Ok(net) => net,
                Err(e) => {
                    assert!(e.to_string().contains("no link goes from"), "{name}: {e}");
                    continue;
                }
            };
            match Planner::default().plan(&net, &TrafficShape::Random.demand(net.rank_count(), 1 << 26, 1)) {
                Ok(plan) => outcomes.push(plan.congestion_s.is_finite()),
                Err(PlanError::NoPath { .. }) => outcomes.push(false),
                Err(e) => panic!("{name}: {e}"),
            }
        }
    }
    assert!(outcomes.contains(&true));
    for bad in [
        "",
        "n0:0",
        "n0:0>n0:1",
        "n0:0>n0:1=",
        "n0:0>n0:1=x",
        "n0:0>n0:1=-1",
        "n0:0>n0:1=NaN",
        "n0:0>n0:1=1e300",
        "=3",
        "a>b=inf",
    ] {
        assert!(bad.parse::<LinkOverride>().is_err(), "{bad}");
    }
}
