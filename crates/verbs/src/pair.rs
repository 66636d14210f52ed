//! A queue pair to one peer: short messages into buffers of its own, and writes into registered memory of the peer with 32 bits beside them.
//!
//! A pair has one completion queue with a descriptor. Every request is signaled. Messages and writes arrive in the order in which they were posted; a
//! message that has arrived proves that all earlier writes are in place.
#![allow(unsafe_code)]

use crate::abi::*;
use crate::nic::{Nic, Region};
use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::Arc;

/// Longest message, bytes.
pub const MESSAGE_BYTES: usize = 640;
/// Messages and writes that may arrive before the program has looked at them. The peer's limits keep it below; beyond, its device waits.
const RECEIVES: usize = 320;
/// Messages that may be on their way.
const MESSAGES: usize = 128;
/// Writes that may be on their way.
const WRITES: usize = 128;
/// Completions that one poll takes at most.
const POLL: usize = 16;
/// Wait for an acknowledgement: 4.096 µs · 2^14 = 67 ms, seven times.
const TIMEOUT: u8 = 14;
const RETRIES: u8 = 7;
/// A peer without a posted receive is asked again for ever, every 0.64 ms: a stopped process is waited for.
const RNR_TIMER: u8 = 12;
const RNR_RETRIES: u8 = 7;
const HOPS: u8 = 64;

/// Ids of requests: the kind above, the slot below.
const KIND: u32 = 32;
const ID_MESSAGE: u64 = 0;
const ID_WRITE: u64 = 1;
const ID_RECEIVE: u64 = 2;

/// What a peer must know of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Address {
    /// Number of the queue pair, 24 bits.
    pub number: u32,
    /// First packet number, 24 bits.
    pub psn: u32,
    pub gid: [u8; 16],
    pub mtu: u8,
}

/// What has arrived.
#[derive(Debug)]
pub enum Event<'a> {
    Message(&'a [u8]),
    /// `bytes` were written to this side's memory.
    Written {
        immediate: u32,
        bytes: u32,
    },
}

/// See the module documentation.
#[derive(Debug)]
pub struct Pair {
    nic: Arc<Nic>,
    channel: *mut Channel,
    cq: *mut Cq,
    qp: *mut Qp,
    /// Buffers: those of receives, then those of messages.
    slab: *mut u8,
    region: Option<Region>,
    free: Vec<u16>,
    writes: usize,
    used: Vec<u16>,
    psn: u32,
}

// SAFETY: a pair is used by one thread at a time; the library does not care which.
unsafe impl Send for Pair {}

const SLAB: std::alloc::Layout = match std::alloc::Layout::from_size_align((RECEIVES + MESSAGES) * MESSAGE_BYTES, 4096)
{
    Ok(layout) => layout,
    Err(_) => panic!("no layout"),
};

fn check(rc: c_int) -> io::Result<()> {
    if rc == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(rc.abs())) }
}

