# SPDX-License-Identifier: Apache-2.0
"""Steps that real training loops report to the real plugin: PyTorch alone, Lightning, Transformers, Accelerate."""

import importlib.util
import unittest

from with_plugin import LIBRARY, steps

LOOP = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    time.sleep(0.01)
    optimizer.step()
"""

NET = """
import torch, lightning
from linkwise.torch import LightningCallback
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def training_step(self, batch, _):
        time.sleep(0.01)
        return self.layer(batch[0]).sum()
    def validation_step(self, batch, _):
        time.sleep(0.3)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(12, 8)), batch_size=1)
few = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(2, 8)), batch_size=1)
def trained(**more):
    trainer = lightning.Trainer(accumulate_grad_batches=3, accelerator="cpu", devices=1, callbacks=[LightningCallback()], logger=False,
                                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **more)
    trainer.fit(Net(), data, few)
    return trainer
"""


def has(package):
    return unittest.skipUnless(importlib.util.find_spec(package), f"no {package}")


@unittest.skipUnless(LIBRARY, "no plugin is built")
class Steps(unittest.TestCase):
    def expect(self, times, count, at_least_us):
        self.assertEqual(len(times), count, times)
        self.assertTrue(all(t >= at_least_us for t in times), times)

    @has("torch")
    def test_a_context_per_step(self):
        code = "from linkwise.torch import step\nfor _ in range(5):\n    with step():\n        train()\n"
        self.expect(steps(LOOP + code), 5, 10_000)

    @has("torch")
    def test_auto_needs_no_change_of_the_loop_and_leaves_pauses_out(self):
        code = """
import linkwise.torch
with linkwise.torch.auto() as marks:
    for i in range(6):                # five times from one optimizer step to the next
        train()
    marks.pause()
    time.sleep(1.0)                   # an evaluation
    for i in range(3):                # two more
        train()
train(); train()                      # nothing is reported any more
"""
        times = steps(LOOP + code)
        self.expect(times, 7, 10_000)
        self.assertLess(max(times), 900_000, "the pause is in a step")

    @has("torch")
    def test_of_two_optimizers_one_counts(self):
        code = """
import linkwise.torch
other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
with linkwise.torch.auto():
    for i in range(4):
        train(); other.step()
"""
        self.expect(steps(LOOP + code), 3, 10_000)

    @has("torch")
    def test_after_the_first_optimizer_is_gone_another_counts(self):
        code = """
import gc, linkwise.torch
with linkwise.torch.auto():
    for i in range(3):                # two steps of the first
        train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    time.sleep(1.0)
    for i in range(4):                # three of the second
        train()
"""
        times = steps(LOOP + code)
        self.expect(times, 5, 10_000)
        self.assertLess(max(times), 900_000, "the time between the optimizers is in a step")

    @has("lightning")
    def test_lightning_counts_optimizer_steps_and_not_batches(self):
        code = NET + """
trainer = trained(max_epochs=2)
assert trainer.global_step == 8
"""
        times = steps(code)
        self.expect(times, 8, 30_000)
        self.assertLess(sorted(times)[4], 300_000, "validation is in the steps")

    @has("lightning")
    def test_lightnings_validation_inside_a_step_drops_the_whole_step(self):
        # Steps are batches 1-3, 4-6, 7-9 and 10-12; validations come after 4, 8 and 12.
        code = NET + """
trainer = trained(max_epochs=1, val_check_interval=4)
assert trainer.global_step == 4
"""
        times = steps(code)
        self.expect(times, 2, 30_000)
        self.assertLess(max(times), 300_000, "validation is in a step")

    @has("transformers")
    @has("accelerate")
    def test_transformers_counts_optimizer_steps_and_not_batches(self):
        code = """
import torch, transformers
from linkwise.torch import TransformersCallback
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x):
        time.sleep(0.01)
        return {"loss": self.layer(x).sum()}
class Data(torch.utils.data.Dataset):
    def __len__(self): return 12
    def __getitem__(self, i): return {"x": torch.randn(8)}
options = transformers.TrainingArguments(output_dir="out", per_device_train_batch_size=1, gradient_accumulation_steps=3, num_train_epochs=2,
                                         report_to=[], save_strategy="no", logging_strategy="no", use_cpu=True, disable_tqdm=True)
trainer = transformers.Trainer(Net(), options, train_dataset=Data(), callbacks=[TransformersCallback()])
trainer.train()
assert trainer.state.global_step == 8
"""
        self.expect(steps(code), 8, 30_000)

    @has("accelerate")
    def test_accelerate_counts_optimizer_steps_and_not_batches(self):
        code = """
import accelerate
from linkwise.torch import accelerate_steps
accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
prepared, opt = accelerator.prepare(model, optimizer)
with accelerate_steps(opt):
    for _ in range(8):                # four optimizer steps: three times between them
        with accelerator.accumulate(prepared):
            loss = prepared(torch.randn(4, 8)).sum()
            accelerator.backward(loss)
            time.sleep(0.01)
            opt.step()
            opt.zero_grad()
"""
        self.expect(steps(LOOP + code), 3, 20_000)

    @has("torch")
    def test_without_the_plugin_nothing_is_reported_and_nothing_fails(self):
        import linkwise.torch
        import torch

        self.assertIsNone(linkwise.torch.library())
        optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
        with linkwise.torch.auto(optimizer) as marks:
            optimizer.step()
            marks.pause()
        with self.assertRaises(TypeError):
            linkwise.torch.accelerate_steps(object())
        with self.assertRaises(AttributeError):
            linkwise.torch.no_such_name


if __name__ == "__main__":
    unittest.main()
