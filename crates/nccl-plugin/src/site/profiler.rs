//! The site's profiler next to linkwise's own functions ([`crate::abi::profiler`]).
//!
//! NCCL calls the functions of this file. Each plugin has an event mask of its own; NCCL gets both together. NCCL also reports the parents of the
//! requested events: the site's plugin gets those of its own events only. A handle that NCCL holds stands for the handles of both ([`Handles`]), and
//! the parent of an event is translated for each.
//!
//! Interfaces v5 to v7 have one layout, to which later versions append, and v4 has the same one but for the place of the parent: an event of v5 serves
//! a plugin of v4 with the launched group as parent, as in NCCL's own conversion. Events that the plugin's interface lacks are not forwarded.

use super::find::Kind;
use super::handles::{Handles, POOL, Pair};
use super::library::{SiteTable, find};
use crate::abi::profiler as own;
use crate::abi::profiler::{InitV4, InitV5, Profiler};
use crate::abi::{LOG, Logger};
use crate::abi::{SUCCESS, Status};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{from_ref, null_mut, with_exposed_provenance_mut, without_provenance_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

const GROUP: u64 = 0x1;
const COLL: u64 = 0x2;
const P2P: u64 = 0x4;
const PROXY_OP: u64 = 0x8;
const PROXY_STEP: u64 = 0x10;
const KERNEL_CHANNEL: u64 = 0x40;
const NET_PLUGIN: u64 = 0x80;
const GROUP_API: u64 = 0x100;
const COLL_API: u64 = 0x200;
const P2P_API: u64 = 0x400;
const KERNEL_LAUNCH: u64 = 0x800;
const CE_COLL: u64 = 0x1000;
const CE_SYNC: u64 = 0x2000;
const CE_BATCH: u64 = 0x4000;

/// The site's profiler and the events of both.
#[derive(Debug)]
struct Site {
    table: SiteTable,
    handles: Handles,
}

static SITE: OnceLock<Option<Site>> = OnceLock::new();
/// The masks that the plugins write; the site's may change at any time.
static MASK_OF_SITE: AtomicI32 = AtomicI32::new(0);
static MASK_OF_OWN: AtomicI32 = AtomicI32::new(0);
/// NCCL's mask, and what was written there last.
static MASK_OF_NCCL: AtomicPtr<c_int> = AtomicPtr::new(null_mut());
static MASK_APPLIED: AtomicI32 = AtomicI32::new(0);

/// A context that NCCL holds while the site has a profiler.
struct Both {
    own: *mut c_void,
    site: *mut c_void,
}

/// The name of the site's profiler, if it is loaded.
pub fn name() -> Option<String> {
    loaded().map(|s| s.table.name.clone())
}

#[inline]
fn loaded() -> Option<&'static Site> {
    SITE.get().and_then(Option::as_ref)
}

fn load_once(api: u32) -> Option<&'static Site> {
    let ours = [from_ref(&own::ncclProfiler_v4).cast(), from_ref(&own::ncclProfiler_v7).cast::<c_void>()];
    let find = || {
        let table = find(Kind::Profiler, api, 4, &ours, "gets its events through linkwise")?;
        Some(Site { table, handles: Handles::new(POOL) })
    };
    SITE.get_or_init(find).as_ref()
}

/// Events that an interface has.
fn known(api: u32) -> u64 {
    match api {
        4 => 0xff,
        5 => 0xfff,
        6 => 0x7fff,
        _ => u64::MAX,
    }
}

/// The events that NCCL reports for a mask: those requested and their parents.
fn with_parents(mask: u64) -> u64 {
    let below_task = PROXY_OP | PROXY_STEP | KERNEL_CHANNEL | NET_PLUGIN;
    let copy_engine = CE_COLL | CE_SYNC | CE_BATCH;
    // Events of later releases are below kernels.
    let mask = if mask & !0x7fff != 0 { mask | KERNEL_CHANNEL } else { mask };
    let mut all = mask;
    let mut parent = |parent: u64, of: u64| {
        if mask & of != 0 {
            all |= parent;
        }
    };
    parent(GROUP_API, COLL_API | P2P_API | KERNEL_LAUNCH | GROUP | COLL | P2P | below_task | copy_engine);
    parent(COLL_API, COLL | below_task | copy_engine);
    parent(P2P_API, P2P | below_task);
    parent(GROUP, COLL | P2P | below_task);
    parent(COLL | P2P, below_task);
    parent(PROXY_OP, PROXY_STEP | NET_PLUGIN);
    parent(PROXY_STEP, NET_PLUGIN);
    parent(CE_COLL, CE_SYNC | CE_BATCH);
    all
}

