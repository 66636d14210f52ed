//! Rails that die at random moments under the real NCCL library, silently, and come back: no byte is wrong, and no call fails. Needs root.
//! `LINKWISE_TEST_DEATHS=200` for the long run (`make test-net-deaths`), which also prints how long the calls took during and after the deaths.

use nccl_bench::bytes::{BytesCall, BytesReport, BytesSpec, HostPlace, Traffic};
use nccl_bench::{Bench, SimulatedNode};
use netns::NetBox;
use rand::{RngExt, SeedableRng};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use topology::{Cluster, Host, HostId, catalog};

const RAILS: usize = 4;
const MBIT: u32 = 100;
/// Ethernet and IP overhead of a full TCP segment: 1514 bytes carry 1448.
const OVERHEAD: f64 = 1514.0 / 1448.0;
/// A rail that moves nothing for this time is taken out, seconds.
const DETECTION_S: f64 = 0.3;
/// Repetitions of a run, about 10 s.
const REPETITIONS: u32 = 60;

/// Bytes from rank to rank; two ranks a host.
fn bytes(i: usize, j: usize) -> u64 {
    if i / 2 == j / 2 { 0 } else { 400_000 * (1 + ((i * 5 + j * 3) % 4) as u64) }
}

/// The least time of a call while one rail of a host is dead, seconds.
fn optimum() -> f64 {
    let out =
        |h: usize| (0..16).map(|k| (k / 4, k % 4)).filter(|(i, _)| i / 2 == h).map(|(i, j)| bytes(i, j)).sum::<u64>();
    let rate = f64::from(MBIT) * 1e6 / 8.0 / OVERHEAD;
    out(0).max(out(1)) as f64 / (rate * (RAILS - 1) as f64)
}

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
    let matrix = Traffic::SendRecv((0..4).map(|i| (0..4).map(|j| bytes(i, j)).collect()).collect());
    s.calls.push(BytesCall { repetitions: REPETITIONS, ..BytesCall::new(matrix) });
    s
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Kills rails, one after the other, until `stop`; returns when each died and came back.
fn kill(netbox: &NetBox, seed: u64, most: u32, stop: &AtomicBool) -> Vec<(f64, f64)> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut deaths = Vec::new();
    while !stop.load(Ordering::Relaxed) && deaths.len() < most as usize {
        let (host, rail) = (rng.random_range(0..2), rng.random_range(1..RAILS));
        std::thread::sleep(Duration::from_millis(rng.random_range(50..400)));
        netbox.cut(host, rail).unwrap();
        let died = now();
        std::thread::sleep(Duration::from_millis(rng.random_range(50..1_200)));
        deaths.push((died, now()));
        netbox.heal(host, rail).unwrap();
    }
    deaths
}

/// Times of calls: of those during which a rail died, in units of [`DETECTION_S`] and [`optimum`] together, as the bytes on the rail wait for the detection while
/// the others move; and of those that ran on the rails that were left, in units of [`optimum`].
#[derive(Debug, Default)]
struct Times {
    struck: Vec<f64>,
    after: Vec<f64>,
}

impl Times {
    fn add(&mut self, report: &BytesReport, deaths: &[(f64, f64)]) {
        let calls = (0..REPETITIONS).filter_map(|k| {
            let of = report.results.iter().filter(|r| r.repetition == k);
            let end = of.map(|r| r.ended).reduce(f64::max)?;
            let time = report.seconds(0, k)?;
            Some((end - time, end, time))
        });
        let calls: Vec<(f64, f64, f64)> = calls.collect();
        // Of a shorter death nothing is noticed.
        for (died, back) in deaths.iter().filter(|(died, back)| back - died > DETECTION_S) {
            // The first call makes the connections.
            let Some(i) = calls.iter().position(|c| c.1 > *died).filter(|i| *i > 0) else { continue };
            // Calls that two deaths struck are left out.
            if deaths.iter().filter(|d| d.0 < calls[i].1 && d.1 > calls[i].0).count() == 1 {
                self.struck.push(calls[i].2 / (DETECTION_S + optimum()));
            }
            self.after.extend(calls[i + 1..].iter().take_while(|c| c.1 < *back).map(|c| c.2 / optimum()));
        }
    }

    fn print(&mut self) {
        let unit = format!("{DETECTION_S} s of detection and the optimum of the rails left ({:.3} s)", optimum());
        for (what, unit, all) in
            [("struck", unit.as_str(), &mut self.struck), ("afterwards", "that optimum", &mut self.after)]
        {
            all.sort_by(f64::total_cmp);
            let at = |part: f64| all.get((part * (all.len().max(1) - 1) as f64) as usize).copied().unwrap_or(f64::NAN);
            println!(
                "calls {what}: {} of them, in units of {unit}: median {:.2}, nine in ten below {:.2}, most {:.2}",
                all.len(),
                at(0.5),
                at(0.9),
                at(1.0)
            );
        }
    }
}

#[test]
fn rails_that_die_at_random_moments_cost_no_byte() {
    let name = "rails_that_die_at_random_moments_cost_no_byte";
    let wanted: u32 = std::env::var("LINKWISE_TEST_DEATHS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let Some(netbox) = netns::or_skip(name, NetBox::rails(2, RAILS, MBIT)) else { return };
    let (mut deaths, mut lost, mut run, mut times) = (0, 0, 0, Times::default());
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
        deaths += killed.len() as u32;
        times.add(&report, &killed);
        let counts = report.log.lines().find_map(|l| l.split_once("rails lost ")).map_or("", |c| c.1);
        lost += counts.split(',').next().and_then(|n| n.trim().parse::<u32>().ok()).unwrap_or(0);
        println!("{deaths} deaths, rank 0 took {lost} paths out; no wrong byte");
    }
    times.print();
    // A cut shorter than 0.3 s is not noticed; of four or more random ones some are longer.
    assert!(wanted < 20 || lost > wanted / 20, "{deaths} deaths, but only {lost} paths were lost");
}
