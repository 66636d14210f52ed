//! Communicators of this process that are made or end.

use super::messages::trace_finding;
use super::{ENDED_MAX, LedCommunicator, LocalRank, Worker, missing_ranks_text};
use crate::comm::{Comm, Role};
use crate::trace::quoted;
use agreement::{Announcement, MemberId, Roster, ToLeader};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

impl Worker {
    pub(super) fn on_joined(&mut self, comm: Arc<Comm>, owner: u64) {
        let kind = if comm.role() == Role::Job { "job" } else { "comm" };
        self.trace.line(format_args!(
            "{{\"kind\":\"{kind}\",\"comm\":\"{:016x}\",\"rank\":{},\"ordinal\":{},\"ranks\":{},\"nodes\":{}}}",
            comm.id, comm.rank, comm.ordinal, comm.ranks, comm.nodes
        ));
        if let Some(why) = comm.stays_at_auto() {
            self.trace_stays_auto(comm.id, why);
        }
        let mut local = LocalRank {
            comm,
            owner,
            announced: None,
            roster: None,
            recent: VecDeque::new(),
            readings: Vec::new(),
            in_step: VecDeque::new(),
            intervals: crate::rewards::Intervals::default(),
            doubt: None,
            left: false,
            dumped: false,
        };
        if matches!(local.comm.role(), Role::Tune | Role::Job) {
            if self.config.test.alone {
                // For tests: a roster of one.
                let me = MemberId { rank: local.comm.rank, process: self.process, ordinal: local.comm.ordinal };
                let roster = Arc::new(Roster { comm: local.comm.id, members: vec![me] });
                local.roster = Some((roster.clone(), 0));
                let coordinator = self.coordinator(1, &local.comm);
                let ordinal = local.comm.ordinal;
                self.lead(LedCommunicator { roster, ordinal, coordinator, traced_epoch: 0, leaving: false });
            } else if let Some(e) = &mut self.endpoint {
                e.announce(Announcement {
                    comm: self.keys.add(&self.config.token, local.comm.id),
                    rank: local.comm.rank,
                    size: local.comm.ranks,
                    host: self.host,
                    process: self.process,
                    ordinal: local.comm.ordinal,
                    settings: self.config.common(crate::abi::nccl::version()),
                });
                local.announced = Some(Instant::now());
            }
        }
        self.index.add_local(self.local_ranks.len(), &local);
        self.local_ranks.push(local);
    }

    pub(super) fn on_left(&mut self, comm: &Arc<Comm>) {
        let now = self.now_us();
        let mut last_messages = Vec::new();
        for led in self.led.iter_mut().filter(|l| l.roster.comm == comm.id && l.ordinal == comm.ordinal) {
            let mut out = Vec::new();
            led.coordinator.leave(now, &mut out);
            led.leaving = true;
            // Plans that moved no arm have changed the findings since the last epoch.
            led.coordinator.findings().for_each(|f| trace_finding(&mut self.trace, comm.id, led.traced_epoch, &f));
            last_messages.push((led.roster.clone(), out));
        }
        for (roster, out) in last_messages {
            self.deliver(&roster, out);
        }
        for local in self.local_ranks.iter_mut().filter(|l| Arc::ptr_eq(&l.comm, comm)) {
            local.left = true;
        }
    }

    pub(super) fn remove_left(&mut self) {
        // The job's member stays while it is bound: a later communicator of this process would wait for the verdict.
        let goes = |l: &LocalRank| l.left && !(l.comm.role() == Role::Job && l.comm.is_bound());
        let place = self.config.rendezvous.as_ref().map(ToString::to_string).unwrap_or_default();
        for local in self.local_ranks.iter().filter(|l| goes(l)) {
            if local.announced.is_some() && local.roster.is_none() {
                let why = quoted(&missing_ranks_text(local.comm.ranks, &place));
                self.trace
                    .line(format_args!("{{\"kind\":\"never\",\"comm\":\"{:016x}\",\"why\":{why}}}", local.comm.id));
            }
            let (waits, longest) = local.comm.waits();
            self.trace.line(format_args!(
                "{{\"kind\":\"end\",\"comm\":\"{:016x}\",\"rank\":{},\"calls\":{},\"lost\":{},\"waits\":{waits},\"longest_wait_us\":{}}}",
                local.comm.id,
                local.comm.rank,
                local.comm.begun(),
                local.comm.decisions_lost(),
                longest.as_micros()
            ));
        }
        if !self.local_ranks.is_empty() && self.local_ranks.iter().all(goes) {
            self.write_status_if_due(true);
        }
        // The leader proposes nothing more, and no rank is bound to a proposal that this one will not answer.
        let gone: Vec<(Arc<Roster>, usize, u32)> = self
            .local_ranks
            .iter()
            .filter(|l| goes(l))
            .filter_map(|l| l.roster.clone().map(|(roster, position)| (roster, position, l.comm.ordinal)))
            .collect();
        for (roster, position, ordinal) in gone {
            self.send_to_leader(&roster, position, &ToLeader::Left);
            if self.ended.len() == ENDED_MAX {
                self.ended.pop_front();
            }
            self.ended.push_back((roster, position, ordinal));
        }
        let left: Vec<u64> = self.local_ranks.iter().filter(|l| goes(l)).map(|l| l.comm.id).collect();
        self.local_ranks.retain(|l| !goes(l));
        let removed = left.len();
        for id in left {
            self.told.forget(id);
            if !self.local_ranks.iter().any(|l| l.comm.id == id)
                && let (Some(e), Some(name)) = (&mut self.endpoint, self.keys.name_of(id))
            {
                e.forget(name);
            }
        }
        let (local, ended) = (&self.local_ranks, &self.ended);
        if self.keys.len() > local.len() + ENDED_MAX {
            self.keys.retain(|comm| {
                local.iter().any(|l| l.comm.id == comm) || ended.iter().any(|(roster, ..)| roster.comm == comm)
            });
        }
        let before = (local.len() + removed, self.led.len());
        self.led.retain(|l| !(l.leaving && l.coordinator.is_idle()));
        if before != (self.local_ranks.len(), self.led.len()) {
            self.index.rebuild(&self.local_ranks, &self.led);
        }
    }
}
