//! What a slow component does to an allocation.

use crate::model::{BandwidthModel, Model};
use std::cell::RefCell;
use std::collections::HashMap;
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// Something that can be slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// Everything that runs on a host.
    Host(HostId),
    /// Everything that leaves a host: its cables, its switch port, a setting.
    HostNetwork(HostId),
    /// One NIC, by its index on the host.
    Nic(HostId, u8),
    /// The inside links of one GPU.
    Gpu(HostId, u8),
    /// The link between two GPUs of a host, the smaller index first.
    Link(HostId, u8, u8),
}

impl Component {
    /// Its host.
    pub fn host(self) -> HostId {
        match self {
            Component::Host(h)
            | Component::HostNetwork(h)
            | Component::Nic(h, _)
            | Component::Gpu(h, _)
            | Component::Link(h, _, _) => h,
        }
    }
    /// `host`, `network`, `nic`, `gpu` or `link`.
    pub fn kind(self) -> &'static str {
        match self {
            Component::Host(_) => "host",
            Component::HostNetwork(_) => "network",
            Component::Nic(..) => "nic",
            Component::Gpu(..) => "gpu",
            Component::Link(..) => "link",
        }
    }
    /// For a file, beside the host's name: `nic 3`, `gpu 5`, `link 2 6`, `host`, `network`.
    pub fn text(self) -> String {
        match self {
            Component::Host(_) | Component::HostNetwork(_) => self.kind().into(),
            Component::Nic(_, i) | Component::Gpu(_, i) => format!("{} {i}", self.kind()),
            Component::Link(_, a, b) => format!("{} {a} {b}", self.kind()),
        }
    }
    /// From what [`Component::text`] wrote; none if the host has no such component.
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
    /// The GPUs that a job must not use if it is to be out of the component's way.
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

    /// In words: `NIC mlx5_3 of n1`.
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

    /// Every component that can have an effect on an allocation. O(hosts x GPUs²).
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

/// A ring of so many GPUs uses the link of every two of them; a larger one can go around a slow link.
const RING_USES_ALL: usize = 3;

fn pairs(mask: GpuMask) -> impl Iterator<Item = (u8, u8)> {
    mask.iter().flat_map(move |a| mask.iter().filter(move |b| a < *b).map(move |b| (a as u8, b as u8)))
}

/// Answers by the physics of a model's cluster.
pub struct Effects<'m> {
    model: &'m Model,
    collective: Collective,
    /// The cluster, one NIC of which is slow while it is asked about.
    worse: RefCell<Cluster>,
    /// What was asked before: rounds ask the same again.
    known: RefCell<HashMap<Asked, f64>>,
}

/// A question: component, factor (bits), allocation, size.
type Asked = (Component, u64, Allocation, Bytes);
/// Most answers that are kept.
const KNOWN_MAX: usize = 1 << 20;

impl<'m> Effects<'m> {
    /// Of the cluster of `model`, or one with the same hosts.
    pub fn new(cluster: &Cluster, model: &'m Model) -> Self {
        let worse = RefCell::new(cluster.clone());
        Effects { model, collective: model.collective(), worse, known: RefCell::default() }
    }

    /// The cluster as it is.
    pub fn cluster(&self) -> Cluster {
        self.worse.borrow().clone()
    }

    /// The logarithm of what is left of an allocation's bandwidth when `component` has a share `factor` of its rate: 0 where it does not
    /// matter.
    pub fn of(&self, component: Component, factor: f64, allocation: &Allocation, size: Bytes) -> f64 {
        let h = component.host();
        let mask = allocation.mask(h);
        if mask.is_empty() || allocation.gpu_count() < 2 {
            return 0.0;
        }
        let several = allocation.host_count() > 1;
        match component {
            Component::Host(_) => factor.ln(),
            Component::HostNetwork(_) if !several => 0.0,
            Component::Nic(_, i) if !several || self.worse.borrow().type_of(h).nics_touched(mask) >> i & 1 == 0 => 0.0,
            Component::Gpu(_, g) if mask.count() < 2 || !mask.contains(g.into()) => 0.0,
            Component::Gpu(..) if !several => factor.ln(),
            Component::Link(_, a, b) => {
                let both = mask.contains(a.into()) && mask.contains(b.into());
                if both && !several && mask.count() <= RING_USES_ALL { factor.ln() } else { 0.0 }
            }
            Component::HostNetwork(_) | Component::Nic(..) | Component::Gpu(..) => {
                let key = (component, factor.to_bits(), allocation.clone(), size);
                if let Some(v) = self.known.borrow().get(&key) {
                    return *v;
                }
                let v = self.across(component, factor, allocation, size);
                let mut known = self.known.borrow_mut();
                if known.len() < KNOWN_MAX {
                    known.insert(key, v);
                }
                v
            }
        }
    }

    /// The same for allocations over hosts, where the smaller of the weakest host and the network decides.
    fn across(&self, component: Component, factor: f64, allocation: &Allocation, size: Bytes) -> f64 {
        let h = component.host();
        let table = self.model.part_table(size);
        let slow_gpu = match component {
            Component::Gpu(_, g) => Some(g),
            _ => None,
        };
        let inside = |with: bool| {
            let of = |&(host, mask): &(HostId, GpuMask)| {
                let hit = with && host == h && slow_gpu.is_some_and(|g| mask.contains(g.into()));
                table.part(host, mask).intra_gb_per_s * if hit { factor } else { 1.0 }
            };
            allocation.parts().iter().map(of).fold(f64::INFINITY, f64::min)
        };
        let network = || {
            let cluster = self.worse.borrow();
            self.model.fabric.on(&cluster).estimate(allocation, self.collective, size).busbw.gb_per_s()
        };
        let healthy = network();
        let worse = match component {
            Component::Nic(_, i) => self.with_health(h, 1 << i, factor, network),
            Component::HostNetwork(_) => self.with_health(h, u32::MAX, factor, network),
            _ => healthy,
        };
        let (before, after) = (inside(false).min(healthy), inside(true).min(worse));
        if before > 0.0 && after > 0.0 { (after / before).ln().min(0.0) } else { 0.0 }
    }

    /// Asks while some NICs of a host have a share of their rate.
    fn with_health<T>(&self, h: HostId, nics: u32, factor: f64, ask: impl FnOnce() -> T) -> T {
        let before = {
            let mut cluster = self.worse.borrow_mut();
            let n = cluster.type_of(h).nics.len();
            let health = &mut cluster.hosts[h.index()].nic_health;
            let before = health.clone();
            health.resize(n, 1.0);
            health.iter_mut().enumerate().filter(|(i, _)| nics >> i & 1 == 1).for_each(|(_, f)| *f *= factor);
            before
        };
        let answer = ask();
        self.worse.borrow_mut().hosts[h.index()].nic_health = before;
        answer
    }
}
