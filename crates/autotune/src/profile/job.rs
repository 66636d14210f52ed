//! What a job's own trace says should be measured: its collective that takes most time, and the sizes of that.

use measure::kinds::CallKind;
use std::collections::BTreeMap;
use topology::{Bytes, Collective};

/// Most sizes of a run.
const SIZES_MAX: usize = 8;
/// A size with a smaller share of its collective's cost is left out.
const SHARE_MIN: f64 = 0.01;

/// What to measure for a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSizes {
    /// The collective.
    pub collective: Collective,
    /// Powers of two, rising: the nearest ones of the job's sizes.
    pub sizes: Vec<Bytes>,
    /// These sizes' share of the cost of all collectives.
    pub share: f64,
    /// The other collectives with their shares, the largest first.
    pub others: Vec<(Collective, f64)>,
    /// The cost is time; else bytes, because the trace has no times.
    pub by_time: bool,
    /// Calls of the collective.
    pub calls: usize,
}

/// Chooses collective and sizes. The cost of a kind is the time of its calls or, if a kind has no times, the bytes of its calls. Kinds that differ only
/// in the number of ranks count together: the run that follows has the ranks of its own command. `None` if there is no kind of `wanted`.
pub fn sizes_of_job(kinds: &[CallKind], wanted: Option<Collective>) -> Option<JobSizes> {
    let by_time = kinds.iter().all(|k| k.time_us.is_some());
    let cost = |k: &CallKind| if by_time { k.total_s() } else { k.size.as_f64() * k.calls as f64 };
    let mut costs: BTreeMap<Collective, (f64, usize)> = BTreeMap::new();
    for k in kinds {
        let of = costs.entry(k.collective).or_default();
        (of.0, of.1) = (of.0 + cost(k), of.1 + k.calls);
    }
    let all: f64 = costs.values().map(|c| c.0).sum();
    let mut ranked: Vec<(Collective, f64)> = costs.iter().map(|(c, (cost, _))| (*c, cost / all)).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let collective = wanted.or_else(|| ranked.first().map(|r| r.0))?;
    let (of_collective, calls) = costs.get(&collective).copied().filter(|c| c.0 > 0.0)?;
    let mut sizes: BTreeMap<u64, f64> = BTreeMap::new();
    for k in kinds.iter().filter(|k| k.collective == collective) {
        *sizes.entry(1 << k.size.as_f64().log2().round().clamp(0.0, 50.0) as u32).or_default() += cost(k);
    }
    let mut sizes: Vec<(u64, f64)> = sizes.into_iter().filter(|(_, c)| *c >= SHARE_MIN * of_collective).collect();
    sizes.sort_by(|a, b| b.1.total_cmp(&a.1));
    sizes.truncate(SIZES_MAX);
    let share = sizes.iter().map(|s| s.1).sum::<f64>() / all;
    sizes.sort_by_key(|s| s.0);
    ranked.retain(|r| r.0 != collective);
    Some(JobSizes {
        collective,
        sizes: sizes.into_iter().map(|s| Bytes(s.0)).collect(),
        share,
        others: ranked,
        by_time,
        calls,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kind(collective: Collective, size: u64, calls: usize, us: Option<f64>) -> CallKind {
        CallKind { collective, size: Bytes(size), ranks: 8, calls, time_us: us, by_all_ranks: true }
    }

    #[test]
    fn the_collective_and_sizes_that_take_most_time_are_measured() {
        let kinds = [
            kind(Collective::AllReduce, 25 << 20, 40, Some(1000.0)),
            kind(Collective::AllReduce, 24 << 20, 4, Some(1000.0)),
            kind(Collective::AllReduce, 8, 1000, Some(0.1)),
            kind(Collective::AllGather, 1 << 30, 1, Some(9000.0)),
        ];
        let job = sizes_of_job(&kinds, None).unwrap();
        // 25 MiB is nearer to 32 MiB than to 16, on a scale of ratios; 100 us of 8 bytes are less than a hundredth.
        assert_eq!((job.collective, job.sizes.as_slice()), (Collective::AllReduce, &[Bytes(32 << 20)][..]));
        assert_eq!((job.by_time, job.calls, job.others.len()), (true, 1044, 1));
        assert!((job.share - 44.0 / 53.1).abs() < 1e-9, "{job:?}");
        let wanted = sizes_of_job(&kinds, Some(Collective::AllGather)).unwrap();
        assert_eq!(wanted.sizes, [Bytes(1 << 30)]);
        assert_eq!(sizes_of_job(&kinds, Some(Collective::Reduce)), None);
        // Without times the bytes decide.
        let kinds =
            [kind(Collective::AllReduce, 1 << 20, 10, None), kind(Collective::AllGather, 1 << 30, 1, Some(1.0))];
        let job = sizes_of_job(&kinds, None).unwrap();
        assert_eq!((job.collective, job.by_time), (Collective::AllGather, false));
    }

    proptest! {
        #[test]
        fn sizes_rise_and_are_few(all in proptest::collection::vec((0u64..1 << 50, 1usize..1000, 0.0f64..1e9), 0..60)) {
            let kinds: Vec<CallKind> =
                all.iter().map(|(s, n, us)| kind(Collective::AllReduce, s + 1, *n, (*us > 1.0).then_some(*us))).collect();
            if let Some(job) = sizes_of_job(&kinds, None) {
                prop_assert!(!job.sizes.is_empty() && job.sizes.len() <= SIZES_MAX);
                prop_assert!(job.sizes.windows(2).all(|w| w[0] < w[1]));
                prop_assert!(job.share > 0.0 && job.share <= 1.0 + 1e-9);
            }
        }
    }
}
