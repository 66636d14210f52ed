//! The loop, closed: a NIC silently drops to half its rate, and decisions, observations and the doctor deal with it.
//!
//! The drop is simulated, whatever the other bandwidths are: what an allocation gets is its true bandwidth times what the physics leaves of
//! it, and one percent of noise. Everything else is what the commands do: a state file, `place --commit`, `observe`, `doctor`.

use super::Fit;
use super::explain::gpus;
use super::folder::Folder;
use super::source::Bandwidths;
use crate::cmd::observe::{Learned, Whose, learn, of_number, record};
use crate::cmd::place::state::answer;
use crate::cmd::{doctor as doctor_command, observe};
use crate::failure::Failure;
use place::Request;
use predict::Model;
use predict::doctor::{Component, Effects, telling};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use store::state::NewJob;
use store::{Source, State, Store};
use topology::{Allocation, Cluster, Collective, GpuMask};

/// GPUs of the jobs that are placed.
const GPUS: usize = 8;
/// GPUs of every host that other jobs hold, each job on one host.
const HELD: usize = 4;
/// Share of its rate that the NIC keeps.
const SHARE_LEFT: f64 = 0.5;
/// The NIC that drops: that of this GPU (in order) of the first host that the first job gets.
const NTH_GPU: usize = 2;
/// Deviation of a reading (of the logarithm).
const NOISE: f64 = 0.01;
/// Between two observations.
const HOUR_S: f64 = 3600.0;
/// Most readings that the doctor may ask for.
const PROBES_MAX: usize = 12;
/// How sure the doctor should be.
const SURE: f64 = 0.95;

/// What happened.
pub struct Loop {
    /// One line for each thing that happened.
    pub events: Vec<Event>,
    /// The NIC that dropped, in words.
    pub culprit: String,
    /// What the doctor says at the end, line by line.
    pub verdict: Vec<String>,
    /// Does it name the NIC?
    pub named: bool,
    /// Hosts of the job before and after it was observed.
    pub hosts: (Vec<String>, Vec<String>),
    /// Readings that the doctor asked for.
    pub probes: usize,
}

/// One thing that happened.
pub struct Event {
    /// `job train-1`, `reading 2`, ...
    pub what: String,
    /// Which GPUs.
    pub gpus: String,
    /// What was predicted, GB/s.
    pub predicted_gb_per_s: f64,
    /// What it got (simulated), GB/s.
    pub got_gb_per_s: f64,
    /// What follows.
    pub then: String,
}

/// The simulated cluster with its slow NIC.
struct Hardware<'a> {
    truth: &'a Bandwidths,
    model: &'a Model,
    effects: Effects<'a>,
    slow: Option<Component>,
    rng: ChaCha8Rng,
}

impl Hardware<'_> {
    fn gives(&mut self, a: &Allocation) -> f64 {
        let size = self.truth.size();
        // Published tables lack some rows: there the model stands in.
        let healthy = self.truth.of(a).unwrap_or_else(|| self.model.predict_allocation(size, a).busbw_gb_per_s);
        let left = self.slow.map_or(0.0, |c| self.effects.of(c, SHARE_LEFT, a, size));
        let (u, v): (f64, f64) = (self.rng.random(), self.rng.random());
        let normal = stats::random::box_muller(u, v);
        healthy * (left + NOISE * normal).exp()
    }
}

/// Plays it, with files of their own: `loop.state`, `loop.db` (which begins as a copy of `demo.db`) and `loop-model.json`.
pub fn play(cluster: &Cluster, fit: &Fit, truth: &Bandwidths, folder: &Folder, seed: u64) -> Result<Loop, Failure> {
    let building = folder.temporary_folder()?;
    let [db, state, model] = FILES.map(|f| building.path().join(f));
    let demo = folder.claim("demo.db")?;
    std::fs::copy(&demo, &db).map_err(|e| Failure::file("copy", &demo, e))?;
    crate::cmd::shared::write_atomically(&model, &fit.gp.save().map_err(Failure::input)?)?;
    let told = {
        let mut files = Files {
            at_unix_s: crate::cmd::cluster::now_unix_s(),
            cluster,
            state: State::init(&state, cluster, crate::cmd::cluster::now_unix_s())?,
            store: Store::open(&db, cluster)?,
            model: observe::Locked::open(&model, cluster)?,
        };
        let mut hardware = Hardware {
            truth,
            model: &fit.gp,
            effects: Effects::new(cluster, &fit.gp),
            slow: None,
            rng: ChaCha8Rng::seed_from_u64(seed ^ 0x100b),
        };
        story(&mut files, &mut hardware)?
    };
    for (file, name) in [&db, &state, &model].into_iter().zip(FILES) {
        folder.adopt(file, name)?;
    }
    Ok(told)
}

