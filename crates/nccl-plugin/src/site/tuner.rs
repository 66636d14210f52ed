//! The site's tuner in front of linkwise's own functions ([`crate::abi::tuner`]).
//!
//! NCCL calls the functions of this file. They call the site's tuner with NCCL's arguments, converted where its interface is older, as NCCL itself
//! would convert them; then linkwise, which sees the table that the site's tuner left. Its cheapest entry is AUTO, and its channel count belongs to
//! that entry: an arm that changes the entry starts from NCCL's own count.
//!
//! An error of the site's tuner is returned to NCCL, as without linkwise. That includes init: a rank that went on without the tuner while others
//! have it would launch other algorithms than they do.

use super::find::Kind;
use super::library::{SiteTable, find};
use crate::abi::tuner as own;
use crate::abi::tuner::{ChunkSize, NvlDomains, TunerV2, TunerV3, TunerV4, TunerV5, TunerV6};
use crate::abi::{LOG, Logger};
use crate::abi::{SUCCESS, Status};
use crate::config::Mode;
use std::ffi::{c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

/// Largest number of algorithms or protocols of a table that linkwise reads.
const STRIDE_MAX: c_int = 64;
/// Entries from this cost on are a last resort.
const FORBIDDEN_US: f32 = 1e9;

static SITE: OnceLock<Option<SiteTable>> = OnceLock::new();
/// Addresses of the live contexts, so that a second finalize of one is ignored.
static LIVE: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A context that NCCL holds while the site has a tuner.
struct Both {
    /// Linkwise's context; null if it has nothing to do.
    own: *mut c_void,
    /// The site's context.
    site: *mut c_void,
}

/// The name of the site's tuner, if it is loaded.
pub fn name() -> Option<String> {
    loaded().map(|s| s.name.clone())
}

#[inline]
fn loaded() -> Option<&'static SiteTable> {
    SITE.get().and_then(Option::as_ref)
}

/// Loads the site's tuner at the first communicator; NCCL, too, loads a tuner once per process.
fn load_once(api: u32) -> Option<&'static SiteTable> {
    let ours = [from_ref(&own::ncclTunerPlugin_v2).cast(), from_ref(&own::ncclTunerPlugin_v6).cast::<c_void>()];
    SITE.get_or_init(|| find(Kind::Tuner, api, 2, &ours, "is asked before linkwise; its answer is AUTO")).as_ref()
}

/// The table of the site's tuner as one of the interface `T`.
///
/// # Safety
/// `site.api` is the version of `T`.
unsafe fn table<T>(site: &SiteTable) -> &T {
    // SAFETY: by the contract; the library stays loaded.
    unsafe { &*site.table.cast::<T>() }
}

/// Says once that NCCL has not loaded linkwise as its profiler, so that the one which the site names is not loaded either.
fn profiler_left_out() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) || crate::process::interfaces().1 > 0 {
        return;
    }
    let named = std::env::var(Kind::Profiler.kept_variable()).ok();
    if let Some(name) = named.filter(|n| !n.is_empty() && !n.eq_ignore_ascii_case("none")) {
        LOG.warn(&format!(
            "NCCL has not loaded linkwise as its profiler (it does from 2.27.3 on), so the site's profiler {name} is not loaded either"
        ));
    }
}

/// Arguments of init that all interfaces have.
struct Init {
    api: u32,
    id: u64,
    ranks: usize,
    nodes: usize,
    logger: Logger,
    domains: *const NvlDomains,
    constants: *mut c_void,
}

/// Init of the site's tuner, then of linkwise.
///
/// # Safety
/// `context` is null or the address of NCCL's context pointer; the other pointers are NCCL's.
unsafe fn init(i: &Init, context: *mut *mut c_void, own: impl FnOnce(*mut *mut c_void) -> Status) -> Status {
    if context.is_null() {
        return SUCCESS;
    }
    LOG.set(i.logger);
    profiler_left_out();
    let Some(site) = load_once(i.api) else { return own(context) };
    let mut of_site = null_mut();
    // SAFETY: the version of each table is that of its type; NCCL's arguments are passed on.
    let status = unsafe {
        match site.api {
            2 => (table::<TunerV2>(site).init)(i.ranks, i.nodes, i.logger, &mut of_site),
            3 => (table::<TunerV3>(site).init)(i.ranks, i.nodes, i.logger, &mut of_site),
            4 => (table::<TunerV4>(site).init)(i.ranks, i.nodes, i.logger, &mut of_site),
            5 => (table::<TunerV5>(site).init)(&mut of_site, i.id, i.ranks, i.nodes, i.logger, i.domains, i.constants),
            _ => {
                let t = table::<TunerV6>(site);
                if i.api >= 6 && !t.chunk_size.load(Ordering::Relaxed).is_null() {
                    // NCCL looks at this member at every plan.
                    own::ncclTunerPlugin_v6.chunk_size.store(chunk_size as ChunkSize as *mut (), Ordering::Relaxed);
                }
                (t.init)(&mut of_site, i.id, i.ranks, i.nodes, i.logger, i.domains, i.constants)
            }
        }
    };
    if status != SUCCESS {
        LOG.warn(&format!(
            "the site's tuner {} ({}) refuses the communicator with error {status}, which ends its creation as it would without linkwise",
            site.name, site.library
        ));
        return status;
    }
    let mut of_own = null_mut();
    let status = own(&mut of_own);
    let both = Box::into_raw(Box::new(Both { own: of_own, site: of_site }));
    LIVE.lock().unwrap_or_else(|e| e.into_inner()).push(both.addr());
    // SAFETY: the address of NCCL's context pointer.
    unsafe { *context = both.cast() };
    status
}

