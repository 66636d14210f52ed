//! The agent in a real Slurm: policies and reasons, a trace of jobs with and without linkwise, daemons that are killed, accounting.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/slurm/mod.rs"]
mod lab;

mod accounting;
mod bench;
mod choices;
mod faults;
mod files;
mod ranks;
mod rules;
mod server;

use common::{linkwise, said};
use lab::{Lab, Setup};

/// Every job that ends is one line of this file.
const ACCOUNTING: &str = "JobCompType=jobcomp/filetxt\nJobCompLoc=AT/log/jobcomp\nMinJobAge=3600\n";

fn setup(nodes: usize, leaf: usize) -> Setup {
    Setup { nodes, leaf, config: ACCOUNTING.into(), ..Setup::default() }
}

/// Number of a setting of `scripts/bench-slurm.sh` and `scripts/slurm-kills.sh`.
fn number(name: &str, without: usize) -> usize {
    let name = format!("LINKWISE_TEST_SLURM_{name}");
    std::env::var(&name).map_or(without, |v| v.parse().unwrap_or_else(|_| panic!("{name}={v} is no number")))
}

/// A lab, or a visible line that the test is skipped.
fn lab(test: &str, setup: Setup) -> Option<Lab> {
    Lab::start(setup).map_err(|why| eprintln!("SKIP {test}: {why}")).ok()
}

/// A command of linkwise in the lab: exit code, standard output, standard error.
fn in_lab(lab: &Lab, args: &[&str]) -> (i32, String, String) {
    let mut c = linkwise("slurm", args);
    c.env("SLURM_CONF", lab.at("etc/slurm.conf"));
    said(c)
}
