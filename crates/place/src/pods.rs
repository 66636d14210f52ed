//! Pods: which counts per host they can fill exactly, on which host each lies, and with which GPUs.

use crate::baselines::packed;
use predict::PartTable;
use std::collections::{BTreeMap, HashMap};
use topology::{Allocation, Cluster, GPUS_PER_HOST_MAX, GpuMask, HostId};

/// Most sets of remaining pods that packing looks at.
const SETS_MAX: usize = 1 << 14;
/// Most entries in all these sets together.
const ENTRIES_MAX: usize = 1 << 20;

/// A state that is not worked out yet.
const UNKNOWN: u32 = u32::MAX;
/// A count that no packing leads to.
const DEAD: u32 = u32::MAX - 1;

/// All ways to pack pods into hosts at once: a state is the set of what may remain of the larger pods after the counts so far.
///
/// Pods of the smallest size need no place in it: their number follows from the GPUs that are left. So pods of one size have one state
/// per number of GPUs left, whatever their number.
#[derive(Clone, Debug)]
pub(crate) struct Packing {
    /// Sizes but the smallest, ascending.
    larger: Vec<usize>,
    smallest: usize,
    states: Vec<State>,
    index: HashMap<(usize, Vec<Remaining>), u32>,
    entries: usize,
}

/// How many pods of each larger size remain.
type Remaining = Box<[u32]>;

#[derive(Clone, Debug)]
struct State {
    /// GPUs of all pods that remain.
    gpus: usize,
    /// What may remain, ascending.
    remaining: Vec<Remaining>,
    /// `next[count - 1]`.
    next: [u32; GPUS_PER_HOST_MAX],
}

impl Packing {
    /// No pods, or pods that fill any count: of one GPU.
    pub fn none() -> Self {
        Packing { larger: Vec::new(), smallest: 1, states: Vec::new(), index: HashMap::new(), entries: 0 }
    }

    /// Of these pods.
    pub fn new(pods: &[usize]) -> Self {
        let mut by_size: BTreeMap<usize, u32> = BTreeMap::new();
        pods.iter().for_each(|p| *by_size.entry(*p).or_default() += 1);
        let mut packing = Packing::none();
        let Some((&smallest, _)) = by_size.first_key_value() else { return packing };
        packing.smallest = smallest;
        packing.larger = by_size.keys().skip(1).copied().collect();
        if smallest > 1 || !packing.larger.is_empty() {
            packing.add(pods.iter().sum(), vec![by_size.values().skip(1).copied().collect()]);
        }
        packing
    }

    /// Every pod remains.
    pub fn start(&self) -> u32 {
        0
    }

    /// How many different sizes.
    pub fn sizes(&self) -> usize {
        self.larger.len() + 1
    }

    fn add(&mut self, gpus: usize, remaining: Vec<Remaining>) -> u32 {
        let next = self.states.len() as u32;
        let id = *self.index.entry((gpus, remaining.clone())).or_insert(next);
        if id == next {
            self.entries += remaining.len();
            self.states.push(State { gpus, remaining, next: [UNKNOWN; GPUS_PER_HOST_MAX] });
        }
        id
    }

    /// Works out what follows on `count` GPUs on the next host; false beyond [`SETS_MAX`] or [`ENTRIES_MAX`].
    pub fn prepare(&mut self, state: u32, count: usize) -> bool {
        let Some(from) = self.states.get(state as usize) else { return true };
        if count == 0 || count > GPUS_PER_HOST_MAX || from.next[count - 1] != UNKNOWN {
            return true;
        }
        let mut after: Vec<Remaining> = Vec::new();
        for r in &from.remaining {
            let small = (from.gpus - self.gpus_of(r)) / self.smallest;
            self.subsets(r, small, count, 0, &mut r.clone(), &mut after);
        }
        let left = from.gpus.saturating_sub(count);
        after.sort_unstable();
        after.dedup();
        let to = if after.is_empty() { DEAD } else { self.add(left, after) };
        self.states[state as usize].next[count - 1] = to;
        self.states.len() <= SETS_MAX && self.entries <= ENTRIES_MAX
    }

    /// Every way to fill `count` GPUs from `now` (sizes from `size` on, then the smallest).
    fn subsets(
        &self,
        from: &[u32],
        small: usize,
        count: usize,
        size: usize,
        now: &mut Remaining,
        out: &mut Vec<Remaining>,
    ) {
        let Some(&gpus) = self.larger.get(size) else {
            if count.is_multiple_of(self.smallest) && count / self.smallest <= small {
                out.push(now.clone());
            }
            return;
        };
        for taken in 0..=(from[size] as usize).min(count / gpus) {
            now[size] = from[size] - taken as u32;
            self.subsets(from, small, count - taken * gpus, size + 1, now, out);
        }
        now[size] = from[size];
    }

