//! The network interface, v8 to v12.
//!
//! | table | NCCL | difference to the one before |
//! |---|---|---|
//! | v8 | up to 2.23 | sizes are ints |
//! | v9 | 2.24, 2.25 | sizes are size_t; virtual devices |
//! | v10 | 2.26, 2.27 | profiler callback; handles for the profiler; a traffic class per connection |
//! | v11 | 2.28, 2.29 | a context per communicator |
//! | v12 | 2.30 and later | 8 NICs in a virtual device; rail and plane of a device |

use super::log::{self, Logger};
use super::{ARGUMENT, INTERNAL, NAME, Name, REMOTE, SUCCESS, SYSTEM, Status, guarded};
use crate::process;
use net::handle::HANDLE_BYTES;
use net::limits::GROUPED_MAX;
use net::{Buffer, Listen, NetError, Progress, ReceiveEnd, Request, SendEnd};
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// `NCCL_PTR_HOST` and `NCCL_PTR_CUDA`.
const PTR_HOST: c_int = 1;
const PTR_CUDA: c_int = 2;
/// Largest transfer that NCCL may ask for, bytes.
const TRANSFER_BYTES_MAX: usize = 1 << 30;
const COMMS_MAX: c_int = 65_536;
/// A rail or plane that is not known.
const UNDEFINED: i16 = -1;

// ---------------------------------------------------------------- properties of devices

/// The members that all versions begin with but `force_flush`, which v8 lacks.
#[repr(C)]
#[derive(Debug)]
pub struct Head {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    ptr_support: c_int,
    reg_is_global: c_int,
}

/// The members after `force_flush`.
#[repr(C)]
#[derive(Debug)]
pub struct Port {
    speed: c_int,
    port: c_int,
    latency: f32,
    max_comms: c_int,
    max_recvs: c_int,
    device_type: c_int,
    device_version: c_int,
}

/// NICs of a virtual device: one here.
#[repr(C)]
#[derive(Debug)]
pub struct Virtual<const N: usize> {
    count: c_int,
    devices: [c_int; N],
}

#[repr(C)]
#[derive(Debug)]
pub struct PropertiesV8 {
    head: Head,
    port: Port,
}

#[repr(C)]
#[derive(Debug)]
pub struct PropertiesV9 {
    head: Head,
    force_flush: c_int,
    port: Port,
    parts: Virtual<4>,
    p2p_bytes_max: usize,
    coll_bytes_max: usize,
}

#[repr(C)]
#[derive(Debug)]
pub struct PropertiesV11 {
    base: PropertiesV9,
    multi_request_max: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub struct PropertiesV12 {
    head: Head,
    force_flush: c_int,
    port: Port,
    parts: Virtual<8>,
    p2p_bytes_max: usize,
    coll_bytes_max: usize,
    multi_request_max: c_int,
    rail: i16,
    plane: i16,
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(PropertiesV8, port) == 32 && size_of::<PropertiesV8>() == 64);
    assert!(offset_of!(PropertiesV9, port) == 36 && offset_of!(PropertiesV9, parts) == 64);
    assert!(offset_of!(PropertiesV9, p2p_bytes_max) == 88 && size_of::<PropertiesV9>() == 104);
    assert!(offset_of!(PropertiesV11, multi_request_max) == 104 && size_of::<PropertiesV11>() == 112);
    assert!(offset_of!(PropertiesV12, p2p_bytes_max) == 104 && offset_of!(PropertiesV12, rail) == 124);
    assert!(size_of::<PropertiesV12>() == 128);
};

/// 0-terminated texts of a device, which NCCL keeps.
#[derive(Debug)]
struct Texts {
    name: CString,
    pci_path: Option<CString>,
}

fn texts(device: usize) -> Option<&'static Texts> {
    static TEXTS: OnceLock<Vec<Texts>> = OnceLock::new();
    let all = TEXTS.get_or_init(|| {
        let text = |t: &str| CString::new(t).unwrap_or_default();
        let nics = process::offer().nics.iter();
        nics.map(|n| Texts { name: text(&n.name), pci_path: n.pci_path.as_deref().map(text) }).collect()
    });
    all.get(device)
}

