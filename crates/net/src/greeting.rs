//! The first bytes on a path: both sides prove that they know the listener's secret and the job's token ([`wire::auth`]).
//!
//! ```text
//!  connects  Call: magic, listener, nonce ─────────────────► accepts
//!            ◄──────────── Answer: magic, nonce, proof
//!            Hello: proof, connection, path, rails, tag ───►
//!            ◄──────────── Welcome: status, addresses, tag
//! ```
//!
//! All four have fixed lengths. Frames follow. The frames carry no tags: they are protected from a stranger that cannot take over a TCP connection,
//! as with NCCL's own socket transport. The tags of hello and welcome are under a key of secret, token and both nonces: they bind connection, path and
//! rail to this socket.
//!
//! A relay is asked first, with a key of the token alone; then the same socket reaches the next relay or the peer, and the greeting begins anew:
//!
//! ```text
//!  connects  Call: magic, RELAY, nonce ────────────────────► relay
//!            ◄──────────── Answer: magic, nonce, proof
//!            Onward: proof, address, tag ──────────────────►      dials the address
//!            ◄──────────── Through: status, tag
//! ```

use crate::handle::RailAddress;
use crate::limits::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, PATHS_MAX, RAILS_MAX};
use std::net::SocketAddr;
use verbs::Address;
use wire::auth::{self, NONCE_BYTES, Nonce, PROOF_BYTES, Role, Seal, TAG_BYTES};
use wire::{Malformed, Reader, Writer};

const MAGIC: &[u8; 8] = b"lnkwnet3";
pub const CALL_BYTES: usize = 8 + 8 + NONCE_BYTES;
pub const ANSWER_BYTES: usize = 8 + NONCE_BYTES + PROOF_BYTES;
const PAIR_BYTES: usize = 32;
const HELLO_BODY_BYTES: usize = 24 + PAIR_BYTES;
pub const HELLO_BYTES: usize = PROOF_BYTES + HELLO_BODY_BYTES + TAG_BYTES;
const WELCOME_BODY_BYTES: usize = 4 + PAIR_BYTES + RAILS_MAX * 20;
const ONWARD_BODY_BYTES: usize = 24;
pub const ONWARD_BYTES: usize = PROOF_BYTES + ONWARD_BODY_BYTES + TAG_BYTES;
const THROUGH_BODY_BYTES: usize = 8;
pub const THROUGH_BYTES: usize = THROUGH_BODY_BYTES + TAG_BYTES;
/// The number of the listener that every lending process has.
pub const RELAY: u64 = 0;
pub const WELCOME_BYTES: usize = WELCOME_BODY_BYTES + TAG_BYTES;

/// The path that a socket becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Random number of the connection.
    pub connection: u64,
    pub path: u8,
    /// Size of chunks, bytes.
    pub chunk: u32,
    /// The rail of the accepting host that this path ends at.
    pub rail: u8,
    /// Number of the dial: grows with every one of the connection.
    pub dial: u32,
    /// The queue pair that the dialling side offers.
    pub pair: Option<Address>,
}

/// What the accepting side says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Welcome {
    /// Its rails, and its queue pair if it takes the offer.
    Accepted(Vec<RailAddress>, Option<Address>),
    /// The listener is closed and the connection unknown.
    Refused,
}

pub fn call(listener: u64, nonce: &Nonce) -> Vec<u8> {
    let mut w = Writer::default();
    w.raw(MAGIC).u64(listener).raw(nonce);
    w.0
}

/// The listener and the nonce.
///
/// # Errors
/// The bytes are no call.
pub fn read_call(bytes: &[u8]) -> Result<(u64, Nonce), Malformed> {
    let mut r = Reader::new(bytes);
    if r.take(8)? != MAGIC {
        return Err(Malformed("the peer does not speak this version of linkwise's protocol"));
    }
    Ok((r.u64()?, nonce(&mut r)?))
}

fn nonce(r: &mut Reader<'_>) -> Result<Nonce, Malformed> {
    r.take(NONCE_BYTES)?.try_into().map_err(|_| Malformed("no nonce"))
}

pub fn answer(key: &[u8], a: &Nonce, b: &Nonce) -> Vec<u8> {
    let mut w = Writer::default();
    w.raw(MAGIC).raw(b).raw(&auth::proof(key, Role::Accepts, a, b));
    w.0
}

/// The other side's nonce, if its proof holds.
///
/// # Errors
/// The bytes are no answer, or the proof is wrong.
pub fn read_answer(bytes: &[u8], key: &[u8], a: &Nonce) -> Result<Nonce, Malformed> {
    let mut r = Reader::new(bytes);
    if r.take(8)? != MAGIC {
        return Err(Malformed("the peer does not speak this version of linkwise's protocol"));
    }
    let b = nonce(&mut r)?;
    if auth::is_proof(r.take(PROOF_BYTES)?, key, Role::Accepts, a, &b) { Ok(b) } else { Err(Malformed("wrong token")) }
}

