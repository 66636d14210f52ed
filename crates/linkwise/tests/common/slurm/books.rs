//! Slurm's books of GPUs, read without the crate `slurm`: the tests compare the two.

use std::collections::{BTreeMap, BTreeSet};

/// GPUs by node.
pub type Gpus = BTreeMap<String, BTreeSet<u32>>;

/// `Nodes=n[1-2] ... GRES=gpu:a100:2(IDX:0,5-6)` of every running job.
pub fn slurm_books(text: &str) -> BTreeMap<u32, Gpus> {
    let mut all = BTreeMap::new();
    for line in text.lines().filter(|l| l.contains("JobState=RUNNING")) {
        let word = |w: &str, key: &str| w.strip_prefix(key).map(str::to_owned);
        let job = line.split(' ').find_map(|w| word(w, "JobId=")).and_then(|n| n.parse().ok());
        let (mut nodes, mut gpus) = (Vec::new(), Gpus::new());
        for w in line.split(' ') {
            if let Some(list) = word(w, "Nodes=") {
                nodes = numbers(list.trim_start_matches('n').trim_matches(['[', ']']));
            } else if let Some((_, list)) = word(w, "GRES=").unwrap_or_default().split_once("IDX:") {
                let indices = numbers(list.trim_end_matches(')'));
                nodes.iter().for_each(|n| drop(gpus.insert(format!("n{n}"), indices.iter().copied().collect())));
            }
        }
        all.extend(job.map(|j| (j, gpus)));
    }
    all
}

pub fn numbers(list: &str) -> Vec<u32> {
    let range = |r: &str| {
        let (a, b) = r.split_once('-').unwrap_or((r, r));
        a.parse().ok().zip(b.parse().ok()).map(|(a, b): (u32, u32)| a..=b)
    };
    list.split(',').filter_map(range).flatten().collect()
}
