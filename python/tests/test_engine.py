# SPDX-License-Identifier: Apache-2.0
"""The engine from Python: decisions, state, learning, routes."""

import json
import os
import tempfile
import unittest

import linkwise
from linkwise import Engine, Error


def cold(**parts):
    """An engine with NCCL's own model, which needs no readings."""
    engine = Engine(**parts)
    engine.fit("nccl", collective="all_reduce")
    return engine


class Decisions(unittest.TestCase):
    def test_gpus_of_a_job_are_chosen_and_explained(self):
        engine = cold(cluster="h100")
        choice = engine.place(12)
        self.assertEqual(len(set(choice.gpus)), 12)
        self.assertEqual(set(choice.gpus), set(choice.rank_order))
        told = engine.explain(choice.gpus)
        self.assertEqual(told.predicted_busbw_gb_per_s, choice.predicted_busbw_gb_per_s)
        self.assertEqual(told.split, choice.split)
        self.assertIn("kind", told.bottleneck)
        self.assertEqual(choice.hosts, list(dict.fromkeys(g.split(":")[0] for g in choice.rank_order)))

    def test_constraints_hold_and_lists_of_gpus_are_read(self):
        engine = cold(cluster="h100")
        choice = engine.place(8, per_host=4, free="n[0-2]:[0-7]")
        self.assertEqual(choice.split, "4+4")
        self.assertLessEqual(set(choice.hosts), {"n0", "n1", "n2"})
        with self.assertRaises(Error) as refused:
            engine.place(9, hosts_max=1)
        self.assertEqual(refused.exception.kind, "impossible")

    def test_an_answer_names_every_field_of_its_json(self):
        with tempfile.TemporaryDirectory() as folder:
            engine = cold(cluster="h100", state=os.path.join(folder, "s.db"), store=os.path.join(folder, "r.db"))
            answers = [
                engine.place(12, groups=[{"kind": "tensor", "size": 4}, {"kind": "data", "size": 3}]),
                engine.place(4, commit="a"),
                engine.commit("b", "n1:[0-3]"),
                engine.explain("n0:[0-7]"),
                engine.status(),
                engine.observe("a", 150.0),
                engine.fit("nccl", collective="all_reduce"),
                engine.diagnose(),
                engine.release("a"),
            ]
            for answer in answers:
                unknown = [k for k in answer.to_dict() if k != "answer" and not hasattr(answer, k)]
                self.assertEqual(unknown, [], type(answer).__name__)
                json.dumps(answer.to_dict())

    def test_an_answer_does_not_change_with_its_dictionary(self):
        choice = cold(cluster="h100").place(4)
        choice.to_dict()["gpus"].clear()
        self.assertEqual(len(choice.to_dict()["gpus"]), 4)
        with self.assertRaises(AttributeError):
            choice.split = "8"

    def test_an_answer_prints_in_a_line(self):
        engine = cold(cluster="h100")
        choice = engine.place(12)
        self.assertRegex(repr(choice), r"^Placement\(12 GPUs, split '[0-9+]+', [0-9.]+ \+- [0-9.]+ GB/s, rank_order=\['n[0-3]', .*\]\)$")
        self.assertTrue(repr(engine.explain(choice.gpus)).startswith("Explanation(12 GPUs"))
        self.assertIn("h100", repr(engine))

    def test_the_picture_has_the_chosen_gpus_and_no_markup_of_names(self):
        choice = cold(cluster="h100").place(5)
        page = choice._repr_html_()
        self.assertEqual(page.count(", chosen</title>"), 5)
        self.assertNotIn("<script", page)
        forged = linkwise.Placement._of({**choice.to_dict(), "gpus": ["<script>:0"], "model": "<b>"})
        self.assertNotIn("<script>:0", forged._repr_html_())
        self.assertNotIn("<b>", forged._repr_html_())


