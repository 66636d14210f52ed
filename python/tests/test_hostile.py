# SPDX-License-Identifier: Apache-2.0
"""Senseless arguments: each gives `linkwise.Error`, or Python's own TypeError for a wrong signature. Never a crash."""

import os
import random
import tempfile
import unittest

import linkwise
from linkwise import Engine, Error

ODD = [
    None, True, False, 0, -1, 1, 3, 1 << 40, 1 << 64, 1 << 200, -(1 << 70), 0.0, -0.5, float("nan"), float("inf"), 1e308, "", " ", "n0",
    "n0:0", "n0:99", "n0:-1", "\0", "\ud800", "n[0-999999999]", "n[[[", "x" * 100_000, b"n0:0", [], {}, [None], ["n0:0", 3], {"a": 1},
    [[]], object(), (), set(), range(3), lambda: 0, ["n0:0"] * 1000, {"gpus": {"gpus": {}}}, [float("nan")],
]  # fmt: skip
ALLOWED = (Error, TypeError)


class Hostile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        parts = {"state": os.path.join(cls.folder.name, "s.db"), "store": os.path.join(cls.folder.name, "r.db")}
        cls.engine = Engine(cluster="h100", **parts)
        cls.engine.fit("nccl", collective="all_reduce")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def survives(self, call, *arguments, **named):
        try:
            call(*arguments, **named)
        except ALLOWED as e:
            if isinstance(e, Error):
                self.assertTrue(e.code and e.kind and e.message, (arguments, named))
                self.assertLess(len(str(e)), 400_000)

    def test_every_method_survives_every_odd_value(self):
        e = self.engine
        for v in ODD:
            with self.subTest(value=repr(v)[:60]):
                self.survives(e.place, v)
                self.survives(e.place, 4, pods=v)
                self.survives(e.place, 4, groups=v)
                self.survives(e.place, 4, size_bytes=v)
                self.survives(e.place, 4, free=v)
                self.survives(e.place, 4, hosts_max=v)
                self.survives(e.place, 4, search=v)
                self.survives(e.place, 4, now=v)
                self.survives(e.place, 4, no_such_field=v)
                self.survives(e.explain, v)
                self.survives(e.explain, job=v)
                self.survives(e.predict, v)
                self.survives(e.predict, [v])
                self.survives(e.predict, ["n0:0 n0:1"], v)
                self.survives(e.plan, v)
                self.survives(e.plan, [v])
                self.survives(e.plan, [[0]], links=v)
                self.survives(e.observe, "job", v, gpus="n0:[0-7]", only_store=True)
                self.survives(e.observe, v, 100.0, gpus="n0:[0-7]", only_store=True)
                self.survives(e.observe, "job", 100.0, gpus=v, only_store=True)
                self.survives(e.fit, v)
                self.survives(e.fit, "nccl", collective=v)
                self.survives(e.release, v)
                self.survives(e.commit, v, "n0:0")
                self.survives(e.request, v)
                self.survives(e.request, {"request": v})
                self.survives(Engine, v)
        self.assertTrue(e.explain("n0:[0-7]").predicted_busbw_gb_per_s > 0)

    def test_random_requests_give_an_answer_or_an_error(self):
        dice = random.Random(7)
        words = ["place", "gpus", "free", "request", "status", "events", "jobs", "constraints", "commit", "n0:0", "hosts", "explain"]

        def value(depth):
            kind = dice.randrange(8 if depth else 5)
            if kind == 0:
                return dice.choice([0, 1, 8, -3, 1 << 63, 0.5])
            if kind < 4:
                return dice.choice(words)
            if kind == 4:
                return None
            if kind < 7:
                return {dice.choice(words): value(depth - 1) for _ in range(dice.randrange(4))}
            return [value(depth - 1) for _ in range(dice.randrange(4))]

        for _ in range(2000):
            request = {"request": dice.choice(words), **{dice.choice(words): value(3) for _ in range(dice.randrange(4))}}
            self.survives(self.engine.request, request)

    def test_files_that_are_something_else_are_refused_by_name(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in (("a.json", b"{}"), ("b.json", b"\xff\x00"), ("c.db", b"SQLite format 3\0" + b"x" * 5000), ("d", b"")):
                path = os.path.join(folder, name)
                with open(path, "wb") as file:
                    file.write(content)
                for part in ("model", "state", "cluster"):
                    with self.assertRaises(Error, msg=(name, part)) as e:
                        Engine(**{"cluster": "h100", part: path})
                    self.assertIn(name, str(e.exception))
            with self.assertRaises(Error):
                Engine(cluster="h100", state=folder)
            with self.assertRaises(Error):
                Engine()

    def test_an_error_has_its_message_code_and_remedy(self):
        with self.assertRaises(Error) as e:
            Engine(cluster="h100").place(8)
        e = e.exception
        self.assertEqual((e.code, e.kind), ("no_model", "malformed"))
        self.assertTrue(str(e).endswith(e.remedy))
        import pickle

        same = pickle.loads(pickle.dumps(e))
        self.assertEqual((same.code, str(same)), (e.code, str(e)))

    def test_the_native_class_survives_without_its_wrapper(self):
        n = linkwise._native.Engine("h100")
        for v in ODD:
            for call in (n.request, n.predict, n.plan, n.predict_rows, n.plan_matrix):
                try:
                    call(v)
                except (Error, TypeError, ValueError, OverflowError):
                    pass


if __name__ == "__main__":
    unittest.main()
