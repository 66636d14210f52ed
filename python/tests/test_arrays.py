# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays in and out; without NumPy the same in lists."""

import subprocess
import sys
import unittest

from linkwise import Engine, Error

try:
    import numpy
except ImportError:
    numpy = None


class WithoutNumPy(unittest.TestCase):
    def test_the_package_imports_neither_numpy_nor_torch_and_works_without(self):
        code = (
            "import sys\n"
            "sys.modules['numpy'] = None\n"
            "import linkwise\n"
            "e = linkwise.Engine(cluster='rails2x4')\n"
            "assert e.plan([[0, 9, 0, 0, 0, 0, 0, 0]] + [[0] * 8] * 7).flows()\n"
            "e.fit('nccl', collective='all_reduce')\n"
            "assert len(e.predict(['n0:[0-3]', ['n0:0']])[0]) == 2\n"
            "assert 'torch' not in sys.modules\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


@unittest.skipIf(numpy is None, "no numpy")
class Arrays(unittest.TestCase):
    def test_rows_of_a_matrix_are_predicted_as_their_lists(self):
        engine = Engine(cluster="h100")
        engine.fit("nccl", collective="all_reduce")
        names = [f"{h}:{g}" for h, _, n in engine._native.hosts() for g in range(n)]
        dice = numpy.random.default_rng(3)
        rows = dice.random((50, len(names))) < 0.3
        rows[:, 0] = True
        lists = [[n for n, used in zip(names, row) if used] for row in rows]
        mean, std = engine.predict(rows)
        self.assertEqual((mean.dtype, mean.shape), (numpy.float64, (50,)))
        self.assertEqual((mean.tolist(), std.tolist()), engine.predict(lists))
        self.assertEqual(engine.predict(rows[::2])[0].tolist(), mean[::2].tolist(), "a view with strides")
        self.assertEqual(engine.predict(numpy.asfortranarray(rows))[0].tolist(), mean.tolist())

    def test_a_matrix_is_planned_as_its_lists_and_flows_come_as_arrays(self):
        engine = Engine(cluster="rails2x4")
        demand = numpy.arange(64).reshape(8, 8) * (1 << 16) * (1 - numpy.eye(8, dtype=int))
        for kind in ("uint64", "int64", "int32", "uint32"):
            plan = engine.plan(demand.astype(kind))
            self.assertEqual(plan.to_dict(), engine.plan(demand.tolist()).to_dict())
        columns = plan.arrays()
        self.assertEqual(int(columns["bytes"].sum()), int(demand.sum()))
        self.assertEqual(len(columns["first_hop"]), len(columns["src"]) + 1)
        self.assertTrue(columns["bytes"].flags.owndata or columns["bytes"].base is not None)

    def test_matrices_of_another_form_are_refused(self):
        engine = Engine(cluster="rails2x4")
        engine.fit("nccl", collective="all_reduce")
        for bad in (
            numpy.zeros((8, 8)), numpy.zeros(8, int), numpy.zeros((7, 7), int), numpy.zeros((8, 7), int), numpy.zeros((0, 0), int),
            numpy.full((8, 8), -1), numpy.full((8, 8), 1 << 62, "uint64"), numpy.empty((8, 8), object), numpy.zeros((8, 8), "M8[s]"),
        ):  # fmt: skip
            with self.assertRaises(Error, msg=repr(bad.dtype)):
                engine.plan(bad)
        for bad in (numpy.zeros((2, 8), int), numpy.zeros((2, 7), bool), numpy.zeros(8, bool), numpy.zeros((2, 8), bool)):
            with self.assertRaises(Error, msg=repr(bad.shape)):
                engine.predict(bad)
        self.assertEqual(engine.predict(numpy.zeros((0, 8), bool))[0].shape, (0,))


if __name__ == "__main__":
    unittest.main()
