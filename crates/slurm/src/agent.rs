//! One connection to the plugin.

use crate::books;
use crate::choose::{Known, Verdict, choose};
use crate::message::{self, Ask, FromPlugin, LINE_BYTES_MAX, ToPlugin};
use crate::mirror;
use crate::policy::{Policies, Wish};
use engine::{Engine, JobIn};
use std::io::{BufRead, Read, Write};
use std::time::{Duration, Instant};
use topology::Allocation;

/// The running jobs are read again after this time, and after every job that started.
const JOBS_AGE_MAX: Duration = Duration::from_secs(1);

/// GPUs of an order are not given to another job for this time: questions of one moment offer the same free GPUs.
const PROMISE: Duration = Duration::from_secs(1);

/// An order whose GPUs later questions may still offer.
struct Promise {
    at: Instant,
    job: u32,
    /// Nodes and indices.
    gpus: Vec<(String, Vec<u8>)>,
}

/// The orders of the last moment.
#[derive(Default)]
struct Promises(Vec<Promise>);

impl Promises {
    /// The question without promised GPUs; the question itself if too few are left. O(GPUs).
    fn kept_out(&mut self, ask: &Ask) -> Ask {
        self.0.retain(|p| p.at.elapsed() < PROMISE);
        let held: std::collections::HashSet<(&str, u8)> = self
            .0
            .iter()
            .filter(|p| p.job != ask.job)
            .flat_map(|p| &p.gpus)
            .flat_map(|(node, gpus)| gpus.iter().map(move |g| (node.as_str(), *g)))
            .collect();
        let rest = |(node, gpus): &(String, Vec<u8>)| {
            let rest: Vec<u8> = gpus.iter().copied().filter(|g| !held.contains(&(node.as_str(), *g))).collect();
            (!rest.is_empty()).then(|| (node.clone(), rest))
        };
        let free: Vec<(String, Vec<u8>)> = ask.free.iter().filter_map(rest).collect();
        let enough = free.iter().map(|n| n.1.len()).sum::<usize>() >= ask.gpus;
        if enough { Ask { free, ..ask.clone() } } else { ask.clone() }
    }

    fn add(&mut self, job: u32, answer: &ToPlugin) {
        if let ToPlugin::Take(order) = answer {
            self.0.push(Promise { at: Instant::now(), job, gpus: order.clone() });
        }
    }

    fn refused(&mut self, job: u32) {
        self.0.retain(|p| p.job != job);
    }
}

/// What the agent asks the controller.
pub trait Controller {
    /// The text of `scontrol show job -d -o`.
    fn jobs(&mut self) -> Result<String, String>;
    /// What the output of `squeue` with [`Wish::arguments`] says.
    fn wish(&mut self, job: u32) -> Result<Wish, String>;
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
    engine: &'a Engine,
    controller: &'a mut dyn Controller,
    policies: &'a Policies,
    jobs: Vec<JobIn>,
    read_at: Option<Instant>,
    promises: Promises,
}

