//! Constraints on the whole choice: pods, minimum GPUs per host, maximum number of hosts. They depend only on counts.
//!
//! A search goes through the hosts in order and takes a count of GPUs on each. [`Shape`] is an automaton over these
//! counts. [`Left`] is its state, the remainder to be placed; [`Shape::take`] is its step. [`Shape::ways`] is the
//! number of complete choices from a state, so that a search avoids dead ends. Without such constraints a step compares
//! two numbers.

use crate::options::HostOptions;
use crate::pods::Packing;
use crate::request::{Refusal, Request, Split};
use std::collections::HashMap;
use topology::GPUS_PER_HOST_MAX;

/// Maximum number of states (hosts times possible remainders); each takes about 64 bytes.
const STATES_MAX: usize = 1 << 19;

/// No limit on hosts. This value is never decremented, so it does not multiply states.
const ANY_HOSTS: u32 = u32::MAX;

/// The remainder to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Left {
    /// GPUs.
    pub gpus: u32,
    /// Number of further hosts allowed; [`ANY_HOSTS`] without a limit.
    hosts: u32,
    /// Pods, as a state of the packing; 0 without pods.
    pods: u32,
    /// The count of every host, if counts must be equal and a host was already taken; otherwise 0.
    each: u8,
}

/// The constraints of one request on the counts per host.
#[derive(Clone, Debug)]
pub struct Shape {
    host_min: usize,
    equal: bool,
    /// Bit `n`: a host may give `n` GPUs.
    counts: u32,
    packing: Packing,
    start: Left,
    /// GPUs that hosts `i..` can give; used without further constraints.
    rest: Vec<usize>,
    /// `ways[i]`: number of complete choices with hosts `i..`, by remainder; None without constraints.
    ways: Option<Vec<HashMap<Left, u128>>>,
}

impl Request {
    /// True if pods, minimum GPUs per host or maximum number of hosts constrain the choice.
    pub fn asks_shape(&self) -> bool {
        self.constraints.gpus_per_host_min > 1
            || self.constraints.gpus_per_host_max.is_some_and(|m| m < GPUS_PER_HOST_MAX)
            || !matches!(self.constraints.split, Split::Any | Split::EqualIfFeasible)
            || self.constraints.hosts_max.is_some_and(|m| m < self.gpus)
            || self.pods.iter().any(|p| *p > 1)
    }

    /// True if these counts per host (hosts without GPUs left out) satisfy the pods and the limits on hosts. For
    /// searches that do not use [`Shape`]. O(counts) without pods of several sizes.
    pub fn accepts_counts(&self, counts: &[usize]) -> bool {
        let c = &self.constraints;
        counts.iter().sum::<usize>() == self.gpus
            && c.hosts_max.is_none_or(|m| counts.len() <= m)
            && counts.iter().all(|n| *n >= c.gpus_per_host_min && c.gpus_per_host_max.is_none_or(|m| *n <= m))
            && match c.split {
                Split::Any | Split::EqualIfFeasible => true,
                Split::Equal => counts.windows(2).all(|w| w[0] == w[1]),
                Split::PerHost(each) => counts.iter().all(|n| *n == each),
            }
            && (self.pods.is_empty() || crate::pods::fills(&self.pods, counts))
    }

    /// The counts that one host may give, as bits: sums of some of the pods that reach the minimum per host. A vector
    /// of such counts may still not fit all pods, unless the pods have one size; [`Request::accepts_counts`] decides.
    /// O(pods).
    pub fn counts_allowed(&self) -> u32 {
        let every = (2u32 << GPUS_PER_HOST_MAX) - 2;
        let sums =
            self.pods.iter().filter(|p| **p <= GPUS_PER_HOST_MAX).fold(1u32, |sums, p| sums | (sums << p) & every);
        let sums = if self.pods.is_empty() { every } else { sums & every };
        let sums = match self.constraints.gpus_per_host_max {
            Some(most) if most < GPUS_PER_HOST_MAX => sums & ((2u32 << most) - 1),
            _ => sums,
        };
        let sums = match self.constraints.split {
            Split::Any | Split::EqualIfFeasible => sums,
            Split::Equal => {
                (1..=GPUS_PER_HOST_MAX).filter(|n| self.gpus.is_multiple_of(*n)).fold(0, |m, n| m | 1 << n) & sums
            }
            Split::PerHost(each) => 1u32.checked_shl(each as u32).unwrap_or(0) & sums,
        };
        sums & every.checked_shl(self.constraints.gpus_per_host_min.saturating_sub(1).min(31) as u32).unwrap_or(0)
    }

