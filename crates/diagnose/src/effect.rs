//! How a slow component lowers the bandwidth of an allocation.

use predict::{BandwidthModel, Model};
use predict::{Part, RatedCluster};
use rustc_hash::FxBuildHasher;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// A component that can be slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The whole host.
    Host(HostId),
    /// All network traffic of a host: its cables, its switch port, a setting.
    HostNetwork(HostId),
    /// One NIC, by its index on the host.
    Nic(HostId, u8),
    /// The links of one GPU inside its host.
    Gpu(HostId, u8),
    /// The link between two GPUs of a host, the smaller index first.
    Link(HostId, u8, u8),
}

impl Component {
    /// The host of the component.
    pub fn host(self) -> HostId {
        match self {
            Component::Host(h)
            | Component::HostNetwork(h)
            | Component::Nic(h, _)
            | Component::Gpu(h, _)
            | Component::Link(h, _, _) => h,
        }
    }
    /// The kind: `host`, `network`, `nic`, `gpu` or `link`.
    pub fn kind(self) -> &'static str {
        match self {
            Component::Host(_) => "host",
            Component::HostNetwork(_) => "network",
            Component::Nic(..) => "nic",
            Component::Gpu(..) => "gpu",
            Component::Link(..) => "link",
        }
    }
    /// The form in files, next to the host's name: `nic 3`, `gpu 5`, `link 2 6`, `host`, `network`.
    pub fn text(self) -> String {
        match self {
            Component::Host(_) | Component::HostNetwork(_) => self.kind().into(),
            Component::Nic(_, i) | Component::Gpu(_, i) => format!("{} {i}", self.kind()),
            Component::Link(_, a, b) => format!("{} {a} {b}", self.kind()),
        }
    }
    /// Reads the form that [`Component::text`] writes; `None` if the host has no such component.
    pub fn parse(cluster: &Cluster, host: HostId, text: &str) -> Option<Component> {
        let ty = cluster.type_of(host);
        let mut words = text.split(' ');
        let kind = words.next()?;
        let numbers = words.map(|w| w.parse::<u8>().ok()).collect::<Option<Vec<u8>>>()?;
        let gpu = |g: u8| usize::from(g) < ty.gpu_count();
        match (kind, numbers.as_slice()) {
            ("host", []) => Some(Component::Host(host)),
            ("network", []) => Some(Component::HostNetwork(host)),
            ("nic", [i]) if usize::from(*i) < ty.nics.len() => Some(Component::Nic(host, *i)),
            ("gpu", [g]) if gpu(*g) => Some(Component::Gpu(host, *g)),
            ("link", [a, b]) if gpu(*a) && gpu(*b) && a < b => Some(Component::Link(host, *a, *b)),
            _ => None,
        }
    }
    /// The GPUs that a job must avoid to be unaffected by the component.
    pub fn gpus(self, cluster: &Cluster) -> GpuMask {
        let ty = cluster.type_of(self.host());
        match self {
            Component::Host(_) | Component::HostNetwork(_) => ty.all_gpus(),
            Component::Nic(_, i) => {
                GpuMask::from_indices(ty.all_gpus().iter().filter(|g| ty.nearest_nics(*g) >> i & 1 == 1))
            }
            Component::Gpu(_, g) => GpuMask(1 << g),
            Component::Link(_, a, b) => GpuMask(1 << a | 1 << b),
        }
    }

    /// Name for people: `NIC mlx5_3 of n1`.
    pub fn name(self, cluster: &Cluster) -> String {
        let host = &cluster.host(self.host()).name;
        match self {
            Component::Host(_) => format!("host {host}"),
            Component::HostNetwork(_) => format!("the network of host {host}"),
            Component::Nic(h, i) => {
                let nic = cluster.type_of(h).nics.get(usize::from(i));
                format!("NIC {} of {host}", nic.map_or_else(|| i.to_string(), |n| n.name.clone()))
            }
            Component::Gpu(_, g) => format!("GPU {host}:{g}"),
            Component::Link(_, a, b) => format!("link {host}:{a} - {host}:{b}"),
        }
    }

    /// Every component that can slow an allocation. O(hosts x GPUs²).
    pub fn touched_by(cluster: &Cluster, allocation: &Allocation) -> Vec<Component> {
        let several = allocation.host_count() > 1;
        let mut out = Vec::new();
        for &(h, mask) in allocation.parts() {
            out.push(Component::Host(h));
            if several {
                out.push(Component::HostNetwork(h));
                let nics = cluster.type_of(h).nics_touched(mask);
                out.extend((0..32u8).filter(|i| nics >> i & 1 == 1).map(|i| Component::Nic(h, i)));
            }
            if mask.count() > 1 {
                out.extend(mask.iter().map(|g| Component::Gpu(h, g as u8)));
                if mask.count() <= RING_USES_ALL && !several {
                    out.extend(pairs(mask).map(|(a, b)| Component::Link(h, a, b)));
                }
            }
        }
        out
    }
}