/// The files, by the names of [`super::folder`].
pub const FILES: [&str; 3] = ["loop.db", "loop.state", "loop-model.json"];

struct Files<'a> {
    /// The clock of the story: an hour passes between observations, so that what is found does not hang on how fast this machine is.
    at_unix_s: f64,
    cluster: &'a Cluster,
    state: State,
    store: Store,
    model: observe::Locked,
}

impl Files<'_> {
    /// `place --state loop.state --gpus 8 --commit JOB`.
    fn place(&mut self, job: &str, truth: &Bandwidths) -> Result<(Allocation, f64, Option<String>), Failure> {
        let request = Request::new(GPUS, self.cluster.usable(), truth.size());
        let model = &self.model.model;
        let mut search = |r: &Request| place::answer(self.cluster, model, r).map_err(Failure::impossible);
        let (_, answer, avoided) = answer(&mut self.state, self.cluster, model, &request, Some(job), &mut search)?;
        let predicted = answer.choice.prediction.busbw_gb_per_s;
        Ok((answer.choice.allocation, predicted, avoided.map(|a| a.to_string())))
    }

    /// `observe --state loop.state --store loop.db --model loop-model.json --job JOB --busbw X`, or with `--gpus` for readings without a job.
    fn observe(&mut self, job: &str, gpus: Option<&Allocation>, gb_per_s: f64) -> Result<Learned, Failure> {
        let named = gpus.map(|a| self.cluster.gpu_names(a).join(" "));
        self.at_unix_s += HOUR_S;
        let mut whose = Whose::find(self.cluster, Some(&self.state), job, named.as_deref())?;
        whose.at_unix_s = self.at_unix_s;
        let mut m = of_number(&whose, Collective::AllReduce, Some(super::SIZE), gb_per_s);
        m.source = Source::Simulated;
        let measurements = [m];
        record(&mut self.store, &measurements)?;
        let learned = learn(&mut self.model.model, &self.store, &measurements, Some(&mut self.state))?;
        self.model.save()?;
        Ok(learned)
    }
}

