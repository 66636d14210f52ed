//! Groups that are simulated on some ranks, in random schedules of calls and messages: all ranks launch each call with one arm.

mod common;

use agreement::{ArmRun, Leader, Slot, SlotPlan};
use common::schedule::{Network, Random};
use linkwise_nccl::comm::{Comm, Identity, Role};
use proptest::prelude::*;
use std::collections::BTreeMap;
use tune::{Algorithm, Arm, Collective, Protocol};

const RANKS: usize = 3;
const STEPS: usize = 6000;
const SIZES: [u64; 2] = [1 << 20, 1 << 12];

/// One question, as NCCL asks: the arm that the table then prefers.
fn question(comm: &Comm, bytes: u64) -> Arm {
    let table = common::schedule::question(comm, bytes);
    let cheapest = (0..6).min_by(|a, b| table[*a].total_cmp(&table[*b])).unwrap();
    Arm::new(Algorithm::ALL[cheapest / 3], Protocol::ALL[cheapest % 3])
}

struct Schedule {
    random: Random,
    ranks: Vec<Comm>,
    /// The groups that all ranks launch, and how many of them each rank has launched.
    groups: Vec<Vec<u64>>,
    launched: [usize; RANKS],
    next_group: u64,
    /// Captured calls are told from others.
    tells_captures: bool,
    network: Network,
    /// The arm of each launched question, by its position in the groups.
    arms: BTreeMap<(usize, usize), Arm>,
}

