//! Who runs which arms when: slots compare arms in the same steps, in random orders that do not depend on each other, so
//! that one step tells about all of them. Slots with most bytes come first, and one budget bounds what exploring may
//! cost the whole step.

use super::fit::{self, Fit, LAG_MAX, Record};
use super::learner::{Block, SlotLearner, Wish};
use stats::random::Random;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of runs of a slot's plan.
pub const BLOCKS_MAX: usize = 32;
/// Maximum number of blocks of a plan, without the steps before and after.
const MIDDLE_BLOCKS_MAX: usize = BLOCKS_MAX - 2;
/// Steps of the arms in use before and after the blocks: until effects have passed, and one more.
const MARGIN: u32 = LAG_MAX as u32 + 1;
/// Maximum number of arms in one plan, AUTO and arms in use not counted; the first slot may have more.
const ARMS_MAX: usize = 16;
/// Random orders of which the one is taken that separates the slots best.
const DRAWS: u64 = 24;
/// Plans that are remembered.
const RECORDS_MAX: usize = 12;
/// Steps that exploring may cost in all, before any share of the job's steps.
const BUDGET_STEPS: f64 = 12.0;
/// Share of the job's steps that exploring may cost on top.
const BUDGET_SHARE: f64 = 0.0025;
/// Steps of an arm that agree, below which its error says nothing of its cost.
const STEPS_KNOWN: usize = 2;
/// A slot with a smaller share of the communicator's bytes cannot change a step beyond its noise.
const SHARE_MIN: f64 = 0.04;
/// Steps between two plans of settled slots.
const REST_STEPS: u64 = 300;

/// The blocks of each slot of a plan, equally many steps each.
pub type Plan = BTreeMap<u32, Vec<Block>>;

/// A slot.
struct Turn {
    learner: Box<dyn SlotLearner>,
    bytes: f64,
    /// The step after which the slot may be looked at again, once it is settled.
    rested: u64,
    /// The first plan that counts for it.
    since: u64,
    /// Steps of each arm since then.
    run: BTreeMap<usize, u32>,
    /// Excess time of its plans so far in steps, and of those before `since`.
    spent: f64,
    spent_before: f64,
}

impl Turn {
    /// Expected excess of an arm over the arm in use as a share of the step, with `total` bytes in all slots.
    fn expected(&self, arm: usize, total: f64) -> f64 {
        self.learner.expected(arm, if total > 0.0 { self.bytes / total } else { 1.0 })
    }
}

/// See the module documentation.
#[derive(Default)]
pub struct Turns {
    slots: BTreeMap<u32, Turn>,
    bytes: BTreeMap<u32, f64>,
    records: VecDeque<Record>,
    /// Number of the next plan.
    serial: u64,
    /// A plan that waits for the budget.
    waiting: Option<Plan>,
    /// Steps spent by learners that were started again.
    spent_before: f64,
    /// [`restart`](Self::restart) was called.
    restarted: bool,
    /// Factor of the budget.
    budget: f64,
    /// Times are those of single calls: one slot at a time, without delay.
    by_call: bool,
    lag: Option<usize>,
}

impl Turns {
    /// `budget`: factor of what comparing arms may cost. `by_call`: times are those of single calls.
    pub fn new(budget: f64, by_call: bool) -> Self {
        Turns { budget, by_call, ..Turns::default() }
    }

    /// A call of this many bytes.
    pub fn on_call(&mut self, slot: u32, bytes: u64) {
        *self.bytes.entry(slot).or_default() += bytes as f64;
    }

    /// Adds a slot, or replaces its learner.
    pub fn add(&mut self, slot: u32, learner: Box<dyn SlotLearner>) {
        self.remove(slot);
        let bytes = self.bytes.get(&slot).copied().unwrap_or_default();
        self.slots.insert(
            slot,
            Turn { learner, bytes, rested: 0, since: self.serial, run: BTreeMap::new(), spent: 0.0, spent_before: 0.0 },
        );
    }

    /// Forgets a slot.
    pub fn remove(&mut self, slot: u32) {
        if let Some(turn) = self.slots.remove(&slot) {
            self.spent_before += turn.spent;
        }
        self.waiting.take_if(|w| w.contains_key(&slot));
        self.records.retain(|r| !r.arms.contains_key(&slot));
    }

    /// Forgets all learners: the caller adds them again. What they spent counts as half of [`BUDGET_STEPS`] at most, once:
    /// a first rhythm may be wrong, and its steps are others than those to come.
    pub fn restart(&mut self) {
        let most = if self.restarted { f64::INFINITY } else { self.budget * BUDGET_STEPS / 2.0 };
        self.spent_before = self.spent().min(most);
        self.restarted = true;
        self.slots.clear();
        self.records.clear();
        self.waiting = None;
    }

    /// Whether the slot has a learner.
    pub fn has(&self, slot: u32) -> bool {
        self.slots.contains_key(&slot)
    }

    fn spent(&self) -> f64 {
        self.spent_before + self.slots.values().map(|s| s.spent).sum::<f64>()
    }

