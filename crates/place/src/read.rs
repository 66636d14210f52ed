//! Requests as JSON, one request per line.
//!
//! Unknown fields are refused, so that a misspelt field is not ignored silently; `null` means absent. The first fault
//! is reported with a stable code and the path of the field. [`crate::Request::usable`] decides whether the request can
//! be met.

mod strict;

use crate::groups::Group;
use crate::policy::Slack;
use crate::request::{Constraints, Contention, JOBS_MAX, Job, PODS_MAX, Request, Split};
use crate::search::Registry;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fmt::Display;
use topology::{Allocation, Bytes, Cluster, GpuMask, HostId, ListError, ListErrorKind, ListReader, diagnose};

/// Maximum length of a request line, bytes: ten thousand GPUs in text are under 200 kB.
pub const LINE_BYTES_MAX: usize = 4 << 20;
/// Maximum length of a message, characters: hostile input must not be echoed in full.
const MESSAGE_CHARS_MAX: usize = 400;

const FIELDS: [&str; 12] = [
    "id",
    "gpus",
    "pods",
    "groups",
    "free",
    "size_bytes",
    "constraints",
    "jobs",
    "contention",
    "loss_weight",
    "slack",
    "search",
];
const CONSTRAINTS: [&str; 14] = [
    "only_hosts",
    "excluded_hosts",
    "gpu_type",
    "gpus_per_host_min",
    "hosts_max",
    "exclusive_nics",
    "uneven",
    "per_host",
    "gpus_per_host_max",
    "switches_max",
    "switch_tier",
    "require_level",
    "prefer_level",
    "spread",
];
const JOB: [&str; 4] = ["id", "gpus", "demand_gb_per_s", "duty"];

/// A fault of a request line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad {
    /// Stable code for scripts: `bad_request`, `unknown_gpu`, `duplicate_gpu`, `unknown_host`, `unknown_search`, or the
    /// code of a [`crate::Refusal`].
    pub code: &'static str,
    /// Message for people.
    pub message: String,
}

impl Bad {
    /// A fault whose message is cut to a readable length.
    pub fn new(code: &'static str, message: impl Display) -> Self {
        let mut message = message.to_string();
        if let Some((at, _)) = message.char_indices().nth(MESSAGE_CHARS_MAX) {
            message.truncate(at);
            message.push_str(" ...");
        }
        Bad { code, message }
    }
    fn request(message: impl Display) -> Self {
        Bad::new("bad_request", message)
    }
    fn at(path: &str, found: &Value, expected: &str) -> Self {
        // Printing a long list costs time, so only its beginning is printed.
        let found = match found {
            Value::Array(a) => format!("a list of {}", a.len()),
            Value::Object(_) => "an object".to_owned(),
            Value::String(s) => format!("\"{}\"", s.chars().take(60).collect::<String>()),
            other => other.to_string(),
        };
        Bad::request(format!("`{path}` is {found}; {expected} was expected"))
    }
}

impl From<crate::Refusal> for Bad {
    fn from(e: crate::Refusal) -> Self {
        Bad::new(e.code(), e)
    }
}

/// Defaults for fields that a line omits.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// Message size.
    pub size: Bytes,
    /// How jobs share links.
    pub contention: Contention,
    /// Weight of the bandwidth that running jobs lose.
    pub loss_weight: f64,
    /// The bandwidth that an answer may give up for fewer hosts, fewer switches, an even split and entirely free hosts.
    pub slack: Slack,
}

/// The content of a request line.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// The request.
    pub request: Request,
    /// The search that the line names, if any: a name in the reader's [`Registry`].
    pub search: Option<&'static str>,
}

/// Reads requests for one cluster. Built once; then O(length) per line.
pub struct Reader<'a> {
    lists: ListReader<'a>,
    defaults: Defaults,
    registry: &'a Registry,
}

impl<'a> Reader<'a> {
    /// `registry`: the searches and contention rules that requests may name. O(hosts).
    pub fn new(cluster: &'a Cluster, defaults: Defaults, registry: &'a Registry) -> Self {
        Reader { lists: ListReader::new(cluster), defaults, registry }
    }

