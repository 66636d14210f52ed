//! The data plane of one process: what it sends, what it receives, and what it forwards. [`Plane::step`] does what can be done now and returns at once,
//! so a caller that polls (NCCL's `test`) drives it; copy engines work between the calls.

use crate::control::{Chunk, Control, OPEN_MESSAGES_MAX, Shape};
use crate::device::{Address, Device, DeviceError, Handle};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

/// Copies that are queued on one link by one process: enough to keep it busy while the process does not look, few enough to choose late.
const FLYING_MAX: usize = 4;
/// Time between two looks for dead processes.
const LOOK: Duration = Duration::from_millis(100);
/// Sleep while nothing can be done.
const NAP: Duration = Duration::from_micros(100);

/// Why bytes do not move. The plane is of no use afterwards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlaneError {
    /// The paths or sizes are out of range.
    Shape(String),
    /// The process of this rank has ended.
    Died(usize),
    /// Another process wrote what it must not.
    Protocol(String),
    /// More than [`OPEN_MESSAGES_MAX`] messages between two GPUs, or a split that is not one of the message.
    Call(String),
    /// A wait has lasted too long.
    Late(&'static str),
    /// The GPU refused a call.
    Device(DeviceError),
    /// The shared memory or the folder failed.
    Host(String),
}

impl fmt::Display for PlaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlaneError::Shape(what) => write!(f, "paths refused: {what}"),
            PlaneError::Died(rank) => write!(f, "the process of rank {rank} has ended"),
            PlaneError::Protocol(what) => write!(f, "another process broke the protocol: {what}"),
            PlaneError::Call(what) => write!(f, "call refused: {what}"),
            PlaneError::Late(what) => write!(f, "waited too long for {what}"),
            PlaneError::Device(e) => e.fmt(f),
            PlaneError::Host(e) => f.write_str(e),
        }
    }
}

impl std::error::Error for PlaneError {}

impl From<DeviceError> for PlaneError {
    fn from(e: DeviceError) -> Self {
        PlaneError::Device(e)
    }
}

/// What to say when a copy has ended.
#[derive(Clone, Copy)]
enum Then {
    Direct { send: u64, bytes: u64 },
    Pushed { send: u64, path: usize, chunk: Chunk },
    Pulled { path: usize, place: usize, chunk: Chunk },
    Forwarded { path: usize, place: usize, chunk: Chunk },
}

/// One direction of one link, as this process uses it: copies in order.
struct Lane<D: Device> {
    stream: D::Stream,
    flying: VecDeque<(D::Event, Then)>,
    spare: Vec<D::Event>,
}

/// A share of a message: its range, and the next byte to copy.
struct Part {
    path: usize,
    begin: u64,
    next: u64,
    end: u64,
}

struct Outgoing {
    dst: usize,
    number: u64,
    from: Address,
    bytes: u64,
    parts: Vec<Part>,
    /// The receiver's buffer, once it is posted.
    target: Option<Address>,
    copied: u64,
}

struct Incoming {
    src: usize,
    number: u64,
    to: Address,
    bytes: u64,
    pulled: u64,
}

/// Memory of this GPU that others may write.
#[derive(Debug, Clone, Copy)]
pub struct Registered {
    begin: Address,
    bytes: u64,
    handle: Handle,
}

/// See the module documentation. `D`: the GPU.
pub struct Plane<D: Device> {
    device: D,
    control: Control,
    shape: Shape,
    me: usize,
    stage: u64,
    /// Staging memory of every GPU of which this process uses some.
    staging: Vec<Option<Address>>,
    /// Place of the rings in staging memory, by path and place.
    rings: HashMap<(usize, usize), usize>,
    /// Links from this GPU, and to it, by the other GPU.
    out: Vec<Lane<D>>,
    into: Vec<Lane<D>>,
    /// Rings that this process empties over the link from a GPU.
    pulls: Vec<Vec<(usize, usize)>>,
    /// Rings in this GPU's memory that are emptied over the link to a GPU.
    lent: Vec<Vec<(usize, usize)>>,
    turn: usize,
    /// Chunks that this process has begun to copy into a ring, and out of it.
    filling: HashMap<(usize, usize), u64>,
    emptying: HashMap<(usize, usize), u64>,
    opened: HashMap<Handle, Address>,
    sends: BTreeMap<u64, Outgoing>,
    receives: BTreeMap<u64, Incoming>,
    sent: Vec<u64>,
    received: Vec<u64>,
    ids: u64,
    looked: Instant,
    failed: Option<PlaneError>,
}

