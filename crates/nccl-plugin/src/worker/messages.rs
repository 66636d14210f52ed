//! Messages between the worker and other ranks: rosters, proposals, verdicts, readings and the stop.

use super::{LedCommunicator, LocalRank, Worker};
use crate::alike;
use crate::coordinator::{Finding, Outgoing};
use crate::envelope::{Head, Kind};
use crate::trace::{Trace, quoted};
use agreement::{Disagreement, ProcessId, Roster, ToLeader, ToMember, TransportEvent};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use wire::{Malformed, Reader, Writer};

/// Interval at which the stop is sent again.
const STOP_REPEAT_INTERVAL: Duration = Duration::from_secs(1);

impl Worker {
    pub(super) fn on_event(&mut self, event: TransportEvent) {
        match event {
            TransportEvent::Disagreed { comm: name, reason } => {
                let Some(comm) = self.keys.comm_of(name) else { return };
                let why = match reason {
                    Disagreement::Settings { differ } => {
                        format!(
                            "{reason}; they differ in {}; this rank has {}",
                            alike::differing(differ),
                            self.config.nccl
                        )
                    }
                    _ => reason.to_string(),
                };
                self.files.warn(format!("communicator {comm:016x} stays at AUTO: {why}"));
                self.trace_stays_auto(comm, &why);
            }
            TransportEvent::Complete(roster) => {
                if let Some(comm) = self.keys.comm_of(roster.comm) {
                    self.on_roster(Arc::new(Roster { comm, ..roster }));
                }
            }
            TransportEvent::Message { from, body } => {
                let _ = self.on_message(from, &body); // invalid messages are ignored
            }
        }
    }

    fn on_roster(&mut self, roster: Arc<Roster>) {
        for local in self.local_ranks.iter_mut().filter(|l| l.comm.id == roster.comm) {
            let me = |p: &agreement::MemberId| p.process == self.process && p.ordinal == local.comm.ordinal;
            let Some(position) = roster.members.iter().position(me) else { continue };
            if roster.members.len() == local.comm.ranks as usize && local.roster.is_none() {
                local.roster = Some((roster.clone(), position));
            }
        }
        let Some(first) = roster.members.first().copied().filter(|p| p.process == self.process) else { return };
        let at = self.index.local(roster.comm, first.ordinal);
        let Some(local) = at.and_then(|at| self.local_ranks.get(at)) else { return };
        if local.roster.is_some() && self.index.led(roster.comm).is_none() {
            let coordinator = self.coordinator(roster.members.len(), &local.comm);
            self.trace.line(format_args!(
                "{{\"kind\":\"roster\",\"comm\":\"{:016x}\",\"members\":{}}}",
                roster.comm,
                roster.members.len()
            ));
            self.lead(LedCommunicator { roster, ordinal: first.ordinal, coordinator, traced_epoch: 0, leaving: false });
        }
    }

    fn on_message(&mut self, from: ProcessId, body: &[u8]) -> Result<(), Malformed> {
        let (Head { kind, comm, who }, message) = self.keys.open(from, self.process, body)?;
        let mut r = Reader::new(message);
        match kind {
            Kind::ToMember => {
                let message = ToMember::read(&mut r)?;
                r.end()?;
                let leads = |l: &&LocalRank| {
                    l.roster.as_ref().is_some_and(|(r, _)| r.members.first().is_some_and(|p| p.process == from))
                };
                let at = self.index.local(comm, who);
                let Some(local) = at.and_then(|at| self.local_ranks.get(at)).filter(leads) else {
                    self.answer_for_ended(from, comm, who, &message);
                    return Ok(());
                };
                let answer = self.answer(local, &message);
                if let (Some(a), Some((_, position))) = (answer, &local.roster) {
                    let position = *position;
                    self.send_sealed(from, Head { kind: Kind::ToLeader, comm, who: position as u32 }, &bytes_of(&a));
                }
            }
            Kind::ToLeader => {
                let message = ToLeader::read(&mut r)?;
                r.end()?;
                self.on_leader_message(comm, who as usize, Some(from), &message);
            }
        }
        Ok(())
    }

    /// A rank's answer. A renewal of epochs is refused once this process has seen the stop: they lapse, whether or not the leader can be reached.
    fn answer(&self, local: &LocalRank, message: &ToMember) -> Option<ToLeader> {
        let stopped = matches!(message, ToMember::Ask(e) | ToMember::Propose(e) if self.stopped && (e.renews || !e.plans.is_empty()));
        if stopped || !super::allow::allows(&self.config, &local.comm, message) {
            let (ToMember::Ask(e) | ToMember::Propose(e)) = message else { return None };
            return Some(ToLeader::Refuse { epoch: e.number, begun: local.comm.begun() });
        }
        local.comm.on_message(message)
    }

