//! `linkwise-lab doctor`: the diagnosis judged on simulated sites with slow NICs. Simulated.
//!
//! A case is a site and a seed. Readings are taken one by one: a sweep of the rails, then the readings that the doctor
//! asks for. The truth decides which accusations are right. Both go through the engine, as in `linkwise doctor`.

use crate::backend::measure_site;
use crate::decoder::IRREGULARITY;
use crate::oracle::Oracle;
use console::{Failure, Format, Progress};
use engine::{DiagnoseAnswer, DiagnoseRequest, Engine};
use lab_kit::output::table;
use measure::DesignKind;
use rayon::prelude::*;
use serde::Serialize;
use std::time::Instant;
use store::{Measurement, Source, Store};
use topology::{Allocation, Bandwidth};
use truths::Truth;
use truths::site::{Site, SlowNic, draw_slow_nics};

/// Date of the first simulated reading, seconds since 1970, and the time between two.
const AT_UNIX_S: f64 = 1.8e9;
const STEP_S: f64 = 60.0;
/// Maximum number of readings of a case.
const READINGS_MAX: usize = 1000;

/// How readings are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Design {
    /// One reading per rail over all hosts, then the readings that the doctor asks for
    Asked,
    /// The multi-host sample of `linkwise measure`
    Measure,
    /// As `asked`, but chosen and judged by a searcher that knows the form of the truth, the noise and the number of
    /// slow NICs: a limit, no product
    Oracle,
}

/// Arguments of `linkwise-lab doctor`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  linkwise-lab doctor --seeds 10\n  \
    linkwise-lab doctor --seeds 100 --slow 0\n  linkwise-lab doctor --design measure --format json\n\n\
    All bandwidths are simulated. The truth has another form than the physics of linkwise: simulated rings and trees \
    on a switch graph, irregular splits, hosts and NICs that differ.")]
