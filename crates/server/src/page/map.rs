//! The cluster as a map: hosts by their switches, GPUs by job, free, drained and suspected, with bandwidths.
//!
//! A small cluster is shown GPU by GPU. A large one is shown by switch, a small picture each, and a switch has its own page: 1,280 hosts
//! are about 250 kB and need no script.

use super::picture::{Strip, nic_rate, rate, uplink};
use super::{Visit, colour, hosts, listed, page, status};
use crate::problem::Problem;
use crate::read;
use crate::routes::escaped;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use engine::{Answer, GpuStatus, HostStatus, HostsAnswer, JobAnswer, ReadingsRequest, SuspectAnswer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use topology::{Cluster, HostId};

/// Largest number of hosts of a map that shows every GPU.
const SMALL: usize = 48;
/// Largest number of cards of a map; beyond it, a card is a switch of the next tier, or a part of the host list.
const CARDS_MAX: usize = 320;
/// Hosts of one page of a switch.
const HOSTS_PER_PAGE: usize = 128;
/// Jobs of the list on the map's page.
const JOBS_SHOWN: usize = 50;
/// Readings that are looked through for the newest one of every listed job.
const READINGS_SEEN: usize = 200;
/// Suspects below this probability are not shown on the map.
pub const LIKELY: f64 = 0.05;

/// A host of the map.
#[derive(Serialize)]
struct Row {
    name: String,
    cells: Vec<Cell>,
    suspects: String,
    /// Line rate of its NICs.
    rate: String,
    found: bool,
}

/// A GPU of the map.
#[derive(Serialize)]
struct Cell {
    class: String,
    title: String,
    /// Address of the job's page; empty for a GPU without a job.
    job: String,
}

/// Hosts below one switch.
#[derive(Serialize)]
pub struct Block {
    name: String,
    uplink: String,
    rows: Vec<Row>,
}

/// What is below one switch, in numbers.
#[derive(Default, Serialize)]
struct Sum {
    hosts: usize,
    gpus: usize,
    free: usize,
    held: usize,
    drained: usize,
    /// Free GPUs on hosts without a job or a drained GPU.
    whole: usize,
    suspects: usize,
}

impl Sum {
    fn add(&mut self, h: &HostStatus) {
        let free = h.gpus.iter().filter(|g| g.job.is_none() && g.drained.is_none()).count();
        self.hosts += 1;
        self.gpus += h.gpus.len();
        self.free += free;
        self.held += h.gpus.iter().filter(|g| g.job.is_some()).count();
        self.drained += h.gpus.iter().filter(|g| g.drained.is_some() && g.job.is_none()).count();
        self.whole += if free == h.gpus.len() { free } else { 0 };
        self.suspects += usize::from(suspected(h));
    }
}

/// A switch of the overview.
#[derive(Serialize)]
struct Card {
    name: String,
    address: String,
    sum: Sum,
    uplink: String,
    strip: Strip,
}

/// Switches below one switch of the next tier.
#[derive(Serialize)]
struct Group {
    name: String,
    uplink: String,
    sum: Sum,
    cards: Vec<Card>,
}

fn suspected(h: &HostStatus) -> bool {
    h.suspects.iter().any(|s| s.probability >= LIKELY)
}

fn class(g: &GpuStatus) -> String {
    match (&g.job, &g.drained) {
        (Some(j), None) => format!("j j{}", colour(j)),
        (Some(j), Some(_)) => format!("j j{} d", colour(j)),
        (None, Some(_)) => "d".into(),
        (None, None) => "f".into(),
    }
}

/// The address of a job's page; empty for words that stand for a job which the client may not see.
fn address(job: &str) -> String {
    if store::state::check_job_id(job).is_ok() { format!("/jobs/{}", escaped(job)) } else { String::new() }
}

/// Hosts one by one, by their nearest switch. GPUs in `marked` are outlined.
pub fn blocks<'a>(
    cluster: &Cluster,
    some: impl Iterator<Item = (HostId, &'a HostStatus)>,
    marked: &HashMap<(&str, u8), &str>,
    found: &str,
) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for (id, host) in some {
        let cells = host.gpus.iter().enumerate().map(|(i, g)| {
            let name = format!("{}:{i}", host.name);
            let mark = marked.get(&(host.name.as_str(), i as u8)).copied().unwrap_or_default();
            let (title, job) = match (&g.job, &g.drained) {
                (Some(j), d) => {
                    let drained = if d.is_some() { ", drained" } else { "" };
                    (format!("{name} held by {j}{drained}"), address(j))
                }
                (None, Some(why)) if why.is_empty() => (format!("{name} drained"), String::new()),
                (None, Some(why)) => (format!("{name} drained: {}", super::cut(why, 200)), String::new()),
                (None, None) if mark.is_empty() => (format!("{name} free"), String::new()),
                (None, None) => (format!("{name} {mark}"), String::new()),
            };
            let space = if mark.is_empty() { "" } else { " " };
            Cell { class: format!("{}{space}{mark}", class(g)), title, job }
        });
        let suspect = |s: &SuspectAnswer| format!("{} ({:.0} %)", s.component, 100.0 * s.probability);
        let likely = host.suspects.iter().filter(|s| s.probability >= LIKELY).take(3).map(suspect);
        let row = Row {
            name: host.name.clone(),
            cells: cells.collect(),
            suspects: likely.collect::<Vec<_>>().join(", "),
            rate: rate(nic_rate(cluster, id)),
            found: host.name == found,
        };
        let switch = host.switches.first().cloned().unwrap_or_default();
        match blocks.last_mut() {
            Some(b) if b.name == switch => b.rows.push(row),
            _ => {
                let up = |_: &String| {
                    let s = cluster.switch_of(0, id);
                    rate(uplink(cluster, 0, cluster.hosts_below(0, s)))
                };
                blocks.push(Block {
                    uplink: host.switches.first().map(up).unwrap_or_default(),
                    name: switch,
                    rows: vec![row],
                });
            }
        }
    }
    blocks
}

