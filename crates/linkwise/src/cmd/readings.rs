//! `linkwise readings`: shows stored readings, and corrects or withdraws them.

use crate::brief::{self, gb};
use crate::cmd::open::{self, LockedModelFile};
use crate::store_errors::OrFailure;
use console::number;
use console::{Failure, Format, list_cell, now_unix_s, table, text_of, wrap};
use engine::{
    CorrectRequest, Engine, LearnRequest, ReadingChangeAnswer, ReadingsAnswer, ReadingsRequest, WithdrawRequest,
};
use serde_json::json;
use std::path::PathBuf;
use store::WhatChanged;
use topology::{Bytes, Cluster, Collective};

/// Width of a list of GPUs, columns.
const LIST_WIDTH: usize = 24;

/// The commands.
#[derive(clap::Subcommand)]
#[command(after_help = "Examples:\n  linkwise readings list --store S.db --cluster site.yaml --host n3\n  \
    linkwise readings correct 1207 --busbw 41.3 --why 'typed in Gbit/s' --store S.db --cluster site.yaml\n  \
    linkwise readings withdraw 1207 --why 'wrong job' --store S.db --cluster site.yaml\n  \
    linkwise readings learn 1207 1208 --model model.json --store S.db --cluster site.yaml\n\n\
    A withdrawn reading is no longer used by fit, doctor and observe, and stays listed with --withdrawn. A model file that learned it\n\
    keeps what it learned until the next fit.")]
pub enum Commands {
    /// Show readings, the newest ones
    List(List),
    /// Replace the bandwidth of a reading
    Correct(Correct),
    /// Withdraw a reading, so that nothing uses it
    Withdraw(Withdraw),
    /// Teach a model readings that were stored without it
    Learn(Learn),
}

