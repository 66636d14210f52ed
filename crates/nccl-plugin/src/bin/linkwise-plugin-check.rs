//! Loads the plugin as NCCL does, through every interface version that it exports, and prints what each returns: one JSON object per line.
//!
//! This is a separate program, because the library that it loads may crash, and the command `linkwise` contains no
//! `unsafe`.
//!
//! ```text
//! linkwise-plugin-check LIBRARY [CALLS]
//! linkwise-plugin-check --after NCCL LIBRARY [CALLS]     loads an NCCL library first, as in a job, and prints its version: {"nccl":22809}
//! linkwise-plugin-check --load LIBRARY...                only loads them, one after the other; the first one's version of NCCL, if it is one
//! linkwise-plugin-check --settings         reads the settings in the environment as the plugin does; exit code 2 and one line if one is wrong
//! ```

#![allow(unsafe_code)] // calls C functions through tables of pointers

use std::ffi::{CStr, CString, c_char, c_int, c_ulong, c_void};
use std::process::ExitCode;
use std::ptr::null_mut;

#[link(name = "dl")]
unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
    fn dlclose(handle: *mut c_void) -> c_int;
}
const RTLD_NOW: c_int = 2;

type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, *const c_char);
type InitV2 = unsafe extern "C" fn(usize, usize, Logger, *mut *mut c_void) -> c_int;
type InitV5 = unsafe extern "C" fn(*mut *mut c_void, u64, usize, usize, Logger, *const c_int, *mut f64) -> c_int;
type ChooseV2 =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, c_int, c_int, *mut c_int, *mut c_int, *mut c_int) -> c_int;
type ChooseV3 =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, *mut *mut f32, c_int, c_int, *mut c_int) -> c_int;
type ChooseV4 =
    unsafe extern "C" fn(*mut c_void, c_int, usize, c_int, *mut *mut f32, c_int, c_int, c_int, *mut c_int) -> c_int;
type Finish = unsafe extern "C" fn(*mut c_void) -> c_int;
type ProfilerInitV4 =
    unsafe extern "C" fn(*mut *mut c_void, *mut c_int, *const c_char, u64, c_int, c_int, c_int, Logger) -> c_int;
type ProfilerInitV5 =
    unsafe extern "C" fn(*mut *mut c_void, u64, *mut c_int, *const c_char, c_int, c_int, c_int, Logger) -> c_int;

/// The communicator's id in every call.
const COMMUNICATOR: u64 = 0x6c69_6e6b_7769_7365;

/// The first members of every table: name, init, then functions.
type Table = [*const c_void; 5];

/// NCCL's logger: prints the plugin's lines to standard error.
unsafe extern "C" fn logger(_: c_int, _: c_ulong, _: *const c_char, _: c_int, _: *const c_char, text: *const c_char) {
    // SAFETY: the plugin logs with "%s" and one text.
    eprintln!("{}", unsafe { CStr::from_ptr(text) }.to_string_lossy());
}

/// The result of one interface version.
#[derive(Default)]
struct TunerResult {
    context: bool,
    statuses_are_success: bool,
    changed_a_table: bool,
    touched_an_unavailable_table: bool,
    channels: c_int,
    calls: usize,
}

/// Costs of an H100 host: trees, rings and NVLS of AllReduce; the rest is unavailable.
fn costs() -> [f32; 21] {
    let mut t = [-1.0; 21];
    t[..6].copy_from_slice(&[60.0, 55.0, 70.0, 80.0, 65.0, 75.0]);
    t[14] = 50.0;
    t
}

/// A tuner that [`init_tuner`] has initialised.
struct Tuner {
    version: u32,
    choose: *const c_void,
    finish: *const c_void,
    context: *mut c_void,
}

