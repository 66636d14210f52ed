//! Functions of the C library: interfaces of the host, forked children, the end of the process.

use crate::nics::Interface;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr::null_mut;
use std::sync::Once;

/// `struct ifaddrs`.
#[repr(C)]
struct IfAddrs {
    next: *mut IfAddrs,
    name: *const c_char,
    flags: c_uint,
    address: *const u8,
    netmask: *const u8,
    broadcast: *const u8,
    data: *const c_void,
}

unsafe extern "C" {
    fn getifaddrs(list: *mut *mut IfAddrs) -> c_int;
    fn freeifaddrs(list: *mut IfAddrs);
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    fn close(fd: c_int) -> c_int;
}
const IFF_UP: c_uint = 1;
const IFF_RUNNING: c_uint = 0x40;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// The address in a `struct sockaddr`, and for a netmask its bits.
///
/// # Safety
/// `at` is null or points at a socket address of its family's size.
unsafe fn address(at: *const u8) -> Option<IpAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: every socket address begins with its family; `sockaddr_in` has 4 bytes of address at 4, `sockaddr_in6` 16 at 8.
    unsafe {
        match at.cast::<u16>().read_unaligned() {
            AF_INET => Some(IpAddr::V4(Ipv4Addr::from(at.add(4).cast::<[u8; 4]>().read()))),
            AF_INET6 => Some(IpAddr::V6(Ipv6Addr::from(at.add(8).cast::<[u8; 16]>().read()))),
            _ => None,
        }
    }
}

fn bits(mask: IpAddr) -> u8 {
    match mask {
        IpAddr::V4(m) => u32::from(m).leading_ones() as u8,
        IpAddr::V6(m) => u128::from(m).leading_ones() as u8,
    }
}

/// The addresses of this host's interfaces; empty if the system reports none.
pub fn interfaces() -> Vec<Interface> {
    let (mut list, mut all) = (null_mut(), Vec::new());
    // SAFETY: the address of a pointer, which is set if the call succeeds.
    if unsafe { getifaddrs(&mut list) } != 0 {
        return all;
    }
    let mut at = list;
    // SAFETY: the list ends with null, and its members live until `freeifaddrs`.
    while let Some(i) = unsafe { at.as_ref() } {
        // SAFETY: as above; the name is 0-terminated.
        let (ip, mask, name) = unsafe { (address(i.address), address(i.netmask), CStr::from_ptr(i.name)) };
        if let (Some(ip), Ok(name)) = (ip, name.to_str()) {
            let prefix = mask.map_or(if ip.is_ipv4() { 32 } else { 128 }, bits);
            let is_up = i.flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING;
            all.push(Interface { name: name.to_owned(), ip, prefix, is_up });
        }
        at = i.next;
    }
    // SAFETY: the list of `getifaddrs`, freed once.
    unsafe { freeifaddrs(list) };
    all
}

extern "C" fn in_child() {
    for fd in net::open_sockets() {
        // SAFETY: this process has a copy of the plugin's socket. No code of the plugin runs in a forked child: the threads are the parent's,
        // and every entry point refuses.
        unsafe { close(fd) };
    }
}

/// Children that are forked without exec close their copies of the plugin's sockets. A child that outlived a killed parent would otherwise keep the
/// parent's connections open, and the peers would wait for ever.
pub fn close_sockets_in_children() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler reads atomics and closes descriptors, which is allowed after a fork; the library is never unloaded.
    ONCE.call_once(|| _ = unsafe { pthread_atfork(None, None, Some(in_child)) });
}

extern "C" fn at_end() {
    let _ = std::panic::catch_unwind(crate::process::end);
}

/// Runs when the process ends in order.
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;
