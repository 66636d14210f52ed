//! Max-min fair sharing of links between flows (progressive filling).
//!
//! Every flow crosses links with a share per link (a ring over two NICs puts half of its bytes on each) and may have a demand. All flows grow
//! together, in proportion to their priority. A flow stops when one of its links is full or its demand is met. The result is unique.

/// A flow over some links.
#[derive(Clone, Debug, PartialEq)]
pub struct MaxMinFlow {
    /// `(link, share)`: the flow uses `share` times its rate on that link. Shares are positive; shares of a repeated link add up.
    pub links: Vec<(usize, f64)>,
    /// Highest rate of the flow; `f64::INFINITY` for no limit.
    pub demand: f64,
    /// Relative priority, above zero; 1.0 for all means equal sharing.
    pub priority: f64,
}

/// Why [`share`] refuses its input.
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
    /// A number is negative, NaN, or an infinite share or capacity.
    #[error("the {what} of {which} is {value}; it must be a finite number, not negative")]
    BadNumber {
        /// `capacity`, `share`, `demand` or `priority`.
        what: &'static str,
        /// `link 3`, `flow 1`.
        which: String,
        /// The value.
        value: f64,
    },
    /// A flow crosses no link and has no demand: its rate has no bound.
    #[error("flow {flow} crosses no link and has no finite demand, so its rate has no bound")]
    Unbounded {
        /// The flow.
        flow: usize,
    },
}

/// The max-min fair rates of the flows. Deterministic and independent of the order of flows. Fails for unknown links and numbers out of
/// range. O(rounds x (flows x links per flow + links)) with at most one round per flow.
pub fn share(capacities: &[f64], flows: &[MaxMinFlow]) -> Result<Vec<f64>, MaxMinError> {
    check(capacities, flows)?;
    let mut rate = vec![0.0f64; flows.len()];
    let mut growing: Vec<bool> = flows.iter().map(|f| f.demand > 0.0).collect();
    let mut level = 0.0f64; // rate over priority of every growing flow
    while growing.iter().any(|g| *g) {
        let mut taken = vec![0.0f64; capacities.len()];
        let mut slope = vec![0.0f64; capacities.len()];
        for (i, f) in flows.iter().enumerate() {
            for &(l, s) in &f.links {
                if growing[i] {
                    slope[l] += s * f.priority;
                } else {
                    taken[l] += s * rate[i];
                }
            }
        }
        // The level at which each link is full, and the lowest level at which a flow stops.
        let full: Vec<f64> = (0..capacities.len())
            .map(|l| if slope[l] > 0.0 { ((capacities[l] - taken[l]) / slope[l]).max(0.0) } else { f64::INFINITY })
            .collect();
        let wanted = |i: usize| flows[i].demand / flows[i].priority;
        let by_demand = (0..flows.len()).filter(|&i| growing[i]).map(wanted).fold(f64::INFINITY, f64::min);
        let next = full.iter().copied().fold(by_demand, f64::min).max(level);
        level = next;
        let tolerance = level * 1e-12;
        let mut stopped = false;
        for i in 0..flows.len() {
            if growing[i] {
                let met = wanted(i) <= level + tolerance;
                if met || flows[i].links.iter().any(|&(l, _)| full[l] <= level + tolerance) {
                    rate[i] = (level * flows[i].priority).min(flows[i].demand);
                    growing[i] = false;
                    stopped = true;
                }
            }
        }
        if !stopped {
            break; // unreachable: a link or a demand defines `next`
        }
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
