//! The profiler interface, v4 to v7.

use super::{LOG, Logger, NAME, Name, Status, guarded, panic_if_tested};
use crate::config::KernelTimes;
use crate::events::Enqueued;
use crate::kernel_times;
use crate::overhead::Entry;
use crate::process::{self, EVENTS, ProfilerContext};
use crate::site::profiler as site;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use tune::{Algorithm, Collective, Protocol};

/// v4: a group is being launched on one communicator. Later versions report it too, below the group of the API.
const GROUP: u64 = 0x1;
const COLL: u64 = 0x2;
const KERNEL_CHANNEL: u64 = 0x40;
/// An outermost group: from `ncclGroupStart`, or a call outside any group, to its end. Its context is that of the group's first communicator.
const GROUP_API: u64 = 0x100;
const COLL_API: u64 = 0x200;
/// v5 and later: a kernel of a group is being launched, or captured into a CUDA graph, on one communicator.
const KERNEL_LAUNCH: u64 = 0x800;
/// Handle of a group that is being launched; no collective has it (see [`crate::events`]).
const LAUNCHED_GROUP: u64 = 1;
/// State of a kernel's channel: stopped; the arguments hold the time.
const CHANNEL_STOPPED: c_int = 22;

pub(crate) type InitV4 =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, Logger) -> Status;
pub(crate) type InitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, Logger) -> Status;
type Start = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> Status;
type Stop = unsafe extern "C" fn(*mut c_void) -> Status;
type Record = unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> Status;

/// The members of every version, in order.
#[repr(C)]
#[derive(Debug)]
pub struct Profiler<I> {
    pub(crate) name: Name,
    pub(crate) init: I,
    pub(crate) start: Start,
    pub(crate) stop: Stop,
    pub(crate) record: Record,
    pub(crate) finalize: Stop,
}
const _: () = assert!(size_of::<Profiler<InitV4>>() == 48);

// The exported functions also call the site's profiler (`site::profiler`).
macro_rules! exported {
    ($($name:ident $init:ty, $init_fn:ident, $start:ident;)+) => {$(
        #[unsafe(no_mangle)]
        pub(crate) static $name: Profiler<$init> = Profiler {
            name: NAME,
            init: site::$init_fn,
            start: site::$start,
            stop: site::stop,
            record: site::record,
            finalize: site::finalize,
        };
    )+};
}
exported! {
    ncclProfiler_v4 InitV4, init_v4, start_v4;
    ncclProfiler_v5 InitV5, init_v5, start_v5;
    ncclProfiler_v6 InitV5, init_v6, start_v5;
    ncclProfiler_v7 InitV5, init_v7, start_v5;
}

/// GPU times were requested, and the release is not known to crash with them.
static KERNELS_ALLOWED: AtomicBool = AtomicBool::new(false);
/// NCCL measures GPU times now.
static KERNELS: AtomicBool = AtomicBool::new(false);
/// NCCL's mask of events: one of the process, which NCCL reads at every event.
static MASK: AtomicPtr<c_int> = AtomicPtr::new(null_mut());

/// GPU times are available.
pub fn kernels_allowed() -> bool {
    KERNELS_ALLOWED.load(Ordering::Relaxed)
}

/// NCCL measures GPU times of collectives that are enqueued now.
pub fn kernels_wanted() -> bool {
    KERNELS.load(Ordering::Relaxed)
}

/// Begins or ends the measurement of GPU times, for collectives enqueued from now on: they cost time, and releases of NCCL crashed with them.
pub fn need_kernels(needed: bool) {
    let on = needed && kernels_allowed();
    if KERNELS.swap(on, Ordering::Relaxed) == on {
        return;
    }
    let mask = MASK.load(Ordering::Relaxed);
    if !mask.is_null() {
        // SAFETY: the address of an aligned int of NCCL, which keeps it until the process ends and reads and writes it atomically.
        let mask = unsafe { AtomicI32::from_ptr(mask) };
        match on {
            true => mask.fetch_or(KERNEL_CHANNEL as c_int, Ordering::Relaxed),
            false => mask.fetch_and(!(KERNEL_CHANNEL as c_int), Ordering::Relaxed),
        };
    }
}

/// Whether to ask for kernel events; a refusal is logged once.
fn wants_kernels(asked: KernelTimes, api: u32) -> bool {
    let shared_memory = rustix::fs::statvfs("/dev/shm").ok().map(|s| s.f_blocks.saturating_mul(s.f_frsize));
    let release = kernel_times::Release { version: super::nccl::version(), api, shared_memory };
    kernel_times::decide(asked, release).unwrap_or_else(|why| {
        static WARNED: AtomicBool = AtomicBool::new(false);
        LOG.once(&WARNED, &why);
        false
    })
}