    fn gpus_of(&self, r: &[u32]) -> usize {
        r.iter().zip(&self.larger).map(|(n, s)| *n as usize * s).sum()
    }

    /// The state after `count` GPUs on the next host; None if no packing leads there (or it was not prepared).
    pub fn take(&self, state: u32, count: usize) -> Option<u32> {
        match self.states.get(state as usize) {
            None => Some(state),
            Some(s) => s.next.get(count.checked_sub(1)?).copied().filter(|n| *n < DEAD),
        }
    }
}

/// The sizes of the pods on each host so that they fill `counts` exactly, largest first on each; None if they cannot. Deterministic.
pub(crate) fn pack(pods: &[usize], counts: &[usize]) -> Option<Vec<Vec<usize>>> {
    if pods.iter().sum::<usize>() != counts.iter().sum::<usize>() {
        return None;
    }
    let mut packing = Packing::new(pods);
    if packing.states.is_empty() {
        return Some(counts.iter().map(|c| vec![1; *c]).collect());
    }
    let mut path = vec![packing.start()];
    for &c in counts {
        let at = *path.last()?;
        packing.prepare(at, c).then_some(())?;
        path.push(packing.take(at, c)?);
    }
    // Backwards from nothing left: any set that can lead to what comes after.
    let mut after: Remaining = vec![0; packing.larger.len()].into();
    let mut out: Vec<Vec<usize>> = Vec::with_capacity(counts.len());
    for (&c, &state) in counts.iter().zip(&path).rev() {
        let s = &packing.states[state as usize];
        let (before, small) = s.remaining.iter().find_map(|r| {
            let used: usize = r
                .iter()
                .zip(&after)
                .zip(&packing.larger)
                .try_fold(0, |sum, ((b, a), size)| Some(sum + b.checked_sub(*a)? as usize * size))?;
            let rest = c.checked_sub(used)?;
            let small = (s.gpus - packing.gpus_of(r)) / packing.smallest;
            let fits = rest.is_multiple_of(packing.smallest) && rest / packing.smallest <= small;
            fits.then_some((r, rest / packing.smallest))
        })?;
        let larger = before.iter().zip(&after).zip(&packing.larger).rev();
        let mut sizes: Vec<usize> = larger.flat_map(|((b, a), size)| vec![*size; (b - a) as usize]).collect();
        sizes.extend(std::iter::repeat_n(packing.smallest, small));
        after = before.clone();
        out.push(sizes);
    }
    out.reverse();
    Some(out)
}

/// The GPUs of every pod in the request's order, for a choice given host by host in rank order: pods of one size are numbered in that
/// order too, so that pod 0 holds the first ranks. None if the pods do not fill the counts.
pub fn place_pods(table: &PartTable, pods: &[usize], hosts: &[(HostId, GpuMask)]) -> Option<Vec<(HostId, GpuMask)>> {
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

/// Where a packing scheduler would put pods: the largest first, each on the fullest host that still holds it, touched hosts before others;
/// on every host the most compact GPUs. None if one does not fit so. O(pods x hosts).
///
/// Source: kube-scheduler's MostAllocated scoring and Kueue's and KAI's packing do this per pod.
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

/// Cuts a host's GPUs into pods of these sizes (largest first): the worst-connected pod as well connected as possible, then the sum; between
/// equals low indices together. Ascending by first GPU. O(3^GPUs) at worst, a few hundred steps on eight GPUs.
fn split(table: &PartTable, host: HostId, mask: GpuMask, sizes: &[usize]) -> Vec<GpuMask> {
    struct Split<'a> {
        table: &'a PartTable,
        host: HostId,
        sizes: &'a [usize],
        /// Best `(worst, sum)` and its first pod, by what is left: that tells how many pods are placed.
        memo: HashMap<u32, (f64, f64, GpuMask)>,
    }
    impl Split<'_> {
        fn best(&mut self, pod: usize, left: GpuMask) -> (f64, f64, GpuMask) {
            let Some(&size) = self.sizes.get(pod) else { return (f64::INFINITY, 0.0, GpuMask::EMPTY) };
            if size == 1 {
                // Pods of one GPU have no links inside.
                return (f64::INFINITY, 0.0, GpuMask(left.0 & left.0.wrapping_neg()));
            }
            if let Some(b) = self.memo.get(&left.0) {
                return *b;
            }
            // Only pods of this size are left: one of them holds the lowest GPU, so this one may.
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