macro_rules! init {
    ($name:ident, $api:literal) => {
        pub(crate) unsafe extern "C" fn $name(
            ranks: usize,
            nodes: usize,
            logger: Logger,
            context: *mut *mut c_void,
        ) -> Status {
            let (domains, constants) = (std::ptr::null(), null_mut());
            let i = Init { api: $api, id: 0, ranks, nodes, logger, domains, constants };
            // SAFETY: NCCL's arguments.
            unsafe { init(&i, context, |c| own::init($api, None, ranks, nodes, logger, c)) }
        }
    };
    ($name:ident, $api:literal, with id) => {
        pub(crate) unsafe extern "C" fn $name(
            context: *mut *mut c_void,
            id: u64,
            ranks: usize,
            nodes: usize,
            logger: Logger,
            domains: *const NvlDomains,
            constants: *mut c_void,
        ) -> Status {
            let i = Init { api: $api, id, ranks, nodes, logger, domains, constants };
            // SAFETY: NCCL's arguments.
            unsafe { init(&i, context, |c| own::init($api, Some(id), ranks, nodes, logger, c)) }
        }
    };
}
init!(init_v2, 2);
init!(init_v3, 3);
init!(init_v4, 4);
init!(init_v5, 5, with id);
init!(init_v6, 6, with id);

/// A question with a cost table.
#[derive(Clone, Copy)]
struct Question {
    collective: c_int,
    bytes: usize,
    pipelined: c_int,
    table: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    registered: c_int,
    channels: *mut c_int,
}

impl Question {
    /// The table, if its size is one that a release has.
    ///
    /// # Safety
    /// The pointers are NCCL's, for the time of one call; no other reference to the table is in use.
    unsafe fn costs<'a>(&self) -> Option<&'a mut [f32]> {
        let sane = (1..=STRIDE_MAX).contains(&self.algorithms) && (1..=STRIDE_MAX).contains(&self.protocols);
        // SAFETY: despite its type the table is one block of algorithms x protocols floats.
        (sane && !self.table.is_null() && !self.channels.is_null()).then(|| unsafe {
            std::slice::from_raw_parts_mut(self.table.cast::<f32>(), (self.algorithms * self.protocols) as usize)
        })
    }
}

/// Asks the site's tuner through its interface.
///
/// # Safety
/// `q` has NCCL's pointers, `context` is the site's.
unsafe fn ask(site: &SiteTable, context: *mut c_void, q: &Question) -> Status {
    // SAFETY: by the contract; the version of each table is that of its type. v6 and v5 have v4's function.
    unsafe {
        match site.api {
            2 => ask_v2(table::<TunerV2>(site), context, q),
            3 => {
                let choose = table::<TunerV3>(site).choose;
                choose(context, q.collective, q.bytes, q.pipelined, q.table, q.algorithms, q.protocols, q.channels)
            }
            api => {
                let choose = match api {
                    4 => table::<TunerV4>(site).choose,
                    5 => table::<TunerV5>(site).choose,
                    _ => table::<TunerV6>(site).choose,
                };
                choose(
                    context,
                    q.collective,
                    q.bytes,
                    q.pipelined,
                    q.table,
                    q.algorithms,
                    q.protocols,
                    q.registered,
                    q.channels,
                )
            }
        }
    }
}

const NVLS: usize = 4;
const NVLS_TREE: usize = 5;
const COLLNET_CHAIN: usize = 3;
const SIMPLE: usize = 2;