/// Writes both masks to NCCL if either has changed.
#[inline]
fn apply_masks() {
    let both = MASK_OF_SITE.load(Ordering::Relaxed) | MASK_OF_OWN.load(Ordering::Relaxed);
    if both != MASK_APPLIED.load(Ordering::Relaxed) {
        write_mask(both);
    }
}

#[cold]
fn write_mask(both: c_int) {
    let mask = MASK_OF_NCCL.load(Ordering::Acquire);
    if !mask.is_null() {
        MASK_APPLIED.store(both, Ordering::Relaxed);
        // SAFETY: NCCL's mask is a global of the process, which it reads atomically at every event; the library that has it is loaded, as it calls.
        unsafe { AtomicI32::from_ptr(mask) }.store(both, Ordering::Relaxed);
    }
}

/// Arguments of init that all interfaces have.
struct Init {
    id: u64,
    name: *const c_char,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Logger,
}

/// Init of the site's profiler and of linkwise.
///
/// # Safety
/// `context` and `mask` are null or the addresses that NCCL passes.
unsafe fn init(api: u32, i: &Init, context: *mut *mut c_void, mask: *mut c_int) -> Status {
    // SAFETY: by the contract.
    let own = |context, mask| unsafe { own::init(api, i.id, i.rank, context, mask, i.logger) };
    if context.is_null() || mask.is_null() {
        return SUCCESS;
    }
    LOG.set(i.logger);
    let Some(site) = load_once(api) else { return own(context, mask) };
    let mut of_site = null_mut();
    let site_mask = MASK_OF_SITE.as_ptr();
    // SAFETY: the version of each table is that of its type; NCCL's arguments are passed on.
    let status = unsafe {
        match site.table.api {
            4 => {
                let init = (*site.table.table.cast::<Profiler<InitV4>>()).init;
                init(&mut of_site, site_mask, i.name, i.id, i.nodes, i.ranks, i.rank, i.logger)
            }
            _ => {
                let init = (*site.table.table.cast::<Profiler<InitV5>>()).init;
                init(&mut of_site, i.id, site_mask, i.name, i.nodes, i.ranks, i.rank, i.logger)
            }
        }
    };
    if status != SUCCESS {
        static SAID: AtomicBool = AtomicBool::new(false);
        of_site = null_mut();
        let name = &site.table.name;
        LOG.once(
            &SAID,
            &format!(
                "the site's profiler {name} ({}) fails with error {status}; communicators run without it, as they would without linkwise",
                site.table.library
            ),
        );
    }
    let mut of_own = null_mut();
    own(&mut of_own, MASK_OF_OWN.as_ptr());
    if of_site.is_null() && of_own.is_null() && status != SUCCESS {
        // SAFETY: the address of NCCL's context pointer.
        unsafe { *context = null_mut() };
        return SUCCESS;
    }
    MASK_OF_NCCL.store(mask, Ordering::Release);
    write_mask(
        MASK_OF_SITE.load(Ordering::Relaxed) & known(site.table.api) as c_int | MASK_OF_OWN.load(Ordering::Relaxed),
    );
    let skipped = status != SUCCESS;
    let both = Both { own: of_own, site: if skipped { without_provenance_mut(usize::MAX) } else { of_site } };
    // SAFETY: as above; `finalize` takes it back.
    unsafe { *context = Box::into_raw(Box::new(both)).cast() };
    SUCCESS
}

impl Both {
    /// The site's init failed for this communicator, so its plugin is not called.
    fn without_site(&self) -> bool {
        self.site.addr() == usize::MAX
    }
}

