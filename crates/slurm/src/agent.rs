//! One connection to the plugin.

use crate::books;
use crate::choose::{Known, Nodes, Verdict, choose};
use crate::decider::{Decider, Unable, status};
use crate::message::{self, Ask, FromPlugin, LINE_BYTES_MAX, ToPlugin};
use crate::mirror;
use crate::policy::Policies;
use engine::JobIn;
use std::io::{BufRead, Read, Write};
use std::time::{Duration, Instant};
use topology::{Allocation, Cluster};

/// The running jobs are read again after this time, or after so many times the time that it takes: the controller has 10,000 of them to print. Jobs that
/// started on the agent's orders are known without it.
const JOBS_AGE_MAX: Duration = Duration::from_secs(1);
const JOBS_PAUSE: u32 = 20;

/// The plugin answers every order. An order without an answer is forgotten after this time, so that a fault costs no GPUs for good.
const ORDER_AGE_MAX: Duration = Duration::from_secs(60);

/// An order that the plugin has not answered yet.
struct Order {
    at: Instant,
    job: u32,
    /// Nodes and indices.
    gpus: Vec<(String, Vec<u8>)>,
}

/// The orders without an answer. Questions that the plugin wrote before it read an order still offer its GPUs; those behind its answer do not.
#[derive(Default)]
struct Orders(Vec<Order>);

impl Orders {
    /// The question without the GPUs of these orders. O(GPUs).
    fn kept_out(&mut self, ask: &Ask) -> Ask {
        self.0.retain(|o| o.at.elapsed() < ORDER_AGE_MAX);
        let held: std::collections::HashSet<(&str, u8)> = self
            .0
            .iter()
            .filter(|o| o.job != ask.job)
            .flat_map(|o| &o.gpus)
            .flat_map(|(node, gpus)| gpus.iter().map(move |g| (node.as_str(), *g)))
            .collect();
        let rest = |(node, gpus): &(String, Vec<u8>)| {
            let rest: Vec<u8> = gpus.iter().copied().filter(|g| !held.contains(&(node.as_str(), *g))).collect();
            (!rest.is_empty()).then(|| (node.clone(), rest))
        };
        Ask { free: ask.free.iter().filter_map(rest).collect(), ..ask.clone() }
    }

    fn add(&mut self, job: u32, answer: &ToPlugin) {
        if let ToPlugin::Take(order) = answer {
            self.0.push(Order { at: Instant::now(), job, gpus: order.clone() });
        }
    }

    /// The plugin answered the job's order.
    fn answered(&mut self, job: u32) -> Option<Order> {
        self.0.iter().position(|o| o.job == job).map(|i| self.0.remove(i))
    }
}

/// The answer while orders without an answer have GPUs that the job could use.
fn soon() -> Verdict {
    Verdict { answer: ToPlugin::Soon, note: "other jobs get these GPUs".into() }
}

/// What the agent asks the controller.
pub trait Controller {
    /// The text of `scontrol show job -d -o`.
    fn jobs(&mut self) -> Result<String, String>;
}

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// The plugin closed the connection.
    #[error("the plugin closed the connection; the controller has stopped, or another agent has connected")]
    Closed,
    /// The connection broke.
    #[error("the connection to the plugin broke: {0}")]
    Broken(#[from] std::io::Error),
    /// The plugin wrote a line that it does not write.
    #[error(transparent)]
    Rubbish(#[from] message::Rubbish),
    /// A line is too long.
    #[error("the plugin sent a line of more than {LINE_BYTES_MAX} bytes")]
    TooLong,
}

/// Answers the plugin's questions.
pub struct Agent<'a> {
    decider: &'a dyn Decider,
    controller: &'a mut dyn Controller,
    policies: &'a Policies,
    jobs: Vec<JobIn>,
    /// When the jobs are read again; `None`: before the next answer.
    read_again: Option<Instant>,
    orders: Orders,
}

