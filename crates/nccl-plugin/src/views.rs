//! What all ranks of a communicator can use, slot by slot. Cost tables are not the same on all hosts: other processors, other NICs, other settings.
//! An arm that one rank cannot use makes that rank launch something else than the rest, and NCCL hangs.
//!
//! So every slot begins at AUTO. Each rank notes the entries that were possible in all calls of the slot and the entry that AUTO chose
//! ([`SlotView`]); the leader asks for them; and an arm is used only if every rank has seen the slot and has the arm. A rank refuses anything else
//! ([`can_use`]).

use agreement::message::NO_ENTRY;
use agreement::{Epoch, Slot, SlotPlan, SlotView, ToMember};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tune::{Algorithm, Arm};

/// Calls of a slot after which a rank says what it has seen.
pub const CALLS_BEFORE_VIEW: u64 = 2;

/// What the ranks have said about one slot.
#[derive(Debug, Clone)]
struct Joint {
    /// Entries that are possible on every rank that has said something.
    mask: u32,
    /// The entry that AUTO chose on all of them.
    auto: u8,
    /// Bit set of those ranks, by position in the roster.
    seen: Vec<u64>,
    missing: usize,
}

/// The views of all ranks. O(1) memory per slot and 64 ranks.
#[derive(Debug, Clone, Default)]
pub struct SlotViews {
    members: usize,
    by_slot: BTreeMap<Slot, Joint>,
}

impl SlotViews {
    pub fn new(members: usize) -> Self {
        SlotViews { members, by_slot: BTreeMap::new() }
    }

    /// Adds the view of the member at a position of the roster. Returns whether this changed what all ranks can use.
    pub fn add(&mut self, from: usize, view: &SlotView) -> bool {
        if from >= self.members {
            return false;
        }
        let joint = self.by_slot.entry(view.slot).or_insert_with(|| Joint {
            mask: u32::MAX,
            auto: view.auto,
            seen: vec![0; self.members.div_ceil(64)],
            missing: self.members,
        });
        let before = (joint.mask, joint.auto, joint.missing);
        joint.mask &= view.mask;
        if joint.auto != view.auto {
            joint.auto = NO_ENTRY;
        }
        if let Some(word) = joint.seen.get_mut(from / 64).filter(|w| **w >> (from % 64) & 1 == 0) {
            *word |= 1 << (from % 64);
            joint.missing -= 1;
        }
        joint.missing == 0 && before != (joint.mask, joint.auto, joint.missing)
    }

    /// The view that holds for all ranks, once each has seen the slot.
    pub fn of_all(&self, slot: Slot) -> Option<SlotView> {
        let joint = self.by_slot.get(&slot).filter(|j| j.missing == 0)?;
        Some(SlotView { slot, mask: joint.mask, auto: joint.auto })
    }

    /// The plans of a table that all ranks can use, and those that never leave AUTO.
    pub fn usable(&self, table: &[SlotPlan]) -> Vec<SlotPlan> {
        let can = |p: &&SlotPlan| !leaves_auto(p) || self.of_all(p.slot).is_some_and(|view| can_use(p, &view));
        table.iter().filter(can).cloned().collect()
    }
}

/// Interval at which unanswered questions are repeated, microseconds.
const ASK_AGAIN_US: u64 = 100_000;

/// The leader's questions to all members about slots.
#[derive(Debug, Default)]
pub struct Asking {
    pub views: SlotViews,
    /// What the leader's own rank has seen: calls, possible entries, AUTO's entry.
    own: BTreeMap<Slot, (u64, u32, u8)>,
    /// Slots to ask about once more, whatever is known.
    again: BTreeSet<Slot>,
    asked_us: Option<u64>,
}

impl Asking {
    pub fn new(members: usize) -> Self {
        Asking { views: SlotViews::new(members), ..Asking::default() }
    }

    /// The leader's own rank has made a call of the slot. From its second call on, all members are asked about it; again if it changes.
    pub fn on_call(&mut self, slot: Slot, mask: u32, auto: u8) {
        let own = self.own.entry(slot).or_insert((0, mask, auto));
        let before = *own;
        *own = (own.0 + 1, own.1 & mask, if own.2 == auto { auto } else { NO_ENTRY });
        if own.0 == CALLS_BEFORE_VIEW || (own.0 > CALLS_BEFORE_VIEW && (own.1, own.2) != (before.1, before.2)) {
            self.again.insert(slot);
            self.asked_us = None;
        }
    }

    /// What is known of these slots may be out of date: a member has refused a plan.
    pub fn ask_again(&mut self, slots: impl Iterator<Item = Slot>) {
        self.again.extend(slots);
    }