pub(crate) unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    name: *const c_char,
    id: u64,
    nodes: c_int,
    ranks: c_int,
    rank: c_int,
    logger: Logger,
) -> Status {
    let i = Init { id, name, nodes, ranks, rank, logger };
    // SAFETY: NCCL's arguments.
    unsafe { init(4, &i, context, mask) }
}
macro_rules! init_v5_and_later {
    ($($name:ident $api:literal),+) => {$(
        pub(crate) unsafe extern "C" fn $name(
            context: *mut *mut c_void,
            id: u64,
            mask: *mut c_int,
            name: *const c_char,
            nodes: c_int,
            ranks: c_int,
            rank: c_int,
            logger: Logger,
        ) -> Status {
            let i = Init { id, name, nodes, ranks, rank, logger };
            // SAFETY: NCCL's arguments.
            unsafe { init($api, &i, context, mask) }
        }
    )+};
}
init_v5_and_later!(init_v5 5, init_v6 6, init_v7 7);

/// The first members of an event. In v4 the type is one byte and the rest of the word is not set.
#[repr(C)]
struct Head {
    kind: u64,
    parent: *mut c_void,
    rank: c_int,
}
/// Offset of the launched group in events of collectives and of sends, from v5 on.
const GROUP_OF_COLL: usize = 104;
const GROUP_OF_P2P: usize = 64;

/// Starts an event in both plugins.
///
/// # Safety
/// NCCL's arguments: an event of the interface `V4` or of v5 and later, whose memory NCCL lends for the call.
unsafe fn start<const V4: bool>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    event: *const c_void,
    own: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> Status,
) -> Status {
    let Some(site) = loaded() else {
        // SAFETY: NCCL's arguments.
        return unsafe { own(context, handle, event) };
    };
    if handle.is_null() {
        return SUCCESS;
    }
    // SAFETY: the address of a pointer; `init` made the context; the event begins with its head.
    let (both, head) = unsafe {
        *handle = null_mut();
        (context.cast::<Both>().as_ref(), event.cast_mut().cast::<Head>())
    };
    let Some(both) = both.filter(|_| !head.is_null()) else { return SUCCESS };
    apply_masks();
    // SAFETY: v4 sets one byte of the word, later interfaces all of it.
    let kind = unsafe { if V4 { u64::from(*head.cast::<u8>()) } else { (*head).kind } };
    let wanted = with_parents(MASK_OF_SITE.load(Ordering::Relaxed) as u32 as u64) & known(site.table.api);
    let to_site = wanted & kind != 0 && !both.without_site();
    // SAFETY: the fields of the event's kind; the group is a member from v5 on.
    unsafe {
        let parent = (*head).parent;
        let group: *mut *mut c_void = match kind {
            COLL if !V4 => event.cast_mut().byte_add(GROUP_OF_COLL).cast(),
            P2P if !V4 => event.cast_mut().byte_add(GROUP_OF_P2P).cast(),
            _ => null_mut(),
        };
        let of_group = if group.is_null() { null_mut() } else { *group };
        let (parents, groups) = (site.handles.get(parent.addr()), site.handles.get(of_group.addr()));
        let reserved = if to_site { site.handles.reserve() } else { None };
        let (mut at_site, mut at_own) = (null_mut(), null_mut());
        let mut status = SUCCESS;
        if reserved.is_some() {
            (*head).parent = with_exposed_provenance_mut(parents.site);
            if !group.is_null() {
                *group = with_exposed_provenance_mut(groups.site);
                if site.table.api == 4 {
                    (*head).parent = *group;
                }
            }
            let start = (*site.table.table.cast::<Profiler<InitV5>>()).start;
            status = start(both.site, &mut at_site, event);
        }
        if !both.own.is_null() {
            (*head).parent = without_provenance_mut(parents.own);
            if !group.is_null() {
                *group = without_provenance_mut(groups.own);
            }
            own(both.own, &mut at_own, event);
        }
        (*head).parent = parent;
        if !group.is_null() {
            *group = of_group;
        }
        let pair = Pair { site: at_site.expose_provenance(), own: at_own.addr() };
        let number = match reserved {
            Some(slot) => site.handles.fill(slot, pair),
            None => Handles::own_alone(pair.own),
        };
        *handle = without_provenance_mut(number);
        status
    }
}

