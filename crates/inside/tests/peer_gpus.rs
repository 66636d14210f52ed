//! Bytes between emulated GPUs of one host, over direct links and over peer GPUs. Needs a C compiler.

mod common;

use common::{Arm, Job, Run, Traffic};
use std::path::Path;

const PROGRAM: &str = env!("CARGO_BIN_EXE_linkwise-inside");
const CHUNK: usize = 32768;

fn skip<T>(test: &str, e: nccl_bench::BenchError) -> Option<T> {
    assert!(e.is_about_this_machine(), "{e}");
    eprintln!("SKIP {test}: {e}");
    None
}

/// Every byte arrives, and no faster than the links allow; how much slower is a matter of this machine's load.
#[test]
fn every_byte_arrives_over_direct_links_and_peer_gpus_within_the_rates_of_the_links() {
    let name = "every_byte_arrives_over_direct_links_and_peer_gpus_within_the_rates_of_the_links";
    for (cluster, traffic, arms) in [
        ("mesh4", Traffic::HotPair, &[Arm::Plan, Arm::Stripe][..]),
        ("mesh4", Traffic::Zipf, &[Arm::Plan]),
        ("cube8", Traffic::HotPair, &[Arm::Plan]),
    ] {
        let run = Run::new(cluster, traffic, 100.0, 0.3);
        for &arm in arms {
            let Some(o) = run.run(Path::new(PROGRAM), arm, 2, CHUNK).map_or_else(|e| skip(name, e), Some) else {
                return;
            };
            assert_eq!(o.wrong, 0, "{cluster} {traffic:?} {arm:?}");
            assert!(o.checked > 1_000_000, "{cluster} {traffic:?} {arm:?}: {} bytes", o.checked);
            let least = o.rounds_s.iter().copied().fold(f64::INFINITY, f64::min);
            assert!(least > 0.97 * run.theory_s, "{cluster} {traffic:?} {arm:?}: {least} s, {} s", run.theory_s);
        }
    }
}

/// The direct link alone needs 3 times the optimum of a mesh, or more; the plan is between them on any machine that keeps up at all.
#[test]
fn a_hot_pair_takes_less_time_over_peer_gpus_than_over_its_link() {
    let name = "a_hot_pair_takes_less_time_over_peer_gpus_than_over_its_link";
    let run = Run::new("mesh4", Traffic::HotPair, 50.0, 0.8);
    let time = |arm| run.run(Path::new(PROGRAM), arm, 2, CHUNK).map_or_else(|e| skip(name, e), Some);
    let (Some(direct), Some(plan)) = (time(Arm::Direct), time(Arm::Plan)) else { return };
    assert!(common::median(&plan.rounds_s) < common::median(&direct.rounds_s), "{plan:?} {direct:?}");
    assert_eq!((direct.wrong, plan.wrong), (0, 0));
}

#[test]
fn when_a_process_is_killed_the_others_end_with_an_error_that_names_it() {
    let name = "when_a_process_is_killed_the_others_end_with_an_error_that_names_it";
    let run = Run::new("mesh4", Traffic::HotPair, 5.0, 30.0);
    let Some(job) = Job::start(&run, Path::new(PROGRAM), Arm::Plan, 2, CHUNK).map_or_else(|e| skip(name, e), Some)
    else {
        return;
    };
    let mut children = job.children.into_iter();
    let (first, second, mut third) = (children.next().unwrap(), children.next().unwrap(), children.next().unwrap());
    std::thread::sleep(std::time::Duration::from_secs(2)); // while it joins or while bytes move: both end in an error
    third.0.kill();
    for rank in [first, second] {
        let out = rank.0.wait_with_output_here();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains("Died(2)"), "{said}");
    }
}
