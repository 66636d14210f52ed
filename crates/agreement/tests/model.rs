//! Model checking of every schedule of two small instances: two ranks with two proposals, three ranks with one proposal. Every message may be lost,
//! late or duplicated, in any order; every process may stop at any point.

use agreement::{CallAction, Leader, Member, Slot, SlotPlan, ToLeader, ToMember};
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
    renewed: u64,
    /// Questions of the last rank that no call follows.
    asked: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Call(usize),
    /// The last rank's NCCL asks about a call that it does not launch (a simulated group).
    AskOnly,
    /// A stranger tells the last rank to use other arms.
    Evil,
    Renew,
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
    /// A rank that is bound to a renewal and knows no verdict lets its arms lapse.
    LapsesAlone,
    /// A rank that is bound to a renewal and knows no verdict keeps its arms.
    RenewsAlone,
    /// A question that no call follows counts as a call.
    CountsQuestions,
    /// The last rank's cost table has no entry for the arms, and no rank checks its table.
    UncheckedTable,
    /// A stranger's verdicts count as the leader's.
    AnyoneLeads,
}

struct Job {
    rule: Rule,
    /// The first one leads.
    ranks: usize,
    /// Calls per rank.
    calls: u64,
    proposals: u64,
    /// Members are asked before they are bound.
    asks: bool,
    /// Calls after which an epoch lapses, and renewals that are tried.
    lease: Option<(u64, u64)>,
    /// Questions without a call, and commands of a stranger, that may occur.
    disturbed: bool,
    /// The last rank cannot run the arms.
    unequal: bool,
}

impl Default for Job {
    fn default() -> Self {
        Job {
            rule: Rule::Agreed,
            ranks: 2,
            calls: 3,
            proposals: 1,
            asks: false,
            lease: None,
            disturbed: false,
            unequal: false,
        }
    }
}

/// Arms for one slot: an epoch without plans means AUTO and never lapses.
fn plans() -> Vec<SlotPlan> {
    let arm = tune::Arm::new(tune::Algorithm::Tree, tune::Protocol::Ll);
    vec![SlotPlan { slot: Slot::of(tune::Collective::AllReduce, 1 << 20), runs: Vec::new(), settled: arm }]
}

impl State {
    /// Messages of the leader reach its own rank at once, as in the plugin, and enter the network for the others.
    fn send_pending(&mut self, messages: Vec<(usize, ToMember)>, job: &Job) {
        for (to, m) in messages {
            if to == 0 {
                if let Some(answer) = self.deliver(0, &m, job) {
                    self.on_answer(0, &answer, job);
                }
            } else {
                let mut w = wire::Writer::default();
                m.write(&mut w);
                self.sent.insert((true, to, w.0));
            }
        }
    }

    fn deliver(&mut self, i: usize, message: &ToMember, job: &Job) -> Option<ToLeader> {
        let rule = job.rule;
        let can = !job.unequal || i + 1 < job.ranks || rule == Rule::UncheckedTable;
        if let (Rule::AsItArrives, ToMember::Propose(e)) = (rule, message) {
            self.in_force[i] = e.number;
        }
        let begun = self.begun[i];
        let answer = self.members[i].on_message(message, if rule == Rule::NoVeto { 0 } else { begun }, |_| can);
        // The reported count only helps the leader to choose the first call. Here the leader knows no more than its own count, the worst case.
        answer.map(|a| match a {
            ToLeader::Ack { epoch, .. } => ToLeader::Ack { epoch, begun: 0 },
            ToLeader::Ready { epoch, digest, slots, .. } => ToLeader::Ready { epoch, begun: 0, digest, slots },
            ToLeader::Refuse { epoch, .. } => ToLeader::Refuse { epoch, begun: 0 },
            ToLeader::Confirm { epoch, .. } => ToLeader::Confirm { epoch, begun: 0 },
            other => other,
        })
    }

    fn on_answer(&mut self, i: usize, message: &ToLeader, job: &Job) {
        let rule = job.rule;
        let mut out = Vec::new();
        self.leader.on_message(i, message, 0, |to, m| out.push((to, m)));
        if let (Rule::OneIsMissing, ToLeader::Ack { .. }) = (rule, message) {
            self.leader.on_message(self.members.len() - 1, message, 0, |to, m| out.push((to, m)));
        }
        self.committed.extend(self.leader.take_ended().filter(|e| e.committed).map(|e| e.epoch.number));
        self.send_pending(out, job);
    }
}

