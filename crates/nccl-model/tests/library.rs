//! Compares the model with the real library, cell by cell. Skips if the library is unavailable.

#[allow(dead_code)]
mod common;

use common::{Scores, allocation, from_graphs, from_hosts, run};
use nccl_bench::{Bench, BenchReport};
use topology::catalog;

/// Sizes at which choices change.
const SIZES: [u64; 7] = [1 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 128 << 20, 2 << 30];

fn compare_both_levels(name: &str, version: &str, host: &str, text: &str) -> Option<(BenchReport, [Scores; 2])> {
    let cluster = catalog::cluster(&format!("4x{host}")).unwrap();
    let order = allocation(text);
    let version = version.parse().unwrap();
    match Bench::new().and_then(|b| run(&b, &cluster, &order, version, &SIZES)) {
        Ok(report) => {
            let scores = [from_graphs(&report, &cluster, &order), from_hosts(&report, &cluster, &order)];
            Some((report, scores))
        }
        Err(e) => {
            assert!(e.is_about_this_machine(), "{e}");
            eprintln!("SKIP {name}: {e}");
            None
        }
    }
}

#[test]
fn decisions_and_connections_of_uneven_hosts_are_the_librarys() {
    let name = "decisions_and_connections_of_uneven_hosts_are_the_librarys";
    // A host with an odd index whose rings cross NICs, before and after 2.28 changed which pairs of channels are swapped.
    for (version, host, text) in [
        ("2.24", "hgx-h100", "3+8"),
        ("2.28", "hgx-h100", "3+8"),
        ("2.30", "dgx-a100", "3+2"),
        ("2.32", "hgx-b200", "0.2.5+1.3"),
    ] {
        let Some((report, [graphs, hosts])) = compare_both_levels(name, version, host, text) else { return };
        for (from, s) in [("graphs", graphs), ("hosts", hosts)] {
            assert!(s.differences.is_empty(), "{version} {host} {text} from {from}: {:#?}", s.differences);
            assert!(s.cells.of >= 10 && s.channels.of == 5 * SIZES.len(), "{version} {host} {text}: {s:?}");
            assert!(from == "graphs" || s.rings.of == report.channels.coll as usize && s.trees.of > 0);
        }
    }
}

#[test]
fn a_wrong_model_is_detected() {
    let name = "a_wrong_model_is_detected";
    // The model of hosts in another order must differ from the library's report.
    let Some((report, _)) = compare_both_levels(name, "2.28", "hgx-h100", "3+8") else { return };
    let cluster = catalog::cluster("4xhgx-h100").unwrap();
    let other = from_hosts(&report, &cluster, &allocation("8+3"));
    assert!(other.rings.equal < other.rings.of && !other.differences.is_empty());
}