/// The tier whose switches are the cards of a large cluster; none: parts of the host list.
fn card_tier(cluster: &Cluster) -> Option<usize> {
    (0..cluster.tiers().len()).find(|t| cluster.switch_count(*t) <= CARDS_MAX)
}

/// The hosts of every card with its name, address and uplinks.
fn card_hosts(cluster: &Cluster) -> Vec<(String, String, String, Vec<HostId>)> {
    match card_tier(cluster) {
        Some(t) => (0..cluster.switch_count(t))
            .map(|s| {
                let hosts: Vec<HostId> = cluster.hosts_below(t, s).collect();
                let up = rate(uplink(cluster, t, hosts.iter().copied()));
                (cluster.switch_name(t, s).into_owned(), format!("/hosts?tier={t}&switch={s}"), up, hosts)
            })
            .collect(),
        None => {
            let all: Vec<HostId> = cluster.host_ids().collect();
            let part = all.len().div_ceil(CARDS_MAX).max(32);
            let name = |h: &HostId| cluster.host(*h).name.as_str();
            all.chunks(part)
                .map(|c| {
                    let name = format!("{} to {}", name(&c[0]), name(&c[c.len() - 1]));
                    (name, format!("/hosts?from={}", c[0].index()), String::new(), c.to_vec())
                })
                .collect()
        }
    }
}

