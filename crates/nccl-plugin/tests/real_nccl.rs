//! The plugin in the real NCCL library, on the bench.

mod common;

use common::{FIVE, decisions, meeting, run, spec, with_plugin};
use topology::Collective;
use topology::nccl::{Algorithm, Protocol};

/// The releases of the test; `LINKWISE_NCCL_VERSIONS` for others.
fn versions() -> Vec<String> {
    let said = std::env::var("LINKWISE_NCCL_VERSIONS").unwrap_or_else(|_| "2.24 2.28 2.30 2.32".into());
    said.split_whitespace().map(str::to_string).collect()
}

#[test]
fn a_plugin_that_is_off_changes_no_decision() {
    let name = "a_plugin_that_is_off_changes_no_decision";
    let sizes: Vec<u64> = (10..=30).step_by(4).map(|k| 1 << k).collect();
    for version in versions() {
        let plain = spec(&[8], &version).with_calls(&FIVE, &sizes);
        let Some(without) = run(name, &plain) else { return };
        for settings in [&[][..], &[("MODE", "off")], &[("MODE", "observe")]] {
            let with = run(name, &with_plugin(plain.clone(), settings)).unwrap();
            assert_eq!(decisions(&without), decisions(&with), "{version} {settings:?}");
        }
    }
}

#[test]
fn a_profile_is_obeyed_once_all_ranks_hold_it() {
    let name = "a_profile_is_obeyed_once_all_ranks_hold_it";
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile");
    std::fs::write(&profile, "AllReduce 1KiB max TREE/LL128@4\n").unwrap();
    for version in versions().iter().filter(|v| !v.starts_with("2.24")) {
        let sizes = vec![1 << 20; 400];
        let meeting = meeting(&version.replace('.', "-"));
        let settings = [
            ("MODE", "profile"),
            ("PROFILE", profile.to_str().unwrap()),
            ("MEETING", meeting.as_str()),
            ("KERNEL_TIMES", "0"),
        ];
        let s = with_plugin(spec(&[4], version).with_calls(&[Collective::AllReduce], &sizes), &settings);
        let Some(report) = run(name, &s) else { return };
        let last = report.decisions().last().unwrap();
        assert_eq!((last.algorithm, last.protocol, last.channels), (Algorithm::Tree, Protocol::Ll128, 4), "{version}");
    }
}
