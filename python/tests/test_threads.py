# SPDX-License-Identifier: Apache-2.0
"""Threads share an engine, the interpreter goes on meanwhile, and a fork is refused."""

import bisect
import os
import sys
import tempfile
import threading
import time
import unittest

from linkwise import Engine, Error

try:
    import numpy
except ImportError:
    numpy = None


def in_threads(count, work):
    failed = []

    def guarded(i):
        try:
            work(i)
        except BaseException as e:  # an assertion of a thread must reach the test
            failed.append(e)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]


class Threads(unittest.TestCase):
    def test_jobs_of_many_threads_get_different_gpus(self):
        with tempfile.TemporaryDirectory() as folder:
            engine = Engine(cluster="h100", state=os.path.join(folder, "s.db"))
            engine.fit("nccl", collective="all_reduce")
            total, taken = engine.status().gpus, []

            def work(i):
                for j in range(4):
                    try:
                        taken.extend(engine.commit(f"job-{i}-{j}", 2).gpus)
                    except Error as e:
                        self.assertIn(e.kind, ("impossible", "busy"))

            in_threads(8, work)
            self.assertEqual(len(taken), len(set(taken)), "two jobs hold one GPU")
            self.assertEqual(len(engine.status().free), total - len(taken))
            self.assertTrue(taken)

    def test_every_thread_gets_the_answer_of_one(self):
        engine = Engine(cluster="h100")
        engine.fit("nccl", collective="all_reduce")
        alone = engine.place(12).to_dict()
        in_threads(8, lambda _: self.assertEqual(engine.place(12).to_dict(), alone))

    def test_a_forked_child_is_refused_and_its_parent_goes_on(self):
        engine = Engine(cluster="h100")
        engine.fit("nccl", collective="all_reduce")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                engine.place(4)
            except Error as e:
                code = 0 if e.code == "forked" else 2
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(engine.place(4).gpus), 4)


class Lock(unittest.TestCase):
    """The interpreter's lock is released in calls: another thread goes on."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.engine = Engine(cluster="h100", store=os.path.join(cls.folder.name, "r.db"))
        cls.engine.fit("nccl", collective="all_reduce")
        hosts = [f"n{i}" for i in range(4)]
        for i, (a, b) in enumerate((a, b) for a in hosts for b in hosts if a < b):
            for gpus in range(2, 9, 2):
                cls.engine.observe(f"job{i}", 150.0 + 5 * i + gpus, gpus=f"{a}:[0-{gpus - 1}] {b}:[0-{gpus - 1}]", only_store=True)
        cls.engine.observe("job", 300.0, gpus="n0:[0-7]", only_store=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def stall(self, call):
        """The longest time without a turn of another thread, as a share of a call: of the calls of 0.3 s, or of one longer call, the least.

        Other programs take the processors, too: they make a share larger, never smaller. So the least of many is the call's own.
        """
        turns, stop, interval, calls = [], threading.Event(), sys.getswitchinterval(), []
        sys.setswitchinterval(1000.0)  # a thread yields only where it releases the lock by itself

        def count():
            while not stop.is_set():
                turns.append(time.monotonic())
                time.sleep(0.00002)

        counter = threading.Thread(target=count)
        try:
            counter.start()
            while not turns:
                time.sleep(0.001)
            last = time.monotonic() + 0.3
            while not calls or calls[-1][1] < last:
                begin = time.monotonic()
                call()
                calls.append((begin, time.monotonic()))
        finally:
            stop.set()
            sys.setswitchinterval(interval)
            counter.join()
        shares = []
        for begin, end in calls:
            inside = [begin, *turns[bisect.bisect(turns, begin) : bisect.bisect(turns, end)], end]
            shares.append(max(b - a for a, b in zip(inside, inside[1:])) / (end - begin))
        return min(shares)

    def goes_on(self, call):
        stalls = []
        while len(stalls) < 10 and (not stalls or min(stalls) > 0.7):
            stalls.append(self.stall(call))
        self.assertLess(min(stalls), 0.7, f"another thread waited for this share of every call: {stalls}")

    def test_the_measure_sees_a_call_that_keeps_the_lock(self):
        self.assertGreater(self.stall(lambda: sum(range(100_000))), 0.9)

    def test_the_interpreter_goes_on_while_a_plan_is_made(self):
        engine = Engine(cluster="rails64x8")
        demand = [[0 if i == j else 1 << 20 for j in range(512)] for i in range(512)]
        native = engine._native  # what Python does before, it interrupts by itself
        self.goes_on(lambda: native.plan(demand))

    def test_the_interpreter_goes_on_while_gpus_are_chosen(self):
        self.goes_on(lambda: self.engine.place(12))

    def test_the_interpreter_goes_on_while_a_model_is_fitted(self):
        engine = Engine(cluster="h100", store=os.path.join(self.folder.name, "r.db"))
        self.goes_on(lambda: engine.fit("gp"))

    def test_the_interpreter_goes_on_while_bandwidths_are_predicted_and_explained(self):
        lists = [f"n{i % 4}:[0-7] n{(i + 1) % 4}:[0-{i % 8}]" for i in range(2000)]
        self.goes_on(lambda: self.engine.predict(lists))
        self.goes_on(lambda: self.engine.explain("n[0-1]:[0-7]"))

    @unittest.skipIf(numpy is None, "no numpy")
    def test_the_interpreter_goes_on_while_a_matrix_is_predicted(self):
        rows = numpy.random.default_rng(1).random((50_000, 32)) < 0.3
        rows[:, 0] = True
        self.goes_on(lambda: self.engine.predict(rows))


if __name__ == "__main__":
    unittest.main()