/// The overview of a large cluster. O(GPUs).
fn groups(cluster: &Cluster, h: &HostsAnswer) -> Vec<Group> {
    let above = card_tier(cluster).map(|t| t + 1).filter(|t| *t < cluster.tiers().len());
    let mut groups: Vec<(usize, Group)> = Vec::new();
    for (name, address, uplink_text, hosts) in card_hosts(cluster) {
        let mut sum = Sum::default();
        let Some(first) = hosts.first().copied() else { continue };
        let key = above.map_or(0, |t| cluster.switch_of(t, first));
        let at = match groups.iter().position(|g| g.0 == key) {
            Some(at) => at,
            None => {
                let tiers = above.into_iter().flat_map(|t| (t..cluster.tiers().len()).rev());
                let names: Vec<_> =
                    tiers.map(|t| cluster.switch_name(t, cluster.switch_of(t, first)).into_owned()).collect();
                let up = above.map(|t| rate(uplink(cluster, t, cluster.hosts_below(t, key))));
                let group = Group {
                    name: names.join(" › "),
                    uplink: up.unwrap_or_default(),
                    sum: Sum::default(),
                    cards: Vec::new(),
                };
                groups.push((key, group));
                groups.len() - 1
            }
        };
        let group = &mut groups[at].1;
        let mut columns = Vec::with_capacity(hosts.len());
        for id in &hosts {
            let host = &h.hosts[id.index()];
            sum.add(host);
            group.sum.add(host);
            columns.push((host.gpus.iter().map(class).collect(), suspected(host)));
        }
        group.cards.push(Card { name, address, sum, uplink: uplink_text, strip: Strip::new(&columns) });
    }
    groups.into_iter().map(|g| g.1).collect()
}

/// The tiers of the network in numbers.
fn tiers(cluster: &Cluster) -> Vec<Value> {
    let of = |(i, t): (usize, &topology::Tier)| {
        let n = cluster.switch_count(i);
        let (hosts, up) = if n == 0 {
            (0, 0.0)
        } else {
            (cluster.hosts_below(i, 0).count(), uplink(cluster, i, cluster.hosts_below(i, 0)))
        };
        json!({ "name": t.name, "switches": n, "hosts": hosts, "uplink": rate(up), "ratio": t.oversubscription})
    };
    cluster.tiers().iter().enumerate().map(of).collect()
}

/// The newest bus bandwidth that jobs reported, by job.
async fn got(v: &Visit) -> HashMap<String, f64> {
    let r = ReadingsRequest { limit: Some(READINGS_SEEN), ..Default::default() };
    match super::ask(v, engine::Request::Readings(r)).await {
        Ok(Answer::Readings(r)) => {
            r.readings.into_iter().filter_map(|x| Some((x.job?, x.busbw_gb_per_s))).collect() // the last one stays
        }
        _ => HashMap::new(),
    }
}

fn job_rows(v: &Visit, jobs: &[&JobAnswer], got: &HashMap<String, f64>) -> Vec<Value> {
    jobs.iter().map(|j| json!({ "job": listed(&v.app, j), "got": got.get(&j.id)})).collect()
}

pub async fn map(v: Visit) -> Result<Response<Body>, Problem> {
    let (s, h, got) = (status(&v).await?, hosts(&v).await?, got(&v).await);
    let cluster = v.app.engine.cluster();
    let shown: Vec<&JobAnswer> = s.jobs.iter().rev().take(JOBS_SHOWN).collect();
    let mut sum = Sum::default();
    h.hosts.iter().for_each(|x| sum.add(x));
    let small = h.hosts.len() <= SMALL;
    let all = cluster.host_ids().zip(&h.hosts);
    let share = |n: usize| 100.0 * n as f64 / sum.gpus.max(1) as f64;
    page(
        "map.html",
        json!({
            "here": "map", "visitor": v.visitor(), "cluster": s.cluster, "sum": sum, "jobs": job_rows(&v, &shown, &got),
            "jobs_all": s.jobs.len(), "model": v.app.engine.model_answer().ok().map(|m| m.kind), "tiers": tiers(cluster),
            "suspects": s.suspects.iter().filter(|x| x.probability >= LIKELY).count(),
            "bar": [share(sum.held), share(sum.drained), share(sum.free)],
            "blocks": small.then(|| blocks(cluster, all, &HashMap::new(), "")),
            "groups": (!small).then(|| groups(cluster, &h)),
        }),
    )
}

/// The hosts of one page.
#[derive(Deserialize)]
struct Part {
    tier: Option<usize>,
    switch: Option<usize>,
    #[serde(default)]
    from: usize,
    #[serde(default)]
    host: String,
}

