//! Model checking of every schedule of two small instances: two ranks with two proposals, three ranks with one proposal. Every message may be lost,
//! late or duplicated, in any order; every process may stop at any point.

use agreement::{CallAction, Leader, Member, ToLeader, ToMember};
use stateright::{Checker, Model, Property};
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    leader: Leader,
    members: Vec<Member>,
    begun: Vec<u64>,
    /// A call has begun and waits for the verdict.
    waits: Vec<bool>,
    in_force: Vec<u64>,
    /// Epoch of each call, by rank.
    used: Vec<Vec<u64>>,
    proposed: u64,
    /// Epochs that the leader has committed.
    committed: BTreeSet<u64>,
    /// All messages sent so far. Each may arrive at any time and repeatedly; one that never arrives is lost.
    sent: BTreeSet<(bool, usize, Vec<u8>)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Call(usize),
    Propose,
    GiveUp,
    Deliver(bool, usize, Vec<u8>),
}

/// The protocol, or the protocol with one rule broken, to show that the checker finds the schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// The crate's protocol.
    Agreed,
    /// A rank uses a proposal on arrival.
    AsItArrives,
    /// A bound rank that reaches the first call without a verdict continues with its arms.
    GuessesVoid,
    /// A bound rank that reaches the first call without a verdict treats the proposal as committed.
    GuessesInForce,
    /// A rank that has begun the first call acknowledges anyway.
    NoVeto,
    /// The leader decides without the last rank's acknowledgement.
    OneIsMissing,
}

struct Job {
    rule: Rule,
    /// The first one leads.
    ranks: usize,
    /// Calls per rank.
    calls: u64,
    proposals: u64,
}

impl State {
    /// Messages of the leader reach its own rank at once, as in the plugin, and enter the network for the others.
    fn send_pending(&mut self, messages: Vec<(usize, ToMember)>, rule: Rule) {
        for (to, m) in messages {
            if to == 0 {
                if let Some(answer) = self.deliver(0, &m, rule) {
                    self.on_answer(0, &answer, rule);
                }
            } else {
                let mut w = wire::Writer::default();
                m.write(&mut w);
                self.sent.insert((true, to, w.0));
            }
        }
    }

    fn deliver(&mut self, i: usize, message: &ToMember, rule: Rule) -> Option<ToLeader> {
        if let (Rule::AsItArrives, ToMember::Propose(e)) = (rule, message) {
            self.in_force[i] = e.number;
        }
        let begun = self.begun[i];
        let answer = self.members[i].on_message(message, if rule == Rule::NoVeto { 0 } else { begun }, |_| true);
        // The reported count only helps the leader to choose the first call. Here the leader knows no more than its own count, the worst case.
        answer.map(|a| match a {
            ToLeader::Ack { epoch, .. } => ToLeader::Ack { epoch, begun: 0 },
            ToLeader::Refuse { epoch, .. } => ToLeader::Refuse { epoch, begun: 0 },
            ToLeader::Confirm { epoch, .. } => ToLeader::Confirm { epoch, begun: 0 },
            other => other,
        })
    }

    fn on_answer(&mut self, i: usize, message: &ToLeader, rule: Rule) {
        let mut out = Vec::new();
        self.leader.on_message(i, message, 0, |to, m| out.push((to, m)));
        if let (Rule::OneIsMissing, ToLeader::Ack { .. }) = (rule, message) {
            self.leader.on_message(self.members.len() - 1, message, 0, |to, m| out.push((to, m)));
        }
        self.committed.extend(self.leader.take_ended().filter(|e| e.committed).map(|e| e.epoch.number));
        self.send_pending(out, rule);
    }
}