/// Maximum number of GPUs of a ring that uses the link of every pair. A larger ring can avoid a slow link.
pub(super) const RING_USES_ALL: usize = 3;

fn pairs(mask: GpuMask) -> impl Iterator<Item = (u8, u8)> {
    mask.iter().flat_map(move |a| mask.iter().filter(move |b| a < *b).map(move |b| (a as u8, b as u8)))
}

/// Maximum number of hosts for which the order of hosts and the individual NICs distinguish allocations. In larger
/// allocations, hosts with the same type and GPUs are interchangeable, and so are NICs of equal rate: a ring of many
/// hosts crosses each of them in the same way.
pub(super) const ORDERED_HOSTS_MAX: usize = 8;
/// Maximum number of allocation shapes with cached estimates: a site has thousands (48 bytes each, plus 8 per host).
const SHAPES_MAX: usize = 1 << 16;
/// Maximum number of cached estimates with a slow component (40 bytes each).
const SLOWED_MAX: usize = 1 << 19;
/// Marks an allocation whose shape did not fit into the cache.
const NO_SHAPE: u32 = u32::MAX;

/// The slow part of a host, for multi-host jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum SlowPart {
    /// All NICs.
    Network,
    /// One NIC.
    Nic(u8),
    /// One of the GPUs that the job uses.
    Gpu,
}

/// Values that all effects on one allocation share.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prepared {
    shape: u32,
    /// Estimate of the healthy allocation, GB/s.
    healthy_gb_per_s: f64,
    /// Intra bandwidth of the weakest host, the index of that host, and the lowest intra bandwidth of the other hosts.
    inside_gb_per_s: f64,
    weakest: usize,
    inside_of_others_gb_per_s: f64,
}

/// Estimates that effects reuse. Two allocations have the same shape if their hosts have, in order, the same types,
/// GPUs and health. Without shared links the physics gives both the same bandwidth.
#[derive(Debug, Default)]
pub(super) struct EffectCache {
    shapes: HashMap<Box<[u64]>, u32, FxBuildHasher>,
    /// By shape: the estimate without slow components and without shared links, GB/s.
    healthy: Vec<f64>,
    /// By shape, host index and slow part, and bits of the factor: the same estimate with the slow component.
    slowed: HashMap<(u32, u32, u64), f64, FxBuildHasher>,
    /// Number of estimates that the physics computed.
    pub(super) estimates: Cell<u64>,
    /// The cluster without shared links; set on first use.
    flat: Option<Cluster>,
}

impl EffectCache {
    /// True if there is no room for more shapes.
    pub(super) fn is_full(&self) -> bool {
        self.healthy.len() >= SHAPES_MAX
    }

    /// Drops all estimates and invalidates everything prepared with them.
    pub(super) fn clear(&mut self) {
        self.shapes.clear();
        self.healthy.clear();
        self.slowed.clear();
    }
}

