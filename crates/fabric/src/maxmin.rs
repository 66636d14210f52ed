//! Max-min fair sharing of links between flows (progressive filling).
//!
//! Every flow crosses some links, with a weight per link (how much of the link one unit of the flow takes: a ring over two NICs
//! puts half of its bytes on each) and an optional demand. All flows grow together, in proportion to their priority, until a link is
//! full or a demand is met; those flows stop, the others go on. The result is unique. Used for jobs that share NICs.

/// A flow.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// `(link, share)`: the flow takes `share` times its rate of that link. Links named twice add up. Shares are positive.
    pub links: Vec<(usize, f64)>,
    /// Most that the flow wants; `f64::INFINITY` for all that it can get.
    pub demand: f64,
    /// Relative priority, above zero; 1.0 for all means equal sharing.
    pub priority: f64,
}

/// Why [`share`] refuses its input.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MaxMinError {
    /// A flow names a link that is not there.
    #[error("flow {flow} crosses link {link}, but there are {links} links (0 to {})", links - 1)]
    UnknownLink {
        /// The flow.
        flow: usize,
        /// The link.
        link: usize,
        /// How many links there are.
        links: usize,
    },
    /// A number is negative, NaN, or an infinite share or capacity.
    #[error("{what} of {which} is {value}; it must be a number above or equal to zero")]
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

/// Rates of the flows: max-min fair, deterministic, independent of the order of flows. O(rounds x (flows x links per flow + links)),
/// at most one round per flow.
pub fn share(capacities: &[f64], flows: &[Flow]) -> Result<Vec<f64>, MaxMinError> {
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
        // The level at which every link is full, and the next one.
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
            break; // cannot happen: some link or demand defines `next`
        }
    }
    Ok(rate)
}

fn check(capacities: &[f64], flows: &[Flow]) -> Result<(), MaxMinError> {
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