class State(unittest.TestCase):
    def test_a_job_holds_its_gpus_until_it_is_released(self):
        with tempfile.TemporaryDirectory() as folder:
            state = os.path.join(folder, "s.db")
            engine = cold(cluster="h100", state=state)
            total = engine.status().gpus
            first = engine.commit("train", 8)
            self.assertEqual(first.committed.job, "train")
            again = Engine(state=state)  # another program
            self.assertEqual(len(again.status().free), total - 8)
            with self.assertRaises(Error) as held:
                again.commit("other", first.gpus)
            self.assertEqual((held.exception.code, held.exception.kind), ("gpu_held", "impossible"))
            self.assertEqual(engine.release("train").free, total)

    def test_a_commit_under_one_key_is_done_once(self):
        with tempfile.TemporaryDirectory() as folder:
            engine = cold(cluster="h100", state=os.path.join(folder, "s.db"))
            one = engine.place(8, commit="train", key="k1")
            two = engine.place(8, commit="train", key="k1")
            self.assertEqual(one.gpus, two.gpus)
            self.assertTrue(two.committed.repeated)
            self.assertEqual(len(engine.status().jobs), 1)

    def test_a_lease_ends_at_its_time(self):
        with tempfile.TemporaryDirectory() as folder:
            engine = cold(cluster="h100", state=os.path.join(folder, "s.db"))
            engine.place(8, commit="train", lease_s=60, now=1e9)
            self.assertEqual(engine.status().jobs[0]["lease_until_unix_s"], 1e9 + 60)


class Learning(unittest.TestCase):
    def test_readings_are_stored_and_change_the_saved_model(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model.json")
            parts = {"cluster": "h100", "store": os.path.join(folder, "r.db"), "model": model}
            engine = Engine(**parts)
            for i, hosts in enumerate((("n0", "n1"), ("n1", "n2"), ("n0", "n2"), ("n2", "n3"), ("n0", "n3"))):
                gpus = [f"{h}:{g}" for h in hosts for g in range(8)]
                stored = engine.observe(f"job{i}", 200.0 + i, gpus=gpus)
                self.assertIsNotNone(stored.readings[0]["id"])
                engine.observe(f"job{i}", 300.0 + i, gpus=gpus[:8])
            fitted = engine.fit("gp")
            self.assertEqual(fitted.multi_host_readings, 5)
            self.assertTrue(os.path.exists(model))
            same = Engine(**parts).explain("n[0-1]:[0-7]")
            self.assertEqual(same.to_dict(), engine.explain("n[0-1]:[0-7]").to_dict())

    def test_a_reading_that_no_hardware_gives_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            engine = Engine(cluster="h100", store=os.path.join(folder, "r.db"))
            with self.assertRaises(Error) as refused:
                engine.observe("job", 90_000.0, gpus="n[0-1]:[0-7]")
            self.assertEqual(refused.exception.code, "impossible_reading")


class Routes(unittest.TestCase):
    def test_a_plan_moves_every_byte_once(self):
        engine = Engine(cluster="rails2x4")
        demand = [[0 if i == j else (i + 1) * (1 << 20) for j in range(8)] for i in range(8)]
        plan = engine.plan(demand)
        moved = {}
        for src, dst, size, hops in plan.flows():
            moved[src, dst] = moved.get((src, dst), 0) + size
            self.assertTrue(hops)
        self.assertEqual(moved, {(i, j): demand[i][j] for i in range(8) for j in range(8) if i != j})
        self.assertGreaterEqual(plan.gap, 0.0)
        loads = [0] * len(plan.links)
        for _, _, size, hops in plan.flows():
            for h in hops:
                loads[h] += size
        self.assertEqual(loads, [link.bytes for link in plan.links])
        self.assertIn("ms", plan._repr_html_())
        self.assertEqual(plan.to_dict()["ranks"], 8)

    def test_a_slower_link_gets_less(self):
        engine = Engine(cluster="rails2x4")
        demand = [[0] * 8 for _ in range(8)]
        demand[0][4] = 1 << 30
        whole, half = engine.plan(demand), engine.plan(demand, links=["n0:0>rail0=x0.5"])
        self.assertLess(whole.congestion_s, half.congestion_s)


class Package(unittest.TestCase):
    def test_the_built_in_clusters_are_known(self):
        self.assertIn("h100", linkwise.clusters())
        self.assertEqual(linkwise.__version__, linkwise.version())

    def test_every_public_name_has_a_text(self):
        for name in linkwise.__all__:
            self.assertTrue(getattr(linkwise, name).__doc__, name)
        for name in dir(Engine):
            if not name.startswith("_"):
                self.assertTrue(getattr(Engine, name).__doc__, name)

    def test_the_stub_names_what_the_native_module_has(self):
        import ast
        from linkwise import _native

        stub = os.path.join(os.path.dirname(linkwise.__file__), "_native.pyi")
        with open(stub) as file:
            tree = ast.parse(file.read())
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                named = {f.name for f in node.body if isinstance(f, ast.FunctionDef)} - {"__init__"}
                found = {n for n in vars(getattr(_native, node.name)) if not n.startswith("_")}
                self.assertEqual(named, found)
            elif isinstance(node, ast.FunctionDef):
                self.assertTrue(callable(getattr(_native, node.name)))


if __name__ == "__main__":
    unittest.main()
