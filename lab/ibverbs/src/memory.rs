//! Registered memory, by key. Every access copies under the lock, so that none happens after the end of its registration.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::RwLock;
use verbs::abi::{ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, Part};

#[derive(Debug)]
struct Range {
    from: u64,
    bytes: u64,
    access: i32,
    /// Protection domain.
    pd: usize,
}

#[derive(Debug, Default)]
struct Table {
    ranges: HashMap<u32, Range>,
    last: u32,
}

static TABLE: RwLock<Option<Table>> = RwLock::new(None);

/// Registers a range; returns its key, which is no small number: a forgotten one is not found by chance.
pub fn register(from: u64, bytes: u64, access: i32, pd: usize) -> u32 {
    let mut table = TABLE.write().unwrap_or_else(|e| e.into_inner());
    let table =
        table.get_or_insert_with(|| Table { last: std::process::id().wrapping_mul(0x9e37_79b9), ..Table::default() });
    table.last = table.last.wrapping_add(0x0001_0003);
    while table.last == 0 || table.ranges.contains_key(&table.last) {
        table.last = table.last.wrapping_add(1);
    }
    table.ranges.insert(table.last, Range { from, bytes, access, pd });
    table.last
}

/// False: there is no such registration.
pub fn deregister(key: u32) -> bool {
    let mut table = TABLE.write().unwrap_or_else(|e| e.into_inner());
    table.as_mut().is_some_and(|t| t.ranges.remove(&key).is_some())
}

/// Calls `f` if the range is registered under this key with this access.
fn with(key: u32, pd: usize, from: u64, bytes: u64, access: i32, f: impl FnOnce()) -> bool {
    let table = TABLE.read().unwrap_or_else(|e| e.into_inner());
    let Some(r) = table.as_ref().and_then(|t| t.ranges.get(&key)) else { return false };
    let inside = from >= r.from && from - r.from <= r.bytes && bytes <= r.bytes - (from - r.from);
    let good = inside && r.pd == pd && r.access & access == access;
    if good {
        f();
    }
    good
}

/// Appends the bytes of a part. False: the part is not registered.
pub fn read(part: &Part, pd: usize, to: &mut Vec<u8>) -> bool {
    with(part.lkey, pd, part.address, part.bytes.into(), 0, || {
        let at = to.len();
        to.resize(at + part.bytes as usize, 0);
        // SAFETY: the range is registered, so its owner keeps it mapped; `to` has room.
        unsafe {
            std::ptr::copy_nonoverlapping(part.address as *const u8, to.as_mut_ptr().add(at), part.bytes as usize)
        };
    })
}

/// Copies bytes to registered memory of this side's receive.
pub fn place(part: &Part, pd: usize, from: &[u8]) -> bool {
    from.len() <= part.bytes as usize && copy(part.lkey, pd, part.address, from, ACCESS_LOCAL_WRITE)
}

/// Copies a peer's bytes.
pub fn write(key: u32, pd: usize, address: u64, from: &[u8]) -> bool {
    copy(key, pd, address, from, ACCESS_REMOTE_WRITE)
}

fn copy(key: u32, pd: usize, address: u64, from: &[u8], access: i32) -> bool {
    with(key, pd, address, from.len() as u64, access, || {
        // SAFETY: the range is registered, so its owner keeps it mapped.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), address as *mut u8, from.len()) };
    })
}

/// Reads for a peer.
pub fn fetch(key: u32, pd: usize, address: u64, bytes: u32, to: &mut Vec<u8>) -> bool {
    with(key, pd, address, bytes.into(), ACCESS_REMOTE_READ, || {
        to.resize(bytes as usize, 0);
        // SAFETY: the range is registered, so its owner keeps it mapped; `to` has room.
        unsafe { std::ptr::copy_nonoverlapping(address as *const u8, to.as_mut_ptr(), bytes as usize) };
    })
}
