//! Ranks on hosts that are network namespaces, whose control network is cut: the plugin itself over real TCP, while the collectives go on.

mod common;

use common::job::Job;
use netns::{NetBox, or_skip};
use serde_json::Value;
use std::time::Duration;

const RANKS: usize = 3;
const PAUSE: Duration = Duration::from_millis(2);

/// Arms with made-up times, close to each other: they are compared again and again.
const TIMES: &str = "AllReduce 20 TREE/LL 100\nAllReduce 20 TREE/LL128 99\nAllReduce 20 RING/SIMPLE 101\nnoise 0.3\n";

/// A job that tries arms, one rank per host.
fn job(test: &str, netbox: &NetBox, lead: &str) -> Option<Job> {
    let mut job = Job::new(test, RANKS)?;
    let [times, trace] = ["times", "trace"].map(|f| job.folder().join(f).to_str().unwrap().to_string());
    std::fs::write(&times, TIMES).unwrap();
    let rendezvous = format!("tcp:{}:4711", netbox.address(0, 0));
    for rank in 0..RANKS {
        let settings = [
            ("MODE", "adaptive"),
            ("RENDEZVOUS", rendezvous.as_str()),
            ("TOKEN", "a secret of this job"),
            ("LEAD", lead),
            ("EXPLORE", "all"),
            ("TRACE", trace.as_str()),
            ("TEST", "1"),
            ("TEST_REWARDS", times.as_str()),
        ];
        job.start(rank, PAUSE, &settings, |command| netbox.exec(rank, command));
    }
    job.until("arms are tried", |job| {
        let all = job.arms(1);
        all.iter().any(|a| *a != all[0])
    });
    Some(job)
}

/// What the traces of all ranks say.
#[derive(Debug)]
struct Said {
    epochs: usize,
    waits: u64,
    longest: Duration,
}

fn said(job: &Job) -> Said {
    let lines: Vec<Value> = common::traces(&job.folder().join("trace")).into_iter().flatten().collect();
    let ends: Vec<&Value> = lines.iter().filter(|l| l["kind"] == "end" && l["calls"] != 0).collect();
    assert_eq!(ends.len(), RANKS);
    let longest = ends.iter().map(|l| l["longest_wait_us"].as_u64().unwrap()).max().unwrap();
    Said {
        epochs: lines.iter().filter(|l| l["kind"] == "epoch").count(),
        waits: ends.iter().map(|l| l["waits"].as_u64().unwrap()).sum(),
        longest: Duration::from_micros(longest),
    }
}

/// Cuts one host after another off for `cut`, and lets them talk for `talk`, up to `cuts` times and until `enough`. Prints and returns what came of it.
fn with_cuts(
    test: &str,
    lead: &str,
    (cuts, cut, talk): (usize, Duration, Duration),
    enough: impl Fn(&Job) -> bool,
) -> Option<Said> {
    let netbox = or_skip(test, NetBox::rails(RANKS, 1, 0))?;
    let mut job = job(test, &netbox, lead)?;
    let mut made = 0;
    for i in (0..cuts).take_while(|_| !enough(&job)) {
        made += 1;
        netbox.cut(i % RANKS, 0).unwrap();
        std::thread::sleep(cut);
        netbox.heal(i % RANKS, 0).unwrap();
        std::thread::sleep(talk);
    }
    job.finish();
    let longest = (0..RANKS).map(|r| job.longest(r)).max().unwrap();
    let said = said(&job);
    let calls = job.begun(0);
    println!(
        "lead {lead} s, {made} cuts of {cut:?}: {calls} calls per rank, the longest question {longest:?}; {said:?}"
    );
    assert_eq!(job.difference(), None, "two ranks took different arms");
    assert!((1..RANKS).all(|r| job.begun(r) == calls), "all ranks made the same calls");
    // A wait that the program feels is one that the plugin counts.
    assert!(longest < said.longest + Duration::from_millis(500), "{longest:?} {said:?}");
    Some(said)
}

#[test]
fn cuts_of_the_control_network_that_are_shorter_than_the_lead_delay_no_call() {
    let name = "cuts_of_the_control_network_that_are_shorter_than_the_lead_delay_no_call";
    let cuts = (15, Duration::from_millis(500), Duration::from_millis(1500));
    let Some(said) = with_cuts(name, "1", cuts, |_| false) else { return };
    assert!(said.epochs >= 1, "arms changed meanwhile: {said:?}");
    assert_eq!(said.waits, 0);
}

#[test]
fn during_long_cuts_ranks_never_differ_and_what_waits_is_counted() {
    let name = "during_long_cuts_ranks_never_differ_and_what_waits_is_counted";
    // Without a lead proposals are as near as possible: a rank that is bound during a cut waits as long as the cut lasts. Some runs have such a rank;
    // tests/silence.rs makes one.
    let cuts = (10, Duration::from_millis(1200), Duration::from_millis(700));
    let has_waited = |job: &Job| (0..RANKS).any(|r| job.longest(r) > Duration::from_millis(500));
    let Some(said) = with_cuts(name, "0", cuts, has_waited) else { return };
    assert!(said.epochs >= 1 && (said.waits > 0) == (said.longest > Duration::ZERO), "{said:?}");
    // With one, a cut must hit the instant between two deliveries.
    let cuts = (4, Duration::from_secs(3), Duration::from_secs(1));
    let Some(said) = with_cuts(name, "0.2", cuts, |_| false) else { return };
    assert!(said.epochs >= 1, "{said:?}");
}
