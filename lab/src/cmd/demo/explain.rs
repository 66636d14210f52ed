//! One decision, explained in sentences and a table.

use super::replay::Decided;
use super::source::DemoTruth;
use place::{Bottleneck, Scored};
use predict::bound::Memo;
use predict::{BandwidthModel, HostShare, Model};
use topology::{Allocation, Cluster, HostId};

/// Runner-ups that an explanation lists.
const RUNNER_UPS: usize = 4;

/// A decision as sentences and a table.
pub struct Explained {
    /// The request as text.
    pub request: String,
    /// The reasons of the choice, one sentence each.
    pub reasons: Vec<String>,
    /// The choices side by side, best prediction first, the packed one last.
    pub rows: Vec<ExplainedChoice>,
}

/// One choice of the request.
pub struct ExplainedChoice {
    /// `linkwise`, `2nd`, ..., `packed`.
    pub who: String,
    /// GPUs per host: `4+4`.
    pub split: String,
    /// The GPUs: `n0:0-3 n2:1,4`.
    pub gpus: String,
    /// Predicted bandwidth, GB/s, and its standard deviation.
    pub predicted: (f64, f64),
    /// True bandwidth, GB/s.
    pub truth: Option<f64>,
}

/// Explains a decision of `model`.
pub fn explain(cluster: &Cluster, model: &Model, truth: &DemoTruth, d: &Decided) -> Explained {
    let row = |who: String, s: &Scored| ExplainedChoice {
        who,
        split: split(&s.allocation),
        gpus: cluster.gpu_list(&s.allocation),
        predicted: (s.prediction.busbw_gb_per_s, s.prediction.std_gb_per_s),
        truth: truth.of(&s.allocation),
    };
    let choice = &d.answer.choice;
    let mut rows = vec![row("linkwise".into(), choice)];
    let ordinals = ["2nd", "3rd", "4th", "5th"];
    let runner_ups = d.answer.runner_ups.iter().take(RUNNER_UPS);
    rows.extend(runner_ups.zip(ordinals).map(|(s, nth)| row(nth.into(), s)));
    rows.extend(d.answer.packed.as_ref().map(|p| row("packed".into(), p)));

    let really = if truth.is_simulated() { "simulated" } else { "measured" };
    let mut reasons = vec![format!(
        "linkwise takes {} ({}) and expects {:.0} ± {:.0} GB/s; {really}: {:.0}, the best there is: {:.0}.",
        split(&choice.allocation),
        rows[0].gpus,
        choice.prediction.busbw_gb_per_s,
        choice.prediction.std_gb_per_s,
        d.chosen_gb_per_s,
        d.best_gb_per_s,
    )];
    let table = model.share_table(truth.size());
    let parts: Vec<HostShare> = choice.allocation.parts().iter().map(|&(h, m)| table.part(h, m)).collect();
    let bound = model.bounds(truth.size()).of(&parts, &mut Memo::default()).bound_gb_per_s;
    reasons.extend(limit(cluster, &d.answer.bottleneck, bound));
    if let Some(p) = &d.answer.packed {
        reasons.push(format!(
            "Packing takes {} ({}): expected {:.0} ± {:.0} GB/s; {really}: {:.0}. The choice of linkwise gets {:.2} times as \
             much.",
            split(&p.allocation),
            cluster.gpu_list(&p.allocation),
            p.prediction.busbw_gb_per_s,
            p.prediction.std_gb_per_s,
            d.packed_gb_per_s,
            d.gain(),
        ));
    }
    reasons.push(format!(
        "The exact search judged {} candidates and took {:.0} us with its reasons.",
        d.answer.evaluations, d.elapsed_us
    ));
    let free = d.free.parts().iter().map(|(h, m)| format!("{} on {}", m.count(), cluster.host(*h).name));
    let request = format!(
        "{} GPUs are wanted, {} are free: {}.",
        d.k,
        d.free.gpu_count(),
        in_a_row(free.collect::<Vec<_>>().as_slice())
    );
    Explained { request, reasons, rows }
}

/// The physics' estimate for the choice without readings: the bandwidth and its bottleneck.
fn limit(cluster: &Cluster, bottleneck: &Bottleneck, bound_gb_per_s: f64) -> Option<String> {
    let name = |h: &HostId| cluster.host(*h).name.clone();
    let what = match bottleneck {
        Bottleneck::None => return None,
        Bottleneck::Host { host } => format!("the links inside host {}", name(host)),
        Bottleneck::Nic { host, nics, gb_per_s } => {
            let these = match nics.len() {
                1 => format!("the one NIC ({})", nics[0]),
                n => format!("the {n} NICs ({})", in_a_row(nics)),
            };
            format!("{these} that its GPUs on host {} touch, {gb_per_s:.0} GB/s each way", name(host))
        }
        Bottleneck::Network { name } => format!("the network between the hosts ({name})"),
        Bottleneck::Latency => "latency; the message is too small to fill the links".to_owned(),
    };
    Some(format!("The bottleneck by the physics ({bound_gb_per_s:.0} GB/s): {what}."))
}

/// `a, b and c`.
fn in_a_row(words: &[String]) -> String {
    match words {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// GPUs per host, largest first: `4+4`.
pub fn split(a: &Allocation) -> String {
    a.split()
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::GpuMask;

    #[test]
    fn splits_and_rows_of_words_are_written_short() {
        let a = Allocation::new([
            (HostId(0), GpuMask::from_indices([1])),
            (HostId(2), GpuMask::from_indices([0, 1, 2, 5, 7])),
        ]);
        assert_eq!(split(&a), "5+1");
        assert_eq!(in_a_row(&["a".into(), "b".into(), "c".into()]), "a, b and c");
    }
}