fn head(device: usize) -> Option<Head> {
    let (offer, texts) = (process::offer(), texts(device)?);
    let nic = offer.nics.get(device)?;
    Some(Head {
        name: texts.name.as_ptr(),
        pci_path: texts.pci_path.as_ref().map_or(std::ptr::null(), |p| p.as_ptr()),
        guid: nic.guid,
        ptr_support: if offer.config.gpu_is_host { PTR_HOST | PTR_CUDA } else { PTR_HOST },
        reg_is_global: 1,
    })
}

fn port(device: usize) -> Option<Port> {
    let nic = process::offer().nics.get(device)?;
    Some(Port {
        speed: c_int::try_from(nic.speed_mbit_per_s).unwrap_or(c_int::MAX),
        port: 0,
        latency: 0.0,
        max_comms: COMMS_MAX,
        max_recvs: GROUPED_MAX as c_int,
        device_type: 0,
        device_version: 0,
    })
}

fn parts<const N: usize>(device: usize) -> Virtual<N> {
    let mut devices = [0; N];
    if let Some(d) = devices.first_mut() {
        *d = device as c_int;
    }
    Virtual { count: 1, devices }
}

fn properties_of_v9(d: usize) -> Option<PropertiesV9> {
    Some(PropertiesV9 {
        head: head(d)?,
        force_flush: 0,
        port: port(d)?,
        parts: parts(d),
        p2p_bytes_max: TRANSFER_BYTES_MAX,
        coll_bytes_max: TRANSFER_BYTES_MAX,
    })
}

fn properties_of_v12(d: usize) -> Option<PropertiesV12> {
    Some(PropertiesV12 {
        head: head(d)?,
        force_flush: 0,
        port: port(d)?,
        parts: parts(d),
        p2p_bytes_max: TRANSFER_BYTES_MAX,
        coll_bytes_max: TRANSFER_BYTES_MAX,
        multi_request_max: 1,
        rail: i16::try_from(d).unwrap_or(UNDEFINED),
        plane: UNDEFINED,
    })
}

/// Writes the properties of a device.
fn properties<P>(device: c_int, to: *mut P, of: impl FnOnce(usize) -> Option<P>) -> Status {
    guarded(|| {
        let found = usize::try_from(device).ok().and_then(of).filter(|_| !to.is_null());
        let Some(p) = found else { return ARGUMENT };
        // SAFETY: NCCL passes the address of this version's structure.
        unsafe { to.write(p) };
        SUCCESS
    })
}

unsafe extern "C" fn properties_v8(device: c_int, to: *mut PropertiesV8) -> Status {
    properties(device, to, |d| Some(PropertiesV8 { head: head(d)?, port: port(d)? }))
}

unsafe extern "C" fn properties_v9(device: c_int, to: *mut PropertiesV9) -> Status {
    properties(device, to, properties_of_v9)
}

unsafe extern "C" fn properties_v11(device: c_int, to: *mut PropertiesV11) -> Status {
    properties(device, to, |d| Some(PropertiesV11 { base: properties_of_v9(d)?, multi_request_max: 1 }))
}

unsafe extern "C" fn properties_v12(device: c_int, to: *mut PropertiesV12) -> Status {
    properties(device, to, properties_of_v12)
}

// ---------------------------------------------------------------- life of the plugin

unsafe extern "C" fn init_v8(logger: Logger) -> Status {
    guarded(|| {
        log::set(logger);
        process::offer();
        SUCCESS
    })
}

unsafe extern "C" fn init_v10(logger: Logger, _profiler: *const c_void) -> Status {
    // SAFETY: the same contract.
    unsafe { init_v8(logger) }
}

unsafe extern "C" fn init_v11(
    context: *mut *mut c_void,
    _comm: u64,
    _config: *const c_void,
    logger: Logger,
    _profiler: *const c_void,
) -> Status {
    if !context.is_null() {
        // SAFETY: NCCL passes the address of its context pointer. The plugin needs no context; some callers refuse null.
        unsafe { *context = (&raw const CONTEXT).cast_mut().cast() };
    }
    // SAFETY: the same contract.
    unsafe { init_v8(logger) }
}

