//! Chooses the next launch of a run, or its end. The choice is a pure function of the request, the plan and the
//! launches so far. An interrupted run therefore continues as if it had not been interrupted, and a run that ended
//! early continues when it gets more time.
//!
//! An arm that computed wrong results once, in any launch, is ruled out. If the program can compare results, the
//! launches of an arm do so until one launch with the same arm, sizes and kind of execution has succeeded. Before that
//! the arm must not be chosen.

use super::journal::{JournaledPlan, LaunchRecord};
use super::launch::Launch;
use super::plan::{LaunchCost, LaunchPlan, PILOT_ITERATIONS, PlanRequest};
use ::tune::Arm;
use std::collections::VecDeque;

/// Consecutive failures of an arm after which it is given up.
const FAILURES_MAX: usize = 2;
/// An arm whose median at every size is this many times AUTO's is given up after a turn: no gate would let it pass.
const HOPELESS: f64 = 2.0;
/// Time limit of a launch: this many times the expected time, plus [`PATIENCE_S`].
const PATIENCE: f64 = 10.0;
const PATIENCE_S: f64 = 10.0;

/// The state of a run.
pub struct Schedule {
    ask: PlanRequest,
    arms: Vec<Arm>,
    auto: usize,
    warmup: u32,
    is_nccl_tests: bool,
    seconds: f64,
    entries: Vec<LaunchRecord>,
    planned: Option<Result<(LaunchPlan, LaunchCost), LaunchPlan>>,
    turn: u32,
    queue: VecDeque<Launch>,
    stopped: Option<String>,
}

/// The next step of a run.
#[derive(Debug, Clone, PartialEq)]
pub enum NextStep {
    /// Run this launch.
    Launch(Launch),
    /// Stop: everything is measured, or the time is up.
    Done,
    /// AUTO's first launch failed, so no arm can be compared.
    NoAuto(String),
    /// Even the smallest plan needs more time.
    TooShort(LaunchPlan),
}

impl Schedule {
    /// A run that has not begun. `arms` include AUTO.
    pub fn new(ask: PlanRequest, arms: &[Arm], warmup: u32, is_nccl_tests: bool, seconds: f64) -> Schedule {
        let auto = arms.iter().position(|a| a.is_auto()).unwrap_or(0);
        Schedule {
            ask,
            arms: arms.to_vec(),
            auto,
            warmup,
            is_nccl_tests,
            seconds,
            entries: Vec::new(),
            planned: None,
            turn: 0,
            queue: VecDeque::new(),
            stopped: None,
        }
    }

    fn groups(&self, sizes: &[u64]) -> Vec<Vec<u64>> {
        if self.ask.is_in_one_go { vec![sizes.to_vec()] } else { sizes.iter().map(|s| vec![*s]).collect() }
    }

    fn pilot(&self) -> Launch {
        let sizes = self.groups(&self.ask.sizes).pop().unwrap_or_default();
        let (arm, warmup) = (Arm::AUTO.to_string(), self.warmup);
        Launch { arm, sizes, is_overlapped: false, iterations: PILOT_ITERATIONS, warmup, is_checked: true }
    }

    /// The next step.
    pub fn next(&mut self) -> NextStep {
        match &self.planned {
            None if self.entries.is_empty() => return NextStep::Launch(self.pilot()),
            None => return NextStep::NoAuto(self.entries[0].failure.clone().unwrap_or_else(|| "no readings".into())),
            Some(Err(least)) => return NextStep::TooShort(least.clone()),
            Some(Ok(_)) => {}
        }
        while self.stopped.is_none() {
            while let Some(launch) = self.queue.front().cloned() {
                if self.has_failed(&launch) {
                    self.queue.pop_front();
                } else if self.turn > 1 && self.used_s() + self.expected_s(&launch) > self.seconds {
                    self.stopped = Some("the time limit was reached".into());
                    return NextStep::Done;
                } else {
                    return NextStep::Launch(launch);
                }
            }
            match &self.planned {
                Some(Ok((plan, _))) if self.turn < plan.turns => self.begin_turn(),
                _ => return NextStep::Done,
            }
        }
        NextStep::Done
    }

    /// Records the result of the next launch.
    pub fn put(&mut self, entry: LaunchRecord) {
        self.entries.push(entry);
        if self.entries.len() > 1 {
            self.queue.pop_front();
        } else if let Some(cost) = self.cost() {
            let left = self.seconds - self.entries[0].seconds;
            self.planned = Some(self.ask.plan(&cost, left.max(0.0)).map(|plan| (plan, cost)));
        }
    }

