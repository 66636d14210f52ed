//! The path of a call makes no allocation and no system call; its time with 256 communicators (target: under 200 ns at p99).

use agreement::{ArmRun, Epoch, Slot, SlotPlan, ToMember};
use linkwise_nccl::comm::{Call, Comm, Identity, RING_RECORDS, Role};
use linkwise_nccl::cost_table::CostTable;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tune::{Algorithm, Arm, Collective, Protocol};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator with a counter that does not allocate.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: passed on unchanged.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: passed on unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BYTES: u64 = 1 << 20;

fn comm(i: u64) -> Comm {
    let comm = Comm::new(Identity { id: i, ordinal: 0, rank: 0, ranks: 8, nodes: 1 }, Role::Tune, RING_RECORDS);
    let arm = Arm::new(Algorithm::Tree, Protocol::Ll128);
    let slot = Slot::of(Collective::AllReduce, BYTES);
    (0..2).for_each(|_| comm.note_entries(slot, 0b11_1111, 3)); // seen at AUTO
    let plan = SlotPlan { slot, runs: vec![ArmRun { arm, calls: 1 << 30 }], settled: arm };
    comm.on_message(&ToMember::Propose(Arc::new(Epoch::new(1, 0, vec![plan]))));
    comm.on_message(&ToMember::Commit(1));
    call(&comm); // crosses the boundary
    comm
}

#[inline]
fn call(comm: &Comm) -> [f32; 21] {
    let mut table = [-1.0f32; 21];
    table[..6].copy_from_slice(&[60.0, 55.0, 70.0, 80.0, 65.0, 75.0]);
    let mut channels = 0;
    if let Some(mut costs) = CostTable::new(black_box(&mut table), 7, 3) {
        comm.call(Call { collective: 4, bytes: black_box(BYTES) }, &mut costs, &mut channels, |_| {}).unwrap();
    }
    table
}

/// 99th percentiles over 25,600 calls each; the minimum of several rounds (other processes disturb), minus the cost of reading the clock: of the
/// plugin's call, and of a simple alternative, a table of communicators behind a lock.
fn p99_ns(comms: &[Comm]) -> (u128, u128) {
    const ROUNDS: usize = 40;
    let clock = (0..10_000).map(|_| Instant::now()).map(|t| t.elapsed().as_nanos()).min().unwrap_or(0);
    let n = comms.len();
    let plain_way: Mutex<BTreeMap<u64, [f32; 21]>> = Mutex::new((0..n as u64).map(|i| (i, [0.0; 21])).collect());
    let (mut ours, mut plain) = (u128::MAX, u128::MAX);
    let p99 = |times: &mut Vec<u128>| {
        times.sort_unstable();
        times[times.len() * 99 / 100]
    };
    for _ in 0..ROUNDS {
        let (mut times, mut plain_times) = (Vec::with_capacity(100 * n), Vec::with_capacity(100 * n));
        for round in 0..100 {
            for i in 0..n {
                let at = (i * 97 + round) % n;
                let before = ALLOCATIONS.get();
                let begin = Instant::now();
                black_box(call(&comms[at]));
                let took = begin.elapsed().as_nanos();
                assert_eq!(ALLOCATIONS.get(), before, "a call allocated");
                times.push(took.saturating_sub(clock));
                let begin = Instant::now();
                black_box(plain_way.lock().ok().and_then(|t| t.get(&black_box(at as u64)).copied()));
                plain_times.push(begin.elapsed().as_nanos().saturating_sub(clock));
            }
            if round % 25 == 24 {
                comms.iter().for_each(|c| while c.take_decision().is_some() {});
            }
        }
        ours = ours.min(p99(&mut times));
        plain = plain.min(p99(&mut plain_times));
    }
    (ours, plain)
}

