//! A call waits in one case: its rank is bound, and the verdict has not arrived. The worker writes the state once, and ends the process if the setting
//! `on_silence` says so.

use super::Worker;
use crate::config::OnSilence;
use crate::status::DUMP_AFTER;
use std::time::Duration;

/// A call that waits this long ends the process, with `on_silence = abort-process`.
const ABORT_AFTER: Duration = Duration::from_secs(30);
/// Time for the last lines of a process that ends itself.
const ABORT_FILES_WAIT: Duration = Duration::from_secs(1);

impl Worker {
    pub(super) fn watch_silence(&mut self) {
        let mut longest = Duration::ZERO;
        let mut dump = false;
        for local in &mut self.local_ranks {
            let waits = local.comm.waiting_for().unwrap_or_default();
            longest = longest.max(waits);
            dump |= waits >= DUMP_AFTER && !std::mem::replace(&mut local.dumped, waits >= DUMP_AFTER);
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
            // Standard error may be closed, or a pipe that nothing reads: the process ends all the same.
            self.files.standard_error(why);
            self.files.finish(ABORT_FILES_WAIT);
            std::process::abort();
        }
    }

    /// Writes the snapshot of this process to the status folder, beside the trace, or to the log.
    fn dump_state(&self) {
        let snapshot = self.snapshot();
        let said = "a call waits for the verdict of its leading rank";
        match self.config.status.as_ref().or(self.config.trace.as_ref()) {
            Some(folder) => {
                let path = folder.join(snapshot.waiting_file());
                self.files.warn(format!("{said}; the state is in {}", path.display()));
                self.files.waiting(folder.clone(), snapshot);
            }
            None => self.files.warn(format!("{said}: {}", snapshot.json().trim_end())),
        }
    }
}
