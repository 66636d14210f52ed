//! A leader and its members without a network.

use super::*;
use crate::Member;
use crate::Slot;
use tune::{Algorithm, Arm, Collective, Protocol};

const LEAD_US: u64 = 1_000_000;

fn slot() -> Slot {
    Slot::of(Collective::AllReduce, 1 << 20)
}

fn plans() -> Vec<SlotPlan> {
    vec![SlotPlan { slot: slot(), runs: Vec::new(), settled: Arm::new(Algorithm::Tree, Protocol::Ll) }]
}

/// A leader and its members without a network; every member has begun the same number of calls.
struct Job {
    leader: Leader,
    members: Vec<Member>,
    begun: u64,
    now_us: u64,
    /// Members that receive no message.
    cut: Vec<usize>,
    /// Calls that this member has counted and NCCL has not launched. All calls are equal, so all hashes are.
    counted_too_much: Vec<u64>,
}

impl Job {
    fn new(leader: Leader, members: usize) -> Self {
        Job {
            leader,
            members: vec![Member::default(); members],
            begun: 0,
            now_us: 0,
            cut: Vec::new(),
            counted_too_much: vec![0; members],
        }
    }

    fn deliver(&mut self, mut out: Vec<(usize, ToMember)>) {
        while let Some((to, message)) = out.pop() {
            if self.cut.contains(&to) {
                continue;
            }
            let Some(mut answer) = self.members[to].on_message(&message, self.begun, |_| true) else { continue };
            let at = match &message {
                ToMember::Ask(e) | ToMember::Propose(e) => e.check_at,
                ToMember::Check { at } => *at,
                _ => 0,
            };
            if let ToLeader::Ready { digest, .. } | ToLeader::Ack { digest, .. } | ToLeader::Status { digest, .. } =
                &mut answer
            {
                *digest = Some(CallDigest {
                    calls: at,
                    hash: 7,
                    sequence: if at == 0 { 0 } else { at - self.counted_too_much[to] },
                });
            }
            self.leader.on_message(to, &answer, self.now_us, |to, m| out.push((to, m)));
        }
    }

    /// Calls at 1,000 per second for a time, with ticks of 10 ms.
    fn run(&mut self, us: u64) {
        let until = self.now_us + us;
        while self.now_us < until {
            self.now_us += 10_000;
            self.begun += 10;
            for (i, member) in self.members.iter_mut().enumerate() {
                while let crate::CallAction::Switch(_) = member.action_at(self.begun) {}
                assert_ne!(member.action_at(self.begun), crate::CallAction::Wait, "member {i}");
            }
            let mut out = Vec::new();
            self.leader.note_begun(self.begun);
            self.leader.tick(self.now_us, |to, m| out.push((to, m)));
            self.deliver(out);
        }
    }

    fn propose(&mut self, plans: Vec<SlotPlan>) -> bool {
        let mut out = Vec::new();
        let proposed = self.leader.propose(plans, self.begun, self.now_us, |to, m| out.push((to, m))).is_some();
        self.deliver(out);
        proposed
    }
}

fn with_lead(members: usize) -> Job {
    Job::new(Leader::new(members, REPEAT_US, GIVE_UP_US).lead(LEAD_US), members)
}

#[test]
fn a_proposal_begins_a_lead_ahead_by_the_measured_rate_and_not_before_it_is_known() {
    let mut job = with_lead(2);
    assert!(job.propose(plans()));
    job.run(LEAD_US / 2);
    assert!(
        job.leader.take_ended().is_none() && job.members[1].bound_to().is_none(),
        "no rate yet, so no member is bound"
    );
    job.run(LEAD_US);
    let ended = job.leader.take_ended().unwrap();
    assert!(ended.committed && job.leader.is_idle());
    let calls = ended.epoch.from_call - 1000; // about a second after the start
    assert!((1000..4000).contains(&calls), "{calls} calls at 1,000 a second");
    assert!(ended.epoch.until_call > ended.epoch.from_call + 10 * calls / 2, "{ended:?}");
}

#[test]
fn what_is_in_force_is_renewed_while_all_can_be_reached_and_lapses_when_one_cannot() {
    let mut job = with_lead(3);
    job.propose(plans());
    job.run(60 * LEAD_US);
    assert!(job.leader.in_force.as_ref().is_some_and(|e| e.renews), "renewed several times");
    assert!(!job.leader.take_lapsed());
    job.cut = vec![2];
    job.run(60 * LEAD_US); // no call waits meanwhile: see `run`
    assert!(job.leader.take_lapsed());
    assert!(job.members.iter().all(|m| m.boundary() == u64::MAX), "all lapsed, the silent one too");
    job.cut.clear();
    assert!(job.leader.is_idle() || job.leader.in_force.is_none());
}

