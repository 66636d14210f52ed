# SPDX-License-Identifier: Apache-2.0
"""The engine from Python: decisions, state, learning, routes."""

import dataclasses
import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

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

    def test_every_argument_of_a_method_is_in_its_request(self):
        real, seen = Engine.request, []

        def request(engine, request, *now):
            seen.append(request)
            return real(engine, request, *now)

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(Engine, "request", request):
            engine = cold(cluster="h100", state=os.path.join(folder, "s.db"), store=os.path.join(folder, "r.db"))
            for expected, call in (
                ({"size_bytes": 1 << 20, "lease_s": 60.0, "key": "k1"},
                 lambda: engine.place(4, commit="a", lease_s=60.0, size_bytes=1 << 20, key="k1")),
                ({"key": "k2"}, lambda: engine.commit("b", "n1:[0-3]", key="k2")),
                ({"key": "k3"}, lambda: engine.commit("c", 2, key="k3")),
                ({"simulated": True, "only_store": True, "force": True, "key": "k4"},
                 lambda: engine.observe("a", 9999.0, simulated=True, only_store=True, force=True, key="k4")),
                ({"size_bytes": 1 << 20}, lambda: engine.explain("n0:[0-3]", size_bytes=1 << 20)),
                ({"seed": 7, "kind": "nccl", "collective": "all_reduce"}, lambda: engine.fit("nccl", collective="all_reduce", seed=7)),
                ({"collective": "all_reduce"}, lambda: engine.diagnose(collective="all_reduce")),
                ({"jobs": ["a", "b"], "key": "k5"}, lambda: engine.release("a", "b", key="k5")),
            ):  # fmt: skip
                call()
                self.assertEqual({**seen[-1], **expected}, seen[-1])

    def test_an_answer_does_not_change_with_its_dictionary(self):
        choice = cold(cluster="h100").place(4)
        choice.to_dict()["gpus"].clear()
        self.assertEqual(len(choice.to_dict()["gpus"]), 4)
        with self.assertRaises(AttributeError):
            choice.split = "8"

    def test_an_answer_can_be_pickled_and_hashed_and_does_not_keep_its_engine(self):
        with tempfile.TemporaryDirectory() as folder:
            state = os.path.join(folder, "s.db")
            engine = cold(cluster="h100", state=state, store=os.path.join(folder, "r.db"))
            choice = engine.place(12)
            answers = [
                choice, engine.explain(choice.gpus), engine.commit("a", 2), engine.status(),
                engine.observe("a", 150.0, only_store=True), engine.release("a"),
            ]  # fmt: skip
            pages = [a._repr_html_() for a in answers[:3]]
            is_open = lambda: any(os.path.realpath(f"/proc/self/fd/{n}").startswith(state) for n in os.listdir("/proc/self/fd"))  # noqa: E731
            self.assertTrue(is_open())
            del engine
            gc.collect()
            self.assertFalse(is_open(), "an answer holds the state")
            for answer in answers:
                same = pickle.loads(pickle.dumps(answer))
                self.assertEqual((same, hash(same), repr(same)), (answer, hash(answer), repr(answer)))
            self.assertEqual([a._repr_html_() for a in answers[:3]], pages)
            self.assertEqual(len(set(answers + pickle.loads(pickle.dumps(answers)))), len(answers))
            self.assertNotEqual(answers[0], answers[2])

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


    def test_the_picture_of_a_state_has_held_drained_and_suspect_gpus(self):
        self.assertEqual(Engine(cluster="h100")._repr_html_(), "<code>Engine(cluster=&#x27;h100&#x27;, model=None, state=False)</code>")
        with tempfile.TemporaryDirectory() as folder:
            engine = cold(cluster="h100", state=os.path.join(folder, "s.db"))
            engine.commit("train", "n1:[0-2]")
            engine.request({"request": "drain", "gpus": ["n2:[0-1]"], "reason": "<b>fan"})
            page = engine._repr_html_()
            self.assertEqual(page, engine.status()._repr_html_())
            self.assertEqual((page.count("held by train</title>"), page.count("drained &lt;b&gt;fan</title>")), (3, 2))
            self.assertNotIn("<b>", page)
            self.assertIn("27", page)
            suspect = {"component": "NIC mlx5_0 of n3", "host": "n3", "defect": 0, "factor": 0.5, "probability": 0.9}
            status = engine.status()
            marked = dataclasses.replace(status, suspects=[suspect])
            self.assertEqual(marked._repr_html_().count("NIC mlx5_0 of n3, probability 0.90</title>"), 8)


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


