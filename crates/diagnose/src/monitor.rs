//! The diagnosis of a process that gets readings one by one.

use super::effect::{EffectCache, Effects};
use super::evidence::{Baseline, Expectations, Expected};
use super::search::Search;
use super::window::{self, Sample, allocations_per_host, insert, levels};
use super::{Diagnosis, compare, diagnosis};
use predict::Model;
use std::cmp::Ordering;
use std::collections::HashMap;
use store::Measurement;
use topology::{Allocation, Bytes, HostId};

/// Share of its standard deviation that a residual must move to be updated. One reading slightly moves the scatter of
/// all readings and the median of its class, and following that would re-evaluate every component. The log-odds of a
/// defect of `n` readings, `z` deviations low, are off by at most `n z` times this (for a certain defect of 100 nats by
/// less than one).
const TOLERANCE: f64 = 0.005;

/// The number of a reading in a [`Monitor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadingId(u64);

/// Work that a [`Monitor`] has done since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of expectations that the model computed.
    pub predictions: u64,
    /// Number of estimates that the physics computed.
    pub estimates: u64,
    /// Number of computed effects of a slow component on a reading.
    pub effects: u64,
}

/// The readings of one allocation and size.
#[derive(Debug)]
struct Group {
    size: Bytes,
    allocation: Allocation,
    expected: Expected,
    samples: Vec<Sample>,
    /// Numbers of its levels in the search.
    items: Vec<u32>,
}

impl Group {
    fn newest_unix_s(&self) -> f64 {
        self.samples.last().map_or(f64::NEG_INFINITY, |s| s.at_unix_s)
    }
    fn kind(&self) -> usize {
        usize::from(self.allocation.host_count() > 1)
    }
    fn order(&self, other: &Group) -> Ordering {
        self.newest_unix_s()
            .total_cmp(&other.newest_unix_s())
            .then_with(|| (self.size, &self.allocation).cmp(&(other.size, &other.allocation)))
    }
}

/// Keeps the newest readings of every host with the results of the last diagnosis, so that one more reading costs work
/// only for the components that it touches.
///
/// A monitor finds the same defects as [`super::suspicions`] on the same readings; probabilities agree within the
/// tolerance in this file. Readings that leave the window are dropped permanently: they do not return when a newer
/// reading is removed or when their allocation is measured again.
///
/// Memory: at most [`super::PAIRS_MAX`] pairs of multi-host allocation and host, and [`super::SUBSETS_PER_HOST_MAX`]
/// subsets per host. A new model needs a new monitor.
#[derive(Debug)]
pub struct Monitor {
    model: Model,
    search: Search,
    cache: EffectCache,
    groups: Vec<Option<Group>>,
    free: Vec<u32>,
    index: HashMap<(Bytes, Allocation), u32>,
    /// By host and kind of job (single-host, multi-host): its groups, oldest first.
    of_host: Vec<[Vec<u32>; 2]>,
    of_reading: HashMap<u64, u32>,
    next: u64,
    predictions: u64,
}

impl Monitor {
    /// A monitor without readings. The model must be of healthy hardware.
    pub fn new(model: Model) -> Monitor {
        let model = model.with_healthy_hosts();
        let hosts = model.cluster().hosts.len();
        Monitor {
            model,
            search: Search::new(hosts),
            cache: EffectCache::default(),
            groups: Vec::new(),
            free: Vec::new(),
            index: HashMap::new(),
            of_host: vec![[Vec::new(), Vec::new()]; hosts],
            of_reading: HashMap::new(),
            next: 0,
            predictions: 0,
        }
    }

