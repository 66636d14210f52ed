//! Every schedule of two small instances, by a model checker: two ranks and two proposals, three ranks and one proposal; every message may be lost,
//! late, doubled, in any order; everybody may stop at any point.

use agreement::{At, Leader, Member, ToLeader, ToMember};
use stateright::{Checker, Model, Property};
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    leader: Leader,
    members: Vec<Member>,
    begun: Vec<u64>,
    /// A call has begun and waits.
    waits: Vec<bool>,
    in_force: Vec<u64>,
    /// The epoch of every call, by rank.
    used: Vec<Vec<u64>>,
    proposed: u64,
    /// What the leader has decided to be in force.
    committed: BTreeSet<u64>,
    /// Everything that was ever said: it may arrive at any time, and again. Never arriving is being lost.
    said: BTreeSet<(bool, usize, Vec<u8>)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Action {
    Call(usize),
    Propose,
    GiveUp,
    Hear(bool, usize, Vec<u8>),
}

/// The protocol, or with one rule of it broken, to see that the checker finds the schedule.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// As the crate does.
    Agreed,
    /// A proposal is in force for a rank when it hears it.
    AsItArrives,
    /// A bound rank that reaches the first call without a verdict goes on with what it has.
    GuessesVoid,
    /// A bound rank that reaches the first call without a verdict takes the proposal for decided.
    GuessesInForce,
    /// A rank that has begun the first call acknowledges all the same.
    NoVeto,
    /// The leader decides without the last rank's acknowledgement.
    OneIsMissing,
}

struct Job {
    rule: Rule,
    /// The first leads.
    ranks: usize,
    /// Calls of each.
    calls: u64,
    proposals: u64,
}

impl State {
    /// What the leader says goes to its own rank at once, as in the plugin, and onto the network for the others.
    fn say(&mut self, messages: Vec<(usize, ToMember)>, rule: Rule) {
        for (to, m) in messages {
            if to == 0 {
                if let Some(answer) = self.hear(0, &m, rule) {
                    self.answered(0, &answer, rule);
                }
            } else {
                let mut w = wire::Writer::default();
                m.write(&mut w);
                self.said.insert((true, to, w.0));
            }
        }
    }

    fn hear(&mut self, i: usize, message: &ToMember, rule: Rule) -> Option<ToLeader> {
        if let (Rule::AsItArrives, ToMember::Propose(e)) = (rule, message) {
            self.in_force[i] = e.number;
        }
        let begun = self.begun[i];
        let answer = self.members[i].on(message, if rule == Rule::NoVeto { 0 } else { begun }, |_| true);
        // How far a rank is only helps the leader to choose the first call; here it never knows better than its own count, which is worse.
        answer.map(|a| match a {
            ToLeader::Ack { epoch, .. } => ToLeader::Ack { epoch, begun: 0 },
            ToLeader::Refuse { epoch, .. } => ToLeader::Refuse { epoch, begun: 0 },
            ToLeader::Confirm { epoch, .. } => ToLeader::Confirm { epoch, begun: 0 },
            other => other,
        })
    }

    fn answered(&mut self, i: usize, message: &ToLeader, rule: Rule) {
        let mut out = Vec::new();
        self.leader.on(i, message, 0, |to, m| out.push((to, m)));
        if let (Rule::OneIsMissing, ToLeader::Ack { .. }) = (rule, message) {
            self.leader.on(self.members.len() - 1, message, 0, |to, m| out.push((to, m)));
        }
        self.committed.extend(self.leader.ended().filter(|e| e.committed).map(|e| e.epoch.number));
        self.say(out, rule);
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
            said: BTreeSet::new(),
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
        actions.extend(s.said.iter().map(|(m, i, b)| Action::Hear(*m, *i, b.clone())));
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
                    match s.members[i].at(call) {
                        At::Go => break false,
                        At::Switch(e) => s.in_force[i] = e.number,
                        At::Wait if self.rule == Rule::GuessesVoid => break false,
                        At::Wait if self.rule == Rule::GuessesInForce => {
                            let number = s.members[i].bound_to().map_or(0, |e| e.number);
                            s.members[i].on(&ToMember::Commit(number), s.begun[i], |_| true);
                        }
                        At::Wait => break self.rule != Rule::AsItArrives,
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
                s.say(out, self.rule);
            }
            Action::GiveUp => {
                let mut out = Vec::new();
                s.leader.tick(10, |to, m| out.push((to, m)));
                s.say(out, self.rule);
            }
            Action::Hear(true, i, bytes) => {
                let message = ToMember::read(&mut wire::Reader::new(&bytes)).unwrap();
                if let Some(answer) = s.hear(i, &message, self.rule) {
                    let mut w = wire::Writer::default();
                    answer.write(&mut w);
                    s.said.insert((false, i, w.0));
                }
            }
            Action::Hear(false, i, bytes) => {
                let message = ToLeader::read(&mut wire::Reader::new(&bytes)).unwrap();
                s.answered(i, &message, self.rule);
            }
        }
        let _ = s.leader.ended();
        (s != *last).then_some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::<Self>::always(SAFE, |_, s| {
                let pairs = s.used.iter().flat_map(|a| s.used.iter().map(move |b| (a, b)));
                pairs.into_iter().all(|(a, b)| a.iter().zip(b).all(|(x, y)| x == y))
            }),
            Property::<Self>::always(
                "nobody uses what the leader has not decided: without it the last common arm stays",
                |_, s| s.used.iter().flatten().all(|e| *e == 0 || s.committed.contains(e)),
            ),
            Property::<Self>::sometimes("an epoch is used by everybody", |_, s| {
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
/// More states than this fill the memory of a small machine.
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
fn in_no_schedule_two_ranks_run_one_call_with_different_arms() {
    check(Job { rule: Rule::Agreed, ranks: 2, calls: 5, proposals: 2 });
    check(Job { rule: Rule::Agreed, ranks: 3, calls: 3, proposals: 1 });
    if std::env::var_os("LINKWISE_MODEL_LARGE").is_some() {
        check(Job { rule: Rule::Agreed, ranks: 2, calls: 6, proposals: 3 }); // 700,000 states, half a minute
    }
}

#[test]
fn the_checker_finds_the_schedule_that_breaks_a_job_with_any_rule_broken() {
    use Rule::*;
    for rule in [AsItArrives, GuessesVoid, GuessesInForce, NoVeto, OneIsMissing] {
        let job = Job { rule, ranks: 2, calls: 3, proposals: 1 };
        let checker = job.checker().threads(1).target_state_count(STATES_MAX).spawn_bfs().join();
        let path = checker.discovery(SAFE).unwrap_or_else(|| panic!("{rule:?} goes unnoticed"));
        println!("{rule:?}: ranks differ after {} steps", path.into_actions().len());
    }
}
