//! Hosts without a switch: any host reaches any other over the links that hosts between them lend, and goes on when a link dies. Needs root.

mod common;

use common::{Process, buffer, hex, own_test, say, unhex, wait};
use net::{Endpoint, Progress, Rail, Settings};
use netns::NetBox;
use std::io::BufRead;
use std::time::{Duration, Instant};

const RAILS: &str = "LINKWISE_TEST_NET_RAILS";
const TOKEN: &str = "LINKWISE_TEST_NET_TOKEN";
const MESSAGE_BYTES: usize = 1_000_000;

fn pattern(i: usize) -> Vec<u8> {
    (0..MESSAGE_BYTES).map(|k| (k.wrapping_mul(37) ^ (k >> 9) ^ i) as u8).collect()
}

fn done(poll: impl Fn() -> Progress) {
    wait(|| match poll() {
        Progress::Pending => None,
        Progress::Done(_) => Some(()),
        Progress::Failed => panic!("failed"),
    });
}

/// Not a test of its own: the process of one host. Takes `send HANDLE MESSAGES` and `receive MESSAGES`, and lends its links all the time.
#[test]
fn host() {
    let Ok(rails) = std::env::var(RAILS) else { return };
    let rail = |ip: &str| Rail { name: ip.into(), ip: ip.parse().unwrap(), prefix: 30, rate: 0 };
    let mut settings = Settings::new(rails.split(',').map(rail).collect());
    (settings.token, settings.relay) = (std::env::var(TOKEN).unwrap().into(), true);
    let e = Endpoint::start(settings).unwrap();
    let (listen, handle) = e.listen(0).unwrap();
    say(&format!("handle {}", hex(&handle)));
    std::thread::scope(|scope| {
        for line in std::io::stdin().lock().lines() {
            let line = line.unwrap();
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let (e, listen) = (&e, &listen);
            scope.spawn(move || {
                let begin = Instant::now();
                let mut wrong = 0;
                if words[0] == "send" {
                    let mut handle = unhex(&words[1]);
                    let s = wait(|| e.connect(0, &mut handle).unwrap());
                    for i in 0..words[2].parse().unwrap() {
                        let mut data = pattern(i);
                        let r = wait(|| s.send(buffer(&mut data), 0).unwrap());
                        done(|| s.request(r).unwrap().poll());
                    }
                } else {
                    let r = wait(|| listen.accept());
                    for i in 0..words[1].parse().unwrap() {
                        let mut data = vec![0; MESSAGE_BYTES];
                        let q = wait(|| r.receive(&[(buffer(&mut data), 0)]).unwrap());
                        done(|| r.request(q).unwrap().poll());
                        wrong += pattern(i).iter().zip(&data).filter(|(a, b)| a != b).count();
                    }
                }
                let bytes: Vec<String> = e.counts().bytes.iter().take(2).map(|b| format!("{b:?}")).collect();
                let relayed = &e.counts().relayed;
                say(&format!(
                    "{}: {} wrong, {} ms, bytes by rail {}, relayed {relayed:?}",
                    words[0],
                    wrong,
                    begin.elapsed().as_millis(),
                    bytes.join(" ")
                ));
            });
        }
    });
}

struct Host {
    process: Process,
    handle: String,
}

impl Host {
    fn start(netbox: &NetBox, host: usize, token: &str) -> Self {
        let rails: Vec<String> = (0..netbox.nics(host)).map(|r| netbox.address(host, r).to_string()).collect();
        let mut command = own_test("host");
        command.env(RAILS, rails.join(",")).env(TOKEN, token);
        let process = Process::start(netbox.exec(host, command));
        let handle = process.said("handle");
        Host { process, handle }
    }
}

/// Moves messages from one host to another, and checks every byte.
fn moves(hosts: &mut [Host], from: usize, to: usize, messages: usize, during: impl FnOnce()) {
    hosts[to].process.hear(&format!("receive {messages}"));
    let handle = hosts[to].handle.clone();
    hosts[from].process.hear(&format!("send {handle} {messages}"));
    during();
    let (sent, got) = (hosts[from].process.said("send:"), hosts[to].process.said("receive:"));
    println!("{from} to {to}: {sent}; {got}");
    assert!(got.starts_with("0 wrong"), "{from} to {to}: {got}");
}

#[test]
fn in_a_ring_of_four_every_host_reaches_every_other_and_a_dead_link_is_gone_round() {
    let name = "in_a_ring_of_four_every_host_reaches_every_other_and_a_dead_link_is_gone_round";
    let Some(netbox) = netns::or_skip(name, NetBox::ring(4, 200)) else { return };
    let mut hosts: Vec<Host> = (0..4).map(|h| Host::start(&netbox, h, "t")).collect();
    for (from, to) in [(0, 2), (2, 0), (1, 3), (0, 1), (3, 0)] {
        moves(&mut hosts, from, to, 5, || {});
    }
    // The link from 0 to 1 dies while host 0 sends to host 2 over both of its neighbours, then that to host 1 while it sends to host 1.
    for to in [2, 1] {
        moves(&mut hosts, 0, to, 60, || {
            std::thread::sleep(Duration::from_millis(700));
            netbox.link_down(0, 0).unwrap();
        });
        netbox.link_up(0, 0).unwrap();
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn in_a_ring_of_eight_the_farthest_host_is_reached_over_three_relays() {
    let name = "in_a_ring_of_eight_the_farthest_host_is_reached_over_three_relays";
    let Some(netbox) = netns::or_skip(name, NetBox::ring(8, 200)) else { return };
    let mut hosts: Vec<Host> = (0..8).map(|h| Host::start(&netbox, h, "t")).collect();
    moves(&mut hosts, 0, 4, 10, || {});
}

#[test]
fn hosts_of_another_job_lend_nothing() {
    let name = "hosts_of_another_job_lend_nothing";
    let Some(netbox) = netns::or_skip(name, NetBox::ring(4, 200)) else { return };
    let mut hosts: Vec<Host> = (0..4).map(|h| Host::start(&netbox, h, if h == 1 { "other" } else { "t" })).collect();
    let lent = |h: &Host| h.process.said("send:").split(", ").nth(2).unwrap().to_owned();
    hosts[2].process.hear("receive 5");
    let handle = hosts[2].handle.clone();
    hosts[0].process.hear(&format!("send {handle} 5"));
    // Rail 0 of host 0 leads to host 1, rail 1 to host 3.
    assert!(lent(&hosts[0]).starts_with("bytes by rail 0 "), "host 1 has passed bytes on");
}
