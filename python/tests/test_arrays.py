# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays in and out; without NumPy the same in lists."""

import os
import subprocess
import sys
import tempfile
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
        for bad in (numpy.ma.array(numpy.ones((1, 8), bool), mask=True), memoryview(numpy.ones((1, 8), bool))):
            with self.assertRaises(Error, msg=type(bad)):
                engine.predict(bad)

    def test_every_byte_of_a_boolean_array_that_is_not_zero_is_true(self):
        engine = Engine(cluster="rails2x4")
        engine.fit("nccl", collective="all_reduce")
        rows = numpy.array([[1, 1, 0, 0, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]], "uint8")
        for true in (2, 128, 255):
            odd = (rows * true).astype("uint8").view(bool)
            self.assertEqual(engine.predict(odd)[0].tolist(), engine.predict(rows.view(bool))[0].tolist(), true)

    def test_the_size_of_a_message_counts_for_arrays_and_lists(self):
        engine = Engine(cluster="rails2x4")
        engine.fit("nccl", collective="all_reduce")
        rows, names = numpy.ones((1, 8), bool), [["n[0-1]"]]
        small, large = (engine.predict(rows, 1 << n)[0][0] for n in (12, 30))
        self.assertLess(small, large / 2)
        self.assertEqual([engine.predict(names, 1 << n)[0][0] for n in (12, 30)], [small, large])

    def test_numpys_numbers_are_taken_where_pythons_are(self):
        with tempfile.TemporaryDirectory() as folder:
            engine = Engine(cluster="h100", state=os.path.join(folder, "s.db"), store=os.path.join(folder, "r.db"))
            one = numpy.int64(1)
            engine.fit("nccl", collective="all_reduce", seed=one)
            plain = engine.place(8, size_bytes=1 << 20, hosts_max=1)
            for kind in (numpy.int64, numpy.uint8, numpy.int32):
                again = engine.place(kind(8), size_bytes=numpy.uint32(1 << 20), hosts_max=kind(1), uneven=numpy.bool_(False))
                self.assertEqual(again.split, plain.split)
            self.assertEqual(len(engine.place(pods=numpy.array([4, 4])).pods), 2)
            self.assertEqual(engine.explain("n0:[0-7]", size_bytes=numpy.int64(1 << 20)).size_bytes, 1 << 20)
            self.assertEqual(len(engine.commit("a", numpy.int64(4), lease_s=numpy.float32(60)).gpus), 4)
            held = engine.commit("b", numpy.array(["n1:0", "n1:1"]), lease_s=numpy.int64(60), demand_gb_per_s=numpy.float64(5))
            self.assertEqual(held.gpus, ["n1:0", "n1:1"])
            for busbw in (numpy.float32(150.0), numpy.array(150.0), {"collective": "all_reduce", "busbw_gb_per_s": numpy.float32(150.0)}):
                self.assertEqual(engine.observe("a", busbw, only_store=True).readings[0]["busbw_gb_per_s"], 150.0)
            told = engine.request({"request": "explain", "gpus": ["n0:0", "n0:1"], "size_bytes": numpy.int64(1 << 20)})
            self.assertEqual(told["size_bytes"], 1 << 20)

    def test_an_array_of_bandwidths_is_refused_with_one_sentence(self):
        engine = Engine(cluster="h100")
        for bad in (numpy.array([150.0, 151.0]), numpy.array([150.0]), numpy.zeros((2, 2))):
            with self.assertRaises(Error) as e:
                engine.observe("a", bad, gpus="n0:[0-7]")
            self.assertEqual(e.exception.kind, "malformed")
            self.assertRegex(str(e.exception), r"^`readings` is an array of shape \(.*\); one bandwidth or a list of dictionaries was expected")


#: Prints by how much the memory of the process grew at most during a call, and the size of the array, bytes. Blocks of 64 KiB and more go back
#: to the system at once, so that memory that was freed before hides nothing.
GROWTH = """
import os, sys
import numpy
from linkwise import Engine

def peak():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))

def growth(call):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew, at what the process has now
    before = peak()
    kept = call()
    return peak() - before, kept

"""


def measured(code):
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run([sys.executable, "-c", GROWTH + code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return [int(n) for n in done.stdout.split()]


@unittest.skipIf(numpy is None, "no numpy")
@unittest.skipUnless(os.access("/proc/self/clear_refs", os.W_OK), "this kernel does not begin a peak of memory anew")
class Memory(unittest.TestCase):
    def test_a_large_matrix_is_predicted_without_a_copy(self):
        grown, control, size = measured("""
engine = Engine(cluster="rails64x8")
engine.fit("nccl", collective="all_reduce")
rows = numpy.zeros((100_000, 512), bool)
rows[:, 0] = True
engine.predict(rows[:10])
grown, _ = growth(lambda: engine.predict(rows))
control, _ = growth(lambda: engine.predict(rows.copy()))
print(grown, control, rows.nbytes)
""")
        self.assertLess(grown, size // 2, "a copy of the matrix was made")
        self.assertGreater(control, size, "a copy would not have shown")

    def test_the_flows_of_a_plan_come_without_a_copy(self):
        grown, control, size, taken = measured("""
engine = Engine(cluster="rails64x8")
demand = numpy.full((512, 512), 1 << 20)
numpy.fill_diagonal(demand, 0)
plan = engine.plan(demand)
grown, columns = growth(plan.arrays)
size = sum(c.nbytes for c in columns.values())
del columns
control, _ = growth(lambda: [c.copy() for c in plan.arrays().values()] and None)
print(grown, control, size, sum(type(c.base).__name__ == "PySliceContainer" for c in plan.arrays().values()))
""")
        self.assertEqual(taken, 5, "NumPy has the memory of Rust's vectors")
        self.assertLess(grown, size * 3 // 2, "a copy of the flows was made")
        self.assertGreater(control, size * 3 // 2, "a copy would not have shown")


if __name__ == "__main__":
    unittest.main()