    /// A rank whose communicator has ended waits for no verdict, and says so: other ranks would wait for its silence.
    fn answer_for_ended(&mut self, from: ProcessId, comm: u64, ordinal: u32, message: &ToMember) {
        let led = |(roster, _, o): &&(Arc<Roster>, usize, u32)| {
            roster.comm == comm && *o == ordinal && roster.members.first().is_some_and(|p| p.process == from)
        };
        let Some((_, position, _)) = self.ended.iter().rev().find(led) else { return };
        let head = Head { kind: Kind::ToLeader, comm, who: *position as u32 };
        let answer = confirmation(message).unwrap_or(ToLeader::Left);
        self.send_sealed(from, head, &bytes_of(&answer));
    }

    /// Sends a message to a rank in another process, closed with the communicator's key.
    fn send_sealed(&mut self, to: ProcessId, head: Head, message: &[u8]) {
        if let (Some(endpoint), Some(sealed)) = (&mut self.endpoint, self.keys.seal(self.process, to, head, message)) {
            endpoint.send(to, &sealed);
        }
    }

    /// Handles a message of a member, in this process or another, to a leader in this process.
    fn on_leader_message(&mut self, comm: u64, position: usize, from: Option<ProcessId>, message: &ToLeader) {
        let now = self.now_us();
        let from = from.unwrap_or(self.process);
        let Some(led) = self.index.led(comm).and_then(|at| self.led.get_mut(at)) else { return };
        if led.roster.members.get(position).is_none_or(|p| p.process != from) {
            return;
        }
        let mut out = Vec::new();
        led.coordinator.on_message(position, message, now, &mut out);
        let roster = led.roster.clone();
        self.send(&roster, out);
    }

    /// Delivers a leader's messages: directly to members in this process, whose answers it returns, and through the endpoint to others.
    pub(super) fn deliver(&mut self, roster: &Roster, out: Vec<Outgoing>) -> Vec<(usize, ToLeader)> {
        let mut answers = Vec::new();
        // All members get the same message: it is encoded once.
        let mut encoded: Option<(ToMember, Vec<u8>)> = None;
        for (position, message) in out {
            let Some(place) = roster.members.get(position) else { continue };
            if place.process == self.process {
                let at = self.index.local(roster.comm, place.ordinal);
                match at.and_then(|at| self.local_ranks.get(at)) {
                    Some(local) => answers.extend(self.answer(local, &message).map(|a| (position, a))),
                    // The member has left. It waits for no verdict, so it counts as confirmed.
                    None => answers.push((position, confirmation(&message).unwrap_or(ToLeader::Left))),
                }
            } else {
                if encoded.as_ref().is_none_or(|(m, _)| *m != message) {
                    let mut w = Writer::default();
                    message.write(&mut w);
                    encoded = Some((message, w.0));
                }
                let head = Head { kind: Kind::ToMember, comm: roster.comm, who: place.ordinal };
                let message = encoded.as_ref().map_or(&[][..], |(_, bytes)| bytes);
                self.send_sealed(place.process, head, message);
            }
        }
        answers
    }

    /// Delivers a leader's messages; answers of members in this process are handled at once.
    fn send(&mut self, roster: &Arc<Roster>, out: Vec<Outgoing>) {
        let mut out = out;
        // An answer may cause further messages: a commit follows the last acknowledgement.
        while !out.is_empty() {
            let answers = self.deliver(roster, std::mem::take(&mut out));
            let now = self.now_us();
            if let Some(led) = self.index.led_with(&self.led, roster).and_then(|at| self.led.get_mut(at)) {
                for (position, answer) in answers {
                    led.coordinator.on_message(position, &answer, now, &mut out);
                }
            }
        }
    }

    pub(super) fn check_stop_file(&mut self) {
        if !self.stopped
            && self.files.told.stop_file_exists.load(Ordering::Relaxed)
            && let Some(file) = &self.config.stop_file
        {
            self.stopped = true;
            self.files.info(format!("the stop file {} exists: all ranks return to AUTO", file.display()));
        }
        // Sent repeatedly: a message may be lost, and a communicator may join later.
        if self.stopped && self.stop_sent_at.is_none_or(|t| t.elapsed() >= STOP_REPEAT_INTERVAL) {
            self.stop_sent_at = Some(Instant::now());
            for i in 0..self.local_ranks.len() {
                let Some((roster, position)) = self.local_ranks.get(i).and_then(|l| l.roster.clone()) else { continue };
                self.send_to_leader(&roster, position, &ToLeader::Stop);
            }
        }
    }

    pub(super) fn send_to_leader(&mut self, roster: &Arc<Roster>, position: usize, message: &ToLeader) {
        let Some(leader) = roster.members.first() else { return };
        if leader.process == self.process && self.index.led(roster.comm).is_some() {
            // In test mode `alone` several leaders of one communicator may be here: take the one with the same roster.
            let now = self.now_us();
            let mut out = Vec::new();
            if let Some(led) = self.index.led_with(&self.led, roster).and_then(|at| self.led.get_mut(at)) {
                led.coordinator.on_message(position, message, now, &mut out);
            }
            self.send(roster, out);
        } else {
            let head = Head { kind: Kind::ToLeader, comm: roster.comm, who: position as u32 };
            self.send_sealed(leader.process, head, &bytes_of(message));
        }
    }

