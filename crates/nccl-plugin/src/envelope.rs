//! Messages between ranks of a communicator, closed with a key that only its ranks have.
//!
//! NCCL's identifier of a communicator is a hash of its `ncclUniqueId`, which contains a random number of 64 bits that the ranks hand to each other
//! before NCCL connects them; NCCL's own connections are protected by nothing else. The key is made from it and from the job's token. So a stranger
//! who guesses the token (a launcher's job id) can neither lead a communicator nor speak for a rank: its identifier never travels, only a name made
//! from the key. Before NCCL 2.27.3 there are no identifiers, and the token alone protects.
//!
//! ```text
//! kind, name of the communicator, receiver's ordinal or sender's position, message, tag over sender, receiver and all of these
//! ```

use agreement::ProcessId;
use std::collections::BTreeMap;
use wire::auth::GroupKey;
use wire::{Malformed, Reader, Writer};

/// From the leader to a member, or from a member to the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// With the member's ordinal in its process.
    ToMember,
    /// With the member's position in the roster.
    ToLeader,
}

/// The fields before the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub kind: Kind,
    /// NCCL's identifier.
    pub comm: u64,
    pub who: u32,
}

/// The keys of the communicators of this process.
#[derive(Debug, Default)]
pub struct Keys {
    by_comm: BTreeMap<u64, (u64, GroupKey)>,
    /// By name: the identifier.
    by_name: BTreeMap<u64, u64>,
}

impl Keys {
    /// Adds a communicator and returns the name under which other processes find it.
    pub fn add(&mut self, token: &str, comm: u64) -> u64 {
        let (name, _) = self.by_comm.entry(comm).or_insert_with(|| {
            let key = GroupKey::new(token.as_bytes(), &comm.to_le_bytes());
            (key.name(), key)
        });
        self.by_name.insert(*name, comm);
        *name
    }

    pub fn len(&self) -> usize {
        self.by_comm.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_comm.is_empty()
    }

    /// Forgets all other communicators.
    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.by_comm.retain(|comm, _| keep(*comm));
        self.by_name.retain(|_, comm| keep(*comm));
    }

    pub fn name_of(&self, comm: u64) -> Option<u64> {
        Some(self.by_comm.get(&comm)?.0)
    }

    pub fn comm_of(&self, name: u64) -> Option<u64> {
        self.by_name.get(&name).copied()
    }

    /// The bytes to send; `None` for a communicator without a key.
    pub fn seal(&self, from: ProcessId, to: ProcessId, head: Head, message: &[u8]) -> Option<Vec<u8>> {
        let (name, key) = self.by_comm.get(&head.comm)?;
        let mut w = Writer::default();
        w.u8(matches!(head.kind, Kind::ToLeader).into()).u64(*name).u32(head.who);
        w.raw(message);
        Some(key.seal(from, to, &w.0))
    }

    /// The head and the message of received bytes.
    ///
    /// # Errors
    /// No rank of a communicator of this process has sealed them for this way.
    pub fn open<'a>(&self, from: ProcessId, to: ProcessId, bytes: &'a [u8]) -> Result<(Head, &'a [u8]), Malformed> {
        let mut r = Reader::new(bytes);
        let (kind, name, who) = (r.u8()?, r.u64()?, r.u32()?);
        let kind = match kind {
            0 => Kind::ToMember,
            1 => Kind::ToLeader,
            _ => return Err(Malformed("unknown kind of message between ranks")),
        };
        let comm = self.comm_of(name).ok_or(Malformed("a communicator that this process does not have"))?;
        let (_, key) = self.by_comm.get(&comm).ok_or(Malformed("no key"))?;
        let body = key.open(from, to, bytes).ok_or(Malformed("sealed by no rank of the communicator"))?;
        Ok((Head { kind, comm, who }, body.get(HEAD_BYTES..).ok_or(Malformed("a message without a head"))?))
    }
}

const HEAD_BYTES: usize = 1 + 8 + 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_opens_what_another_one_of_its_communicator_has_sealed_for_it() {
        let keys = |token: &str, comms: &[u64]| {
            let mut keys = Keys::default();
            comms.iter().for_each(|c| _ = keys.add(token, *c));
            keys
        };
        let (mine, theirs) = (keys("t", &[7, 8]), keys("t", &[8]));
        let head = Head { kind: Kind::ToLeader, comm: 8, who: 3 };
        let sealed = theirs.seal(1, 2, head, b"message").unwrap();
        assert_eq!(mine.open(1, 2, &sealed), Ok((head, &b"message"[..])));
        assert!(mine.open(2, 1, &sealed).is_err() && mine.open(1, 3, &sealed).is_err());
        assert!(keys("u", &[7, 8]).open(1, 2, &sealed).is_err() && keys("t", &[7]).open(1, 2, &sealed).is_err());
        assert_eq!(theirs.seal(1, 2, Head { comm: 7, ..head }, b""), None);
        // A stranger who knows the token and the name, but not the identifier.
        let mut stranger = keys("t", &[9]);
        let name = mine.name_of(8).unwrap();
        let (_, key) = stranger.by_comm.remove(&9).unwrap();
        stranger.by_comm.insert(8, (name, key));
        let forged = stranger.seal(1, 2, head, b"message").unwrap();
        assert_eq!(
            (forged.len(), &forged[..20], mine.open(1, 2, &forged).is_err()),
            (sealed.len(), &sealed[..20], true)
        );
        assert_eq!((mine.comm_of(name), mine.comm_of(0)), (Some(8), None));
        for cut in 0..sealed.len() {
            assert!(mine.open(1, 2, &sealed[..cut]).is_err(), "{cut} bytes");
        }
    }

    #[test]
    fn keys_of_ended_communicators_are_forgotten() {
        let mut keys = Keys::default();
        let name = keys.add("t", 7);
        assert_eq!((keys.add("t", 7), keys.by_comm.len()), (name, 1));
        keys.add("t", 8);
        keys.retain(|comm| comm == 8);
        assert_eq!((keys.name_of(7), keys.comm_of(name), keys.by_name.len()), (None, None, 1));
    }
}
