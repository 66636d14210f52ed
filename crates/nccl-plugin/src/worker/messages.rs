//! What the worker says to other ranks and hears from them: rosters, proposals and verdicts, the stop.

use super::{Led, Local, Worker};
use crate::abi::log;
use crate::conductor::{Conductor, Out};
use crate::trace::quoted;
use agreement::{Endpoint, Event, ProcessId, Roster, ToLeader, ToMember};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Malformed, Reader, Writer};

const TO_MEMBER: u8 = 0;
const TO_LEADER: u8 = 1;
/// How often the stop file is looked for.
const STOP_LOOK: Duration = Duration::from_millis(200);
/// How often it is said that it is there.
const STOP_AGAIN: Duration = Duration::from_secs(1);

impl Worker {
    pub(super) fn take(&mut self, event: Event) {
        match event {
            Event::Never { comm, why } => {
                log::warn(&format!("communicator {comm:016x} stays at AUTO: {why}"));
                self.never(comm, &why.to_string());
            }
            Event::Complete(roster) => self.complete(Arc::new(roster)),
            Event::Message { from, body } => {
                let _ = self.message(from, &body); // nonsense is no message
            }
        }
    }

    fn complete(&mut self, roster: Arc<Roster>) {
        for local in self.locals.iter_mut().filter(|l| l.comm.id == roster.comm) {
            let me = |p: &agreement::Place| p.process == self.process && p.ordinal == local.comm.ordinal;
            let Some(position) = roster.places.iter().position(me) else { continue };
            if roster.places.len() == local.comm.ranks as usize && local.roster.is_none() {
                local.roster = Some((roster.clone(), position));
            }
        }
        let Some(first) = roster.places.first().copied().filter(|p| p.process == self.process) else { return };
        let Some(local) = self.locals.iter().find(|l| l.comm.id == roster.comm && l.comm.ordinal == first.ordinal)
        else {
            return;
        };
        if local.roster.is_some() && !self.led.iter().any(|l| l.roster.comm == roster.comm) {
            let conductor = Conductor::new(roster.places.len(), self.plan(&local.comm));
            self.trace.line(format_args!(
                "{{\"kind\":\"roster\",\"comm\":\"{:016x}\",\"members\":{}}}",
                roster.comm,
                roster.places.len()
            ));
            self.led.push(Led { roster, ordinal: first.ordinal, conductor, told: 0, leaving: false });
        }
    }

    fn message(&mut self, from: ProcessId, body: &[u8]) -> Result<(), Malformed> {
        let mut r = Reader::new(body);
        let (kind, comm, who) = (r.u8()?, r.u64()?, r.u32()?);
        match kind {
            TO_MEMBER => {
                let message = ToMember::read(&mut r)?;
                r.end()?;
                let leads = |l: &&Local| {
                    l.comm.id == comm
                        && l.comm.ordinal == who
                        && l.roster.as_ref().is_some_and(|(r, _)| r.places.first().is_some_and(|p| p.process == from))
                };
                let Some(local) = self.locals.iter().find(leads) else { return Ok(()) };
                let answer = local.comm.hear(&message);
                if let (Some(a), Some((_, position))) = (answer, &local.roster) {
                    let body = to_leader(comm, *position, &a);
                    if let Some(e) = &mut self.endpoint {
                        e.send(from, &body);
                    }
                }
            }
            TO_LEADER => {
                let message = ToLeader::read(&mut r)?;
                r.end()?;
                self.said_to_leader(comm, who as usize, Some(from), &message);
            }
            _ => return Err(Malformed("no such message between ranks")),
        }
        Ok(())
    }

    /// A member, of this process or another, says something to a leader of this process.
    fn said_to_leader(&mut self, comm: u64, position: usize, from: Option<ProcessId>, message: &ToLeader) {
        let now = self.now_us();
        let from = from.unwrap_or(self.process);
        let Some(led) = self.led.iter_mut().find(|l| l.roster.comm == comm) else { return };
        if led.roster.places.get(position).is_none_or(|p| p.process != from) {
            return;
        }
        let mut out = Vec::new();
        led.conductor.hear(position, message, now, &mut out);
        let roster = led.roster.clone();
        self.send(&roster, out);
    }

    /// Hands a leader's messages over; what members of this process answer goes back at once.
    fn send(&mut self, roster: &Arc<Roster>, out: Vec<Out>) {
        let mut out = out;
        // An answer can make the leader speak again: commit follows the last acknowledgement.
        while !out.is_empty() {
            let mut answers = Vec::new();
            deliver(&mut self.endpoint, &self.locals, self.process, roster, std::mem::take(&mut out), &mut answers);
            let now = self.now_us();
            if let Some(led) = self.led.iter_mut().find(|l| Arc::ptr_eq(&l.roster, roster)) {
                for (position, answer) in answers {
                    led.conductor.hear(position, &answer, now, &mut out);
                }
            }
        }
    }

