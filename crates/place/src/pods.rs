//! Pods: the counts per host that pods can fill exactly, and the host and GPUs of each pod.

use crate::baselines::packed;
use predict::HostShareTable;
use std::collections::{BTreeMap, HashMap};
use topology::{Allocation, Cluster, GPUS_PER_HOST_MAX, GpuMask, HostId};

/// Maximum number of sets of remaining pods that packing examines.
const SETS_MAX: usize = 1 << 16;
/// Maximum number of entries in all these sets together, 8 bytes each.
const ENTRIES_MAX: usize = 1 << 20;
/// Maximum number of attempts to apply a fill to an entry for all packings of a request; takes about a tenth of a second.
const TRIES_MAX: u64 = 1 << 25;
/// The same for the counts of one candidate, of which a search has hundreds: about a millisecond.
const TRIES_OF_COUNTS_MAX: u64 = 1 << 18;

/// A state that is not yet computed.
const UNKNOWN: u32 = u32::MAX;
/// A count that no packing reaches.
const DEAD: u32 = u32::MAX - 1;

/// All ways to pack pods into hosts at once. A state is the set of possible remainders of the larger pods after the
/// counts so far.
///
/// Pods of the smallest size are not part of a remainder: their number follows from the GPUs that are left. So pods of
/// a single size need only one state per number of GPUs left. A remainder is one number in mixed radix, whose digits
/// count the pods of the larger sizes.
#[derive(Clone, Debug)]
pub(crate) struct Packing {
    /// All sizes except the smallest, ascending, with the value of their digit and the number of pods.
    larger: Vec<Size>,
    smallest: usize,
    /// `fills[count - 1]`: every way to fill `count` GPUs.
    fills: Vec<Vec<Fill>>,
    states: Vec<State>,
    index: HashMap<(usize, Vec<u64>), u32>,
    entries: usize,
    tries: u64,
    tries_max: u64,
}

#[derive(Clone, Debug)]
struct Size {
    gpus: usize,
    digit: u64,
    pods: u64,
}

/// One way to fill a host.
#[derive(Clone, Debug)]
struct Fill {
    /// Number of pods of each larger size.
    taken: Vec<u64>,
    /// The same as one number in mixed radix.
    code: u64,
    /// Number of pods of the smallest size.
    small: usize,
}

#[derive(Clone, Debug)]
struct State {
    /// GPUs of all remaining pods.
    gpus: usize,
    /// The possible remainders, ascending.
    remaining: Vec<u64>,
    /// `next[count - 1]`: the state after `count` GPUs on the next host.
    next: [u32; GPUS_PER_HOST_MAX],
}

impl Packing {
    /// True without pods, or if all pods have one GPU; such pods fill any count.
    pub fn none() -> Self {
        Packing {
            larger: Vec::new(),
            smallest: 1,
            fills: Vec::new(),
            states: Vec::new(),
            index: HashMap::new(),
            entries: 0,
            tries: 0,
            tries_max: TRIES_MAX,
        }
    }

    /// The packing of these pods; None if they have too many sizes for a remainder to fit into one number.
    pub fn new(pods: &[usize]) -> Option<Self> {
        let mut by_size: BTreeMap<usize, u64> = BTreeMap::new();
        pods.iter().for_each(|p| *by_size.entry(*p).or_default() += 1);
        let mut packing = Packing::none();
        let Some((&smallest, _)) = by_size.first_key_value() else { return Some(packing) };
        packing.smallest = smallest;
        let mut digit = 1u64;
        for (&gpus, &pods) in by_size.iter().skip(1) {
            packing.larger.push(Size { gpus, digit, pods });
            digit = digit.checked_mul(pods + 1)?;
        }
        if smallest == 1 && packing.larger.is_empty() {
            return Some(packing);
        }
        packing.fills = (1..=GPUS_PER_HOST_MAX).map(|count| packing.fills_of(count)).collect();
        packing.add(pods.iter().sum(), vec![digit - 1]);
        Some(packing)
    }

    /// Every way to fill `count` GPUs, from an unlimited number of pods.
    fn fills_of(&self, count: usize) -> Vec<Fill> {
        let mut partial = vec![(Vec::new(), 0, count)];
        for size in &self.larger {
            let take = |(taken, code, left): (Vec<u64>, u64, usize)| {
                let most = (left / size.gpus).min(size.pods as usize);
                (0..=most).map(move |n| {
                    let taken = taken.iter().copied().chain([n as u64]).collect();
                    (taken, code + n as u64 * size.digit, left - n * size.gpus)
                })
            };
            partial = partial.into_iter().flat_map(take).collect();
        }
        let whole = |(_, _, left): &(Vec<u64>, u64, usize)| left.is_multiple_of(self.smallest);
        let fill = |(taken, code, left): (Vec<u64>, u64, usize)| Fill { taken, code, small: left / self.smallest };
        partial.into_iter().filter(whole).map(fill).collect()
    }

    /// The state in which every pod remains.
    pub fn start(&self) -> u32 {
        0
    }

