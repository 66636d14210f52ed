//! Time of `test`, which NCCL calls for every request until it is done: `cargo bench --profile dev -p nccl-net`.

use linkwise_nccl_net::abi::calls::test;
use net::Request;
use std::hint::black_box;
use std::ptr::null_mut;
use std::time::Instant;

/// Calls between two readings of the clock, and readings.
const CALLS: u32 = 100;
const READINGS: usize = 20_000;

fn main() {
    let request = Request::default();
    let mut done = 0;
    let mut ns: Vec<f64> = (0..READINGS)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..CALLS {
                let request = black_box(std::ptr::from_ref(&request)).cast_mut().cast();
                // SAFETY: a request, and the address of an int.
                #[allow(unsafe_code)]
                black_box(unsafe { test(request, &mut done, null_mut()) });
            }
            begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
        })
        .collect();
    ns.sort_by(f64::total_cmp);
    println!("test of a pending request: median {:.1} ns, p99 {:.1} ns", ns[READINGS / 2], ns[READINGS * 99 / 100]);
}
