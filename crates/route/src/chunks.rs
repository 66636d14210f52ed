//! Which bytes of a message are which chunk on which path: derived alike by sender, relay and receiver.
//!
//! A message is cut at the plan's split into one range per path, each range into chunks. Every rank that knows plan and demand computes the
//! same chunks with the same numbers, so that nothing but bytes has to travel.

use crate::demand::Demand;
use crate::network::Network;
use crate::plan::Plan;

/// A piece of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk {
    /// Sender of the message.
    pub src: usize,
    /// Its receiver.
    pub dst: usize,
    /// The path that it takes.
    pub path: usize,
    /// Its number on that path, from 0: the order in which a relay forwards.
    pub number: u64,
    /// Where it begins in the message.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

/// The chunks of one message, by offset. At most `chunk_bytes` each (0 counts as 1).
pub fn message(
    net: &Network,
    plan: &Plan,
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

/// Ranks that forward what takes this path, in order.
pub fn forwarders(net: &Network, src: usize, dst: usize, path: usize) -> Vec<usize> {
    let mut through = Vec::new();
    for l in net.path(src, dst, path) {
        let to = net.links[l as usize].to as usize;
        if to < net.rank_count() && to != src && to != dst && through.last() != Some(&to) {
            through.push(to);
        }
    }
    through
}

/// What a rank sends: every chunk of its row.
pub fn sent_by(net: &Network, plan: &Plan, demand: &Demand, rank: usize, chunk_bytes: u64) -> Vec<Chunk> {
    let to = (0..demand.ranks()).filter(|&j| j != rank);
    to.flat_map(|j| message(net, plan, rank, j, demand.get(rank, j), chunk_bytes)).collect()
}

/// What a rank receives: every chunk of its column, by sender.
pub fn received_by(net: &Network, plan: &Plan, demand: &Demand, rank: usize, chunk_bytes: u64) -> Vec<Chunk> {
    let from = (0..demand.ranks()).filter(|&i| i != rank);
    from.flat_map(|i| message(net, plan, i, rank, demand.get(i, rank), chunk_bytes)).collect()
}

/// What a rank forwards for others. O(pairs that may cross it x paths).
pub fn forwarded_by(net: &Network, plan: &Plan, demand: &Demand, rank: usize, chunk_bytes: u64) -> Vec<Chunk> {
    let host = net.host(rank);
    // Only pairs with an end on this host can cross it.
    let pairs =
        demand.pairs().filter(|&(i, j, _)| i != rank && j != rank && (net.host(i) == host || net.host(j) == host));
    let mut out = Vec::new();
    for (i, j, bytes) in pairs {
        let chunks = message(net, plan, i, j, bytes, chunk_bytes);
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