impl<D: Device> fmt::Debug for Plane<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plane(rank {}, {} sends, {} receives)", self.me, self.sends.len(), self.receives.len())
    }
}

impl<D: Device> Plane<D> {
    /// Joins the other processes of the host in a folder that they share, and waits for all of them.
    pub fn join(device: D, folder: &FilePath, me: usize, shape: Shape, patience: Duration) -> Result<Self, PlaneError> {
        if let Some(fault) = shape.fault() {
            return Err(PlaneError::Shape(fault));
        }
        let until = Instant::now() + patience;
        let host = |e: std::io::Error| PlaneError::Host(format!("cannot join in {}: {e}", folder.display()));
        let control = Control::join(folder, me, &shape, until).map_err(host)?;
        let ranks = shape.ranks;
        let own = match shape.staging_bytes(me) {
            0 => None,
            bytes => Some(device.allocate(bytes)?),
        };
        let handle = own.map(|at| device.export(at)).transpose()?;
        control.arrive(me, 1, handle.as_ref());
        while !control.all_arrived(1) {
            if Instant::now() > until {
                return Err(PlaneError::Late("the other processes"));
            }
            std::thread::sleep(NAP);
        }
        let mut rings = HashMap::new();
        for rank in 0..ranks {
            let bytes = shape.slots * shape.chunk_bytes;
            rings.extend(shape.rings_of(rank).enumerate().map(|(i, ring)| (ring, i * bytes)));
        }
        let mut pulls = vec![Vec::new(); ranks];
        let mut lent = vec![Vec::new(); ranks];
        let mut needed = vec![false; ranks];
        for (p, path) in shape.paths.iter().enumerate() {
            let n = &path.nodes;
            needed[n[1]] |= n[0] == me && n.len() > 2;
            for h in (1..n.len() - 1).filter(|h| n[*h] == me) {
                lent[n[h + 1]].push((p, h));
            }
            for h in (1..n.len() - 1).filter(|h| n[h + 1] == me) {
                pulls[n[h]].push((p, h));
                needed[n[h]] = true;
            }
        }
        let mut staging = vec![None; ranks];
        for rank in 0..ranks {
            staging[rank] = match (rank == me, needed[rank]) {
                (true, _) => own,
                (_, true) => Some(device.open(&control.staging(rank))?),
                _ => None,
            };
        }
        let lane = || -> Result<Lane<D>, PlaneError> {
            let spare = (0..FLYING_MAX).map(|_| device.event()).collect::<Result<_, _>>()?;
            Ok(Lane { stream: device.stream()?, flying: VecDeque::new(), spare })
        };
        let lanes = || (0..ranks).map(|_| lane()).collect::<Result<Vec<_>, _>>();
        let (out, into) = (lanes()?, lanes()?);
        Ok(Plane {
            device,
            control,
            me,
            stage: 1,
            staging,
            rings,
            out,
            into,
            pulls,
            lent,
            turn: 0,
            filling: HashMap::new(),
            emptying: HashMap::new(),
            opened: HashMap::new(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            sent: vec![0; ranks],
            received: vec![0; ranks],
            ids: 0,
            looked: Instant::now(),
            failed: None,
            shape,
        })
    }

    /// The GPU.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Names an allocation of this process, so that peers can copy to it.
    pub fn register(&self, begin: Address, bytes: u64) -> Result<Registered, PlaneError> {
        Ok(Registered { begin, bytes, handle: self.device.export(begin)? })
    }

    /// Posts a buffer for the next message of a rank.
    pub fn receive(&mut self, src: usize, buffer: &Registered, offset: u64, bytes: u64) -> Result<u64, PlaneError> {
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= buffer.bytes);
        let open = self.receives.values().filter(|r| r.src == src).count();
        if src >= self.shape.ranks || src == self.me || !fits || open == OPEN_MESSAGES_MAX {
            return Err(PlaneError::Call(format!("a receive of {bytes} bytes from rank {src}, {open} open")));
        }
        let number = self.received[src];
        self.received[src] += 1;
        self.control.post((src, self.me, number), &buffer.handle, offset, bytes);
        let receive = Incoming { src, number, to: buffer.begin + offset, bytes, pulled: 0 };
        self.ids += 1;
        self.receives.insert(self.ids, receive);
        Ok(self.ids)
    }

