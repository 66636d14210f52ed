//! An open device with the address of a rail, and memory that it may use.
#![allow(unsafe_code)]

use crate::abi::*;
use crate::library::Library;
use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

/// Ports of a device that are looked at.
const PORTS_MAX: u8 = 2;
/// Addresses of a port that are looked at.
const GIDS_MAX: i32 = 256;

/// A device, open, with a protection domain.
#[derive(Debug)]
pub struct Nic {
    pub(crate) library: &'static Library,
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Pd,
    pub(crate) port: u8,
    pub(crate) gid: Gid,
    pub(crate) gid_index: u8,
    pub(crate) mtu: i32,
    name: String,
}

// SAFETY: the library's functions on contexts and protection domains may be called from any thread.
unsafe impl Send for Nic {}
// SAFETY: as above.
unsafe impl Sync for Nic {}

/// The address as RoCE writes it: IPv4 in its mapped form.
fn gid(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(a) => Gid(a.to_ipv6_mapped().octets()),
        IpAddr::V6(a) => Gid(a.octets()),
    }
}

/// Rank of an address entry of a device: RoCE v2 is routed and preferred. A device that says nothing is taken.
fn rank(name: &str, port: u8, index: i32) -> u8 {
    let file = format!("/sys/class/infiniband/{name}/ports/{port}/gid_attrs/types/{index}");
    match std::fs::read_to_string(file) {
        Ok(kind) if kind.contains("v2") => 2,
        Ok(_) => 0,
        Err(_) => 1,
    }
}

impl Nic {
    /// The device that has this address on a port with Ethernet; `None` if no device has it, or it cannot be opened.
    pub fn with_address(library: &'static Library, ip: IpAddr) -> Option<Arc<Nic>> {
        let mut count = 0;
        // SAFETY: the address of an int. The list has `count` members and is freed below, after the devices of interest are open.
        let list = unsafe { (library.get_device_list)(&mut count) };
        if list.is_null() {
            return None;
        }
        // SAFETY: `i` is below `count`.
        let devices = (0..usize::try_from(count).unwrap_or(0)).map(|i| unsafe { *list.add(i) });
        let found = devices.into_iter().find_map(|device| Self::open(library, device, gid(ip)));
        // SAFETY: the list of `get_device_list`, freed once.
        unsafe { (library.free_device_list)(list) };
        found.map(Arc::new)
    }

    fn open(library: &'static Library, device: *mut Device, gid: Gid) -> Option<Nic> {
        // SAFETY: a device of the list; its name is 0-terminated.
        let name = unsafe {
            let name = (library.get_device_name)(device);
            if name.is_null() {
                return None;
            }
            CStr::from_ptr(name).to_string_lossy().into_owned()
        };
        // SAFETY: a device of the list.
        let context = unsafe { (library.open_device)(device) };
        if context.is_null() {
            return None;
        }
        let found = (1..=PORTS_MAX).find_map(|port| find(library, context, &name, port, gid));
        let nic = found.and_then(|(port, gid_index, mtu)| {
            // SAFETY: an open device.
            let pd = unsafe { (library.alloc_pd)(context) };
            let name = name.clone();
            (!pd.is_null()).then_some(Nic { library, context, pd, port, gid, gid_index, mtu, name })
        });
        if nic.is_none() {
            // SAFETY: opened above, not yet in use.
            unsafe { (library.close_device)(context) };
        }
        nic
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Registers memory for the device and its peers.
    ///
    /// # Errors
    /// The device or the system refuses, for example because the process may not lock so much memory.
    ///
    /// # Safety
    /// The memory stays mapped until the region is dropped. Peers may write to it at any time that the program allows by giving away its key.
    pub unsafe fn register(self: &Arc<Self>, at: *mut u8, bytes: usize) -> io::Result<Region> {
        let access = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE;
        // SAFETY: a protection domain; mapped memory by the contract.
        let mr = unsafe { (self.library.reg_mr)(self.pd, at.cast(), bytes, access) };
        if mr.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a registration of the library.
        let (lkey, rkey) = unsafe { ((*mr).lkey, (*mr).rkey) };
        Ok(Region { nic: self.clone(), mr, lkey, rkey, from: at as u64, bytes: bytes as u64 })
    }
}

/// The port, its entry with the address, and its MTU.
fn find(library: &Library, context: *mut Context, name: &str, port: u8, wanted: Gid) -> Option<(u8, u8, i32)> {
    let mut attributes = PortAttributes::default();
    // SAFETY: an open device and the address of a structure that is at least as long as the library's.
    if unsafe { (library.query_port)(context, port, &mut attributes) } != 0 {
        return None;
    }
    if attributes.state != PORT_ACTIVE || attributes.link_layer != LINK_ETHERNET {
        return None;
    }
    let has = |i: &i32| {
        let mut gid = Gid::default();
        // SAFETY: an open device and the address of 16 bytes.
        unsafe { (library.query_gid)(context, port, *i, &mut gid) == 0 && gid == wanted }
    };
    let index = (0..attributes.gids.min(GIDS_MAX)).filter(has).max_by_key(|i| rank(name, port, *i))?;
    Some((port, u8::try_from(index).ok()?, attributes.mtu))
}

impl Drop for Nic {
    fn drop(&mut self) {
        // SAFETY: regions and pairs keep the device, so nothing uses it any more.
        unsafe {
            (self.library.dealloc_pd)(self.pd);
            (self.library.close_device)(self.context);
        }
    }
}

/// Registered memory.
#[derive(Debug)]
pub struct Region {
    nic: Arc<Nic>,
    mr: *mut Mr,
    pub lkey: u32,
    pub rkey: u32,
    from: u64,
    bytes: u64,
}

// SAFETY: the library's functions on registrations may be called from any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// True if the range lies in the region.
    pub fn contains(&self, at: u64, bytes: u64) -> bool {
        at >= self.from && at - self.from <= self.bytes && bytes <= self.bytes - (at - self.from)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: made by `reg_mr`, ended once.
        unsafe { (self.nic.library.dereg_mr)(self.mr) };
    }
}
