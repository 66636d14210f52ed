//! Proof that a peer knows the job's token, without sending it, and protection of the frames that follow.
//!
//! ```text
//! A  magic, nonce a ─────────────────────► B
//! A  ◄──────── magic, nonce b, HMAC(token, "accepts", a, b)   B proves first: A tells nothing to a stranger
//! A  HMAC(token, "connects", a, b) ──────► B
//! ```
//!
//! The two proofs name the role, so a proof cannot be sent back to its maker. Both nonces are in both, so an old one proves nothing. Over TCP every
//! later frame carries a tag under a key of this connection: a stranger who only relays the proofs can neither insert nor change a frame. HMAC-SHA256
//! throughout. A token that can be guessed can be found from one proof by trying: over TCP it should be random.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::io;

/// "linkwise" and the protocol version.
pub const MAGIC: &[u8; 8] = b"lnkwise3";
pub const NONCE_BYTES: usize = 32;
pub const PROOF_BYTES: usize = 32;
/// Bytes that protection adds to a frame.
pub const TAG_BYTES: usize = 16;

type Code = Hmac<Sha256>;
pub type Nonce = [u8; NONCE_BYTES];

/// A fresh random number.
pub fn nonce() -> io::Result<Nonce> {
    let mut bytes = [0; NONCE_BYTES];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if got == bytes.len() { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// The side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Connects,
    Accepts,
}

impl Role {
    fn other(self) -> Role {
        match self {
            Role::Connects => Role::Accepts,
            Role::Accepts => Role::Connects,
        }
    }

    fn label(self, what: &str) -> Vec<u8> {
        let side = match self {
            Role::Connects => "connects",
            Role::Accepts => "accepts",
        };
        format!("linkwise {what} {side}").into_bytes()
    }
}

fn code(key: &[u8], label: &[u8], a: &Nonce, b: &Nonce) -> Code {
    // HMAC takes keys of any length.
    let mut code = Code::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
    code.update(label);
    code.update(a);
    code.update(b);
    code
}

/// The proof of the side `role`. `a`: nonce of the side that connects; `b`: of the side that accepts.
pub fn proof(token: &[u8], role: Role, a: &Nonce, b: &Nonce) -> [u8; PROOF_BYTES] {
    code(token, &role.label("token"), a, b).finalize().into_bytes().into()
}

/// Checks the other side's proof, in a time that does not depend on the position of the first difference.
pub fn is_proof(said: &[u8], token: &[u8], role: Role, a: &Nonce, b: &Nonce) -> bool {
    code(token, &role.label("token"), a, b).verify_slice(said).is_ok()
}

/// Adds and checks the tags of one connection's frames, in order.
#[derive(Clone)]
pub struct Seal {
    send: Code,
    receive: Code,
    sent: u64,
    received: u64,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seal({} sent, {} received)", self.sent, self.received)
    }
}

impl Seal {
    /// `role`: this side's.
    pub fn new(token: &[u8], role: Role, a: &Nonce, b: &Nonce) -> Self {
        let key = |role: Role| {
            let key: [u8; 32] = code(token, &role.label("key"), a, b).finalize().into_bytes().into();
            Code::new_from_slice(&key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
        };
        Seal { send: key(role), receive: key(role.other()), sent: 0, received: 0 }
    }

    /// The tag of the next frame to send.
    pub fn tag(&mut self, body: &[u8]) -> [u8; TAG_BYTES] {
        let full = tagged(&self.send, self.sent, body).finalize().into_bytes();
        self.sent += 1;
        let mut tag = [0; TAG_BYTES];
        tag.iter_mut().zip(full).for_each(|(to, from)| *to = from);
        tag
    }

    /// The body of the next received frame; `None` if its tag is wrong.
    pub fn open<'a>(&mut self, frame: &'a [u8]) -> Option<&'a [u8]> {
        let (body, tag) = frame.split_at_checked(frame.len().checked_sub(TAG_BYTES)?)?;
        let code = tagged(&self.receive, self.received, body);
        self.received += 1;
        code.verify_truncated_left(tag).ok().map(|()| body)
    }
}

fn tagged(key: &Code, number: u64, body: &[u8]) -> Code {
    let mut code = key.clone();
    code.update(&number.to_le_bytes());
    code.update(body);
    code
}

/// A key that the members of a group share. Its tags show that a message comes from a member, and its name says which group it is without telling the
/// secret. Messages may be repeated and reordered: where that matters, they carry numbers.
#[derive(Clone)]
pub struct GroupKey(Code);

impl std::fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GroupKey")
    }
}