    /// A monitor with the window of the given readings. Equivalent to calling [`Monitor::add`] for each, without the
    /// work for readings that newer ones push out of the window. O(n log n).
    pub fn of(model: Model, measurements: &[Measurement]) -> Monitor {
        let mut monitor = Monitor::new(model);
        monitor.next = measurements.len() as u64;
        let groups = window::newest(monitor.model.cluster(), measurements, monitor.model.collective());
        let mut expectations = Expectations::new(&monitor.model, Baseline::Model);
        let expected: Vec<Expected> = groups.iter().map(|((size, a), _)| expectations.of(a, *size)).collect();
        monitor.predictions = expectations.predictions;
        for (((size, allocation), samples), expected) in groups.into_iter().zip(expected) {
            let g = monitor.groups.len() as u32;
            monitor.of_reading.extend(samples.iter().map(|s| (s.id, g)));
            monitor.index.insert((size, allocation.clone()), g);
            let group = Group { size, allocation: allocation.clone(), expected, samples, items: Vec::new() };
            for (h, _) in allocation.parts() {
                monitor.of_host[h.index()][group.kind()].push(g); // the oldest come first
            }
            monitor.groups.push(Some(group));
            monitor.refresh(g);
            if monitor.cache.is_full() {
                monitor.rebuild();
            }
        }
        monitor
    }

    fn expected(&mut self, allocation: &Allocation, size: Bytes) -> Expected {
        let mut expectations = Expectations::new(&self.model, Baseline::Model);
        let expected = expectations.of(allocation, size);
        self.predictions += expectations.predictions;
        expected
    }

    /// Adds a reading. `None` if the reading cannot be judged (rejected, contended, of another collective) or is older
    /// than the window. Cost: O(hosts of the job x log readings), one prediction, and a few estimates if the shape of
    /// the allocation is new.
    pub fn add(&mut self, m: &Measurement) -> Option<ReadingId> {
        let id = self.next;
        let sample = Sample::of(self.model.cluster(), m, self.model.collective(), id)?;
        self.next += 1;
        if self.cache.is_full() {
            self.rebuild();
        }
        let key = (m.size, m.allocation.clone());
        let g = match self.index.get(&key) {
            Some(&g) => {
                self.unlist(g);
                g
            }
            None => {
                let expected = self.expected(&m.allocation, m.size);
                let group = Group {
                    size: m.size,
                    allocation: m.allocation.clone(),
                    expected,
                    samples: Vec::new(),
                    items: Vec::new(),
                };
                let g = self.free.pop().unwrap_or(self.groups.len() as u32);
                if g as usize == self.groups.len() {
                    self.groups.push(Some(group));
                } else {
                    self.groups[g as usize] = Some(group);
                }
                self.index.insert(key, g);
                g
            }
        };
        if let Some(group) = &mut self.groups[g as usize] {
            let before: Vec<u64> = group.samples.iter().map(|s| s.id).collect();
            insert(&mut group.samples, sample);
            let kept = |id: &u64| group.samples.iter().any(|s| s.id == *id);
            for gone in before.iter().filter(|id| !kept(id)) {
                self.of_reading.remove(gone);
            }
            if kept(&id) {
                self.of_reading.insert(id, g);
            }
        }
        self.list(g);
        self.refresh(g);
        self.evict(g);
        self.of_reading.contains_key(&id).then_some(ReadingId(id))
    }

    /// Removes a reading, for example a withdrawn one. `false` if the reading is no longer in the window.
    pub fn remove(&mut self, id: ReadingId) -> bool {
        let Some(g) = self.of_reading.remove(&id.0) else { return false };
        self.unlist(g);
        let Some(group) = &mut self.groups[g as usize] else { return false };
        group.samples.retain(|s| s.id != id.0);
        if group.samples.is_empty() {
            self.drop_group(g);
        } else {
            self.list(g);
            self.refresh(g);
        }
        true
    }

    /// The defects that the readings show now. Evaluates the components of hosts whose readings changed since the last
    /// call; the rest costs one addition per component and a few per reading.
    pub fn diagnose(&mut self) -> Diagnosis {
        compare(self.model.cluster(), &mut self.search, TOLERANCE);
        let effects = Effects::with_cache(&self.model, std::mem::take(&mut self.cache));
        let found = self.search.explain(&effects);
        let d = diagnosis(&self.search, &effects, &self.model, found);
        self.cache = effects.into_cache();
        d
    }

