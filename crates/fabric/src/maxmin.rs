//! Max-min fair sharing of links between flows (progressive filling).
//!
//! Every flow uses links, each with a share (a ring over two NICs puts half of its bytes on each NIC), and may have a
//! demand. All rates grow together, in proportion to the priorities. A flow stops when one of its links is full or its
//! demand is met. The result is unique.

/// A flow over some links.
#[derive(Clone, Debug, PartialEq)]
pub struct MaxMinFlow {
    /// `(link, share)`: the flow uses `share` times its rate on that link. Shares are positive; shares of a repeated link add up.
    pub links: Vec<(usize, f64)>,
    /// Maximum rate of the flow; `f64::INFINITY` for no limit.
    pub demand: f64,
    /// Relative priority, above zero; flows with equal priorities share equally.
    pub priority: f64,
}

/// Reason why [`share`] refuses its input.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MaxMinError {
    /// A flow names a link that does not exist.
    #[error("flow {flow} crosses link {link}, but there are {links} links (0 to {})", links - 1)]
    UnknownLink {
        /// The flow.
        flow: usize,
        /// The link.
        link: usize,
        /// Number of links.
        links: usize,
    },
    /// A number is negative or NaN, or a share or capacity is infinite.
    #[error("the {what} of {which} is {value}; it must be a finite number, not negative")]
    BadNumber {
        /// `capacity`, `share`, `demand` or `priority`.
        what: &'static str,
        /// `link 3`, `flow 1`.
        which: String,
        /// The value.
        value: f64,
    },
    /// A flow has no link and no demand, so its rate is unbounded.
    #[error("flow {flow} crosses no link and has no finite demand, so its rate has no bound")]
    Unbounded {
        /// The flow.
        flow: usize,
    },
}

/// The max-min fair rates of the flows. Deterministic and independent of the order of flows. Fails for unknown links and numbers out of
/// range. O(links of all flows + rounds x (links + flows)) with at most one round per flow.
pub fn share(capacities: &[f64], flows: &[MaxMinFlow]) -> Result<Vec<f64>, MaxMinError> {
    check(capacities, flows)?;
    let mut rate = vec![0.0f64; flows.len()];
    let mut growing: Vec<usize> = (0..flows.len()).filter(|&i| flows[i].demand > 0.0).collect();
    let mut on_link: Vec<Vec<(usize, f64)>> = vec![Vec::new(); capacities.len()];
    for &i in &growing {
        flows[i].links.iter().for_each(|&(l, s)| on_link[l].push((i, s)));
    }
    let mut stopped = vec![false; flows.len()];
    let mut taken = vec![0.0f64; capacities.len()];
    let mut slope: Vec<f64> =
        on_link.iter().map(|f| f.iter().map(|&(i, s)| s * flows[i].priority).sum::<f64>()).collect();
    // Links that a growing flow uses.
    let mut open: Vec<usize> = (0..capacities.len()).filter(|&l| slope[l] > 0.0).collect();
    let mut level = 0.0f64; // rate over priority of every growing flow
    while !growing.is_empty() {
        // The level at which each link becomes full, and the lowest level at which a flow stops.
        let full = |l: usize| ((capacities[l] - taken[l]) / slope[l]).max(0.0);
        let wanted = |i: usize| flows[i].demand / flows[i].priority;
        let by_demand = growing.iter().map(|&i| wanted(i)).fold(f64::INFINITY, f64::min);
        level = open.iter().map(|&l| full(l)).fold(by_demand, f64::min).max(level);
        let reached = level + level * 1e-12;
        let mut stops: Vec<usize> = growing.iter().copied().filter(|&i| wanted(i) <= reached).collect();
        for &l in open.iter().filter(|&&l| full(l) <= reached) {
            stops.extend(on_link[l].iter().map(|f| f.0).filter(|&i| !stopped[i]));
        }
        stops.sort_unstable();
        stops.dedup();
        if stops.is_empty() {
            break; // unreachable: a link or a demand defines `level`
        }
        let mut touched = Vec::new();
        for &i in &stops {
            rate[i] = (level * flows[i].priority).min(flows[i].demand);
            stopped[i] = true;
            touched.extend(flows[i].links.iter().map(|l| l.0));
        }
        growing.retain(|&i| !stopped[i]);
        // Recompute the sums in the order of the flows, so that rounding errors do not accumulate.
        touched.sort_unstable();
        touched.dedup();
        for l in touched {
            let sum = |of: bool, value: &dyn Fn(usize) -> f64| -> f64 {
                on_link[l].iter().filter(|f| stopped[f.0] == of).map(|&(i, s)| s * value(i)).sum()
            };
            taken[l] = sum(true, &|i| rate[i]);
            slope[l] = sum(false, &|i| flows[i].priority);
        }
        open.retain(|&l| slope[l] > 0.0);
    }
    Ok(rate)
}

fn check(capacities: &[f64], flows: &[MaxMinFlow]) -> Result<(), MaxMinError> {
    let bad = |what, which: String, value: f64| Err(MaxMinError::BadNumber { what, which, value });
    for (l, &c) in capacities.iter().enumerate() {
        if !(c >= 0.0 && c.is_finite()) {
            return bad("capacity", format!("link {l}"), c);
        }
    }
    for (i, f) in flows.iter().enumerate() {
        if f.demand.is_nan() || f.demand < 0.0 {
            return bad("demand", format!("flow {i}"), f.demand);
        }
        if !(f.priority > 0.0 && f.priority.is_finite()) {
            return bad("priority", format!("flow {i}"), f.priority);
        }
        for &(link, s) in &f.links {
            if link >= capacities.len() {
                return Err(MaxMinError::UnknownLink { flow: i, link, links: capacities.len() });
            }
            if !(s > 0.0 && s.is_finite()) {
                return bad("share", format!("flow {i}"), s);
            }
        }
        if f.links.is_empty() && f.demand.is_infinite() {
            return Err(MaxMinError::Unbounded { flow: i });
        }
    }
    Ok(())
}