    pub(super) fn drive_coordinators(&mut self) {
        let now = self.now_us();
        for i in 0..self.led.len() {
            let Some(led) = self.led.get_mut(i) else { continue };
            let roster = led.roster.clone();
            let at = self.index.local(roster.comm, led.ordinal);
            let begun = at.and_then(|at| self.local_ranks.get(at)).map_or(0, |l| l.comm.begun());
            let mut out = Vec::new();
            led.coordinator.tick(begun, now, &mut out);
            for l in led.coordinator.drain_learned() {
                self.trace.line(format_args!(
                    "{{\"kind\":\"sample\",\"comm\":\"{:016x}\",\"collective\":\"{}\",\"bucket\":{},\"arm\":\"{}\",\"source\":\"{}\",\"time_us\":{:.3},\"calls\":{},\"steady\":{},\"fresh\":{}}}",
                    roster.comm,
                    l.slot.collective.capitals(),
                    l.slot.bucket,
                    l.arm,
                    format!("{:?}", l.source).to_lowercase(),
                    l.time_us,
                    l.calls,
                    l.is_steady,
                    l.is_fresh
                ));
            }
            if let Some((text, is_never)) = led.coordinator.news() {
                let line = format!("communicator {:016x}: {text}", roster.comm);
                match is_never {
                    true => self.files.warn(format!("{line}; exploring has stopped")),
                    false => self.files.info(line),
                }
                let kind = if is_never { "never" } else { "loop" };
                self.trace.line(format_args!(
                    "{{\"kind\":\"{kind}\",\"comm\":\"{:016x}\",\"why\":{}}}",
                    roster.comm,
                    quoted(&text)
                ));
            }
            if let Some(d) = led.coordinator.take_difference() {
                let ranks = d.members.map(|m| roster.members.get(m).map_or(-1, |p| p.rank));
                let why = format!(
                    "ranks {} and {} count different calls within the first {} calls: the communicator's arms stay as they are for the rest of the job, \
                     because ranks would change them at different calls (the stop file does not change them either)",
                    ranks[0], ranks[1], d.calls
                );
                self.files.warn(format!("communicator {:016x}: {why}", roster.comm));
                self.trace.line(format_args!(
                    "{{\"kind\":\"difference\",\"comm\":\"{:016x}\",\"calls\":{},\"ranks\":[{},{}],\"why\":{}}}",
                    roster.comm,
                    d.calls,
                    ranks[0],
                    ranks[1],
                    quoted(&why)
                ));
            }
            if led.coordinator.in_force() != led.traced_epoch {
                led.traced_epoch = led.coordinator.in_force();
                let table = led.coordinator.table().count();
                if table > 0 {
                    self.files.info(format!(
                        "communicator {:016x}: the table is in force from epoch {} on, for {table} sizes and collectives",
                        roster.comm, led.traced_epoch
                    ));
                }
                if led.coordinator.is_frozen() {
                    self.files
                        .info(format!("communicator {:016x}: exploring has ended; the arms found stay", roster.comm));
                }
                self.trace.line(format_args!(
                    "{{\"kind\":\"epoch\",\"comm\":\"{:016x}\",\"number\":{},\"at_us\":{now}}}",
                    roster.comm, led.traced_epoch
                ));
                for f in led.coordinator.findings() {
                    if let Some(line) = self.told.arm(roster.comm, f.slot, f.arm, led.traced_epoch, &f.because) {
                        self.files.info(line);
                    }
                    trace_finding(&mut self.trace, roster.comm, led.traced_epoch, &f);
                }
            }
            self.send(&roster, out);
        }
    }
}

/// Writes what is known of a slot's arms into the trace.
pub(super) fn trace_finding(trace: &mut Trace, comm: u64, epoch: u64, f: &Finding) {
    let or_null = |v: Option<f64>| v.map_or("null".to_owned(), |v| format!("{v:.5}"));
    trace.line(format_args!(
        "{{\"kind\":\"finding\",\"comm\":\"{comm:016x}\",\"epoch\":{epoch},\"collective\":\"{}\",\"bucket\":{},\"arm\":\"{}\",\"because\":{},\"spent_steps\":{:.3},\"gain\":{},\"gain_error\":{}}}",
        f.slot.collective.capitals(),
        f.slot.bucket,
        f.arm,
        quoted(&f.because),
        f.spent_steps,
        or_null(f.gain.map(|g| g.0)),
        or_null(f.gain.map(|g| g.1))
    ));
}

fn confirmation(message: &ToMember) -> Option<ToLeader> {
    match message {
        ToMember::Commit(epoch) | ToMember::Abort(epoch) => Some(ToLeader::Confirm { epoch: *epoch, begun: 0 }),
        _ => None,
    }
}

fn bytes_of(message: &ToLeader) -> Vec<u8> {
    let mut w = Writer::default();
    message.write(&mut w);
    w.0
}
