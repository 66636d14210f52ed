//! The functions of libibverbs. Errors are those of the interface: null and `errno`, or a positive number.
#![allow(unsafe_code)]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "the contract of every function is that of the interface")]

use crate::memory;
use crate::pair::{INVALID, Pair, Receive, Work};
use crate::queue::{Channel as Events, Queue};
use crate::world::{self, Nic};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::Arc;
use verbs::abi::*;

/// `IBV_SEND_INLINE`.
const INLINE: c_uint = 8;
const INLINE_BYTES_MAX: u32 = 256;
/// Speed that the port reports: four lanes of 25 Gbit/s.
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
const NO_SYSTEM_CALL: c_int = 38;
const NO_EVENT: c_int = 11;

/// A C structure, and what belongs to it behind it.
#[repr(C)]
struct Of<C, T> {
    c: C,
    own: T,
}

fn give<C, T>(c: C, own: T) -> *mut C {
    Box::into_raw(Box::new(Of { c, own })).cast()
}

/// # Safety
/// `at` was made by [`give`] with these types and is alive.
unsafe fn own<'a, C, T>(at: *mut C) -> &'a T {
    // SAFETY: by the contract.
    unsafe { &(*at.cast::<Of<C, T>>()).own }
}

/// # Safety
/// As [`own`]; it is not used afterwards.
unsafe fn take<C, T>(at: *mut C) -> Of<C, T> {
    // SAFETY: by the contract.
    *unsafe { Box::from_raw(at.cast::<Of<C, T>>()) }
}

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
    fn calloc(count: usize, bytes: usize) -> *mut c_void;
    fn free(at: *mut c_void);
}

fn error<T>(e: c_int) -> *mut T {
    // SAFETY: the C library's own address of this thread's number.
    unsafe { *__errno_location() = e };
    null_mut()
}

