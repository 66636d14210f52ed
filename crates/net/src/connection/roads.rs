//! The two roads of a path: its queue pair, and its socket.

use super::{Connection, Core};
use crate::frame::Frame;
use crate::rdma::{self, Places};
use crate::sender::Order;
use crate::shared::Common;
use std::io;
use std::sync::atomic::Ordering;
use verbs::abi::Part;

impl Connection {
    /// Queues a frame on the queue pair of a path, or on its socket.
    pub(super) fn say_on(&mut self, path: usize, frame: &Frame, common: &Common) {
        let before = match frame {
            Frame::Announce { sequence, .. } => self.places_of(*sequence, common),
            _ => Vec::new(),
        };
        match (self.rdma.get_mut(path), self.paths.get_mut(path)) {
            (Some(Some(r)), _) => r.say(&before, frame),
            (_, Some(Some(p))) => p.say(frame),
            _ => {}
        }
    }

    /// The places of an announced group, for the peer's device; empty if a path has no queue pair or the buffers are not registered.
    fn places_of(&self, sequence: u64, common: &Common) -> Vec<u8> {
        let Core::Receive(r) = &self.core else { return Vec::new() };
        let found = r.request(sequence).and_then(|request| self.buffers.get(request as usize));
        let Some(buffers) = found.filter(|_| self.rdma.iter().any(Option::is_some)) else { return Vec::new() };
        let count = buffers.iter().take_while(|b| b.is_some()).count();
        let mut places = Places { sequence, count, ..Places::default() };
        for (place, buffer) in places.all.iter_mut().zip(buffers.iter().flatten()) {
            *place = rdma::Place { address: buffer.address(), ..rdma::Place::default() };
            for ((key, r), rail) in place.keys.iter_mut().zip(&self.rdma).zip(&self.rails) {
                let keys = r.as_ref().and_then(|_| common.regions.keys(buffer, *rail));
                *key = keys.map_or(0, |k| k.1);
            }
        }
        if count == 0 { Vec::new() } else { places.write() }
    }

    /// Writes a chunk over its path's queue pair. False: it goes over TCP, because it goes again, or a buffer is not registered for the rail.
    pub(super) fn write_by_device(&mut self, order: &Order, common: &Common) -> io::Result<bool> {
        let Some(Some(r)) = self.rdma.get_mut(order.path).filter(|_| !order.is_repeated) else { return Ok(false) };
        let place = self.places.get(&order.chunk.sequence).and_then(|p| p.all.get(usize::from(order.chunk.sub)));
        let to = place.and_then(|p| Some((p.address.checked_add(order.offset)?, *p.keys.get(order.path)?)));
        let buffer = self.buffers.get(order.request as usize).and_then(|b| b[0]);
        let (Some((address, rkey)), Some(buffer), Some(rail)) = (to, buffer, self.rails.get(order.path)) else {
            return Ok(false);
        };
        let keys = common.regions.keys(&buffer, *rail);
        let lkey = match keys {
            Some((lkey, _)) => lkey,
            None if order.bytes == 0 => 0,
            None => return Ok(false),
        };
        if rkey == 0 && order.bytes > 0 {
            return Ok(false);
        }
        let part = Part { address: buffer.address() + order.offset, bytes: order.bytes, lkey };
        r.write(order.chunk, order.total, part, (address, rkey))?;
        common.counts.rdma.fetch_add(u64::from(order.bytes), Ordering::Relaxed);
        Ok(true)
    }
}