/// # Safety
/// `context` and `mask` are null or the addresses that NCCL passes.
pub(crate) unsafe fn init(
    api: u32,
    id: u64,
    rank: c_int,
    context: *mut *mut c_void,
    mask: *mut c_int,
    logger: Logger,
) -> Status {
    if context.is_null() || mask.is_null() {
        return super::SUCCESS;
    }
    // SAFETY: NCCL passes the address of its context pointer.
    unsafe { *context = null_mut() };
    guarded(Entry::Setup, || {
        LOG.set(logger);
        super::nccl::ask_version(logger);
        panic_if_tested();
        let Some(profiled) = process::profiler_init(api, id, rank) else { return };
        let settings = process::settings();
        let kernels = wants_kernels(settings.kernel_times, api);
        KERNELS_ALLOWED.store(kernels, Ordering::Relaxed);
        KERNELS.store(kernels, Ordering::Relaxed);
        let mut events = COLL;
        if kernels {
            events |= KERNEL_CHANNEL;
        }
        // NCCL always reports the parents of requested events.
        events |= if api >= 5 { COLL_API | GROUP_API | KERNEL_LAUNCH } else { GROUP };
        // SAFETY: the addresses of the mask and the context; `finalize` takes the context back.
        unsafe {
            *mask |= events as c_int;
            MASK.store(mask, Ordering::Relaxed);
            *context = Arc::into_raw(profiled).cast_mut().cast();
        }
    })
}

/// An event of a collective, v5 to v7 (members that later versions append are not read).
#[repr(C)]
struct CollV5 {
    sequence: u64,
    collective: *const c_char,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
    channels: u8,
    warps: u8,
    algorithm: *const c_char,
    protocol: *const c_char,
}
/// v4 has the same members.
type CollV4 = CollV5;

#[repr(C)]
struct CollApi {
    collective: *const c_char,
    count: usize,
    datatype: *const c_char,
    root: c_int,
    stream: *mut c_void,
    captured: bool,
}

#[repr(C)]
struct KernelChannel {
    channel: u8,
    timer_ns: u64,
}

/// The first members of every event; the rest depends on its type.
#[repr(C)]
struct HeadV5 {
    kind: u64,
    parent: *mut c_void,
    rank: c_int,
}
#[repr(C)]
struct HeadV4 {
    kind: u8,
    parent: *mut c_void,
    rank: c_int,
}
#[repr(C)]
struct WithHead<H, T> {
    head: H,
    event: T,
}
const _: () = {
    assert!(std::mem::offset_of!(WithHead<HeadV5, CollV5>, event) == 24);
    assert!(std::mem::offset_of!(WithHead<HeadV4, CollV4>, event) == 24);
    assert!(std::mem::offset_of!(CollV5, algorithm) == 64);
};

pub(crate) unsafe extern "C" fn start_v5(
    context: *mut c_void,
    handle: *mut *mut c_void,
    event: *const c_void,
) -> Status {
    // SAFETY: v5 and later begin with this head.
    unsafe { start(context, handle, event, false, |e| (*e.cast::<HeadV5>()).kind) }
}
pub(crate) unsafe extern "C" fn start_v4(
    context: *mut c_void,
    handle: *mut *mut c_void,
    event: *const c_void,
) -> Status {
    // SAFETY: v4 begins with this head; the rest lies at the offsets of v5 (asserted above).
    unsafe { start(context, handle, event, true, |e| (*e.cast::<HeadV4>()).kind.into()) }
}

