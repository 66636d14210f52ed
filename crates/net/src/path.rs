//! One TCP path of a connection: partly written and partly read frames.

use crate::buffer::{self, Buffer};
use crate::frame::{Chunk, Frame, HEADER_BYTES};
use crate::sender::Order;
use crate::sockets::Socket;
use std::io::{self, ErrorKind};

/// Limit on control frames that wait for room. A path that is this far behind gets no more of them: they go over other paths, and are repeated.
const CONTROL_BACKLOG_MAX: usize = 64 << 10;
/// Bytes read at once where no payload is expected: small messages come with their header, in one call.
const AHEAD_BYTES: usize = 4096;
/// Reads per event: other paths get their turn.
const READS_MAX: usize = 32;
/// Bytes for chunks that are thrown away and for chunks whose message no longer needs them.
const SCRATCH_BYTES: usize = 16 << 10;

static ZEROS: [u8; SCRATCH_BYTES] = [0; SCRATCH_BYTES];

/// A chunk that is being written.
#[derive(Debug)]
struct Data {
    order: Order,
    head: Vec<u8>,
    /// Bytes written, the header included.
    at: usize,
}

/// A payload that is being read.
#[derive(Debug, Clone, Copy)]
struct Body {
    chunk: Chunk,
    bytes: u32,
    total: u64,
    at: u32,
}

/// The bytes of a chunk that is being written.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    Buffer(Buffer),
    /// The message is complete without this copy, and its buffer may belong to the program again. The receiver throws the bytes away.
    Zeros,
    /// The buffer is gone, but the message is still expected: nothing may arrive in its place.
    Gone,
}

/// What a path hands to its connection.
pub(crate) trait Reader {
    /// The place of the next bytes of a chunk; `None`: throw them away.
    fn place(&mut self, chunk: Chunk, bytes: u32, total: u64) -> io::Result<Option<(Buffer, u64)>>;
    /// All bytes of a chunk were read.
    fn arrived(&mut self, chunk: Chunk, bytes: u32, total: u64) -> io::Result<()>;
    /// A frame without payload.
    fn frame(&mut self, frame: Frame) -> io::Result<()>;
}

#[derive(Debug)]
pub(crate) struct Path {
    pub socket: Socket,
    /// Key of its events.
    pub key: u64,
    /// Reported when writable.
    pub wants_room: bool,
    /// The peer has said that it closes.
    pub bye: bool,
    control: Vec<u8>,
    control_at: usize,
    data: Option<Data>,
    ahead: Vec<u8>,
    ahead_at: usize,
    body: Option<Body>,
}

/// The result of one call that reads.
#[derive(Debug, Clone, Copy)]
struct Got {
    bytes: usize,
    /// Fewer bytes than were asked for: nothing is left in the socket now.
    short: bool,
}

impl Path {
    pub fn new(socket: Socket, key: u64) -> Self {
        Path {
            socket,
            key,
            wants_room: false,
            bye: false,
            control: Vec::new(),
            control_at: 0,
            data: None,
            ahead: Vec::new(),
            ahead_at: 0,
            body: None,
        }
    }

    /// True if the path can begin a chunk.
    pub fn is_ready(&self) -> bool {
        self.data.is_none() && !self.wants_room
    }

    /// Nothing waits to be written.
    pub fn is_flushed(&self) -> bool {
        self.data.is_none() && self.control_at == self.control.len()
    }

    /// A chunk is to be written, or partly written.
    pub fn has_chunk(&self) -> bool {
        self.data.is_some()
    }

    /// Queues a frame without payload.
    pub fn say(&mut self, frame: &Frame) {
        if self.control.len() - self.control_at < CONTROL_BACKLOG_MAX {
            frame.write(&mut self.control);
        }
    }

    /// As [`say`](Path::say), but whatever waits.
    pub fn insist(&mut self, frame: &Frame) {
        frame.write(&mut self.control);
    }

    /// Begins a chunk. [`is_ready`](Path::is_ready) must hold.
    pub fn begin(&mut self, order: Order) {
        let mut head = Vec::with_capacity(HEADER_BYTES);
        Frame::Data { chunk: order.chunk, bytes: order.bytes, total: order.total }.write(&mut head);
        self.data = Some(Data { order, head, at: 0 });
    }

