//! The tuner interface, v2 to v6. v7 (2.32.6) is not exported: no release available for tests confirms its layout, and
//! 2.32 accepts v6.

use super::{LOG, Logger, NAME, Name, Status, guarded, panic_if_tested};
use crate::comm::{Call, Comm};
use crate::cost_table::CostTable;
use crate::overhead::Entry;
use crate::process;
use crate::site::tuner as site;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::AtomicPtr;
use tune::{Algorithm, Collective, Protocol};

/// No release has more algorithms or protocols; a larger stride means an unknown table.
const STRIDE_MAX: c_int = 64;

pub(crate) type InitV2 = unsafe extern "C" fn(usize, usize, Logger, *mut *mut c_void) -> Status;
pub(crate) type InitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, usize, usize, Logger, *const NvlDomains, *mut c_void) -> Status;
pub(crate) type ChooseV2 =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut c_int, *mut c_int, *mut c_int) -> Status;
pub(crate) type ChooseV3 =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, *mut *mut f32, c_int, c_int, *mut c_int) -> Status;
pub(crate) type ChooseV4 =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, *mut *mut f32, c_int, c_int, c_int, *mut c_int) -> Status;
pub(crate) type Finish = unsafe extern "C" fn(*mut c_void) -> Status;
pub(crate) type ChunkSize = unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut usize) -> Status;

/// NCCL's view of NVLink domains.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NvlDomains {
    count: c_int,
    ranks_min: c_int,
    ranks_max: c_int,
}

macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $t:ty),+ }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug)]
        pub struct $name { pub(crate) name: Name, $(pub(crate) $field: $t),+ }
    };
}
table!(
    /// v2: 2.21.
    TunerV2 { init: InitV2, choose: ChooseV2, destroy: Finish }
);
table!(
    /// v3: 2.22 and 2.23.
    TunerV3 { init: InitV2, choose: ChooseV3, destroy: Finish }
);
table!(
    /// v4: 2.24 to 2.27.
    TunerV4 { init: InitV2, choose: ChooseV4, destroy: Finish }
);
table!(
    /// v5: 2.28 and 2.29.
    TunerV5 { init: InitV5, choose: ChooseV4, finalize: Finish }
);
table!(
    /// v6: 2.30 and later. `chunk_size` is null until the site's tuner has one ([`crate::site::tuner`]).
    TunerV6 { init: InitV5, choose: ChooseV4, finalize: Finish, chunk_size: AtomicPtr<()> }
);
const _: () = {
    assert!(size_of::<TunerV2>() == 32 && size_of::<TunerV5>() == 32 && size_of::<TunerV6>() == 40);
    assert!(std::mem::offset_of!(TunerV6, chunk_size) == 32 && size_of::<NvlDomains>() == 12);
};

// The exported functions ask the site's tuner first (`site::tuner`), then the functions of this file.
#[unsafe(no_mangle)]
pub(crate) static ncclTunerPlugin_v2: TunerV2 =
    TunerV2 { name: NAME, init: site::init_v2, choose: site::choose_v2, destroy: site::finish };
#[unsafe(no_mangle)]
pub(crate) static ncclTunerPlugin_v3: TunerV3 =
    TunerV3 { name: NAME, init: site::init_v3, choose: site::choose_v3, destroy: site::finish };
#[unsafe(no_mangle)]
pub(crate) static ncclTunerPlugin_v4: TunerV4 =
    TunerV4 { name: NAME, init: site::init_v4, choose: site::choose_v4, destroy: site::finish };
#[unsafe(no_mangle)]
pub(crate) static ncclTunerPlugin_v5: TunerV5 =
    TunerV5 { name: NAME, init: site::init_v5, choose: site::choose_v4, finalize: site::finish };
#[unsafe(no_mangle)]
pub(crate) static ncclTunerPlugin_v6: TunerV6 = TunerV6 {
    name: NAME,
    init: site::init_v6,
    choose: site::choose_v4,
    finalize: site::finish,
    chunk_size: AtomicPtr::new(null_mut()),
};

/// # Safety
/// `context` is null or the address of NCCL's context pointer.
pub(crate) unsafe fn init(
    api: u32,
    id: Option<u64>,
    ranks: usize,
    nodes: usize,
    logger: Logger,
    context: *mut *mut c_void,
) -> Status {
    if context.is_null() {
        return super::SUCCESS;
    }
    // SAFETY: by the contract. A null context means that the plugin opts out.
    unsafe { *context = null_mut() };
    guarded(Entry::Setup, || {
        LOG.set(logger);
        super::nccl::ask_version(logger);
        panic_if_tested();
        if let Some(comm) = process::tuner_init(api, id, ranks, nodes) {
            // SAFETY: as above. The list in `process` keeps it alive until `finish`.
            unsafe { *context = Arc::as_ptr(&comm).cast_mut().cast() };
        }
    })
}