    /// Restores a launch of an interrupted run, with any time limit of that run. False: the launch does not follow
    /// from the launches before it.
    pub fn put_again(&mut self, entry: LaunchRecord) -> bool {
        let seconds = std::mem::replace(&mut self.seconds, f64::INFINITY);
        let follows = matches!(self.next(), NextStep::Launch(launch) if launch == entry.launch);
        self.seconds = seconds;
        if follows {
            self.put(entry);
        }
        follows
    }

    /// Continues with an earlier plan instead of the plan that the time allows now.
    ///
    /// # Errors
    /// A message: the plan does not belong to this run, or the pilot is missing.
    pub fn keep_to(&mut self, plan: &JournaledPlan) -> Result<(), String> {
        let cost = self.cost().filter(|_| self.entries.len() == 1 && self.turn == 0);
        let cost = cost.ok_or("a plan follows the first launch")?;
        self.planned = Some(Ok((self.ask.kept(plan.turns, plan.iterations, &plan.sizes, &cost)?, cost)));
        Ok(())
    }

    /// Cost of launches, from the pilot; `None` if the pilot failed.
    fn cost(&self) -> Option<LaunchCost> {
        let pilot = self.entries.first().filter(|e| e.failure.is_none() && !e.times_us.is_empty())?;
        let times_s: Vec<f64> = pilot.times_us.values().map(|t| 1e-6 * ::stats::mean(t)).collect();
        Some(LaunchCost::of_pilot(pilot.seconds, &times_s, PILOT_ITERATIONS, self.warmup, self.is_nccl_tests))
    }

    fn begin_turn(&mut self) {
        let Some(Ok((plan, _))) = self.planned.clone() else { return };
        let alive: Vec<Arm> =
            self.arms.iter().copied().filter(|a| a.is_auto() || self.hopeless(&a.to_string()).is_none()).collect();
        let mut queue = VecDeque::new();
        for is_overlapped in [false, true].into_iter().take(self.ask.kinds) {
            for sizes in self.groups(&plan.sizes) {
                for i in 0..alive.len() {
                    // The first arm changes from turn to turn.
                    let arm = alive[(i + self.turn as usize) % alive.len()].to_string();
                    let (iterations, warmup, sizes) = (plan.iterations, self.warmup, sizes.clone());
                    let is_checked = !self.is_known_right(&arm, is_overlapped, |s| *s == sizes);
                    queue.push_back(Launch { arm, sizes, is_overlapped, iterations, warmup, is_checked });
                }
            }
        }
        self.queue = queue;
        self.turn += 1;
    }

    /// The launches that count: all but the pilot.
    pub fn counted(&self) -> &[LaunchRecord] {
        self.entries.get(1..).unwrap_or(&[])
    }

    /// All launches.
    pub fn entries(&self) -> &[LaunchRecord] {
        &self.entries
    }

    fn has_failed(&self, launch: &Launch) -> bool {
        if self.computes_wrong(&launch.arm).is_some() {
            return true;
        }
        let same = |e: &&LaunchRecord| e.launch.arm == launch.arm && e.launch.is_overlapped == launch.is_overlapped;
        let (failed, well): (Vec<&LaunchRecord>, _) =
            self.counted().iter().filter(same).partition(|e| e.failure.is_some());
        failed.len() >= FAILURES_MAX && well.is_empty()
    }

    /// The wrong results of an arm as text, from any launch.
    pub fn computes_wrong(&self, arm: &str) -> Option<&str> {
        let wrong = self.entries.iter().find(|e| e.is_wrong && e.launch.arm == arm)?;
        Some(wrong.failure.as_deref().unwrap_or("this arm computes wrong results"))
    }

    /// Whether a launch of the arm compared its results and all were right.
    fn is_known_right(&self, arm: &str, is_overlapped: bool, of_sizes: impl Fn(&Vec<u64>) -> bool) -> bool {
        self.counted().iter().any(|e| {
            e.is_checked
                && e.failure.is_none()
                && e.launch.arm == arm
                && e.launch.is_overlapped == is_overlapped
                && of_sizes(&e.launch.sizes)
        })
    }

    /// Why an arm's readings of a size must not be used, however fast they are. AUTO is NCCL's own choice and needs no
    /// proof, but wrong results rule out its times, too.
    pub fn untrusted(&self, arm: &str, size: u64, is_overlapped: bool) -> Option<String> {
        if let Some(why) = self.computes_wrong(arm) {
            return Some(format!("ruled out: {why}"));
        }
        let has_readings = self
            .counted()
            .iter()
            .any(|e| e.launch.arm == arm && e.launch.is_overlapped == is_overlapped && e.times_us.contains_key(&size));
        let needs_proof = self.is_nccl_tests && has_readings && arm != self.arms[self.auto].to_string();
        (needs_proof && !self.is_known_right(arm, is_overlapped, |sizes| sizes.contains(&size)))
            .then(|| "ruled out: no launch compared its results".into())
    }

