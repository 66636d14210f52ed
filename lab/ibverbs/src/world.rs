//! The devices of this process and its queue pairs by number.
//!
//! A device is an IPv4 address of this host. A queue pair's number is the port of a socket that listens at this address, and 8 bits below it: a peer that
//! knows address and number knows where to connect.

use crate::pair::Pair;
use crate::queue::lock;
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Devices: a list of `name=address`. One exists if its address is one of this host.
const DEVICES: &str = "LINKWISE_EMU_IBVERBS";
/// A folder: the device whose name a file there has is dead.
const DEAD: &str = "LINKWISE_EMU_IBVERBS_DEAD";
/// A folder: a write to the device whose name a file there has stays in the network until the file is gone.
const LATE: &str = "LINKWISE_EMU_IBVERBS_LATE";
/// Interval at which a write that is held back looks at the file, and the longest time that it is held back.
const LATE_INTERVAL: Duration = Duration::from_millis(2);
const LATE_TIME_MAX: Duration = Duration::from_secs(120);
/// First bytes of a connection between pairs.
pub const MAGIC: u32 = 0x6c77_6962;
/// Time that the accepting side waits for a pair that is being connected.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

/// An emulated device.
#[derive(Debug)]
pub struct Nic {
    pub name: String,
    pub ip: Ipv4Addr,
    dead: Option<PathBuf>,
    late: Option<PathBuf>,
}

/// A write that was held back. Lines in the file `NAME.late` say that it was `held`, and in the end that it `landed` in memory or was `refused`.
#[derive(Debug)]
pub struct Late {
    file: PathBuf,
    pub landed: bool,
}

impl Late {
    fn note(&self, word: &str) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(self.file.with_extension("late"));
        let _ = file.and_then(|mut f| writeln!(f, "{word}"));
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        self.note(if self.landed { "landed" } else { "refused" });
    }
}

impl Nic {
    /// Holds a peer's write back while [`LATE`] says so. `None`: it was not held back.
    pub fn hold_back(&self) -> Option<Late> {
        let file = self.late.as_ref().filter(|f| f.exists())?;
        let late = Late { file: file.clone(), landed: false };
        late.note("held");
        let begin = Instant::now();
        while file.exists() && begin.elapsed() < LATE_TIME_MAX {
            std::thread::sleep(LATE_INTERVAL);
        }
        Some(late)
    }

    /// The device was taken away.
    pub fn is_dead(&self) -> bool {
        self.dead.as_ref().is_some_and(|f| f.exists())
    }

    pub fn gid(&self) -> [u8; 16] {
        self.ip.to_ipv6_mapped().octets()
    }
}

/// The devices, in the order of the variable.
pub fn nics() -> &'static [Arc<Nic>] {
    static NICS: OnceLock<Vec<Arc<Nic>>> = OnceLock::new();
    NICS.get_or_init(|| {
        let list = std::env::var(DEVICES).unwrap_or_default();
        let folder = |variable| std::env::var_os(variable).map(PathBuf::from);
        let (dead, late) = (folder(DEAD), folder(LATE));
        let one = |text: &str| {
            let (name, ip) = text.trim().split_once('=')?;
            let ip: Ipv4Addr = ip.parse().ok()?;
            TcpListener::bind((ip, 0)).ok()?;
            let file = |folder: &Option<PathBuf>| folder.as_ref().map(|f| f.join(name));
            Some(Arc::new(Nic { name: name.to_owned(), ip, dead: file(&dead), late: file(&late) }))
        };
        list.split(',').filter_map(one).collect()
    })
}

#[derive(Debug, Default)]
struct Ports {
    /// Sockets that listen: address, port, numbers given out.
    open: Vec<(Ipv4Addr, u16, u32)>,
    pairs: HashMap<u32, Weak<Pair>>,
}

static PORTS: OnceLock<Mutex<Ports>> = OnceLock::new();

fn ports() -> &'static Mutex<Ports> {
    PORTS.get_or_init(Mutex::default)
}

/// A free number at a device.
pub fn number(ip: Ipv4Addr) -> io::Result<u32> {
    let mut ports = lock(ports());
    if let Some((_, port, given)) = ports.open.iter_mut().find(|(i, _, given)| *i == ip && *given < 256) {
        *given += 1;
        return Ok(u32::from(*port) << 8 | (*given - 1));
    }
    let listener = TcpListener::bind((ip, 0))?;
    let port = listener.local_addr()?.port();
    ports.open.push((ip, port, 1));
    std::thread::Builder::new().name("emulated-rdma".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = std::thread::Builder::new().name("emulated-rdma".into()).spawn(move || greet(stream));
        }
    })?;
    Ok(u32::from(port) << 8)
}

pub fn enter(number: u32, pair: &Arc<Pair>) {
    lock(ports()).pairs.insert(number, Arc::downgrade(pair));
}

pub fn leave(number: u32) {
    lock(ports()).pairs.remove(&number);
}

/// Where the pair with this number at this address is reached.
pub fn port(number: u32) -> u16 {
    (number >> 8) as u16
}

/// A peer has connected: finds the pair that it means.
fn greet(mut stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(CONNECT_TIME_MAX)).ok()?;
    let mut words = [0; 12];
    stream.read_exact(&mut words).ok()?;
    let word = |i: usize| words.get(4 * i..4 * i + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    let IpAddr::V4(from) = stream.peer_addr().ok()?.ip() else { return None };
    if word(0) != MAGIC {
        return None;
    }
    stream.set_read_timeout(None).ok()?;
    let begin = Instant::now();
    while begin.elapsed() < CONNECT_TIME_MAX {
        let pair = lock(ports()).pairs.get(&word(1)).and_then(Weak::upgrade)?;
        if pair.expects(from, word(2)) {
            pair.serve(stream);
            return Some(());
        }
        drop(pair);
        std::thread::sleep(Duration::from_millis(2));
    }
    None
}