impl<'a> Agent<'a> {
    /// An agent that decides with `engine` by the `policies`. A failure of the controller is told. It means that no running jobs are
    /// known, or that the job names no policy; the free GPUs come with every question.
    pub fn new(engine: &'a Engine, controller: &'a mut dyn Controller, policies: &'a Policies) -> Agent<'a> {
        Agent { engine, controller, policies, jobs: Vec::new(), read_at: None, promises: Promises::default() }
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
                    let ask = self.promises.kept_out(&ask);
                    let verdict = self.answer(&ask, now_unix_s(), tell);
                    self.promises.add(ask.job, &verdict.answer);
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
                    self.read_at = None;
                    tell(&format!("job {job} runs on these GPUs"));
                }
                Ok(FromPlugin::Refused { job, why }) => {
                    self.promises.refused(job);
                    tell(&format!("job {job}: Slurm refused these GPUs: {why}"));
                }
                Err(e) => return Ended::Rubbish(e),
            }
        }
    }

    fn answer(&mut self, ask: &Ask, now_unix_s: f64, tell: &mut dyn FnMut(&str)) -> Verdict {
        if self.read_at.is_none_or(|t| t.elapsed() > JOBS_AGE_MAX) {
            match self.controller.jobs() {
                Ok(text) => self.jobs = running(self.engine, &text),
                Err(e) => {
                    self.jobs.clear();
                    tell(&format!("no running jobs are known: {e}"));
                }
            }
            self.read_at = Some(Instant::now());
        }
        // A job that the books still hold, and whose GPUs the question offers, has ended.
        let free = crate::choose::Nodes::new(self.engine.cluster()).free(ask);
        let names: std::collections::HashSet<String> = self.engine.cluster().gpu_names(&free).into_iter().collect();
        let jobs: Vec<JobIn> =
            self.jobs.iter().filter(|j| j.gpus.iter().all(|g| !names.contains(g))).cloned().collect();
        let suspected = suspected(self.engine).unwrap_or_else(|e| {
            tell(&format!("the state cannot be read: {e}"));
            Allocation::default()
        });
        self.release_ended(&names, now_unix_s, tell);
        let wish = self.controller.wish(ask.job).unwrap_or_else(|e| {
            tell(&format!("job {}: its policy is not known: {e}", ask.job));
            Wish::default()
        });
        let decided = self.policies.of(&wish);
        if let Some(why) = &decided.ignored {
            tell(&format!("job {}: {why}", ask.job));
        }
        choose(self.engine, ask, &Known { jobs: &jobs, suspected: &suspected, decided: &decided }, now_unix_s)
    }

    /// Slurm offers the GPUs `free`: its jobs that hold some of them in the state have ended.
    fn release_ended(&self, free: &std::collections::HashSet<String>, now_unix_s: f64, tell: &mut dyn FnMut(&str)) {
        if !self.engine.has_state() {
            return;
        }
        let Ok(status) = self.engine.status() else { return };
        for job in status.jobs.iter().filter(|j| j.gpus.names().any(|g| free.contains(&g))) {
            if let Some(id) = mirror::number(&job.id) {
                let done = mirror::release(self.engine, id, now_unix_s);
                done.unwrap_or_else(|e| tell(&format!("job {id} stays in the state: {e}")));
            }
        }
    }
}

/// The running jobs of the books, as neighbours. O(GPUs).
pub fn running(engine: &Engine, text: &str) -> Vec<JobIn> {
    let cluster = engine.cluster();
    let job = |j: books::Job| {
        let gpus = books::held(cluster, &j).filter(|_| j.state.starts_with("RUNNING"))?;
        Some(JobIn {
            id: format!("{}{}", mirror::JOB, j.id),
            gpus: cluster.gpu_names(&gpus),
            demand_gb_per_s: None,
            duty: None,
        })
    };
    books::jobs(text).into_iter().filter_map(job).collect()
}

/// The GPUs that are probably slow by the state, and those of probably slow hosts: no job gets them. Other suspected components are avoided by the engine where a choice
/// without them is expected to be faster. Empty without a state.
pub fn suspected(engine: &Engine) -> Result<Allocation, engine::EngineError> {
    const PROBABLE: f64 = 0.5;
    if !engine.has_state() {
        return Ok(Allocation::default());
    }
    let cluster = engine.cluster();
    let gpus = |s: &engine::SuspectAnswer| {
        let name = s.component.strip_prefix("GPU ").or_else(|| s.component.strip_prefix("host "))?;
        cluster.parse_gpus([name]).ok()
    };
    let status = engine.status()?;
    let parts = status.suspects.iter().filter(|s| s.probability >= PROBABLE).filter_map(gpus);
    Ok(Allocation::new(parts.flat_map(|a| a.parts().to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_of_one_moment_get_different_gpus() {
        let ask = |job, gpus| Ask { job, gpus, free: vec![("n1".into(), vec![0, 1, 2])], ..Ask::default() };
        let mut p = Promises::default();
        p.add(1, &ToPlugin::Take(vec![("n1".into(), vec![0, 1])]));
        assert_eq!(p.kept_out(&ask(2, 1)).free, [("n1".to_owned(), vec![2])]);
        // Too few would be left, or the promise is the job's own, or it is void: all are offered.
        assert_eq!(p.kept_out(&ask(2, 2)).free, ask(2, 2).free);
        assert_eq!(p.kept_out(&ask(1, 1)).free, ask(1, 1).free);
        p.refused(1);
        assert_eq!(p.kept_out(&ask(2, 1)).free, ask(2, 1).free);
    }
}
