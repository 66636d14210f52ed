//! The endpoints that plan routes and explain NCCL's choices. They compute from the cluster alone.

use super::{Act, Endpoint, Work, of, post};
use crate::auth::Scope::Read;
use crate::problem::Problem;
use axum::http::StatusCode;
use engine::Engine;
use nccl_model::{BuildError, Communicator, LoadConstants};
use route::request::{Planned, RequestOptions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use topology::{Bytes, nccl::Version};

/// Maximum number of sizes of one explanation.
const SIZES_MAX: usize = 64;

/// Plans the paths of skewed traffic.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RouteRequest {
    /// Bytes from each rank (row) to each rank (column); rank r is GPU r of the cluster in host order. At most 1,024 ranks.
    demand_bytes: Vec<Vec<u64>>,
    /// Rates of links that differ from the cluster file: `FROM>TO=GB_PER_S` or `FROM>TO=xSHARE`; 0 is dead.
    #[serde(default)]
    links: Vec<String>,
    /// Limit on the bytes that a GPU reads to forward for others, GB/s.
    #[serde(default)]
    relay_read_gb_per_s: Option<f64>,
    /// Limit on the bytes that a GPU writes to forward for others, GB/s.
    #[serde(default)]
    relay_write_gb_per_s: Option<f64>,
}

/// A plan. All times follow from capacities; none is measured.
#[derive(Serialize, JsonSchema)]
struct RouteAnswer {
    /// Number of ranks.
    ranks: usize,
    /// Time of the busiest link, seconds.
    congestion_s: f64,
    /// No plan needs less, seconds.
    lower_bound_s: f64,
    /// Congestion over the bound, minus one.
    gap: f64,
    /// The proof of the bound, in words.
    evidence: String,
    /// Name of the busiest link.
    bottleneck: String,
    /// The rule of every pair without an exception.
    rule: String,
    /// Number of pairs that do not follow the rule.
    exceptions: usize,
    /// Modelled completion time, seconds.
    completion_s: f64,
    /// What the network leaves out.
    notes: Vec<String>,
    /// The links.
    links: Vec<LinkAnswer>,
    /// The path of every byte.
    flows: Vec<FlowAnswer>,
}

/// A link and its bytes.
#[derive(Serialize, JsonSchema)]
struct LinkAnswer {
    /// Start.
    from: String,
    /// End.
    to: String,
    /// Capacity, GB/s.
    capacity_gb_per_s: f64,
    /// Bytes of the plan.
    bytes: u64,
}

/// Bytes of a pair on one path.
#[derive(Serialize, JsonSchema)]
struct FlowAnswer {
    /// Sender.
    src: usize,
    /// Receiver.
    dst: usize,
    /// Indexes of the links.
    hops: Vec<usize>,
    /// Bytes.
    bytes: u64,
}

/// Explains NCCL's choices on some GPUs.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct NcclRequest {
    /// The GPUs, hosts in rank order: `n[0-3]:[0-7]`; none: all usable ones.
    #[serde(default)]
    gpus: Option<String>,
    /// NCCL release: `2.28`.
    #[serde(default)]
    nccl_version: Option<String>,
    /// all_reduce, all_gather, reduce_scatter, broadcast or reduce; none: all_reduce.
    #[serde(default)]
    collective: Option<String>,
    /// Sizes; none: 1 KiB to 4 GiB in steps of 4.
    #[serde(default)]
    sizes_bytes: Vec<u64>,
}

/// NCCL's choices according to the model of its release.
#[derive(Serialize, JsonSchema)]
struct NcclAnswer {
    /// NCCL release.
    nccl_version: String,
    /// Number of ranks.
    ranks: usize,
    /// Number of channels.
    channels: u32,
    /// False if the model was not compared with the library on hosts like these.
    checked: bool,
    /// A choice per size.
    choices: Vec<ChoiceAnswer>,
}

/// NCCL's choice for one size.
#[derive(Serialize, JsonSchema)]
struct ChoiceAnswer {
    /// Size.
    size_bytes: u64,
    /// Algorithm.
    algorithm: String,
    /// Protocol.
    protocol: String,
    /// Channels.
    channels: u32,
    /// NCCL's own estimate of the time, microseconds.
    time_us: Option<f64>,
    /// Bus bandwidth that the loads of its rings and trees on the links allow, GB/s.
    expected_busbw_gb_per_s: Option<f64>,
    /// Bus bandwidth that the links allow any algorithm, GB/s.
    physics_busbw_gb_per_s: f64,
}

/// The endpoints.
pub fn all() -> Vec<Endpoint> {
    vec![
        post(
            Read,
            "/v1/route/plan",
            "planRoute",
            "Split skewed traffic over links, with a proven distance from the optimum.",
            (of::<RouteRequest>, of::<RouteAnswer>),
            Act::Work(|a| {
                let r: RouteRequest = a.json()?;
                let work: Work = Box::new(move |engine| json(&plan(engine, &r)?));
                Ok(work)
            }),
        ),
        post(
            Read,
            "/v1/nccl/explain",
            "explainNccl",
            "NCCL's algorithm, protocol and channels at every size, and the bandwidth expected of them.",
            (of::<NcclRequest>, of::<NcclAnswer>),
            Act::Work(|a| {
                let r: NcclRequest = a.json()?;
                let work: Work = Box::new(move |engine| json(&explain(engine, &r)?));
                Ok(work)
            }),
        ),
    ]
}

