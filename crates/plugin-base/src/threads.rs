//! Threads that receive no signals: signals belong to the job's threads, and SIGXFSZ (file size limit) would end the process.

use std::ffi::c_int;
use std::io;
use std::thread::{Builder, JoinHandle};

/// `sigset_t`: 1024 bits in glibc and musl.
#[repr(C)]
struct Signals([u64; 16]);

unsafe extern "C" {
    fn pthread_sigmask(how: c_int, set: *const Signals, old: *mut Signals) -> c_int;
}
const SIG_SETMASK: c_int = 2;

/// Starts a thread with all signals blocked: a thread inherits the mask of its creator.
///
/// # Errors
/// The system starts no thread.
pub fn spawn<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    let (all, mut before) = (Signals([u64::MAX; 16]), Signals([0; 16]));
    // SAFETY: two signal sets; only the calling thread's mask changes, and it is restored.
    let changed = unsafe { pthread_sigmask(SIG_SETMASK, &all, &mut before) } == 0;
    let thread = Builder::new().name(name.into()).spawn(f);
    if changed {
        // SAFETY: as above.
        unsafe { pthread_sigmask(SIG_SETMASK, &before, std::ptr::null_mut()) };
    }
    thread
}

#[cfg(test)]
mod tests {
    /// The line of this thread's blocked signals.
    fn blocked() -> String {
        let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        text.lines().find(|l| l.starts_with("SigBlk:")).unwrap().to_owned()
    }

    #[test]
    fn a_thread_blocks_all_signals_and_its_creator_those_of_before() {
        let before = blocked();
        let inside = super::spawn("test", blocked).unwrap().join().unwrap();
        assert_eq!(blocked(), before);
        // SIGKILL and SIGSTOP, 9 and 19, cannot be blocked; the C library keeps 32 and 33 for itself.
        let mask = u64::from_str_radix(inside.trim_start_matches("SigBlk:").trim(), 16).unwrap();
        assert_eq!(mask | 1 << 8 | 1 << 18 | 1 << 31 | 1 << 32 | 1 << 33, u64::MAX, "{inside}");
    }
}