impl Model for Job {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut leader = Leader::new(self.ranks, u64::MAX, 10).ahead(1);
        if !self.asks {
            leader = leader.without_question();
        }
        if let Some((calls, _)) = self.lease {
            leader = leader.lease_calls(calls);
        }
        vec![State {
            renewed: 0,
            asked: 0,
            leader,
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
        if self.disturbed && s.asked == 0 {
            actions.extend([Action::AskOnly, Action::Evil]);
        }
        if self.lease.is_some_and(|(_, renewals)| s.renewed < renewals) && s.leader.is_idle() && !s.committed.is_empty()
        {
            actions.push(Action::Renew);
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
                        CallAction::Wait
                            if self.rule == Rule::LapsesAlone && s.members[i].bound_to().is_some_and(|e| e.renews) =>
                        {
                            let number = s.members[i].bound_to().map_or(0, |e| e.number);
                            s.members[i].on_message(&ToMember::Abort(number), s.begun[i], |_| true);
                        }
                        CallAction::Wait
                            if self.rule == Rule::GuessesInForce
                                || (self.rule == Rule::RenewsAlone
                                    && s.members[i].bound_to().is_some_and(|e| e.renews)) =>
                        {
                            let number = s.members[i].bound_to().map_or(0, |e| e.number);
                            s.members[i].on_message(&ToMember::Commit(number), s.begun[i], |_| true);
                        }
                        CallAction::Wait => break self.rule != Rule::AsItArrives,
                    }
                };
                if !s.waits[i] {
                    // A rank without the entry stays at AUTO.
                    let unable = self.unequal && i + 1 == self.ranks;
                    let epoch = if unable { 0 } else { s.in_force[i] };
                    s.used[i].push(epoch);
                }
            }
            Action::AskOnly => {
                s.asked += 1;
                if self.rule == Rule::CountsQuestions {
                    s.begun[self.ranks - 1] += 1;
                }
            }
            Action::Evil => {
                s.asked += 1;
                // The transport passes on what the communicator's leader has proved to say, and nothing else.
                if self.rule == Rule::AnyoneLeads {
                    let last = self.ranks - 1;
                    let evil = std::sync::Arc::new(agreement::Epoch::new(99, s.begun[last], plans()));
                    s.members[last].on_message(&ToMember::Propose(evil), s.begun[last], |_| true);
                    s.members[last].on_message(&ToMember::Commit(99), s.begun[last], |_| true);
                }
            }
            Action::Renew => {
                s.renewed += 1;
                let mut out = Vec::new();
                s.leader.tick(0, |to, m| out.push((to, m)));
                s.send_pending(out, self);
            }
            Action::Propose => {
                let mut out = Vec::new();
                s.leader.propose(plans(), s.begun[0], 0, |to, m| out.push((to, m)));
                s.proposed += 1;
                s.send_pending(out, self);
            }
            Action::GiveUp => {
                let mut out = Vec::new();
                s.leader.tick(10, |to, m| out.push((to, m)));
                s.send_pending(out, self);
            }
            Action::Deliver(true, i, bytes) => {
                let message = ToMember::read(&mut wire::Reader::new(&bytes)).unwrap();
                if let Some(answer) = s.deliver(i, &message, self) {
                    let mut w = wire::Writer::default();
                    answer.write(&mut w);
                    s.sent.insert((false, i, w.0));
                }
            }
            Action::Deliver(false, i, bytes) => {
                let message = ToLeader::read(&mut wire::Reader::new(&bytes)).unwrap();
                s.on_answer(i, &message, self);
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
        ];
        if self.unequal {
            return all; // no epoch is ever in force
        }
        all.extend([
            Property::<Self>::sometimes("all ranks use an epoch", |_, s| {
                s.used.iter().all(|u| u.last().is_some_and(|e| *e > 0))
            }),
            Property::<Self>::sometimes("a bound rank waits", |_, s| s.waits.iter().any(|w| *w)),
        ]);
        if let Some((_, renewals)) = self.lease {
            all.push(Property::<Self>::sometimes("an epoch lapses on all ranks", |_, s| {
                s.used.iter().all(|u| u.windows(2).any(|w| w == [1, 0]))
            }));
            if renewals > 0 {
                all.push(Property::<Self>::sometimes("an epoch is renewed on all ranks", |job, s| {
                    let calls = job.lease.map_or(0, |(calls, _)| calls);
                    s.used.iter().all(|u| u.iter().filter(|e| **e == 1).count() as u64 > calls)
                }));
            }
        }
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
    let what = format!(
        "{} ranks, {} calls, {} proposals, asks {}, lease {:?}",
        job.ranks, job.calls, job.proposals, job.asks, job.lease
    );
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
    check(Job { calls: 5, proposals: 2, ..Job::default() });
    check(Job { ranks: 3, ..Job::default() });
    if std::env::var_os("LINKWISE_MODEL_LARGE").is_some() {
        check(Job { calls: 6, proposals: 3, ..Job::default() }); // 700,000 states, 30 s
    }
}

#[test]
fn nor_if_members_are_asked_first_if_epochs_lapse_or_are_renewed_if_a_table_is_unequal_or_a_stranger_commands() {
    check(Job { calls: 4, asks: true, ..Job::default() });
    check(Job { calls: 4, lease: Some((1, 1)), ..Job::default() });
    check(Job { calls: 4, asks: true, unequal: true, ..Job::default() });
    check(Job { disturbed: true, ..Job::default() });
}

#[test]
fn the_checker_finds_a_breaking_schedule_for_every_broken_rule() {
    use Rule::*;
    let lease = Job { calls: 4, lease: Some((1, 1)), ..Job::default() };
    let jobs =
        [AsItArrives, GuessesVoid, GuessesInForce, NoVeto, OneIsMissing].map(|rule| Job { rule, ..Job::default() });
    let renewing =
        [LapsesAlone, RenewsAlone].map(|rule| Job { rule, lease: lease.lease, calls: lease.calls, ..Job::default() });
    let disturbed = [CountsQuestions, AnyoneLeads].map(|rule| Job { rule, disturbed: true, ..Job::default() });
    let unequal = Job { rule: UncheckedTable, unequal: true, ..Job::default() };
    for job in jobs.into_iter().chain(renewing).chain(disturbed).chain([unequal]) {
        let rule = job.rule;
        let checker = job.checker().threads(1).target_state_count(STATES_MAX).spawn_bfs().join();
        let path = checker.discovery(SAFE).unwrap_or_else(|| panic!("{rule:?} is not detected"));
        println!("{rule:?}: ranks differ after {} steps", path.into_actions().len());
    }
}
