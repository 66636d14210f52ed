//! Sentences about what limits a communicator.

use super::view::{Case, Cell};

use nccl_model::{CallLimit, Communicator, LoadConstants};
use topology::Bytes;
use topology::nccl::GraphKind;
use topology::{GpuMask, HostId};

/// Minimum difference worth a sentence, as a share.
const NOTABLE: f64 = 0.10;
/// Maximum number of hosts for which all orders are tried.
const PERMUTED_HOSTS_MAX: usize = 5;

/// The part that limits the bandwidth of a call.
pub fn limit(case: &Case, limit: &CallLimit) -> String {
    let host = |h: HostId| case.cluster.host(h).name.as_str();
    let nic = |h: HostId, n: u8| {
        case.cluster.type_of(h).nics.get(usize::from(n)).map_or_else(|| format!("NIC {n}"), |n| n.name.clone())
    };
    match limit {
        CallLimit::Nic { host: h, nic: n, on_it, channels, even } if *on_it > even * 1.01 => format!(
            "copies that do not divide: {} of {} carries {on_it:.0} of {channels} channels, {even:.1} if they were even ({:.0} % lost)",
            nic(*h, *n),
            host(*h),
            100.0 * (1.0 - even / on_it)
        ),
        CallLimit::Nic { host: h, nic: n, on_it, channels, .. } => {
            format!(
                "the NICs: {} of {} carries {on_it:.0} of {channels} channels, as even as can be",
                nic(*h, *n),
                host(*h)
            )
        }
        CallLimit::CrossingNics { host: h, nic: n, on_it, channels } => format!(
            "crossing NICs: {on_it:.0} of {channels} channels come into {} through {}, which is not next to the GPU that receives",
            host(*h),
            nic(*h, *n)
        ),
        CallLimit::Channels { channels } => format!("the channel count: {channels} channels, each at its own ceiling"),
        CallLimit::NvLink => "the links inside the hosts".into(),
        CallLimit::Latency => "latency: too few bytes to fill a link".into(),
    }
}

/// All notable facts about a communicator and its calls, one sentence each.
pub fn notes(case: &Case, c: &Communicator, cells: &[Cell]) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(e) = cells.last().and_then(|l| l.expected.as_ref()) {
        let size = cells.last().map_or(0, |l| l.decision.size_bytes);
        out.push(format!("{} is limited by {}.", Bytes(size), limit(case, &e.limit)));
    }
    out.extend(fewest_channels(case, c));
    out.extend(flips(cells));
    out.extend(better_ways(case, c, cells));
    out.extend(better_order(case, c, cells));
    out.extend(disagreements(cells));
    out
}

/// A note if one host offers fewer channels than others: it limits all hosts.
fn fewest_channels(case: &Case, c: &Communicator) -> Option<String> {
    if c.members().len() < 2 {
        return None;
    }
    let of = |m: &nccl_model::MemberHost| m.graph_of(GraphKind::Ring).map_or(0, |g| g.channel_count);
    let least = c.members().iter().min_by_key(|m| of(m))?;
    let most = c.members().iter().max_by_key(|m| of(m))?;
    (of(least) < of(most)).then(|| {
        format!(
            "The search finds {} channels on {} ({} GPUs) and {} on {} ({} GPUs): all hosts take {}, copied to {}.",
            of(least),
            case.cluster.host(least.host).name,
            least.ranks(),
            of(most),
            case.cluster.host(most.host).name,
            most.ranks(),
            c.search_channels(),
            c.agreed().channels
        )
    })
}

/// Sizes at which NCCL changes the algorithm and the expected bandwidth falls.
fn flips(cells: &[Cell]) -> Vec<String> {
    let way = |c: &Cell| (c.decision.algorithm, c.decision.protocol);
    let fall = |p: &&[Cell]| match (p[0].expected_gb_per_s(), p[1].expected_gb_per_s()) {
        (Some(a), Some(b)) => way(&p[0]) != way(&p[1]) && b < a * (1.0 - NOTABLE),
        _ => false,
    };
    let text = |p: &[Cell]| {
        let (a, b) = (&p[0].decision, &p[1].decision);
        format!(
            "Algorithm flip: from {} {}/{} to {} {}/{} the expected bandwidth falls from {:.1} to {:.1} GB/s.",
            Bytes(a.size_bytes),
            a.algorithm,
            a.protocol,
            Bytes(b.size_bytes),
            b.algorithm,
            b.protocol,
            p[0].expected_gb_per_s().unwrap_or(0.0),
            p[1].expected_gb_per_s().unwrap_or(0.0)
        )
    };
    cells.windows(2).filter(fall).map(text).collect()
}