#[test]
fn a_call_allocates_nothing_and_costs_little_more_than_a_lookup_with_256_communicators() {
    let comms: Vec<Comm> = (0..256).map(comm).collect();
    let (ours, plain) = p99_ns(&comms);
    comms.iter().for_each(Comm::set_timed);
    let (timed, _) = p99_ns(&comms);
    println!(
        "p99 of a decision with 256 communicators: {ours} ns (target 200), with the time in its record {timed} ns; a lookup behind a lock {plain} ns"
    );
    // A decision also reads, checks and writes a cost table and writes a record. An allocation or system call would cost far more.
    assert!(ours <= 8 * plain.max(20), "p99 {ours} ns, {plain} ns for a lookup behind a lock");
}

/// Runs calls on this thread under a filter that ends the thread at any system call except its exit. (Clock reads make no system call if the kernel
/// maps the clock into the process; otherwise they are allowed.) `None`: this kernel has no such filter.
fn without_system_calls(seconds_max: u64, work: impl FnOnce() + Send + 'static) -> Option<bool> {
    static STAGE: AtomicU32 = AtomicU32::new(0);
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    STAGE.store(0, Ordering::SeqCst);
    std::thread::spawn(move || {
        if !filtered() {
            STAGE.store(3, Ordering::SeqCst);
            return;
        }
        STAGE.store(1, Ordering::SeqCst);
        work();
        STAGE.store(2, Ordering::SeqCst);
        leave();
    });
    let begin = Instant::now();
    while STAGE.load(Ordering::SeqCst) < 2 && begin.elapsed().as_secs() < seconds_max {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    match STAGE.load(Ordering::SeqCst) {
        3 => None,
        stage => Some(stage == 2),
    }
}

#[test]
fn the_filter_ends_a_thread_that_makes_a_system_call() {
    let done = without_system_calls(1, || drop(black_box(std::fs::metadata("/"))));
    assert!(done != Some(true), "the tests below could not fail");
}

#[test]
fn a_call_makes_no_system_call() {
    for timed in [false, true] {
        let comm = comm(1);
        if timed {
            comm.set_timed();
        }
        call(&comm);
        let done = without_system_calls(10, move || {
            for _ in 0..60 {
                black_box(call(&comm)); // fewer than the ring holds: a full ring drops records
            }
            std::mem::forget(comm);
        });
        let Some(done) = done else {
            eprintln!("SKIP a_call_makes_no_system_call: this kernel has no filter of system calls");
            return;
        };
        assert!(done, "the kernel ended the thread; timed: {timed}");
    }
}

/// The interface as NCCL finds it: name, init, choose, finalize.
#[allow(unsafe_code)]
mod interface {
    use std::ffi::{c_int, c_void};
    use std::ptr::{null, null_mut};

    type Init = unsafe extern "C" fn(*mut *mut c_void, u64, usize, usize, usize, *const c_void, *mut c_void) -> c_int;
    type Choose =
        unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, *mut f32, c_int, c_int, c_int, *mut c_int) -> c_int;
    type Finish = unsafe extern "C" fn(*mut c_void) -> c_int;
    #[repr(C)]
    struct Tuner {
        name: *const c_void,
        init: Init,
        choose: Choose,
        finalize: Finish,
    }
    unsafe extern "C" {
        #[link_name = "ncclTunerPlugin_v6"]
        static TUNER: Tuner;
    }
    /// A communicator of 8 ranks.
    #[derive(Clone, Copy)]
    pub struct Context(*mut c_void);
    // SAFETY: NCCL also calls from any thread, one at a time.
    unsafe impl Send for Context {}

    pub fn init() -> Context {
        assert!(linkwise_nccl::process::interfaces().0 == 0, "the library is linked in");
        let mut context = null_mut();
        // SAFETY: the arguments of v6, without a logger.
        assert_eq!(unsafe { (TUNER.init)(&mut context, 77, 8, 1, 0, null(), null_mut()) }, 0);
        assert!(!context.is_null(), "the settings turn the plugin on");
        Context(context)
    }
    pub fn choose(context: Context) {
        let (mut table, mut channels) = ([-1.0f32; 21], 0);
        table[..6].copy_from_slice(&[60.0, 55.0, 70.0, 80.0, 65.0, 75.0]);
        // SAFETY: the arguments of v4 and later.
        let status = unsafe { (TUNER.choose)(context.0, 4, 1 << 20, 1, table.as_mut_ptr(), 7, 3, 0, &mut channels) };
        assert_eq!(status, 0);
    }
    pub fn finalize(context: Context) {
        // SAFETY: made above, passed back once.
        assert_eq!(unsafe { (TUNER.finalize)(context.0) }, 0);
    }
}

