//! A write of a lost queue pair that arrives late finds no memory: **emulated RDMA** between two network namespaces. A rail dies silently while a write
//! over it is in the network; its bytes go again over other rails; the program gets its buffer back and uses it; then the write arrives. Needs root.

mod common;

use common::{Process, RAILS, ROLE, TIME_MAX, buffer, heard, hex, own_test, say, settings_of_host, unhex, wait};
use net::{Endpoint, Progress, Verbs};
use netns::NetBox;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const DEVICES: &str = "LINKWISE_EMU_IBVERBS";
const LATE: &str = "LINKWISE_EMU_IBVERBS_LATE";
const BYTES: usize = 4_000_000;
/// What the program writes into its buffer when it has it back.
const OWN: u8 = 0xee;

fn pattern(round: usize) -> Vec<u8> {
    (0..BYTES).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ round) as u8 & 0x7f).collect()
}

/// Not a test of its own: a process on one host. It sends a message at every word, or receives one and looks after its buffer.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut settings = settings_of_host();
    let library = std::env::current_exe().unwrap().parent().unwrap().join("liblinkwise_ibverbs.so");
    settings.verbs = Some(Verbs { library: Some(library.to_str().unwrap().to_owned()) });
    settings.share = false;
    let e = Endpoint::start(settings).unwrap();
    assert_eq!(e.devices().iter().flatten().count(), 3, "{:?}", e.devices());
    let (listen, handle) = e.listen(0).unwrap();
    say(&format!("handle {}", hex(&handle)));
    let mut data = vec![0; BYTES];
    let memory = buffer(&mut data);
    let memory = memory.with(e.register(&memory));
    let done = |poll: &dyn Fn() -> Progress| {
        wait(|| match poll() {
            Progress::Pending => None,
            Progress::Done(_) => Some(()),
            Progress::Failed => panic!("failed"),
        });
    };
    let mut peer = unhex(&heard());
    if role == "sends" {
        let s = wait(|| e.connect(0, &mut peer).unwrap());
        for round in 0.. {
            heard();
            data.copy_from_slice(&pattern(round));
            let r = wait(|| s.send(memory, 0).unwrap());
            done(&|| s.request(r).unwrap().poll());
            say(&format!("sent {}", e.counts().rdma.load(Ordering::Relaxed)));
        }
    }
    let r = wait(|| listen.accept());
    for round in 0.. {
        let q = wait(|| r.receive(&[(memory, 0)]).unwrap());
        done(&|| r.request(q).unwrap().poll());
        let is_right = data == pattern(round);
        data.fill(OWN);
        say(&format!("got {round} {is_right}"));
        while heard().trim() == "look" {
            say(&format!("wrong {}", data.iter().filter(|b| **b != OWN).count()));
        }
    }
}

fn start(netbox: &NetBox, host: usize, role: &str, late: &Path) -> Process {
    let rails: Vec<String> = (0..netbox.nics(host)).map(|r| netbox.address(host, r).to_string()).collect();
    let devices: Vec<String> = rails.iter().enumerate().map(|(r, ip)| format!("emu{r}={ip}")).collect();
    let mut command = own_test("role");
    command.env(ROLE, role).env(RAILS, rails.join(",")).env(DEVICES, devices.join(",")).env(LATE, late);
    Process::start(netbox.exec(host, command))
}

fn signal(process: &Process, name: &str) {
    let status = Command::new("kill").args([name, &process.child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// The lines about writes that were held back, when there are `n`.
fn lines(file: &Path, n: usize) -> Vec<String> {
    let begin = Instant::now();
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if text.lines().count() >= n {
            return text.lines().map(str::to_owned).collect();
        }
        assert!(begin.elapsed() < TIME_MAX, "no write was held back: {text:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_write_that_arrives_after_its_pair_was_given_up_finds_no_memory() {
    let name = "a_write_that_arrives_after_its_pair_was_given_up_finds_no_memory";
    let Some(netbox) = netns::or_skip(name, NetBox::rails(2, 3, 200)) else { return };
    let folder = std::env::temp_dir().join(format!("linkwise-net-late-{}", std::process::id()));
    let (of_sender, of_receiver) = (folder.join("sender"), folder.join("receiver"));
    [&of_sender, &of_receiver].into_iter().for_each(|f| std::fs::create_dir_all(f).unwrap());
    let mut s = start(&netbox, 0, "sends", &of_sender);
    let mut r = start(&netbox, 1, "receives", &of_receiver);
    let (handle_s, handle_r) = (s.said("handle"), r.said("handle"));
    s.hear(&handle_r);
    r.hear(&handle_s);
    s.hear("send");
    assert_eq!(r.said("got"), "0 true");
    let written: u64 = s.said("sent").parse().unwrap();
    // A receive that is announced before all queue pairs are there goes over TCP on the rest.
    assert!(written > BYTES as u64 / 20, "{written} of {BYTES} bytes were written by devices");
    r.hear("next");

    // The network keeps a write over rail 1, and the rail dies: no end of a connection reaches the receiver over it.
    let (held, record) = (of_receiver.join("emu1"), of_receiver.join("emu1.late"));
    std::fs::write(&held, "").unwrap();
    s.hear("send");
    lines(&record, 1);
    signal(&s, "-STOP");
    (0..2).for_each(|host| netbox.cut(host, 1).unwrap());
    signal(&s, "-CONT");
    assert_eq!(r.said("got"), "1 true", "the bytes went again over other rails");
    s.said("sent");

    // The program uses its buffer, and the write arrives.
    std::fs::remove_file(&held).unwrap();
    let seen = lines(&record, 2);
    println!("{seen:?}");
    r.hear("look");
    assert_eq!(r.said("wrong"), "0", "bytes of the program's buffer are overwritten: {seen:?}");
    assert_eq!(seen, ["held", "refused"]);

    // The rails that are left go on.
    r.hear("next");
    s.hear("send");
    assert_eq!(r.said("got"), "2 true");
    std::fs::remove_dir_all(&folder).unwrap();
}