impl Model for Job {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            leader: Leader::new(self.ranks, u64::MAX, 10).ahead(1),
            members: vec![Member::default(); self.ranks],
            begun: vec![0; self.ranks],
            waits: vec![false; self.ranks],
            in_force: vec![0; self.ranks],
            used: vec![Vec::new(); self.ranks],
            proposed: 0,
            committed: BTreeSet::new(),
            sent: BTreeSet::new(),
        }]
    }

    fn actions(&self, s: &State, actions: &mut Vec<Action>) {
        actions.extend((0..self.ranks).filter(|i| s.begun[*i] < self.calls || s.waits[*i]).map(Action::Call));
        if s.leader.is_idle() && s.proposed < self.proposals {
            actions.push(Action::Propose);
        }
        if !s.leader.is_idle() {
            actions.push(Action::GiveUp);
        }
        actions.extend(s.sent.iter().map(|(m, i, b)| Action::Deliver(*m, *i, b.clone())));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut s = last.clone();
        match action {
            Action::Call(i) => {
                if !s.waits[i] {
                    s.begun[i] += 1;
                }
                let call = s.begun[i] - 1;
                s.waits[i] = loop {
                    match s.members[i].action_at(call) {
                        CallAction::Proceed => break false,
                        CallAction::Switch(e) => s.in_force[i] = e.number,
                        CallAction::Wait if self.rule == Rule::GuessesVoid => break false,
                        CallAction::Wait if self.rule == Rule::GuessesInForce => {
                            let number = s.members[i].bound_to().map_or(0, |e| e.number);
                            s.members[i].on_message(&ToMember::Commit(number), s.begun[i], |_| true);
                        }
                        CallAction::Wait => break self.rule != Rule::AsItArrives,
                    }
                };
                if !s.waits[i] {
                    let epoch = s.in_force[i];
                    s.used[i].push(epoch);
                }
            }
            Action::Propose => {
                let mut out = Vec::new();
                s.leader.propose(Vec::new(), s.begun[0], 0, |to, m| out.push((to, m)));
                s.proposed += 1;
                s.send_pending(out, self.rule);
            }
            Action::GiveUp => {
                let mut out = Vec::new();
                s.leader.tick(10, |to, m| out.push((to, m)));
                s.send_pending(out, self.rule);
            }
            Action::Deliver(true, i, bytes) => {
                let message = ToMember::read(&mut wire::Reader::new(&bytes)).unwrap();
                if let Some(answer) = s.deliver(i, &message, self.rule) {
                    let mut w = wire::Writer::default();
                    answer.write(&mut w);
                    s.sent.insert((false, i, w.0));
                }
            }
            Action::Deliver(false, i, bytes) => {
                let message = ToLeader::read(&mut wire::Reader::new(&bytes)).unwrap();
                s.on_answer(i, &message, self.rule);
            }
        }
        let _ = s.leader.take_ended();
        (s != *last).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::<Self>::always(SAFE, |_, s| {
                let pairs = s.used.iter().flat_map(|a| s.used.iter().map(move |b| (a, b)));
                pairs.into_iter().all(|(a, b)| a.iter().zip(b).all(|(x, y)| x == y))
            }),
            Property::<Self>::always(
                "no rank uses arms that the leader has not committed: the last common arm stays",
                |_, s| s.used.iter().flatten().all(|e| *e == 0 || s.committed.contains(e)),
            ),
            Property::<Self>::sometimes("all ranks use an epoch", |_, s| {
                s.used.iter().all(|u| u.last().is_some_and(|e| *e > 0))
            }),
            Property::<Self>::sometimes("a bound rank waits", |_, s| s.waits.iter().any(|w| *w)),
        ];
        if self.proposals > 1 {
            all.push(Property::<Self>::sometimes("a second epoch follows a first that was void", |_, s| {
                s.used.iter().any(|u| u.contains(&2) && !u.contains(&1))
            }));
            all.push(Property::<Self>::sometimes("a second epoch follows a first", |_, s| {
                s.used.iter().all(|u| u.contains(&1) && u.contains(&2))
            }));
        }
        all
    }
}

const SAFE: &str = "no two ranks run one call with different arms";
/// More states exceed the memory of a small machine.
const STATES_MAX: usize = 3_000_000;

fn check(job: Job) {
    let what = format!("{} ranks, {} calls, {} proposals", job.ranks, job.calls, job.proposals);
    let checker = job.checker().threads(1).target_state_count(STATES_MAX).spawn_bfs().join();
    println!(
        "{what}: {} states, {} of them different, depth {}",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth()
    );
    checker.assert_properties();
    assert!(checker.state_count() < STATES_MAX, "{what}: not all states were visited");
}

#[test]
fn in_no_schedule_do_two_ranks_run_one_call_with_different_arms() {
    check(Job { rule: Rule::Agreed, ranks: 2, calls: 5, proposals: 2 });
    check(Job { rule: Rule::Agreed, ranks: 3, calls: 3, proposals: 1 });
    if std::env::var_os("LINKWISE_MODEL_LARGE").is_some() {
        check(Job { rule: Rule::Agreed, ranks: 2, calls: 6, proposals: 3 }); // 700,000 states, 30 s
    }
}

#[test]
fn the_checker_finds_a_breaking_schedule_for_every_broken_rule() {
    use Rule::*;
    for rule in [AsItArrives, GuessesVoid, GuessesInForce, NoVeto, OneIsMissing] {
        let job = Job { rule, ranks: 2, calls: 3, proposals: 1 };
        let checker = job.checker().threads(1).target_state_count(STATES_MAX).spawn_bfs().join();
        let path = checker.discovery(SAFE).unwrap_or_else(|| panic!("{rule:?} is not detected"));
        println!("{rule:?}: ranks differ after {} steps", path.into_actions().len());
    }
}
