# SPDX-License-Identifier: Apache-2.0
"""Traffic of mixture-of-experts layers against a slow reference, and the balance of experts against every assignment."""

import itertools
import unittest

from linkwise import Engine, Error, moe

try:
    import numpy
except ImportError:
    numpy = None


def slow_demand(top_k, expert_rank, bytes_per_token, once_per_rank):
    ranks = len(top_k)
    out = [[0] * ranks for _ in range(ranks)]
    for source, tokens in enumerate(top_k):
        for experts in tokens:
            to = [int(expert_rank[e]) for e in experts if e >= 0]
            for rank in set(to) if once_per_rank else to:
                if rank != source:
                    out[source][rank] += bytes_per_token
    return out


def every_even_assignment(experts, ranks):
    """Every assignment of as many experts to each rank."""
    if not experts:
        yield {}
        return
    for group in itertools.combinations(experts, len(experts) // ranks):
        rest = [e for e in experts if e not in group]
        for others in every_even_assignment(rest, ranks - 1) if ranks > 1 else [{}]:
            yield {**dict.fromkeys(group, ranks - 1), **others}


@unittest.skipIf(numpy is None, "no numpy")
class Demand(unittest.TestCase):
    def test_every_matrix_is_that_of_the_slow_reference(self):
        dice = numpy.random.default_rng(5)
        for case in range(200):
            ranks, experts, k = (int(n) for n in dice.integers(1, [7, 13, 5]))
            expert_rank = dice.integers(ranks, size=experts)
            ids = [dice.integers(-1, experts, size=(int(dice.integers(0, 20)), k)) for _ in range(ranks)]
            for once in (False, True):
                with self.subTest(case=case, once=once):
                    got = moe.demand(ids, expert_rank, 14336, once_per_rank=once)
                    self.assertEqual((got.dtype, got.shape), (numpy.uint64, (ranks, ranks)))
                    self.assertEqual(got.tolist(), slow_demand(ids, expert_rank, 14336, once))

    def test_an_array_gives_what_its_lists_give_and_is_planned(self):
        ids = numpy.random.default_rng(1).integers(16, size=(8, 64, 4))
        expert_rank = numpy.arange(16) // 2
        demand = moe.demand(ids, expert_rank, 4096)
        self.assertEqual(demand.tolist(), moe.demand(ids.tolist(), expert_rank.tolist(), 4096).tolist())
        self.assertEqual(demand.tolist(), moe.demand(ids.astype("int32"), expert_rank.astype("uint8"), numpy.int32(4096)).tolist())
        plan = Engine(cluster="rails2x4").plan(demand)
        self.assertEqual(int(plan.arrays()["bytes"].sum()), int(demand.sum()))
        # All tokens leave their rank but those of its own experts.
        local = (expert_rank[ids] == numpy.arange(8)[:, None, None]).sum()
        self.assertEqual(int(demand.sum()), 4096 * (ids.size - int(local)))

    def test_senseless_arguments_are_refused_with_a_sentence(self):
        ok = [[[0, 1]], [[1, 0]]]
        for top_k, expert_rank, size, says in (
            ([[[0, 2]], [[0, 1]]], [0, 1], 8, "`top_k[0]` has expert 2; `expert_rank` has 2 experts"),
            ([[[0, 1]], [[-2, 1]]], [0, 1], 8, "`top_k[1]` has expert -2"),
            (ok, [0, 2], 8, "`expert_rank` has rank 2; `top_k` is of ranks 0 to 1"),
            (ok, [0, -1], 8, "`expert_rank` has rank -1"),
            (ok, [[0, 1]], 8, "integers with 1 dimensions were expected"),
            (ok, [0.0, 1.0], 8, "`expert_rank` is an array of float64"),
            ([[0, 1], [1, 0]], [0, 1], 8, "`top_k[0]` is an array of int64 of shape (2,)"),
            ([[[0], [0, 1]]], [0], 8, "`top_k[0]` is no array"),
            (7, [0], 8, "`top_k` is no array of expert ids"),
            (ok, [0, 1], -1, "`bytes_per_token` has -1"),
            (ok, [0, 1], 1.5, "`bytes_per_token` has 1.5"),
            ([[[1]] * 2, [[0]]], [0, 1], (1 << 64) - 1, "more than 2^64 bytes"),
        ):
            with self.assertRaises(Error, msg=says) as e:
                moe.demand(top_k, expert_rank, size)
            self.assertIn(says, str(e.exception))


@unittest.skipIf(numpy is None, "no numpy")
class Balance(unittest.TestCase):
    def busiest(self, load, rank_of, ranks):
        return numpy.bincount(rank_of, weights=load, minlength=ranks).max()

    def test_the_busiest_rank_is_near_the_best_of_all_assignments(self):
        dice = numpy.random.default_rng(11)
        excess = []
        for experts, ranks, cases in ((4, 2, 50), (6, 2, 50), (8, 2, 50), (6, 3, 50), (8, 4, 10), (9, 3, 10)):
            every = numpy.array([[a[e] for e in range(experts)] for a in every_even_assignment(list(range(experts)), ranks)])
            for draw in (lambda n: dice.pareto(1.2, n), dice.random):  # few experts have most tokens; all have some
                for _ in range(cases):
                    load = draw(experts)
                    rank_of = moe.balanced(load, ranks)
                    self.assertEqual(numpy.bincount(rank_of, minlength=ranks).tolist(), [experts // ranks] * ranks)
                    got = self.busiest(load, rank_of, ranks)
                    excess.append(got / min(self.busiest(load, a, ranks) for a in every) - 1)
                    self.assertLessEqual(got, self.busiest(load, numpy.arange(experts) // (experts // ranks), ranks))
        self.assertGreaterEqual(min(excess), -1e-12)
        # As docs/python.md says.
        self.assertLess(max(excess), 0.15)
        self.assertLess(sum(excess) / len(excess), 0.01)

    def test_equal_loads_stay_consecutive_and_wrong_ones_are_refused(self):
        self.assertEqual(moe.balanced([5] * 6, 3).tolist(), [0, 0, 1, 1, 2, 2])
        for load, ranks in (([1, 2, 3], 2), ([1, -1], 2), ([1, float("nan")], 2), ([[1, 2]], 2), ([1, 2], 0), (["a", "b"], 2)):
            with self.assertRaises(Error, msg=(load, ranks)):
                moe.balanced(load, ranks)


if __name__ == "__main__":
    unittest.main()