    /// The model that gives the expectations.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Number of readings.
    pub fn len(&self) -> usize {
        self.of_reading.len()
    }
    /// True without readings.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The work done so far.
    pub fn work(&self) -> Work {
        Work { predictions: self.predictions, estimates: self.cache.estimates.get(), effects: self.search.evaluations }
    }

    /// Drops all estimates, because most belong to allocations that left the window, and prepares every reading again.
    fn rebuild(&mut self) {
        self.cache.clear();
        let evaluations = self.search.evaluations;
        self.search = Search::new(self.of_host.len());
        self.search.evaluations = evaluations;
        for g in 0..self.groups.len() as u32 {
            if let Some(group) = &mut self.groups[g as usize] {
                group.items.clear();
                self.refresh(g);
            }
        }
    }

    /// Removes a group from the lists of its hosts, before the group's time changes.
    fn unlist(&mut self, g: u32) {
        let Some(group) = &self.groups[g as usize] else { return };
        let kind = group.kind();
        for (h, _) in group.allocation.parts() {
            self.of_host[h.index()][kind].retain(|x| *x != g);
        }
    }

    fn place(&self, h: HostId, g: u32) -> usize {
        let Some(group) = &self.groups[g as usize] else { return 0 };
        let older = |x: &u32| self.groups[*x as usize].as_ref().is_some_and(|x| x.order(group) == Ordering::Less);
        self.of_host[h.index()][group.kind()].partition_point(older)
    }

    fn list(&mut self, g: u32) {
        let Some(group) = &self.groups[g as usize] else { return };
        let kind = group.kind();
        let hosts: Vec<HostId> = group.allocation.parts().iter().map(|p| p.0).collect();
        for h in hosts {
            let at = self.place(h, g);
            self.of_host[h.index()][kind].insert(at, g);
        }
    }

    /// Recomputes the levels of a group in the search.
    fn refresh(&mut self, g: u32) {
        let Some(group) = &mut self.groups[g as usize] else { return };
        group.items.drain(..).for_each(|i| self.search.remove(i));
        let effects = Effects::with_cache(&self.model, std::mem::take(&mut self.cache));
        for e in levels(group.size, &group.allocation, &group.samples) {
            group.items.push(self.search.insert(&effects, e, group.expected.clone()));
        }
        self.cache = effects.into_cache();
    }

    /// Drops the groups that `g` pushed out of the windows of all of their hosts.
    fn evict(&mut self, g: u32) {
        let Some(group) = &self.groups[g as usize] else { return };
        let kind = group.kind();
        let most = allocations_per_host(self.of_host.len())[kind];
        let mut pushed: Vec<u32> = group
            .allocation
            .parts()
            .iter()
            .filter_map(|(h, _)| {
                let list = &self.of_host[h.index()][kind];
                list.len().checked_sub(most + 1).map(|at| list[at])
            })
            .chain([g])
            .collect();
        pushed.sort_unstable();
        pushed.dedup();
        for x in pushed {
            let Some(group) = &self.groups[x as usize] else { continue };
            let outside = |h: HostId| self.of_host[h.index()][kind].len() - self.place(h, x) > most;
            if group.allocation.parts().iter().all(|p| outside(p.0)) {
                self.unlist(x);
                self.drop_group(x);
            }
        }
    }

    /// Drops a group that no list holds.
    fn drop_group(&mut self, g: u32) {
        let Some(group) = self.groups[g as usize].take() else { return };
        group.items.iter().for_each(|i| self.search.remove(*i));
        group.samples.iter().for_each(|s| {
            self.of_reading.remove(&s.id);
        });
        self.index.remove(&(group.size, group.allocation));
        self.free.push(g);
    }
}