fn text<const N: usize>(t: &str) -> [c_char; N] {
    let mut all = [0; N];
    all.iter_mut().take(N - 1).zip(t.bytes()).for_each(|(to, b)| *to = b as c_char);
    all
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device {
    let nics = world::nics();
    // SAFETY: a list with a null at its end, which `ibv_free_device_list` frees.
    let list = unsafe { calloc(nics.len() + 1, size_of::<usize>()) }.cast::<*mut Device>();
    if list.is_null() {
        return error(12);
    }
    for (i, nic) in nics.iter().enumerate() {
        let device = Device {
            operations: [0; 2],
            node_type: NODE_CA,
            transport_type: TRANSPORT_IB,
            name: text(&nic.name),
            dev_name: text(&format!("uverbs{i}")),
            dev_path: text(&format!("/sys/class/infiniband_verbs/uverbs{i}")),
            ibdev_path: text(&format!("/sys/class/infiniband/{}", nic.name)),
        };
        // SAFETY: the list has room; programs keep devices beyond the list, so they stay.
        unsafe { *list.add(i) = give(device, nic.clone()) };
    }
    if !count.is_null() {
        // SAFETY: the address of an int.
        unsafe { *count = nics.len() as c_int };
    }
    list
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    // SAFETY: the list of `ibv_get_device_list`, or null.
    unsafe { free(list.cast()) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut Device) -> *const c_char {
    // SAFETY: a device of the list.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut Device) -> *mut Context {
    // SAFETY: a device of the list.
    let nic = unsafe { own::<Device, Arc<Nic>>(device) };
    if nic.is_dead() {
        return error(19);
    }
    let context = Context {
        device,
        unused_0: [0; 11],
        poll_cq: Some(poll_cq),
        request_notify: Some(request_notify),
        unused_1: [0; 12],
        post_send: Some(post_send),
        post_receive: Some(post_receive),
        unused_2: [0; 5],
        command_fd: -1,
        async_fd: -1,
        vectors: 1,
        mutex: [0; 5],
        extension: null_mut(),
    };
    give(context, nic.clone())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    // SAFETY: an open device, not used afterwards.
    drop(unsafe { take::<Context, Arc<Nic>>(context) });
    0
}

/// The attributes of a device, of which programs here read these.
#[repr(C)]
pub struct DeviceAttributes {
    firmware: [c_char; 64],
    node_guid: u64,
    system_guid: u64,
    mr_bytes_max: u64,
    page_sizes: u64,
    vendor: u32,
    vendor_part: u32,
    version: u32,
    qps: c_int,
    requests: c_int,
    capabilities: c_uint,
    parts: c_int,
    read_parts: c_int,
    cqs: c_int,
    entries: c_int,
    mrs: c_int,
    pds: c_int,
    reads: c_int,
    other: [u8; 79],
    ports: u8,
    end: [u8; 4],
}
const _: () = {
    assert!(size_of::<DeviceAttributes>() == 232 && std::mem::offset_of!(DeviceAttributes, qps) == 108);
    assert!(
        std::mem::offset_of!(DeviceAttributes, reads) == 144 && std::mem::offset_of!(DeviceAttributes, ports) == 227
    );
};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut Context, to: *mut DeviceAttributes) -> c_int {
    // SAFETY: an open device, and the address of its attributes, for which all bits are values.
    unsafe {
        let nic = own::<Context, Arc<Nic>>(context);
        to.write_bytes(0, 1);
        let to = &mut *to;
        to.firmware = text("emulated");
        (to.node_guid, to.system_guid) = (u64::from(u32::from(nic.ip)), u64::from(u32::from(nic.ip)));
        (to.mr_bytes_max, to.page_sizes) = (u64::MAX, 4096);
        (to.qps, to.requests, to.parts, to.read_parts) = (1 << 16, 1 << 14, 16, 16);
        (to.cqs, to.entries, to.mrs, to.pds, to.reads, to.ports) = (1 << 16, 1 << 16, 1 << 20, 1 << 16, 16, 1);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(context: *mut Context, port: u8, to: *mut PortAttributes) -> c_int {
    if port != 1 {
        return INVALID;
    }
    // SAFETY: an open device.
    let nic = unsafe { own::<Context, Arc<Nic>>(context) };
    let a = PortAttributes {
        state: if nic.is_dead() { 1 } else { PORT_ACTIVE },
        mtu_max: MTU_4096,
        mtu: MTU_4096,
        gids: 1,
        message_bytes_max: 1 << 30,
        pkeys: 1,
        lanes: 1,
        width: WIDTH_4X,
        speed: SPEED_EDR,
        physical_state: 5,
        link_layer: LINK_ETHERNET,
        ..PortAttributes::default()
    };
    // SAFETY: the address of a port's attributes. Old programs have a shorter structure: its last members are left alone.
    unsafe { std::ptr::copy_nonoverlapping((&raw const a).cast::<u8>(), to.cast::<u8>(), 48) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(context: *mut Context, port: u8, index: c_int, to: *mut Gid) -> c_int {
    if port != 1 || index != 0 {
        return -1;
    }
    // SAFETY: an open device and the address of 16 bytes.
    unsafe { (*to).0 = own::<Context, Arc<Nic>>(context).gid() };
    0
}

/// The default partition, in network order: the only one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(_: *mut Context, port: u8, index: c_int, to: *mut u16) -> c_int {
    if port != 1 || index != 0 {
        return -1;
    }
    // SAFETY: the address of 16 bits.
    unsafe { *to = u16::MAX };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    give(Pd { context, handle: 0 }, ())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    // SAFETY: a domain of this library, not used afterwards.
    let _ = unsafe { take::<Pd, ()>(pd) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut Pd, at: *mut c_void, length: usize, access: c_int) -> *mut Mr {
    let key = memory::register(at as u64, length as u64, access, pd as usize);
    // SAFETY: a domain of this library.
    let context = unsafe { (*pd).context };
    give(Mr { context, pd, address: at, length, handle: key, lkey: key, rkey: key }, ())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: a registration of this library, not used afterwards.
    let mr = unsafe { take::<Mr, ()>(mr) };
    if memory::deregister(mr.c.lkey) { 0 } else { INVALID }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(context: *mut Context) -> *mut Channel {
    match Events::new() {
        Ok(events) => {
            let fd = events.event.as_raw_fd();
            give(Channel { context, fd, references: 0 }, Arc::new(events))
        }
        Err(e) => error(e.raw_os_error().unwrap_or(INVALID)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut Channel) -> c_int {
    // SAFETY: a channel of this library, not used afterwards.
    drop(unsafe { take::<Channel, Arc<Events>>(channel) });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut Context,
    entries: c_int,
    user: *mut c_void,
    channel: *mut Channel,
    _vector: c_int,
) -> *mut Cq {
    let Ok(size) = usize::try_from(entries) else { return error(INVALID) };
    let c = Cq { context, channel, user, handle: 0, entries, private: [0; 12] };
    let cq = give(c, None::<Arc<Queue>>);
    // SAFETY: a channel of this library or null; the queue was made above.
    unsafe {
        let events = (!channel.is_null()).then(|| own::<Channel, Arc<Events>>(channel).clone());
        (*cq.cast::<Of<Cq, Option<Arc<Queue>>>>()).own = Some(Arc::new(Queue::new(events, cq as usize, size)));
    }
    cq
}

/// # Safety
/// A completion queue of this library.
unsafe fn queue(cq: *mut Cq) -> Option<Arc<Queue>> {
    // SAFETY: by the contract.
    if cq.is_null() { None } else { unsafe { own::<Cq, Option<Arc<Queue>>>(cq).clone() } }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut Cq) -> c_int {
    // SAFETY: a queue of this library, not used afterwards.
    drop(unsafe { take::<Cq, Option<Arc<Queue>>>(cq) });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(channel: *mut Channel, to: *mut *mut Cq, user: *mut *mut c_void) -> c_int {
    // SAFETY: a channel of this library, and the addresses of two pointers. A queue with events is alive: programs acknowledge events before they end it.
    unsafe {
        let Some(cq) = own::<Channel, Arc<Events>>(channel).clone().next() else { return -1 };
        *to = cq as *mut Cq;
        *user = (*(cq as *mut Cq)).user;
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(_cq: *mut Cq, _count: c_uint) {}

unsafe extern "C" fn request_notify(cq: *mut Cq, _solicited: c_int) -> c_int {
    // SAFETY: a queue of this library.
    unsafe { queue(cq) }.map_or(INVALID, |q| {
        q.arm();
        0
    })
}

unsafe extern "C" fn poll_cq(cq: *mut Cq, count: c_int, to: *mut Completion) -> c_int {
    // SAFETY: a queue of this library and a list with `count` members.
    unsafe {
        match (queue(cq), usize::try_from(count)) {
            (Some(q), Ok(n)) if n > 0 => q.poll(std::slice::from_raw_parts_mut(to, n)),
            _ => 0,
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut Pd, init: *mut QpInit) -> *mut Qp {
    // SAFETY: a domain of this library and the address of a pair's first attributes.
    let (context, init) = unsafe { ((*pd).context, &mut *init) };
    init.capacity.inline_bytes = init.capacity.inline_bytes.min(INLINE_BYTES_MAX);
    // SAFETY: queues of this library.
    let queues = unsafe { (queue(init.send_cq), queue(init.receive_cq)) };
    let (Some(send), Some(receive)) = queues else { return error(INVALID) };
    if init.kind != QPT_RC || !init.srq.is_null() {
        return error(95); // not supported
    }
    // SAFETY: an open device.
    let nic = unsafe { own::<Context, Arc<Nic>>(context) }.clone();
    match Pair::new(nic, pd as usize, [send, receive], init) {
        Ok(pair) => {
            let qp = Qp {
                context,
                user: init.user,
                pd,
                send_cq: init.send_cq,
                receive_cq: init.receive_cq,
                srq: null_mut(),
                handle: 0,
                number: pair.number,
                state: QPS_RESET,
                kind: init.kind,
                private: [0; 12],
            };
            give(qp, pair)
        }
        Err(e) => error(e.raw_os_error().unwrap_or(INVALID)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut Qp, to: *mut QpAttributes, mask: c_int) -> c_int {
    // SAFETY: a pair of this library and its attributes.
    unsafe {
        let pair = own::<Qp, Arc<Pair>>(qp);
        let rc = pair.modify(&*to, mask);
        (*qp).state = pair.state();
        rc
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(qp: *mut Qp, to: *mut QpAttributes, _: c_int, _: *mut QpInit) -> c_int {
    // SAFETY: a pair of this library and its attributes.
    unsafe { (*to).state = own::<Qp, Arc<Pair>>(qp).state() };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut Qp) -> c_int {
    // SAFETY: a pair of this library, not used afterwards.
    unsafe { take::<Qp, Arc<Pair>>(qp) }.own.destroy();
    0
}

/// # Safety
/// `at` has `count` members, or `count` is 0.
unsafe fn parts(at: *const Part, count: c_int) -> Vec<Part> {
    let n = usize::try_from(count).unwrap_or(0);
    // SAFETY: by the contract.
    if n == 0 { Vec::new() } else { unsafe { std::slice::from_raw_parts(at, n) }.to_vec() }
}

unsafe extern "C" fn post_send(qp: *mut Qp, mut at: *mut SendRequest, bad: *mut *mut SendRequest) -> c_int {
    // SAFETY: a pair of this library and a list of requests.
    unsafe {
        let pair = own::<Qp, Arc<Pair>>(qp);
        while let Some(r) = at.as_ref() {
            let parts = parts(r.parts, r.count);
            let inline = (r.flags & INLINE != 0).then(|| {
                let bytes = parts.iter().map(|p| std::slice::from_raw_parts(p.address as *const u8, p.bytes as usize));
                bytes.collect::<Vec<_>>().concat()
            });
            let rc = match r.opcode {
                WR_WRITE..=WR_READ => pair.post_send(Work {
                    id: r.id,
                    opcode: r.opcode,
                    signaled: r.flags & SEND_SIGNALED != 0,
                    parts,
                    inline,
                    immediate: r.immediate,
                    address: r.remote_address,
                    rkey: r.rkey,
                }),
                _ => INVALID,
            };
            if rc != 0 {
                *bad = at;
                return rc;
            }
            at = r.next;
        }
    }
    0
}

unsafe extern "C" fn post_receive(qp: *mut Qp, mut at: *mut ReceiveRequest, bad: *mut *mut ReceiveRequest) -> c_int {
    // SAFETY: a pair of this library and a list of requests.
    unsafe {
        let pair = own::<Qp, Arc<Pair>>(qp);
        while let Some(r) = at.as_ref() {
            let rc = pair.post_receive(Receive { id: r.id, parts: parts(r.parts, r.count) });
            if rc != 0 {
                *bad = at;
                return rc;
            }
            at = r.next;
        }
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    0
}

/// There are no events of the device: the caller's thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_async_event(_: *mut Context, _: *mut c_void) -> c_int {
    error::<u8>(NO_EVENT);
    -1
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(_: *mut c_void) {}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(_: c_int) -> *const c_char {
    c"emulated".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(_: c_int) -> *const c_char {
    c"emulated".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(_: *mut Pd, _: u64, _: usize, _: u64, _: c_int, _: c_int) -> *mut Mr {
    error(NO_SYSTEM_CALL)
}