    /// Why an arm gets no further turn: at every size, in every kind of execution, its median is far above AUTO's.
    pub fn hopeless(&self, arm: &str) -> Option<String> {
        let auto = self.arms[self.auto].to_string();
        let median = |arm: &str, size: u64, is_overlapped: bool| {
            let of_arm = |e: &&LaunchRecord| e.launch.arm == arm && e.launch.is_overlapped == is_overlapped;
            let times: Vec<f64> =
                self.counted().iter().filter(of_arm).filter_map(|e| e.times_us.get(&size)).flatten().copied().collect();
            (!times.is_empty()).then(|| ::stats::median(&times))
        };
        let Some(Ok((plan, _))) = &self.planned else { return None };
        let kinds = [false, true].into_iter().take(self.ask.kinds);
        let cases = kinds.flat_map(|kind| plan.sizes.iter().map(move |s| (*s, kind)));
        let mut least = f64::INFINITY;
        for (size, kind) in cases {
            least = least.min(median(arm, size, kind)? / median(&auto, size, kind)?);
        }
        (least >= HOPELESS).then(|| format!("given up: {least:.1} times AUTO's time or more at every size"))
    }

    /// Seconds that launches took so far.
    pub fn used_s(&self) -> f64 {
        self.entries.iter().map(|e| e.seconds).sum()
    }

    /// Expected time of a launch: the time of the same launch before, else from the pilot.
    fn expected_s(&self, launch: &Launch) -> f64 {
        let same = |e: &&LaunchRecord| {
            (&e.launch.arm, &e.launch.sizes, e.launch.is_overlapped)
                == (&launch.arm, &launch.sizes, launch.is_overlapped)
        };
        let before = self.counted().iter().rev().find(same).map(|e| e.seconds);
        before.unwrap_or_else(|| match &self.planned {
            Some(Ok((_, c))) => c.start_s + c.warmup_s + f64::from(launch.iterations) * c.iteration_s,
            _ => 0.0,
        })
    }

    /// Longest time of a launch, seconds; `None` before the pilot.
    pub fn limit_s(&self, launch: &Launch) -> Option<f64> {
        matches!(self.planned, Some(Ok(_))).then(|| PATIENCE_S + PATIENCE * self.expected_s(launch))
    }

    /// The plan, once there is one.
    pub fn plan(&self) -> Option<(&LaunchPlan, &LaunchCost)> {
        self.planned.as_ref().and_then(|p| p.as_ref().ok()).map(|(p, c)| (p, c))
    }

    /// Time of everything requested, seconds.
    pub fn seconds_of_all(&self) -> Option<f64> {
        Some(self.entries.first()?.seconds + self.ask.seconds_of_all(&self.cost()?))
    }

    /// Number of launches left in the plan, and their seconds. An arm that is given up has none.
    pub fn left(&self) -> (usize, f64) {
        let Some((plan, _)) = self.plan() else { return (0, 0.0) };
        let queued: f64 = self.queue.iter().map(|l| self.expected_s(l)).sum();
        let turns = plan.turns.saturating_sub(self.turn);
        let turn_s = plan.seconds / f64::from(plan.turns.max(1));
        let launches = self.queue.len() + turns as usize * plan.launches;
        (launches, (queued + f64::from(turns) * turn_s).min((self.seconds - self.used_s()).max(queued)))
    }

    /// Turns that are complete.
    pub fn turns_done(&self) -> u32 {
        if self.queue.is_empty() { self.turn } else { self.turn.saturating_sub(1) }
    }

