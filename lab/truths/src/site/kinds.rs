//! The kinds of sites, each with its hidden facts.

use super::draft::{Draft, Nics, first_gpus, h100, with_nics};
use super::{Drawn, Site};
use crate::randomness::Keyed;
use std::ops::Range;
use topology::{Bytes, HostId};

/// A kind of site.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// The hidden fact, in one line.
    pub about: &'static str,
    make: fn(Draft) -> Draft,
}

const fn kind(name: &'static str, about: &'static str, make: fn(Draft) -> Draft) -> Kind {
    Kind { name, about, make }
}

/// All kinds. The number in a name is the number of hosts.
pub const KINDS: &[Kind] = &[
    kind("flat16", "8 H100 a host behind one switch, no defects", |d| d.flat(16)),
    kind("flat64", "the same with leaf switches without loss", |d| d.leaves(64, 8, 0.0..0.0)),
    kind("small64", "flat64 at 16 MiB, where latency matters", |d| d.leaves(64, 8, 0.0..0.0).size(Bytes::mib(16))),
    kind("noisy16-5", "flat16 with 5 % noise, 3 % of readings interrupted", |d| d.flat(16).readings(0.05, 0.03)),
    kind("noisy16-10", "flat16 with 10 % noise, 5 % of readings interrupted", |d| d.flat(16).readings(0.10, 0.05)),
    kind("leaf16", "4 leaves; flows over leaves lose 22 to 34 %; tiers in the file", |d| d.leaves(16, 4, 0.22..0.34)),
    kind("leaf64", "the same with 8 leaves", |d| d.leaves(64, 8, 0.22..0.34)),
    kind("leaf64-untold", "the same without tiers in the file", |d| d.leaves(64, 8, 0.22..0.34).untold()),
    kind("leaf64-mild", "flows over leaves lose 5 to 10 %", |d| d.leaves(64, 8, 0.05..0.10)),
    kind("leaf64-2to1", "leaves oversubscribed 2:1, in the file; collisions 8 to 16 %", |d| {
        d.leaves(64, 8, 0.08..0.16).oversubscribed(2.0, 1.0)
    }),
    kind("leaf64-4to1", "leaves oversubscribed 4:1, in the file; collisions 8 to 16 %", |d| {
        d.leaves(64, 8, 0.08..0.16).oversubscribed(4.0, 1.0)
    }),
    kind("leaf64-16to1", "leaves oversubscribed 16:1, in the file", |d| {
        d.leaves(64, 8, 0.0..0.05).oversubscribed(16.0, 1.0)
    }),
    kind("pods128", "leaves of 8, pods of 32 (4:1), in the file; losses 10 to 18 and 20 to 30 %", |d| {
        d.leaves(128, 8, 0.10..0.18).pods(32, 0.20..0.30).oversubscribed(1.0, 4.0)
    }),
    kind("unequal60", "leaves of 20, 16, 12, 8 and 4 hosts, named in the file; loss 22 to 34 %", |d| {
        let sizes = [20, 16, 12, 8, 4].into_iter().zip(0..);
        d.flat(60).leaf_of(sizes.flat_map(|(n, leaf)| std::iter::repeat_n(leaf, n)), 0.22..0.34)
    }),
    kind("scattered64", "hosts cabled to 4 leaves in turn, named in the file; loss 22 to 34 %", |d| {
        d.flat(64).leaf_of((0..64).map(|h| h % 4), 0.22..0.34)
    }),
    kind("rails16", "a switch for every rail; other rails are reached over the spine with 25 to 35 % loss", |d| {
        d.leaves(16, 16, 0.25..0.35).rails()
    }),
    kind("rails64", "two units of 32 hosts, each with a switch for every rail; the units are in the file", |d| {
        d.leaves(64, 32, 0.22..0.32).rails()
    }),
    kind("badrail16", "flat16 with rail 3 at half rate on all hosts", |d| d.flat(16).slow_ports(0..16, 3..4, 0.5)),
    kind("badleaf64", "flat64 with all ports of one leaf at 70 %", |d| {
        let leaf = d.lot(0, 8);
        d.leaves(64, 8, 0.0..0.0).slow_ports(8 * leaf..8 * leaf + 8, 0..8, 0.7)
    }),
    kind("onenic16", "flat16 with one NIC at a quarter", |d| {
        let (h, p) = (d.lot(0, 16), d.lot(1, 8));
        d.flat(16).slow_ports(h..h + 1, p..p + 1, 0.25)
    }),
    kind("slownic32", "flat, 5 of 32 hosts with a NIC at 25 to 60 %", |d| {
        d.lots(32, 5).into_iter().zip(0..).fold(d.flat(32), |d, (h, i)| {
            let (p, left) = (d.lot(20 + i, 8), d.between(40 + i, 0.25..0.6));
            d.slow_ports(h..h + 1, p..p + 1, left)
        })
    }),
    kind("tcphost16", "flat16 with one host on TCP, 5 % of its rate", |d| {
        let h = d.lot(0, 16);
        d.flat(16).slow_ports(h..h + 1, 0..8, 0.05)
    }),
    kind("sharednic16", "one NIC for two GPUs", |d| d.of(vec![with_nics(h100(), 2, 400.0)], vec![0; 16])),
    kind("mixed32", "16 A100 and 16 H100 hosts behind one switch", Draft::a100_and_h100),
    kind("mixedleaf32", "the same behind leaves of 8, in the file; loss 22 to 34 %", |d| {
        d.a100_and_h100().leaf_of((0..32).map(|h| h / 8), 0.22..0.34)
    }),
    kind("uneven32", "hosts of 8, 4, 2 and 1 GPUs, 8 of each", |d| {
        let types = [8, 4, 2, 1].into_iter().map(|n| first_gpus(&h100(), n)).collect();
        d.of(types, (0..32).map(|h| h % 4).collect())
    }),
    kind("nic4x-over16", "the file has NICs of 400 Gbit/s, the real ones have 100", |d| {
        d.of(vec![with_nics(h100(), 1, 100.0)], vec![0; 16]).in_the_file(Nics::Times(4.0))
    }),
    kind("nic4x-under16", "the file has NICs of 100 Gbit/s, the real ones have 400", |d| {
        d.flat(16).in_the_file(Nics::Times(0.25))
    }),
    kind("nonic16", "the file has no NICs", |d| d.flat(16).in_the_file(Nics::Absent)),
    kind("drift32", "after measuring, hosts drift by 4 %, losses change, one host falls to 60 %", |d| {
        d.leaves(32, 8, 0.15..0.30).drifts()
    }),
    kind("grow32", "measured with 24 hosts, 8 more when jobs are placed", |d| {
        d.leaves(32, 8, 0.15..0.30).with_hosts((0..24).collect(), (0..32).collect())
    }),
    kind("shrink32", "measured with 32 hosts, 4 of them removed before jobs are placed", |d| {
        let gone = d.lots(32, 4);
        let left = (0..32).filter(|h| !gone.contains(h)).collect();
        d.leaves(32, 8, 0.15..0.30).with_hosts((0..32).collect(), left)
    }),
    kind("contention16", "one NIC for two GPUs, running jobs on GPUs that are not free", |d| {
        d.of(vec![with_nics(h100(), 2, 400.0)], vec![0; 16]).contended()
    }),
];