    /// The question to send to every member now, if one is due: an epoch without a number whose plans name the slots.
    pub fn due(&mut self, now_us: u64) -> Option<ToMember> {
        if self.asked_us.is_some_and(|at| now_us < at + ASK_AGAIN_US) {
            return None;
        }
        let unknown =
            self.own.iter().filter(|(slot, own)| own.0 >= CALLS_BEFORE_VIEW && self.views.of_all(**slot).is_none());
        let mut slots: BTreeSet<Slot> = unknown.map(|(slot, _)| *slot).collect();
        slots.append(&mut self.again);
        if slots.is_empty() {
            return None;
        }
        self.asked_us = Some(now_us);
        let plans = slots.into_iter().map(|slot| SlotPlan { slot, runs: Vec::new(), settled: Arm::AUTO }).collect();
        Some(ToMember::Ask(Arc::new(Epoch::new(0, u64::MAX, plans))))
    }
}

/// The plan has an arm that is not AUTO.
pub fn leaves_auto(plan: &SlotPlan) -> bool {
    !plan.settled.is_auto() || plan.runs.iter().any(|r| !r.arm.is_auto())
}

/// Whether every arm of the plan is possible.
pub fn can_use(plan: &SlotPlan, view: &SlotView) -> bool {
    let mut arms = plan.runs.iter().map(|r| r.arm).chain([plan.settled]);
    arms.all(|arm| arm_is_possible(arm, view))
}

/// A channel count without an algorithm applies to what AUTO takes, except CollNet: it must be known.
fn arm_is_possible(arm: Arm, view: &SlotView) -> bool {
    let is_collnet = |a| matches!(a, Algorithm::CollNetDirect | Algorithm::CollNetChain);
    match (crate::cost_table::entry_of(arm), arm.channels) {
        (Some(entry), _) => view.mask >> entry & 1 == 1,
        (None, None) => true,
        (None, Some(_)) => crate::cost_table::entry(view.auto).is_some_and(|(a, _)| !is_collnet(a)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tune::{Collective, Protocol};

    const TREE: Arm = Arm::new(Algorithm::Tree, Protocol::Ll);
    const SLOT: Slot = Slot { collective: Collective::AllReduce, bucket: 20 };

    fn plan(settled: Arm) -> SlotPlan {
        SlotPlan { slot: SLOT, runs: Vec::new(), settled }
    }

    fn view(mask: u32, auto: u8) -> SlotView {
        SlotView { slot: SLOT, mask, auto }
    }

    #[test]
    fn an_arm_is_usable_once_every_rank_has_seen_the_slot_and_has_the_arm() {
        let mut views = SlotViews::new(3);
        let table = [plan(TREE)];
        assert!(!views.add(0, &view(0b11_1111, 5)) && !views.add(1, &view(0b10_1101, 5)));
        assert!(!views.add(1, &view(0b10_1101, 5)), "the same rank again");
        assert_eq!(views.usable(&table), []);
        assert!(views.add(2, &view(0b11_1111, 5)));
        assert_eq!((views.usable(&table), views.of_all(SLOT)), (table.to_vec(), Some(view(0b10_1101, 5))));
        assert!(views.add(1, &view(0b10_0100, 5)), "LL is no longer possible there");
        assert_eq!(views.usable(&table), []);
        assert!(!views.add(3, &view(0, 0)), "no such rank");
    }

    #[test]
    fn members_are_asked_about_a_slot_until_all_have_answered_and_again_when_it_changes() {
        let mut asking = Asking::new(2);
        asking.on_call(SLOT, 0b111, 2);
        assert_eq!(asking.due(0), None, "one call");
        asking.on_call(SLOT, 0b111, 2);
        let asked = |m: Option<ToMember>| m.is_some_and(|m| matches!(&m, ToMember::Ask(e) if e.plans[0].slot == SLOT));
        assert!(asked(asking.due(0)) && !asked(asking.due(10)) && asked(asking.due(ASK_AGAIN_US)));
        asking.views.add(0, &view(0b111, 2));
        assert!(asked(asking.due(2 * ASK_AGAIN_US)));
        asking.views.add(1, &view(0b111, 2));
        assert_eq!(asking.due(3 * ASK_AGAIN_US), None);
        asking.on_call(SLOT, 0b111, 2);
        assert_eq!(asking.due(4 * ASK_AGAIN_US), None);
        asking.on_call(SLOT, 0b011, 1);
        assert!(asked(asking.due(4 * ASK_AGAIN_US + 1)) && asking.due(9 * ASK_AGAIN_US).is_none());
        asking.ask_again([SLOT].into_iter());
        assert!(asked(asking.due(10 * ASK_AGAIN_US)));
    }

    #[test]
    fn a_channel_count_for_autos_choice_needs_one_choice_that_is_not_collnet() {
        let channels = plan(Arm { channels: Some(8), ..Arm::AUTO });
        assert!(can_use(&channels, &view(0, 5)) && can_use(&plan(Arm::AUTO), &view(0, NO_ENTRY)));
        assert!(!can_use(&channels, &view(0, NO_ENTRY)));
        assert!(!can_use(&channels, &view(0, 3 * Algorithm::CollNetDirect as u8 + 2)));
        let mut views = SlotViews::new(2);
        views.add(0, &view(1, 5));
        views.add(1, &view(1, 3));
        assert_eq!(views.usable(&[channels]), [], "AUTO chooses differently on the two");
    }
}
