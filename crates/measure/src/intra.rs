//! Intra tables: the GPU subsets of a host to measure, and those that are equivalent by their links.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use topology::{GpuMask, HostType, PathKind};

/// Hosts up to this many GPUs are measured completely (2^10 - 11 = 1,013 subsets).
pub const GPUS_FULL_MAX: usize = 10;
/// Larger hosts: all pairs, and this many random subsets of every larger count.
pub const SUBSETS_PER_COUNT: usize = 24;
/// Subsets measured to compare a host with the others of its type.
pub const SPOT_CHECKS: usize = 8;

/// The subsets of `idle` with two GPUs or more in an intra table, ascending by count, then by bits. Up to
/// [`GPUS_FULL_MAX`] GPUs all subsets; for more GPUs a seeded choice with all pairs and the full set.
pub fn table(idle: GpuMask, seed: u64) -> Vec<GpuMask> {
    let n = idle.count();
    let mut masks: Vec<GpuMask> = if n <= GPUS_FULL_MAX {
        idle.subsets().filter(|m| m.count() >= 2).collect()
    } else {
        let gpus: Vec<usize> = idle.iter().collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut masks = vec![idle];
        for i in 0..n {
            masks.extend((i + 1..n).map(|j| GpuMask::from_indices([gpus[i], gpus[j]])));
        }
        for count in 3..n {
            masks.extend((0..SUBSETS_PER_COUNT).map(|_| random_mask(idle, count, &mut rng)));
        }
        masks
    };
    masks.sort_unstable_by_key(|m| (m.count(), m.0));
    masks.dedup();
    masks
}

/// `count` random GPUs of `idle`.
pub fn random_mask(idle: GpuMask, count: usize, rng: &mut ChaCha8Rng) -> GpuMask {
    let mut gpus: Vec<usize> = idle.iter().collect();
    let count = count.min(gpus.len());
    for i in 0..count {
        let j = rng.random_range(i..gpus.len());
        gpus.swap(i, j);
    }
    GpuMask::from_indices(gpus.into_iter().take(count))
}

/// `checks` subsets of a table, spread over the counts, the full set first.
pub fn spot_checks(table: &[GpuMask], checks: usize, seed: u64) -> Vec<GpuMask> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut by_count: Vec<Vec<GpuMask>> = Vec::new();
    for m in table {
        match by_count.last_mut() {
            Some(group) if group[0].count() == m.count() => group.push(*m),
            _ => by_count.push(vec![*m]),
        }
    }
    let mut picked = Vec::new();
    // Largest counts first: the full host uses every link.
    while picked.len() < checks && by_count.iter().any(|g| !g.is_empty()) {
        for group in by_count.iter_mut().rev().filter(|g| !g.is_empty()) {
            if picked.len() < checks {
                picked.push(group.swap_remove(rng.random_range(0..group.len())));
            }
        }
    }
    picked.sort_unstable_by_key(|m| (m.count(), m.0));
    picked
}

/// Equivalence class of a subset by its links: each GPU's links to the others, sorted, and these rows sorted. Subsets with equal classes should have
/// equal bandwidth; the converse need not hold. O(k² log k).
pub fn class(host: &HostType, mask: GpuMask) -> Vec<Vec<PathKind>> {
    let mut rows: Vec<Vec<PathKind>> = mask
        .iter()
        .map(|i| {
            let mut row: Vec<PathKind> = mask.iter().filter(|j| *j != i).map(|j| host.gpu_paths[i][j]).collect();
            row.sort_unstable();
            row
        })
        .collect();
    rows.sort_unstable();
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_gpus_have_247_subsets_of_two_or_more() {
        let t = table(GpuMask::first(8), 1);
        assert_eq!(t.len(), 247);
        assert_eq!(*t.last().unwrap(), GpuMask::first(8));
    }

    #[test]
    fn sixteen_gpus_get_all_pairs_the_whole_and_no_more_than_the_limit() {
        let t = table(GpuMask::first(16), 1);
        assert_eq!(t.iter().filter(|m| m.count() == 2).count(), 120);
        assert!(t.contains(&GpuMask::first(16)));
        assert!(t.len() <= 120 + 1 + 13 * SUBSETS_PER_COUNT);
        assert_eq!(t, table(GpuMask::first(16), 1));
    }

    #[test]
    fn spot_checks_hold_the_whole_host_and_repeat_nothing() {
        let t = table(GpuMask(0b1011_1101), 1);
        let s = spot_checks(&t, SPOT_CHECKS, 5);
        assert_eq!(s.len(), SPOT_CHECKS);
        assert!(s.contains(&GpuMask(0b1011_1101)));
        let mut unique = s.clone();
        unique.dedup();
        assert_eq!(unique, s);
    }

    #[test]
    fn on_nvswitch_all_subsets_of_a_count_are_one_class_and_on_a_cube_mesh_they_are_not() {
        let h100 = topology::catalog::host_type("hgx-h100").unwrap();
        assert_eq!(class(&h100, GpuMask(0b11)), class(&h100, GpuMask(0b1000_0001)));
        let v100 = topology::catalog::host_type("dgx1-v100").unwrap();
        assert_ne!(class(&v100, GpuMask(0b11)), class(&v100, GpuMask(0b101)));
    }
}
