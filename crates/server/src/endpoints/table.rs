//! The endpoints of the cluster, its jobs, readings and events.

use super::{Act, Endpoint, get, of, post};
use crate::auth::Scope;
use crate::lists::{AllocationsQuery, HostsQuery};
use crate::problem::Problem;
use crate::read::Asked;
use axum::http::{Method, StatusCode};
use engine::{
    AllocateAnswer, AllocateRequest, CorrectRequest, DiagnoseAnswer, DiagnoseRequest, DrainAnswer, DrainRequest,
    EventsAnswer, EventsRequest, ExplainAnswer, ExplainRequest, HostsAnswer, HostsRequest, JobAnswer, JobRequest,
    ObserveAnswer, ObserveRequest, PlaceAnswer, PlaceRequest, ReadingChangeAnswer, ReadingsAnswer, ReadingsRequest,
    ReleaseAnswer, ReleaseRequest, RenewRequest, Request, StatusAnswer, StatusRequest, UndrainAnswer, UndrainRequest,
    WithdrawRequest,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use topology::Collective;

/// The jobs that hold GPUs.
#[derive(Serialize, JsonSchema)]
pub struct Allocations {
    /// The jobs, oldest first.
    pub jobs: Vec<JobAnswer>,
    /// Number of GPUs that a job can get.
    pub free: usize,
    /// Version of the state; it rises with every change.
    pub version: u64,
    /// `after` of the next page; none: these are the last jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Lists readings.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadingsQuery {
    /// Only readings of this job.
    job: Option<String>,
    /// Only readings on this host.
    host: Option<String>,
    /// Only readings of this collective.
    #[schemars(with = "Option<String>")]
    collective: Option<Collective>,
    /// Only readings of this size.
    size_bytes: Option<u64>,
    /// Only readings after this number, oldest first.
    after: Option<i64>,
    /// `true`: withdrawn readings, too.
    withdrawn: Option<bool>,
    /// Maximum number of readings, 1 to 10,000; none: 100.
    limit: Option<usize>,
}

/// Corrects a reading.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Correction {
    /// The correct bus bandwidth, GB/s.
    busbw_gb_per_s: f64,
    /// The reason.
    why: String,
    /// Accept a bandwidth above the one that the links allow, too.
    #[serde(default)]
    force: bool,
}

/// Withdraws a reading.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Withdrawal {
    /// The reason.
    why: String,
}

/// The job of the path in a request whose body may name it, too.
fn same_job(named: &mut String, a: &Asked) -> Result<(), Problem> {
    let job = a.param("job");
    if !named.is_empty() && *named != job {
        return Err(Problem::bad("two_jobs", "the address and the body name different jobs"));
    }
    *named = job;
    Ok(())
}

