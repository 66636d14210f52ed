//! The closed loop: a NIC silently drops to half its rate; placement, `observe` and the doctor react.
//!
//! The drop is always simulated: an allocation gets its true bandwidth times the share that the physics predicts for
//! the slow NIC, with one percent of noise.
//! The built command does everything else: `place --commit`, `observe`, `doctor`.

use super::Fit;
use super::folder::Folder;
use super::product::{Linkwise, arg};
use super::source::DemoTruth;
use console::Failure;
use diagnose::{Component, Effects};
use predict::Model;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use serde_json::Value;
use std::path::PathBuf;
use topology::{Allocation, Cluster, GpuMask};

/// GPUs of the jobs that are placed.
const GPUS: usize = 8;
/// GPUs that other jobs hold on every host, one job per host.
const HELD: usize = 4;
/// Rate of the NIC after the drop, as a share.
const SHARE_LEFT: f64 = 0.5;
/// The NIC that drops serves this GPU (in order) of the first host of the first job.
const NTH_GPU: usize = 2;
/// Standard deviation of the logarithm of a reading.
const NOISE: f64 = 0.01;
/// Time between two observations.
const HOUR_S: f64 = 3600.0;
/// Maximum number of readings that the doctor may request.
const PROBES_MAX: usize = 12;
/// Probability from which no further reading is taken.
const SURE: f64 = 0.95;

/// The events of the closed loop, and the doctor's verdict.
pub struct ClosedLoop {
    pub events: Vec<Event>,
    /// Name of the NIC that dropped.
    pub culprit: String,
    /// The doctor's last verdict, line by line.
    pub verdict: Vec<String>,
    /// Whether the verdict names the NIC.
    pub named: bool,
    /// Hosts of the first and of the second job.
    pub hosts: (Vec<String>, Vec<String>),
    /// Number of readings that the doctor requested.
    pub probes: usize,
}

/// One reading of a job or of free GPUs.
pub struct Event {
    /// `job train-1`, `reading 2`, ...
    pub what: String,
    pub gpus: String,
    pub predicted_gb_per_s: f64,
    /// Simulated.
    pub got_gb_per_s: f64,
    /// The consequence, as text.
    pub then: String,
}

/// The simulated cluster with its slow NIC.
struct Hardware<'a> {
    truth: &'a DemoTruth,
    model: &'a Model,
    effects: Effects<'a>,
    slow: Option<Component>,
    rng: ChaCha8Rng,
}

impl Hardware<'_> {
    fn gives(&mut self, a: &Allocation) -> f64 {
        let size = self.truth.size();
        // Published tables lack some rows; the model provides those.
        let healthy = self.truth.of(a).unwrap_or_else(|| self.model.predict_allocation(size, a).busbw_gb_per_s);
        let left = self.slow.map_or(0.0, |c| self.effects.of(c, SHARE_LEFT, a, size));
        let (u, v): (f64, f64) = (self.rng.random(), self.rng.random());
        let normal = (-2.0 * (1.0 - u).ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        healthy * (left + NOISE * normal).exp()
    }
}

/// Runs the loop on its own files: `loop.state`, `loop.db` (a copy of `demo.db` at first) and `loop-model.json`.
pub fn play(
    cluster: &Cluster,
    fit: &Fit,
    truth: &DemoTruth,
    folder: &Folder,
    seed: u64,
) -> Result<ClosedLoop, Failure> {
    let building = folder.temporary_folder()?;
    let [db, state, model] = FILES.map(|f| building.path().join(f));
    files::copy_atomic(&folder.claim("demo.db")?, &db)?;
    files::write_atomic(&model, fit.gp.save().map_err(Failure::input)?)?;
    let mut commands = Commands {
        linkwise: Linkwise::find()?,
        at_unix_s: console::now_unix_s(),
        cluster,
        cluster_file: arg(&folder.claim("cluster.yaml")?),
        state: arg(&state),
        store: arg(&db),
        model: arg(&model),
        trace: building.path().join("trace.jsonl"),
    };
    let mut hardware = Hardware {
        truth,
        model: &fit.gp,
        effects: Effects::new(cluster, &fit.gp),
        slow: None,
        rng: ChaCha8Rng::seed_from_u64(seed ^ 0x100b),
    };
    let told = run_loop(&mut commands, &mut hardware)?;
    for (file, name) in [&db, &state, &model].into_iter().zip(FILES) {
        folder.adopt(file, name)?;
    }
    Ok(told)
}

/// The files, by the names of [`super::folder`].
pub const FILES: [&str; 3] = ["loop.db", "loop.state", "loop-model.json"];

/// The commands that an operator runs, on the files of the loop.
struct Commands<'a> {
    linkwise: Linkwise,
    /// Simulated clock: one hour passes between observations, so that the result does not depend on the speed of this
    /// machine.
    at_unix_s: f64,
    cluster: &'a Cluster,
    cluster_file: String,
    state: String,
    store: String,
    model: String,
    /// One reading, as a job writes it.
    trace: PathBuf,
}