#[test]
fn the_entry_that_nccl_calls_allocates_nothing_and_makes_no_system_call() {
    let name = "the_entry_that_nccl_calls_allocates_nothing_and_makes_no_system_call";
    // In a separate process, since settings come from the environment.
    if std::env::var_os("LINKWISE_MODE").is_none() {
        let folder = tempfile::tempdir().unwrap();
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env("LINKWISE_MODE", "adaptive")
            .env("LINKWISE_GRAPHS", "none")
            .env("LINKWISE_SIMULATED_GROUPS", "none")
            .env("LINKWISE_RENDEZVOUS", format!("folder:{}", folder.path().display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        said.lines().filter(|l| l.starts_with("SKIP")).for_each(|l| eprintln!("{l}"));
        assert!(out.status.success(), "{} {said}", String::from_utf8_lossy(&out.stdout));
        return;
    }
    let context = interface::init();
    interface::choose(context); // per-thread setup
    let before = ALLOCATIONS.get();
    for _ in 0..2000 {
        interface::choose(context);
    }
    assert_eq!(ALLOCATIONS.get(), before, "an entry allocated");
    match without_system_calls(10, move || (0..2000).for_each(|_| interface::choose(context))) {
        None => eprintln!("SKIP {name}: this kernel has no filter of system calls"),
        Some(done) => assert!(done, "the kernel ended the thread"),
    }
    interface::finalize(context);
}

/// Installs the filter in this thread: seccomp in filter mode.
#[allow(unsafe_code)]
fn filtered() -> bool {
    #[repr(C)]
    struct Instruction {
        code: u16,
        if_true: u8,
        if_false: u8,
        k: u32,
    }
    #[repr(C)]
    struct Program {
        len: u16,
        instructions: *const Instruction,
    }
    unsafe extern "C" {
        fn prctl(option: i32, ...) -> i32;
    }
    let clock_gettime = if cfg!(target_arch = "aarch64") { 113 } else { 228 };
    let step = |code, if_true, k| Instruction { code, if_true, if_false: 0, k };
    const LOAD: u16 = 0x20;
    const IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let instructions = [
        step(LOAD, 0, 0), // the number of the system call
        step(IF_EQUAL, 2, clock_gettime),
        step(IF_EQUAL, 1, EXIT as u32),
        step(RETURN, 0, 0),           // ends this thread
        step(RETURN, 0, 0x7fff_0000), // allowed
    ];
    let program = Program { len: instructions.len() as u16, instructions: instructions.as_ptr() };
    // SAFETY: PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with a program that outlives the call.
    unsafe { prctl(38, 1u64, 0u64, 0u64, 0u64) == 0 && prctl(22, 2u64, &raw const program, 0u64, 0u64) == 0 }
}

/// Number of the system call `exit` of one thread, on x86-64 and aarch64.
const EXIT: i64 = if cfg!(target_arch = "aarch64") { 93 } else { 60 };

/// Ends only this thread, without its destructors.
#[allow(unsafe_code)]
fn leave() -> ! {
    unsafe extern "C" {
        fn syscall(number: i64, ...) -> i64;
    }
    loop {
        // SAFETY: takes a number.
        unsafe { syscall(EXIT, 0) };
    }
}