/// What every command needs.
#[derive(clap::Args)]
pub struct Common {
    /// Store with readings
    #[arg(long)]
    store: PathBuf,
    /// Built-in cluster or cluster file
    #[arg(long, required_unless_present = "state")]
    cluster: Option<String>,
    /// State file; gives the cluster
    #[arg(long)]
    state: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// `readings list`.
#[derive(clap::Args)]
pub struct List {
    /// Only readings of this job
    #[arg(long)]
    job: Option<String>,
    /// Only readings that touch this host; may be repeated
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Only readings of this collective
    #[arg(long, value_parser = clap::value_parser!(Collective))]
    collective: Option<Collective>,
    /// Only readings of this message size
    #[arg(long, value_parser = Bytes::parse)]
    size: Option<Bytes>,
    /// Only readings stored after the reading with this number, oldest first
    #[arg(long, value_name = "ID", value_parser = number::whole::<i64>)]
    after: Option<i64>,
    /// Also list withdrawn readings
    #[arg(long)]
    withdrawn: bool,
    /// Most readings to list: the newest, or with --after the oldest
    #[arg(long, default_value_t = 100, value_parser = number::whole::<usize>)]
    limit: usize,
    #[command(flatten)]
    common: Common,
}

/// Who changes a reading, and why.
#[derive(clap::Args)]
pub struct By {
    /// Who [default: $USER]
    #[arg(long)]
    who: Option<String>,
    /// Why, one line
    #[arg(long)]
    why: String,
    /// Idempotency key: under the same key the change is made once
    #[arg(long)]
    key: Option<String>,
}

/// `readings correct`.
#[derive(clap::Args)]
pub struct Correct {
    /// Number of the reading
    #[arg(value_parser = number::whole::<i64>)]
    id: i64,
    /// Correct bus bandwidth, GB/s
    #[arg(long, value_name = "GB_PER_S", value_parser = number::real)]
    busbw: f64,
    /// Accept a bandwidth far above what the links allow
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    by: By,
    #[command(flatten)]
    common: Common,
}

/// `readings withdraw`.
#[derive(clap::Args)]
pub struct Withdraw {
    /// Number of the reading
    #[arg(value_parser = number::whole::<i64>)]
    id: i64,
    #[command(flatten)]
    by: By,
    #[command(flatten)]
    common: Common,
}

/// `readings learn`.
#[derive(clap::Args)]
pub struct Learn {
    /// Numbers of the readings
    #[arg(required = true, value_parser = number::whole::<i64>)]
    ids: Vec<i64>,
    /// Model file that learns
    #[arg(long)]
    model: PathBuf,
    /// Idempotency key: under the same key the readings are taught once
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    common: Common,
}

impl Common {
    fn engine(&self) -> Result<Engine, Failure> {
        // The state file supplies the cluster; it holds no readings.
        let builder = open::with_state(self.cluster.as_deref(), self.state.as_deref())?;
        let store = open::store(&self.store, builder.cluster())?;
        builder.store(store).build().or_failure()
    }
}

impl By {
    fn who(&self) -> Result<String, Failure> {
        let user = || std::env::var("USER").ok().filter(|u| !u.is_empty());
        self.who.clone().or_else(user).ok_or_else(|| Failure::input("--who is missing, and $USER is not set"))
    }
}

pub fn run(command: Commands) -> Result<(), Failure> {
    match command {
        Commands::List(a) => list(&a),
        Commands::Correct(a) => {
            let (who, why, key) = (a.by.who()?, a.by.why.clone(), a.by.key.clone());
            let request = CorrectRequest { id: a.id, busbw_gb_per_s: a.busbw, who, why, force: a.force, key };
            changed(a.common.format, &a.common.engine()?.correct(&request, now_unix_s()).or_failure()?)
        }
        Commands::Withdraw(a) => {
            let (who, why, key) = (a.by.who()?, a.by.why.clone(), a.by.key.clone());
            let request = WithdrawRequest { id: a.id, who, why, key };
            changed(a.common.format, &a.common.engine()?.withdraw(&request, now_unix_s()).or_failure()?)
        }
        Commands::Learn(a) => learn(&a),
    }
}

fn learn(a: &Learn) -> Result<(), Failure> {
    let (keeper, model) = LockedModelFile::open(&a.model)?;
    let builder = open::with_state(a.common.cluster.as_deref(), a.common.state.as_deref())?;
    let store = open::store(&a.common.store, builder.cluster())?;
    let engine = open::build(builder.store(store).model_file(model).keeper(keeper), &a.model)?;
    let request = LearnRequest { readings: a.ids.clone(), key: a.key.clone() };
    let answer = engine.learn(&request, now_unix_s()).or_failure()?;
    if a.common.format == Format::Json {
        console::print(&format!("{}\n", json!(answer)));
        return Ok(());
    }
    let file = a.model.display();
    let before = if answer.repeated { " before, under the same key" } else { "" };
    let (learned, all) = (answer.learned, answer.readings.len());
    let mut out = wrap(&format!("{file} has learned {learned} of {all} readings{before}"), 2);
    for (id, taught) in a.ids.iter().zip(&answer.readings) {
        if let Some(why) = taught.why_not {
            out += &wrap(&format!("reading {id} was not learned: {}", why.text()), 2);
        }
    }
    for (id, most) in a.ids.iter().zip(&answer.links_allow_gb_per_s) {
        if let Some(most) = most {
            out += &wrap(&format!("note: reading {id}: {}", brief::above_links(*most)), 2);
        }
    }
    console::print(&out);
    Ok(())
}

fn list(a: &List) -> Result<(), Failure> {
    let engine = a.common.engine()?;
    let answer = engine.readings(&ReadingsRequest {
        job: a.job.clone(),
        hosts: a.hosts.clone(),
        collective: a.collective,
        size_bytes: a.size.map(|s| s.0),
        after: a.after,
        withdrawn: a.withdrawn,
        limit: Some(a.limit),
    });
    let answer = answer.or_failure()?;
    match a.common.format {
        Format::Text => console::print(&text(engine.cluster(), &answer, a.after.is_some())),
        Format::Json => console::print(&format!("{}\n", json!(answer))),
    }
    Ok(())
}

fn text(cluster: &Cluster, a: &ReadingsAnswer, after: bool) -> String {
    if a.readings.is_empty() {
        return "no reading fits\n".into();
    }
    let mut t = table(&["job", "collective", "size", "GPUs", "", "id", "GB/s"], 5..);
    for r in &a.readings {
        t.add_row([
            r.job.clone().unwrap_or_else(|| "–".into()),
            r.collective.to_string(),
            r.size_bytes.to_string(),
            list_cell(&cluster.gpu_list(&r.gpus.allocation(cluster)), LIST_WIDTH),
            if r.withdrawn { "withdrawn" } else { "" }.to_owned(),
            r.id.to_string(),
            gb(r.busbw_gb_per_s),
        ]);
    }
    let mut out = text_of(&t);
    for c in a.readings.iter().flat_map(|r| &r.changes) {
        let what = match (c.what, c.new_busbw_gb_per_s) {
            (WhatChanged::Corrected, Some(new)) => {
                format!("corrected from {} to {} GB/s", gb(c.old_busbw_gb_per_s), gb(new))
            }
            _ => "withdrawn".into(),
        };
        out += &wrap(&format!("reading {} {what} by {}: {}", c.reading, c.who, c.why), 2);
    }
    match (a.more, a.readings.last()) {
        (true, Some(last)) if after => out += &format!("newer readings are not shown; --after {} goes on\n", last.id),
        (true, _) => out += "older readings are not shown; --limit shows more\n",
        _ => {}
    }
    out
}

fn changed(format: Format, a: &ReadingChangeAnswer) -> Result<(), Failure> {
    let c = &a.change;
    let what = match c.new_busbw_gb_per_s {
        Some(new) => format!("corrected from {} to {} GB/s", gb(c.old_busbw_gb_per_s), gb(new)),
        None => "withdrawn".into(),
    };
    let before = if a.repeated { " before, under the same key" } else { "" };
    match format {
        Format::Text => console::print(&format!(
            "reading {} {what}{before}\na model file that learned it keeps that until the next `linkwise fit`\n",
            c.reading
        )),
        Format::Json => console::print(&format!("{}\n", json!(a))),
    }
    Ok(())
}