impl GroupKey {
    /// The key of a group within a job: as secret as the better of the two.
    pub fn new(token: &[u8], secret: &[u8]) -> Self {
        let new =
            |key: &[u8]| Code::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        let mut code = new(token);
        code.update(b"linkwise group");
        code.update(secret);
        GroupKey(new(&code.finalize().into_bytes()))
    }

    fn code(&self, label: &[u8], from: u64, to: u64, body: &[u8]) -> Code {
        let mut code = self.0.clone();
        code.update(label);
        code.update(&from.to_le_bytes());
        code.update(&to.to_le_bytes());
        code.update(body);
        code
    }

    /// The group's name, equal for all members.
    pub fn name(&self) -> u64 {
        let full = self.code(b"name", 0, 0, &[]).finalize().into_bytes();
        full.iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b))
    }

    /// The body and its tag: a message of process `from` to process `to`.
    pub fn seal(&self, from: u64, to: u64, body: &[u8]) -> Vec<u8> {
        let full = self.code(b"body", from, to, body).finalize().into_bytes();
        body.iter().chain(full.iter().take(TAG_BYTES)).copied().collect()
    }

    /// The body of a sealed message; `None` if no member has sealed it for this way.
    pub fn open<'a>(&self, from: u64, to: u64, message: &'a [u8]) -> Option<&'a [u8]> {
        let (body, tag) = message.split_at_checked(message.len().checked_sub(TAG_BYTES)?)?;
        self.code(b"body", from, to, body).verify_truncated_left(tag).ok().map(|()| body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_a_group_is_opened_by_members_on_its_way_only() {
        let key = GroupKey::new(b"t", b"s");
        let sealed = key.seal(1, 2, b"body");
        assert_eq!(GroupKey::new(b"t", b"s").open(1, 2, &sealed), Some(&b"body"[..]));
        for (other, from, to) in [(b"t2", 1, 2), (b"t1", 1, 2)] {
            assert_eq!(GroupKey::new(other, b"s").open(from, to, &sealed), None);
        }
        assert_eq!(GroupKey::new(b"t", b"s2").open(1, 2, &sealed), None);
        assert_eq!(
            (key.open(2, 1, &sealed), key.open(1, 3, &sealed), key.open(1, 2, &sealed[1..])),
            (None, None, None)
        );
        assert_eq!(key.open(1, 2, b"short"), None);
        let names = [(b"t", b"s"), (b"t", b"r"), (b"u", b"s")].map(|(t, s)| GroupKey::new(t, s).name());
        assert!(names[0] != names[1] && names[0] != names[2] && names[0] == key.name());
    }

    #[test]
    fn a_proof_holds_for_its_token_role_and_nonces_only() {
        let (a, b) = (nonce().unwrap(), nonce().unwrap());
        assert_ne!(a, b);
        let made = proof(b"t", Role::Accepts, &a, &b);
        assert!(is_proof(&made, b"t", Role::Accepts, &a, &b));
        assert!(!is_proof(&made, b"u", Role::Accepts, &a, &b));
        assert!(!is_proof(&made, b"t", Role::Connects, &a, &b), "not to be sent back");
        assert!(!is_proof(&made, b"t", Role::Accepts, &b, &a));
        assert!(!is_proof(&made[..31], b"t", Role::Accepts, &a, &b));
    }

    #[test]
    fn hmac_is_that_of_rfc_4231() {
        let mut code = Code::new_from_slice(b"Jefe").unwrap();
        code.update(b"what do ya want for nothing?");
        let text: String = code.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn a_changed_repeated_swapped_or_returned_frame_is_not_opened() {
        let (n, m) = (nonce().unwrap(), nonce().unwrap());
        let sides = || [Role::Connects, Role::Accepts].map(|r| Seal::new(b"t", r, &n, &m));
        let sealed = |s: &mut Seal, body: &[u8]| [body, &s.tag(body)].concat();
        let [mut a, mut b] = sides();
        let (first, second) = (sealed(&mut a, b"one"), sealed(&mut a, b"two"));
        assert_eq!((b.open(&first), b.open(&second)), (Some(&b"one"[..]), Some(&b"two"[..])));
        assert_eq!(b.clone().open(&second), None, "repeated");
        assert_eq!(sides()[1].open(&second), None, "swapped");
        assert_eq!(sides()[0].open(&first), None, "returned to its sender");
        for i in 0..first.len() {
            let mut changed = first.clone();
            changed[i] ^= 1;
            assert_eq!(sides()[1].open(&changed), None, "byte {i}");
        }
        assert_eq!(sides()[1].open(&first[..10]), None);
    }
}
