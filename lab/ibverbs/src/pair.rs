//! A reliable queue pair: one thread sends, one serves each socket of the peer.
//!
//! ```text
//!  reset ──► init ──► ready to receive ──► ready to send ──(an error, or modified)──► error: everything posted is flushed
//! ```
//!
//! One request is under way at a time; the peer answers it with its status. The peer's answer stands for the acknowledgement of a real device.

use crate::memory;
use crate::queue::{Queue, lock};
use crate::world::{self, MAGIC, Nic};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use verbs::abi::*;

/// Bytes of a request's header: opcode, length, immediate data, key, address.
const HEAD_BYTES: usize = 24;
/// Longest request, bytes.
const REQUEST_BYTES_MAX: u32 = 1 << 30;
/// The peer has no receive posted: it says so at this interval.
const RNR: u32 = u32::MAX;
const RNR_INTERVAL: Duration = Duration::from_millis(20);
/// A device answers by itself, but these threads wait for a core: the shortest time without an answer that counts as none.
const ANSWER_TIME_MIN: Duration = Duration::from_secs(5);
/// Time after which a dead device's requests end.
const DEAD_TIME: Duration = Duration::from_millis(200);
/// `rnr_retry` that means "for ever".
const RNR_FOR_EVER: u8 = 7;

/// A posted send.
#[derive(Debug, Clone)]
pub struct Work {
    pub id: u64,
    pub opcode: i32,
    pub signaled: bool,
    pub parts: Vec<Part>,
    /// Bytes that were copied when it was posted.
    pub inline: Option<Vec<u8>>,
    pub immediate: u32,
    pub address: u64,
    pub rkey: u32,
}

/// A posted receive.
#[derive(Debug)]
pub struct Receive {
    pub id: u64,
    pub parts: Vec<Part>,
}

#[derive(Debug)]
struct Inner {
    state: i32,
    peer: (Ipv4Addr, u32),
    rnr_retries: u8,
    answer: Duration,
    sends: VecDeque<Work>,
    receives: VecDeque<Receive>,
    sockets: Vec<TcpStream>,
    has_worker: bool,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Pair {
    pub number: u32,
    nic: Arc<Nic>,
    /// Protection domain.
    pd: usize,
    send_queue: Arc<Queue>,
    receive_queue: Arc<Queue>,
    all_signaled: bool,
    capacity: Capacity,
    inner: Mutex<Inner>,
    changed: Condvar,
}

/// Errors of calls.
pub const INVALID: i32 = 22;
pub const NO_MEMORY: i32 = 12;

impl Pair {
    pub fn new(nic: Arc<Nic>, pd: usize, queues: [Arc<Queue>; 2], init: &QpInit) -> io::Result<Arc<Self>> {
        let [send_queue, receive_queue] = queues;
        if nic.is_dead() {
            return Err(io::Error::from_raw_os_error(19)); // no such device
        }
        let pair = Arc::new(Pair {
            number: world::number(nic.ip)?,
            nic,
            pd,
            send_queue,
            receive_queue,
            all_signaled: init.all_signaled != 0,
            capacity: init.capacity,
            inner: Mutex::new(Inner {
                state: QPS_RESET,
                peer: (Ipv4Addr::UNSPECIFIED, 0),
                rnr_retries: 0,
                answer: ANSWER_TIME_MIN,
                sends: VecDeque::new(),
                receives: VecDeque::new(),
                sockets: Vec::new(),
                has_worker: false,
            }),
            changed: Condvar::new(),
        });
        world::enter(pair.number, &pair);
        Ok(pair)
    }

    /// True if this peer may connect now.
    pub fn expects(&self, from: Ipv4Addr, number: u32) -> bool {
        let inner = lock(&self.inner);
        (QPS_RTR..=QPS_RTS).contains(&inner.state) && inner.peer == (from, number)
    }

    pub fn state(&self) -> i32 {
        lock(&self.inner).state
    }