/// Effects of slow components, by the physics of a model's cluster.
///
/// Links that hosts share (tiers, links of host pairs) cap a job with and without the slow component. The estimates
/// with a slow component ignore these links and are capped by the healthy estimate, which includes them. Equal jobs in
/// different places can therefore share estimates.
pub struct Effects<'m> {
    model: &'m Model,
    collective: Collective,
    cluster: Cow<'m, Cluster>,
    /// By host: a number that is equal for hosts of equal type and health.
    kinds: Cow<'m, [u32]>,
    /// The cluster without shared links. During an estimate one host has slow NICs.
    flat: RefCell<Cluster>,
    shared_links: bool,
    cache: RefCell<EffectCache>,
}

impl<'m> Effects<'m> {
    /// Effects in `cluster`, which must have the same hosts as the model's cluster. O(hosts).
    pub fn new(cluster: &Cluster, model: &'m Model) -> Self {
        let kinds = Cow::Owned(RatedCluster::kinds_of(cluster));
        Effects::of_parts(Cow::Owned(cluster.clone()), kinds, model, EffectCache::default())
    }

    /// Effects in the model's own cluster, at the learned rates, with the cached estimates of an earlier `Effects` of
    /// the same model. O(1) from the second call on.
    pub(super) fn with_cache(model: &'m Model, cache: EffectCache) -> Self {
        Effects::of_parts(Cow::Borrowed(&model.site().cluster), Cow::Borrowed(model.site().kinds()), model, cache)
    }

    fn of_parts(cluster: Cow<'m, Cluster>, kinds: Cow<'m, [u32]>, model: &'m Model, mut cache: EffectCache) -> Self {
        let flat = cache.flat.take().unwrap_or_else(|| {
            let mut flat = Cluster::clone(&cluster);
            flat.network.tiers.clear();
            flat.network.host_links.clear();
            flat
        });
        let shared_links = !(cluster.network.tiers.is_empty() && cluster.network.host_links.is_empty());
        Effects {
            model,
            collective: model.collective(),
            cluster,
            kinds,
            flat: RefCell::new(flat),
            shared_links,
            cache: RefCell::new(cache),
        }
    }

