//! Two hosts of a box, each a process of its own: a host that vanishes is an error at the other one within the promised 30 s. Needs root.

mod common;

use common::{Process, RAILS, ROLE, buffer, heard, hex, own_test, say, settings_of_host, unhex, wait};
use net::{Endpoint, Progress};
use netns::NetBox;
use std::time::Instant;

/// Not a test of its own: a process on one host. It sends or receives until a request fails, and says after how many milliseconds that was.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let e = Endpoint::start(settings_of_host()).unwrap();
    let (listen, handle) = e.listen(0).unwrap();
    say(&format!("handle {}", hex(&handle)));
    let mut data = vec![1; 4_000_000];
    let mut peer = unhex(&heard());
    let mut moved = Instant::now();
    let mut said = false;
    let mut on = |progress: Progress| {
        if progress == Progress::Failed {
            say(&format!("failed {}", moved.elapsed().as_millis()));
            std::process::exit(0);
        }
        if matches!(progress, Progress::Done(_)) {
            moved = Instant::now();
            if !std::mem::replace(&mut said, true) {
                say("moving");
            }
        }
        (progress != Progress::Pending).then_some(())
    };
    if role == "sends" {
        let s = wait(|| e.connect(0, &mut peer).unwrap());
        loop {
            let r = wait(|| s.send(buffer(&mut data), 0).unwrap());
            wait(|| on(s.request(r).unwrap().poll()));
        }
    }
    let r = wait(|| listen.accept());
    loop {
        let q = wait(|| r.receive(&[(buffer(&mut data), 0)]).unwrap());
        wait(|| on(r.request(q).unwrap().poll()));
    }
}

fn start(netbox: &NetBox, host: usize, role: &str) -> Process {
    let rails: Vec<String> = (0..netbox.nics(host)).map(|r| netbox.address(host, r).to_string()).collect();
    let mut command = own_test("role");
    command.env(ROLE, role).env(RAILS, rails.join(","));
    Process::start(netbox.exec(host, command))
}

#[test]
fn a_host_that_vanishes_is_an_error_within_thirty_seconds() {
    let name = "a_host_that_vanishes_is_an_error_within_thirty_seconds";
    let Some(netbox) = netns::or_skip(name, NetBox::rails(4, 3, 200)) else { return };
    // Two pairs at the same time: once the sender's host vanishes, once the receiver's.
    let mut pairs = [(0, 1), (2, 3)].map(|(a, b)| {
        let (mut s, mut r) = (start(&netbox, a, "sends"), start(&netbox, b, "receives"));
        let (of_s, of_r) = (s.said("handle"), r.said("handle"));
        s.hear(&of_r);
        r.hear(&of_s);
        (s, r)
    });
    for (s, r) in &pairs {
        s.said("moving");
        r.said("moving");
    }
    for host in [1, 2] {
        // Packets vanish before the process ends: its kernel's last words do not arrive.
        (0..3).for_each(|rail| netbox.cut(host, rail).unwrap());
    }
    let [(first, gone), (gone_too, second)] = &mut pairs;
    gone.child.kill().unwrap();
    gone_too.child.kill().unwrap();
    for left in [first, second] {
        let ms: u64 = left.said("failed").parse().unwrap();
        println!("failed {ms} ms after the last message");
        assert!(ms < 30_000, "{ms} ms");
    }
}
