//! The worker's view for operators: one line in NCCL's log when an arm changes, and the snapshots of [`crate::status`].

use super::Worker;
use crate::status::{CommStatus, INTERVAL, SlotStatus, StatusSnapshot};
use agreement::Slot;
use std::collections::BTreeMap;
use std::time::Instant;
use tune::Arm;

/// Limit on remembered arms: slots of all communicators that the process leads.
const ARMS_MAX: usize = 16_384;

/// The state that operators know from the log.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// By communicator and slot: the arm in use.
    arms: BTreeMap<(u64, Slot), Arm>,
    changes: u64,
    written_at: Option<Instant>,
}

impl Told {
    /// The arm of a slot from an epoch on. Returns the line for the log if it has changed.
    pub fn arm(&mut self, comm: u64, slot: Slot, arm: Arm, epoch: u64, because: &str) -> Option<String> {
        let known = self.arms.get(&(comm, slot)).copied();
        if known.is_none() && self.arms.len() >= ARMS_MAX {
            return None;
        }
        self.arms.insert((comm, slot), arm);
        let before = known.unwrap_or(Arm::AUTO);
        (before != arm).then(|| {
            self.changes += 1;
            let size = size_text(tune::bucket::middle(slot.bucket));
            format!(
                "communicator {comm:016x}: {} of about {size}: {before} -> {arm} from epoch {epoch} on: {because}",
                slot.collective.capitals()
            )
        })
    }

    /// The communicator has ended.
    pub fn forget(&mut self, comm: u64) {
        self.arms.retain(|(c, _), _| *c != comm);
    }
}

/// A size in the largest unit that divides it.
fn size_text(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 => format!("{} GiB", b >> 30),
        b if b >= 1 << 20 => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

impl Worker {
    /// Writes a snapshot if the setting `status` names a folder and one is due. Only processes that lead a communicator, or hold its rank 0, or in
    /// which a call waits have something to tell.
    pub(super) fn write_status_if_due(&mut self, last: bool) {
        let Some(folder) = self.config.status.clone() else { return };
        if !last && self.told.written_at.is_some_and(|t| t.elapsed() < INTERVAL) {
            return;
        }
        self.told.written_at = Some(Instant::now());
        let snapshot = self.snapshot();
        let tells = |c: &CommStatus| c.leads || c.rank == 0 || c.waiting_us.is_some();
        if !snapshot.comms.iter().any(tells) {
            return;
        }
        self.files.status(folder, snapshot);
    }

    pub(super) fn snapshot(&self) -> StatusSnapshot {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let mut snapshot = StatusSnapshot {
            at_unix_s: since_1970.map_or(0, |t| t.as_secs()),
            job: self.config.job,
            host: self.host,
            host_name: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            pid: std::process::id(),
            mode: format!("{:?}", self.config.mode).to_lowercase(),
            policy: self.config.policy.clone(),
            site_tuner: crate::site::names().0,
            stopped: self.stopped,
            frozen: !self.led.is_empty() && self.led.iter().all(|l| l.coordinator.is_frozen()),
            changes: self.told.changes,
            ..StatusSnapshot::default()
        };
        for local in &self.local_ranks {
            let comm = &local.comm;
            let at = local.roster.as_ref().and_then(|(roster, _)| self.index.led_by(roster, comm.ordinal));
            let led = at.and_then(|at| self.led.get(at));
            let (waits, longest) = comm.waits();
            let rank_of = |position: usize| led.and_then(|l| l.roster.members.get(position)).map_or(-1, |m| m.rank);
            let slot = |(slot, arm, because): (Slot, Arm, String)| SlotStatus {
                collective: slot.collective.capitals(),
                size_bytes: tune::bucket::middle(slot.bucket),
                arm: arm.to_string(),
                because,
            };
            snapshot.comms.push(CommStatus {
                id: comm.id,
                rank: comm.rank,
                ranks: comm.ranks,
                nodes: comm.nodes,
                leads: led.is_some(),
                calls: comm.begun(),
                epoch: comm.epoch(),
                waits,
                longest_wait_us: longest.as_micros() as u64,
                waiting_us: comm.waiting_for().map(|t| t.as_micros() as u64),
                dropped: comm.decisions_lost(),
                silent: led.map_or(Vec::new(), |l| l.coordinator.unanswered().map(rank_of).collect()),
                slots: led.map_or(Vec::new(), |l| {
                    let table = l.coordinator.table().map(|(slot, arm)| (slot, arm, "the table".to_string()));
                    let found = l.coordinator.findings().map(|f| (f.slot, f.arm, f.because));
                    found.chain(table).map(slot).collect()
                }),
            });
        }
        snapshot.limit();
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tune::{Algorithm, Collective, Protocol};

    #[test]
    fn a_change_of_an_arm_is_told_once_with_both_arms_and_the_reason() {
        let mut told = Told::default();
        let slot = Slot::of(Collective::AllReduce, 1 << 20);
        let ring = Arm::new(Algorithm::Ring, Protocol::Ll);
        assert_eq!(told.arm(1, slot, Arm::AUTO, 1, "nothing tried"), None, "AUTO is how a communicator begins");
        let line = told.arm(1, slot, ring, 2, "50 us against 100 us").unwrap();
        assert_eq!(
            line,
            "communicator 0000000000000001: ALLREDUCE of about 1 MiB: AUTO -> RING/LL from epoch 2 on: 50 us against 100 us"
        );
        assert_eq!(told.arm(1, slot, ring, 3, "51 us against 100 us"), None);
        assert!(told.arm(2, slot, ring, 1, "x").is_some(), "another communicator");
        assert!(told.arm(1, slot, Arm::AUTO, 4, "slower").unwrap().contains("RING/LL -> AUTO"));
        assert_eq!(told.changes, 3);
        told.forget(2);
        assert!(told.arm(2, slot, ring, 1, "x").is_some());
    }
}
