//! The one case in which a call waits: its rank is bound, and the verdict has not arrived. The worker writes the state once, and ends the process if
//! that is the setting.

use super::{LocalRank, Worker};
use crate::config::OnSilence;
use crate::trace::quoted;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// A call that waits this long is reported.
const DUMP_AFTER: Duration = Duration::from_secs(1);
/// A call that waits this long ends the process, with `on_silence = abort-process`.
const ABORT_AFTER: Duration = Duration::from_secs(30);

/// A rank's present wait.
#[derive(Debug, Default)]
pub(super) struct Silence {
    since: Option<Instant>,
    /// The state was written once; a second wait of the rank is like the first.
    dumped: bool,
}

impl Worker {
    pub(super) fn watch_silence(&mut self) {
        let mut longest = Duration::ZERO;
        let mut dump = false;
        for local in &mut self.local_ranks {
            if !local.comm.is_waiting() {
                local.silence.since = None;
                continue;
            }
            let waits = local.silence.since.get_or_insert_with(Instant::now).elapsed();
            longest = longest.max(waits);
            dump |= waits >= DUMP_AFTER && !std::mem::replace(&mut local.silence.dumped, waits >= DUMP_AFTER);
        }
        if dump {
            self.dump_state();
        }
        if longest >= ABORT_AFTER && self.config.on_silence == OnSilence::AbortProcess {
            let why = format!(
                "linkwise: a collective call has waited {} s for the verdict on new arms, the leading rank cannot be reached, and on_silence = \
                 abort-process: this process ends",
                longest.as_secs()
            );
            self.files.warn(why.as_str());
            self.dump_state();
            self.files.finish(Duration::from_secs(1));
            eprintln!("{why}");
            std::process::abort();
        }
    }

    /// Writes all communicators of this process beside the trace, or to the log.
    fn dump_state(&self) {
        let text = self.state();
        match &self.config.trace {
            Some(folder) => {
                let path = folder.join(format!("linkwise-state-{:016x}-{}.json", self.host, std::process::id()));
                self.files.warn(format!(
                    "a call waits for the verdict of its leading rank; the state is in {}",
                    path.display()
                ));
                self.files.write(path, text);
            }
            None => self.files.warn(format!("a call waits for the verdict of its leading rank: {}", text.trim_end())),
        }
    }

    /// All communicators of this process as one line of JSON.
    fn state(&self) -> String {
        let mut text =
            format!("{{\"process\":\"{:016x}\",\"pid\":{},\"communicators\":[", self.process, std::process::id());
        for (i, local) in self.local_ranks.iter().enumerate() {
            let leader = local.roster.as_ref().and_then(|(roster, _)| roster.members.first());
            let waits_ms = local.silence.since.map(|s| s.elapsed().as_millis());
            let _ = write!(
                text,
                "{}{{\"comm\":\"{:016x}\",\"rank\":{},\"ranks\":{},\"calls\":{},\"bound\":{},\"waits_ms\":{},\"leader\":{},\"silent\":{:?}}}",
                if i > 0 { "," } else { "" },
                local.comm.id,
                local.comm.rank,
                local.comm.ranks,
                local.comm.begun(),
                local.comm.is_bound(),
                waits_ms.map_or("null".into(), |ms| ms.to_string()),
                leader.map_or("null".into(), |l| quoted(&format!("{:016x}", l.process))),
                self.silent_members(local)
            );
        }
        text.push_str("]}\n");
        text
    }

    /// Of a communicator that this process leads: the ranks that have not answered, at most 32.
    fn silent_members(&self, local: &LocalRank) -> Vec<i32> {
        let led = self.led.iter().find(|l| l.roster.comm == local.comm.id && l.ordinal == local.comm.ordinal);
        let rank = |l: &super::LedCommunicator, i: usize| l.roster.members.get(i).map(|p| p.rank);
        led.map(|l| l.coordinator.unanswered().filter_map(|i| rank(l, i)).take(32).collect()).unwrap_or_default()
    }
}
