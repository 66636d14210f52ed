//! The settings file lies on a file system that hangs.

#[path = "../../plugin-base/tests/hanging/mod.rs"]
mod hanging;

use hanging::Hanging;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Set in the process in which the plugin reads its settings.
const CHILD: &str = "LINKWISE_TEST_CHILD";

#[test]
fn a_settings_file_that_hangs_means_no_device_after_the_deadline() {
    let name = "a_settings_file_that_hangs_means_no_device_after_the_deadline";
    if std::env::var_os(CHILD).is_some() {
        assert!(linkwise_nccl_net::process::offer().nics.is_empty());
        return;
    }
    let Some(mount) = Hanging::new(name) else { return };
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CHILD, "1")
        .env("LINKWISE_NET", "tcp")
        .env("LINKWISE_NET_RAILS", "127.0.0.1,127.0.0.2")
        .env("LINKWISE_CONFIG", mount.path().join("file"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // Far longer than the deadline and a busy machine need.
    let until = Instant::now() + Duration::from_secs(20);
    let mut status = None;
    while status.is_none() && Instant::now() < until {
        status = child.try_wait().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    drop(mount); // a read that hangs in the kernel ends only with the mount
    let _ = child.wait();
    assert!(status.is_some_and(|s| s.success()), "{status:?}");
}