    /// The refusal if no split keeps the limits.
    pub(crate) fn no_split(&self) -> Refusal {
        let (usable, hosts) = (self.free.gpu_count(), self.free.host_count());
        Refusal::NoSplit { wanted: self.gpus, usable, hosts, limits: self.limits_in_words() }
    }

    /// The limits on hosts, in words: empty or ` (at least 2 GPUs per host, at most 3 hosts)`.
    fn limits_in_words(&self) -> String {
        let c = &self.constraints;
        let mut words = Vec::new();
        if c.gpus_per_host_min > 1 {
            words.push(format!("at least {} GPUs per host", c.gpus_per_host_min));
        }
        if let Some(most) = c.gpus_per_host_max {
            words.push(format!("at most {most} GPUs per host"));
        }
        match c.split {
            Split::Any | Split::EqualIfFeasible => {}
            Split::Equal => words.push("equal counts".to_owned()),
            Split::PerHost(each) => words.push(format!("{each} GPUs per host")),
        }
        if let Some(m) = c.hosts_max {
            words.push(format!("at most {m} host{}", if m == 1 { "" } else { "s" }));
        }
        if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) }
    }
}

impl Shape {
    /// The automaton of a request over its hosts' options. The options must come from usable GPUs and reach the
    /// request's count. Refused if no choice is possible, or if the states are too many. O(1) without constraints;
    /// otherwise O(hosts x states x counts), at most [`STATES_MAX`] states.
    pub fn new(request: &Request, options: &[HostOptions]) -> Result<Shape, Refusal> {
        let mut rest = vec![0; options.len() + 1];
        for i in (0..options.len()).rev() {
            rest[i] = rest[i + 1] + options[i].by_count.len();
        }
        let c = &request.constraints;
        let any = options.len().min(request.gpus);
        let hosts = c.hosts_max.filter(|m| *m < any).map_or(ANY_HOSTS, |m| m as u32);
        let start = Left { gpus: u32::try_from(request.gpus).unwrap_or(u32::MAX), hosts, pods: 0, each: 0 };
        let mut shape = Shape {
            host_min: c.gpus_per_host_min,
            equal: c.split == Split::Equal,
            counts: request.counts_allowed(),
            packing: Packing::none(),
            start,
            rest,
            ways: None,
        };
        if !request.asks_shape() {
            return Ok(shape);
        }
        let largest = options.iter().map(|o| o.by_count.len()).max().unwrap_or(0);
        if let Some(pod) = request.pods.iter().copied().filter(|p| *p > largest).max() {
            return Err(Refusal::PodTooLarge { pod, largest });
        }
        shape.packing = Packing::new(&request.pods).ok_or_else(|| too_mixed(request))?;
        shape.start.pods = shape.packing.start();
        shape.count_ways(request, options)?;
        if shape.ways(0, shape.start) == 0 {
            let (usable, hosts, limits) = (shape.rest[0], options.len(), request.limits_in_words());
            return Err(match request.pods.len() {
                0 => Refusal::NoSplit { wanted: request.gpus, usable, hosts, limits },
                pods => Refusal::PodsDoNotFit { pods, usable, hosts, limits },
            });
        }
        Ok(shape)
    }

    /// The state before the first host.
    pub fn start(&self) -> Left {
        self.start
    }

    /// The state after `count` GPUs (1 or more, at most the remainder) of one more host; None if that breaks the
    /// request.
    pub fn take(&self, left: Left, count: usize) -> Option<Left> {
        let gpus = left.gpus.checked_sub(count as u32)?;
        if self.ways.is_none() {
            return Some(Left { gpus, ..left });
        }
        if count < self.host_min || left.hosts == 0 || self.counts >> count & 1 == 0 {
            return None;
        }
        if self.equal && left.each != 0 && count != usize::from(left.each) {
            return None;
        }
        let pods = self.packing.take(left.pods, count)?;
        let hosts = if left.hosts == ANY_HOSTS { ANY_HOSTS } else { left.hosts - 1 };
        Some(Left { gpus, hosts, pods, each: if self.equal { count as u8 } else { 0 } })
    }

