//! Settings, traces, status files and rendezvous folders on a file system that hangs.

mod common;

#[path = "../../plugin-base/tests/hanging/mod.rs"]
mod hanging;

use common::job::Job;
use hanging::Hanging;
use std::time::{Duration, Instant};

/// A job with one setting: time to the first call, time to end after the last one, and its log.
fn run(test: &str, settings: &[(&str, &str)]) -> Option<(Duration, Duration, String)> {
    let mut job = Job::new(test, 2)?;
    job.never_wait_for(1);
    let begin = Instant::now();
    job.start(0, Duration::from_millis(1), settings, |command| command);
    job.until("the first call", |job| job.begun(0) > 0);
    let to_first = begin.elapsed();
    job.until("calls are made", |job| job.begun(0) > 1000);
    assert!(job.longest(0) < Duration::from_millis(500), "a call took {:?}", job.longest(0));
    let begin = Instant::now();
    job.finish();
    Some((to_first, begin.elapsed(), job.log(0)))
}

/// Much less than a hang, and more than what a busy machine needs.
const MORE: Duration = Duration::from_secs(4);

#[test]
fn settings_on_a_file_system_that_hangs_mean_auto_with_one_line_and_delay_neither_begin_nor_end() {
    let name = "settings_on_a_file_system_that_hangs_mean_auto_with_one_line_and_delay_neither_begin_nor_end";
    let Some(mount) = Hanging::new(name) else { return };
    let file = mount.path().join("file");
    let file = file.to_str().unwrap();
    let Some((to_first, to_end, _)) = run(name, &[("MODE", "observe")]) else { return };
    let table = ("PROFILE", file);
    for (settings, key) in
        [(&[("MODE", "observe"), ("CONFIG", file)][..], file), (&[("MODE", "profile"), table][..], "LINKWISE_PROFILE")]
    {
        let (first, end, log) = run(name, settings).unwrap();
        assert!(first < to_first + MORE && end < to_end + MORE, "{key}: {first:?}, {end:?}");
        let lines: Vec<&str> = log.lines().filter(|l| !l.trim().is_empty()).collect();
        assert!(lines.len() == 1 && lines[0].contains(key) && lines[0].contains("the plugin stays off"), "{log}");
    }
}

#[test]
fn folders_on_a_file_system_that_hangs_delay_no_call_and_not_the_end_of_the_job() {
    let name = "folders_on_a_file_system_that_hangs_delay_no_call_and_not_the_end_of_the_job";
    let Some(mount) = Hanging::new(name) else { return };
    let folder = mount.path().join("folder");
    let folder = folder.to_str().unwrap();
    let rendezvous = common::rendezvous("hanging");
    let found = format!("folder:{folder}");
    let Some((to_first, to_end, _)) = run(name, &[("MODE", "adaptive"), ("RENDEZVOUS", &rendezvous)]) else { return };
    for (key, value) in [("TRACE", folder), ("STATUS", folder), ("STOP_FILE", folder), ("RENDEZVOUS", found.as_str())] {
        // The last of two equal settings counts.
        let settings = [("MODE", "adaptive"), ("RENDEZVOUS", rendezvous.as_str()), (key, value)];
        let (first, end, log) = run(name, &settings).unwrap();
        assert!(first < to_first + MORE && end < to_end + MORE, "{key}: {first:?}, {end:?}: {log}");
    }
}

#[test]
fn in_a_rendezvous_folder_that_answers_ranks_agree() {
    let name = "in_a_rendezvous_folder_that_answers_ranks_agree";
    let Some(mut job) = Job::new(name, 2) else { return };
    let table = job.folder().join("table");
    std::fs::write(&table, "AllReduce 1KiB max TREE/LL\n").unwrap();
    let rendezvous = format!("folder:{}/found", job.folder().display());
    for rank in 0..2 {
        let settings = [
            ("MODE", "profile"),
            ("PROFILE", table.to_str().unwrap()),
            ("RENDEZVOUS", rendezvous.as_str()),
            ("LEAD", "0"),
        ];
        job.start(rank, Duration::from_millis(1), &settings, |command| command);
    }
    job.until("the table is in force", |job| (0..2).all(|rank| job.arms(rank).last() == Some(&1)));
    job.finish();
    assert_eq!(job.difference(), None);
    let left = std::fs::read_dir(job.folder().join("found")).unwrap().count();
    assert_eq!(left, 0, "the job's folder was removed");
}
