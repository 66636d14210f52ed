//! Boxes on this machine; skipped without root or `ip`.

use netns::{NetBox, NetBoxError, or_skip};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn probe(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netns-probe"));
    command.args(words);
    command
}

/// A listener inside of a host; it ends with this value.
struct Listener(Child);

impl Listener {
    fn at(netbox: &NetBox, host: usize, rail: usize) -> (Self, SocketAddr) {
        let at = SocketAddr::new(netbox.address(host, rail), 7000);
        let mut command = netbox.exec(host, probe(&["listen", &at.to_string()]));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "listening\n");
        (Listener(child), at)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends bytes from a host; seconds, or `None` if they did not arrive within the time.
fn send(netbox: &NetBox, from: usize, to: SocketAddr, bytes: u64, patience: Duration) -> Option<f64> {
    let mut command = netbox.exec(from, probe(&["send", &to.to_string(), &bytes.to_string()]));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + patience;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() >= until {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let out = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let (got, us) = out.trim().split_once(' ')?;
    assert_eq!(got, bytes.to_string());
    Some(us.parse::<f64>().unwrap() / 1e6)
}

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn every_pair_of_hosts_is_reached_on_every_rail_and_nothing_stays_behind() {
    let name = "every_pair_of_hosts_is_reached_on_every_rail_and_nothing_stays_behind";
    let Some(netbox) = or_skip(name, NetBox::rails(3, 2, 200)) else { return };
    assert_eq!((netbox.hosts(), netbox.nics(2), netbox.interface(2, 1)), (3, 2, "rail1"));
    for to in 0..3 {
        for rail in 0..2 {
            let (_listener, at) = Listener::at(&netbox, to, rail);
            for from in (0..3).filter(|h| *h != to) {
                assert!(send(&netbox, from, at, 1000, PATIENCE).is_some(), "{from} to {to} on rail {rail}");
            }
        }
    }
    let files: Vec<PathBuf> = (0..3).map(|h| netbox.namespace_file(h)).collect();
    assert!(files.iter().all(|f| f.exists()));
    drop(netbox);
    assert!(files.iter().all(|f| !f.exists()));
}

#[test]
fn rings_and_meshes_have_the_links_that_their_hosts_name() {
    let name = "rings_and_meshes_have_the_links_that_their_hosts_name";
    let Some(ring) = or_skip(name, NetBox::ring(4, 0)) else { return };
    let mesh = NetBox::mesh(4, 0).unwrap(); // two boxes at once, with equal addresses
    let pair = NetBox::ring(2, 0).unwrap();
    assert_eq!((ring.nics(3), mesh.nics(3), pair.nics(1)), (2, 3, 1));
    assert_eq!((ring.nic_to(0, 1), ring.nic_to(0, 3), ring.nic_to(0, 2)), (Some(0), Some(1), None));
    for netbox in [&ring, &mesh, &pair] {
        for host in 0..netbox.hosts() {
            for nic in 0..netbox.nics(host) {
                let (peer, there) = netbox.peer(host, nic).unwrap();
                assert_eq!((netbox.peer(peer, there), netbox.nic_to(host, peer)), (Some((host, nic)), Some(nic)));
                let (_listener, at) = Listener::at(netbox, peer, there);
                assert!(send(netbox, host, at, 1000, PATIENCE).is_some(), "{host} to {peer}");
            }
        }
    }
}

/// The ratio of two times, measured in turns because the machine may be busy: the median of five.
fn ratio(mut slow: impl FnMut() -> f64, mut fast: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..5).map(|_| slow() / fast()).collect();
    all.sort_by(f64::total_cmp);
    all[2]
}

#[test]
fn a_link_has_the_rate_that_was_set_also_after_a_change() {
    let name = "a_link_has_the_rate_that_was_set_also_after_a_change";
    let Some(netbox) = or_skip(name, NetBox::rails(2, 2, 100)) else { return };
    netbox.rate(0, 1, 25).unwrap();
    let (_a, fast) = Listener::at(&netbox, 1, 0);
    let (_b, slow) = Listener::at(&netbox, 1, 1);
    let seconds = |to| send(&netbox, 0, to, 4 << 20, PATIENCE).unwrap();
    let found = ratio(|| seconds(slow), || seconds(fast));
    assert!((3.2..4.8).contains(&found), "25 against 100 Mbit/s: {found:.2} times the time");
    netbox.rate(0, 0, 50).unwrap();
    let found = ratio(|| seconds(slow), || seconds(fast));
    assert!((1.6..2.4).contains(&found), "25 against 50 Mbit/s: {found:.2} times the time");
}

#[test]
fn an_oversubscribed_spine_is_slower_than_a_leaf() {
    let name = "an_oversubscribed_spine_is_slower_than_a_leaf";
    let Some(netbox) = or_skip(name, NetBox::leaf_spine(4, 1, 2, 100, 50)) else { return };
    let (_a, near) = Listener::at(&netbox, 1, 0);
    let (_b, far) = Listener::at(&netbox, 3, 0);
    let seconds = |to| send(&netbox, 0, to, 4 << 20, PATIENCE).unwrap();
    let found = ratio(|| seconds(far), || seconds(near));
    assert!((1.6..2.4).contains(&found), "50 against 100 Mbit/s: {found:.2} times the time");
    netbox.uplink_rate(1, 0, 25).unwrap();
    let found = ratio(|| seconds(far), || seconds(near));
    assert!((3.2..4.8).contains(&found), "25 against 100 Mbit/s: {found:.2} times the time");
    assert!(matches!(netbox.uplink_rate(2, 0, 1), Err(NetBoxError::NoSuchLink { .. })));
}

#[test]
fn a_link_that_is_down_or_cut_carries_nothing_until_it_is_back() {
    let name = "a_link_that_is_down_or_cut_carries_nothing_until_it_is_back";
    let Some(netbox) = or_skip(name, NetBox::rails(2, 2, 0)) else { return };
    let (_a, first) = Listener::at(&netbox, 1, 0);
    let (_b, second) = Listener::at(&netbox, 1, 1);
    let reached = |to, patience| send(&netbox, 0, to, 1000, patience).is_some();
    let brief = Duration::from_millis(700);
    let carrier = || {
        let mut cat = Command::new("ip");
        cat.args(["link", "show", "rail0"]);
        let out = netbox.exec(0, cat).output().unwrap();
        !String::from_utf8_lossy(&out.stdout).contains("NO-CARRIER")
    };
    assert!(reached(first, PATIENCE) && carrier());
    netbox.cut(0, 0).unwrap();
    assert!(!reached(first, brief) && carrier() && reached(second, PATIENCE));
    netbox.heal(0, 0).unwrap();
    assert!(reached(first, PATIENCE));
    netbox.link_down(0, 0).unwrap();
    assert!(!reached(first, brief) && !carrier() && reached(second, PATIENCE));
    netbox.link_up(0, 0).unwrap();
    assert!(reached(first, PATIENCE) && carrier());
    assert!(matches!(netbox.link_down(0, 2), Err(NetBoxError::NoSuchLink { host: 0, rail: 2 })));
}

/// The test below starts this test in another process, which waits to be killed.
#[test]
fn a_box_whose_owner_was_killed_is_removed_with_its_processes() {
    let name = "a_box_whose_owner_was_killed_is_removed_with_its_processes";
    const OWNER: &str = "NETNS_TEST_OWNER";
    if std::env::var_os(OWNER).is_some() {
        let Some(netbox) = or_skip(name, NetBox::rails(1, 1, 0)) else { return };
        let mut sleeps = Command::new("sleep");
        sleeps.arg("600");
        let mut child = netbox.exec(0, sleeps).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        println!("made {} {}", netbox.namespace_file(0).display(), child.id());
        child.wait().unwrap();
        return;
    }
    let Some(mine) = or_skip(name, NetBox::rails(1, 1, 0)) else { return };
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(OWNER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines().map_while(Result::ok);
    let made = lines.filter_map(|l| l.split_once("made ").map(|(_, m)| m.to_string())).next().unwrap();
    let (file, pid) = made.split_once(' ').unwrap();
    let file = PathBuf::from(file);
    let process = PathBuf::from(format!("/proc/{pid}/exe"));
    netns::remove_dead();
    assert!(file.exists(), "its owner runs");
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(file.exists() && process.exists(), "nothing has removed them yet");
    let next = NetBox::rails(1, 1, 0).unwrap();
    assert!(!file.exists() && mine.namespace_file(0).exists() && next.namespace_file(0).exists());
    let until = Instant::now() + PATIENCE;
    while std::fs::read_link(&process).is_ok() {
        assert!(Instant::now() < until, "process {pid} runs still");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_box_without_hosts_or_with_too_many_is_refused() {
    for (hosts, rails) in [(0, 1), (1, 0), (netns::HOSTS_MAX + 1, 1)] {
        assert!(matches!(NetBox::rails(hosts, rails, 0), Err(NetBoxError::Size { .. })), "{hosts} x {rails}");
    }
}