    /// True if hosts `i..` can still complete the choice. Exact.
    pub fn can_end(&self, i: usize, left: Left) -> bool {
        match &self.ways {
            None => self.rest[i] >= left.gpus as usize,
            Some(_) => left.gpus == 0 || self.ways(i, left) > 0,
        }
    }

    /// The total number of candidates, if the request has such constraints.
    pub fn combinations(&self) -> Option<u128> {
        self.ways.as_ref().map(|_| self.ways(0, self.start))
    }

    fn ways(&self, i: usize, left: Left) -> u128 {
        self.ways.as_ref().and_then(|w| w[i].get(&left).copied()).unwrap_or(0)
    }

    /// The possible remainders after every host, ignoring pods of several sizes; a limit on hosts multiplies them.
    /// O(hosts).
    fn states_at_most(&self, request: &Request, options: &[HostOptions]) -> usize {
        let step = request.pods.iter().fold(0, |a, b| gcd(a, *b)).max(1);
        let mut states = 0;
        let mut given_most = 0;
        for (i, o) in options.iter().enumerate() {
            given_most += o.by_count.len();
            let given_least = request.gpus.saturating_sub(self.rest[i + 1]);
            let counts = given_most.min(request.gpus).saturating_sub(given_least) / step + 1;
            let hosts = if self.start.hosts == ANY_HOSTS { 1 } else { 1 + (i + 1).min(self.start.hosts as usize) / 2 };
            states += counts * hosts;
        }
        states
    }

    /// A forward pass over the hosts finds the reachable states; a backward pass counts the choices from each.
    fn count_ways(&mut self, request: &Request, options: &[HostOptions]) -> Result<(), Refusal> {
        if self.states_at_most(request, options) > 4 * STATES_MAX {
            return Err(too_large(request, options)); // too large: an exact count would waste time
        }
        self.ways = Some(Vec::new());
        let mut layers: Vec<HashMap<Left, u128>> = vec![HashMap::from([(self.start, 0)])];
        let mut states = 1;
        for (i, o) in options.iter().enumerate() {
            let mut next: HashMap<Left, u128> = HashMap::new();
            for &left in layers[i].keys() {
                if self.rest[i] < left.gpus as usize {
                    continue;
                }
                next.insert(left, 0);
                for c in 1..=o.by_count.len().min(left.gpus as usize) {
                    if !self.packing.prepare(left.pods, c) {
                        return Err(too_mixed(request));
                    }
                    if let Some(l) = self.take(left, c) {
                        next.insert(l, 0);
                    }
                }
            }
            states += next.len();
            if states > STATES_MAX {
                return Err(too_large(request, options));
            }
            layers.push(next);
        }
        if let Some(last) = layers.last_mut() {
            last.iter_mut().for_each(|(l, n)| *n = u128::from(l.gpus == 0));
        }
        for i in (0..options.len()).rev() {
            let (head, tail) = layers.split_at_mut(i + 1);
            let after = |l: &Left| tail[0].get(l).copied().unwrap_or(0);
            for (left, n) in &mut head[i] {
                *n = after(left);
                for (c, parts) in options[i].by_count.iter().enumerate().take(left.gpus as usize) {
                    if let Some(l) = self.take(*left, c + 1) {
                        *n = n.saturating_add(after(&l).saturating_mul(parts.len() as u128));
                    }
                }
            }
        }
        self.ways = Some(layers);
        Ok(())
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn too_large(request: &Request, options: &[HostOptions]) -> Refusal {
    Refusal::TooLarge {
        combinations: crate::exact::combinations(options, request.gpus),
        limit: crate::exact::COMBINATIONS_MAX,
    }
}

fn too_mixed(request: &Request) -> Refusal {
    let sizes = request.pods.iter().collect::<std::collections::HashSet<_>>().len();
    Refusal::PodsTooMixed { pods: request.pods.len(), sizes }
}
