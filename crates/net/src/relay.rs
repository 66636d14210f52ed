//! A path of two other hosts that goes through this one: bytes pass both ways through bounded buffers as they come. A slow link holds back the link
//! before it. The bytes are not looked at: the two ends prove to each other who they are, through the relay.
//!
//! ```text
//!  sender ──► side 0 ──buffer──► side 1 ──► receiver, or the next relay
//!         ◄──         ◄──buffer──       ◄──
//! ```

use crate::limits::RELAY_BUFFER_BYTES;
use crate::rails::{Cells, Rails, View};
use crate::sender::Micros;
use crate::sockets::Socket;
use rustix::event::epoll::EventFlags;
use rustix::net::Shutdown;
use std::io::{self, ErrorKind};

/// Reads per event: other paths get their turn.
const READS_MAX: usize = 8;

#[derive(Debug)]
pub(crate) struct Side {
    pub socket: Socket,
    /// Rail of this host.
    pub rail: usize,
    /// Key of its events.
    pub key: u64,
    /// Bytes read here, for the other side: a ring.
    buffer: Box<[u8]>,
    head: usize,
    fill: usize,
    ended: bool,
    flags: EventFlags,
}

impl Side {
    pub fn new(socket: Socket, rail: usize, key: u64) -> Self {
        let buffer = vec![0; RELAY_BUFFER_BYTES].into_boxed_slice();
        Side { socket, rail, key, buffer, head: 0, fill: 0, ended: false, flags: EventFlags::empty() }
    }