/// A pair that is not there is all zero.
fn write_pair(w: &mut Writer, pair: Option<&Address>) {
    let a = pair.copied().unwrap_or_default();
    w.u32(a.number).u32(a.psn).raw(&a.gid).u8(a.mtu).raw(&[0; 7]);
}

fn read_pair(r: &mut Reader<'_>) -> Result<Option<Address>, Malformed> {
    let (number, psn) = (r.u32()?, r.u32()?);
    let gid = r.take(16)?.try_into().map_err(|_| Malformed("no address"))?;
    let mtu = r.u8()?;
    r.take(7)?;
    Ok((mtu > 0).then_some(Address { number, psn, gid, mtu }))
}

pub fn hello(key: &[u8], a: &Nonce, b: &Nonce, h: &Hello) -> Vec<u8> {
    let mut body = Writer::default();
    body.u64(h.connection).u8(h.path).u8(h.rail).u16(0).u32(h.chunk).u64(h.dial.into());
    write_pair(&mut body, h.pair.as_ref());
    let mut w = Writer::default();
    w.raw(&auth::proof(key, Role::Connects, a, b)).raw(&body.0);
    w.raw(&Seal::new(key, Role::Connects, a, b).tag(&body.0));
    w.0
}

/// # Errors
/// The bytes are no hello, or prove nothing.
pub fn read_hello(bytes: &[u8], key: &[u8], a: &Nonce, b: &Nonce) -> Result<Hello, Malformed> {
    let mut r = Reader::new(bytes);
    if !auth::is_proof(r.take(PROOF_BYTES)?, key, Role::Connects, a, b) {
        return Err(Malformed("wrong token"));
    }
    let body = Seal::new(key, Role::Accepts, a, b).open(r.rest()).ok_or(Malformed("a hello was changed"))?;
    let mut r = Reader::new(body);
    let (connection, path, rail, _, chunk) = (r.u64()?, r.u8()?, r.u8()?, r.u16()?, r.u32()?);
    let dial = u32::try_from(r.u64()?).map_err(|_| Malformed("a dial is out of range"))?;
    let pair = read_pair(&mut r)?;
    r.end()?;
    if usize::from(path) >= PATHS_MAX || !(CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk) {
        return Err(Malformed("a path is out of range"));
    }
    Ok(Hello { connection, path, chunk, rail, dial, pair })
}

pub fn welcome(key: &[u8], a: &Nonce, b: &Nonce, w: &Welcome) -> Vec<u8> {
    let mut body = Writer::default();
    match w {
        Welcome::Refused => {
            body.u8(1);
        }
        Welcome::Accepted(rails, pair) => {
            body.u8(0).u8(rails.len().min(RAILS_MAX) as u8).u16(0);
            write_pair(&mut body, pair.as_ref());
            rails.iter().take(RAILS_MAX).for_each(|a| a.write(&mut body));
        }
    }
    body.0.resize(WELCOME_BODY_BYTES, 0);
    let tag = Seal::new(key, Role::Accepts, a, b).tag(&body.0);
    body.raw(&tag);
    body.0
}

/// # Errors
/// The bytes are no welcome, or prove nothing.
pub fn read_welcome(bytes: &[u8], key: &[u8], a: &Nonce, b: &Nonce) -> Result<Welcome, Malformed> {
    let body = Seal::new(key, Role::Connects, a, b).open(bytes).ok_or(Malformed("a welcome was changed"))?;
    let mut r = Reader::new(body);
    if r.u8()? != 0 {
        return Ok(Welcome::Refused);
    }
    let n = r.u8()?;
    if usize::from(n) > RAILS_MAX {
        return Err(Malformed("too many rails"));
    }
    r.u16()?;
    let pair = read_pair(&mut r)?;
    Ok(Welcome::Accepted((0..n).map(|_| RailAddress::read(&mut r)).collect::<Result<_, _>>()?, pair))
}

/// The key of greetings with relays.
pub fn relay_key(token: &[u8]) -> Vec<u8> {
    [token, b"linkwise relay"].concat()
}

/// Asks a relay to go on to an address.
pub fn onward(key: &[u8], a: &Nonce, b: &Nonce, to: SocketAddr) -> Vec<u8> {
    let mut body = Writer::default();
    RailAddress { ip: to.ip(), prefix: 0, port: to.port() }.write(&mut body);
    body.0.resize(ONWARD_BODY_BYTES, 0);
    let mut w = Writer::default();
    w.raw(&auth::proof(key, Role::Connects, a, b)).raw(&body.0);
    w.raw(&Seal::new(key, Role::Connects, a, b).tag(&body.0));
    w.0
}