static CONTEXT: u8 = 0;

unsafe extern "C" fn finalize(_context: *mut c_void) -> Status {
    guarded(|| {
        process::log_counts();
        SUCCESS
    })
}

unsafe extern "C" fn set_net_attr(_context: *mut c_void, _attributes: *const c_void) -> Status {
    SUCCESS
}

unsafe extern "C" fn devices(count: *mut c_int) -> Status {
    guarded(|| {
        if count.is_null() {
            return ARGUMENT;
        }
        // SAFETY: the address of an int.
        unsafe { *count = process::offer().nics.len() as c_int };
        SUCCESS
    })
}

// ---------------------------------------------------------------- connections

fn status(e: &NetError) -> Status {
    match e {
        NetError::Handle(_) => ARGUMENT,
        NetError::Remote(_) => REMOTE,
        NetError::Limit | NetError::Forked => SYSTEM,
    }
}

/// A rail's number from a device's.
fn rail(device: c_int) -> Option<usize> {
    usize::try_from(device).ok().filter(|d| *d < process::offer().nics.len())
}

unsafe extern "C" fn listen_v8(device: c_int, handle: *mut c_void, listener: *mut *mut c_void) -> Status {
    guarded(|| {
        let (Some(rail), false) = (rail(device), handle.is_null() || listener.is_null()) else { return ARGUMENT };
        let Some(endpoint) = process::endpoint() else { return SYSTEM };
        match endpoint.listen(rail) {
            Ok((l, bytes)) => {
                // SAFETY: a handle has 128 bytes; the listener is given back by `close_listen`.
                unsafe {
                    handle.cast::<[u8; HANDLE_BYTES]>().write(bytes);
                    *listener = Box::into_raw(Box::new(l)).cast();
                }
                SUCCESS
            }
            Err(e) => {
                log::warn(&format!("cannot listen: {e}"));
                status(&e)
            }
        }
    })
}

unsafe extern "C" fn listen_v11(_: *mut c_void, device: c_int, handle: *mut c_void, l: *mut *mut c_void) -> Status {
    // SAFETY: the same contract.
    unsafe { listen_v8(device, handle, l) }
}

unsafe extern "C" fn connect_v8(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    offload: *mut *mut c_void,
) -> Status {
    guarded(|| {
        let (Some(rail), false) = (rail(device), handle.is_null() || comm.is_null()) else { return ARGUMENT };
        let Some(endpoint) = process::endpoint() else { return SYSTEM };
        // SAFETY: NCCL passes the address of its pointers and a handle of 128 bytes, which keeps state between calls.
        let handle = unsafe {
            *comm = null_mut();
            if !offload.is_null() {
                *offload = null_mut();
            }
            &mut *handle.cast::<[u8; HANDLE_BYTES]>()
        };
        match endpoint.connect(rail, handle) {
            Ok(None) => SUCCESS,
            Ok(Some(end)) => {
                // SAFETY: as above; given back by `close_send`.
                unsafe { *comm = Box::into_raw(Box::new(end)).cast() };
                SUCCESS
            }
            Err(e) => {
                log::warn(&format!("cannot connect: {e}"));
                status(&e)
            }
        }
    })
}

unsafe extern "C" fn connect_v10(
    device: c_int,
    _config: *const c_void,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    offload: *mut *mut c_void,
) -> Status {
    // SAFETY: the same contract.
    unsafe { connect_v8(device, handle, comm, offload) }
}

unsafe extern "C" fn connect_v11(
    _context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    offload: *mut *mut c_void,
) -> Status {
    // SAFETY: the same contract.
    unsafe { connect_v8(device, handle, comm, offload) }
}

unsafe extern "C" fn accept(listener: *mut c_void, comm: *mut *mut c_void, offload: *mut *mut c_void) -> Status {
    guarded(|| {
        // SAFETY: made by `listen`, not yet closed; the addresses of NCCL's pointers.
        let (listener, comm) = unsafe {
            if !offload.is_null() {
                *offload = null_mut();
            }
            (listener.cast::<Listen>().as_ref(), comm.as_mut())
        };
        let (Some(listener), Some(comm)) = (listener, comm) else { return ARGUMENT };
        // Given back by `close_receive`.
        *comm = listener.accept().map_or(null_mut(), |end| Box::into_raw(Box::new(end)).cast());
        SUCCESS
    })
}