/// The hosts below one switch, or from one host on, GPU by GPU.
pub async fn part(v: Visit) -> Result<Response<Body>, Problem> {
    let part: Part = read::query(&v.parts.uri)?;
    let cluster = v.app.engine.cluster();
    let unknown = |detail: &str| {
        let remedy = "begin at the page of the cluster";
        Problem::new(StatusCode::NOT_FOUND, "unknown_switch", detail, remedy)
    };
    let (name, path, all): (String, String, Vec<HostId>) = match (part.tier, part.switch) {
        (Some(t), Some(s)) if t < cluster.tiers().len() && s < cluster.switch_count(t) => {
            let path = format!("/hosts?tier={t}&switch={s}&");
            (cluster.switch_name(t, s).into_owned(), path, cluster.hosts_below(t, s).collect())
        }
        (None, None) => ("Hosts".into(), "/hosts?".into(), cluster.host_ids().collect()),
        _ => return Err(unknown("the cluster has no such switch")),
    };
    let found = all.iter().position(|h| cluster.host(*h).name == part.host);
    let from = found.map_or(part.from, |at| at / HOSTS_PER_PAGE * HOSTS_PER_PAGE);
    if from >= all.len() {
        return Err(unknown("the cluster has no such hosts"));
    }
    let (s, h, got) = (status(&v).await?, hosts(&v).await?, got(&v).await);
    let to = (from + HOSTS_PER_PAGE).min(all.len());
    let mut sum = Sum::default();
    all.iter().for_each(|id| sum.add(&h.hosts[id.index()]));
    let here = all[from..to].iter().map(|id| (*id, &h.hosts[id.index()]));
    let names: std::collections::HashSet<&str> =
        all[from..to].iter().flat_map(|id| &h.hosts[id.index()].gpus).filter_map(|g| g.job.as_deref()).collect();
    let jobs: Vec<&JobAnswer> =
        s.jobs.iter().rev().filter(|j| names.contains(j.id.as_str())).take(JOBS_SHOWN).collect();
    page(
        "part.html",
        json!({
            "here": "map", "visitor": v.visitor(), "name": name, "sum": sum, "jobs": job_rows(&v, &jobs, &got),
            "jobs_all": names.len(), "blocks": blocks(cluster, here, &HashMap::new(), &part.host),
            "earlier": (from > 0).then(|| format!("{path}from={}", from.saturating_sub(HOSTS_PER_PAGE))),
            "later": (to < all.len()).then(|| format!("{path}from={to}")), "from": from + 1, "to": to, "all": all.len(),
        }),
    )
}

/// What a visitor looks for.
#[derive(Deserialize)]
struct Wanted {
    #[serde(default)]
    q: String,
}

/// Leads to the page of the job or the host with a name.
pub async fn find(v: Visit) -> Result<Response<Body>, Problem> {
    let Wanted { q } = read::query(&v.parts.uri)?;
    let name = q.trim();
    let cluster = v.app.engine.cluster();
    let host = cluster.host_ids().find(|h| cluster.host(*h).name == name);
    let is_job = super::ask(&v, engine::Request::Job(engine::JobRequest { job: name.to_owned() })).await.is_ok();
    let to = match host {
        _ if is_job => format!("/jobs/{}", escaped(name)),
        Some(h) => {
            let tier = card_tier(cluster).map(|t| format!("tier={t}&switch={}&", cluster.switch_of(t, h)));
            format!("/hosts?{}host={}", tier.unwrap_or_default(), super::in_query(name))
        }
        None => {
            let detail = format!("no job holds GPUs under the name `{}`, and no host has it", read::excerpt(name));
            let remedy = "look at the lists of the page of the cluster";
            return Err(Problem::new(StatusCode::NOT_FOUND, "unknown_name", detail, remedy));
        }
    };
    let mut r = Response::new(Body::empty());
    *r.status_mut() = StatusCode::SEE_OTHER;
    if let Ok(to) = HeaderValue::try_from(to) {
        r.headers_mut().insert(header::LOCATION, to);
    }
    Ok(r)
}
