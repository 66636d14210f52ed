# SPDX-License-Identifier: Apache-2.0
"""Real torchrun, three agents: hosts get their ranks in the order of the placement, also after one is lost."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

#: Writes its ranks, then works until the file `stop` is there. It fails when the file `lost` changes: a collective with a lost host does.
WORKER = """
import os, sys, time
folder = sys.argv[1]
def lost():
    return os.path.exists(os.path.join(folder, "lost"))
before = lost()
line = " ".join(os.environ[n] for n in ("GROUP_RANK", "RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
path = os.path.join(folder, os.environ["AGENT"])
with open(path, "a") as file:
    file.write(line + "\\n")
end = time.monotonic() + 600
while os.path.exists(path) and not os.path.exists(os.path.join(folder, "stop")) and time.monotonic() < end:
    if lost() != before:
        sys.exit(1)
    time.sleep(0.1)
"""

HOSTS = ("node7", "node66", "node8")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Job:
    """Agents on one machine that call themselves hosts. The first one has the store."""

    def __init__(self, folder, nodes, backend="linkwise", conf="", environment=None):
        self.folder, self.nodes, self.backend, self.conf = folder, nodes, backend, conf
        self.environment, self.port, self.agents = environment or {}, free_port(), {}
        with open(os.path.join(folder, "worker.py"), "w") as file:
            file.write(WORKER)

    def start(self, host, is_host=False):
        conf = ["join_timeout=600", "last_call_timeout=3", "keep_alive_interval=1", "keep_alive_max_attempt=4", f"is_host={int(is_host)}"]
        conf += [self.conf] if self.conf else []
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", self.nodes, "--nproc-per-node", "1", "--max-restarts", "3",
            "--monitor-interval", "1", "--rdzv-backend", self.backend, "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "job",
            "--local-addr", host, "--rdzv-conf", ",".join(conf), os.path.join(self.folder, "worker.py"), self.folder,
        ]  # fmt: skip
        # The names are of no real hosts: nothing may connect to the first rank by its name.
        own = {"AGENT": host, "CUDA_VISIBLE_DEVICES": "", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        environment = {**os.environ, **self.environment, **own}
        log = open(os.path.join(self.folder, f"{host}.log"), "w")
        self.agents[host] = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        log.close()

    def ranks(self, host):
        """(group rank, rank, world size) of every start of the host's worker."""
        try:
            with open(os.path.join(self.folder, host)) as file:
                return [tuple(int(n) for n in line.split()[:3]) for line in file if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def wait(self, what, done, limit_s=300):
        end = time.monotonic() + limit_s
        while not done():
            for host, agent in self.agents.items():
                if agent.poll() not in (None, 0, -signal.SIGKILL):
                    raise AssertionError(f"agent {host} ended: {self.log(host)}")
            if time.monotonic() > end:
                raise AssertionError(f"no {what} within {limit_s} s: " + "".join(self.log(h) for h in self.agents))
            time.sleep(0.2)

    def log(self, host):
        with open(os.path.join(self.folder, f"{host}.log")) as file:
            return f"--- {host}\n{file.read()[-3000:]}\n"

    def kill(self, host):
        os.killpg(self.agents[host].pid, signal.SIGKILL)
        self.agents.pop(host).wait()
        with open(os.path.join(self.folder, "lost"), "w"):
            pass

    def end(self):
        with open(os.path.join(self.folder, "stop"), "w"):
            pass
        for agent in self.agents.values():
            try:
                agent.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()


@unittest.skipUnless(importlib.util.find_spec("torch"), "no torch")
class Rendezvous(unittest.TestCase):
    def first_ranks(self, **options):
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, "3:3", **options)
            try:
                # The store's host first; torchrun of the others waits for it.
                for host in ("node8", "node7", "node66"):
                    job.start(host, is_host=host == "node8")
                job.wait("start of three workers", lambda: all(job.ranks(h) for h in HOSTS))
                return {h: job.ranks(h)[0][0] for h in HOSTS}
            finally:
                job.end()

    def test_ranks_follow_the_order_and_c10d_sorts_hosts_as_text(self):
        ordered = self.first_ranks(conf="order=node7/node66/node8")
        self.assertEqual(ordered, {"node7": 0, "node66": 1, "node8": 2})
        text = self.first_ranks(backend="c10d")
        self.assertEqual(text, {"node66": 0, "node7": 1, "node8": 2}, "if this changes, PyTorch keeps an order of its own")

    def test_a_placement_file_and_the_variable_give_the_order(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "placement.json")
            with open(path, "w") as file:
                json.dump({"rank_order": ["node8:0", "node8:1", "node66:0", "node7:3"]}, file)
            self.assertEqual(self.first_ranks(conf=f"placement={path}"), {"node8": 0, "node66": 1, "node7": 2})
        said = self.first_ranks(environment={"LINKWISE_HOST_ORDER": "node66,node8"})
        self.assertEqual(said, {"node66": 0, "node8": 1, "node7": 2}, "a host that the order lacks comes last")

    def test_the_order_holds_after_a_host_is_lost_and_after_a_new_one_came(self):
        with tempfile.TemporaryDirectory() as folder:
            job = Job(folder, "2:3", conf="order=node7/node9/node66/node8")
            try:
                for host in ("node8", "node7", "node66"):
                    job.start(host, is_host=host == "node8")
                job.wait("three", lambda: all(job.ranks(h) and job.ranks(h)[-1][2] == 3 for h in HOSTS))
                self.assertEqual([job.ranks(h)[-1][0] for h in HOSTS], [0, 1, 2])
                job.kill("node66")
                job.wait("two", lambda: all(job.ranks(h)[-1][2] == 2 for h in ("node7", "node8")))
                self.assertEqual([job.ranks(h)[-1][0] for h in ("node7", "node8")], [0, 1])
                job.start("node9")
                now = ("node7", "node9", "node8")
                job.wait("three again", lambda: all(job.ranks(h) and job.ranks(h)[-1][2] == 3 for h in now))
                self.assertEqual([job.ranks(h)[-1][0] for h in now], [0, 1, 2])
            finally:
                job.end()


class Orders(unittest.TestCase):
    """What needs no PyTorch."""

    def test_bad_orders_say_where_they_are_wrong(self):
        from linkwise.torch.rendezvous import order_of

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "p.json")
            for content in ("", "[]", "{}", '{"rank_order": []}', '{"rank_order": [3]}', "\udcff", "[" * 5000):
                with open(path, "w", errors="surrogateescape") as file:
                    file.write(content)
                with self.assertRaises(ValueError) as e:
                    order_of({"placement": path}, {})
                self.assertIn("p.json", str(e.exception))
            with self.assertRaises(ValueError):
                order_of({"placement": folder + "/none"}, {})
        with self.assertRaises(ValueError) as e:
            order_of({"order": "a/b/a"}, {})
        self.assertIn("named twice", str(e.exception))
        self.assertEqual(order_of({"order": "/a//b/"}, {}), ["a", "b"])

    def test_every_address_gets_one_rank(self):
        import random

        from linkwise.torch.rendezvous import ranked

        dice = random.Random(5)
        for _ in range(500):
            names = [dice.choice(["node", "gpu-", "10.0.0.", "a.b."]) + str(dice.randrange(30)) for _ in range(dice.randrange(12))]
            order = list(dict.fromkeys(dice.choices(names or ["x"], k=6)))
            self.assertEqual(sorted(ranked(names, order)), list(range(len(names))))
        self.assertEqual(ranked(["n10", "n9", "n1"], []), [2, 1, 0])
        self.assertEqual(ranked(["a.x", "a.y"], ["a.y", "a.x"]), [1, 0])
        self.assertEqual(ranked(["10.0.0.2", "10.0.0.1"], ["10.0.0.2"]), [0, 1])


if __name__ == "__main__":
    unittest.main()