    /// The searches and contention rules that requests may name.
    pub fn registry(&self) -> &'a Registry {
        self.registry
    }

    /// The cluster.
    pub fn cluster(&self) -> &'a Cluster {
        self.lists.cluster()
    }

    /// The defaults for fields that a line omits.
    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// Reads one line: its `id` (null if absent) and its request.
    pub fn line(&self, line: &[u8]) -> (Value, Result<Asked, Bad>) {
        if line.len() > LINE_BYTES_MAX {
            return (Value::Null, Err(Bad::request(format!("the line is longer than {LINE_BYTES_MAX} bytes"))));
        }
        let mut value = match json(line) {
            Ok(v) => v,
            Err(e) => return (Value::Null, Err(e)),
        };
        let id = value.get_mut("id").map_or(Value::Null, Value::take);
        let asked = self.request(&value);
        (id, asked)
    }

    /// Reads a whole request.
    pub fn request(&self, v: &Value) -> Result<Asked, Bad> {
        let map = object(v, "", "a request is a JSON object", &FIELDS)?;
        let field = |name: &str| get(map, name);
        let pods = field("pods").map(pods).transpose()?.unwrap_or_default();
        let gpus = match field("gpus") {
            Some(g) => whole(g, "gpus")?,
            None if !pods.is_empty() => pods.iter().fold(0usize, |s, p| s.saturating_add(*p)),
            None => return Err(Bad::request("`gpus` is missing (or `pods`, a list of GPUs per pod)")),
        };
        let groups = field("groups").map(groups).transpose()?.unwrap_or_default();
        let jobs = field("jobs").map(|j| self.jobs(j)).transpose()?.unwrap_or_default();
        let free = match field("free") {
            None => self.not_held(&jobs),
            Some(f) => without_drained(self.cluster(), &self.gpus(strings(f, "free")?.into_iter(), "free")?),
        };
        let size = match field("size_bytes") {
            None => self.defaults.size,
            Some(s) => match s.as_u64() {
                Some(n) if n > 0 => Bytes(n),
                _ => return Err(Bad::at("size_bytes", s, "a positive whole number")),
            },
        };
        let contention = match field("contention") {
            None => self.defaults.contention,
            Some(c) => self
                .registry
                .contention(text(c, "contention")?)
                .ok_or_else(|| Bad::at("contention", c, &self.registry.contention_names()))?,
        };
        let loss_weight = field("loss_weight").map(|w| number(w, "loss_weight")).transpose()?;
        let slack = match field("slack") {
            None => self.defaults.slack,
            Some(s) => text(s, "slack")?.parse().map_err(|e| Bad::request(format!("`slack`: {e}")))?,
        };
        let constraints = match field("constraints") {
            None => Constraints { split: Split::EqualIfFeasible, ..Constraints::default() },
            Some(c) => self.constraints(c)?,
        };
        let search = match field("search") {
            None => None,
            Some(s) => Some(self.registry.search_entry(text(s, "search")?)?.name),
        };
        let request = Request {
            pods,
            groups,
            jobs,
            contention,
            loss_weight: loss_weight.unwrap_or(self.defaults.loss_weight),
            slack,
            constraints,
            ..Request::new(gpus, free, size)
        };
        Ok(Asked { request, search })
    }

    /// Reads running jobs from JSON text; see [`Reader::jobs`].
    pub fn jobs_of_text(&self, text: &str) -> Result<Vec<Job>, Bad> {
        self.jobs(&json(text.as_bytes())?)
    }

    /// Reads running jobs: `[{"id": "a", "gpus": ["n0:0", ...], "demand_gb_per_s": 40.0}, ...]`; `id` may be an
    /// integer.
    pub fn jobs(&self, v: &Value) -> Result<Vec<Job>, Bad> {
        let list = v.as_array().ok_or_else(|| Bad::at("jobs", v, "a list of jobs"))?;
        if list.len() > JOBS_MAX {
            return Err(crate::Refusal::TooManyJobs { jobs: list.len() }.into());
        }
        list.iter().enumerate().map(|(i, j)| self.job(j, &format!("jobs[{i}]"))).collect()
    }

    fn job(&self, v: &Value, path: &str) -> Result<Job, Bad> {
        let map = object(v, path, "a job is a JSON object", &JOB)?;
        let missing = |field: &str| Bad::request(format!("`{path}.{field}` is missing"));
        let id = match get(map, "id") {
            Some(Value::String(s)) => s.clone(),
            Some(Value::Number(n)) if n.is_u64() || n.is_i64() => n.to_string(),
            Some(other) => return Err(Bad::at(&format!("{path}.id"), other, "a string or a whole number")),
            None => return Err(missing("id")),
        };
        let at = format!("{path}.gpus");
        let gpus = self.gpus(strings(get(map, "gpus").ok_or_else(|| missing("gpus"))?, &at)?.into_iter(), &at)?;
        let demand_gb_per_s = match get(map, "demand_gb_per_s") {
            None => None,
            Some(d) => Some(number(d, &format!("{path}.demand_gb_per_s"))?),
        };
        let duty = get(map, "duty").map_or(Ok(1.0), |d| number(d, &format!("{path}.duty")))?;
        Ok(Job { id, gpus, demand_gb_per_s, duty })
    }

    fn constraints(&self, v: &Value) -> Result<Constraints, Bad> {
        let map = object(v, "constraints", "an object", &CONSTRAINTS)?;
        let mut c = Constraints::default();
        for (name, slot) in [("only_hosts", &mut c.only_hosts), ("excluded_hosts", &mut c.excluded_hosts)] {
            if let Some(list) = get(map, name) {
                let path = format!("constraints.{name}");
                *slot = self.hosts(strings(list, &path)?.into_iter(), &path)?;
                if slot.is_empty() && name == "only_hosts" {
                    return Err(Bad::request(format!("`{path}` is empty; leave it out to allow every host")));
                }
            }
        }
        if let Some(t) = get(map, "gpu_type") {
            c.gpu_type = Some(text(t, "constraints.gpu_type")?.to_owned());
        }
        if let Some(n) = get(map, "gpus_per_host_min") {
            c.gpus_per_host_min = whole(n, "constraints.gpus_per_host_min")?;
        }
        let number = |field: &str| get(map, field).map(|n| whole(n, &format!("constraints.{field}"))).transpose();
        let name = |field: &str| {
            get(map, field).map(|n| text(n, &format!("constraints.{field}")).map(str::to_owned)).transpose()
        };
        c.hosts_max = number("hosts_max")?;
        c.gpus_per_host_max = number("gpus_per_host_max")?;
        c.switches_max = number("switches_max")?;
        c.switch_tier = name("switch_tier")?;
        c.require_level = name("require_level")?;
        c.prefer_level = name("prefer_level")?;
        c.spread = name("spread")?;
        if let Some(b) = get(map, "exclusive_nics") {
            c.exclusive_nics = truth(b, "constraints.exclusive_nics")?;
        }
        let uneven = get(map, "uneven").map_or(Ok(false), |u| truth(u, "constraints.uneven"))?;
        c.split = Split::of(uneven, number("per_host")?).map_err(Bad::request)?;
        Ok(c)
    }

    /// Reads hosts in the notation of [`topology::list`], each once. `what` is the name of the field in errors.
    pub fn hosts<'s>(&self, items: impl Iterator<Item = &'s str>, what: &str) -> Result<Vec<HostId>, Bad> {
        self.lists.hosts(items).map_err(|e| refused(what, &e, "unknown_host"))
    }

    /// Reads GPUs in the notation of [`topology::list`]; one string may hold several items. A repeated GPU is an error.
    /// `what` is the name of the field in errors.
    pub fn gpus<'s>(&self, items: impl Iterator<Item = &'s str>, what: &str) -> Result<Allocation, Bad> {
        self.lists.gpus(items).map_err(|e| refused(what, &e, "unknown_gpu"))
    }

    /// The GPUs that are neither drained nor used by these jobs.
    pub fn not_held(&self, jobs: &[Job]) -> Allocation {
        let mut held: HashMap<HostId, GpuMask> = HashMap::new();
        for &(h, m) in jobs.iter().flat_map(|j| j.gpus.parts()) {
            let mask = held.entry(h).or_default();
            *mask = mask.union(m);
        }
        let usable = self.cluster().usable();
        Allocation::new(usable.parts().iter().map(|&(h, m)| (h, m.minus(held.get(&h).copied().unwrap_or_default()))))
    }
}

