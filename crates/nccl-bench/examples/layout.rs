//! Prints the path of the file of structure offsets of an NCCL library, which the emulation reads.
//!
//! ```sh
//! cargo run -p nccl-bench --example layout -- libnccl.so.2
//! ```

use nccl_bench::Bench;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(library) = std::env::args_os().nth(1) else {
        eprintln!("usage: layout LIBNCCL");
        return ExitCode::from(2);
    };
    match Bench::new().and_then(|b| b.layout_of(library.as_ref())) {
        Ok(path) => {
            println!("{}", path.display());
            ExitCode::SUCCESS
        }
        Err(e) => {
            println!("error: {e}");
            ExitCode::from(3)
        }
    }
}