class Files(unittest.TestCase):
    def refused(self, **parts):
        with self.assertRaises(Error) as e:
            Engine(**parts)
        return e.exception.code, e.exception.kind, e.exception.remedy

    def test_a_file_that_cannot_be_read_tells_its_kind_and_its_remedy(self):
        with tempfile.TemporaryDirectory() as folder:
            at = lambda name: os.path.join(folder, name)  # noqa: E731
            with open(at("text.yaml"), "w") as file:
                file.write("hosts: 3")
            with open(at("bytes"), "wb") as file:
                file.write(b"\xff\xfe")
            for parts, code, kind, remedy in (
                ({"cluster": at("none.yaml")}, "no_file", "malformed", "name a cluster file that exists"),
                ({"cluster": "h100x"}, "bad_file", "malformed", "name a cluster of `linkwise.clusters()`, or a cluster file"),
                ({"cluster": folder}, "no_file", "malformed", "name the file, not a folder or a device"),
                ({"cluster": "h100", "model": at("bytes")}, "bad_file", "malformed", "name a file of this kind"),
                ({"cluster": "/proc/self/mem"}, "unreadable", "broken", "repair the file or the disk"),
                ({"cluster": "h100", "model": folder}, "no_file", "malformed", "name the file, not a folder or a device"),
                ({"cluster": "h100", "model": "/proc/self/mem"}, "unreadable", "broken", "repair the file or the disk"),
                ({"state": at("none.db")}, "no_state", "malformed", "name a state that exists, or give `cluster`, which makes one"),
            ):
                self.assertEqual(self.refused(**parts), (code, kind, remedy), parts)
            code, kind, remedy = self.refused(cluster=at("text.yaml"))
            self.assertEqual((code, kind), ("bad_file", "malformed"))
            self.assertNotEqual(remedy, "correct the request")

    @unittest.skipUnless(os.geteuid() == 0, "only root can become a user without rights")
    def test_a_file_of_another_user_is_a_matter_of_rights(self):
        code = (
            "import os, sys\n"
            "from linkwise import Engine, Error\n"
            "os.setuid(65534)\n"
            "for part in ('cluster', 'model'):\n"
            "    try:\n"
            "        Engine(**{'cluster': 'h100', part: sys.argv[1]})\n"
            "    except Error as e:\n"
            "        print(e.code, e.kind, e.remedy, sep='|')\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            path = os.path.join(folder, "closed")
            for closed in (path, os.path.join(folder, "inner", "file")):
                os.makedirs(os.path.dirname(closed), 0o700, exist_ok=True)
                with open(closed, "w") as file:
                    file.write("hosts: []")
                os.chmod(closed, 0o600)
                done = subprocess.run([sys.executable, "-c", code, closed], capture_output=True, text=True)
                expected = "unreadable|broken|grant this user the right to read the file and its folder\n"
                self.assertEqual(done.stdout, 2 * expected, done.stderr)


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
                named = {f.name for f in node.body if isinstance(f, ast.FunctionDef)} - {"__new__"}
                found = {n for n in vars(getattr(_native, node.name)) if not n.startswith("_")}
                self.assertEqual(named, found)
            elif isinstance(node, ast.FunctionDef):
                self.assertTrue(callable(getattr(_native, node.name)))


if __name__ == "__main__":
    unittest.main()