unsafe extern "C" fn register(_: *mut c_void, _: *mut c_void, _: usize, kind: c_int, out: *mut *mut c_void) -> Status {
    guarded(|| {
        let known = kind == PTR_HOST || (kind == PTR_CUDA && process::offer().config.gpu_is_host);
        if !known || out.is_null() {
            return INTERNAL;
        }
        // SAFETY: the address of NCCL's pointer. TCP needs no registration; NCCL takes null for "not registered".
        unsafe { *out = (&raw const CONTEXT).cast_mut().cast() };
        SUCCESS
    })
}

unsafe extern "C" fn register_dma_buf(
    _: *mut c_void,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: u64,
    _: c_int,
    _: *mut *mut c_void,
) -> Status {
    INTERNAL
}

unsafe extern "C" fn deregister(_comm: *mut c_void, _registration: *mut c_void) -> Status {
    SUCCESS
}

/// A pointer to a request as NCCL keeps it.
fn pointer(request: Option<&Request>) -> *mut c_void {
    request.map_or(null_mut(), |r| std::ptr::from_ref(r).cast_mut().cast())
}

fn send(comm: *mut c_void, data: *mut c_void, size: usize, tag: c_int, out: *mut *mut c_void) -> Status {
    guarded(|| {
        // SAFETY: made by `connect`, not yet closed; the address of NCCL's pointer.
        let (end, out) = unsafe { (comm.cast::<SendEnd>().as_ref(), out.as_mut()) };
        let (Some(end), Some(out)) = (end, out) else { return ARGUMENT };
        *out = null_mut();
        // SAFETY: NCCL leaves the buffer alone until `test` reports the request, or the connection is closed.
        let buffer = unsafe { Buffer::new(data.cast(), size) };
        match end.send(buffer, tag) {
            Ok(id) => {
                *out = id.map_or(null_mut(), |id| pointer(end.request(id)));
                SUCCESS
            }
            Err(e) => status(&e),
        }
    })
}

unsafe extern "C" fn send_v8(
    comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    _: *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    match usize::try_from(size) {
        Ok(size) => send(comm, data, size, tag, out),
        Err(_) => ARGUMENT,
    }
}

unsafe extern "C" fn send_v9(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    _: *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    send(comm, data, size, tag, out)
}

unsafe extern "C" fn send_v10(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    _: *mut c_void,
    _: *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    send(comm, data, size, tag, out)
}

/// # Safety
/// `data`, `sizes` and `tags` have `n` members.
unsafe fn receive<S: Copy + TryInto<usize>>(
    comm: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const S,
    tags: *const c_int,
    out: *mut *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: made by `accept`, not yet closed; the address of NCCL's pointer.
        let (end, out) = unsafe { (comm.cast::<ReceiveEnd>().as_ref(), out.as_mut()) };
        let (Some(end), Some(out)) = (end, out) else { return ARGUMENT };
        *out = null_mut();
        let n = match usize::try_from(n) {
            Ok(n) if (1..=GROUPED_MAX).contains(&n) && !data.is_null() && !sizes.is_null() && !tags.is_null() => n,
            _ => return ARGUMENT,
        };
        // SAFETY: the lists have `n` members. NCCL leaves the buffers alone until `test` reports the request, or the connection is closed.
        let one = |i: usize| unsafe {
            let size = (*sizes.add(i)).try_into().ok()?;
            Some((Buffer::new((*data.add(i)).cast(), size), *tags.add(i)))
        };
        let mut list = [None; GROUPED_MAX];
        list.iter_mut().enumerate().take(n).for_each(|(i, to)| *to = one(i));
        let mut all = Vec::with_capacity(n);
        all.extend(list.into_iter().flatten());
        if all.len() != n {
            return ARGUMENT;
        }
        match end.receive(&all) {
            Ok(id) => {
                *out = id.map_or(null_mut(), |id| pointer(end.request(id)));
                SUCCESS
            }
            Err(e) => status(&e),
        }
    })
}

