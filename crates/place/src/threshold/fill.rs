//! Number of GPUs that each of the chosen hosts gives.

/// Balanced counts that sum to `k`: no host gives more than the water level, unless its smallest allowed count is
/// higher.
///
/// `allowed[i]` has bit `n` set if host `i` may give `n` GPUs. Hosts late in the list give fewer GPUs if `k` does not
/// divide evenly. `None` if no such counts were found. O(hosts x counts).
pub fn water_fill(allowed: &[u32], k: usize, out: &mut Vec<u8>) -> bool {
    let most = allowed.iter().fold(0, |m, a| m | a);
    if most == 0 || allowed.contains(&0) {
        return false;
    }
    let top = 31 - most.leading_zeros();
    // Number of hosts with the same set of counts; the number of different sets is small.
    let mut sets: Vec<(u32, usize)> = Vec::new();
    for &a in allowed {
        match sets.iter_mut().find(|s| s.0 == a) {
            Some(s) => s.1 += 1,
            None => sets.push((a, 1)),
        }
    }
    let sum = |level: u32| sets.iter().map(|s| s.1 * usize::from(at(s.0, level))).sum::<usize>();
    let Some(level) = (1..=top).find(|l| sum(*l) >= k) else { return false };
    let mut excess = sum(level) - k;
    out.clear();
    out.extend(allowed.iter().map(|a| at(*a, level)));
    // First pass: each host goes one step below the level, last host first. Second pass: any count that still fits.
    for step in [Step::One, Step::Largest] {
        for i in (0..out.len()).rev() {
            if excess == 0 {
                break;
            }
            let below = allowed[i] & ((1 << out[i]) - 1);
            if below == 0 || (matches!(step, Step::One) && u32::from(out[i]) < level) {
                continue;
            }
            let to = match step {
                Step::One => 31 - below.leading_zeros(),
                Step::Largest => {
                    let least = u32::from(out[i]).saturating_sub(excess as u32);
                    let fits = below >> least << least;
                    if fits == 0 {
                        continue;
                    }
                    fits.trailing_zeros()
                }
            };
            let drop = usize::from(out[i]) - to as usize;
            if drop <= excess {
                excess -= drop;
                out[i] = to as u8;
            }
        }
    }
    excess == 0
}

enum Step {
    One,
    Largest,
}

/// The largest allowed count up to a level, or the smallest allowed count if all are larger.
fn at(allowed: u32, level: u32) -> u8 {
    let low = allowed & ((1u64 << (level + 1)) - 1) as u32;
    if low != 0 { (31 - low.leading_zeros()) as u8 } else { allowed.trailing_zeros() as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn up_to(n: u32) -> u32 {
        (1 << (n + 1)) - 2
    }

    #[test]
    fn water_stands_level_where_hosts_allow_it() {
        let mut out = Vec::new();
        assert!(water_fill(&[up_to(8), up_to(8), up_to(2)], 12, &mut out));
        assert_eq!(out, [5, 5, 2]);
        assert!(water_fill(&[up_to(8), up_to(8), up_to(8)], 13, &mut out));
        assert_eq!(out, [5, 4, 4], "the last hosts give up the odd ones");
    }

    proptest! {
        #[test]
        fn filled_counts_are_allowed_and_sum_up(allowed in proptest::collection::vec(1u32..256, 1..12), k in 1usize..60) {
            let allowed: Vec<u32> = allowed.iter().map(|a| a << 1).collect();
            let mut out = Vec::new();
            if water_fill(&allowed, k, &mut out) {
                prop_assert_eq!(out.iter().map(|c| usize::from(*c)).sum::<usize>(), k);
                prop_assert!(out.iter().zip(&allowed).all(|(c, a)| a >> c & 1 == 1));
            }
        }

        #[test]
        fn contiguous_counts_are_always_filled_and_level(caps in proptest::collection::vec(1u32..9, 1..12), part in 0.0f64..1.0) {
            let most: u32 = caps.iter().sum();
            let k = (caps.len() as f64 + part * (most as usize - caps.len()) as f64) as usize;
            let allowed: Vec<u32> = caps.iter().map(|c| up_to(*c)).collect();
            let mut out = Vec::new();
            prop_assert!(water_fill(&allowed, k, &mut out));
            let top = *out.iter().max().unwrap();
            for (c, cap) in out.iter().zip(&caps) {
                prop_assert!(*c + 1 >= top || u32::from(*c) == *cap, "{out:?} {caps:?}");
            }
        }
    }
}