/// # Errors
/// The bytes are no such request, or prove nothing.
pub fn read_onward(bytes: &[u8], key: &[u8], a: &Nonce, b: &Nonce) -> Result<SocketAddr, Malformed> {
    let mut r = Reader::new(bytes);
    if !auth::is_proof(r.take(PROOF_BYTES)?, key, Role::Connects, a, b) {
        return Err(Malformed("wrong token"));
    }
    let body = Seal::new(key, Role::Accepts, a, b).open(r.rest()).ok_or(Malformed("a request was changed"))?;
    Ok(RailAddress::read(&mut Reader::new(body))?.socket())
}

/// The relay's word whether the address answers.
pub fn through(key: &[u8], a: &Nonce, b: &Nonce, is_open: bool) -> Vec<u8> {
    let mut w = Writer::default();
    w.u64(u64::from(is_open));
    let tag = Seal::new(key, Role::Accepts, a, b).tag(&w.0);
    w.raw(&tag);
    w.0
}

/// # Errors
/// The bytes are no such word, or prove nothing.
pub fn read_through(bytes: &[u8], key: &[u8], a: &Nonce, b: &Nonce) -> Result<bool, Malformed> {
    let body = Seal::new(key, Role::Connects, a, b).open(bytes).ok_or(Malformed("a relay's word was changed"))?;
    Ok(Reader::new(body).u64()? == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said() -> Hello {
        let pair = Some(Address { number: 77, psn: 5, gid: [3; 16], mtu: 5 });
        Hello { connection: 9, path: 3, chunk: 65536, rail: 2, dial: 4, pair }
    }

    fn exchange(connects: &[u8], accepts: &[u8]) -> Result<(Hello, Welcome), Malformed> {
        let (a, b) = (auth::nonce().unwrap(), auth::nonce().unwrap());
        let (listener, a_read) = read_call(&call(7, &a))?;
        assert_eq!((listener, a_read), (7, a));
        let b_read = read_answer(&answer(accepts, &a, &b), connects, &a)?;
        assert_eq!(b_read, b);
        let said = said();
        let hello = read_hello(&hello(connects, &a, &b, &said), accepts, &a, &b)?;
        let rails = vec![RailAddress { ip: "10.0.0.1".parse().unwrap(), prefix: 24, port: 5 }; 16];
        Ok((hello, read_welcome(&welcome(accepts, &a, &b, &Welcome::Accepted(rails, said.pair)), connects, &a, &b)?))
    }

    #[test]
    fn sides_with_one_key_understand_each_other_and_others_learn_nothing() {
        let (hello, welcome) = exchange(b"k", b"k").unwrap();
        assert_eq!(hello, said());
        assert!(matches!(welcome, Welcome::Accepted(rails, pair) if rails.len() == 16 && pair == said().pair));
        assert_eq!(exchange(b"k", b"j"), Err(Malformed("wrong token")));
    }

    #[test]
    fn a_relay_goes_on_for_members_of_the_job_only() {
        let (a, b) = (auth::nonce().unwrap(), auth::nonce().unwrap());
        let (ours, other) = (relay_key(b"t"), relay_key(b"u"));
        for to in ["10.1.2.3:77", "[fd00::1]:9"].map(|t| t.parse().unwrap()) {
            let said = onward(&ours, &a, &b, to);
            assert_eq!((said.len(), read_onward(&said, &ours, &a, &b)), (ONWARD_BYTES, Ok(to)));
            assert!(read_onward(&said, &other, &a, &b).is_err() && read_onward(&said, &ours, &b, &a).is_err());
            for i in 0..said.len() {
                let mut bad = said.clone();
                bad[i] ^= 4;
                assert!(read_onward(&bad, &ours, &a, &b).is_err(), "byte {i}");
            }
        }
        for open in [true, false] {
            let said = through(&ours, &a, &b, open);
            assert_eq!((said.len(), read_through(&said, &ours, &a, &b)), (THROUGH_BYTES, Ok(open)));
            assert!(read_through(&said, &other, &a, &b).is_err());
        }
    }

    #[test]
    fn a_changed_hello_or_welcome_is_refused() {
        let (a, b) = (auth::nonce().unwrap(), auth::nonce().unwrap());
        let said = hello(b"k", &a, &b, &said());
        let back = welcome(b"k", &a, &b, &Welcome::Refused);
        assert_eq!((said.len(), back.len()), (HELLO_BYTES, WELCOME_BYTES));
        assert_eq!((call(1, &a).len(), answer(b"k", &a, &b).len()), (CALL_BYTES, ANSWER_BYTES));
        for i in 0..said.len() {
            let mut bad = said.clone();
            bad[i] ^= 4;
            assert!(read_hello(&bad, b"k", &a, &b).is_err(), "byte {i}");
        }
        for i in 0..back.len() {
            let mut bad = back.clone();
            bad[i] ^= 4;
            assert!(read_welcome(&bad, b"k", &a, &b).is_err(), "byte {i}");
        }
    }
}