pub(crate) unsafe extern "C" fn start_v4(
    context: *mut c_void,
    handle: *mut *mut c_void,
    event: *const c_void,
) -> Status {
    // SAFETY: NCCL's arguments.
    unsafe { start::<true>(context, handle, event, own::start_v4) }
}
pub(crate) unsafe extern "C" fn start_v5(
    context: *mut c_void,
    handle: *mut *mut c_void,
    event: *const c_void,
) -> Status {
    // SAFETY: NCCL's arguments.
    unsafe { start::<false>(context, handle, event, own::start_v5) }
}

pub(crate) unsafe extern "C" fn stop(handle: *mut c_void) -> Status {
    // SAFETY: each plugin gets the handle that it made.
    unsafe {
        let Some(site) = loaded() else { return own::stop(handle) };
        let pair = site.handles.stop(handle.addr());
        if pair.own != 0 {
            own::stop(without_provenance_mut(pair.own));
        }
        if pair.site == 0 {
            return SUCCESS;
        }
        ((*site.table.table.cast::<Profiler<InitV5>>()).stop)(with_exposed_provenance_mut(pair.site))
    }
}

/// States of copy-engine events, from v6 on, and those of the groups of the API, from v5 on.
const CE_STATES: std::ops::RangeInclusive<c_int> = 25..=30;
const API_STATES: std::ops::RangeInclusive<c_int> = 23..=24;

pub(crate) unsafe extern "C" fn record(handle: *mut c_void, state: c_int, arguments: *const c_void) -> Status {
    // SAFETY: each plugin gets the handle that it made, and NCCL's arguments.
    unsafe {
        let Some(site) = loaded() else { return own::record(handle, state, arguments) };
        let pair = site.handles.get(handle.addr());
        if pair.own != 0 {
            own::record(without_provenance_mut(pair.own), state, arguments);
        }
        let lacks =
            (site.table.api < 6 && CE_STATES.contains(&state)) || (site.table.api < 5 && API_STATES.contains(&state));
        if pair.site == 0 || lacks {
            return SUCCESS;
        }
        let record = (*site.table.table.cast::<Profiler<InitV5>>()).record;
        record(with_exposed_provenance_mut(pair.site), state, arguments)
    }
}

pub(crate) unsafe extern "C" fn finalize(context: *mut c_void) -> Status {
    // SAFETY: `init` made the context, and NCCL returns it once; each plugin gets its own.
    unsafe {
        let Some(site) = loaded() else { return own::finalize(context) };
        if context.is_null() {
            return SUCCESS;
        }
        let both = Box::from_raw(context.cast::<Both>());
        if !both.own.is_null() {
            own::finalize(both.own);
        }
        if both.without_site() || both.site.is_null() {
            return SUCCESS; // NCCL finalizes only a context that is not null
        }
        ((*site.table.table.cast::<Profiler<InitV5>>()).finalize)(both.site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parents_of_requested_events_are_those_that_nccl_reports() {
        assert_eq!(with_parents(0), 0);
        assert_eq!(with_parents(COLL_API), COLL_API | GROUP_API);
        assert_eq!(with_parents(COLL), COLL | COLL_API | GROUP | GROUP_API);
        let tasks = COLL | P2P | COLL_API | P2P_API | GROUP | GROUP_API;
        assert_eq!(with_parents(KERNEL_CHANNEL), KERNEL_CHANNEL | tasks);
        assert_eq!(with_parents(NET_PLUGIN), NET_PLUGIN | PROXY_OP | PROXY_STEP | tasks);
        assert_eq!(with_parents(CE_SYNC), CE_SYNC | CE_COLL | COLL_API | GROUP_API);
        assert_eq!(with_parents(KERNEL_LAUNCH), KERNEL_LAUNCH | GROUP_API);
    }
}
