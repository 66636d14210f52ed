# SPDX-License-Identifier: Apache-2.0
"""Which steps the callbacks report, with stand-ins for the trainer and for PyTorch's hooks. `tests/torch` has the real ones."""

import gc
import importlib
import sys
import types
import unittest
from unittest import mock

import linkwise_step


class Reported:
    """Steps as the plugin counts them: a begin without an end restarts the step, an end without a begin has no effect."""

    def __init__(self, clock):
        self.clock, self.begun, self.steps = clock, None, []

    def begin(self):
        self.begun = self.clock()

    def end(self):
        if self.begun is not None:
            self.steps.append(self.clock() - self.begun)
        self.begun = None


class Lightning(unittest.TestCase):
    """A stand-in for Lightning's loop: the hooks in its order, `global_step` counts optimizer steps, a batch takes 1 s, a validation 100 s."""

    def setUp(self):
        package = {name: types.ModuleType(name) for name in ("lightning", "lightning.pytorch", "lightning.pytorch.callbacks")}
        package["lightning.pytorch.callbacks"].Callback = type("Callback", (), {})
        saved = sys.modules.pop("linkwise.torch.lightning", None)
        with mock.patch.dict(sys.modules, package):
            self.callback = importlib.import_module("linkwise.torch.lightning").LightningCallback()
            del sys.modules["linkwise.torch.lightning"]
        if saved is not None:
            sys.modules["linkwise.torch.lightning"] = saved
        self.now = 0.0
        self.reported = Reported(lambda: self.now)

    def fit(self, batches, accumulate, validate_after, fails_after=None):
        """The reported steps, in batches."""
        trainer = types.SimpleNamespace(global_step=0)
        with mock.patch.multiple(linkwise_step, begin=self.reported.begin, end=self.reported.end):
            self.callback.on_validation_start(trainer)  # Lightning's check before the training
            for batch in range(1, batches + 1):
                self.callback.on_train_batch_start(trainer, None, None, batch)
                self.now += 1.0
                if batch == fails_after:
                    self.callback.on_exception(trainer, None, RuntimeError())
                    return self.reported.steps
                trainer.global_step += batch % accumulate == 0
                self.callback.on_train_batch_end(trainer, None, None, None, batch)
                if batch in validate_after:
                    self.callback.on_validation_start(trainer, None)
                    self.now += 100.0
            self.callback.on_train_end(trainer)
        return self.reported.steps

    def test_every_step_has_all_its_batches(self):
        self.assertEqual(self.fit(12, 3, ()), [3.0] * 4)

    def test_a_validation_between_steps_drops_none(self):
        self.assertEqual(self.fit(12, 3, (3, 12)), [3.0] * 4)

    def test_a_validation_inside_a_step_drops_the_whole_step(self):
        for where in (4, 5):
            with self.subTest(where=where):
                self.setUp()
                self.assertEqual(self.fit(12, 3, (where,)), [3.0] * 3)

    def test_validations_in_every_step_leave_no_step(self):
        self.assertEqual(self.fit(12, 3, (1, 2, 4, 8, 10, 11)), [])

    def test_a_second_fit_begins_anew(self):
        self.assertEqual(self.fit(4, 4, (), fails_after=2), [])
        self.assertEqual(self.fit(8, 4, ()), [4.0, 4.0])


class Auto(unittest.TestCase):
    """`auto()` with a stand-in for PyTorch's hooks."""

    def setUp(self):
        self.hooks = []

        def register(hook):
            self.hooks.append(hook)
            return types.SimpleNamespace(remove=lambda: self.hooks.remove(hook))

        package = {name: types.ModuleType(name) for name in ("torch", "torch.optim", "torch.optim.optimizer")}
        package["torch.optim.optimizer"].register_optimizer_step_post_hook = register
        self.now = 0.0
        self.reported = Reported(lambda: self.now)
        for patch in (
            mock.patch.dict(sys.modules, package),
            mock.patch.multiple(linkwise_step, begin=self.reported.begin, end=self.reported.end),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def step(self, optimizer, seconds=1.0):
        self.now += seconds
        for hook in list(self.hooks):
            hook(optimizer, (), {})

    def test_after_the_first_optimizer_is_gone_another_counts(self):
        from linkwise.torch.marks import auto

        class Optimizer:
            pass

        first, other = Optimizer(), Optimizer()
        with auto():
            for _ in range(3):
                self.step(first)
                self.step(other)
            self.assertEqual(self.reported.steps, [2.0, 2.0])
            del first
            gc.collect()
            self.step(other, 50.0)  # the time without the first belongs to no step
            self.step(other)
            self.step(other)
            self.assertEqual(self.reported.steps, [2.0, 2.0, 1.0, 1.0])
        self.assertEqual(self.hooks, [])


if __name__ == "__main__":
    unittest.main()