/// The fault for an error in a list; `unknown` is the code for names that the cluster does not have.
fn refused(what: &str, e: &ListError, unknown: &'static str) -> Bad {
    let code = match e.kind {
        ListErrorKind::UnknownHost | ListErrorKind::UnknownGpu => unknown,
        ListErrorKind::DuplicateGpu => "duplicate_gpu",
        ListErrorKind::Syntax | ListErrorKind::TooLong => "bad_request",
    };
    Bad::new(code, format!("`{what}`: {e}"))
}

/// The GPUs except those that the cluster file drains.
pub fn without_drained(cluster: &Cluster, a: &Allocation) -> Allocation {
    Allocation::new(a.parts().iter().map(|&(h, m)| (h, m.minus(cluster.host(h).drained))))
}

fn json(text: &[u8]) -> Result<Value, Bad> {
    match serde_json::from_slice(text) {
        Ok(strict::Strict(v)) => Ok(v),
        Err(e) if e.is_data() => Err(Bad::request(e)),
        Err(e) => Err(Bad::request(format!("this is not JSON: {e}"))),
    }
}

fn pods(v: &Value) -> Result<Vec<usize>, Bad> {
    let list = v.as_array().ok_or_else(|| Bad::at("pods", v, "a list of GPUs per pod"))?;
    if list.len() > PODS_MAX {
        return Err(crate::Refusal::TooManyPods { pods: list.len() }.into());
    }
    if list.is_empty() {
        return Err(Bad::request("`pods` is empty; leave it out for any split"));
    }
    list.iter().enumerate().map(|(i, p)| whole(p, &format!("pods[{i}]"))).collect()
}

