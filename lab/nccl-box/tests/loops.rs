//! linkwise's loops with the real NCCL library in a box, where the truth is known: mode `adaptive` between two hosts, where a tree sends fewer bytes over
//! the rails than the ring that NCCL takes; and placement on hosts one of which has a slow NIC.

use nccl_bench::Bench;
use nccl_box::placement::{Site, markdown, measure_fit_place};
use nccl_box::tuning::{ARMS, Chooser, Loop, run};
use netns::{NetBox, or_skip};
use std::sync::{Mutex, PoisonError};

/// One test at a time: each keeps all cores busy.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn the_arm_that_shortens_the_steps_of_real_nccl_is_found_and_every_rank_launches_it() {
    let name = "the_arm_that_shortens_the_steps_of_real_nccl_is_found_and_every_rank_launches_it";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(netbox) = or_skip(name, NetBox::rails(2, 1, 100)) else { return };
    let bench = match Bench::new() {
        Ok(b) => b,
        Err(e) => {
            assert!(e.is_about_this_machine(), "{e}");
            eprintln!("SKIP {name}: {e}");
            return;
        }
    };
    const PLUGIN: &str = "liblinkwise_nccl.so";
    let plugin = nccl_box::built(PLUGIN).expect("cargo builds the plugin with the workspace").join(PLUGIN);
    let long = Loop { hosts: 2, gpus: 2, size_bytes: 256 << 10, step_calls: 1, steps: 700, release: "2.28.9".into() };
    let short = Loop { steps: 12, ..long.clone() };
    let median = |s: &[f64]| stats::upper_median(s);
    let known = |chooser| run(&bench, &netbox, &short, chooser, &plugin, || {});
    let alone = match known(Chooser::Nccl) {
        Ok(r) => r,
        Err(e) => {
            assert!(e.is_about_this_machine(), "{e}");
            eprintln!("SKIP {name}: {e}");
            return;
        }
    };
    let tree = ARMS.iter().position(|a| *a == ("Tree", "Simple")).unwrap();
    let best = known(Chooser::Forced(tree)).unwrap();
    let ratio = median(&best.step_s[2..]) / median(&alone.step_s[2..]);
    println!("a tree alone: {ratio:.2} of NCCL's choice");
    assert!(ratio < 0.85, "the case must have a better arm: {ratio}");
    let found = run(&bench, &netbox, &long, Chooser::Adaptive(500), &plugin, || {}).unwrap();
    assert_eq!((found.wrong_bytes, found.differing), (0, 0));
    assert_eq!(found.arms.len(), long.steps as usize, "every rank launched every call");
    assert_eq!(found.last_arm(), Some("TREE/SIMPLE"));
    let of = |arm: &str| -> Vec<f64> {
        found.arms.iter().zip(&found.step_s).skip(2).filter(|(a, _)| *a == arm).map(|(_, s)| *s).collect()
    };
    let (auto, tree) = (of(&found.arms[0]), of("TREE/SIMPLE"));
    println!("{} steps with AUTO, {} with the tree: {:.2}", auto.len(), tree.len(), median(&tree) / median(&auto));
    assert!(median(&tree) < 0.9 * median(&auto), "measured in the same run");
}

#[test]
fn readings_of_real_nccl_find_the_slow_nic_and_jobs_avoid_it() {
    let name = "readings_of_real_nccl_find_the_slow_nic_and_jobs_avoid_it";
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let site = Site { hosts: 6, per_leaf: 3, mbit: 100, uplink_mbit: 60, slow: (1, 30) };
    let Some(netbox) = or_skip(name, site.netbox()) else { return };
    drop(netbox);
    let Some(programs) = nccl_box::built("linkwise") else {
        eprintln!("SKIP {name}: the command is not built: cargo build --workspace");
        return;
    };
    if let Some(e) = Bench::new().err() {
        assert!(e.is_about_this_machine(), "{e}");
        eprintln!("SKIP {name}: {e}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // All hosts; the even split takes n0 and n1. Two hosts of each leaf; n1 is the only one of its leaf that is free.
    let requests = [(vec![4; 6], 8), (vec![4, 4, 0, 4, 4, 0], 8), (vec![0, 4, 0, 4, 4, 0], 8)];
    let learned = measure_fit_place(folder.path(), &programs, &site, (24, 512 << 10), &requests).unwrap();
    print!("{}{}", learned.fit, markdown(&learned.placed));
    // 24 readings tell the slow NIC from slow uplinks in most runs, not in all; they never accuse another host.
    let accused = learned.fit.split("slow: the NICs of ").nth(1);
    assert!(accused.is_none_or(|a| a.starts_with("n1")), "{}", learned.fit);
    for p in &learned.placed {
        assert!(p.chosen.iter().all(|(host, _)| *host != 1), "{p:?}");
        let ratio = p.chosen_gb_per_s / p.even_gb_per_s;
        // The slow NIC has 0.3 of the rate. The last even split avoids it by chance.
        let slow = p.even.iter().any(|(host, _)| *host == 1);
        assert!(if slow { ratio > 2.0 } else { ratio > 0.85 }, "{p:?}");
    }
    assert!(learned.placed[0].even.iter().any(|(host, _)| *host == 1), "the even split is the case's point");
}
