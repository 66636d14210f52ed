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

struct Job {
    /// Off: a proposal is in force for a rank when it hears it.
    agreement: bool,
    /// The first leads.
    ranks: usize,
    /// Calls of each.
    calls: u64,
    proposals: u64,
}

impl State {
    /// What the leader says goes to its own rank at once, as in the plugin, and onto the network for the others.
    fn say(&mut self, messages: Vec<(usize, ToMember)>, agreement: bool) {
        for (to, m) in messages {
            if to == 0 {
                if let Some(answer) = self.hear(0, &m, agreement) {
                    self.answered(0, &answer, agreement);
                }
            } else {
                let mut w = wire::Writer::default();
                m.write(&mut w);
                self.said.insert((true, to, w.0));
            }
        }
    }

    fn hear(&mut self, i: usize, message: &ToMember, agreement: bool) -> Option<ToLeader> {
        if let (false, ToMember::Propose(e)) = (agreement, message) {
            self.in_force[i] = e.number;
        }
        let begun = self.begun[i];
        let answer = self.members[i].on(message, begun, |_| true);
        // How far a rank is only helps the leader to choose the first call; here it never knows better than its own count, which is worse.
        answer.map(|a| match a {
            ToLeader::Ack { epoch, .. } => ToLeader::Ack { epoch, begun: 0 },
            ToLeader::Refuse { epoch, .. } => ToLeader::Refuse { epoch, begun: 0 },
            ToLeader::Confirm { epoch, .. } => ToLeader::Confirm { epoch, begun: 0 },
            other => other,
        })
    }

    fn answered(&mut self, i: usize, message: &ToLeader, agreement: bool) {
        let mut out = Vec::new();
        self.leader.on(i, message, 0, |to, m| out.push((to, m)));
        self.say(out, agreement);
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
                        At::Wait => break self.agreement,
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
                s.say(out, self.agreement);
            }
            Action::GiveUp => {
                let mut out = Vec::new();
                s.leader.tick(10, |to, m| out.push((to, m)));
                s.say(out, self.agreement);
            }
            Action::Hear(true, i, bytes) => {
                let message = ToMember::read(&mut wire::Reader::new(&bytes)).unwrap();
                if let Some(answer) = s.hear(i, &message, self.agreement) {
                    let mut w = wire::Writer::default();
                    answer.write(&mut w);
                    s.said.insert((false, i, w.0));
                }
            }
            Action::Hear(false, i, bytes) => {
                let message = ToLeader::read(&mut wire::Reader::new(&bytes)).unwrap();
                s.answered(i, &message, self.agreement);
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
    check(Job { agreement: true, ranks: 2, calls: 5, proposals: 2 });
    check(Job { agreement: true, ranks: 3, calls: 3, proposals: 1 });
    if std::env::var_os("LINKWISE_MODEL_LARGE").is_some() {
        check(Job { agreement: true, ranks: 2, calls: 6, proposals: 3 }); // 700,000 states, half a minute
    }
}

#[test]
fn the_checker_finds_the_schedule_that_breaks_a_job_without_agreement() {
    let job = Job { agreement: false, ranks: 2, calls: 2, proposals: 1 };
    let checker = job.checker().threads(1).target_state_count(STATES_MAX).spawn_bfs().join();
    assert!(checker.discovery(SAFE).is_some());
}
