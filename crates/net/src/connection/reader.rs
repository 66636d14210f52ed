//! What a connection does with what its paths read.

use super::{Buffers, Core, PLACES_MAX};
use crate::buffer::Buffer;
use crate::frame::{Chunk, Frame};
use crate::limits::PATHS_MAX;
use crate::path::Reader;
use crate::rails::{Cells, View};
use crate::rdma::{self, Places, Rdma};
use crate::receiver::Place;
use crate::sender::{Micros, Outbox};
use std::collections::HashMap;
use std::io::{self, ErrorKind};

/// Reads for a connection's state machine.
pub(super) struct Into<'a, W> {
    pub core: &'a mut Core,
    pub buffers: &'a [Buffers],
    pub path: usize,
    pub now: Micros,
    pub rails: &'a View<'a, W>,
    pub out: &'a mut Outbox,
    /// Payload bytes that arrived, and their chunks.
    pub bytes: u64,
    pub chunks: u64,
    pub rdma: &'a mut [Option<Rdma>; PATHS_MAX],
    pub down: &'a mut [u32; PATHS_MAX],
    pub places: &'a mut HashMap<u64, Places>,
    pub bye: bool,
}

fn invalid(e: wire::Malformed) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, e)
}

impl<W: Cells> Reader for Into<'_, W> {
    fn place(&mut self, chunk: Chunk, bytes: u32, total: u64) -> io::Result<Option<(Buffer, u64)>> {
        let Core::Receive(r) = &self.core else { return Err(ErrorKind::InvalidData.into()) };
        Ok(match r.place(chunk, bytes, total).map_err(invalid)? {
            Place::Discard => None,
            Place::Into { request, sub, offset } => {
                let buffer =
                    self.buffers.get(request as usize).and_then(|b| b.get(usize::from(sub)).copied().flatten());
                buffer.map(|b| (b, offset))
            }
        })
    }

    fn arrived(&mut self, chunk: Chunk, bytes: u32, total: u64) -> io::Result<()> {
        let Core::Receive(r) = &mut self.core else { return Err(ErrorKind::InvalidData.into()) };
        self.bytes += u64::from(bytes);
        self.chunks += 1;
        r.arrived(self.path, chunk, bytes, total, self.out).map_err(invalid)
    }

    fn frame(&mut self, frame: Frame) -> io::Result<()> {
        if let (Frame::Down { path, dial }, Core::Receive(_)) = (&frame, &self.core) {
            // Before any frame behind it is read: chunks go again, and nothing of the lost pair may arrive after them.
            if let (Some(d), Some(r)) = (self.down.get_mut(usize::from(*path)), self.rdma.get_mut(usize::from(*path))) {
                *d = (*d).max(*dial);
                if r.as_ref().is_some_and(|r| r.dial <= *dial) {
                    *r = None;
                }
            }
        }
        match &mut self.core {
            Core::Send(s) => s.on_frame(self.path, frame, self.now, self.rails, self.out),
            Core::Receive(r) => r.on_frame(self.path, frame, self.out),
        }
        .map_err(invalid)
    }
}

impl<W: Cells> rdma::Reader for Into<'_, W> {
    fn frame(&mut self, frame: Frame) -> io::Result<()> {
        self.bye |= frame == Frame::Bye;
        Reader::frame(self, frame)
    }

    fn places(&mut self, places: Places) -> io::Result<()> {
        let Core::Send(s) = &self.core else { return Err(ErrorKind::InvalidData.into()) };
        let base = s.base();
        if self.places.len() >= PLACES_MAX {
            self.places.retain(|sequence, _| *sequence >= base);
        }
        if self.places.len() < PLACES_MAX && places.sequence >= base {
            self.places.insert(places.sequence, places);
        }
        Ok(())
    }

    fn written(&mut self, immediate: u32, bytes: u32) -> io::Result<()> {
        let Core::Receive(r) = &mut self.core else { return Err(ErrorKind::InvalidData.into()) };
        let (low, sub, index, is_whole) = rdma::read_immediate(immediate);
        let (chunk, total) = r.written(low, sub, index, is_whole.then_some(bytes.into())).map_err(invalid)?;
        Reader::arrived(self, chunk, bytes, total)
    }
}