/// The rank behind a context.
///
/// # Safety
/// `context` is null or was made by [`init`] and not yet passed to [`finish`].
unsafe fn comm<'a>(context: *mut c_void) -> Option<&'a Comm> {
    // SAFETY: by the contract it is null or points at a live `Comm`.
    unsafe { context.cast::<Comm>().as_ref() }
}

// The argument lists of `choose_*` repeat because they are NCCL's signatures.

pub(crate) unsafe extern "C" fn choose_v4(
    context: *mut c_void,
    collective: c_int,
    bytes: usize,
    pipelined: c_int,
    table: *mut *mut f32,
    algorithms: c_int,
    protocols: c_int,
    _registered: c_int, // known on this rank only: ranks may differ
    channels: *mut c_int,
) -> Status {
    // A null context means that there is nothing to do. With `pipelined` 0 the question does not concern a call
    // (symmetric kernels, 2.31 and later).
    if context.is_null() || pipelined <= 0 {
        return super::SUCCESS;
    }
    let mut status = super::SUCCESS;
    guarded(Entry::Decide, || {
        panic_if_tested();
        let sane = (1..=STRIDE_MAX).contains(&algorithms) && (1..=STRIDE_MAX).contains(&protocols);
        if table.is_null() || channels.is_null() || !sane || collective < 0 {
            return;
        }
        let (a, p) = (algorithms as usize, protocols as usize);
        // SAFETY: despite its type the table is one block of algorithms x protocols floats. NCCL waits for this
        // function to return.
        let costs = unsafe { std::slice::from_raw_parts_mut(table.cast::<f32>(), a * p) };
        // SAFETY: the context is ours (`init`), and `channels` is the address of one int.
        let (Some(comm), channels) = (unsafe { comm(context) }, unsafe { &mut *channels }) else { return };
        let Some(mut costs) = CostTable::new(costs, a, p) else { return };
        let call = Call { collective: collective as usize, bytes: bytes as u64 };
        if comm.call(call, &mut costs, channels, |text| LOG.warn(text)).is_err() {
            status = super::ABORTED;
        }
    });
    status
}

pub(crate) unsafe extern "C" fn choose_v2(
    context: *mut c_void,
    collective: c_int,
    bytes: usize,
    _collnet: c_int,
    _nvls: c_int,
    pipelined: c_int,
    algorithm: *mut c_int,
    protocol: *mut c_int,
    _channels: *mut c_int,
) -> Status {
    if context.is_null() || pipelined <= 0 {
        return super::SUCCESS;
    }
    let mut status = super::SUCCESS;
    guarded(Entry::Decide, || {
        panic_if_tested();
        let Ok(collective) = usize::try_from(collective) else { return };
        // SAFETY: the context is ours (`init`).
        let Some(comm) = (unsafe { comm(context) }) else { return };
        let Some(known) = Collective::tuned_of_number(collective) else { return };
        // This interface does not report which options are possible: request only those that always are, and none if the user has chosen.
        let can = |a, p| !user_has_chosen() && always_possible(known, (a, p));
        let call = Call { collective, bytes: bytes as u64 };
        let requested = comm.call_without_table(call, can, |text| LOG.warn(text)).unwrap_or_else(|_| {
            status = super::ABORTED;
            None
        });
        let Some((a, p)) = requested else { return };
        if algorithm.is_null() || protocol.is_null() {
            return;
        }
        // SAFETY: addresses of one int each.
        unsafe {
            *algorithm = a as c_int;
            *protocol = p as c_int;
        }
    });
    status
}

/// Rings support every collective, trees AllReduce; LL128 depends on the hardware.
fn always_possible(collective: Collective, (a, p): (Algorithm, Protocol)) -> bool {
    p != Protocol::Ll128 && (a == Algorithm::Ring || (a == Algorithm::Tree && collective == Collective::AllReduce))
}

fn user_has_chosen() -> bool {
    static CHOSEN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *CHOSEN.get_or_init(|| ["NCCL_ALGO", "NCCL_PROTO"].iter().any(|k| std::env::var_os(k).is_some()))
}

pub(crate) unsafe extern "C" fn finish(context: *mut c_void) -> Status {
    guarded(Entry::Setup, || {
        if context.is_null() {
            return;
        }
        process::tuner_finalize(context.cast::<Comm>().cast_const());
        panic_if_tested();
    })
}