/// Asks a tuner without a cost table as NCCL 2.22 and later do: what is supported follows from the table, and the entry that it chooses gets cost 0
/// unless NCCL ruled it out.
///
/// # Safety
/// As [`ask`].
unsafe fn ask_v2(t: &TunerV2, context: *mut c_void, q: &Question) -> Status {
    let (mut algorithm, mut protocol) = (-1, -1);
    // SAFETY: by the contract; the reference ends before the tuner is asked.
    let Some(costs) = (unsafe { q.costs() }) else { return SUCCESS };
    let columns = q.protocols as usize;
    let has = |a: usize| costs.get(a * columns + SIMPLE).is_some_and(|c| *c != -1.0);
    let (nvls, collnet) = (has(NVLS) || has(NVLS_TREE), has(COLLNET_CHAIN));
    // SAFETY: the site's context, and addresses of one int each.
    let status = unsafe {
        (t.choose)(
            context,
            q.collective,
            q.bytes,
            collnet.into(),
            nvls.into(),
            q.pipelined,
            &mut algorithm,
            &mut protocol,
            q.channels,
        )
    };
    let known = (0..q.algorithms).contains(&algorithm) && (0..q.protocols).contains(&protocol);
    if status == SUCCESS
        && known
        // SAFETY: by the contract.
        && let Some(costs) = unsafe { q.costs() }
        && let Some(cost) = costs.get_mut(algorithm as usize * columns + protocol as usize)
        && *cost != -1.0
    {
        *cost = 0.0;
    }
    status
}

/// The cheapest entry that NCCL would take; `None` if none is possible.
fn cheapest(costs: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (i, cost) in costs.iter().copied().enumerate() {
        if (0.0..FORBIDDEN_US).contains(&cost) && best.is_none_or(|b| cost < b.1) {
            best = Some((i, cost));
        }
    }
    best.map(|b| b.0)
}

/// Tuners prefer an entry by cost 0, below which no other arm can go. Such entries get a cost just below the cheapest other one: the same entry wins,
/// and the distances between costs stay those of NCCL.
fn lift_zero(costs: &mut [f32]) {
    if !costs.contains(&0.0) {
        return;
    }
    let others = costs.iter().copied().filter(|c| *c > 0.0 && *c < FORBIDDEN_US);
    let lifted = others.fold(f32::INFINITY, f32::min) * 0.999;
    if lifted.is_finite() && lifted > 0.0 {
        costs.iter_mut().filter(|c| **c == 0.0).for_each(|c| *c = lifted);
    }
}

/// True if linkwise may use other arms than AUTO.
fn acts() -> bool {
    static ACTS: OnceLock<bool> = OnceLock::new();
    *ACTS.get_or_init(|| matches!(crate::process::settings().mode, Mode::Profile | Mode::Adaptive))
}

/// Asks the site's tuner, then linkwise.
///
/// # Safety
/// NCCL's arguments; `context` was made by [`init`] while the site had a tuner.
unsafe fn choose(
    site: &SiteTable,
    context: *mut c_void,
    q: &Question,
    own: impl FnOnce(*mut c_void) -> Status,
) -> Status {
    // SAFETY: by the contract.
    let Some(both) = (unsafe { context.cast::<Both>().as_ref() }) else { return SUCCESS };
    // SAFETY: NCCL's arguments and the site's context.
    let status = unsafe { ask(site, both.site, q) };
    if status != SUCCESS || both.own.is_null() {
        return status;
    }
    if !acts() {
        return own(both.own);
    }
    // SAFETY: the references end before the next call.
    let Some(costs) = (unsafe { q.costs() }) else { return own(both.own) };
    lift_zero(costs);
    let auto = cheapest(costs);
    // SAFETY: `costs` checked that it is not null.
    let of_site = unsafe { q.channels.replace(0) };
    let status = own(both.own);
    // SAFETY: as above.
    unsafe {
        let same = q.costs().is_some_and(|costs| cheapest(costs) == auto);
        if same && *q.channels == 0 {
            *q.channels = of_site;
        }
    }
    status
}

// The argument lists repeat because they are NCCL's signatures.

pub(crate) unsafe extern "C" fn choose_v4(
    context: *mut c_void,
    collective: c_int,
    bytes: usize,
    pipelined: c_int,
    table: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    registered: c_int,
    channels: *mut c_int,
) -> Status {
    let own = |c: *mut c_void| {
        // SAFETY: NCCL's arguments and linkwise's context.
        unsafe { own::choose_v4(c, collective, bytes, pipelined, table, algorithms, protocols, registered, channels) }
    };
    let Some(site) = loaded() else { return own(context) };
    let q = Question { collective, bytes, pipelined, table, algorithms, protocols, registered, channels };
    // SAFETY: NCCL's arguments.
    unsafe { choose(site, context, &q, own) }
}

