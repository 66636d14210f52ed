//! A file on a file system that hangs.

mod hanging;

use hanging::Hanging;
use plugin_base::read::{FILE_BYTES_MAX, read_file_until};
use std::time::{Duration, Instant};

#[test]
fn a_file_that_hangs_is_given_up_at_the_deadline() {
    let Some(mount) = Hanging::new("a_file_that_hangs_is_given_up_at_the_deadline") else { return };
    let (done, result) = std::sync::mpsc::channel();
    let path = mount.path().join("file");
    std::thread::spawn(move || {
        _ = done.send(read_file_until(&path, FILE_BYTES_MAX, Instant::now() + Duration::from_millis(50)))
    });
    // Far longer than the deadline and a busy machine need.
    let read = result.recv_timeout(Duration::from_secs(60)).expect("the read ends before its file system");
    assert!(read.unwrap_err().contains("does its file system hang?"));
}