/// Calls for which another algorithm and protocol are expected to be much faster than AUTO; one sentence per range of
/// sizes.
fn better_ways(case: &Case, c: &Communicator, cells: &[Cell]) -> Vec<String> {
    let constants = LoadConstants::of(case.cluster.network.class);
    let mut runs: Vec<(String, u64, u64, f64)> = Vec::new();
    for cell in cells {
        let (collective, size) = (cell.decision.collective, cell.decision.size_bytes);
        let Some(now) = cell.expected_gb_per_s() else { continue };
        let ways = c.all_choices(collective, size).into_iter();
        let other =
            |w: &nccl_model::CallChoice| (w.algorithm, w.protocol) != (cell.decision.algorithm, cell.decision.protocol);
        let best = ways
            .filter(other)
            .filter_map(|w| Some((c.busbw_of(collective, size, &w, &constants)?.busbw.gb_per_s(), w)))
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let Some((v, w)) = best.filter(|b| b.0 > now * (1.0 + NOTABLE)) else { continue };
        let name = format!("{}/{}", w.algorithm, w.protocol);
        let gain = v / now - 1.0;
        match runs.last_mut() {
            Some(r) if r.0 == name => {
                r.2 = size;
                r.3 = r.3.max(gain);
            }
            _ => runs.push((name, size, size, gain)),
        }
    }
    let range = |a: u64, b: u64| match a == b {
        true => Bytes(a).to_string(),
        false => format!("{} to {}", Bytes(a), Bytes(b)),
    };
    let say = |(name, from, to, gain): (String, u64, u64, f64)| {
        format!(
            "At {} {name} should do up to {:.0} % better than AUTO's choice (model).",
            range(from, to),
            100.0 * gain
        )
    };
    runs.into_iter().map(say).collect()
}

/// Hosts in rank order with their GPUs.
type Hosts = Vec<(HostId, GpuMask)>;

/// The order of hosts with the highest expected bandwidth at `size`, or `None` if the given order is as good: hosts,
/// GB/s of the given order, GB/s of this order.
pub fn best_order(case: &Case, c: &Communicator, size: u64) -> Option<(Hosts, f64, f64)> {
    let now = c.busbw(case.collective, size)?.busbw.gb_per_s();
    let n = case.order.len();
    if !(2..=PERMUTED_HOSTS_MAX).contains(&n) {
        return None;
    }
    let mut best: Option<(Hosts, f64)> = None;
    permute(&mut case.order.clone(), 0, &mut |order| {
        let value = Communicator::build(case.version, &case.cluster, order)
            .ok()
            .and_then(|c| c.busbw(case.collective, size))
            .map_or(0.0, |b| b.busbw.gb_per_s());
        if best.as_ref().is_none_or(|b| value > b.1 * 1.0001) {
            best = Some((order.to_vec(), value));
        }
    });
    best.filter(|b| b.1 > now * 1.02).map(|(order, v)| (order, now, v))
}

fn permute(order: &mut [(HostId, GpuMask)], from: usize, see: &mut impl FnMut(&[(HostId, GpuMask)])) {
    if from + 1 >= order.len() {
        return see(order);
    }
    for i in from..order.len() {
        order.swap(from, i);
        permute(order, from + 1, see);
        order.swap(from, i);
    }
}

fn better_order(case: &Case, c: &Communicator, cells: &[Cell]) -> Option<String> {
    let size = cells.last()?.decision.size_bytes;
    let (order, now, then) = best_order(case, c, size)?;
    let names: Vec<&str> = order.iter().map(|o| case.cluster.host(o.0).name.as_str()).collect();
    Some(format!(
        "Host order matters: with ranks on {} in this order {} should get {then:.0} instead of {now:.0} GB/s (model).",
        names.join(", "),
        Bytes(size)
    ))
}

/// Calls for which the limit of the links or a measurement contradicts the model.
fn disagreements(cells: &[Cell]) -> Vec<String> {
    let mut out = Vec::new();
    let off = |a: f64, b: f64| (a / b - 1.0).abs() > NOTABLE;
    for c in cells {
        if let (Some(m), Some(e)) = (c.measured_gb_per_s, c.expected_gb_per_s())
            && off(m, e)
        {
            out.push(format!(
                "Measured at {}: {m:.1} GB/s, expected of NCCL's decisions {e:.1}: something else limits it, or NCCL chose otherwise.",
                Bytes(c.decision.size_bytes)
            ));
        }
    }
    let large = cells.iter().rev().find(|c| c.expected.is_some());
    if let Some((c, e)) = large.and_then(|c| Some((c, c.expected_gb_per_s()?)))
        && off(c.physics_gb_per_s, e)
    {
        out.push(format!(
            "The links alone would give {:.0} GB/s at {} (physics), NCCL's decisions {e:.0}.",
            c.physics_gb_per_s,
            Bytes(c.decision.size_bytes)
        ));
    }
    out
}
