//! Every truth by its name.

use crate::families::{with_own_nics, with_shared_nics};
use crate::form::{SIZE, Simulated};
use crate::intra::{Flavour, Intra};
use crate::p_norm::PNorm;
use crate::ring_search::RingSearch;
use crate::rules::{Rule, Rules};
use crate::slow_host::SlowHost;
use crate::truth::{About, Truth};
use topology::{Cluster, Collective};

/// Names that [`by_name`] knows, with a description of each.
pub const NAMES: [(&str, &str); 6] = [
    ("rule-p", "hard minimum of intra table and 0.95 x NIC x smallest count, as the papers simulate; all-gather"),
    (
        "rule-r",
        "soft minimum, factor 2(n-1)/n for two hosts, imbalance, host types of different efficiency; all-reduce",
    ),
    ("rule-n", "rule-r with NICs that GPUs share; all-reduce"),
    (
        "ring-search",
        "rings laid through switches, sockets and NICs by search; hosts agree on rings and speed; all-reduce",
    ),
    (
        "shared-nics-slow-host",
        "minimum over hosts of links and NICs that crowd when shared; one host is slow; all-reduce",
    ),
    ("p-norm", "p-norm of all hosts' links and NICs, with loss by imbalance; all-reduce"),
];

/// Largest irregularity; beyond it a truth is only noise.
pub const IRREGULARITY_MAX: f64 = 0.5;
/// Standard deviation of one measurement over several hosts.
const NOISE: f64 = 0.02;

/// A simulated truth for a cluster. `seed` chooses the simulated hardware. `irregularity` is the standard deviation of
/// the log factor of every count vector, nominally 0.02 (rule P has none), and scales that of hosts and intra tables.
pub fn by_name(name: &str, cluster: &Cluster, seed: u64, irregularity: f64) -> Result<Box<dyn Truth>, String> {
    let Some((name, about)) = NAMES.into_iter().find(|n| n.0 == name) else {
        let known: Vec<&str> = NAMES.iter().map(|n| n.0).collect();
        return Err(format!("`{name}` is not a simulated truth; known: {}", known.join(", ")));
    };
    if !(0.0..=IRREGULARITY_MAX).contains(&irregularity) {
        return Err(format!(
            "an irregularity of {irregularity}; 0 (none) to {IRREGULARITY_MAX} was expected, usually 0.02"
        ));
    }
    cluster.check()?;
    let all_gather = name == "rule-p";
    let flavour = if all_gather { Flavour::AllGather } else { Flavour::AllReduce };
    let intra = Intra::new(cluster, flavour, seed, irregularity)?;
    let described = |cluster: Cluster| Formless {
        about: About {
            name: name.to_owned(),
            description: format!("{about}; simulated, seed {seed}, irregularity {} %", 100.0 * irregularity),
            cluster,
            size: SIZE,
            collective: if all_gather { Collective::AllGather } else { Collective::AllReduce },
            simulated: true,
        },
        seed,
        irregularity: if all_gather { 0.0 } else { irregularity },
        noise: if all_gather { NOISE / 2.0 } else { NOISE },
    };
    let plain = cluster.clone();
    let own = with_own_nics(cluster, None);
    Ok(match name {
        "rule-p" => described(own).of(Rules::new(Rule::P, cluster, intra, seed, irregularity)),
        "rule-r" => described(own).of(Rules::new(Rule::R, cluster, intra, seed, irregularity)),
        "rule-n" => {
            let shared = with_shared_nics(cluster);
            let form = Rules::new(Rule::N, &shared, intra, seed, irregularity);
            described(shared).of(form)
        }
        "ring-search" => described(plain).of(RingSearch::new(cluster, seed, irregularity)?),
        "shared-nics-slow-host" => {
            let shared = with_shared_nics(cluster);
            let form = SlowHost::new(&shared, intra, seed);
            let (host, pace) = form.slow();
            let mut truth = described(shared);
            truth.about.description += &format!("; {} runs at {:.0} %", cluster.host(host).name, 100.0 * pace);
            truth.of(form)
        }
        _ => described(own).of(PNorm::new(cluster, intra, seed, irregularity)),
    })
}

/// A truth without its formula.
struct Formless {
    about: About,
    seed: u64,
    irregularity: f64,
    noise: f64,
}

impl Formless {
    fn of<F: crate::form::Form + 'static>(self, form: F) -> Box<dyn Truth> {
        let Formless { about, seed, irregularity, noise } = self;
        Box::new(Simulated { about, form, seed, irregularity, noise })
    }
}