fn groups(v: &Value) -> Result<Vec<Group>, Bad> {
    let list = v.as_array().ok_or_else(|| Bad::at("groups", v, "a list of groups"))?;
    let group = |(i, g): (usize, &Value)| {
        let path = format!("groups[{i}]");
        let map = object(g, &path, "a group is a JSON object", &["kind", "size", "weight"])?;
        let field = |name: &str| get(map, name).ok_or_else(|| Bad::request(format!("`{path}.{name}` is missing")));
        let kind = text(field("kind")?, &format!("{path}.kind"))?;
        Ok(Group {
            kind: kind.parse().map_err(|e| Bad::request(format!("`{path}.kind`: {e}")))?,
            size: whole(field("size")?, &format!("{path}.size"))?,
            weight: get(map, "weight").map_or(Ok(1.0), |w| number(w, &format!("{path}.weight")))?,
        })
    };
    list.iter().enumerate().map(group).collect()
}

fn get<'v>(map: &'v Map<String, Value>, field: &str) -> Option<&'v Value> {
    map.get(field).filter(|v| !v.is_null())
}

fn object<'v>(v: &'v Value, path: &str, expected: &str, known: &[&str]) -> Result<&'v Map<String, Value>, Bad> {
    let map = v.as_object().ok_or_else(|| match path {
        "" => Bad::request(expected),
        _ => Bad::at(path, v, expected),
    })?;
    if let Some(unknown) = map.keys().find(|k| !known.contains(&k.as_str())) {
        let near = diagnose::did_you_mean(unknown, known.iter().copied());
        let near = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
        let dot = if path.is_empty() { "" } else { "." };
        let unknown: String = unknown.chars().take(60).collect();
        let known = known.join(", ");
        return Err(Bad::request(format!("unknown field `{path}{dot}{unknown}`; known are {known}{near}")));
    }
    Ok(map)
}

fn whole(v: &Value, path: &str) -> Result<usize, Bad> {
    let n = v.as_u64().ok_or_else(|| Bad::at(path, v, "a whole number"))?;
    Ok(usize::try_from(n).unwrap_or(usize::MAX))
}

fn number(v: &Value, path: &str) -> Result<f64, Bad> {
    v.as_f64().ok_or_else(|| Bad::at(path, v, "a number"))
}

fn truth(v: &Value, path: &str) -> Result<bool, Bad> {
    v.as_bool().ok_or_else(|| Bad::at(path, v, "true or false"))
}

fn text<'v>(v: &'v Value, path: &str) -> Result<&'v str, Bad> {
    v.as_str().ok_or_else(|| Bad::at(path, v, "a string"))
}

fn strings<'v>(v: &'v Value, path: &str) -> Result<Vec<&'v str>, Bad> {
    let list = v.as_array().ok_or_else(|| Bad::at(path, v, "a list of strings"))?;
    let string = |(i, s): (usize, &'v Value)| s.as_str().ok_or_else(|| Bad::at(&format!("{path}[{i}]"), s, "a string"));
    list.iter().enumerate().map(string).collect()
}
