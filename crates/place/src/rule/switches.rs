//! The hosts of a choice that spans several switches: on the fewest of them.

use super::{Order, Rule};

impl Rule<'_> {
    /// `n` of the hosts that can give `each` GPUs, on the fewest switches below a level, and on the fewest switches one
    /// level lower of all of these together.
    pub(super) fn pick(&self, mut can: Vec<u32>, level: usize, n: usize, each: usize, order: Order) -> Vec<u32> {
        let sort = |list: &mut Vec<u32>| list.sort_by(|a, b| self.by_order(order, each, *a, *b));
        if level <= 1 || n == can.len() {
            sort(&mut can);
            can.truncate(n);
            return can;
        }
        let fullest = self.fullest_switches(self.below(&can, level - 1), n, each, order);
        if level == 2 {
            let mut chosen = Vec::new();
            for mut group in fullest {
                sort(&mut group);
                chosen.extend(group.into_iter().take(n - chosen.len()));
            }
            return chosen;
        }
        let around = self.switches_around_full_ones(&can, level, n, fullest.len());
        let picked = [Some(fullest.concat()), around].into_iter().flatten();
        let picked = picked.map(|pool| self.pick(pool, level - 1, n, each, order));
        let key = |hosts: &Vec<u32>| {
            let disliked = hosts.iter().filter(|i| self.disliked(**i, each, order)).count();
            (disliked, (1..level).map(|lower| self.below(hosts, lower).len()).collect::<Vec<_>>())
        };
        picked.min_by_key(key).unwrap_or_default()
    }

    /// True if the host is degraded, or entirely free and would be broken, or busy where that counts.
    fn disliked(&self, slot: u32, each: usize, order: Order) -> bool {
        let s = &self.slots[slot as usize];
        s.kind.1 || (order == Order::Liked && s.busy) || (s.whole && s.free.count() > each)
    }

    /// The fewest of the groups that hold `n` hosts: the largest, and in the end the tightest that holds the rest.
    fn fullest_switches(&self, mut groups: Vec<Vec<u32>>, n: usize, each: usize, order: Order) -> Vec<Vec<u32>> {
        let (mut chosen, mut left) = (Vec::new(), n);
        while left > 0 && !groups.is_empty() {
            let disliked = |g: &Vec<u32>| {
                let bad = g.iter().filter(|i| self.disliked(**i, each, order)).count();
                (bad + left).saturating_sub(g.len().max(left))
            };
            let tightest = (0..groups.len())
                .filter(|g| groups[*g].len() >= left)
                .min_by_key(|g| (disliked(&groups[*g]), groups[*g].len(), *g));
            let largest = || (0..groups.len()).max_by_key(|g| (groups[*g].len(), std::cmp::Reverse(*g)));
            let Some(g) = tightest.or_else(largest) else { break };
            left -= left.min(groups[g].len());
            chosen.push(groups.remove(g));
        }
        chosen
    }

    /// The hosts below at most `most` switches of the next lower level, such that the fullest switches two levels lower
    /// are among them; None if these hold fewer than `n` hosts.
    fn switches_around_full_ones(&self, can: &[u32], level: usize, n: usize, most: usize) -> Option<Vec<u32>> {
        let groups = self.below(can, level - 1);
        let mut lower: Vec<(usize, usize)> = Vec::new(); // hosts, group
        for (g, group) in groups.iter().enumerate() {
            lower.extend(self.below(group, level - 2).iter().map(|l| (l.len(), g)));
        }
        lower.sort_by_key(|l| (std::cmp::Reverse(l.0), l.1));
        let mut used: Vec<usize> = Vec::new();
        let holds = |used: &[usize]| {
            let mut others: Vec<usize> =
                (0..groups.len()).filter(|g| !used.contains(g)).map(|g| groups[g].len()).collect();
            others.sort_unstable_by(|a, b| b.cmp(a));
            let mine: usize = used.iter().map(|g| groups[*g].len()).sum();
            mine + others.iter().take(most - used.len()).sum::<usize>() >= n
        };
        for (_, g) in lower {
            if used.len() < most && !used.contains(&g) {
                used.push(g);
                if !holds(&used) {
                    used.pop();
                }
            }
        }
        let pool: Vec<u32> = used.iter().flat_map(|g| groups[*g].iter().copied()).collect();
        (pool.len() >= n).then_some(pool)
    }
}