impl<'a> Agent<'a> {
    /// An agent that asks `decider` by the `policies`. A failure of the controller is told. It means that no running jobs are known; the free GPUs
    /// come with every question.
    pub fn new(decider: &'a dyn Decider, controller: &'a mut dyn Controller, policies: &'a Policies) -> Agent<'a> {
        Agent { decider, controller, policies, jobs: Vec::new(), read_again: None, orders: Orders::default() }
    }

    /// Answers until the connection ends. `tell` gets a line for every event; `now_unix_s` is the clock of the engine's records.
    pub fn serve(
        &mut self,
        input: impl Read,
        mut output: impl Write,
        now_unix_s: &dyn Fn() -> f64,
        tell: &mut dyn FnMut(&str),
    ) -> Ended {
        let mut input = std::io::BufReader::new(input);
        self.orders = Orders::default();
        loop {
            let mut line = Vec::new();
            match (&mut input).take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line) {
                Ok(0) => return Ended::Closed,
                Ok(_) if line.last() != Some(&b'\n') && line.len() > LINE_BYTES_MAX => return Ended::TooLong,
                Ok(_) if line.last() != Some(&b'\n') => return Ended::Closed,
                Ok(_) => {}
                Err(e) => return Ended::Broken(e),
            }
            let text = String::from_utf8_lossy(&line);
            match message::read(text.trim_end_matches('\n')) {
                Ok(FromPlugin::Ask(ask)) => {
                    let rest = self.orders.kept_out(&ask);
                    let less = rest.free_gpus() < ask.free_gpus();
                    let mut verdict = if less && rest.free_gpus() < ask.gpus {
                        soon()
                    } else {
                        self.answer(&rest, now_unix_s(), tell)
                    };
                    if less && verdict.answer == ToPlugin::Wait {
                        verdict = soon();
                    }
                    self.orders.add(ask.job, &verdict.answer);
                    let line = message::write(&ask, &verdict.answer, &verdict.note);
                    tell(&format!("job {}, {} GPUs: {}", ask.job, ask.gpus, line.trim_end()));
                    if let Err(e) = output.write_all(line.as_bytes()).and_then(|()| output.flush()) {
                        return Ended::Broken(e);
                    }
                }
                Ok(FromPlugin::Hello { slurm, silence_ms }) => {
                    tell(&format!("connected to Slurm {slurm}, which waits {silence_ms} ms for an answer"));
                }
                Ok(FromPlugin::Took { job }) => {
                    self.took(job);
                    tell(&format!("job {job} runs on these GPUs"));
                }
                Ok(FromPlugin::Refused { job, why }) => {
                    self.orders.answered(job);
                    tell(&format!("job {job}: Slurm refused these GPUs: {why}"));
                }
                Err(e) => return Ended::Rubbish(e),
            }
        }
    }

    /// A job runs where it was told to.
    fn took(&mut self, job: u32) {
        let cluster = self.decider.cluster();
        match self.orders.answered(job) {
            Some(o) => {
                let new = neighbour(job, cluster.gpu_names(&Nodes::new(cluster).gpus(&o.gpus)));
                // A job of the books that held some of these GPUs has ended.
                self.jobs.retain(|j| j.id != new.id && j.gpus.iter().all(|g| !new.gpus.contains(g)));
                self.jobs.push(new);
            }
            None => self.read_again = None,
        }
    }

    fn answer(&mut self, ask: &Ask, now_unix_s: f64, tell: &mut dyn FnMut(&str)) -> Verdict {
        let begin = Instant::now();
        if self.read_again.is_none_or(|t| begin >= t) {
            match self.controller.jobs() {
                Ok(text) => self.jobs = running(self.decider.cluster(), &text),
                Err(e) => {
                    self.jobs.clear();
                    tell(&format!("no running jobs are known: {e}"));
                }
            }
            self.read_again = Some(Instant::now() + JOBS_AGE_MAX.max(begin.elapsed() * JOBS_PAUSE));
        }
        // A job that the books still hold, and whose GPUs the question offers, has ended.
        let free = Nodes::new(self.decider.cluster()).gpus(&ask.free);
        let names: std::collections::HashSet<String> = self.decider.cluster().gpu_names(&free).into_iter().collect();
        let jobs: Vec<JobIn> =
            self.jobs.iter().filter(|j| j.gpus.iter().all(|g| !names.contains(g))).cloned().collect();
        let suspected = suspected(self.decider, now_unix_s).unwrap_or_else(|e| {
            tell(&format!("the state cannot be read: {e}"));
            Allocation::default()
        });
        self.release_ended(&names, now_unix_s, tell);
        let decided = self.policies.of(&ask.wish);
        if let Some(why) = &decided.ignored {
            tell(&format!("job {}: {why}", ask.job));
        }
        choose(self.decider, ask, &Known { jobs: &jobs, suspected: &suspected, decided: &decided }, now_unix_s)
    }

    /// Slurm offers the GPUs `free`: its jobs that hold some of them in the state have ended.
    fn release_ended(&self, free: &std::collections::HashSet<String>, now_unix_s: f64, tell: &mut dyn FnMut(&str)) {
        if !self.decider.has_state() {
            return;
        }
        let Ok(status) = status(self.decider, now_unix_s) else { return };
        for job in status.jobs.iter().filter(|j| j.gpus.names().any(|g| free.contains(&g))) {
            if let Some(id) = mirror::number(&job.id) {
                let done = mirror::release(self.decider, id, now_unix_s);
                done.unwrap_or_else(|e| tell(&format!("job {id} stays in the state: {e}")));
            }
        }
    }
}

/// A running job, as the engine takes it.
fn neighbour(job: u32, gpus: Vec<String>) -> JobIn {
    JobIn { id: format!("{}{job}", mirror::JOB), gpus, demand_gb_per_s: None, duty: None }
}

/// The running jobs of the books, as neighbours. O(GPUs).
pub fn running(cluster: &Cluster, text: &str) -> Vec<JobIn> {
    let job = |j: books::Job| {
        let gpus = books::held(cluster, &j).filter(|_| j.state.starts_with("RUNNING"))?;
        Some(neighbour(j.id, cluster.gpu_names(&gpus)))
    };
    books::jobs(text).into_iter().filter_map(job).collect()
}

