//! What a job asks for, as records of `scontrol show job` have it: `gres:gpu:a100:4` up to Slurm 23.02, `gres/gpu:a100:4` from 23.11 on.

use crate::books::value;

/// The fields with requests of a job.
pub const FIELDS: [&str; 4] = ["TresPerJob", "TresPerNode", "TresPerTask", "TresPerSocket"];
/// Largest count that is believed.
const COUNT_MAX: usize = 1 << 20;

/// GRES of a request, with their numbers: `gpu` and 4. A GRES without a number counts 1.
pub fn gres<'r>(record: &'r str, field: &str) -> impl Iterator<Item = (&'r str, usize)> {
    value(record, field).unwrap_or_default().split(',').filter_map(|t| {
        let t = t.strip_prefix("gres:").or_else(|| t.strip_prefix("gres/")).unwrap_or(t);
        let mut words = t.split([':', '=']);
        let name = words.next().filter(|n| !n.is_empty() && *n != "(null)")?;
        Some((name, words.next_back().and_then(|n| n.parse().ok()).unwrap_or(1).min(COUNT_MAX)))
    })
}

/// GPUs of all types that a field asks for; `None`: it asks for none.
pub fn gpus(record: &str, field: &str) -> Option<usize> {
    let mut of = gres(record, field).filter(|g| g.0 == "gpu").map(|g| g.1).peekable();
    of.peek().is_some().then(|| of.sum::<usize>().min(COUNT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_old_and_new_releases_write_them() {
        for (request, count) in [
            ("gres:gpu:8", Some(8)),
            ("gres/gpu:8", Some(8)),
            ("gres/gpu:a100:4", Some(4)),
            ("gres:gpu", Some(1)),
            ("gres/gpu:a100", Some(1)),
            ("gres/gpu=3", Some(3)),
            ("gres:gpu:a100:2,gres:gpu:h100:4", Some(6)),
            ("gres/shard:1", None),
            ("gres/gpumem:4", None),
            ("(null)", None),
            ("license/x:1,gres/gpu:2", Some(2)),
        ] {
            assert_eq!(gpus(&format!("JobId=1 TresPerNode={request} X=1"), "TresPerNode"), count, "{request}");
        }
        assert_eq!(gpus("JobId=1", "TresPerNode"), None);
        assert_eq!(gpus("TresPerNode=gres:gpu:99999999999", "TresPerNode"), Some(1 << 20));
    }
}
