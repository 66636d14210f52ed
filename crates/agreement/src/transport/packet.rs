//! Packets between processes over sockets: announcements, rosters, and the messages of leaders and members.

use crate::roster::{Announcement, Disagreement, MemberId, ProcessId, RANKS_MAX, Roster};
use wire::{Address, Malformed, Reader, Writer};

/// Limit on addresses of one process.
pub const ADDRESSES_MAX: usize = 4;
/// Longest address in text form, bytes.
const ADDRESS_BYTES_MAX: usize = 200;

/// One frame. Kind and fields, little-endian.
#[derive(Debug, Clone, PartialEq)]
pub enum Packet {
    /// Identifies the sending process.
    Hello(ProcessId),
    /// To the register: a rank, and the addresses of its process.
    Announce(Announcement, Vec<Address>),
    /// From the register: the complete roster, and how to reach the leader's process.
    Complete {
        roster: Roster,
        /// Hash of the leader's host.
        host: u64,
        /// Addresses of the leader's process.
        addresses: Vec<Address>,
    },
    /// From the register: the communicator cannot agree.
    Disagreed { comm: u64, reason: Disagreement },
    /// Between a member's process and its leader's process.
    Message { from: ProcessId, body: Vec<u8> },
    /// To the register: this process has left the communicator.
    Forget { comm: u64, process: ProcessId },
    /// From the register: it needs this connection for another process, and keeps the announcements. Come back later for missing answers.
    ComeBack,
}

impl Packet {
    pub fn bytes(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match self {
            Packet::Hello(process) => {
                w.u8(0).u64(*process);
            }
            Packet::Announce(a, addresses) => {
                a.write(w.u8(1));
                write_addresses(&mut w, addresses);
            }
            Packet::Complete { roster, host, addresses } => {
                w.u8(2).u64(roster.comm).len(roster.members.len());
                for p in &roster.members {
                    w.i32(p.rank).u64(p.process).u32(p.ordinal);
                }
                w.u64(*host);
                write_addresses(&mut w, addresses);
            }
            Packet::Disagreed { comm, reason } => {
                w.u8(3).u64(*comm);
                match reason {
                    Disagreement::Settings { differ } => w.u8(0).u64(*differ),
                    Disagreement::Size => w.u8(1),
                    Disagreement::Ranks => w.u8(2),
                    Disagreement::TooLarge => w.u8(3),
                };
            }
            Packet::Message { from, body } => {
                w.u8(4).u64(*from).raw(body);
            }
            Packet::Forget { comm, process } => {
                w.u8(5).u64(*comm).u64(*process);
            }
            Packet::ComeBack => {
                w.u8(6);
            }
        }
        w.0
    }

    /// Decodes one packet; trailing bytes are an error.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        let packet = match r.u8()? {
            0 => Packet::Hello(r.u64()?),
            1 => Packet::Announce(Announcement::read(&mut r)?, read_addresses(&mut r)?),
            2 => {
                let comm = r.u64()?;
                let n = r.len(RANKS_MAX, 16)?;
                let member = |r: &mut Reader<'_>| Ok(MemberId { rank: r.i32()?, process: r.u64()?, ordinal: r.u32()? });
                let members = (0..n).map(|_| member(&mut r)).collect::<Result<Vec<_>, Malformed>>()?;
                if members.is_empty() || members.windows(2).any(|w| matches!(w, [a, b] if a >= b)) {
                    return Err(Malformed("a roster is empty or out of order"));
                }
                let host = r.u64()?;
                Packet::Complete { roster: Roster { comm, members }, host, addresses: read_addresses(&mut r)? }
            }
            3 => {
                let comm = r.u64()?;
                let reason = match r.u8()? {
                    0 => Disagreement::Settings { differ: r.u64()? },
                    1 => Disagreement::Size,
                    2 => Disagreement::Ranks,
                    3 => Disagreement::TooLarge,
                    _ => return Err(Malformed("unknown disagreement")),
                };
                Packet::Disagreed { comm, reason }
            }
            4 => return Ok(Packet::Message { from: r.u64()?, body: r.rest().to_vec() }),
            5 => Packet::Forget { comm: r.u64()?, process: r.u64()? },
            6 => Packet::ComeBack,
            _ => return Err(Malformed("unknown kind of packet")),
        };
        r.end().map(|()| packet)
    }
}

fn write_addresses(w: &mut Writer, all: &[Address]) {
    w.len(all.len());
    for a in all {
        w.text(&a.to_string());
    }
}

fn read_addresses(r: &mut Reader<'_>) -> Result<Vec<Address>, Malformed> {
    let n = r.len(ADDRESSES_MAX, 4)?;
    (0..n).map(|_| r.text(ADDRESS_BYTES_MAX)?.parse().map_err(|_| Malformed("an address cannot be parsed"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packets() -> impl Strategy<Value = Packet> {
        let addresses = proptest::collection::vec(
            prop_oneof![
                "[a-z0-9-]{1,90}".prop_map(Address::Local),
                any::<std::net::SocketAddrV4>().prop_map(|a| Address::Tcp(a.into())),
                (any::<std::net::Ipv6Addr>(), any::<u16>()).prop_map(|a| Address::Tcp(a.into())),
            ],
            0..=ADDRESSES_MAX,
        );
        let members = proptest::collection::btree_set((0i32..4096, any::<u64>(), 0u32..64), 1..20);
        let member = |(rank, process, ordinal)| MemberId { rank, process, ordinal };
        let kinds =
            (0u8..7, any::<(u64, u64, u64)>(), addresses, members, proptest::collection::vec(any::<u8>(), 0..50));
        kinds.prop_map(move |(kind, (comm, process, host), addresses, members, body)| match kind {
            0 => Packet::Hello(process),
            1 => {
                let a = Announcement { comm, rank: 3, size: 9, host, process, ordinal: 1, settings: comm ^ host };
                Packet::Announce(a, addresses)
            }
            2 => {
                let roster = Roster { comm, members: members.into_iter().map(member).collect() };
                Packet::Complete { roster, host, addresses }
            }
            3 => Packet::Disagreed { comm, reason: Disagreement::Settings { differ: host } },
            4 => Packet::Message { from: process, body },
            5 => Packet::ComeBack,
            _ => Packet::Forget { comm, process },
        })
    }

    proptest! {
        #[test]
        fn packets_survive_encoding(packet in packets()) {
            prop_assert_eq!(Packet::read(&packet.bytes()), Ok(packet));
        }

        #[test]
        fn a_truncated_or_extended_packet_is_an_error(packet in packets(), cut in 0usize..20) {
            let bytes = packet.bytes();
            let short = &bytes[..bytes.len().saturating_sub(1 + cut)];
            if !matches!(packet, Packet::Message { .. }) {
                prop_assert!(Packet::read(short).is_err());
                prop_assert!(Packet::read(&[bytes.as_slice(), &[0]].concat()).is_err());
            }
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Packet::read(&bytes);
        }
    }
}
