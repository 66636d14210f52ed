//! Rails that die at random moments under the real NCCL library, silently, and come back: no byte is wrong, and no call fails. Needs root.
//! `LINKWISE_TEST_DEATHS=200` for the long run (`make test-net-deaths`).

use nccl_bench::bytes::{BytesCall, BytesSpec, HostPlace, Traffic};
use nccl_bench::{Bench, SimulatedNode};
use netns::NetBox;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use topology::{Cluster, Host, HostId, catalog};

const RAILS: usize = 4;
/// Repetitions of a run, about 10 s.
const REPETITIONS: u32 = 60;

fn spec(netbox: &NetBox) -> BytesSpec {
    let program = std::env::current_exe().unwrap();
    let t = catalog::host_type("hgx-h100").unwrap();
    let cluster = Cluster { name: "deaths".into(), types: vec![t], ..Cluster::default() };
    let mut s = BytesSpec::new(cluster, Vec::new(), "2.28.9".parse().unwrap());
    for h in 0..2 {
        s.cluster.hosts.push(Host { name: format!("host{h}"), ..Host::default() });
        s.nodes.push(SimulatedNode { host: HostId(h as u32), gpus: vec![0, 1], nvlink_domain: None });
        let prefix = ["ip", "netns", "exec", netbox.namespace(h)].map(str::to_owned).to_vec();
        s.places.push(HostPlace { prefix, ..HostPlace::default() });
    }
    let rails: Vec<&str> = (0..RAILS).map(|r| netbox.interface(0, r)).collect();
    // Rail 0 carries NCCL's own start and never dies.
    s.interfaces = rails[0].into();
    s.net_plugin = Some(program.parent().unwrap().join("liblinkwise_nccl_net.so"));
    let settings = [("LINKWISE_NET", "tcp"), ("LINKWISE_NET_RAILS", &rails.join(",")), ("NCCL_DEBUG", "INFO")];
    s.env.extend(settings.map(|(k, v)| (k.to_owned(), v.to_owned())));
    let bytes = |i: usize, j: usize| if i / 2 == j / 2 { 0 } else { 400_000 * (1 + ((i * 5 + j * 3) % 4) as u64) };
    let matrix = Traffic::SendRecv((0..4).map(|i| (0..4).map(|j| bytes(i, j)).collect()).collect());
    s.calls.push(BytesCall { repetitions: REPETITIONS, ..BytesCall::new(matrix) });
    s
}

/// Kills rails, one after the other, until `stop`; returns how many.
fn kill(netbox: &NetBox, seed: u64, most: u32, stop: &AtomicBool) -> u32 {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut deaths = 0;
    while !stop.load(Ordering::Relaxed) && deaths < most {
        let (host, rail) = (rng.random_range(0..2), rng.random_range(1..RAILS));
        std::thread::sleep(Duration::from_millis(rng.random_range(50..400)));
        netbox.cut(host, rail).unwrap();
        deaths += 1;
        std::thread::sleep(Duration::from_millis(rng.random_range(50..1_200)));
        netbox.heal(host, rail).unwrap();
    }
    deaths
}

#[test]
fn rails_that_die_at_random_moments_cost_no_byte() {
    let name = "rails_that_die_at_random_moments_cost_no_byte";
    let wanted: u32 = std::env::var("LINKWISE_TEST_DEATHS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let Some(netbox) = netns::or_skip(name, NetBox::rails(2, RAILS, 100)) else { return };
    let (mut deaths, mut lost, mut run) = (0, 0, 0);
    while deaths < wanted {
        run += 1;
        let stop = AtomicBool::new(false);
        let (report, killed) = std::thread::scope(|scope| {
            let killer = scope.spawn(|| {
                // After the start of NCCL, which this test is not about.
                std::thread::sleep(Duration::from_millis(1_500));
                kill(&netbox, run, wanted - deaths, &stop)
            });
            let report = Bench::new().and_then(|b| b.run_bytes(&spec(&netbox)));
            stop.store(true, Ordering::Relaxed);
            (report, killer.join().unwrap())
        });
        let report = match report {
            Ok(report) => report,
            Err(e) if e.is_about_this_machine() => {
                println!("SKIP {name}: {e}");
                return;
            }
            Err(e) => panic!("after {deaths} deaths: {e}"),
        };
        assert_eq!((report.wrong_bytes(), report.results.len()), (0, REPETITIONS as usize * 4));
        deaths += killed;
        let counts = report.log.lines().find_map(|l| l.split_once("rails lost ")).map_or("", |c| c.1);
        lost += counts.split(',').next().and_then(|n| n.trim().parse::<u32>().ok()).unwrap_or(0);
        println!("{deaths} deaths, rank 0 took {lost} paths out; no wrong byte");
    }
    // A cut shorter than 0.3 s is not noticed; of four or more random ones some are longer.
    assert!(wanted < 20 || lost > wanted / 20, "{deaths} deaths, but only {lost} paths were lost");
}