    pub fn modify(&self, a: &QpAttributes, given: i32) -> i32 {
        let mut inner = lock(&self.inner);
        let to = if given & mask::STATE != 0 { a.state } else { inner.state };
        let needs = match (inner.state, to) {
            (_, QPS_ERROR) => 0,
            (_, QPS_RESET) => 0,
            (QPS_RESET, QPS_INIT) => mask::PORT | mask::PKEY_INDEX | mask::ACCESS,
            (QPS_INIT, QPS_INIT) => 0,
            (QPS_INIT, QPS_RTR) => {
                mask::ROUTE | mask::PEER | mask::MTU | mask::RECEIVE_PSN | mask::PEER_READS | mask::RNR_TIMER
            }
            (QPS_RTR, QPS_RTS) => mask::SEND_PSN | mask::TIMEOUT | mask::RETRIES | mask::RNR_RETRIES | mask::READS,
            (QPS_RTS, QPS_RTS) => 0,
            _ => return INVALID,
        };
        if given & needs != needs {
            return INVALID;
        }
        if to == QPS_RTR {
            let gid = std::net::Ipv6Addr::from(a.route.gid.0);
            let Some(ip) = gid.to_ipv4_mapped().filter(|_| a.route.is_global == 1) else { return INVALID };
            inner.peer = (ip, a.peer);
        }
        if to == QPS_RTS && given & mask::TIMEOUT != 0 {
            let one = Duration::from_nanos(4096 << a.timeout.min(31));
            inner.answer = (one * u32::from(a.retries + 1)).max(ANSWER_TIME_MIN);
            inner.rnr_retries = a.rnr_retries;
        }
        match to {
            QPS_ERROR => self.fail(&mut inner),
            QPS_RESET => {
                self.end(&mut inner);
                inner.sends.clear();
                inner.receives.clear();
                inner.state = QPS_RESET;
            }
            _ => inner.state = to,
        }
        0
    }