/// Initialises the tuner of a table. Returns also whether it succeeded and whether it changed NCCL's constants.
fn init_tuner(version: u32, table: *const Table) -> (Tuner, bool, bool) {
    // SAFETY: the symbol names a table of this version: name, init, choose, finish.
    let [_, init, choose, finish, _] = unsafe { *table };
    let mut context = null_mut();
    let domains: [c_int; 3] = [1, 8, 8];
    let mut constants = [0.0f64; 159];
    // SAFETY: the signatures of this interface version.
    let status = unsafe {
        match version {
            2..=4 => std::mem::transmute::<*const c_void, InitV2>(init)(8, 1, logger, &mut context),
            _ => std::mem::transmute::<*const c_void, InitV5>(init)(
                &mut context,
                COMMUNICATOR,
                8,
                1,
                logger,
                domains.as_ptr(),
                constants.as_mut_ptr(),
            ),
        }
    };
    (Tuner { version, choose, finish, context }, status == 0, constants.iter().any(|c| *c != 0.0))
}

impl Tuner {
    /// One AllReduce. Returns the status and whether the plugin named an algorithm or a protocol (version 2).
    fn choose(&self, table: &mut [f32; 21], bytes: usize, pipelined: c_int, channels: &mut c_int) -> (c_int, bool) {
        const ALL_REDUCE: c_int = 4;
        let (mut algorithm, mut protocol) = (-1, -1);
        // SAFETY: the signatures of this interface version; the table is one block of 7 x 3 floats.
        let status = unsafe {
            let block = table.as_mut_ptr().cast::<*mut f32>();
            match self.version {
                2 => std::mem::transmute::<*const c_void, ChooseV2>(self.choose)(
                    self.context,
                    ALL_REDUCE,
                    bytes,
                    0,
                    1,
                    pipelined,
                    &mut algorithm,
                    &mut protocol,
                    channels,
                ),
                3 => std::mem::transmute::<*const c_void, ChooseV3>(self.choose)(
                    self.context,
                    ALL_REDUCE,
                    bytes,
                    pipelined,
                    block,
                    7,
                    3,
                    channels,
                ),
                _ => std::mem::transmute::<*const c_void, ChooseV4>(self.choose)(
                    self.context,
                    ALL_REDUCE,
                    bytes,
                    pipelined,
                    block,
                    7,
                    3,
                    0,
                    channels,
                ),
            }
        };
        (status, algorithm >= 0 || protocol >= 0)
    }

    fn finish(self) -> c_int {
        // SAFETY: the context of this table's `init`, which nothing uses afterwards.
        unsafe { std::mem::transmute::<*const c_void, Finish>(self.finish)(self.context) }
    }
}

/// Runs one tuner interface: init, `calls` pairs of calls (one with a usual table, one with nothing available), finish.
fn check_tuner(version: u32, table: *const Table, calls: usize) -> TunerResult {
    let (tuner, initialised, changed_constants) = init_tuner(version, table);
    let mut result = TunerResult {
        context: !tuner.context.is_null(),
        statuses_are_success: initialised,
        changed_a_table: changed_constants,
        ..TunerResult::default()
    };
    for i in 0..calls {
        let (mut table, mut channels) = (costs(), 0);
        let (status, chose) = tuner.choose(&mut table, 1 << (10 + i % 20), 1, &mut channels);
        result.statuses_are_success &= status == 0;
        result.changed_a_table |= table != costs() || chose;
        result.channels = result.channels.max(channels);
        let mut unavailable = [-1.0; 21];
        let (status, _) = tuner.choose(&mut unavailable, 1 << 20, (i % 2) as c_int, &mut channels);
        result.statuses_are_success &= status == 0;
        result.touched_an_unavailable_table |= unavailable != [-1.0; 21];
        result.calls += 2;
    }
    result.statuses_are_success &= tuner.finish() == 0;
    result
}

/// Runs one profiler interface: init, finalize. Returns success, the events that it requests, and whether it made a context.
fn check_profiler(version: u32, table: *const [*const c_void; 6]) -> (bool, c_int, bool) {
    // SAFETY: name, init, start, stop, record, finalize.
    let [_, init, _, _, _, finalize] = unsafe { *table };
    let (mut context, mut mask) = (null_mut(), 0);
    // SAFETY: the signatures of this version.
    let status = unsafe {
        match version {
            4 => std::mem::transmute::<*const c_void, ProfilerInitV4>(init)(
                &mut context,
                &mut mask,
                c"check".as_ptr(),
                COMMUNICATOR,
                1,
                8,
                0,
                logger,
            ),
            _ => std::mem::transmute::<*const c_void, ProfilerInitV5>(init)(
                &mut context,
                COMMUNICATOR,
                &mut mask,
                c"check".as_ptr(),
                1,
                8,
                0,
                logger,
            ),
        }
    };
    let has = !context.is_null();
    // SAFETY: as above.
    let end = unsafe { std::mem::transmute::<*const c_void, Finish>(finalize)(context) };
    (status == 0 && end == 0, mask, has)
}