/// The GPUs that are probably slow by the state, and those of probably slow hosts: no job gets them. Other suspected components are avoided by the engine where a choice
/// without them is expected to be faster. Empty without a state.
pub fn suspected(decider: &dyn Decider, now_unix_s: f64) -> Result<Allocation, Unable> {
    const PROBABLE: f64 = 0.5;
    if !decider.has_state() {
        return Ok(Allocation::default());
    }
    let cluster = decider.cluster();
    let gpus = |s: &engine::SuspectAnswer| {
        let name = s.component.strip_prefix("GPU ").or_else(|| s.component.strip_prefix("host "))?;
        cluster.parse_gpus([name]).ok()
    };
    let status = status(decider, now_unix_s)?;
    let parts = status.suspects.iter().filter(|s| s.probability >= PROBABLE).filter_map(gpus);
    Ok(Allocation::new(parts.flat_map(|a| a.parts().to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_of_one_moment_get_different_gpus() {
        let ask = |job, gpus| Ask { job, gpus, free: vec![("n1".into(), vec![0, 1, 2])], ..Ask::default() };
        let mut o = Orders::default();
        o.add(1, &ToPlugin::Take(vec![("n1".into(), vec![0, 1])]));
        assert_eq!(o.kept_out(&ask(2, 1)).free, [("n1".to_owned(), vec![2])]);
        // The order is the job's own, or the plugin answered it: all are offered.
        assert_eq!(o.kept_out(&ask(1, 1)).free, ask(1, 1).free);
        assert_eq!(o.answered(1).map(|o| o.job), Some(1));
        assert_eq!(o.kept_out(&ask(2, 1)).free, ask(2, 1).free);
    }

    #[test]
    fn a_question_from_before_an_order_does_not_get_its_gpus_however_late_it_is_answered() {
        let (engine, policies) = (crate::choose::tests::engine(), Policies::default());
        let mut table = Table(0);
        let mut agent = Agent::new(&engine, &mut table, &policies);
        let free = "nodes=1-0 free=n0:0.1.2.3.4.5.6.7";
        // Two questions before the answer to the first order, one behind it.
        let lines = format!(
            "ask 1 1 gpus=6 {free}\nask 2 2 gpus=2 {free}\nask 3 3 gpus=4 {free}\ntook 1\ntook 2\nask 4 4 gpus=8 {free}\n"
        );
        let mut said = Vec::new();
        agent.serve(lines.as_bytes(), &mut said, &|| 0.0, &mut |_| ());
        let said = String::from_utf8(said).unwrap();
        let words: Vec<Vec<&str>> = said.lines().map(|l| l.split(' ').collect()).collect();
        assert_eq!(words.iter().map(|w| w[0]).collect::<Vec<_>>(), ["take", "take", "soon", "take"], "{said}");
        let gpus = |w: &[&str]| w[3].split_once(':').unwrap().1.split('.').map(str::to_owned).collect::<Vec<_>>();
        assert!(gpus(&words[0]).iter().all(|g| !gpus(&words[1]).contains(g)), "{said}");
    }

    struct Table(usize);

    impl Controller for Table {
        fn jobs(&mut self) -> Result<String, String> {
            self.0 += 1;
            // 20 times as long, no reading is due.
            std::thread::sleep(Duration::from_millis(60));
            Ok(String::new())
        }
    }

    #[test]
    fn jobs_that_started_on_its_orders_are_neighbours_without_another_look_at_the_table() {
        let (engine, policies) = (crate::choose::tests::engine(), Policies::default());
        let mut table = Table(0);
        let mut agent = Agent::new(&engine, &mut table, &policies);
        let free = "free=n0:0.1.2.3.4.5.6.7,n1:0.1.2.3.4.5.6.7";
        let lines = format!(
            "ask 1 1 gpus=4 nodes=1-0 {free}\nask 2 2 gpus=4 nodes=1-0 {free}\ntook 1\ntook 2\nask 3 3 gpus=4 nodes=1-0 {free}\n"
        );
        agent.serve(lines.as_bytes(), std::io::sink(), &|| 0.0, &mut |_| ());
        let held: Vec<usize> = agent.jobs.iter().map(|j| j.gpus.len()).collect();
        assert_eq!(held, [4, 4], "{:?}", agent.jobs.iter().map(|j| &j.id).collect::<Vec<_>>());
        let all: std::collections::HashSet<&String> = agent.jobs.iter().flat_map(|j| &j.gpus).collect();
        assert_eq!(all.len(), 8, "different GPUs");
        // All GPUs are free again, and a new job gets them.
        let lines = format!("ask 4 4 gpus=16 nodes=2-2 {free}\ntook 4\n");
        agent.serve(lines.as_bytes(), std::io::sink(), &|| 0.0, &mut |_| ());
        assert_eq!(agent.jobs.iter().map(|j| j.id.as_str()).collect::<Vec<_>>(), ["slurm-4"]);
        // A job of an order that is too old to be known.
        agent.serve(&b"took 9\n"[..], std::io::sink(), &|| 0.0, &mut |_| ());
        assert_eq!(agent.read_again, None);
        assert_eq!(table.0, 1);
    }
}