    /// Ends the sockets; threads that wait on them return.
    fn end(&self, inner: &mut Inner) {
        for s in inner.sockets.drain(..) {
            let _ = s.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// The pair is in error: what was posted is flushed.
    fn fail(&self, inner: &mut Inner) {
        inner.state = QPS_ERROR;
        for w in inner.sends.drain(..) {
            self.send_queue.push(self.completion(w.id, status::FLUSHED, 0, 0));
        }
        for r in inner.receives.drain(..) {
            self.receive_queue.push(self.completion(r.id, status::FLUSHED, WC_RECEIVE, 0));
        }
        self.end(inner);
    }

    /// The program ends the pair: no memory is touched for it afterwards.
    pub fn destroy(&self) {
        world::leave(self.number);
        let mut inner = lock(&self.inner);
        inner.state = QPS_ERROR;
        inner.sends.clear();
        inner.receives.clear();
        self.end(&mut inner);
    }

    fn completion(&self, id: u64, status: i32, opcode: i32, bytes: u32) -> Completion {
        Completion { id, status, opcode, bytes, qp: self.number, ..Completion::default() }
    }

    pub fn post_receive(&self, r: Receive) -> i32 {
        let mut inner = lock(&self.inner);
        match inner.state {
            QPS_RESET => return INVALID,
            QPS_ERROR => self.receive_queue.push(self.completion(r.id, status::FLUSHED, WC_RECEIVE, 0)),
            _ if inner.receives.len() >= self.capacity.receives as usize => return NO_MEMORY,
            _ => inner.receives.push_back(r),
        }
        self.changed.notify_all();
        0
    }

    pub fn post_send(self: &Arc<Self>, mut w: Work) -> i32 {
        w.signaled |= self.all_signaled;
        let mut inner = lock(&self.inner);
        match inner.state {
            QPS_ERROR => self.send_queue.push(self.completion(w.id, status::FLUSHED, 0, 0)),
            QPS_RTS if inner.sends.len() >= self.capacity.sends as usize => return NO_MEMORY,
            QPS_RTS => {
                inner.sends.push_back(w);
                if !std::mem::replace(&mut inner.has_worker, true) {
                    let pair = self.clone();
                    let work = std::thread::Builder::new().name("emulated-rdma".into()).spawn(move || pair.work());
                    if work.is_err() {
                        return NO_MEMORY;
                    }
                }
                self.changed.notify_all();
            }
            _ => return INVALID,
        }
        0
    }

    fn work(&self) {
        let mut stream = None;
        while let Some(work) = self.next() {
            let status = self.perform(&mut stream, &work).unwrap_or(status::RETRIES);
            let mut inner = lock(&self.inner);
            if inner.state != QPS_RTS {
                return;
            }
            inner.sends.pop_front();
            let bytes = work.parts.iter().map(|p| p.bytes).sum();
            if work.signaled || status != status::SUCCESS {
                let opcode = match work.opcode {
                    WR_SEND | WR_SEND_IMM => WC_SEND,
                    WR_READ => WC_READ,
                    _ => WC_WRITE,
                };
                self.send_queue.push(self.completion(work.id, status, opcode, bytes));
            }
            if status != status::SUCCESS {
                self.fail(&mut inner);
                return;
            }
        }
    }

    /// The oldest send; `None`: the pair is over.
    fn next(&self) -> Option<Work> {
        let mut inner = lock(&self.inner);
        loop {
            if inner.state != QPS_RTS {
                return None;
            }
            if let Some(w) = inner.sends.front() {
                return Some(w.clone());
            }
            inner = self.changed.wait(inner).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Carries out a send; returns the status of its completion.
    fn perform(&self, stream: &mut Option<TcpStream>, w: &Work) -> io::Result<i32> {
        let mut bytes = vec![0; HEAD_BYTES];
        match &w.inline {
            Some(inline) => bytes.extend_from_slice(inline),
            None if w.opcode == WR_READ => {}
            None if !w.parts.iter().all(|p| memory::read(p, self.pd, &mut bytes)) => {
                return Ok(status::LOCAL_PROTECTION);
            }
            None => {}
        }
        let asked: u32 = w.parts.iter().map(|p| p.bytes).sum();
        let length = if w.opcode == WR_READ { asked } else { (bytes.len() - HEAD_BYTES) as u32 };
        let head = [w.opcode as u32, length, w.immediate, w.rkey].map(u32::to_le_bytes).concat();
        bytes.iter_mut().zip(head.iter().chain(&w.address.to_le_bytes())).for_each(|(to, b)| *to = *b);
        if self.nic.is_dead() {
            std::thread::sleep(DEAD_TIME);
            return Ok(status::RETRIES);
        }
        if stream.is_none() {
            *stream = Some(self.dial()?);
        }
        let Some(s) = stream else { return Ok(status::RETRIES) };
        s.write_all(&bytes)?;
        let retries = lock(&self.inner).rnr_retries;
        for asked in 0u32.. {
            let answer = word(s)?;
            if answer != RNR {
                if w.opcode == WR_READ && answer == 0 {
                    return self.take_read(s, w);
                }
                return Ok(answer as i32);
            }
            if retries < RNR_FOR_EVER && asked >= u32::from(retries) {
                return Ok(status::RNR_RETRIES);
            }
        }
        Ok(status::RETRIES)
    }

    fn take_read(&self, s: &mut TcpStream, w: &Work) -> io::Result<i32> {
        for part in &w.parts {
            let mut bytes = vec![0; part.bytes as usize];
            s.read_exact(&mut bytes)?;
            let inner = lock(&self.inner);
            if inner.state != QPS_RTS || !memory::place(part, self.pd, &bytes) {
                return Ok(status::LOCAL_PROTECTION);
            }
        }
        Ok(status::SUCCESS)
    }

    fn dial(&self) -> io::Result<TcpStream> {
        let (peer, answer) = {
            let inner = lock(&self.inner);
            (inner.peer, inner.answer)
        };
        let fd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
        rustix::net::bind(&fd, &SocketAddr::from((self.nic.ip, 0)))?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(answer))?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(answer))?;
        rustix::net::connect(&fd, &SocketAddr::V4(SocketAddrV4::new(peer.0, world::port(peer.1))))?;
        let mut s = TcpStream::from(fd);
        s.set_nodelay(true)?;
        let mut inner = lock(&self.inner);
        if inner.state != QPS_RTS {
            return Err(io::ErrorKind::NotConnected.into());
        }
        inner.sockets.push(s.try_clone()?);
        drop(inner);
        s.write_all(&[MAGIC, peer.1, self.number].map(u32::to_le_bytes).concat())?;
        Ok(s)
    }

    /// Serves the peer's requests on a socket until it ends.
    pub fn serve(&self, mut s: TcpStream) {
        let Ok(copy) = s.try_clone() else { return };
        {
            let mut inner = lock(&self.inner);
            if !(QPS_RTR..=QPS_RTS).contains(&inner.state) {
                return;
            }
            inner.sockets.push(copy);
        }
        while self.serve_one(&mut s).is_ok_and(|good| good) {}
        let _ = s.shutdown(Shutdown::Both);
    }

    /// False: the pair is in error.
    fn serve_one(&self, s: &mut TcpStream) -> io::Result<bool> {
        let mut head = [0; HEAD_BYTES];
        s.read_exact(&mut head)?;
        let at = |i: usize| head.get(4 * i..4 * i + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        let (opcode, length, immediate, rkey) = (at(0) as i32, at(1), at(2), at(3));
        let address = u64::from(at(4)) | u64::from(at(5)) << 32;
        if length > REQUEST_BYTES_MAX {
            return Ok(false);
        }
        let mut bytes = Vec::new();
        if opcode != WR_READ {
            bytes.resize(length as usize, 0);
            s.read_exact(&mut bytes)?;
        }
        if self.nic.is_dead() {
            // A dead device answers nothing.
            std::thread::sleep(DEAD_TIME);
            let mut inner = lock(&self.inner);
            self.fail(&mut inner);
            return Ok(false);
        }
        let is_write = matches!(opcode, WR_WRITE | WR_WRITE_IMM);
        let mut late = is_write.then(|| self.nic.hold_back()).flatten();
        let takes = matches!(opcode, WR_SEND | WR_SEND_IMM | WR_WRITE_IMM);
        while takes && !self.has_receive()? {
            s.write_all(&RNR.to_le_bytes())?;
        }
        let answer = {
            let mut inner = lock(&self.inner);
            if !(QPS_RTR..=QPS_RTS).contains(&inner.state) {
                return Ok(false);
            }
            let answer = match opcode {
                WR_READ if memory::fetch(rkey, self.pd, address, length, &mut bytes) => status::SUCCESS,
                WR_WRITE | WR_WRITE_IMM if length == 0 => status::SUCCESS,
                WR_WRITE | WR_WRITE_IMM if memory::write(rkey, self.pd, address, &bytes) => status::SUCCESS,
                WR_SEND | WR_SEND_IMM => status::SUCCESS,
                _ => status::REMOTE_ACCESS,
            };
            if let Some(late) = &mut late {
                late.landed = answer == status::SUCCESS;
            }
            let answer = if takes && answer == status::SUCCESS {
                self.receive(&mut inner, opcode, immediate, &bytes)
            } else {
                answer
            };
            if answer != status::SUCCESS {
                self.fail_later(&mut inner);
            }
            answer
        };
        s.write_all(&(answer as u32).to_le_bytes())?;
        if opcode == WR_READ && answer == status::SUCCESS {
            s.write_all(&bytes)?;
        }
        Ok(answer == status::SUCCESS)
    }

    /// As [`fail`](Pair::fail), but the socket stays for the answer.
    fn fail_later(&self, inner: &mut Inner) {
        let sockets = std::mem::take(&mut inner.sockets);
        self.fail(inner);
        inner.sockets = sockets;
    }

    /// Waits [`RNR_INTERVAL`] for a posted receive.
    fn has_receive(&self) -> io::Result<bool> {
        let inner = lock(&self.inner);
        let empty = |i: &mut Inner| i.receives.is_empty() && (QPS_RTR..=QPS_RTS).contains(&i.state);
        let waited = self.changed.wait_timeout_while(inner, RNR_INTERVAL, empty);
        let (inner, _) = waited.unwrap_or_else(|e| e.into_inner());
        match (QPS_RTR..=QPS_RTS).contains(&inner.state) {
            true => Ok(!inner.receives.is_empty()),
            false => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// A message, or the word beside a write, takes a posted receive.
    fn receive(&self, inner: &mut Inner, opcode: i32, immediate: u32, bytes: &[u8]) -> i32 {
        let Some(r) = inner.receives.pop_front() else { return status::REMOTE_OPERATION };
        let is_write = opcode == WR_WRITE_IMM;
        let mut c = self.completion(r.id, status::SUCCESS, WC_RECEIVE, bytes.len() as u32);
        if is_write {
            c.opcode = WC_RECEIVE_IMM;
        } else {
            let mut rest = bytes;
            for part in &r.parts {
                let (now, later) = rest.split_at(rest.len().min(part.bytes as usize));
                if !memory::place(part, self.pd, now) {
                    c.status = status::LOCAL_PROTECTION;
                }
                rest = later;
            }
            if !rest.is_empty() {
                c.status = status::LOCAL_LENGTH;
            }
        }
        if opcode != WR_SEND {
            (c.immediate, c.flags) = (immediate, WC_WITH_IMM);
        }
        self.receive_queue.push(c);
        if c.status == status::SUCCESS { status::SUCCESS } else { status::REMOTE_INVALID }
    }
}

fn word(s: &mut TcpStream) -> io::Result<u32> {
    let mut bytes = [0; 4];
    s.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}