/// Loads a library as NCCL loads plugins. After a failure its reason is on standard error.
fn open(path: &str) -> Option<*mut c_void> {
    let c_path = CString::new(path).ok()?;
    // SAFETY: a 0-terminated path; loading runs the library's code, which is the purpose of this program.
    let library = unsafe { dlopen(c_path.as_ptr(), RTLD_NOW) };
    if library.is_null() {
        // SAFETY: after a failure there is a text.
        eprintln!("{path}: {}", unsafe { CStr::from_ptr(dlerror()) }.to_string_lossy());
        return None;
    }
    Some(library)
}

/// A symbol of an open library, or null.
fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let Ok(name) = CString::new(name) else { return null_mut() };
    // SAFETY: an open library and a 0-terminated name.
    unsafe { dlsym(library, name.as_ptr()) }
}

/// Loads a library for good, and prints the version of NCCL that it is, if it is one.
fn open_nccl(path: &str) -> Option<*mut c_void> {
    let library = open(path)?;
    let get_version = symbol(library, "ncclGetVersion");
    if !get_version.is_null() {
        let mut version: c_int = 0;
        // SAFETY: NCCL's function of this name; it needs no GPU.
        let status = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_int) -> c_int>(get_version)(&mut version)
        };
        if status == 0 {
            println!("{{\"nccl\":{version}}}");
        }
    }
    Some(library)
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else {
        eprintln!("usage: linkwise-plugin-check LIBRARY [CALLS] | --settings");
        return ExitCode::from(2);
    };
    if path == "--settings" {
        let read = linkwise_nccl::config::Config::of_variables(std::env::vars_os().collect());
        return read.map_or_else(
            |e| {
                eprintln!("{e}");
                ExitCode::from(2)
            },
            |_| ExitCode::SUCCESS,
        );
    }
    if path == "--load" {
        return if args.all(|path| open_nccl(&path).is_some()) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let path = match path.as_str() {
        "--after" => match (args.next(), args.next()) {
            (Some(nccl), Some(path)) if open_nccl(&nccl).is_some() => path,
            (Some(_), Some(_)) => return ExitCode::FAILURE,
            _ => return ExitCode::from(2),
        },
        _ => path,
    };
    let calls = args.next().and_then(|c| c.parse().ok()).unwrap_or(100usize).min(10_000_000);
    let Some(library) = open(&path) else { return ExitCode::FAILURE };
    let symbol = |name: &str| symbol(library, name);
    let mut bad = false;
    // The profiler comes first, as in NCCL.
    for version in 1..=7u32 {
        let table = symbol(&format!("ncclProfiler_v{version}"));
        if table.is_null() || version < 4 {
            continue;
        }
        let (ok, mask, has) = check_profiler(version, table.cast());
        bad |= !ok;
        println!(
            "{{\"interface\":\"profiler\",\"version\":{version},\"success\":{ok},\"context\":{has},\"events\":{mask}}}"
        );
    }
    for version in 2..=7u32 {
        let table = symbol(&format!("ncclTunerPlugin_v{version}"));
        if table.is_null() {
            continue;
        }
        let s = check_tuner(version, table.cast(), calls);
        bad |= !s.statuses_are_success || s.touched_an_unavailable_table;
        println!(
            "{{\"interface\":\"tuner\",\"version\":{version},\"success\":{},\"context\":{},\"changed\":{},\"revived\":{},\"channels\":{},\"calls\":{}}}",
            s.statuses_are_success, s.context, s.changed_a_table, s.touched_an_unavailable_table, s.channels, s.calls
        );
    }
    // SAFETY: opened above; after finalize none of its code runs.
    unsafe { dlclose(library) };
    if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
