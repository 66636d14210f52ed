//! Random schedules of calls and messages without a network: what the tests of groups and of the job share.

use agreement::{Leader, ToLeader, ToMember};
use linkwise_nccl::comm::{Call, Comm};
use linkwise_nccl::cost_table::CostTable;

/// Limit on messages to members that are on their way.
const IN_FLIGHT_MAX: usize = 64;

/// Pseudo-random numbers below `n` (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % n
    }
}

/// One question about an AllReduce, as NCCL asks: the cost table with the plugin's answer.
pub fn question(comm: &Comm, bytes: u64) -> [f32; 21] {
    let mut table = [-1.0f32; 21];
    table[..6].copy_from_slice(&[60.0, 55.0, 70.0, 50.0, 65.0, 75.0]);
    let mut costs = CostTable::new(&mut table, 7, 3).unwrap();
    comm.call(Call { collective: 4, bytes }, &mut costs, &mut 0, |_| {}).unwrap();
    table
}

/// A leader and the messages on their way, which arrive in any order, are lost or duplicated.
pub struct Network {
    pub leader: Leader,
    pub now_us: u64,
    /// Epochs committed so far.
    pub committed: usize,
    to_members: Vec<(usize, ToMember)>,
    to_leader: Vec<(usize, ToLeader)>,
}

impl Network {
    pub fn new(leader: Leader) -> Self {
        Network { leader, now_us: 0, committed: 0, to_members: Vec::new(), to_leader: Vec::new() }
    }

    pub fn has_for_members(&self) -> bool {
        !self.to_members.is_empty()
    }

    pub fn has_for_leader(&self) -> bool {
        !self.to_leader.is_empty()
    }

    /// Delivers a message. It stays one time in four, so it arrives again; one in eight is lost.
    pub fn deliver_to_member(
        &mut self,
        random: &mut Random,
        answer: impl FnOnce(usize, &ToMember) -> Option<ToLeader>,
    ) {
        let i = random.below(self.to_members.len());
        let (to, message) = self.to_members[i].clone();
        if random.below(4) > 0 {
            self.to_members.swap_remove(i);
        }
        if random.below(8) > 0 {
            self.to_leader.extend(answer(to, &message).map(|answer| (to, answer)));
        }
    }

    /// Delivers a message. It stays one time in four, so it arrives again.
    pub fn deliver_to_leader(&mut self, random: &mut Random) {
        let i = random.below(self.to_leader.len());
        let (from, message) = self.to_leader[i].clone();
        if random.below(4) > 0 {
            self.to_leader.swap_remove(i);
        }
        self.leader.on_message(from, &message, self.now_us, |to, m| self.to_members.push((to, m)));
    }

    /// Up to `us_max` later. True if the leader can propose.
    pub fn tick(&mut self, random: &mut Random, us_max: usize) -> bool {
        self.now_us += random.below(us_max) as u64;
        self.leader.tick(self.now_us, |to, m| self.to_members.push((to, m)));
        self.committed += usize::from(self.leader.take_ended().is_some_and(|e| e.committed));
        self.to_members.truncate(IN_FLIGHT_MAX);
        self.leader.is_idle()
    }

    pub fn propose(&mut self, plans: Vec<agreement::SlotPlan>, begun: u64) {
        self.leader.propose(plans, begun, self.now_us, |to, m| self.to_members.push((to, m)));
        self.to_members.truncate(IN_FLIGHT_MAX);
    }
}