/// A placed job.
struct Placed {
    gpus: Allocation,
    predicted_gb_per_s: f64,
    /// Whether the choice avoids a suspected component.
    is_wary: bool,
}

impl Placed {
    fn event(&self, cluster: &Cluster, what: &str, got_gb_per_s: f64, then: &str) -> Event {
        Event {
            what: what.to_owned(),
            gpus: cluster.gpu_list(&self.gpus),
            predicted_gb_per_s: self.predicted_gb_per_s,
            got_gb_per_s,
            then: then.to_owned(),
        }
    }
}

impl Commands<'_> {
    fn init(&self) -> Result<(), Failure> {
        self.linkwise.run(&["cluster", "init", "--cluster", &self.cluster_file, "--state", &self.state]).map(|_| ())
    }

    fn allocate(&self, job: &str, gpus: &Allocation) -> Result<(), Failure> {
        let names = self.cluster.gpu_names(gpus);
        let mut args = vec!["cluster", "allocate", "--state", &self.state, job];
        args.extend(names.iter().map(String::as_str));
        self.linkwise.run(&args).map(|_| ())
    }

    fn release(&self, job: &str) -> Result<(), Failure> {
        self.linkwise.run(&["cluster", "release", "--state", &self.state, job]).map(|_| ())
    }

    fn place(&self, job: &str) -> Result<Placed, Failure> {
        let gpus = GPUS.to_string();
        let args = ["place", "--state", &self.state, "--model", &self.model, "--gpus", &gpus, "--commit", job];
        let v = self.linkwise.json(&args)?;
        let names: Vec<&str> = v["gpus"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let predicted_gb_per_s = v["predicted_busbw_gb_per_s"].as_f64();
        Ok(Placed {
            gpus: self.cluster.parse_gpus(names).map_err(Failure::impossible)?,
            predicted_gb_per_s: predicted_gb_per_s
                .ok_or_else(|| Failure::impossible(format!("no prediction in {v}")))?,
            is_wary: !v["avoided"].is_null(),
        })
    }

    /// Records a reading of a job, or of `gpus` that no job holds. Returns how many components are suspected.
    fn observe(&mut self, job: &str, gpus: Option<&Allocation>, gb_per_s: f64) -> Result<usize, Failure> {
        self.at_unix_s += HOUR_S;
        let reading = serde_json::json!({
            "collective": "all_reduce", "size_bytes": super::SIZE, "busbw_gb_per_s": gb_per_s, "at_unix_s": self.at_unix_s,
        });
        files::write_atomic(&self.trace, format!("{reading}\n"))?;
        let (trace, names) = (arg(&self.trace), gpus.map(|a| self.cluster.gpu_names(a).join(" ")));
        let mut args = vec!["observe", "--state", &self.state, "--store", &self.store, "--model", &self.model];
        args.extend(["--job", job, "--trace", &trace, "--simulated"]);
        if let Some(names) = &names {
            args.extend(["--cluster", &self.cluster_file, "--gpus", names]);
        }
        let v = self.linkwise.json(&args)?;
        Ok(v["suspected"].as_array().map_or(0, Vec::len))
    }

    /// The first defect of `linkwise doctor`: its most probable component, the probability, and the GPUs whose reading
    /// would be most informative. `linkwise observe` judges defects in the same way.
    fn defect(&self) -> Result<Option<Suspicion>, Failure> {
        let v = self.linkwise.json(&["doctor", "--state", &self.state, "--store", &self.store])?;
        let defect = &v["defects"][0];
        let Some(component) = defect["candidates"][0]["component"].as_str() else { return Ok(None) };
        let names: Vec<&str> =
            defect["worth_measuring"].as_array().into_iter().flatten().filter_map(|g| g.as_str()).collect();
        let worth_measuring = match names.as_slice() {
            [] => None,
            names => Some(self.cluster.parse_gpus(names.iter().copied()).map_err(Failure::impossible)?),
        };
        let probability = defect["candidates"][0]["probability"].as_f64().unwrap_or(0.0);
        Ok(Some(Suspicion { component: component.into(), probability, worth_measuring }))
    }

    /// The lines of `linkwise doctor` about the first defect, and the component that it names.
    fn doctor(&self) -> Result<(Vec<String>, Option<String>), Failure> {
        let args = ["doctor", "--state", &self.state, "--store", &self.store];
        let (text, _) = self.linkwise.run(&args)?;
        let from = text.lines().skip_while(|l| !l.starts_with("DEFECT") && !l.starts_with("SUSPICION"));
        let verdict =
            from.enumerate().take_while(|(i, l)| *i == 0 || l.starts_with("  ")).map(|(_, l)| l.trim().to_owned());
        let v = self.linkwise.json(&args)?;
        let best = &v["defects"][0]["candidates"][0];
        let named = best["component"].as_str().filter(|_| best["probability"].as_f64().is_some_and(|p| p > 0.5));
        Ok((verdict.collect(), named.map(str::to_owned)))
    }
}