/// The endpoints of the engine's own requests.
pub fn all() -> Vec<Endpoint> {
    use Act::{Ask, Events, Lines};
    use Scope::{Operate, Read, Request as Requests};
    vec![
        get(
            "/v1/cluster",
            "cluster",
            "The cluster, its jobs, free and drained GPUs, and suspects.",
            of::<StatusAnswer>,
            Ask(|_| Ok(Request::Status(StatusRequest {}))),
        ),
        Endpoint {
            query: Some(of::<HostsQuery>),
            ..get(
                "/v1/hosts",
                "hosts",
                "The hosts with the state of every GPU.",
                of::<HostsAnswer>,
                Ask(|a| a.query::<HostsQuery>().map(|_| Request::Hosts(HostsRequest {}))),
            )
        },
        post(
            Operate,
            "/v1/hosts/drain",
            "drain",
            "Drain GPUs or hosts: no job gets them from now on.",
            (of::<DrainRequest>, of::<DrainAnswer>),
            Ask(|a| {
                let mut r: DrainRequest = a.json()?;
                a.key_into(&mut r.key)?;
                Ok(Request::Drain(r))
            }),
        ),
        post(
            Operate,
            "/v1/hosts/undrain",
            "undrain",
            "End the drain of GPUs or hosts.",
            (of::<UndrainRequest>, of::<UndrainAnswer>),
            Ask(|a| {
                let mut r: UndrainRequest = a.json()?;
                a.key_into(&mut r.key)?;
                Ok(Request::Undrain(r))
            }),
        ),
        post(
            Read,
            "/v1/place",
            "place",
            "Choose GPUs for a job, without allocating them.",
            (of::<PlaceRequest>, of::<PlaceAnswer>),
            Ask(|a| {
                let r: PlaceRequest = a.json()?;
                if r.commit.is_some() {
                    return Err(Problem::bad("commit_not_here", "`commit` allocates: send it to /v1/allocations"));
                }
                Ok(Request::Place(Box::new(r)))
            }),
        ),
        Endpoint {
            forms: ("application/x-ndjson", "application/x-ndjson"),
            ..post(
                Read,
                "/v1/place/stream",
                "placeStream",
                "Choose GPUs for many jobs, a request a line, without allocating them. Every line gets a line, in order; \
                 `id` of a request is in its answer.",
                (of::<PlaceRequest>, of::<PlaceAnswer>),
                Lines,
            )
        },
        post(
            Read,
            "/v1/explain",
            "explain",
            "Predict the bandwidth of given GPUs, and say what limits them.",
            (of::<ExplainRequest>, of::<ExplainAnswer>),
            Ask(|a| Ok(Request::Explain(a.json()?))),
        ),
        Endpoint {
            query: Some(of::<AllocationsQuery>),
            ..get(
                "/v1/allocations",
                "allocations",
                "The jobs that hold GPUs.",
                of::<Allocations>,
                Ask(|a| a.query::<AllocationsQuery>().map(|_| Request::Status(StatusRequest {}))),
            )
        },
        Endpoint {
            status: StatusCode::CREATED,
            ..post(
                Requests,
                "/v1/allocations",
                "allocate",
                "Choose GPUs and allocate them to the job that `commit` names.",
                (of::<PlaceRequest>, of::<PlaceAnswer>),
                Ask(|a| {
                    let mut r: PlaceRequest = a.json()?;
                    if r.commit.is_none() {
                        let detail = "`commit` is missing: the id of the job that gets the GPUs";
                        return Err(Problem::bad("no_job", detail));
                    }
                    a.key_into(&mut r.key)?;
                    Ok(Request::Place(Box::new(r)))
                }),
            )
        },
        get(
            "/v1/allocations/{job}",
            "allocation",
            "A job and its GPUs.",
            of::<JobAnswer>,
            Ask(|a| Ok(Request::Job(JobRequest { job: a.param("job") }))),
        ),
        Endpoint {
            method: Method::PUT,
            ..post(
                Requests,
                "/v1/allocations/{job}",
                "allocateNamed",
                "Allocate named GPUs to a job.",
                (of::<AllocateRequest>, of::<AllocateAnswer>),
                Ask(|a| {
                    let mut r: AllocateRequest = a.json()?;
                    same_job(&mut r.job, a)?;
                    a.key_into(&mut r.key)?;
                    Ok(Request::Allocate(r))
                }),
            )
        },
        Endpoint {
            method: Method::DELETE,
            scope: Requests,
            ..get(
                "/v1/allocations/{job}",
                "release",
                "Release the GPUs of a job.",
                of::<ReleaseAnswer>,
                Ask(|a| Ok(Request::Release(ReleaseRequest { jobs: vec![a.param("job")], key: a.key.clone() }))),
            )
        },
        post(
            Requests,
            "/v1/allocations/{job}/renew",
            "renew",
            "Start the lease of a job again.",
            (of::<RenewRequest>, of::<JobAnswer>),
            Ask(|a| {
                let mut r: RenewRequest = a.json()?;
                same_job(&mut r.job, a)?;
                Ok(Request::Renew(r))
            }),
        ),
        Endpoint {
            query: Some(of::<ReadingsQuery>),
            ..get(
                "/v1/readings",
                "readings",
                "List readings.",
                of::<ReadingsAnswer>,
                Ask(|a| {
                    let q: ReadingsQuery = a.query()?;
                    crate::lists::length(q.limit)?;
                    Ok(Request::Readings(ReadingsRequest {
                        job: q.job,
                        hosts: q.host.into_iter().collect(),
                        collective: q.collective,
                        size_bytes: q.size_bytes,
                        after: q.after,
                        withdrawn: q.withdrawn.unwrap_or_default(),
                        limit: q.limit,
                    }))
                }),
            )
        },
        Endpoint {
            status: StatusCode::CREATED,
            ..post(
                Requests,
                "/v1/readings",
                "observe",
                "Record the bandwidth that a job achieved.",
                (of::<ObserveRequest>, of::<ObserveAnswer>),
                Ask(|a| {
                    let mut r: ObserveRequest = a.json()?;
                    a.key_into(&mut r.key)?;
                    Ok(Request::Observe(r))
                }),
            )
        },
        post(
            Operate,
            "/v1/readings/{id}/correct",
            "correct",
            "Replace the bandwidth of a reading.",
            (of::<Correction>, of::<ReadingChangeAnswer>),
            Ask(|a| {
                let Correction { busbw_gb_per_s, why, force } = a.json()?;
                let (id, who, key) = (a.number("id")?, a.client.name.clone(), a.key.clone());
                Ok(Request::Correct(CorrectRequest { id, busbw_gb_per_s, who, why, force, key }))
            }),
        ),
        post(
            Operate,
            "/v1/readings/{id}/withdraw",
            "withdraw",
            "Withdraw a reading: no fit and no diagnosis uses it.",
            (of::<Withdrawal>, of::<ReadingChangeAnswer>),
            Ask(|a| {
                let Withdrawal { why } = a.json()?;
                let (id, who, key) = (a.number("id")?, a.client.name.clone(), a.key.clone());
                Ok(Request::Withdraw(WithdrawRequest { id, who, why, key }))
            }),
        ),
        post(
            Operate,
            "/v1/diagnose",
            "diagnose",
            "Look for slow hardware; the result replaces the suspects.",
            (of::<DiagnoseRequest>, of::<DiagnoseAnswer>),
            Ask(|a| Ok(Request::Diagnose(a.json()?))),
        ),
        Endpoint {
            status: StatusCode::ACCEPTED,
            ..post(
                Operate,
                "/v1/diagnose/task",
                "diagnoseTask",
                "Look for slow hardware as a task, which can be cancelled; the result replaces the suspects.",
                (of::<DiagnoseRequest>, of::<crate::tasks::Task>),
                Act::Start(|a| Ok(crate::tasks::Work::Diagnose(a.json()?))),
            )
        },
        Endpoint {
            query: Some(of::<EventsRequest>),
            ..get(
                "/v1/events",
                "events",
                "List changes: who did what, when and why.",
                of::<EventsAnswer>,
                Ask(|a| Ok(Request::Events(a.query()?))),
            )
        },
        Endpoint {
            query: Some(of::<EventsRequest>),
            forms: ("", "text/event-stream"),
            ..get(
                "/v1/events/stream",
                "eventStream",
                "Changes as server-sent events, after `after` or the header `Last-Event-ID`; without both, new ones.",
                of::<store::state::Event>,
                Events,
            )
        },
    ]
}