    /// Steps after which a step shows no arm from before: [`LAG_MAX`] until the delay is known.
    pub fn lag(&self) -> usize {
        self.lag.unwrap_or(if self.by_call { 0 } else { LAG_MAX })
    }

    /// The next plan, at this step of the job. `in_loop`: the slot is called in every step.
    pub fn plan(&mut self, step: u64, in_loop: impl Fn(u32) -> bool) -> Option<Plan> {
        if self.waiting.is_none() {
            self.waiting = self.next(step, in_loop);
        }
        let left = self.budget * (BUDGET_STEPS + BUDGET_SHARE * step as f64) - self.spent();
        let plan = self.afford(self.waiting.as_ref()?, left)?;
        self.waiting = None;
        Some(plan)
    }

    /// The part of a plan that costs at most `left` steps: the arm in use takes the place of the costliest blocks, of equal
    /// ones the last. Blocks that cost nothing always run. `None` if that leaves nothing to compare.
    fn afford(&self, plan: &Plan, left: f64) -> Option<Plan> {
        let total: f64 = self.bytes.values().sum();
        let mut costs: Vec<(f64, usize, u32)> = Vec::new();
        for (slot, blocks) in plan {
            let turn = self.slots.get(slot)?;
            let cost = |b: &Block| turn.expected(b.arm, total) * f64::from(b.steps);
            costs.extend(blocks.iter().map(cost).enumerate().filter(|c| c.1 > 0.0).map(|(i, cost)| (cost, i, *slot)));
        }
        costs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)));
        let mut plan = plan.clone();
        let (mut cost, all) = (costs.iter().map(|c| c.0).sum::<f64>(), costs.len());
        while cost > left
            && let Some((most, block, slot)) = costs.pop()
        {
            cost -= most;
            plan.get_mut(&slot)?.get_mut(block)?.arm = self.slots.get(&slot)?.learner.in_use();
        }
        let mut compares = costs.len() == all;
        for (slot, blocks) in &mut plan {
            let base = self.slots.get(slot)?.learner.in_use();
            compares |= blocks.iter().any(|b| b.arm != base);
            *blocks = joined(std::mem::take(blocks));
        }
        compares.then_some(plan)
    }

    fn next(&mut self, step: u64, in_loop: impl Fn(u32) -> bool) -> Option<Plan> {
        for (slot, turn) in &mut self.slots {
            turn.bytes = self.bytes.get(slot).copied().unwrap_or_default();
        }
        let total: f64 = self.bytes.values().sum();
        let mut order: Vec<(u32, f64, bool)> = self
            .slots
            .iter()
            .map(|(k, t)| (*k, t.bytes, !t.learner.is_settled()))
            .filter(|t| t.1 >= SHARE_MIN * total && in_loop(t.0))
            .collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let newest = order.iter().filter_map(|o| self.slots.get(&o.0)).map(|t| t.rested).max()?;
        if order.iter().any(|o| o.2) {
            order.retain(|o| o.2);
        } else if step < newest + REST_STEPS {
            return None;
        }
        let mut wishes: Vec<(u32, usize, Wish)> = Vec::new();
        let mut arms = 0;
        for (slot, ..) in order {
            let turn = self.slots.get_mut(&slot)?;
            if wishes.is_empty()
                && let Some(blocks) = turn.learner.own_plan()
            {
                return Some(BTreeMap::from([(slot, blocks)]));
            }
            let base = turn.learner.in_use();
            let Some(wish) = turn.learner.wish() else { continue };
            let more = wish.cycle.iter().filter(|a| **a != 0 && **a != base).count().max(1);
            let fits =
                wishes.first().is_none_or(|w| w.2.grain == wish.grain && !self.by_call && arms + more <= ARMS_MAX);
            if fits {
                arms += more;
                wishes.push((slot, base, wish));
            }
        }
        (!wishes.is_empty()).then(|| self.lay_out(&wishes, arms))
    }

    /// Puts the wishes side by side. With several slots, steps must be more than arms.
    fn lay_out(&mut self, wishes: &[(u32, usize, Wish)], arms: usize) -> Plan {
        let mut blocks = wishes.iter().map(|w| w.2.blocks).max().unwrap_or(0);
        if wishes.len() > 1 {
            blocks = blocks.max(2 * arms);
        }
        let blocks = blocks.min(MIDDLE_BLOCKS_MAX);
        let draw = |n: u64| -> Vec<Vec<usize>> {
            let mut random = Random::of(self.serial, n);
            wishes.iter().map(|w| in_rounds(&w.2.cycle, blocks, &mut random)).collect()
        };
        let draws = if wishes.len() > 1 { DRAWS } else { 1 };
        let middle = (0..draws).map(draw).map(|orders| (confusion(wishes, &orders), orders));
        let middle = middle.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(Vec::new(), |d| d.1);
        let one = |((slot, base, wish), order): (&(u32, usize, Wish), Vec<usize>)| {
            let margin = [Block { arm: *base, steps: MARGIN }];
            let all = order.into_iter().map(|arm| Block { arm, steps: wish.grain });
            (*slot, joined(margin.into_iter().chain(all).chain(margin)))
        };
        wishes.iter().zip(middle).map(one).collect()
    }

    /// Takes the times of a plan's steps.
    pub fn learn(&mut self, plan: &Plan, times_us: &[Option<f64>], step: u64) {
        let all = |blocks: &[Block]| -> Vec<usize> {
            blocks.iter().flat_map(|b| std::iter::repeat_n(b.arm, b.steps as usize)).collect()
        };
        let arms = plan.iter().map(|(slot, blocks)| (*slot, all(blocks))).collect();
        fit::push(&mut self.records, Record { serial: self.serial, arms, times_us: times_us.to_vec() }, RECORDS_MAX);
        let mut fits: BTreeMap<u64, Option<Fit>> = BTreeMap::new();
        let total: f64 = self.bytes.values().sum();
        for (slot, blocks) in plan {
            let Some(turn) = self.slots.get_mut(slot) else { continue };
            turn.rested = step.max(1);
            turn.learner.learn_own(blocks, times_us);
            if turn.learner.begins() {
                turn.since = self.serial;
                turn.spent_before = turn.spent;
                turn.run.clear();
            }
            blocks.iter().for_each(|b| *turn.run.entry(b.arm).or_insert(0) += b.steps);
            let since = turn.since;
            let lag = if self.by_call { 0 } else { LAG_MAX };
            let fit =
                fits.entry(since).or_insert_with(|| Fit::of(self.records.iter().filter(|r| r.serial >= since), lag));
            let base = turn.learner.in_use();
            // Later plans correct what earlier ones seemed to cost.
            let excess = |(arm, steps): (&usize, &u32)| {
                let known = fit.as_ref().and_then(|f| Some((f.over(*slot, *arm, base)?, f.steps(*slot, *arm))));
                let share = match known {
                    Some((e, steps)) if steps < STEPS_KNOWN => e.share,
                    Some((e, _)) => e.share + e.error,
                    None => turn.expected(*arm, total),
                };
                share.max(0.0) * f64::from(*steps)
            };
            turn.spent = turn.spent_before + turn.run.iter().map(excess).sum::<f64>();
            let Some(fit) = fit else { continue };
            turn.learner.learn(*slot, fit, blocks);
            self.lag = Some(fit.lag());
        }
        self.serial += 1;
    }

    /// The plan was not carried out.
    pub fn discard(&mut self, plan: &Plan) {
        for (slot, blocks) in plan {
            if let Some(turn) = self.slots.get_mut(slot) {
                turn.learner.learn_own(blocks, &[]);
            }
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
        self.slots.get(&slot).map_or(0.0, |t| t.spent)
    }

    /// See [`SlotLearner::fresh_gain`].
    pub fn fresh_gain(&self, slot: u32) -> Option<(f64, f64)> {
        self.slots.get(&slot)?.learner.fresh_gain()
    }
}