unsafe extern "C" fn receive_v8(
    comm: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const c_int,
    tags: *const c_int,
    _: *const *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    // SAFETY: NCCL's lists have `n` members.
    unsafe { receive(comm, n, data, sizes, tags, out) }
}

unsafe extern "C" fn receive_v9(
    comm: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const usize,
    tags: *const c_int,
    _: *const *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    // SAFETY: NCCL's lists have `n` members.
    unsafe { receive(comm, n, data, sizes, tags, out) }
}

unsafe extern "C" fn receive_v10(
    comm: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const usize,
    tags: *const c_int,
    _: *const *mut c_void,
    _: *const *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    // SAFETY: NCCL's lists have `n` members.
    unsafe { receive(comm, n, data, sizes, tags, out) }
}

/// Received bytes are in host memory when a request is done: there is nothing to flush.
unsafe extern "C" fn flush(
    _: *mut c_void,
    _: c_int,
    _: *const *mut c_void,
    _: *const c_int,
    _: *const *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    if !out.is_null() {
        // SAFETY: the address of NCCL's pointer; null means done.
        unsafe { *out = null_mut() };
    }
    SUCCESS
}

unsafe extern "C" fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> Status {
    // SAFETY: a request of a connection that is not closed; the address of an int.
    let (request, done) = unsafe { (request.cast::<Request>().as_ref(), done.as_mut()) };
    let (Some(request), Some(done)) = (request, done) else { return ARGUMENT };
    *done = 0;
    let count = request.count();
    match request.poll() {
        Progress::Pending => SUCCESS,
        Progress::Failed => REMOTE,
        Progress::Done(bytes) => {
            *done = 1;
            if !sizes.is_null() {
                for (i, b) in bytes.iter().enumerate().take(count) {
                    // SAFETY: NCCL passes an int for every message of the request.
                    unsafe { *sizes.add(i) = c_int::try_from(*b).unwrap_or(c_int::MAX) };
                }
            }
            SUCCESS
        }
    }
}

/// Gives back what `T` was boxed.
///
/// # Safety
/// `object` is null or was made by `Box::into_raw` of a `T`, and is not used again.
unsafe fn give_back<T>(object: *mut c_void) -> Status {
    guarded(|| {
        if !object.is_null() {
            // SAFETY: by the contract.
            drop(unsafe { Box::from_raw(object.cast::<T>()) });
        }
        SUCCESS
    })
}

unsafe extern "C" fn close_send(comm: *mut c_void) -> Status {
    // SAFETY: made by `connect`.
    unsafe { give_back::<SendEnd>(comm) }
}

unsafe extern "C" fn close_receive(comm: *mut c_void) -> Status {
    // SAFETY: made by `accept`.
    unsafe { give_back::<ReceiveEnd>(comm) }
}

unsafe extern "C" fn close_listen(listener: *mut c_void) -> Status {
    // SAFETY: made by `listen`.
    unsafe { give_back::<Listen>(listener) }
}

// ---------------------------------------------------------------- tables

type Accept = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut c_void) -> Status;
type Register = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> Status;
type RegisterDmaBuf =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void) -> Status;
type OnComm = unsafe extern "C" fn(*mut c_void) -> Status;
type Flush = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const *mut c_void,
    *const c_int,
    *const *mut c_void,
    *mut *mut c_void,
) -> Status;
/// A function that this plugin does not have.
type Absent = Option<unsafe extern "C" fn() -> Status>;
type Connect8 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> Status;
type Connect10 = unsafe extern "C" fn(c_int, *const c_void, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> Status;
type Connect11 = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> Status;
type Listen8 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> Status;
type Listen11 = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> Status;
type Init8 = unsafe extern "C" fn(Logger) -> Status;
type Init10 = unsafe extern "C" fn(Logger, *const c_void) -> Status;
type Init11 = unsafe extern "C" fn(*mut *mut c_void, u64, *const c_void, Logger, *const c_void) -> Status;
type Send<S> = unsafe extern "C" fn(*mut c_void, *mut c_void, S, c_int, *mut c_void, *mut *mut c_void) -> Status;
type Send10 =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void, *mut *mut c_void) -> Status;
type Receive<S> = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const *mut c_void,
    *const S,
    *const c_int,
    *const *mut c_void,
    *mut *mut c_void,
) -> Status;
type Receive10 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const *mut c_void,
    *const usize,
    *const c_int,
    *const *mut c_void,
    *const *mut c_void,
    *mut *mut c_void,
) -> Status;