    /// Why the run ended before the plan did.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn entry(launch: Launch, seconds: f64, times_us: BTreeMap<u64, Vec<f64>>, failure: Option<String>) -> LaunchRecord {
        let is_wrong = failure.as_ref().is_some_and(|f| f.contains("wrong"));
        let is_checked = launch.is_checked && failure.is_none();
        LaunchRecord { launch, seconds, times_us, is_checked, failure, is_wrong, place: Default::default() }
    }

    const ARMS: [&str; 4] = ["AUTO", "TREE/SIMPLE", "RING/LL", "NVLS/SIMPLE"];

    fn schedule(seconds: f64, kinds: usize) -> Schedule {
        let arms: Vec<Arm> = ARMS.iter().map(|a| a.parse().unwrap()).collect();
        let sizes = vec![1 << 20, 4 << 20];
        let ask = PlanRequest { arms: arms.len(), kinds, sizes, is_in_one_go: true, iterations: 50, turns: 5 };
        Schedule::new(ask, &arms, 10, true, seconds)
    }

    /// Plays a program with a known run time; returns the launches.
    fn play(s: &mut Schedule, answer: impl Fn(&Launch) -> (f64, Result<f64, &'static str>)) -> Vec<Launch> {
        let mut out = Vec::new();
        while let NextStep::Launch(launch) = s.next() {
            assert!(out.len() < 1_000, "the run does not end");
            let (seconds, said) = answer(&launch);
            let times = |t: f64| launch.sizes.iter().map(|s| (*s, vec![t; launch.iterations as usize])).collect();
            let (times_us, failure) = match said {
                Ok(t) => (times(t), None),
                Err(e) => (BTreeMap::new(), Some(e.to_owned())),
            };
            out.push(launch.clone());
            s.put(entry(launch, seconds, times_us, failure));
        }
        out
    }

    fn count(launches: &[Launch], arm: &str) -> usize {
        launches[1..].iter().filter(|l| l.arm == arm).count()
    }

    #[test]
    fn a_program_of_known_time_is_measured_in_turns_within_two_minutes() {
        let mut s = schedule(120.0, 1);
        let launches = play(&mut s, |_| (6.0, Ok(1_000.0)));
        // 6 s of pilot, then four turns of four arms in 96 s: five turns would take 120 s.
        assert_eq!((launches.len(), s.turns_done(), s.stopped()), (1 + 16, 4, None));
        assert!(s.used_s() <= 120.0);
        assert!(launches[0].iterations == 5 && launches[1..].iter().all(|l| l.iterations == 13));
        assert_eq!(ARMS.map(|a| count(&launches, a)), [4; 4]);
        let first = |turn: usize| launches[1 + 4 * turn].arm.as_str();
        assert_eq!([first(0), first(1), first(2), first(3)], ARMS, "the first arm changes");
        assert!(launches[1..5].iter().all(|l| l.is_checked) && launches[5..].iter().all(|l| !l.is_checked));
    }

    #[test]
    fn an_arm_that_fails_twice_or_is_far_slower_is_given_up() {
        let mut s = schedule(120.0, 2);
        let launches = play(&mut s, |l| match l.arm.as_str() {
            "NVLS/SIMPLE" => (1.0, Err("no algorithm")),
            "RING/LL" => (1.0, Ok(2_500.0)),
            _ => (1.0, Ok(1_000.0)),
        });
        assert_eq!(ARMS.map(|a| count(&launches, a)), [10, 10, 2, 4]);
        assert_eq!(s.hopeless("RING/LL").unwrap(), "given up: 2.5 times AUTO's time or more at every size");
        assert!(s.hopeless("NVLS/SIMPLE").is_none() && s.hopeless("TREE/SIMPLE").is_none());
    }

    #[test]
    fn an_arm_that_computed_wrong_results_once_is_never_launched_again_nor_trusted() {
        let mut s = schedule(120.0, 2);
        let tries = std::cell::Cell::new(0);
        let launches = play(&mut s, |l| match l.arm.as_str() {
            // Fast, and wrong where results are compared.
            "RING/LL" if l.is_checked => (1.0, Err("7 wrong elements")),
            "RING/LL" => (1.0, Ok(500.0)),
            // The launch that would have compared results fails for another reason: the next launch compares them.
            "NVLS/SIMPLE" if tries.replace(tries.get() + 1) == 0 => (1.0, Err("no memory")),
            _ => (1.0, Ok(1_000.0)),
        });
        assert_eq!(count(&launches, "RING/LL"), 1, "neither in a later turn nor in another kind of execution");
        for (size, is_overlapped) in [(1 << 20, false), (4 << 20, true)] {
            assert_eq!(s.untrusted("RING/LL", size, is_overlapped).unwrap(), "ruled out: 7 wrong elements");
            assert_eq!(
                (s.untrusted("AUTO", size, is_overlapped), s.untrusted("TREE/SIMPLE", size, is_overlapped)),
                (None, None)
            );
        }
        let nvls: Vec<bool> =
            launches.iter().filter(|l| l.arm == "NVLS/SIMPLE" && !l.is_overlapped).map(|l| l.is_checked).collect();
        assert_eq!(nvls, [true, true, false, false, false], "compared until it was right once");
        assert_eq!(s.untrusted("NVLS/SIMPLE", 1 << 20, false), None);
    }

    #[test]
    fn an_arm_whose_results_were_never_compared_is_not_trusted() {
        let mut s = schedule(120.0, 1);
        while let NextStep::Launch(launch) = s.next() {
            let times_us = launch.sizes.iter().map(|s| (*s, vec![1_000.0; 5])).collect();
            s.put(LaunchRecord { is_checked: false, ..entry(launch, 2.0, times_us, None) });
        }
        assert!(s.untrusted("TREE/SIMPLE", 1 << 20, false).unwrap().contains("compared"));
        assert_eq!(s.untrusted("AUTO", 1 << 20, false), None);
    }

    #[test]
    fn a_run_that_ended_early_continues_with_its_plan_when_it_gets_more_time() {
        let slow = |l: &Launch| (if l.arm == "AUTO" { 1.0 } else { 9.0 }, Ok(1_000.0));
        let mut first = schedule(60.0, 1);
        let launches = play(&mut first, slow);
        let plan = first.plan().unwrap().0.clone();
        assert_eq!(first.stopped(), Some("the time limit was reached"));
        let kept = JournaledPlan { turns: plan.turns, iterations: plan.iterations, sizes: plan.sizes.clone() };
        for seconds in [20.0, 600.0] {
            let mut again = schedule(seconds, 1);
            for (i, e) in first.entries().iter().enumerate() {
                assert!(again.put_again(e.clone()), "launch {i} of {}", launches.len());
                if i == 0 {
                    again.keep_to(&kept).unwrap();
                }
            }
            let more = play(&mut again, slow).len();
            assert_eq!((again.plan().unwrap().0, more > 0), (&plan, seconds > 60.0), "{seconds} s");
            assert_eq!(again.stopped().is_none(), seconds > 60.0);
        }
        let mut other = schedule(60.0, 1);
        assert!(!other.put_again(first.entries()[1].clone()), "the first launch is the pilot");
        assert!(other.keep_to(&kept).is_err());
        assert!(other.put_again(first.entries()[0].clone()));
        for bad in [
            JournaledPlan { turns: 0, ..kept.clone() },
            JournaledPlan { iterations: 9_999, ..kept.clone() },
            JournaledPlan { sizes: vec![3], ..kept.clone() },
        ] {
            assert!(other.keep_to(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_run_whose_launches_take_longer_than_the_pilot_ends_in_time_after_the_first_turn() {
        let mut s = schedule(60.0, 1);
        let launches = play(&mut s, |l| (if l.arm == "AUTO" { 1.0 } else { 9.0 }, Ok(1_000.0)));
        assert_eq!(s.stopped(), Some("the time limit was reached"));
        assert!(s.used_s() <= 60.0 && ARMS.iter().all(|a| count(&launches, a) >= 1), "{}", s.used_s());
        let mut s = schedule(20.0, 1);
        let launches = play(&mut s, |l| (if l.arm == "AUTO" { 0.5 } else { 30.0 }, Ok(1_000.0)));
        assert_eq!((launches.len(), s.turns_done()), (1 + 4, 1), "the first turn is always finished");
        assert_eq!(s.limit_s(&launches[1]).map(f64::round), Some(10.0 + 10.0 * 0.5));
    }

    #[test]
    fn too_little_time_and_a_failed_pilot_are_reported() {
        let mut s = schedule(10.0, 1);
        play(&mut s, |_| (6.0, Ok(1_000.0)));
        let NextStep::TooShort(least) = s.next() else { panic!("{:?}", s.next()) };
        assert!((20.0..30.0).contains(&least.seconds) && s.seconds_of_all().is_some_and(|t| t > 120.0), "{least:?}");
        let mut s = schedule(10.0, 1);
        play(&mut s, |_| (1.0, Err("no GPU")));
        assert_eq!(s.next(), NextStep::NoAuto("no GPU".into()));
    }

    #[test]
    fn the_remaining_launches_decrease_to_none() {
        let mut s = schedule(120.0, 1);
        let mut last = f64::INFINITY;
        let mut n = 0;
        while let NextStep::Launch(launch) = s.next() {
            let (launches, seconds) = s.left();
            assert!(n == 0 || (launches > 0 && seconds <= last), "{launches} launches, {seconds} s after {last}");
            last = if n == 0 { last } else { seconds };
            n += 1;
            let times_us = launch.sizes.iter().map(|s| (*s, vec![1_000.0; 5])).collect();
            s.put(entry(launch, 2.0, times_us, None));
        }
        assert_eq!(s.left(), (0, 0.0));
    }
}
