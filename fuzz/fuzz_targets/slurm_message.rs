//! A line of the plugin in Slurm's controller: no panic; an answer is one line that the plugin's limits admit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slurm::message::{ANSWER_BYTES_MAX, FromPlugin, LINE_BYTES_MAX, ToPlugin, read, write};
use slurm::policy::{Policies, Wish};

fuzz_target!(|text: &str| {
    let (line, comment) = text.split_once('\n').unwrap_or((text, ""));
    if line.len() > LINE_BYTES_MAX {
        return;
    }
    if let Ok(FromPlugin::Ask(ask)) = read(line) {
        assert!(ask.gpus > 0 && ask.nodes_min > 0);
        for answer in [ToPlugin::Take(ask.free.clone()), ToPlugin::Wait, ToPlugin::Soon, ToPlugin::Pass] {
            let line = write(&ask, &answer, comment);
            assert!(line.len() <= ANSWER_BYTES_MAX + 1 && line.ends_with('\n') && line.matches('\n').count() == 1);
        }
    }
    let decided = Policies::default().of(&Wish { qos: String::new(), policy: Some(comment.to_owned()) });
    assert!(decided.ignored.is_none_or(|i| i.len() < 160 && !i.contains(['"', '\\', '\n'])));
});
