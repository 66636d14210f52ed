# SPDX-License-Identifier: Apache-2.0
"""Threads share an engine, the interpreter goes on meanwhile, and a fork is refused."""

import os
import sys
import tempfile
import threading
import time
import unittest

from linkwise import Engine, Error


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

    def test_the_interpreter_goes_on_while_a_plan_is_made(self):
        engine = Engine(cluster="rails64x8")
        demand = [[0 if i == j else 1 << 20 for j in range(512)] for i in range(512)]
        before, sys_interval = [], sys.getswitchinterval()
        sys.setswitchinterval(1000.0)  # a thread yields only where it releases the lock by itself
        stop = threading.Event()

        def count():
            while not stop.is_set():
                before.append(time.monotonic())
                time.sleep(0)

        try:
            counter = threading.Thread(target=count)
            counter.start()
            started, end = len(before), time.monotonic() + 60
            while len(before) == started and time.monotonic() < end:
                engine.plan(demand)
            self.assertGreater(len(before), started, "no other thread ran while plans were made for a minute")
        finally:
            stop.set()
            sys.setswitchinterval(sys_interval)
            counter.join()

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


if __name__ == "__main__":
    unittest.main()