    fn add(&mut self, gpus: usize, remaining: Vec<u64>) -> u32 {
        let next = self.states.len() as u32;
        let id = *self.index.entry((gpus, remaining.clone())).or_insert(next);
        if id == next {
            self.entries += remaining.len();
            self.states.push(State { gpus, remaining, next: [UNKNOWN; GPUS_PER_HOST_MAX] });
        }
        id
    }

    /// Computes the states after `count` GPUs on the next host; false beyond [`SETS_MAX`], [`ENTRIES_MAX`] or
    /// [`TRIES_MAX`].
    pub fn prepare(&mut self, state: u32, count: usize) -> bool {
        let Some(from) = self.states.get(state as usize) else { return true };
        if count == 0 || count > GPUS_PER_HOST_MAX || from.next[count - 1] != UNKNOWN {
            return true;
        }
        self.tries += (from.remaining.len() * self.fills[count - 1].len()) as u64;
        if self.states.len() > SETS_MAX || self.entries > ENTRIES_MAX || self.tries > self.tries_max {
            return false;
        }
        let mut after: Vec<u64> = Vec::new();
        for &r in &from.remaining {
            let fits = |f: &&Fill| self.leads(from.gpus, r, f);
            after.extend(self.fills[count - 1].iter().filter(fits).map(|f| r - f.code));
        }
        let left = from.gpus.saturating_sub(count);
        after.sort_unstable();
        after.dedup();
        let to = if after.is_empty() { DEAD } else { self.add(left, after) };
        self.states[state as usize].next[count - 1] = to;
        true
    }

    /// True if `remaining` (of `gpus` GPUs including the smallest pods) contains the pods of a fill.
    fn leads(&self, gpus: usize, remaining: u64, fill: &Fill) -> bool {
        let mut larger = 0;
        for (size, taken) in self.larger.iter().zip(&fill.taken) {
            let there = remaining / size.digit % (size.pods + 1);
            if there < *taken {
                return false;
            }
            larger += there as usize * size.gpus;
        }
        fill.small <= (gpus - larger) / self.smallest
    }

    /// The state after `count` GPUs on the next host; None if no packing leads there, or if the state was not prepared.
    pub fn take(&self, state: u32, count: usize) -> Option<u32> {
        match self.states.get(state as usize) {
            None => Some(state),
            Some(s) => s.next.get(count.checked_sub(1)?).copied().filter(|n| *n < DEAD),
        }
    }
}

/// The sizes of the pods on each host, largest first, that fill `counts` exactly. None if no packing does, or if none
/// was found within [`TRIES_OF_COUNTS_MAX`]. Deterministic.
pub(crate) fn pack(pods: &[usize], counts: &[usize]) -> Option<Vec<Vec<usize>>> {
    if pods.iter().sum::<usize>() != counts.iter().sum::<usize>() {
        return None;
    }
    searched(pods, counts).or_else(|| tightest(pods, counts))
}

/// True if [`pack`] finds a packing. O(pods + counts) where the tightest packing fits.
pub(crate) fn fills(pods: &[usize], counts: &[usize]) -> bool {
    pods.iter().sum::<usize>() == counts.iter().sum::<usize>()
        && (tightest(pods, counts).is_some() || searched(pods, counts).is_some())
}

/// The largest pods first, each on the host with the least room that holds it; None if that leaves a pod over.
fn tightest(pods: &[usize], counts: &[usize]) -> Option<Vec<Vec<usize>>> {
    let mut sizes = pods.to_vec();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut by_room: Vec<Vec<usize>> = vec![Vec::new(); GPUS_PER_HOST_MAX + 1];
    for (host, room) in counts.iter().enumerate().rev() {
        by_room.get_mut(*room)?.push(host);
    }
    let mut out = vec![Vec::new(); counts.len()];
    for pod in sizes {
        let room = (pod..=GPUS_PER_HOST_MAX).find(|r| !by_room[*r].is_empty())?;
        let host = by_room[room].pop()?;
        by_room[room - pod].push(host);
        out[host].push(pod);
    }
    Some(out)
}

/// A packing from all of them; None if there is none or too many have to be examined.
fn searched(pods: &[usize], counts: &[usize]) -> Option<Vec<Vec<usize>>> {
    let mut packing = Packing::new(pods)?;
    packing.tries_max = TRIES_OF_COUNTS_MAX;
    if packing.states.is_empty() {
        return Some(counts.iter().map(|c| vec![1; *c]).collect());
    }
    let mut path = vec![packing.start()];
    for &c in counts {
        let at = *path.last()?;
        packing.prepare(at, c).then_some(())?;
        path.push(packing.take(at, c)?);
    }
    // Backwards from the empty remainder, through states from which the next one is reachable.
    let mut after = 0u64;
    let mut out: Vec<Vec<usize>> = Vec::with_capacity(counts.len());
    for (&c, &state) in counts.iter().zip(&path).rev() {
        let s = &packing.states[state as usize];
        let mut fills = packing.fills.get(c.checked_sub(1)?)?.iter();
        let fill = fills.find(|f| {
            let before = after.checked_add(f.code);
            before.is_some_and(|b| s.remaining.binary_search(&b).is_ok() && packing.leads(s.gpus, b, f))
        })?;
        let larger = packing.larger.iter().zip(&fill.taken).rev();
        let mut sizes: Vec<usize> = larger.flat_map(|(size, n)| vec![size.gpus; *n as usize]).collect();
        sizes.extend(std::iter::repeat_n(packing.smallest, fill.small));
        after += fill.code;
        out.push(sizes);
    }
    out.reverse();
    Some(out)
}