/// # Safety
/// `context` is null or ours, `handle` is null or the address of a pointer, `event` is null or an event of the version that `kind` reads.
unsafe fn start(
    context: *mut c_void,
    handle: *mut *mut c_void,
    event: *const c_void,
    groups_by_launch: bool,
    kind: impl FnOnce(*const c_void) -> u64,
) -> Status {
    if handle.is_null() {
        return super::SUCCESS;
    }
    // SAFETY: the address of a pointer. Without a handle NCCL reports no more of the event.
    unsafe { *handle = null_mut() };
    if context.is_null() || event.is_null() {
        return super::SUCCESS;
    }
    guarded(Entry::Event, || {
        panic_if_tested();
        // SAFETY: `init` made the context.
        let Some(profiled) = (unsafe { context.cast::<ProfilerContext>().as_ref() }) else { return };
        let number = match kind(event) {
            // SAFETY: an event of this kind has these members.
            COLL => unsafe {
                let collective = &(*event.cast::<WithHead<HeadV5, CollV5>>()).event;
                // From v5 on the parent is the handle of the call: the number of its group.
                let group = if groups_by_launch { 0 } else { (*event.cast::<HeadV5>()).parent.addr() as u64 };
                if groups_by_launch && process::collectives_are_reported_at_once() {
                    profiled.comm.get().inspect(|c| c.on_collective(collective.sequence));
                }
                enqueued(profiled, collective, group)
            },
            KERNEL_CHANNEL => {
                // SAFETY: as above; `parent` is the collective's handle, a number of ours, not a pointer.
                let e = unsafe { &*event.cast::<WithHead<HeadV5, KernelChannel>>() };
                EVENTS.channel_started(e.head.parent.addr() as u64, e.event.channel, e.event.timer_ns)
            }
            COLL_API => {
                // SAFETY: as above; `parent` is the group's handle.
                let e = unsafe { &*event.cast::<WithHead<HeadV5, CollApi>>() };
                if let Some(comm) = profiled.comm.get() {
                    comm.set_captured(e.event.captured);
                    match e.head.parent.addr() as u64 {
                        0 => comm.on_lost_group(Some(EVENTS.group())),
                        group => comm.set_group(group),
                    }
                }
                // The collective that is launched for this call has this handle as parent. Collectives of a graph are reported at each of its
                // launches, which are no calls.
                if e.event.captured { 0 } else { e.head.parent.addr() as u64 }
            }
            KERNEL_LAUNCH => {
                // SAFETY: as above; `parent` is the group's handle.
                let group = unsafe { &*event.cast::<HeadV5>() }.parent.addr() as u64;
                profiled.comm.get().inspect(|c| match group {
                    0 => c.on_lost_group(None),
                    group => c.on_launch(group),
                });
                0
            }
            GROUP_API => EVENTS.group(),
            GROUP if groups_by_launch => {
                profiled.comm.get().inspect(|c| c.end_group());
                LAUNCHED_GROUP // without a handle NCCL 2.27 does not report the group's collectives
            }
            _ => 0,
        };
        // SAFETY: the address of a pointer.
        unsafe { *handle = without_provenance_mut(number as usize) };
    })
}

/// # Safety
/// The texts of `c` are null or 0-terminated. `group`: the outermost group of the call, 0 if it is not told.
unsafe fn enqueued(profiled: &ProfilerContext, c: &CollV5, group: u64) -> u64 {
    // SAFETY: by the contract.
    let (collective, algorithm, protocol, datatype) =
        unsafe { (text(c.collective), text(c.algorithm), text(c.protocol), text(c.datatype)) };
    let Some(collective) = word(collective).filter(|c: &Collective| c.is_tuned()) else { return 0 };
    if group != 0 {
        profiled.comm.get().inspect(|comm| comm.on_collective_of(group, collective, c.sequence));
    }
    EVENTS.enqueued(&Enqueued {
        owner: profiled.owner,
        sequence: c.sequence,
        collective,
        count: c.count as u64,
        element_bytes: element_bytes(datatype),
        algorithm: word::<Algorithm>(algorithm),
        protocol: word::<Protocol>(protocol),
        channels: c.channels,
    })
}

/// # Safety
/// `p` is null or 0-terminated.
unsafe fn text<'a>(p: *const c_char) -> &'a [u8] {
    // SAFETY: by the contract.
    if p.is_null() { &[] } else { unsafe { CStr::from_ptr(p) }.to_bytes() }
}

/// Parses a word in any case, with or without underscores and the prefix `nccl`.
fn word<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(text).ok()?;
    text.strip_prefix("nccl").unwrap_or(text).parse().ok()
}

fn element_bytes(datatype: &[u8]) -> u8 {
    let t = datatype.to_ascii_lowercase();
    let ends = |s: &[u8]| t.ends_with(s);
    if ends(b"64") {
        8
    } else if ends(b"32") {
        4
    } else if ends(b"16") {
        2
    } else {
        1
    }
}

pub(crate) unsafe extern "C" fn stop(_: *mut c_void) -> Status {
    super::SUCCESS // a collective's stop means that it is enqueued, not that it is done
}

pub(crate) unsafe extern "C" fn record(handle: *mut c_void, state: c_int, arguments: *const c_void) -> Status {
    if state != CHANNEL_STOPPED || handle.is_null() || arguments.is_null() {
        return super::SUCCESS;
    }
    guarded(Entry::Event, || {
        panic_if_tested();
        // SAFETY: in this state the arguments are the time at which the channel stopped.
        EVENTS.channel_stopped(handle.addr() as u64, unsafe { *arguments.cast::<u64>() });
    })
}

pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> Status {
    guarded(Entry::Setup, || {
        if !context.is_null() {
            // SAFETY: `init` made it, and NCCL returns it once.
            let profiled = unsafe { Arc::from_raw(context.cast::<ProfilerContext>().cast_const()) };
            process::take_waiting(profiled.owner);
        }
        panic_if_tested();
    })
}