/// A defect as the doctor reports it.
struct Suspicion {
    component: String,
    probability: f64,
    worth_measuring: Option<Allocation>,
}

fn run_loop(commands: &mut Commands, hardware: &mut Hardware) -> Result<ClosedLoop, Failure> {
    let cluster = commands.cluster;
    let hosts = |a: &Allocation| a.parts().iter().map(|p| cluster.host(p.0).name.clone()).collect::<Vec<_>>();
    fill_hosts(commands)?;
    let first = commands.place("train-1")?;
    let slow = nic_that_drops(cluster, &first.gpus);
    let culprit = slow.name(cluster);
    hardware.slow = Some(slow);
    let mut events = report_first_job(commands, hardware, &first)?;
    commands.release("train-1")?;
    let second = commands.place("train-2")?;
    events.push(report_second_job(commands, hardware, &second)?);
    let defect = commands.defect()?;
    let probed = take_probes(commands, hardware, defect)?;
    let probes = probed.len();
    events.extend(probed);
    let (verdict, named) = commands.doctor()?;
    let named = named.is_some_and(|n| n == culprit);
    Ok(ClosedLoop { events, culprit, verdict, named, hosts: (hosts(&first.gpus), hosts(&second.gpus)), probes })
}

/// Allocates [`HELD`] GPUs of every host to a separate job.
fn fill_hosts(commands: &Commands) -> Result<(), Failure> {
    commands.init()?;
    for host in commands.cluster.host_ids() {
        let gpus = Allocation::new([(host, GpuMask::first(HELD))]);
        commands.allocate(&format!("small-{}", commands.cluster.host(host).name), &gpus)?;
    }
    Ok(())
}

/// The NIC of [`NTH_GPU`] on the first host of a job.
fn nic_that_drops(cluster: &Cluster, job: &Allocation) -> Component {
    let (host, mask) = job.parts()[0];
    let gpu = mask.iter().nth(NTH_GPU).or(mask.iter().next()).unwrap_or_default();
    Component::Nic(host, cluster.type_of(host).nearest_nics(gpu).trailing_zeros() as u8)
}

/// The first job reports its bandwidth every hour. Two low reports are not chance.
fn report_first_job(commands: &mut Commands, hardware: &mut Hardware, job: &Placed) -> Result<Vec<Event>, Failure> {
    let mut events = Vec::new();
    for what in ["job train-1", "train-1 again"] {
        let got = hardware.gives(&job.gpus);
        let then = match commands.observe("train-1", None, got)? {
            0 => "nothing is suspected".to_owned(),
            n => format!("{n} components are suspected"),
        };
        events.push(job.event(commands.cluster, what, got, &then));
    }
    Ok(events)
}

fn report_second_job(commands: &mut Commands, hardware: &mut Hardware, job: &Placed) -> Result<Event, Failure> {
    let got = hardware.gives(&job.gpus);
    commands.observe("train-2", None, got)?;
    let then = if job.is_wary { "avoids the suspects" } else { "placed as before" };
    Ok(job.event(commands.cluster, "job train-2", got, then))
}

/// Takes the most informative readings on free GPUs until the doctor's probability reaches [`SURE`].
fn take_probes(
    commands: &mut Commands,
    hardware: &mut Hardware,
    mut defect: Option<Suspicion>,
) -> Result<Vec<Event>, Failure> {
    let cluster = commands.cluster;
    let mut events = Vec::new();
    while let Some(d) = defect.take().filter(|d| d.probability < SURE && events.len() < PROBES_MAX) {
        let Some(a) = d.worth_measuring else { break };
        let predicted_gb_per_s = hardware.model.predict_allocation(super::SIZE, &a).busbw_gb_per_s;
        let got_gb_per_s = hardware.gives(&a);
        commands.observe(&format!("reading-{}", events.len() + 1), Some(&a), got_gb_per_s)?;
        defect = commands.defect()?;
        let then = defect
            .as_ref()
            .map_or("nothing is suspected".into(), |d| format!("{} {:.0} %", d.component, 100.0 * d.probability));
        let (what, gpus) = (format!("reading {}", events.len() + 1), cluster.gpu_list(&a));
        events.push(Event { what, gpus, predicted_gb_per_s, got_gb_per_s, then });
    }
    Ok(events)
}

impl ClosedLoop {
    /// Bandwidth of the second job, GB/s.
    fn second_gb_per_s(&self) -> f64 {
        self.events.iter().find(|e| e.what == "job train-2").map_or(f64::NAN, |e| e.got_gb_per_s)
    }

    /// The events as sentences.
    pub fn sentences(&self, truth: &DemoTruth) -> Vec<String> {
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

    /// The events as a head and rows.
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
