//! Maps the bytes of messages to numbered chunks on paths.
//!
//! The plan's split cuts a message into one range per path, and each range into chunks. Sender, relay and receiver compute the same chunks
//! with the same numbers from plan and demand, so chunks need no header.

use crate::demand::Demand;
use crate::network::RoutingNetwork;
use crate::plan::RoutePlan;

/// A piece of one message on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    /// Sender of the message.
    pub src: usize,
    /// Receiver of the message.
    pub dst: usize,
    /// The path: inside a host its index in [`RoutingNetwork::intra_paths`], between hosts its slot.
    pub path: usize,
    /// Number on that path, from 0. Relays forward in this order.
    pub number: u64,
    /// Offset in the message, bytes.
    pub offset: u64,
    /// Length, bytes.
    pub bytes: u64,
}

/// The chunks of one message, by offset, of at most `chunk_bytes` bytes (0 counts as 1). O(chunks).
pub fn message_chunks(
    net: &RoutingNetwork,
    plan: &RoutePlan,
    src: usize,
    dst: usize,
    bytes: u64,
    chunk_bytes: u64,
) -> impl Iterator<Item = Chunk> {
    let chunk_bytes = chunk_bytes.max(1);
    let mut ranges = Vec::new();
    let mut offset = 0;
    plan.split(net, src, dst, bytes, |path, part| {
        ranges.push((path, offset, part));
        offset += part;
    });
    ranges.into_iter().flat_map(move |(path, start, part)| {
        (0..part.div_ceil(chunk_bytes)).map(move |number| {
            let at = number * chunk_bytes;
            Chunk { src, dst, path, number, offset: start + at, bytes: chunk_bytes.min(part - at) }
        })
    })
}

/// Ranks that forward bytes on this path, in order. O(links of the path).
pub fn forwarders(net: &RoutingNetwork, src: usize, dst: usize, path: usize) -> Vec<usize> {
    let mut through = Vec::new();
    for l in net.path(src, dst, path) {
        let to = net.links[l as usize].to as usize;
        if to < net.rank_count() && to != src && to != dst && through.last() != Some(&to) {
            through.push(to);
        }
    }
    through
}

/// Every chunk that a rank sends: its row of the demand. O(chunks).
pub fn sent_by(net: &RoutingNetwork, plan: &RoutePlan, demand: &Demand, rank: usize, chunk_bytes: u64) -> Vec<Chunk> {
    let to = (0..demand.ranks()).filter(|&j| j != rank);
    to.flat_map(|j| message_chunks(net, plan, rank, j, demand.get(rank, j), chunk_bytes)).collect()
}

/// Every chunk that a rank receives, by sender: its column of the demand. O(chunks).
pub fn received_by(
    net: &RoutingNetwork,
    plan: &RoutePlan,
    demand: &Demand,
    rank: usize,
    chunk_bytes: u64,
) -> Vec<Chunk> {
    let from = (0..demand.ranks()).filter(|&i| i != rank);
    from.flat_map(|i| message_chunks(net, plan, i, rank, demand.get(i, rank), chunk_bytes)).collect()
}

/// Every chunk that a rank forwards for others. O(chunks of the pairs with an end on its host).
pub fn forwarded_by(
    net: &RoutingNetwork,
    plan: &RoutePlan,
    demand: &Demand,
    rank: usize,
    chunk_bytes: u64,
) -> Vec<Chunk> {
    let host = net.host(rank);
    // Only pairs with an end on this host can have it as a relay.
    let pairs =
        demand.pairs().filter(|&(i, j, _)| i != rank && j != rank && (net.host(i) == host || net.host(j) == host));
    let mut out = Vec::new();
    for (i, j, bytes) in pairs {
        let chunks = message_chunks(net, plan, i, j, bytes, chunk_bytes);
        let mut last = (usize::MAX, false);
        for c in chunks {
            if c.path != last.0 {
                last = (c.path, forwarders(net, i, j, c.path).contains(&rank));
            }
            if last.1 {
                out.push(c);
            }
        }
    }
    out
}