fn json(answer: &impl Serialize) -> Result<Vec<u8>, Problem> {
    serde_json::to_vec(answer)
        .map_err(|e| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", e.to_string(), "report this"))
}

fn bad(why: impl std::fmt::Display) -> Problem {
    Problem::bad("bad_request", why.to_string())
}

fn impossible(code: &str, why: impl std::fmt::Display) -> Problem {
    Problem::new(StatusCode::CONFLICT, code, why.to_string(), "change the request as the message says")
}

fn plan(engine: &Engine, r: &RouteRequest) -> Result<RouteAnswer, Problem> {
    let (ranks, gpus) = (r.demand_bytes.len(), engine.cluster().gpu_count());
    if ranks != gpus || r.demand_bytes.iter().any(|row| row.len() != ranks) {
        return Err(bad(format!("`demand_bytes` must be a square of {gpus}, the GPUs of the cluster")));
    }
    let options = RequestOptions {
        links: r.links.clone(),
        relay_read_gb_per_s: r.relay_read_gb_per_s,
        relay_write_gb_per_s: r.relay_write_gb_per_s,
    };
    let planned = route::request::plan(engine.cluster(), ranks, r.demand_bytes.concat(), &options);
    let planned = planned.map_err(|e| if e.is_malformed() { bad(e) } else { impossible("no_plan", e) })?;
    let figures = planned.figures();
    let Planned { net, demand, plan } = &planned;
    let bytes = plan.link_bytes(net, demand);
    let link = |(l, of): (&route::Link, u64)| LinkAnswer {
        from: net.nodes[l.from as usize].to_string(),
        to: net.nodes[l.to as usize].to_string(),
        capacity_gb_per_s: l.capacity_gb_per_s,
        bytes: of,
    };
    let flow = |f: route::plan::PathFlow| FlowAnswer {
        src: f.src,
        dst: f.dst,
        hops: net.path(f.src, f.dst, f.path).map(|l| l as usize).collect(),
        bytes: f.bytes,
    };
    Ok(RouteAnswer {
        ranks: figures.ranks,
        congestion_s: figures.congestion_s,
        lower_bound_s: figures.lower_bound_s,
        gap: figures.gap,
        evidence: figures.evidence,
        bottleneck: figures.bottleneck,
        rule: figures.rule.into(),
        exceptions: figures.exceptions,
        completion_s: figures.completion_s,
        notes: figures.notes,
        links: net.links.iter().zip(bytes.iter().copied()).map(link).collect(),
        flows: plan.flows(net, demand).map(flow).collect(),
    })
}

fn explain(engine: &Engine, r: &NcclRequest) -> Result<NcclAnswer, Problem> {
    let cluster = engine.cluster();
    let version: Version = r.nccl_version.as_deref().unwrap_or("2.28").parse().map_err(bad)?;
    let collective = nccl_model::collective_by_name(r.collective.as_deref().unwrap_or("all_reduce")).map_err(bad)?;
    let sizes: Vec<u64> = match r.sizes_bytes.as_slice() {
        [] => (0..12).map(|i| 1024u64 << (2 * i)).collect(),
        given => given.to_vec(),
    };
    if sizes.len() > SIZES_MAX || sizes.contains(&0) || sizes.iter().any(|s| *s > Bytes::gib(1024).0) {
        return Err(bad(format!("`sizes_bytes` takes 1 to {SIZES_MAX} sizes of 1 byte to 1 TiB")));
    }
    let not_built = |e: BuildError| match e.is_malformed() || matches!(e, BuildError::Gpus(_)) {
        true => bad(e),
        false => impossible("no_communicator", e),
    };
    let order = nccl_model::gpus_in_rank_order(cluster, r.gpus.as_deref()).map_err(not_built)?;
    let c = Communicator::build(version, cluster, &order).map_err(not_built)?;
    let fabric = fabric::Fabric::new(cluster);
    let allocation = topology::Allocation::new(order.iter().copied());
    let constants = LoadConstants::of(cluster.network.class);
    let physics_busbw_gb_per_s = fabric.links_alone(&allocation, collective).gb_per_s();
    let choice = |size: u64| {
        let d = c.choose(collective, size)?;
        let way = c.choice_with(collective, size, d.algorithm, d.protocol);
        let expected = way.and_then(|w| c.busbw_of(collective, size, &w, &constants));
        Some(ChoiceAnswer {
            size_bytes: size,
            algorithm: d.algorithm.to_string(),
            protocol: d.protocol.to_string(),
            channels: d.channels,
            time_us: d.time_us,
            expected_busbw_gb_per_s: expected.map(|e| e.busbw.gb_per_s()),
            physics_busbw_gb_per_s,
        })
    };
    Ok(NcclAnswer {
        nccl_version: version.to_string(),
        ranks: order.iter().map(|o| o.1.count()).sum(),
        channels: c.agreed().channels,
        checked: c.checked(),
        choices: sizes.into_iter().filter_map(choice).collect(),
    })
}
