//! Whose turn it is: the slots of a communicator compare arms one after the other, those with most bytes first, within one
//! budget for the whole step.

use super::learner::SlotLearner;
use super::race::Block;
use std::collections::BTreeMap;

/// Steps that exploring may cost in all, before any share of the job's steps.
const BUDGET_STEPS: f64 = 8.0;
/// Share of the job's steps that exploring may cost on top.
const BUDGET_SHARE: f64 = 0.004;
/// A slot with a smaller share of the communicator's bytes cannot change a step beyond its noise.
const SHARE_MIN: f64 = 0.02;
/// Steps between two plans of settled slots.
const REST_STEPS: u64 = 300;

/// A slot.
struct Turn {
    learner: Box<dyn SlotLearner>,
    bytes: f64,
    /// The step after which the slot may be looked at again, once it is settled.
    rested: u64,
}

/// See the module documentation.
#[derive(Default)]
pub struct Turns {
    slots: BTreeMap<u32, Turn>,
    bytes: BTreeMap<u32, f64>,
    /// The slot whose race is open.
    current: Option<u32>,
    /// A plan that waits for the budget.
    waiting: Option<(u32, Vec<Block>)>,
    /// Steps spent by learners that were started again.
    spent_before: f64,
    /// Factor of the budget.
    budget: f64,
}

impl Turns {
    /// `budget`: factor of what comparing arms may cost.
    pub fn new(budget: f64) -> Self {
        Turns { budget, ..Turns::default() }
    }

    /// A call of this many bytes.
    pub fn on_call(&mut self, slot: u32, bytes: u64) {
        *self.bytes.entry(slot).or_default() += bytes as f64;
    }

    /// Adds a slot, or replaces its learner.
    pub fn add(&mut self, slot: u32, learner: Box<dyn SlotLearner>) {
        let bytes = self.bytes.get(&slot).copied().unwrap_or_default();
        self.slots.insert(slot, Turn { learner, bytes, rested: 0 });
    }

    /// Forgets a slot.
    pub fn remove(&mut self, slot: u32) {
        if let Some(turn) = self.slots.remove(&slot) {
            self.spent_before += turn.learner.spent_steps();
        }
        self.waiting.take_if(|w| w.0 == slot);
        self.current.take_if(|c| *c == slot);
    }

    /// Forgets all learners: the caller adds them again.
    pub fn restart(&mut self) {
        self.spent_before = self.spent();
        self.slots.clear();
        self.current = None;
        self.waiting = None;
    }

    /// Whether the slot has a learner.
    pub fn has(&self, slot: u32) -> bool {
        self.slots.contains_key(&slot)
    }

    fn spent(&self) -> f64 {
        self.spent_before + self.slots.values().map(|s| s.learner.spent_steps()).sum::<f64>()
    }

    /// The next slot and its blocks, at this step of the job. `in_loop`: the slot is called in every step.
    pub fn plan(&mut self, step: u64, in_loop: impl Fn(u32) -> bool) -> Option<(u32, Vec<Block>)> {
        if self.waiting.is_none() {
            self.waiting = self.next(step, in_loop);
        }
        let (slot, blocks) = self.waiting.as_ref()?;
        let cost = self.slots.get(slot)?.learner.expected_cost(blocks);
        if self.spent() + cost > self.budget * (BUDGET_STEPS + BUDGET_SHARE * step as f64) {
            return None;
        }
        self.waiting.take()
    }

    fn next(&mut self, step: u64, in_loop: impl Fn(u32) -> bool) -> Option<(u32, Vec<Block>)> {
        for (slot, turn) in &mut self.slots {
            turn.bytes = self.bytes.get(slot).copied().unwrap_or_default();
        }
        let total: f64 = self.bytes.values().sum();
        let mut order: Vec<(u32, f64)> = self
            .slots
            .iter()
            .map(|(k, t)| (*k, t.bytes))
            .filter(|t| t.1 >= SHARE_MIN * total && in_loop(t.0))
            .collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let open = |s: &u32| self.slots.get(s).is_some_and(|t| !t.learner.is_settled());
        self.current = self
            .current
            .filter(|c| open(c) && order.iter().any(|o| o.0 == *c))
            .or_else(|| order.iter().map(|o| o.0).find(|s| open(s)));
        if let Some(slot) = self.current {
            return Some((slot, self.slots.get_mut(&slot)?.learner.plan()?));
        }
        // All are settled: the one that has rested longest is looked at again.
        let slot = order.iter().map(|o| o.0).min_by_key(|s| self.slots.get(s).map_or(0, |t| t.rested))?;
        let newest = order.iter().filter_map(|o| self.slots.get(&o.0)).map(|t| t.rested).max()?;
        if step < newest + REST_STEPS {
            return None;
        }
        Some((slot, self.slots.get_mut(&slot)?.learner.plan()?))
    }

    /// Takes the times of a plan's steps.
    pub fn learn(&mut self, slot: u32, blocks: &[Block], times_us: &[Option<f64>], step: u64) {
        if let Some(turn) = self.slots.get_mut(&slot) {
            turn.learner.learn(blocks, times_us);
            turn.rested = step;
        }
    }

    /// The plan was not carried out.
    pub fn discard(&mut self, slot: u32, blocks: &[Block]) {
        if let Some(turn) = self.slots.get_mut(&slot) {
            turn.learner.discard(blocks);
        }
    }

    /// The arms in use by slot, the first arm (AUTO) left out.
    pub fn in_use(&self) -> BTreeMap<u32, usize> {
        self.slots.iter().map(|(k, t)| (*k, t.learner.in_use())).filter(|a| a.1 != 0).collect()
    }

    /// By slot: the arm in use and the reason.
    pub fn findings(&self) -> Vec<(u32, usize, String)> {
        let total: f64 = self.bytes.values().sum();
        let one = |(slot, turn): (&u32, &Turn)| {
            let bytes = self.bytes.get(slot).copied().unwrap_or_default();
            let because = if bytes < SHARE_MIN * total && turn.learner.in_use() == 0 {
                format!(
                    "AUTO: {:.1} % of the communicator's bytes, too few to be seen in a step",
                    100.0 * bytes / total
                )
            } else {
                turn.learner.because()
            };
            (*slot, turn.learner.in_use(), because)
        };
        self.slots.iter().map(one).collect()
    }

    /// The slot's plans confirm a choice that was made before.
    pub fn is_fresh(&self, slot: u32) -> bool {
        self.slots.get(&slot).is_some_and(|t| t.learner.is_fresh())
    }

    /// What comparing arms of a slot has cost so far, in steps.
    pub fn spent_steps(&self, slot: u32) -> f64 {
        self.slots.get(&slot).map_or(0.0, |t| t.learner.spent_steps())
    }

    /// See [`SlotLearner::fresh_gain`].
    pub fn fresh_gain(&self, slot: u32) -> Option<(f64, f64)> {
        self.slots.get(&slot)?.learner.fresh_gain()
    }
}
