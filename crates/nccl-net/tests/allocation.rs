//! A receive that NCCL posts, and the tests of its request, allocate nothing after the first one.

use linkwise_nccl_net::abi::calls::{accept, connect_v8, listen_v8, receive_v9, test};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::c_void;
use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

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

/// Set in the process that has the plugin's settings.
const CHILD: &str = "LINKWISE_TEST_CHILD";
/// Far longer than a connection takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls until a pointer is set.
fn until_set(mut call: impl FnMut(*mut *mut c_void) -> i32) -> *mut c_void {
    let begin = Instant::now();
    let mut made: *mut c_void = null_mut();
    while made.is_null() {
        assert_eq!(call(&mut made), 0);
        assert!(begin.elapsed() < PATIENCE);
    }
    made
}

#[allow(unsafe_code)]
fn receive_and_count() {
    let mut handle = [0u8; 128];
    let mut buffer = [0u8; 64];
    // SAFETY: the arguments of NCCL: a handle of 128 bytes, addresses of pointers, and lists of one member.
    unsafe {
        let at: *mut c_void = handle.as_mut_ptr().cast();
        let listener = until_set(|l| listen_v8(0, at, l));
        let (mut send, mut receive): (*mut c_void, *mut c_void) = (null_mut(), null_mut());
        let begin = Instant::now();
        while send.is_null() || receive.is_null() {
            if send.is_null() {
                assert_eq!(connect_v8(0, at, &mut send, null_mut()), 0);
            }
            if receive.is_null() {
                assert_eq!(accept(listener, &mut receive, null_mut()), 0);
            }
            assert!(begin.elapsed() < PATIENCE);
        }
        let data: [*mut c_void; 1] = [buffer.as_mut_ptr().cast()];
        let (sizes, tags) = ([buffer.len()], [7]);
        for round in 0..3 {
            let before = ALLOCATIONS.get();
            let (mut request, mut done): (*mut c_void, i32) = (null_mut(), 0);
            let status =
                receive_v9(receive, 1, data.as_ptr(), sizes.as_ptr(), tags.as_ptr(), std::ptr::null(), &mut request);
            assert_eq!((status, request.is_null()), (0, false));
            assert_eq!((test(request, &mut done, null_mut()), done), (0, 0));
            // The first receive of a connection makes its queues.
            assert!(round == 0 || ALLOCATIONS.get() == before, "round {round}: {}", ALLOCATIONS.get() - before);
        }
    }
    std::process::exit(0); // the connection has open requests
}

#[test]
fn a_receive_and_its_tests_allocate_nothing() {
    if std::env::var_os(CHILD).is_some() {
        return receive_and_count();
    }
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_receive_and_its_tests_allocate_nothing", "--nocapture"])
        .env(CHILD, "1")
        .env("LINKWISE_NET", "tcp")
        .env("LINKWISE_NET_RAILS", "127.0.0.1,127.0.0.2")
        .env_remove("LINKWISE_CONFIG")
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