    /// Sends a message; `split` has the paths (indices in the shape) and their bytes, which sum to the message's.
    pub fn send(&mut self, dst: usize, from: Address, split: &[(usize, u64)]) -> Result<u64, PlaneError> {
        let mut bytes = 0u64;
        let mut parts = Vec::new();
        for &(path, share) in split {
            let ends = self.shape.paths.get(path).map(|p| (p.nodes[0], p.nodes[p.nodes.len() - 1]));
            if ends != Some((self.me, dst)) {
                return Err(PlaneError::Call(format!("path {path} does not go from rank {} to rank {dst}", self.me)));
            }
            let begin = bytes;
            bytes = bytes.checked_add(share).ok_or_else(|| PlaneError::Call("a message of 2^64 bytes".into()))?;
            parts.push(Part { path, begin, next: begin, end: bytes });
        }
        if self.sends.values().filter(|s| s.dst == dst).count() == OPEN_MESSAGES_MAX {
            return Err(PlaneError::Call(format!("{OPEN_MESSAGES_MAX} messages to rank {dst} are open")));
        }
        let number = self.sent[dst];
        self.sent[dst] += 1;
        self.ids += 1;
        self.sends.insert(self.ids, Outgoing { dst, number, from, bytes, parts, target: None, copied: 0 });
        Ok(self.ids)
    }

    /// Whether a send or receive has ended: the buffer is free, or full.
    pub fn done(&self, id: u64) -> bool {
        !self.sends.contains_key(&id) && !self.receives.contains_key(&id)
    }

    /// Whether nothing is under way.
    pub fn idle(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }

