//! What the plugin needs of the C library: interfaces of the host, threads without signals, forked children, the end of the process.

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

/// `sigset_t`: 1024 bits in glibc and musl.
#[repr(C)]
struct Signals([u64; 16]);

/// `Dl_info` of `dladdr`.
#[repr(C)]
struct Object {
    path: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    fn getifaddrs(list: *mut *mut IfAddrs) -> c_int;
    fn freeifaddrs(list: *mut IfAddrs);
    fn pthread_sigmask(how: c_int, set: *const Signals, old: *mut Signals) -> c_int;
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    fn dladdr(address: *const c_void, object: *mut Object) -> c_int;
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn close(fd: c_int) -> c_int;
}
const SIG_SETMASK: c_int = 2;
const RTLD_LAZY: c_int = 1;
const RTLD_NOLOAD: c_int = 4;
const RTLD_NODELETE: c_int = 0x1000;
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

/// The addresses of this host's interfaces; empty if the system does not tell.
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

/// Starts a thread that receives no signals: they belong to the job's threads.
pub fn spawn(f: Box<dyn FnOnce() + Send>) -> std::io::Result<()> {
    let (all, mut before) = (Signals([u64::MAX; 16]), Signals([0; 16]));
    // SAFETY: two signal sets; only the calling thread's mask changes, and it is restored.
    let changed = unsafe { pthread_sigmask(SIG_SETMASK, &all, &mut before) } == 0;
    let started = std::thread::Builder::new().name("linkwise-net".into()).spawn(f);
    if changed {
        // SAFETY: as above.
        unsafe { pthread_sigmask(SIG_SETMASK, &before, null_mut()) };
    }
    started.map(drop)
}

/// The library stays in memory until the process ends.
pub fn keep() {
    let mut object = Object { path: null_mut(), base: null_mut(), symbol: null_mut(), address: null_mut() };
    // SAFETY: any address may be asked about; the object is written if there is one.
    let found = unsafe { dladdr(keep as *const c_void, &mut object) } != 0;
    if found && !object.path.is_null() {
        // SAFETY: the path of a loaded object. The reference is never given back.
        unsafe { dlopen(object.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) };
    }
}

extern "C" fn in_child() {
    for fd in net::open_sockets() {
        // SAFETY: a socket of the plugin, of which this process has a copy. Nothing of the plugin runs in a forked child: its threads are the
        // parent's, and every entry point refuses.
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