fn failed(what: &str) -> io::Error {
    let e = io::Error::last_os_error();
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

/// What a completion's status means.
fn name(status: c_int) -> String {
    match status {
        status::LOCAL_LENGTH => "a message is longer than its buffer".into(),
        status::LOCAL_PROTECTION => "memory of this side is not registered".into(),
        status::FLUSHED => "the queue pair has ended".into(),
        status::REMOTE_INVALID => "the peer refuses the request".into(),
        status::REMOTE_ACCESS => "the peer's memory is not registered for this write".into(),
        status::RETRIES => "the peer does not answer".into(),
        status::RNR_RETRIES => "the peer takes no message".into(),
        other => format!("RDMA status {other}"),
    }
}

impl Pair {
    /// A pair that is not connected yet. `psn`: a random first packet number.
    ///
    /// # Errors
    /// The device has no room, or is gone.
    pub fn new(nic: &Arc<Nic>, psn: u32) -> io::Result<Self> {
        let mut p = Pair {
            nic: nic.clone(),
            channel: null_mut(),
            cq: null_mut(),
            qp: null_mut(),
            slab: null_mut(),
            region: None,
            free: (0..MESSAGES as u16).rev().collect(),
            writes: 0,
            used: Vec::with_capacity(RECEIVES),
            psn: psn & 0xff_ffff,
        };
        let library = nic.library;
        // SAFETY: an open device, and objects that `Drop` ends. The slab is zeroed memory that lives as long as its registration.
        unsafe {
            p.channel = (library.create_comp_channel)(nic.context);
            if p.channel.is_null() {
                return Err(failed("no completion channel"));
            }
            rustix::fs::fcntl_setfl(p.fd(), rustix::fs::OFlags::NONBLOCK)?;
            let entries = (RECEIVES + MESSAGES + WRITES) as c_int;
            p.cq = (library.create_cq)(nic.context, entries, null_mut(), p.channel, 0);
            if p.cq.is_null() {
                return Err(failed("no completion queue"));
            }
            p.slab = std::alloc::alloc_zeroed(SLAB);
            if p.slab.is_null() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            p.region = Some(nic.register(p.slab, SLAB.size())?);
            let capacity = Capacity {
                sends: (MESSAGES + WRITES) as u32,
                receives: RECEIVES as u32,
                send_parts: 1,
                receive_parts: 1,
                inline_bytes: 0,
            };
            let mut init = QpInit {
                user: null_mut(),
                send_cq: p.cq,
                receive_cq: p.cq,
                srq: null_mut(),
                capacity,
                kind: QPT_RC,
                all_signaled: 0,
            };
            p.qp = (library.create_qp)(nic.pd, &mut init);
            if p.qp.is_null() {
                return Err(failed("no queue pair"));
            }
        }
        let mut a = QpAttributes { state: QPS_INIT, port: nic.port, ..QpAttributes::default() };
        a.access = ACCESS_REMOTE_WRITE as u32;
        p.modify(&mut a, mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS)?;
        p.rearm()?;
        p.used.extend(0..RECEIVES as u16);
        p.repost()?;
        Ok(p)
    }

    fn modify(&self, a: &mut QpAttributes, mask: c_int) -> io::Result<()> {
        // SAFETY: a queue pair of this object, and the address of its attributes.
        check(unsafe { (self.nic.library.modify_qp)(self.qp, a, mask) })
    }

    pub fn address(&self) -> Address {
        // SAFETY: a queue pair of this object.
        let number = unsafe { (*self.qp).number };
        Address { number, psn: self.psn, gid: self.nic.gid.0, mtu: self.nic.mtu as u8 }
    }

    /// Connects to the peer's pair: from now on it may write and send, and so may this side.
    ///
    /// # Errors
    /// The device refuses the address.
    pub fn connect(&self, peer: &Address) -> io::Result<()> {
        let route = Route {
            gid: Gid(peer.gid),
            gid_index: self.nic.gid_index,
            hops: HOPS,
            is_global: 1,
            port: self.nic.port,
            ..Route::default()
        };
        let mtu = self.nic.mtu.min(i32::from(peer.mtu)).clamp(1, MTU_4096);
        let mut a = QpAttributes { state: QPS_RTR, mtu, route, ..QpAttributes::default() };
        (a.peer, a.receive_psn, a.rnr_timer) = (peer.number & 0xff_ffff, peer.psn & 0xff_ffff, RNR_TIMER);
        let way = mask::STATE | mask::ROUTE | mask::MTU | mask::PEER;
        self.modify(&mut a, way | mask::RECEIVE_PSN | mask::PEER_READS | mask::RNR_TIMER)?;
        let mut a = QpAttributes { state: QPS_RTS, send_psn: self.psn, ..QpAttributes::default() };
        (a.timeout, a.retries, a.rnr_retries) = (TIMEOUT, RETRIES, RNR_RETRIES);
        let tries = mask::TIMEOUT | mask::RETRIES | mask::RNR_RETRIES;
        self.modify(&mut a, mask::STATE | tries | mask::SEND_PSN | mask::READS)
    }

    /// Readable when something has arrived or ended.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives as long as this object.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// Takes the descriptor's news, and asks for more. To be called before [`poll`](Pair::poll).
    ///
    /// # Errors
    /// The device is gone.
    pub fn rearm(&self) -> io::Result<()> {
        // SAFETY: objects of this pair; the descriptor does not block.
        unsafe {
            let (mut cq, mut user) = (null_mut(), null_mut());
            while (self.nic.library.get_cq_event)(self.channel, &mut cq, &mut user) == 0 {
                (self.nic.library.ack_cq_events)(cq, 1);
            }
            match (*self.nic.context).request_notify {
                Some(f) => check(f(self.cq, 0)),
                None => Err(io::ErrorKind::Unsupported.into()),
            }
        }
    }

    /// True if a message can be sent, besides `other` ones.
    pub fn takes_message(&self, other: usize) -> bool {
        self.free.len() > other
    }

    pub fn takes_write(&self) -> bool {
        self.writes < WRITES
    }

    /// Everything that was posted has ended.
    pub fn is_idle(&self) -> bool {
        self.writes == 0 && self.free.len() == MESSAGES
    }

    /// Writes are on their way: the device reads the program's memory.
    pub fn is_writing(&self) -> bool {
        self.writes > 0
    }

    fn slot(&self, i: usize) -> *mut u8 {
        // SAFETY: the slab has `RECEIVES + MESSAGES` slots.
        unsafe { self.slab.add(i.min(RECEIVES + MESSAGES - 1) * MESSAGE_BYTES) }
    }

    fn lkey(&self) -> u32 {
        self.region.as_ref().map_or(0, |r| r.lkey)
    }

    /// Sends a message. False: not now.
    ///
    /// # Errors
    /// The pair is of no more use.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if bytes.len() > MESSAGE_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let Some(slot) = self.free.pop() else { return Ok(false) };
        let at = self.slot(RECEIVES + usize::from(slot));
        // SAFETY: a slot has `MESSAGE_BYTES` bytes, and no request uses this one.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
        let mut part = Part { address: at as u64, bytes: bytes.len() as u32, lkey: self.lkey() };
        self.post(ID_MESSAGE << KIND | u64::from(slot), WR_SEND, Some(&mut part), 0, (0, 0))?;
        Ok(true)
    }

    /// Writes `part` to the peer's memory at `(address, rkey)` and gives it 32 bits. [`takes_write`](Pair::takes_write) must hold. The memory stays as it
    /// is until the peer has said that it has arrived, or this pair has ended.
    ///
    /// # Errors
    /// The pair is of no more use.
    pub fn write(&mut self, mut part: Part, to: (u64, u32), immediate: u32) -> io::Result<()> {
        self.writes += 1;
        let part = (part.bytes > 0).then_some(&mut part);
        self.post(ID_WRITE << KIND, WR_WRITE_IMM, part, immediate, to)
    }

    fn post(&self, id: u64, opcode: c_int, part: Option<&mut Part>, immediate: u32, to: (u64, u32)) -> io::Result<()> {
        let count = c_int::from(part.is_some());
        let mut request = SendRequest {
            id,
            next: null_mut(),
            parts: part.map_or(null_mut(), |p| p),
            count,
            opcode,
            flags: SEND_SIGNALED,
            immediate: immediate.to_be(),
            remote_address: to.0,
            rkey: to.1,
            unused: [0; 9],
        };
        let mut bad = null_mut();
        // SAFETY: a queue pair of this object; the request and its part live during the call, which copies them.
        unsafe {
            match (*self.nic.context).post_send {
                Some(f) => check(f(self.qp, &mut request, &mut bad)),
                None => Err(io::ErrorKind::Unsupported.into()),
            }
        }
    }

    /// Gives the used receives back to the device.
    fn repost(&mut self) -> io::Result<()> {
        let Some(post) = (
            // SAFETY: an open device.
            unsafe { (*self.nic.context).post_receive }
        ) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        for slot in std::mem::take(&mut self.used) {
            let at = self.slot(usize::from(slot)) as u64;
            let mut part = Part { address: at, bytes: MESSAGE_BYTES as u32, lkey: self.lkey() };
            let id = ID_RECEIVE << KIND | u64::from(slot);
            let mut request = ReceiveRequest { id, next: null_mut(), parts: &mut part, count: 1 };
            let mut bad = null_mut();
            // SAFETY: as in `post`; no request uses this slot.
            check(unsafe { post(self.qp, &mut request, &mut bad) })?;
        }
        Ok(())
    }

    /// Takes what has arrived, at most `most` completions. Returns how many there were.
    ///
    /// # Errors
    /// The pair is of no more use, or `take` fails.
    pub fn poll(&mut self, most: usize, mut take: impl FnMut(Event<'_>) -> io::Result<()>) -> io::Result<usize> {
        let mut all = 0;
        while all < most {
            let mut list = [Completion::default(); POLL];
            // SAFETY: a completion queue of this object, and a list with `POLL` members.
            let got = unsafe {
                match (*self.nic.context).poll_cq {
                    Some(f) => f(self.cq, POLL as c_int, list.as_mut_ptr()),
                    None => return Err(io::ErrorKind::Unsupported.into()),
                }
            };
            let got = usize::try_from(got).map_err(|_| io::Error::other("the completion queue is lost"))?;
            for c in list.iter().take(got) {
                self.take(c, &mut take)?;
            }
            all += got;
            if got < POLL {
                break;
            }
        }
        if !self.used.is_empty() {
            self.repost()?;
        }
        Ok(all)
    }

    fn take(&mut self, c: &Completion, take: &mut impl FnMut(Event<'_>) -> io::Result<()>) -> io::Result<()> {
        if c.status != status::SUCCESS {
            return Err(io::Error::other(name(c.status)));
        }
        let slot = (c.id & 0xffff) as u16;
        match c.id >> KIND {
            ID_MESSAGE => self.free.push(slot),
            ID_WRITE => self.writes = self.writes.saturating_sub(1),
            _ => {
                self.used.push(slot);
                if c.opcode == WC_RECEIVE_IMM {
                    return take(Event::Written { immediate: u32::from_be(c.immediate), bytes: c.bytes });
                }
                let at = self.slot(usize::from(slot));
                // SAFETY: the device has filled this slot and leaves it alone until it is posted again, after `take`.
                let bytes = unsafe { std::slice::from_raw_parts(at, (c.bytes as usize).min(MESSAGE_BYTES)) };
                return take(Event::Message(bytes));
            }
        }
        Ok(())
    }
}

impl Drop for Pair {
    /// Ends the pair: afterwards the device reads and writes no memory for it.
    fn drop(&mut self) {
        // SAFETY: objects of this pair, each ended once, users before what they use.
        unsafe {
            if !self.qp.is_null() {
                (self.nic.library.destroy_qp)(self.qp);
            }
            if !self.cq.is_null() {
                (self.nic.library.destroy_cq)(self.cq);
            }
            if !self.channel.is_null() {
                (self.nic.library.destroy_comp_channel)(self.channel);
            }
            drop(self.region.take());
            if !self.slab.is_null() {
                std::alloc::dealloc(self.slab, SLAB);
            }
        }
    }
}