fn story(files: &mut Files, hardware: &mut Hardware) -> Result<Loop, Failure> {
    let cluster = files.cluster;
    let hosts = |a: &Allocation| a.parts().iter().map(|p| cluster.host(p.0).name.clone()).collect::<Vec<_>>();
    let mut events = Vec::new();

    for host in cluster.host_ids() {
        let gpus = Allocation::new([(host, GpuMask::first(HELD))]);
        let id = format!("small-{}", cluster.host(host).name);
        let job = NewJob { id, gpus, demand_gb_per_s: None, predicted_gb_per_s: None, size: None };
        files.state.allocate(&job, crate::cmd::cluster::now_unix_s())?;
    }
    let (first, predicted, _) = files.place("train-1", hardware.truth)?;
    let (host, mask) = first.parts()[0];
    let gpu = mask.iter().nth(NTH_GPU).or(mask.iter().next()).unwrap_or_default();
    let slow = Component::Nic(host, cluster.type_of(host).nearest_nics(gpu).trailing_zeros() as u8);
    let culprit = slow.name(cluster);
    hardware.slow = Some(slow);
    // The job reports every hour; two low reports are no chance reading.
    let mut defect = None;
    for what in ["job train-1", "train-1 again"] {
        let got = hardware.gives(&first);
        defect = files.observe("train-1", None, got)?.diagnosis.defects.first().cloned();
        events.push(Event {
            what: what.into(),
            gpus: gpus(cluster, &first),
            predicted_gb_per_s: predicted,
            got_gb_per_s: got,
            then: match &defect {
                Some(d) => format!("{} components are suspected", d.candidates.len()),
                None => "nothing is suspected".into(),
            },
        });
    }
    files.state.release(&["train-1".into()])?;

    let (second, predicted, avoided) = files.place("train-2", hardware.truth)?;
    let got = hardware.gives(&second);
    files.observe("train-2", None, got)?;
    events.push(Event {
        what: "job train-2".into(),
        gpus: gpus(cluster, &second),
        predicted_gb_per_s: predicted,
        got_gb_per_s: got,
        then: if avoided.is_some() { "kept away from the suspects".into() } else { "placed as before".into() },
    });

    // The doctor asks for the readings that tell most, on GPUs that no job holds.
    let (mut probes, mut read) = (0, Vec::new());
    while let Some(d) = defect.clone().filter(|d| d.candidates[0].probability < SURE && probes < PROBES_MAX) {
        let free = files.state.snapshot()?.free;
        let Some(a) = telling(&files.model.model, &d, &free, super::SIZE, &read) else { break };
        probes += 1;
        read.push(a.clone());
        let predicted = files.model.model.predict_allocation(super::SIZE, &a).busbw_gb_per_s;
        let got = hardware.gives(&a);
        let learned = files.observe(&format!("reading-{probes}"), Some(&a), got)?;
        defect = learned.diagnosis.defects.first().cloned();
        events.push(Event {
            what: format!("reading {probes}"),
            gpus: gpus(cluster, &a),
            predicted_gb_per_s: predicted,
            got_gb_per_s: got,
            then: defect.as_ref().map_or("nothing is suspected".into(), |d| {
                let best = &d.candidates[0];
                format!("{} {:.0} %", best.component.name(cluster), 100.0 * best.probability)
            }),
        });
    }
    let found = doctor_command::examine(cluster, &doctor_command::readings(&files.store)?, None)?;
    let best = found.diagnosis.defects.first().map(|d| &d.candidates[0]);
    let named = best.is_some_and(|c| c.component == slow && c.probability > 0.5);
    files.state.set_suspects(&observe::suspects(&found.diagnosis))?;
    Ok(Loop {
        events,
        culprit,
        verdict: found.defects_in_words(cluster).lines().map(|l| l.trim().to_owned()).collect(),
        named,
        hosts: (hosts(&first), hosts(&second)),
        probes,
    })
}

impl Loop {
    /// What the second job got, GB/s.
    fn second_gb_per_s(&self) -> f64 {
        self.events.iter().find(|e| e.what == "job train-2").map_or(f64::NAN, |e| e.got_gb_per_s)
    }

    /// What happened, in sentences.
    pub fn sentences(&self, truth: &Bandwidths) -> Vec<String> {
        let rest = if truth.is_simulated() {
            "SIMULATED as all bandwidths here"
        } else {
            "SIMULATED; all other bandwidths are measured"
        };
        let (before, after) = (self.hosts.0.join(" and "), self.hosts.1.join(" and "));
        let avoids = !self.hosts.1.iter().any(|h| self.hosts.0.contains(h));
        let mut out = vec![format!(
            "On every host another job holds {HELD} GPUs. Job train-1 asks for {GPUS} and is placed on {before}. {} silently drops to half its rate ({rest}), and the job gets {:.0} instead of {:.0} GB/s.",
            self.culprit, self.events[0].got_gb_per_s, self.events[0].predicted_gb_per_s
        )];
        out.push(match avoids {
            true => format!("That is observed, and the next job of {GPUS} GPUs avoids both hosts: it is placed on {after} and gets {:.0} GB/s.", self.second_gb_per_s()),
            false => format!("That is observed; the next job of {GPUS} GPUs is placed on {after} and gets {:.0} GB/s.", self.second_gb_per_s()),
        });
        out.push(match self.named {
            true => format!(
                "Which part is it? The doctor asks for {} readings of free GPUs and names the NIC:",
                self.probes
            ),
            false => format!("The doctor asks for {} readings of free GPUs and says:", self.probes),
        });
        out
    }

    /// The events as head and rows.
    pub fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let head = ["what", "predicted", "got", "what follows", "GPUs"].map(str::to_owned).to_vec();
        let row = |e: &Event| {
            vec![
                e.what.clone(),
                format!("{:.0} GB/s", e.predicted_gb_per_s),
                format!("{:.0} GB/s", e.got_gb_per_s),
                e.then.clone(),
                e.gpus.clone(),
            ]
        };
        (head, self.events.iter().map(row).collect())
    }
}
