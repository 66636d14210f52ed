//! What processes say to one another over sockets: meeting, and carrying the messages of leaders and members.

use crate::roster::{Announcement, Disagreement, Place, ProcessId, RANKS_MAX, Roster};
use wire::{Address, Malformed, Reader, Writer};

/// Most addresses of one process.
pub const ADDRESSES_MAX: usize = 4;
/// Longest address, written.
const ADDRESS_BYTES_MAX: usize = 200;

/// One frame.
#[derive(Debug, Clone, PartialEq)]
pub enum Packet {
    /// "It is me."
    Hello(ProcessId),
    /// To the register: a rank is here, and its process can be reached there.
    Announce(Announcement, Vec<Address>),
    /// From the register: everybody, and where the leader's process can be reached.
    Complete {
        /// Everybody.
        roster: Roster,
        /// The leader's host.
        host: u64,
        /// The leader's addresses.
        addresses: Vec<Address>,
    },
    /// From the register: a communicator will never agree.
    Never {
        /// Which.
        comm: u64,
        /// Why.
        why: Disagreement,
    },
    /// Between a member's process and its leader's.
    Message {
        /// Who says it.
        from: ProcessId,
        /// What it says.
        body: Vec<u8>,
    },
    /// To the register: a communicator of this process has ended.
    Forget {
        /// Which.
        comm: u64,
        /// The process.
        process: ProcessId,
    },
}

impl Packet {
    /// As bytes.
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
                w.u8(2).u64(roster.comm).len(roster.places.len());
                for p in &roster.places {
                    w.i32(p.rank).u64(p.process).u32(p.ordinal);
                }
                w.u64(*host);
                write_addresses(&mut w, addresses);
            }
            Packet::Never { comm, why } => {
                w.u8(3).u64(*comm).u8(why.clone() as u8);
            }
            Packet::Message { from, body } => {
                w.u8(4).u64(*from).raw(body);
            }
            Packet::Forget { comm, process } => {
                w.u8(5).u64(*comm).u64(*process);
            }
        }
        w.0
    }

    /// From bytes, all of them.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        let packet = match r.u8()? {
            0 => Packet::Hello(r.u64()?),
            1 => Packet::Announce(Announcement::read(&mut r)?, read_addresses(&mut r)?),
            2 => {
                let comm = r.u64()?;
                let n = r.len(RANKS_MAX, 16)?;
                let place = |r: &mut Reader<'_>| Ok(Place { rank: r.i32()?, process: r.u64()?, ordinal: r.u32()? });
                let places = (0..n).map(|_| place(&mut r)).collect::<Result<Vec<_>, Malformed>>()?;
                if places.is_empty() || places.windows(2).any(|w| matches!(w, [a, b] if a >= b)) {
                    return Err(Malformed("a roster that cannot be"));
                }
                let host = r.u64()?;
                Packet::Complete { roster: Roster { comm, places }, host, addresses: read_addresses(&mut r)? }
            }
            3 => {
                let comm = r.u64()?;
                let why = match r.u8()? {
                    0 => Disagreement::Settings,
                    1 => Disagreement::Size,
                    2 => Disagreement::Ranks,
                    _ => return Err(Malformed("no such disagreement")),
                };
                Packet::Never { comm, why }
            }
            4 => return Ok(Packet::Message { from: r.u64()?, body: r.rest().to_vec() }),
            5 => Packet::Forget { comm: r.u64()?, process: r.u64()? },
            _ => return Err(Malformed("no such message between processes")),
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
    (0..n).map(|_| r.text(ADDRESS_BYTES_MAX)?.parse().map_err(|_| Malformed("no such address"))).collect()
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
        let places = proptest::collection::btree_set((0i32..4096, any::<u64>(), 0u32..64), 1..20);
        let place = |(rank, process, ordinal)| Place { rank, process, ordinal };
        let kinds =
            (0u8..6, any::<(u64, u64, u64)>(), addresses, places, proptest::collection::vec(any::<u8>(), 0..50));
        kinds.prop_map(move |(kind, (comm, process, host), addresses, places, body)| match kind {
            0 => Packet::Hello(process),
            1 => {
                let a = Announcement { comm, rank: 3, size: 9, host, process, ordinal: 1, settings: comm ^ host };
                Packet::Announce(a, addresses)
            }
            2 => {
                let roster = Roster { comm, places: places.into_iter().map(place).collect() };
                Packet::Complete { roster, host, addresses }
            }
            3 => Packet::Never { comm, why: Disagreement::Size },
            4 => Packet::Message { from: process, body },
            _ => Packet::Forget { comm, process },
        })
    }

    proptest! {
        #[test]
        fn packets_read_back_as_they_were_written(packet in packets()) {
            prop_assert_eq!(Packet::read(&packet.bytes()), Ok(packet));
        }

        #[test]
        fn a_packet_that_is_cut_or_goes_on_is_no_packet(packet in packets(), cut in 0usize..20) {
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