pub struct Args {
    /// Hosts of the site (hgx-h100)
    #[arg(long, default_value_t = 32)]
    hosts: usize,
    /// Numbers of slow NICs, one case each
    #[arg(long, value_delimiter = ',', default_values_t = [0, 5])]
    slow: Vec<usize>,
    /// Lowest and highest share of its rate that a slow NIC keeps
    #[arg(long, value_delimiter = ',', num_args = 2, default_values_t = [0.3, 0.7])]
    left: Vec<f64>,
    /// Relative noise of a reading
    #[arg(long, default_value_t = 0.03)]
    noise: f64,
    /// Readings
    #[arg(long, default_value_t = 30)]
    readings: usize,
    /// How the readings are chosen
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["asked", "measure"])]
    design: Vec<Design>,
    /// Sites per case
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
struct Run {
    design: Design,
    slow: usize,
    seed: u64,
    simulated: bool,
    /// The slow NICs, and the share of its rate that each keeps.
    truth: Vec<(String, f64)>,
    /// Named defects and slow shared parts, with the probability of the named part.
    named: Vec<(String, f64)>,
    /// Slow NICs that are named.
    found: usize,
    /// Slow NICs whose host has a named defect, or a suspicion with most of its probability.
    host_found: usize,
    /// Named parts that are not slow, on a host with a slow NIC.
    wrong_part: usize,
    /// Named parts that are not slow, elsewhere.
    wrong_host: usize,
    /// Suspicions, not named.
    suspicions: usize,
    readings: usize,
    /// Number of readings after which all slow NICs, and nothing else, were named until the end.
    complete_after: Option<usize>,
    /// Probability of the true set to a decoder that knows the truth's form.
    decoder: Option<f64>,
    /// Mean and maximum time of one diagnosis, seconds.
    diagnosis_s: f64,
    diagnosis_max_s: f64,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Failure> {
    if !(1..=READINGS_MAX).contains(&args.readings) {
        return Err(Failure::input(format!("--readings: 1 to {READINGS_MAX} were expected")));
    }
    let (low, high) = (args.left[0], args.left[1]);
    if !(0.0 < low && low <= high && high <= 1.0) {
        return Err(Failure::input("--left: two shares between 0 and 1 were expected, the lower first"));
    }
    if !(0.0..0.5).contains(&args.noise) {
        return Err(Failure::input("--noise: a share from 0 to 0.5 was expected"));
    }
    let seeds = args.seeds.clamp(1, 1000);
    let cases: Vec<(Design, usize, u64)> = args
        .design
        .iter()
        .flat_map(|d| args.slow.iter().map(move |s| (*d, *s)))
        .flat_map(|(d, s)| (0..seeds).map(move |i| (d, s, args.seed.saturating_add(i))))
        .collect();
    let progress = Progress::new("diagnoses (simulated)", cases.len());
    let one = |&(design, slow, seed): &(Design, usize, u64)| {
        let r = case(&args, design, slow, seed).map_err(Failure::input);
        progress.advance(1);
        r
    };
    let runs: Result<Vec<Run>, Failure> = cases.par_iter().with_max_len(1).map(one).collect();
    drop(progress);
    print(&args, &runs?)
}

fn case(args: &Args, design: Design, slow: usize, seed: u64) -> Result<Run, String> {
    let (site, truth) = draw_slow_nics(args.hosts, slow, args.left[0]..args.left[1], args.noise, seed)?;
    if design == Design::Oracle {
        return Ok(by_oracle(args, slow, seed, &site, &truth));
    }
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let path = folder.path().join("readings.db");
    let mut store = Store::create(&path, site.cluster()).map_err(|e| e.to_string())?;
    let mut readings = 0;
    let mut taken = Vec::new();
    let mut times = Vec::new();
    let mut complete_after = None;
    let answer;
    let mut diagnose = |path: &std::path::Path, readings: usize| -> Result<DiagnoseAnswer, String> {
        let begun = Instant::now();
        let store = Store::open(path, site.cluster()).map_err(|e| e.to_string())?;
        let engine = Engine::builder(site.cluster().clone()).store(store).build().map_err(|e| e.to_string())?;
        let answer = engine.diagnose(&DiagnoseRequest::default()).map_err(|e| e.to_string())?;
        times.push(begun.elapsed().as_secs_f64());
        let judged = Judged::new(&site, &truth, &answer);
        complete_after = match judged.found == truth.len() && judged.wrong_host + judged.wrong_part == 0 {
            true => complete_after.or(Some(readings)),
            false => None,
        };
        Ok(answer)
    };
    match design {
        Design::Measure | Design::Oracle => {
            readings = measure_site(&site, &mut store, args.readings, DesignKind::Stratified, false, seed)?;
            answer = diagnose(&path, readings)?;
        }
        Design::Asked => {
            let sweep = engine::rail_sweep(site.cluster(), &site.cluster().usable());
            for a in sweep.into_iter().take(args.readings) {
                taken.push(take(&site, &mut store, a, readings)?);
                readings += 1;
            }
            answer = loop {
                let d = diagnose(&path, readings)?;
                let next = d.measure_next.as_ref().map(|g| g.allocation(site.cluster()));
                match next {
                    Some(a) if readings < args.readings => taken.push(take(&site, &mut store, a, readings)?),
                    _ => break d,
                }
                readings += 1;
            };
        }
    }
    let j = Judged::new(&site, &truth, &answer);
    let decoder = (slow > 0 && design == Design::Asked)
        .then(|| crate::decoder::probability(&site, &truth, (args.left[0], args.left[1]), &taken));
    Ok(Run {
        decoder,
        design,
        slow,
        seed,
        simulated: true,
        truth: names(&site, &truth),
        found: j.found,
        host_found: j.host_found,
        wrong_part: j.wrong_part,
        wrong_host: j.wrong_host,
        named: j.named,
        suspicions: answer.defects.iter().filter(|d| !d.named).count(),
        readings,
        complete_after,
        diagnosis_s: stats::mean(&times),
        diagnosis_max_s: times.iter().copied().fold(0.0, f64::max),
    })
}

/// The run of a searcher that knows the truth's form.
fn by_oracle(args: &Args, slow: usize, seed: u64, site: &Site, truth: &[SlowNic]) -> Run {
    let begun = Instant::now();
    let oracle = Oracle::new(site, (args.left[0], args.left[1]), slow, IRREGULARITY, seed);
    let found = names(site, &oracle.named(args.readings));
    let of = names(site, truth);
    let right = found.iter().filter(|f| of.iter().any(|t| t.0 == f.0)).count();
    let wrong = found.len() - right;
    let seconds = begun.elapsed().as_secs_f64();
    Run {
        design: Design::Oracle,
        slow,
        seed,
        simulated: true,
        found: right,
        host_found: right,
        wrong_part: 0,
        wrong_host: wrong,
        named: found,
        suspicions: 0,
        readings: args.readings,
        complete_after: (right == truth.len() && wrong == 0).then_some(args.readings),
        decoder: None,
        diagnosis_s: seconds / args.readings as f64,
        diagnosis_max_s: seconds / args.readings as f64,
        truth: of,
    }
}

/// Stores the reading of an allocation.
fn take(site: &Site, store: &mut Store, a: Allocation, number: usize) -> Result<(Allocation, f64), String> {
    let v = site.reading(&a, number as u64).ok_or("a reading without GPUs")?;
    let mut m =
        Measurement::new(a.clone(), site.collective(), site.size(), Bandwidth::from_gb_per_s(v), Source::Simulated);
    m.taken_at_unix_s = Some(AT_UNIX_S + STEP_S * number as f64);
    store.insert(&m.into()).map_err(|e| e.to_string())?;
    Ok((a, v))
}

/// The names of slow NICs, in the form of the doctor.
fn names(site: &Site, truth: &[SlowNic]) -> Vec<(String, f64)> {
    let name = |s: &SlowNic| {
        let c = site.cluster();
        let nic = &c.type_of(s.host).nics[usize::from(s.nic)].name;
        (format!("NIC {nic} of {}", c.host(s.host).name), s.left)
    };
    truth.iter().map(name).collect()
}

/// An answer compared with the truth.
struct Judged {
    named: Vec<(String, f64)>,
    found: usize,
    host_found: usize,
    wrong_part: usize,
    wrong_host: usize,
}

impl Judged {
    fn new(site: &Site, truth: &[SlowNic], answer: &DiagnoseAnswer) -> Judged {
        let slow = names(site, truth);
        let host = |s: &SlowNic| site.cluster().host(s.host).name.as_str();
        let named: Vec<(&str, &str, f64)> = answer
            .defects
            .iter()
            .filter(|d| d.named)
            .map(|d| &d.candidates[0])
            .map(|c| (c.component.as_str(), c.host.as_str(), c.probability))
            .collect();
        let right = |component: &str| slow.iter().any(|s| s.0 == component);
        let has_slow = |name: &str| truth.iter().any(|s| host(s) == name);
        let wrong = named.iter().filter(|n| !right(n.0));
        let wrong_part = wrong.clone().filter(|n| has_slow(n.1)).count();
        let wrong_host = wrong.count() - wrong_part + answer.shared.len();
        // The host with most of the probability of every defect.
        let pointed: Vec<&str> = answer
            .defects
            .iter()
            .filter_map(|d| {
                let h = d.candidates[0].host.as_str();
                let on: f64 = d.candidates.iter().filter(|c| c.host == h).map(|c| c.probability).sum();
                (on >= 0.5).then_some(h)
            })
            .collect();
        Judged {
            found: slow.iter().filter(|s| named.iter().any(|n| n.0 == s.0)).count(),
            host_found: truth.iter().filter(|s| pointed.contains(&host(s))).count(),
            wrong_part,
            wrong_host,
            named: named
                .iter()
                .map(|n| (n.0.to_owned(), n.2))
                .chain(answer.shared.iter().map(|s| (s.part.clone(), 1.0)))
                .collect(),
        }
    }
}

fn print(args: &Args, runs: &[Run]) -> Result<(), Failure> {
    if args.format == Format::Json {
        return console::print_json(&serde_json::json!({
            "simulated": true, "hosts": args.hosts, "noise": args.noise, "left": args.left, "readings": args.readings,
            "runs": runs,
        }));
    }
    let head = format!(
        "SIMULATED sites of {} hosts (hgx-h100), not measured. A reading has {:.0} % noise; slow NICs keep {:.0} to {:.0} % of their rate. \
         asked: a reading of every rail, then the readings that the doctor asks for, {} at most. measure: {} samples of `linkwise measure`. \
         complete: runs in which all slow NICs are named and nothing else. decoder: runs in which the true set is probable to a \
         decoder that knows the truth's form. false part: named on a host with a slow NIC, but not this NIC. \
         Seconds are of one diagnosis.",
        args.hosts,
        100.0 * args.noise,
        100.0 * args.left[0],
        100.0 * args.left[1],
        args.readings,
        args.readings
    );
    console::print(&console::wrap(&head, 0));
    let head = [
        "design",
        "slow NICs",
        "runs",
        "complete",
        "decoder",
        "NICs named %",
        "host found %",
        "false part",
        "false host",
        "suspicions",
        "readings (mean)",
        "complete after (median)",
        "seconds (mean)",
        "seconds (max)",
    ];
    let row = |(design, slow): (Design, usize)| {
        let own: Vec<&Run> = runs.iter().filter(|r| (r.design, r.slow) == (design, slow)).collect();
        let n = own.len().max(1) as f64;
        let sum = |f: &dyn Fn(&Run) -> usize| own.iter().map(|r| f(r)).sum::<usize>();
        let share =
            |v: usize| if slow == 0 { "-".into() } else { format!("{:.1}", 100.0 * v as f64 / (n * slow as f64)) };
        let after: Vec<f64> = own.iter().filter_map(|r| r.complete_after).map(|v| v as f64).collect();
        let name = match design {
            Design::Asked => "asked",
            Design::Measure => "measure",
            Design::Oracle => "oracle",
        };
        vec![
            name.to_owned(),
            slow.to_string(),
            own.len().to_string(),
            own.iter().filter(|r| r.complete_after.is_some()).count().to_string(),
            sum(&|r| usize::from(r.decoder.is_some_and(|p| p > 0.5))).to_string(),
            share(sum(&|r| r.found)),
            share(sum(&|r| r.host_found)),
            sum(&|r| r.wrong_part).to_string(),
            sum(&|r| r.wrong_host).to_string(),
            sum(&|r| r.suspicions).to_string(),
            format!("{:.1}", sum(&|r| r.readings) as f64 / n),
            if after.is_empty() { "-".into() } else { format!("{:.0}", stats::median(&after)) },
            format!("{:.3}", own.iter().map(|r| r.diagnosis_s).sum::<f64>() / n),
            format!("{:.3}", own.iter().map(|r| r.diagnosis_max_s).fold(0.0, f64::max)),
        ]
    };
    let cases = args.design.iter().flat_map(|d| args.slow.iter().map(move |s| (*d, *s)));
    console::print(&format!("\n{}", table(&head, 1, cases.map(row))));
    Ok(())
}
