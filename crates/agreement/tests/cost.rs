//! What the thread of a leader costs with hundreds of members over real sockets.
//!
//! `cargo test -p agreement --test cost -- --ignored --show-output`

#[allow(dead_code, reason = "shared with other tests")]
mod common;

use agreement::transport::Sockets;
use agreement::{Endpoint, Leader, Member, ProcessId, Rendezvous, Slot, SlotPlan, ToLeader, ToMember, TransportEvent};
use common::{PATIENCE, announcement, unique};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use wire::{Reader, Writer};

/// The worker's ticks while calls are made, and while none are.
const TICK: Duration = Duration::from_millis(5);
const TICK_IDLE: Duration = Duration::from_millis(50);
/// Time of one measurement.
const SPAN: Duration = Duration::from_secs(6);
const EPOCH_EVERY: Duration = Duration::from_secs(1);

/// Processor time of this thread, from the kernel's scheduler.
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().next().unwrap().parse().unwrap())
}

fn plans() -> Vec<SlotPlan> {
    let arm = tune::Arm::new(tune::Algorithm::Tree, tune::Protocol::Ll);
    let plan = |bytes| SlotPlan { slot: Slot::of(tune::Collective::AllReduce, bytes), runs: Vec::new(), settled: arm };
    (10..26).map(|log| plan(1 << log)).collect()
}

fn encode(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut w = Writer::default();
    write(&mut w);
    w.0
}

/// The members of other processes: they answer until told to end.
fn serve(mut ends: Vec<(Sockets, Member)>, leader: ProcessId, ends_now: &AtomicBool) {
    let mut events = Vec::new();
    while !ends_now.load(Ordering::Relaxed) {
        for (end, member) in &mut ends {
            end.poll(Duration::ZERO, &mut events);
            for event in events.drain(..) {
                let TransportEvent::Message { body, .. } = event else { continue };
                let message = ToMember::read(&mut Reader::new(&body)).unwrap();
                if let Some(answer) = member.on_message(&message, 0, |_| true) {
                    end.send(leader, &encode(|w| answer.write(w)));
                }
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Processor time of the leader's thread per second: idle between calls, idle while calls are made, and with an epoch a second; and the epochs.
fn cost_of(members: usize) -> ([f64; 3], u64) {
    let rendezvous = Rendezvous::Local(format!("{}-cost-{members}", std::process::id()));
    let ids: Vec<ProcessId> = (0..members as u64).map(|i| unique(members as u64 * 10_000 + i)).collect();
    let mut all: Vec<Sockets> =
        ids.iter().map(|id| Sockets::new(rendezvous.clone(), b"t", None, *id, 1).unwrap()).collect();
    for (i, end) in all.iter_mut().enumerate() {
        end.announce(announcement(1, i as i32, members as u32, ids[i]));
    }
    let (mut complete, begin, mut events) = (0, Instant::now(), Vec::new());
    while complete < members {
        assert!(begin.elapsed() < PATIENCE, "{complete} of {members} have a roster");
        all.iter_mut().for_each(|end| end.poll(Duration::ZERO, &mut events));
        complete += events.drain(..).filter(|e| matches!(e, TransportEvent::Complete(_))).count();
    }
    let others = all.split_off(1);
    let mut end = all.pop().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let served = others.into_iter().map(|end| (end, Member::default())).collect();
        scope.spawn(|| serve(served, ids[0], &stop));
        let mut leader = Leader::new(members, agreement::leader::REPEAT_US, agreement::leader::GIVE_UP_US);
        let (mut own, mut epochs) = (Member::default(), 0);
        let mut measure = |tick: Duration, with_epochs: bool| {
            let (begin, before) = (Instant::now(), thread_time());
            let mut due = begin;
            while begin.elapsed() < SPAN {
                let mut out = Vec::new();
                let now_us = begin.elapsed().as_micros() as u64;
                end.poll(tick, &mut events);
                for event in events.drain(..) {
                    let TransportEvent::Message { from, body } = event else { continue };
                    let position = ids.binary_search(&from).unwrap();
                    let message = ToLeader::read(&mut Reader::new(&body)).unwrap();
                    leader.on_message(position, &message, now_us, |to, m| out.push((to, m)));
                }
                leader.tick(now_us, |to, m| out.push((to, m)));
                if with_epochs && leader.is_idle() && Instant::now() >= due {
                    due += EPOCH_EVERY;
                    leader.propose(plans(), 0, now_us, |to, m| out.push((to, m)));
                }
                while !out.is_empty() {
                    let mut encoded: Option<(ToMember, Vec<u8>)> = None;
                    for (to, message) in std::mem::take(&mut out) {
                        if to == 0 {
                            if let Some(answer) = own.on_message(&message, 0, |_| true) {
                                leader.on_message(0, &answer, now_us, |to, m| out.push((to, m)));
                            }
                            continue;
                        }
                        if encoded.as_ref().is_none_or(|(m, _)| *m != message) {
                            let body = encode(|w| message.write(w));
                            encoded = Some((message, body));
                        }
                        end.send(ids[to], &encoded.as_ref().unwrap().1);
                    }
                }
                epochs += u64::from(leader.take_ended().is_some());
            }
            (thread_time() - before).as_secs_f64() / begin.elapsed().as_secs_f64()
        };
        let cost = [measure(TICK_IDLE, false), measure(TICK, false), measure(TICK, true)];
        stop.store(true, Ordering::Relaxed);
        (cost, epochs)
    })
}

#[test]
#[ignore = "takes a minute; prints processor time; make test-plugin-matrix runs it"]
fn an_idle_leader_costs_the_same_with_any_number_of_members() {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit = rustix::process::Rlimit { current: most.maximum, maximum: most.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let costs = [256, 512, 1024].map(|members| {
        let ([idle, calls, epochs], ended) = cost_of(members);
        println!(
            "{members} members: idle {:.2} %, while calls are made {:.2} %, with {ended} epochs in {} s {:.2} % of a core",
            100.0 * idle,
            100.0 * calls,
            SPAN.as_secs(),
            100.0 * epochs
        );
        [idle, calls, epochs]
    });
    let ratio = |i: usize| costs[2][i] / costs[0][i];
    assert!(ratio(0) < 3.0 && ratio(1) < 3.0, "four times the members, idle: {costs:?}");
    assert!(ratio(2) < 10.0, "four times the members, with epochs: {costs:?}");
}