/// The GPUs of every pod in the request's order, for a choice given host by host in rank order. Pods of one size are
/// numbered in that order, so pod 0 holds the first ranks. None if the pods do not fill the counts.
pub fn place_pods(
    table: &HostShareTable,
    pods: &[usize],
    hosts: &[(HostId, GpuMask)],
) -> Option<Vec<(HostId, GpuMask)>> {
    let counts: Vec<usize> = hosts.iter().map(|(_, m)| m.count()).collect();
    let sizes = pack(pods, &counts)?;
    let mut numbers: HashMap<usize, Vec<usize>> = HashMap::new();
    for (i, p) in pods.iter().enumerate().rev() {
        numbers.entry(*p).or_default().push(i);
    }
    let mut out = vec![(HostId(0), GpuMask::EMPTY); pods.len()];
    for (&(host, mask), sizes) in hosts.iter().zip(&sizes) {
        for pod in split(table, host, mask, sizes) {
            out[numbers.get_mut(&pod.count())?.pop()?] = (host, pod);
        }
    }
    Some(out)
}

/// The choice of a packing scheduler for pods: the largest pods first, each on the fullest host that still holds it,
/// hosts in use before others; on every host the most compact GPUs. None if a pod does not fit. O(pods x hosts).
///
/// Source: the MostAllocated scoring of kube-scheduler and the packing of Kueue and KAI do this per pod.
pub fn packed_pods(cluster: &Cluster, free: &Allocation, pods: &[usize]) -> Option<Allocation> {
    let mut sizes = pods.to_vec();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut taken = vec![0usize; free.host_count()];
    for pod in sizes {
        let room = |i: usize| free.parts()[i].1.count() - taken[i];
        let at = (0..taken.len()).filter(|i| room(*i) >= pod).min_by_key(|i| (taken[*i] == 0, room(*i), *i))?;
        taken[at] += pod;
    }
    let hosts = free.parts().iter().zip(taken).filter(|(_, n)| *n > 0);
    let compact = hosts.map(|(p, n)| packed(cluster, &Allocation::new([*p]), n));
    Some(Allocation::new(compact.collect::<Option<Vec<_>>>()?.iter().flat_map(|a| a.parts().to_vec())))
}

/// Divides a host's GPUs into pods of these sizes (largest first). The first criterion is the bandwidth of the
/// worst-connected pod, the second the sum over pods; ties go to neighbouring low indices. Ascending by first GPU.
/// O(3^GPUs) at worst, a few hundred steps for eight GPUs.
fn split(table: &HostShareTable, host: HostId, mask: GpuMask, sizes: &[usize]) -> Vec<GpuMask> {
    struct Split<'a> {
        table: &'a HostShareTable,
        host: HostId,
        sizes: &'a [usize],
        /// Best `(worst, sum)` and its first pod, by the remaining GPUs, which determine the number of placed pods.
        memo: HashMap<u32, (f64, f64, GpuMask)>,
    }
    impl Split<'_> {
        fn best(&mut self, pod: usize, left: GpuMask) -> (f64, f64, GpuMask) {
            let Some(&size) = self.sizes.get(pod) else { return (f64::INFINITY, 0.0, GpuMask::EMPTY) };
            if size == 1 {
                // Pods of one GPU have no internal links.
                return (f64::INFINITY, 0.0, GpuMask(left.0 & left.0.wrapping_neg()));
            }
            if let Some(b) = self.memo.get(&left.0) {
                return *b;
            }
            // Only pods of this size remain, and one of them must hold the lowest GPU. Place that one first.
            let last_size = self.sizes.last() == Some(&size);
            let mut best = (f64::NEG_INFINITY, 0.0, GpuMask::EMPTY);
            for m in left.subsets().filter(|m| m.count() == size) {
                if last_size && m.0.trailing_zeros() != left.0.trailing_zeros() {
                    continue;
                }
                let own = self.table.intra_gb_per_s(self.host, m);
                let (worst, sum, _) = self.best(pod + 1, left.minus(m));
                let (worst, sum) = (worst.min(own), sum + own);
                if worst > best.0 || (worst == best.0 && sum > best.1) {
                    best = (worst, sum, m);
                }
            }
            self.memo.insert(left.0, best);
            best
        }
    }
    let mut s = Split { table, host, sizes, memo: HashMap::new() };
    let (mut left, mut out) = (mask, Vec::with_capacity(sizes.len()));
    for pod in 0..sizes.len() {
        let m = s.best(pod, left).2;
        left = left.minus(m);
        out.push(m);
    }
    out.sort_by_key(|m| m.0.trailing_zeros());
    out
}