    /// Writes until nothing is left or the socket has no room. `source`: the bytes of a chunk.
    pub fn write(&mut self, source: impl Fn(&Order) -> Source) -> io::Result<()> {
        self.wants_room = false;
        loop {
            let wrote = match &mut self.data {
                // Frames without payload go between chunks.
                Some(d) if d.at > 0 || self.control_at == self.control.len() => {
                    let head = d.head.get(d.at.min(HEADER_BYTES)..).unwrap_or_default();
                    let at = d.at.saturating_sub(HEADER_BYTES);
                    let left = d.order.bytes as usize - at;
                    let wrote = match source(&d.order) {
                        Source::Buffer(b) => b.send(&self.socket, head, d.order.offset + at as u64, left),
                        Source::Zeros => {
                            buffer::send(&self.socket, head, ZEROS.get(..left.min(ZEROS.len())).unwrap_or_default())
                        }
                        Source::Gone => return Err(ErrorKind::BrokenPipe.into()),
                    };
                    if let Ok(n) = wrote {
                        d.at += n;
                        if d.at == HEADER_BYTES + d.order.bytes as usize {
                            self.data = None;
                        }
                    }
                    wrote
                }
                _ if self.control_at < self.control.len() => {
                    let wrote =
                        buffer::send(&self.socket, self.control.get(self.control_at..).unwrap_or_default(), &[]);
                    if let Ok(n) = wrote {
                        self.control_at += n;
                        if self.control_at == self.control.len() {
                            self.control.clear();
                            self.control_at = 0;
                        }
                    }
                    wrote
                }
                _ => return Ok(()),
            };
            match wrote {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.wants_room = true;
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Reads what is there. `UnexpectedEof`: the peer has closed.
    pub fn read(&mut self, to: &mut impl Reader) -> io::Result<()> {
        for _ in 0..READS_MAX {
            let got = match self.body {
                Some(body) => self.read_body(body, to),
                None => self.read_ahead(),
            };
            let got = match got {
                Ok(Got { bytes: 0, .. }) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(got) => got,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            self.take_frames(to)?;
            if got.short {
                return Ok(());
            }
        }
        Ok(())
    }

    fn read_ahead(&mut self) -> io::Result<Got> {
        self.ahead.drain(..std::mem::take(&mut self.ahead_at));
        let before = self.ahead.len();
        self.ahead.resize(before + AHEAD_BYTES, 0);
        let got = buffer::receive(&self.socket, self.ahead.get_mut(before..).unwrap_or_default(), &mut []);
        self.ahead.truncate(before + *got.as_ref().unwrap_or(&0));
        got.map(|bytes| Got { bytes, short: bytes < AHEAD_BYTES })
    }

    /// Reads payload into place, and the next header: the payload behind it goes straight into place, too.
    fn read_body(&mut self, mut body: Body, to: &mut impl Reader) -> io::Result<Got> {
        self.ahead.clear();
        self.ahead_at = 0;
        let left = (body.bytes - body.at) as usize;
        let (got, asked) = match to.place(body.chunk, body.bytes, body.total)? {
            Some((buffer, offset)) => {
                self.ahead.resize(HEADER_BYTES, 0);
                let got = buffer.receive(&self.socket, offset + u64::from(body.at), left, &mut self.ahead);
                self.ahead.truncate(got.as_ref().map_or(0, |n| n.saturating_sub(left)));
                (got?, left + HEADER_BYTES)
            }
            None => {
                let mut scratch = [0; SCRATCH_BYTES];
                let asked = left.min(SCRATCH_BYTES);
                (buffer::receive(&self.socket, scratch.get_mut(..asked).unwrap_or_default(), &mut [])?, asked)
            }
        };
        body.at += got.min(left) as u32;
        self.body = Some(body);
        self.end_body(to)?;
        Ok(Got { bytes: got, short: got < asked })
    }

    fn end_body(&mut self, to: &mut impl Reader) -> io::Result<()> {
        if let Some(b) = self.body.filter(|b| b.at == b.bytes) {
            self.body = None;
            to.arrived(b.chunk, b.bytes, b.total)?;
        }
        Ok(())
    }

    /// Handles what was read ahead.
    fn take_frames(&mut self, to: &mut impl Reader) -> io::Result<()> {
        while self.body.is_none() {
            let rest = self.ahead.get(self.ahead_at..).unwrap_or_default();
            let read = Frame::read(rest).map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
            let Some((frame, n)) = read else { return Ok(()) };
            self.ahead_at += n;
            match frame {
                Frame::Data { chunk, bytes, total } => {
                    let place = to.place(chunk, bytes, total)?;
                    let rest = self.ahead.get(self.ahead_at..).unwrap_or_default();
                    let n = rest.len().min(bytes as usize);
                    if let (Some((buffer, offset)), Some(part)) = (place, rest.get(..n)) {
                        buffer.write(offset, part);
                    }
                    self.ahead_at += n;
                    self.body = Some(Body { chunk, bytes, total, at: n as u32 });
                    self.end_body(to)?;
                }
                Frame::Bye => {
                    self.bye = true;
                    to.frame(frame)?;
                }
                other => to.frame(other)?,
            }
        }
        Ok(())
    }
}