/// A site of a kind. The seed determines all hidden facts.
///
/// # Errors
/// No kind has this name.
pub fn draw(kind: &str, seed: u64) -> Result<Drawn, String> {
    let Some(kind) = KINDS.iter().find(|k| k.name == kind) else {
        let known: Vec<&str> = KINDS.iter().map(|k| k.name).collect();
        return Err(format!("`{kind}` is not a kind of site; known: {}", known.join(", ")));
    };
    let name = kind.name.bytes().fold(0u64, |h, b| h.wrapping_mul(257).wrapping_add(b.into()));
    let draft = (kind.make)(Draft::new(Keyed::new(seed, 0x517e).with(name)));
    draft.draw(kind, seed)
}

/// A slow NIC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlowNic {
    /// Its host.
    pub host: HostId,
    /// Its index on the host.
    pub nic: u8,
    /// Remaining share of its rate.
    pub left: f64,
}

/// A site of H100 hosts behind one switch with `count` slow NICs, and these NICs. The NICs are drawn from all NICs of
/// the site, so one host or one rail may have several; the share of its rate that a NIC keeps is drawn from `left`.
/// `noise` is the relative noise of a reading over several hosts.
///
/// # Errors
/// Fewer than two hosts, or a cluster that is too large.
pub fn draw_slow_nics(
    hosts: usize,
    count: usize,
    left: Range<f64>,
    noise: f64,
    seed: u64,
) -> Result<(Site, Vec<SlowNic>), String> {
    if !(2..=HOSTS_MAX).contains(&hosts) {
        return Err(format!("{hosts} hosts: 2 to {HOSTS_MAX} were expected"));
    }
    let kind = kind("slow-nics", "slow NICs anywhere, behind one switch", |d| d);
    let key = Keyed::new(seed, 0xd0c7);
    let rails = h100().nics.len();
    let mut all: Vec<usize> = (0..hosts * rails).collect();
    all.sort_by_key(|i| key.with(1).with(*i as u64).uniform().to_bits());
    all.truncate(count);
    all.sort_unstable();
    let share = |i: usize| left.start + (left.end - left.start) * key.with(2).with(i as u64).uniform();
    let slow: Vec<SlowNic> = all
        .into_iter()
        .map(|i| SlowNic { host: HostId((i / rails) as u32), nic: (i % rails) as u8, left: share(i) })
        .collect();
    let healthy = Draft::new(key.with(3)).flat(hosts).readings(noise, 0.0).draw(&kind, seed)?.measured;
    Ok((healthy.with_slow(&slow), slow))
}

/// Maximum number of hosts of [`draw_slow_nics`].
const HOSTS_MAX: usize = 4096;