    /// Reads what fits. False: nothing came.
    fn read(&mut self) -> io::Result<bool> {
        let room = self.buffer.len() - self.fill;
        if room == 0 || self.ended {
            return Ok(false);
        }
        let tail = (self.head + self.fill) % self.buffer.len();
        let (front, back) = self.buffer.split_at_mut(tail);
        let n = room.min(back.len());
        let rest = (room - n).min(front.len());
        let into = (back.get_mut(..n).unwrap_or_default(), front.get_mut(..rest).unwrap_or_default());
        match crate::buffer::receive(&self.socket, into.0, into.1) {
            Ok(0) => self.ended = true,
            Ok(n) => self.fill += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    /// Writes what the buffer holds to the other side's socket; returns how much went.
    fn write(&mut self, to: &Socket) -> io::Result<usize> {
        let mut sum = 0;
        while self.fill > 0 {
            let end = (self.head + self.fill).min(self.buffer.len());
            let first = self.buffer.get(self.head..end).unwrap_or_default();
            let rest = self.buffer.get(..self.fill - first.len()).unwrap_or_default();
            match crate::buffer::send(to, first, rest) {
                Ok(n) => {
                    (self.head, self.fill, sum) = ((self.head + n) % self.buffer.len(), self.fill - n, sum + n);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(sum)
    }
}

#[derive(Debug)]
pub(crate) struct Relay {
    pub sides: [Side; 2],
}

impl Relay {
    /// Moves bytes in both directions. Returns the sum that went on.
    ///
    /// # Errors
    /// The relay is over: a side has failed, or both have ended.
    pub fn pass(&mut self, now: Micros, rails: &View<'_, impl Cells>) -> io::Result<u64> {
        let [a, b] = &mut self.sides;
        let sum = pass_one(a, b, now, rails)? + pass_one(b, a, now, rails)?;
        if self.sides.iter().all(|s| s.ended && s.fill == 0) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(sum)
    }

    /// What each side waits for, if that has changed.
    pub fn wishes(&mut self) -> [Option<EventFlags>; 2] {
        let waits = [self.sides[1].fill > 0, self.sides[0].fill > 0];
        let mut changed = [None; 2];
        for ((s, waits), to) in self.sides.iter_mut().zip(waits).zip(&mut changed) {
            let reads = s.fill < s.buffer.len() && !s.ended;
            let mut flags = EventFlags::empty();
            flags.set(EventFlags::IN, reads);
            flags.set(EventFlags::OUT, waits);
            if flags != std::mem::replace(&mut s.flags, flags) {
                *to = Some(flags);
            }
        }
        changed
    }

    /// The bytes that did not go on load no rail any more.
    pub fn forget(&self, rails: &View<'_, impl Cells>) {
        let [a, b] = &self.sides;
        rails.give(b.rail, a.fill as u64);
        rails.give(a.rail, b.fill as u64);
    }
}

fn pass_one(from: &mut Side, to: &Side, now: Micros, rails: &View<'_, impl Cells>) -> io::Result<u64> {
    let mut sum = 0;
    for _ in 0..READS_MAX {
        let before = from.fill;
        let came = from.read()?;
        rails.take(to.rail, (from.fill - before) as u64);
        let went = from.write(&to.socket)? as u64;
        if went > 0 {
            rails.give(to.rail, went);
            rails.moved(to.rail, went, now);
            sum += went;
        }
        if !came {
            break;
        }
    }
    if from.ended && from.fill == 0 {
        // An error says that the other side is gone, too, which its own events report.
        let _ = rustix::net::shutdown(&to.socket, Shutdown::Write);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::RAILS_MAX;
    use crate::rails::{Board, private_words};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn side(rail: usize) -> (UnixStream, Side) {
        let (far, near) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        (far, Side::new(Socket::new(near.into()), rail, 0))
    }

    #[test]
    fn bytes_pass_in_order_through_a_bounded_buffer_and_load_their_rail() {
        let board = Board::join(private_words(), 1, [0; RAILS_MAX], 0).unwrap();
        let rails = View { board: &board, others: &[0; RAILS_MAX] };
        let ((mut left, a), (mut right, b)) = (side(0), side(1));
        let mut relay = Relay { sides: [a, b] };
        left.set_nonblocking(true).unwrap();
        let data: Vec<u8> = (0..3_000_000u32).map(|i| (i ^ (i >> 9)) as u8).collect();
        let mut sent = 0;
        // The right side does not read: the relay takes its buffer's size, and no more.
        for _ in 0..200 {
            sent += left.write(&data[sent..]).unwrap_or(0);
            relay.pass(0, &rails).unwrap();
        }
        let held = rails.backlog(1);
        assert!(sent < data.len() && held == RELAY_BUFFER_BYTES as u64, "{sent} sent, {held} held");
        assert_eq!(relay.wishes(), [None, Some(EventFlags::IN | EventFlags::OUT)], "side 0 reads no more");
        let mut got = Vec::new();
        right.set_nonblocking(true).unwrap();
        let mut part = [0; 100_000];
        while got.len() < data.len() {
            let n = right.read(&mut part).unwrap_or(0);
            got.extend_from_slice(&part[..n]);
            relay.pass(0, &rails).unwrap();
            sent += left.write(&data[sent..]).unwrap_or(0);
        }
        assert!(got == data && rails.backlog(1) == 0);
        right.write_all(b"back").unwrap();
        drop(left);
        // The word of the right side cannot be delivered: the relay is over sooner or later, never stuck.
        assert!((0..5).any(|_| relay.pass(0, &rails).is_err()));
    }

    #[test]
    fn the_end_of_one_side_reaches_the_other() {
        let board = Board::join(private_words(), 1, [0; RAILS_MAX], 0).unwrap();
        let rails = View { board: &board, others: &[0; RAILS_MAX] };
        let ((mut left, a), (mut right, b)) = (side(0), side(1));
        let mut relay = Relay { sides: [a, b] };
        left.write_all(b"last").unwrap();
        left.shutdown(std::net::Shutdown::Write).unwrap();
        relay.pass(0, &rails).unwrap();
        let mut got = String::new();
        right.read_to_string(&mut got).unwrap();
        assert_eq!(got, "last");
        drop(right);
        assert!(relay.pass(0, &rails).is_err(), "both have ended");
    }
}