impl Schedule {
    fn new(seed: u64, told: bool) -> Self {
        let mut random = Random(seed | 1);
        let rank = |r| {
            let comm = Comm::new(
                Identity { id: 1, ordinal: 0, rank: r as i32, ranks: RANKS as u32, nodes: 1 },
                Role::Tune,
                4096,
            );
            for bytes in SIZES.repeat(2) {
                comm.note_entries(Slot::of(Collective::AllReduce, bytes), 0b11_1111, 3); // seen at AUTO
            }
            if told {
                comm.set_tells_launches();
            }
            comm
        };
        let groups = (0..400).map(|_| (0..1 + random.below(2)).map(|_| SIZES[random.below(2)]).collect()).collect();
        let leader = Leader::new(RANKS, 30, 300).ahead(random.below(12) as u64);
        Schedule {
            ranks: (0..RANKS).map(rank).collect(),
            random,
            groups,
            launched: [0; RANKS],
            next_group: 1,
            tells_captures: true,
            network: Network::new(leader),
            arms: BTreeMap::new(),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let r = self.random.below(RANKS);
        match self.random.below(20) {
            0 if r > 0 => self.simulate(r),
            1 if r > 0 => self.capture(r),
            0..=4 => return self.launch(r),
            5..=11 if self.network.has_for_members() => {
                self.network.deliver_to_member(&mut self.random, |to, message| self.ranks[to].on_message(message));
            }
            12..=18 if self.network.has_for_leader() => self.network.deliver_to_leader(&mut self.random),
            _ => self.tick_leader(),
        }
        Ok(())
    }

    /// A rank asks about a group of up to eight calls that it does not launch, unless a question would wait.
    fn simulate(&mut self, r: usize) {
        self.new_group(r);
        for _ in 0..1 + self.random.below(8) {
            if self.ranks[r].would_wait() {
                return;
            }
            question(&self.ranks[r], SIZES[self.random.below(2)]);
        }
    }

    /// A rank captures a group of up to eight calls into a graph that it never launches. NCCL reports a launch.
    fn capture(&mut self, r: usize) {
        let group = self.new_group(r);
        self.ranks[r].set_captured(self.tells_captures);
        for _ in 0..1 + self.random.below(8) {
            if !self.tells_captures && self.ranks[r].would_wait() {
                break;
            }
            question(&self.ranks[r], SIZES[self.random.below(2)]);
        }
        self.ranks[r].on_launch(group);
        self.ranks[r].set_captured(false);
    }

    fn new_group(&mut self, r: usize) -> u64 {
        self.next_group += 1;
        self.ranks[r].set_group(self.next_group);
        self.next_group
    }

    /// The rank's next group, launched. A group in which a question would wait is left out for now: simulated.
    fn launch(&mut self, r: usize) -> Result<(), String> {
        let at = self.launched[r];
        let Some(sizes) = self.groups.get(at).cloned() else { return Ok(()) };
        let group = self.new_group(r);
        let mut arms = Vec::new();
        for bytes in sizes {
            if self.ranks[r].would_wait() {
                return Ok(());
            }
            arms.push(question(&self.ranks[r], bytes));
        }
        self.ranks[r].on_launch(group);
        self.launched[r] += 1;
        for (i, arm) in arms.into_iter().enumerate() {
            let first = *self.arms.entry((at, i)).or_insert(arm);
            if first != arm {
                return Err(format!("group {at}, question {i}: {first} and, on rank {r}, {arm}"));
            }
        }
        Ok(())
    }

    /// The leader proposes other runs for both sizes, again and again.
    fn tick_leader(&mut self) {
        if self.network.tick(&mut self.random, 40) {
            let mut arm = || {
                Arm::new([Algorithm::Ring, Algorithm::Tree][self.random.below(2)], Protocol::ALL[self.random.below(3)])
            };
            let mut plans: Vec<SlotPlan> = SIZES
                .iter()
                .map(|bytes| SlotPlan {
                    slot: Slot::of(Collective::AllReduce, *bytes),
                    runs: (0..3).map(|calls| ArmRun { arm: arm(), calls: calls + 1 }).collect(),
                    settled: arm(),
                })
                .collect();
            plans.sort_by_key(|p| p.slot);
            self.network.propose(plans, self.ranks[0].begun());
        }
    }
}

/// Committed epochs and launched groups after `steps` random steps; an error names the first difference.
fn schedule(seed: u64, told: bool, tells_captures: bool, steps: usize) -> Result<(usize, usize), String> {
    let mut schedule = Schedule::new(seed, told);
    schedule.tells_captures = tells_captures;
    for _ in 0..steps {
        schedule.step()?;
    }
    Ok((schedule.network.committed, schedule.launched.into_iter().min().unwrap_or(0)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn no_two_ranks_differ_whatever_some_of_them_simulate_or_capture(seed: u64) {
        prop_assert_eq!(schedule(seed, true, true, STEPS).err(), None);
    }
}

#[test]
fn the_schedules_change_arms_and_without_reports_of_launches_ranks_differ() {
    let seeds = (1..=100u64).map(|s| s.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let (committed, launched) =
        seeds.clone().map(|s| schedule(s, true, true, STEPS).unwrap()).fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    println!("{committed} epochs, {launched} groups in 100 schedules");
    assert!(committed > 500 && launched > 10_000, "{committed} epochs, {launched} groups");
    let differ = seeds.clone().filter(|s| schedule(*s, false, true, STEPS).is_err()).count();
    assert!(differ > 50, "every question counted: ranks differed in {differ} of 100 schedules");
    let differ = seeds.filter(|s| schedule(*s, true, false, STEPS).is_err()).count();
    assert!(differ > 50, "captured calls counted: ranks differed in {differ} of 100 schedules");
}

#[test]
fn a_checkpoint_has_nccls_number_of_its_call_and_a_call_counted_too_much_shows() {
    use agreement::{CallDigest, ToLeader, ToMember};
    let rank = |counts_too_much: bool| -> CallDigest {
        let comm = Comm::new(Identity { id: 1, ordinal: 0, rank: 0, ranks: 2, nodes: 1 }, Role::Tune, 64);
        comm.set_tells_launches();
        for call in 0..100u64 {
            comm.set_group(2 * call + 1);
            question(&comm, SIZES[0]);
            comm.on_launch(2 * call + 1);
            comm.on_collective_of(2 * call + 1, tune::Collective::AllReduce, call);
            if counts_too_much && call == 20 {
                comm.set_group(2 * call + 2);
                question(&comm, SIZES[0]); // NCCL reports a launch, but no collective: any cause
                comm.on_launch(2 * call + 2);
            }
        }
        let Some(ToLeader::Status { digest, .. }) = comm.on_message(&ToMember::Check { at: 64 }) else { panic!() };
        digest.unwrap()
    };
    let (right, wrong) = (rank(false), rank(true));
    assert!(right.sequence != 0 && right.hash == wrong.hash, "a loop of equal calls: {right:?} {wrong:?}");
    assert!(right.agrees(rank(false)) && !right.agrees(wrong));
}

#[test]
fn the_worker_sees_only_decisions_of_launched_groups() {
    let comm = Comm::new(Identity { id: 1, ordinal: 0, rank: 0, ranks: 2, nodes: 1 }, Role::Observe, 64);
    comm.set_tells_launches();
    let ask = |group: u64, sizes: &[u64]| {
        comm.set_group(group);
        sizes.iter().for_each(|bytes| _ = question(&comm, *bytes));
    };
    ask(1, &[8192, 4096]);
    assert!(comm.take_decision().is_none(), "not launched yet");
    comm.on_launch(1);
    ask(2, &[1 << 20]);
    ask(3, &[1 << 21]);
    comm.on_launch(2); // a launch of another group: sends and receives that were simulated, too
    ask(4, &[1 << 22]);
    comm.on_launch(4);
    let seen: Vec<(u64, u64)> = std::iter::from_fn(|| comm.take_decision()).map(|d| (d.call, d.bytes)).collect();
    assert_eq!(seen, [(0, 8192), (1, 4096), (2, 1 << 22)]);
    ask(5, &[1 << 23]);
    assert!(!comm.end());
    assert_eq!(comm.begun(), 3, "the last group was simulated");
}

#[test]
fn a_launch_or_a_call_whose_group_is_lost_counts_and_ends_the_changes_of_arms() {
    let comm = Comm::new(Identity { id: 1, ordinal: 0, rank: 0, ranks: 2, nodes: 1 }, Role::Tune, 64);
    comm.set_tells_launches();
    let ask = |group: Option<u64>| {
        match group {
            Some(group) => comm.set_group(group),
            None => comm.on_lost_group(Some(1000)),
        }
        question(&comm, 4096);
    };
    ask(Some(1));
    comm.on_launch(1);
    assert!(!comm.has_lost_a_group());
    ask(Some(2));
    comm.on_lost_group(None); // the launch of group 2, without the group
    ask(Some(3));
    assert_eq!((comm.begun(), comm.has_lost_a_group()), (3, true), "group 2 was launched, as on the other ranks");
    comm.on_launch(3);
    ask(None);
    comm.on_launch(0); // no such group
    comm.on_lost_group(None);
    ask(Some(4));
    comm.on_launch(4);
    assert_eq!(comm.begun(), 5);
    assert_eq!(std::iter::from_fn(|| comm.take_decision()).map(|d| d.call).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}