pub(crate) unsafe extern "C" fn choose_v3(
    context: *mut c_void,
    collective: c_int,
    bytes: usize,
    pipelined: c_int,
    table: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    channels: *mut c_int,
) -> Status {
    // SAFETY: v4 has one argument more, which a tuner of v3 does not get.
    unsafe { choose_v4(context, collective, bytes, pipelined, table, algorithms, protocols, 0, channels) }
}

pub(crate) unsafe extern "C" fn choose_v2(
    context: *mut c_void,
    collective: c_int,
    bytes: usize,
    collnet: c_int,
    nvls: c_int,
    pipelined: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    channels: *mut c_int,
) -> Status {
    let own = |c: *mut c_void| {
        // SAFETY: NCCL's arguments and linkwise's context.
        unsafe { own::choose_v2(c, collective, bytes, collnet, nvls, pipelined, algorithm, protocol, channels) }
    };
    let Some(site) = loaded() else { return own(context) };
    // SAFETY: `init` made the context.
    let Some(both) = (unsafe { context.cast::<Both>().as_ref() }) else { return SUCCESS };
    // SAFETY: only v2 is usable through v2. NCCL's arguments and the site's context.
    let status = unsafe {
        let choose = table::<TunerV2>(site).choose;
        choose(both.site, collective, bytes, collnet, nvls, pipelined, algorithm, protocol, channels)
    };
    if status != SUCCESS || both.own.is_null() || algorithm.is_null() || protocol.is_null() || channels.is_null() {
        return status;
    }
    // SAFETY: addresses of one int each.
    unsafe {
        let of_site = (*algorithm, *protocol);
        let status = own(both.own);
        if (*algorithm, *protocol) != of_site {
            *channels = 0; // the count belonged to the site's choice
        }
        status
    }
}

unsafe extern "C" fn chunk_size(
    context: *mut c_void,
    collective: c_int,
    bytes: usize,
    algorithm: c_int,
    protocol: c_int,
    channels: c_int,
    size: *mut usize,
) -> Status {
    // SAFETY: `init` made the context; this function is set only with a v6 tuner of the site that has its own.
    unsafe {
        let (Some(site), Some(both)) = (loaded(), context.cast::<Both>().as_ref()) else { return SUCCESS };
        let function = table::<TunerV6>(site).chunk_size.load(Ordering::Relaxed);
        if function.is_null() {
            return SUCCESS;
        }
        let function = std::mem::transmute::<*mut (), ChunkSize>(function);
        function(both.site, collective, bytes, algorithm, protocol, channels, size)
    }
}

pub(crate) unsafe extern "C" fn finish(context: *mut c_void) -> Status {
    let Some(site) = loaded() else {
        // SAFETY: linkwise's own context.
        return unsafe { own::finish(context) };
    };
    let alive = {
        let mut live = LIVE.lock().unwrap_or_else(|e| e.into_inner());
        live.iter().position(|a| *a == context.addr()).map(|at| live.swap_remove(at)).is_some()
    };
    if !alive {
        return SUCCESS;
    }
    // SAFETY: `init` made it, and the list had it once.
    let both = unsafe { Box::from_raw(context.cast::<Both>()) };
    // SAFETY: each context goes back to the plugin that made it.
    unsafe {
        own::finish(both.own);
        match site.api {
            2 => (table::<TunerV2>(site).destroy)(both.site),
            3 => (table::<TunerV3>(site).destroy)(both.site),
            4 => (table::<TunerV4>(site).destroy)(both.site),
            5 => (table::<TunerV5>(site).finalize)(both.site),
            _ => (table::<TunerV6>(site).finalize)(both.site),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_costs_nothing_wins_by_little_so_that_other_arms_can_be_preferred() {
        let mut costs = [20.0, 0.0, 10.0, -1.0, 2e9, 1024.0 * 15.0];
        lift_zero(&mut costs);
        assert!(costs[1] > 9.9 && costs[1] < 10.0, "{costs:?}");
        assert_eq!((cheapest(&costs), [costs[0], costs[2], costs[3], costs[4]]), (Some(1), [20.0, 10.0, -1.0, 2e9]));
        for unchanged in [[0.0, -1.0, 2e9], [1.0, 2.0, -1.0], [-1.0, -1.0, f32::NAN]] {
            let mut costs = unchanged;
            lift_zero(&mut costs);
            assert!(costs.iter().zip(unchanged).all(|(a, b)| a.to_bits() == b.to_bits()), "{costs:?}");
        }
    }
}