#[test]
fn after_a_stop_arms_lapse_although_a_member_cannot_be_reached() {
    let mut job = with_lead(3);
    job.propose(plans());
    job.run(5 * LEAD_US);
    job.leader.take_ended().unwrap();
    job.cut = vec![1];
    job.leader.stop();
    job.propose(Vec::new());
    job.run(60 * LEAD_US);
    assert!(job.leader.take_lapsed());
    assert!(job.members.iter().all(|m| m.boundary() == u64::MAX && m.bound_to().is_none()));
}

#[test]
fn a_member_that_has_left_voids_what_is_undecided_at_once_and_nothing_follows() {
    let mut job = Job::new(Leader::new(3, REPEAT_US, GIVE_UP_US).without_question(), 3);
    job.cut = vec![2];
    job.propose(plans());
    assert!(job.members[1].bound_to().is_some());
    let mut out = Vec::new();
    job.leader.on_message(2, &ToLeader::Left, 0, |to, m| out.push((to, m)));
    job.deliver(out);
    assert!(job.members[1].bound_to().is_none() && job.leader.is_idle() && job.leader.is_closed());
    assert!(!job.leader.take_ended().unwrap().committed);
    assert!(!job.propose(plans()));
}

#[test]
fn members_that_leave_one_after_another_while_they_are_asked_leave_no_answer_open() {
    let mut leader = Leader::new(3, REPEAT_US, GIVE_UP_US);
    leader.propose(plans(), 0, 0, |_, _| {});
    for from in [1, 2, 1] {
        leader.on_message(from, &ToLeader::Left, 0, |_, _| {});
        assert_eq!((leader.missing, leader.unanswered().count()), (0, 0));
    }
    assert!(leader.is_idle() && leader.is_closed());
}

#[test]
fn a_refusal_moves_later_proposals_further_ahead_only_if_the_first_call_has_begun() {
    let refused_with = |begun_beyond: u64| {
        let mut leader = Leader::new(2, REPEAT_US, GIVE_UP_US).without_question();
        let e = leader.propose(plans(), 0, 0, |_, _| {}).map(|e| e.number).unwrap();
        let Stage::Proposed { epoch, .. } = &leader.stage else { panic!("{leader:?}") };
        let begun = epoch.from_call + begun_beyond;
        let before = leader.ahead;
        leader.on_message(1, &ToLeader::Refuse { epoch: e, begun }, 0, |_, _| {});
        leader.ahead / before
    };
    assert_eq!(refused_with(0), 1, "call N has not begun: a member refuses for another reason");
    assert_eq!(refused_with(1), 2);
}

#[test]
fn a_rank_that_counts_one_call_or_one_period_too_many_is_found_and_no_arms_change_any_more() {
    for too_many in [1, 8] {
        let mut job = with_lead(3);
        job.propose(plans());
        job.run(5 * LEAD_US);
        assert!(job.leader.take_ended().unwrap().committed && job.leader.take_difference().is_none());
        job.counted_too_much[2] = too_many;
        job.run(CHECK_US + LEAD_US);
        let d = job.leader.take_difference().unwrap();
        assert!(
            d.members.contains(&2) && d.calls > 0 && d.calls.is_multiple_of(crate::digest::CHECKPOINT_CALLS),
            "{d:?}"
        );
        assert_eq!(job.leader.take_difference(), None, "said once");
        job.run(60 * LEAD_US);
        assert!(!job.leader.take_lapsed() && !job.propose(Vec::new()), "neither a lapse nor AUTO");
        assert!(job.members.iter().all(|m| m.boundary() == u64::MAX), "no call remains at which arms change");
    }
}

#[test]
fn a_rank_that_has_miscounted_since_the_last_message_gets_no_arms() {
    let mut job = with_lead(3);
    job.run(2 * LEAD_US); // 2,000 calls, of which the leader has heard nothing from the others
    job.counted_too_much[1] = 1;
    assert!(job.propose(plans()));
    job.run(10 * LEAD_US);
    assert!(job.leader.take_difference().is_some_and(|d| d.members.contains(&1) && d.calls > 0));
    assert!(!job.leader.take_ended().unwrap().committed);
    assert!(job.members.iter().all(|m| m.boundary() == u64::MAX && m.bound_to().is_none()));
}