    pub(super) fn look_for_stop(&mut self) {
        if !self.stopped
            && self.stop_looked.is_none_or(|t| t.elapsed() >= STOP_LOOK)
            && let Some(file) = &self.config.stop_file
        {
            self.stop_looked = Some(Instant::now());
            self.stopped = file.exists();
            if self.stopped {
                log::info(&format!("{} is there: back to AUTO", file.display()));
            }
        }
        // Again and again: a message may get lost, and a communicator may come later.
        if self.stopped && self.stop_said.is_none_or(|t| t.elapsed() >= STOP_AGAIN) {
            self.stop_said = Some(Instant::now());
            for i in 0..self.locals.len() {
                let Some((roster, position)) = self.locals.get(i).and_then(|l| l.roster.clone()) else { continue };
                self.tell_leader(&roster, position, &ToLeader::Stop);
            }
        }
    }

    pub(super) fn tell_leader(&mut self, roster: &Arc<Roster>, position: usize, message: &ToLeader) {
        let Some(leader) = roster.places.first() else { return };
        if leader.process == self.process && self.led.iter().any(|l| l.roster.comm == roster.comm) {
            // Alone, several leaders of one communicator may be here: the one with the same roster.
            let now = self.now_us();
            let mut out = Vec::new();
            if let Some(led) = self.led.iter_mut().find(|l| Arc::ptr_eq(&l.roster, roster)) {
                led.conductor.hear(position, message, now, &mut out);
            }
            self.send(roster, out);
        } else if let Some(e) = &mut self.endpoint {
            e.send(leader.process, &to_leader(roster.comm, position, message));
        }
    }

    pub(super) fn lead(&mut self) {
        let now = self.now_us();
        for i in 0..self.led.len() {
            let Some(led) = self.led.get_mut(i) else { continue };
            let roster = led.roster.clone();
            let mine = |l: &&Local| l.comm.id == roster.comm && l.comm.ordinal == led.ordinal;
            let begun = self.locals.iter().find(mine).map_or(0, |l| l.comm.begun());
            let mut out = Vec::new();
            led.conductor.tick(begun, now, &mut out);
            for l in led.conductor.take_learnt() {
                self.trace.line(format_args!(
                    "{{\"kind\":\"sample\",\"comm\":\"{:016x}\",\"collective\":\"{}\",\"bucket\":{},\"arm\":\"{}\",\"source\":\"{}\",\"time_us\":{:.3}}}",
                    roster.comm, l.slot.collective, l.slot.bucket, l.arm, format!("{:?}", l.source).to_lowercase(), l.time_us
                ));
            }
            if led.conductor.in_force() != led.told {
                led.told = led.conductor.in_force();
                self.trace.line(format_args!(
                    "{{\"kind\":\"epoch\",\"comm\":\"{:016x}\",\"number\":{},\"at_us\":{now}}}",
                    roster.comm, led.told
                ));
                for (slot, arm, because) in led.conductor.findings() {
                    self.trace.line(format_args!(
                        "{{\"kind\":\"finding\",\"comm\":\"{:016x}\",\"epoch\":{},\"collective\":\"{}\",\"bucket\":{},\"arm\":\"{arm}\",\"because\":{}}}",
                        roster.comm, led.told, slot.collective, slot.bucket, quoted(&because)
                    ));
                }
            }
            self.send(&roster, out);
        }
    }
}

/// Messages of a leader: to members of this process directly (their answers to `answers`), to others through the endpoint.
pub(super) fn deliver(
    endpoint: &mut Option<Box<dyn Endpoint>>,
    locals: &[Local],
    process: ProcessId,
    roster: &Arc<Roster>,
    out: Vec<Out>,
    answers: &mut Vec<(usize, ToLeader)>,
) {
    for (position, message) in out {
        let Some(place) = roster.places.get(position) else { continue };
        if place.process == process {
            let mine = |l: &&Local| l.comm.id == roster.comm && l.comm.ordinal == place.ordinal;
            match locals.iter().find(mine) {
                Some(local) => answers.extend(local.comm.hear(&message).map(|a| (position, a))),
                // It has gone: nobody there to wait for a verdict.
                None => answers.extend(confirmation(&message).map(|a| (position, a))),
            }
        } else if let Some(e) = endpoint {
            let mut w = Writer::default();
            message.write(w.u8(TO_MEMBER).u64(roster.comm).u32(place.ordinal));
            e.send(place.process, &w.0);
        }
    }
}

fn confirmation(message: &ToMember) -> Option<ToLeader> {
    match message {
        ToMember::Commit(epoch) | ToMember::Abort(epoch) => Some(ToLeader::Confirm { epoch: *epoch, begun: 0 }),
        ToMember::Propose(_) => None,
    }
}

fn to_leader(comm: u64, position: usize, message: &ToLeader) -> Vec<u8> {
    let mut w = Writer::default();
    message.write(w.u8(TO_LEADER).u64(comm).u32(position as u32));
    w.0
}
