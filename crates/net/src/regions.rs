//! Registered memory of the program, by number: one region for every rail with an RDMA device.

use crate::buffer::Buffer;
use crate::shared::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use verbs::{Nic, Region};

/// Number of a registration; 0: none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Registration(pub u32);

#[derive(Debug, Default)]
struct Table {
    last: u32,
    all: HashMap<u32, Arc<Vec<Option<Region>>>>,
}

#[derive(Debug, Default)]
pub(crate) struct Regions(Mutex<Table>);

impl Regions {
    /// Registers a buffer with the devices; without any that takes it, [`Registration`] 0.
    pub fn register(&self, nics: &[Option<Arc<Nic>>], buffer: &Buffer) -> Registration {
        let all: Vec<Option<Region>> = nics.iter().map(|n| n.as_ref().and_then(|n| buffer.register(n).ok())).collect();
        if all.iter().all(Option::is_none) {
            return Registration::default();
        }
        let mut table = lock(&self.0);
        loop {
            table.last = table.last.wrapping_add(1);
            let number = table.last;
            if number != 0 && !table.all.contains_key(&number) {
                table.all.insert(number, Arc::new(all));
                return Registration(number);
            }
        }
    }

    pub fn deregister(&self, r: Registration) {
        let gone = lock(&self.0).all.remove(&r.0);
        drop(gone);
    }

    /// The keys of a buffer on a rail: its own and the one for peers. `None`: not registered there.
    pub fn keys(&self, buffer: &Buffer, rail: usize) -> Option<(u32, u32)> {
        let table = lock(&self.0);
        let region = table.all.get(&buffer.registration().0)?.get(rail)?.as_ref()?;
        region.contains(buffer.address(), buffer.len() as u64).then_some((region.lkey, region.rkey))
    }
}