/// Neighbours with the same arm as one block.
fn joined(blocks: impl IntoIterator<Item = Block>) -> Vec<Block> {
    let mut out: Vec<Block> = Vec::new();
    for b in blocks {
        match out.last_mut() {
            Some(last) if last.arm == b.arm => last.steps += b.steps,
            _ => out.push(b),
        }
    }
    out
}

/// The arms of `blocks` blocks: rounds of the cycle, each in random order.
fn in_rounds(cycle: &[usize], blocks: usize, random: &mut Random) -> Vec<usize> {
    let mut order = Vec::new();
    while order.len() < blocks && !cycle.is_empty() {
        let mut round = cycle.to_vec();
        random.shuffle(&mut round);
        order.extend(round);
    }
    order.truncate(blocks);
    order
}

/// How much the arms of several slots hide each other in these orders: the sum of the variances of all effects, in those
/// of a block.
fn confusion(wishes: &[(u32, usize, Wish)], orders: &[Vec<usize>]) -> f64 {
    let mut columns: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (i, (order, wish)) in orders.iter().zip(wishes).enumerate() {
        for arm in order.iter().filter(|a| **a != wish.1) {
            let next = columns.len() + 1;
            columns.entry((i, *arm)).or_insert(next);
        }
    }
    let width = columns.len() + 1;
    let mut normal: Vec<Vec<f64>> =
        (0..width).map(|i| (0..width).map(|j| if i == j { 1e-3 } else { 0.0 }).collect()).collect();
    for block in 0..orders.first().map_or(0, Vec::len) {
        let own = orders.iter().enumerate().filter_map(|(i, order)| columns.get(&(i, *order.get(block)?)));
        let shown: Vec<usize> = own.copied().chain([0]).collect();
        shown.iter().for_each(|a| shown.iter().for_each(|b| normal[*a][*b] += 1.0));
    }
    fit::factor(&normal).map_or(f64::INFINITY, |factor| factor.inverse_diagonal().iter().skip(1).sum())
}

#[cfg(test)]
mod tests;