    /// Returns the cache, for the next `Effects`.
    pub(super) fn into_cache(self) -> EffectCache {
        EffectCache { flat: Some(self.flat.into_inner()), ..self.cache.into_inner() }
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Number of estimates that the physics has computed.
    pub fn estimates(&self) -> u64 {
        self.cache.borrow().estimates.get()
    }

    /// Logarithm of the remaining share of an allocation's bandwidth when `component` runs at the share `factor` of its
    /// rate. 0 if the component does not affect the allocation, or if the model's predictions already include its
    /// slowness. O(hosts) if the estimate is cached, otherwise two estimates.
    pub fn of(&self, component: Component, factor: f64, allocation: &Allocation, size: Bytes) -> f64 {
        let h = component.host();
        let mask = allocation.mask(h);
        if mask.is_empty() || allocation.gpu_count() < 2 || predicts_slow(self.model, component) {
            return 0.0;
        }
        let nics = self.cluster.type_of(h).nics_touched(mask);
        match Self::slow_part(component, mask, nics, allocation.host_count()) {
            Touch::Not => 0.0,
            Touch::Whole => factor.ln(),
            Touch::Part(part) => {
                let at = allocation.parts().partition_point(|p| p.0 < h);
                self.across(&self.prepare(allocation, size), part, factor, allocation, at, size)
            }
        }
    }

    /// The effect of `component` on a job with the GPUs `mask` and the NICs `nics` on the component's host.
    pub(super) fn slow_part(component: Component, mask: GpuMask, nics: u32, hosts: usize) -> Touch {
        let several = hosts > 1;
        match component {
            Component::Host(_) => Touch::Whole,
            Component::HostNetwork(_) if several => Touch::Part(SlowPart::Network),
            Component::Nic(_, i) if several && nics >> i & 1 == 1 => Touch::Part(SlowPart::Nic(i)),
            Component::Gpu(_, g) if mask.count() > 1 && mask.contains(g.into()) => {
                if several {
                    Touch::Part(SlowPart::Gpu)
                } else {
                    Touch::Whole
                }
            }
            Component::Link(_, a, b)
                if !several && mask.count() <= RING_USES_ALL && mask.contains(a.into()) && mask.contains(b.into()) =>
            {
                Touch::Whole
            }
            _ => Touch::Not,
        }
    }

    /// The values shared by all effects on an allocation. O(hosts), plus one estimate if the shape is new or links are
    /// shared.
    pub(super) fn prepare(&self, allocation: &Allocation, size: Bytes) -> Prepared {
        if allocation.host_count() < 2 {
            return Prepared::default();
        }
        let table = self.model.share_table(size);
        let (mut first, mut second, mut weakest) = (f64::INFINITY, f64::INFINITY, 0);
        for (at, &(h, mask)) in allocation.parts().iter().enumerate() {
            let v = table.part(h, mask).intra_gb_per_s;
            if v < first {
                (second, first, weakest) = (first, v, at);
            } else {
                second = second.min(v);
            }
        }
        let shape = self.shape(allocation, size);
        let healthy_gb_per_s = if self.shared_links || shape == NO_SHAPE {
            self.estimate(&self.cluster, allocation, size)
        } else {
            self.cache.borrow().healthy[shape as usize]
        };
        Prepared { shape, healthy_gb_per_s, inside_gb_per_s: first, weakest, inside_of_others_gb_per_s: second }
    }

    /// The number of an allocation's shape.
    fn shape(&self, allocation: &Allocation, size: Bytes) -> u32 {
        let key: Box<[u64]> = std::iter::once(size.0)
            .chain(
                allocation.parts().iter().map(|&(h, mask)| u64::from(self.kinds[h.index()]) << 32 | u64::from(mask.0)),
            )
            .collect();
        let mut cache = self.cache.borrow_mut();
        if let Some(shape) = cache.shapes.get(&key) {
            return *shape;
        }
        if cache.is_full() {
            return NO_SHAPE;
        }
        let shape = cache.healthy.len() as u32;
        cache.estimates.set(cache.estimates.get() + 1);
        let flat = self.flat.borrow();
        let v = self.model.fabric().on(&flat).estimate(allocation, self.collective, size).busbw.gb_per_s();
        cache.healthy.push(v);
        cache.shapes.insert(key, shape);
        shape
    }

    fn estimate(&self, cluster: &Cluster, allocation: &Allocation, size: Bytes) -> f64 {
        let cache = self.cache.borrow();
        cache.estimates.set(cache.estimates.get() + 1);
        self.model.fabric().on(cluster).estimate(allocation, self.collective, size).busbw.gb_per_s()
    }

    /// The first host of an allocation on which a slow part has the same effect as on host number `at`, and the
    /// corresponding part there.
    pub(super) fn like(&self, part: SlowPart, allocation: &Allocation, at: usize, size: Bytes) -> (usize, SlowPart) {
        let parts = allocation.parts();
        if parts.len() <= ORDERED_HOSTS_MAX {
            return (at, part);
        }
        let (h, mask) = parts[at];
        let of = |h: HostId| self.cluster.host(h);
        let ty = self.cluster.type_of(h);
        let first = match part {
            SlowPart::Network | SlowPart::Nic(_) => {
                let like = |p: &&(HostId, GpuMask)| {
                    let o = of(p.0);
                    p.1 == mask && o.host_type == of(h).host_type && o.nic_health == of(h).nic_health
                };
                parts.iter().position(|p| like(&p)).unwrap_or(at)
            }
            SlowPart::Gpu => {
                let table = self.model.share_table(size);
                let own = table.part(h, mask).intra_gb_per_s;
                let like = |p: &(HostId, GpuMask)| p.1.count() > 1 && table.part(p.0, p.1).intra_gb_per_s == own;
                parts.iter().position(like).unwrap_or(at)
            }
        };
        let part = match part {
            SlowPart::Nic(i) => {
                let rate = |i: u8| self.cluster.nic_rate(h, i.into());
                let touched = ty.nics_touched(mask);
                let like = |o: &u8| touched >> o & 1 == 1 && rate(*o) == rate(i);
                SlowPart::Nic((0..ty.nics.len() as u8).find(like).unwrap_or(i))
            }
            other => other,
        };
        (first, part)
    }

    /// The effect of a slow part of host number `at` on a multi-host allocation, whose bandwidth is the minimum of its
    /// weakest host and the network.
    pub(super) fn across(
        &self,
        p: &Prepared,
        part: SlowPart,
        factor: f64,
        allocation: &Allocation,
        at: usize,
        size: Bytes,
    ) -> f64 {
        let (inside, network) = match part {
            SlowPart::Gpu => {
                let (h, mask) = allocation.parts()[at];
                let own = self.model.share_table(size).part(h, mask).intra_gb_per_s;
                let others = if at == p.weakest { p.inside_of_others_gb_per_s } else { p.inside_gb_per_s };
                (others.min(own * factor), p.healthy_gb_per_s)
            }
            part => (p.inside_gb_per_s, self.slowed(p, part, factor, allocation, at, size)),
        };
        let before = p.inside_gb_per_s.min(p.healthy_gb_per_s);
        let after = inside.min(network.min(p.healthy_gb_per_s));
        if before > 0.0 && after > 0.0 { (after / before).ln().min(0.0) } else { 0.0 }
    }

    /// The estimate with slow NICs, GB/s.
    fn slowed(
        &self,
        p: &Prepared,
        part: SlowPart,
        factor: f64,
        allocation: &Allocation,
        at: usize,
        size: Bytes,
    ) -> f64 {
        let (at, part) = self.like(part, allocation, at, size);
        let (name, nics) = match part {
            SlowPart::Nic(i) => (u32::from(i), 1 << i),
            _ => (u32::from(u8::MAX), u32::MAX),
        };
        let key = (p.shape, (at as u32) << 8 | name, factor.to_bits());
        if p.shape != NO_SHAPE
            && let Some(v) = self.cache.borrow().slowed.get(&key)
        {
            return *v;
        }
        let h = allocation.parts()[at].0;
        let before = {
            let mut flat = self.flat.borrow_mut();
            let n = flat.type_of(h).nics.len();
            let health = &mut flat.hosts[h.index()].nic_health;
            let before = health.clone();
            health.resize(n, 1.0);
            health.iter_mut().enumerate().filter(|(i, _)| nics >> i & 1 == 1).for_each(|(_, f)| *f *= factor);
            before
        };
        let v = self.estimate(&self.flat.borrow(), allocation, size);
        self.flat.borrow_mut().hosts[h.index()].nic_health = before;
        let mut cache = self.cache.borrow_mut();
        if p.shape != NO_SHAPE && cache.slowed.len() < SLOWED_MAX {
            cache.slowed.insert(key, v);
        }
        v
    }
}

/// The effect of a component on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Touch {
    /// No effect.
    Not,
    /// The whole job runs at the component's rate.
    Whole,
    /// One host of several has a slow part.
    Part(SlowPart),
}

/// True if the predictions already include the slowness of `component`: a suspect that the model has learned causes no
/// further loss.
fn predicts_slow(model: &Model, component: Component) -> bool {
    let host = &model.cluster().host(component.host()).name;
    model.rates().slow.iter().any(|s| match (&s.part, component) {
        (Part::Nic { host: h, nic }, Component::Nic(_, i)) => h == host && *nic == i,
        (Part::Host { host: h }, Component::Host(_) | Component::HostNetwork(_)) => h == host,
        _ => false,
    })
}