/// What every version has between `connect` and the end, in this order. `T`: what this version adds after `irecvConsumed`.
#[repr(C)]
#[derive(Debug)]
struct Table<I, P, L, C, S, R, T> {
    name: Name,
    init: I,
    devices: unsafe extern "C" fn(*mut c_int) -> Status,
    properties: unsafe extern "C" fn(c_int, *mut P) -> Status,
    listen: L,
    connect: C,
    accept: Accept,
    register: Register,
    register_dma_buf: RegisterDmaBuf,
    deregister: unsafe extern "C" fn(*mut c_void, *mut c_void) -> Status,
    send: S,
    receive: R,
    flush: Flush,
    test: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> Status,
    close_send: OnComm,
    close_receive: OnComm,
    close_listen: OnComm,
    device_registration: Absent,
    receive_consumed: Absent,
    tail: T,
}

/// After `irecvConsumed`: nothing in v8, `makeVDevice` in v9 and v10, then `finalize` and `setNetAttr`.
#[repr(C)]
#[derive(Debug)]
struct Tail11 {
    virtual_device: Absent,
    finalize: OnComm,
    set_net_attr: unsafe extern "C" fn(*mut c_void, *const c_void) -> Status,
}

macro_rules! table {
    ($init:ident, $properties:ident, $listen:ident, $connect:ident, $send:ident, $receive:ident, $tail:expr) => {
        Table {
            name: NAME,
            init: $init,
            devices,
            properties: $properties,
            listen: $listen,
            connect: $connect,
            accept,
            register,
            register_dma_buf,
            deregister,
            send: $send,
            receive: $receive,
            flush,
            test,
            close_send,
            close_receive,
            close_listen,
            device_registration: None,
            receive_consumed: None,
            tail: $tail,
        }
    };
}

type V8 = Table<Init8, PropertiesV8, Listen8, Connect8, Send<c_int>, Receive<c_int>, ()>;
type V9 = Table<Init8, PropertiesV9, Listen8, Connect8, Send<usize>, Receive<usize>, Absent>;
type V10 = Table<Init10, PropertiesV9, Listen8, Connect10, Send10, Receive10, Absent>;
type V11 = Table<Init11, PropertiesV11, Listen11, Connect11, Send10, Receive10, Tail11>;
type V12 = Table<Init11, PropertiesV12, Listen11, Connect11, Send10, Receive10, Tail11>;
const _: () = {
    assert!(size_of::<V8>() == 19 * 8 && size_of::<V9>() == 20 * 8 && size_of::<V10>() == 20 * 8);
    assert!(size_of::<V11>() == 22 * 8 && size_of::<V12>() == 22 * 8);
};

const TAIL_11: Tail11 = Tail11 { virtual_device: None, finalize, set_net_attr };

#[unsafe(no_mangle)]
static ncclNetPlugin_v8: V8 = table!(init_v8, properties_v8, listen_v8, connect_v8, send_v8, receive_v8, ());
#[unsafe(no_mangle)]
static ncclNetPlugin_v9: V9 = table!(init_v8, properties_v9, listen_v8, connect_v8, send_v9, receive_v9, None);
#[unsafe(no_mangle)]
static ncclNetPlugin_v10: V10 = table!(init_v10, properties_v9, listen_v8, connect_v10, send_v10, receive_v10, None);
#[unsafe(no_mangle)]
static ncclNetPlugin_v11: V11 =
    table!(init_v11, properties_v11, listen_v11, connect_v11, send_v10, receive_v10, TAIL_11);
#[unsafe(no_mangle)]
static ncclNetPlugin_v12: V12 =
    table!(init_v11, properties_v12, listen_v11, connect_v11, send_v10, receive_v10, TAIL_11);