    /// Does what can be done now. Returns whether that was anything.
    pub fn step(&mut self) -> Result<bool, PlaneError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let moved = self.advance();
        if let Err(e) = &moved {
            self.failed = Some(e.clone());
        }
        moved
    }

    fn advance(&mut self) -> Result<bool, PlaneError> {
        if self.looked.elapsed() > LOOK {
            self.looked = Instant::now();
            self.control.find_dead(self.me);
        }
        if let Some(rank) = self.control.known_dead() {
            return Err(PlaneError::Died(rank));
        }
        let mut moved = self.meet_receivers()?;
        for other in 0..self.shape.ranks {
            moved |= self.settle(other, true)? | self.settle(other, false)?;
            while self.out[other].flying.len() < FLYING_MAX && self.push(other)? {
                moved = true;
            }
            while self.into[other].flying.len() < FLYING_MAX && self.pull(other)? {
                moved = true;
            }
        }
        let control = &self.control;
        let before = (self.sends.len(), self.receives.len());
        self.sends.retain(|_, s| s.target.is_none() || s.copied < s.bytes);
        let me = self.me;
        self.receives.retain(|_, r| {
            let (announced, direct) = control.arrived((r.src, me, r.number));
            announced.is_none_or(|bytes| direct + r.pulled < bytes)
        });
        Ok(moved || before != (self.sends.len(), self.receives.len()))
    }

    /// Looks for buffers that receivers have posted.
    fn meet_receivers(&mut self) -> Result<bool, PlaneError> {
        let mut moved = false;
        for s in self.sends.values_mut().filter(|s| s.target.is_none()) {
            let Some((handle, offset, room)) = self.control.posted((self.me, s.dst, s.number)) else { continue };
            if s.bytes > room {
                return Err(PlaneError::Call(format!("{} bytes for a buffer of {room} of rank {}", s.bytes, s.dst)));
            }
            let begin = match self.opened.get(&handle) {
                Some(at) => *at,
                None => *self.opened.entry(handle).or_insert(self.device.open(&handle)?),
            };
            s.target = Some(begin + offset);
            self.control.announce((self.me, s.dst, s.number), s.bytes);
            moved = true;
        }
        Ok(moved)
    }

    /// Tells the peers of copies that have ended.
    fn settle(&mut self, other: usize, outward: bool) -> Result<bool, PlaneError> {
        let mut moved = false;
        loop {
            let lane = if outward { &mut self.out[other] } else { &mut self.into[other] };
            let Some(&(event, then)) = lane.flying.front() else { return Ok(moved) };
            if !self.device.done(event)? {
                return Ok(moved);
            }
            lane.flying.pop_front();
            lane.spare.push(event);
            moved = true;
            match then {
                Then::Direct { send, bytes } => {
                    if let Some(s) = self.sends.get_mut(&send) {
                        s.copied += bytes;
                        self.control.add_direct((self.me, s.dst, s.number), bytes);
                    }
                }
                Then::Pushed { send, path, chunk } => {
                    self.control.fill(path, 1, chunk);
                    if let Some(s) = self.sends.get_mut(&send) {
                        s.copied += chunk.bytes;
                    }
                }
                Then::Pulled { path, place, chunk } => {
                    self.control.free(path, place);
                    let src = self.shape.paths[path].nodes[0];
                    let of = self.receives.values_mut().find(|r| (r.src, r.number) == (src, chunk.message));
                    of.into_iter().for_each(|r| r.pulled += chunk.bytes);
                }
                Then::Forwarded { path, place, chunk } => {
                    self.control.free(path, place);
                    self.control.fill(path, place + 1, chunk);
                }
            }
        }
    }

    /// The address of a chunk in a ring.
    fn slot(&self, path: usize, place: usize, n: u64) -> Result<Address, PlaneError> {
        let rank = self.shape.paths[path].nodes[place];
        let ring = self.rings.get(&(path, place)).copied();
        let (Some(staging), Some(ring)) = (self.staging[rank], ring) else {
            return Err(PlaneError::Protocol(format!("no ring at place {place} of path {path}")));
        };
        Ok(staging + (ring + n as usize % self.shape.slots * self.shape.chunk_bytes) as u64)
    }

    /// Whether the ring has room for another chunk.
    fn has_credit(&self, path: usize, place: usize) -> bool {
        let begun = self.filling.get(&(path, place)).copied().unwrap_or(0);
        begun.saturating_sub(self.control.freed(path, place)) < self.shape.slots as u64
    }

    fn begin(
        &mut self,
        other: usize,
        outward: bool,
        to: Address,
        from: Address,
        bytes: u64,
        then: Then,
    ) -> Result<(), PlaneError> {
        let lane = if outward { &mut self.out[other] } else { &mut self.into[other] };
        let event = match lane.spare.pop() {
            Some(e) => e,
            None => self.device.event()?,
        };
        self.device.copy(to, from, bytes as usize, lane.stream, event)?;
        lane.flying.push_back((event, then));
        Ok(())
    }

    /// Copies the next chunk over the link to a GPU. Chunks for rings come first: another link waits for them. Chunks for the GPU itself, for which
    /// nothing waits, leave the link to chunks of others that wait in this GPU's memory. Among equals, of the share of which the largest part is left.
    fn push(&mut self, other: usize) -> Result<bool, PlaneError> {
        let mut best: Option<((bool, f64), u64, usize)> = None;
        let lent = self.lent[other].iter().any(|&(p, h)| self.control.filled(p, h) > self.control.freed(p, h));
        for (&id, s) in self.sends.iter().filter(|(_, s)| s.target.is_some()) {
            for (i, part) in s.parts.iter().enumerate().filter(|(_, p)| p.next < p.end) {
                let nodes = &self.shape.paths[part.path].nodes;
                let is_ring = nodes.len() > 2;
                if nodes[1] != other || (is_ring && !self.has_credit(part.path, 1)) || (!is_ring && lent) {
                    continue;
                }
                let left = (is_ring, (part.end - part.next) as f64 / (part.end - part.begin) as f64);
                if best.is_none_or(|(most, ..)| left > most) {
                    best = Some((left, id, i));
                }
            }
        }
        let Some((_, id, i)) = best else { return Ok(false) };
        let Some(s) = self.sends.get_mut(&id) else { return Ok(false) };
        let part = &mut s.parts[i];
        let (path, offset) = (part.path, part.next);
        let bytes = (part.end - offset).min(self.shape.chunk_bytes as u64);
        part.next += bytes;
        let (from, target, message) = (s.from + offset, s.target.unwrap_or_default(), s.number);
        if self.shape.paths[path].nodes.len() == 2 {
            self.begin(other, true, target + offset, from, bytes, Then::Direct { send: id, bytes })?;
            return Ok(true);
        }
        let n = self.filling.entry((path, 1)).or_insert(0);
        *n += 1;
        let to = {
            let n = *n - 1;
            self.slot(path, 1, n)?
        };
        let chunk = Chunk { message, offset, bytes };
        self.begin(other, true, to, from, bytes, Then::Pushed { send: id, path, chunk })?;
        Ok(true)
    }

    /// Copies the next chunk from a ring in the memory of a GPU; the rings take turns.
    fn pull(&mut self, other: usize) -> Result<bool, PlaneError> {
        let count = self.pulls[other].len();
        for i in 0..count {
            let (path, place) = self.pulls[other][(self.turn + i) % count];
            let n = self.emptying.get(&(path, place)).copied().unwrap_or(0);
            if n >= self.control.filled(path, place) {
                continue;
            }
            let chunk = self.control.chunk(path, place, n);
            let nodes = &self.shape.paths[path].nodes;
            let (src, last) = (nodes[0], place + 2 == nodes.len());
            if chunk.bytes > self.shape.chunk_bytes as u64 {
                return Err(PlaneError::Protocol(format!("a chunk of {} bytes from rank {src}", chunk.bytes)));
            }
            let (to, then) = if last {
                let of = self.receives.values().find(|r| (r.src, r.number) == (src, chunk.message));
                let fits = |r: &&Incoming| chunk.offset.checked_add(chunk.bytes).is_some_and(|end| end <= r.bytes);
                let Some(r) = of.filter(fits) else {
                    return Err(PlaneError::Protocol(format!("a chunk of no open message from rank {src}")));
                };
                (r.to + chunk.offset, Then::Pulled { path, place, chunk })
            } else if self.has_credit(path, place + 1) {
                let begun = self.filling.entry((path, place + 1)).or_insert(0);
                *begun += 1;
                let begun = *begun - 1;
                (self.slot(path, place + 1, begun)?, Then::Forwarded { path, place, chunk })
            } else {
                continue;
            };
            let from = self.slot(path, place, n)?;
            self.emptying.insert((path, place), n + 1);
            self.turn = self.turn.wrapping_add(1);
            self.begin(other, false, to, from, chunk.bytes, then)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Steps until a condition holds.
    pub fn until(
        &mut self,
        patience: Duration,
        what: &'static str,
        mut met: impl FnMut(&Self) -> bool,
    ) -> Result<(), PlaneError> {
        let end = Instant::now() + patience;
        while !met(self) {
            if !self.step()? {
                std::thread::sleep(NAP);
            }
            if Instant::now() > end {
                return Err(PlaneError::Late(what));
            }
        }
        Ok(())
    }

    /// Ends this process's part after the last barrier. Without it the others report that the process died.
    pub fn leave(self) {
        self.control.leave(self.me);
    }

    /// Waits for all processes; forwards meanwhile.
    pub fn barrier(&mut self, patience: Duration) -> Result<(), PlaneError> {
        self.stage += 1;
        let stage = self.stage;
        self.control.arrive(self.me, stage, None);
        self.until(patience, "the other processes", |p| p.control.all_arrived(stage))
    }
}
