# SPDX-License-Identifier: Apache-2.0
"""Three steps of known collectives; each rank leaves PyTorch's flight record as JSON and the profiler's trace in the folder that is named."""

import os
import sys

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

folder = sys.argv[1]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
part, whole = torch.ones(1 << 20, device=device), torch.ones(world << 20, device=device)  # 4 MiB, and 4 MiB of each rank


def left(p):
    p.export_chrome_trace(f"{folder}/profiler/trace-{rank}.json")


with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=0, active=3, repeat=1), on_trace_ready=left) as p:
    for _ in range(3):
        dist.all_reduce(part)
        dist.all_reduce(part)
        dist.all_gather_into_tensor(whole, part)
        dist.reduce_scatter_tensor(part, whole)
        p.step()
torch.cuda.synchronize()
recorder = torch._C._distributed_c10d
dump = recorder._dump_nccl_trace_json()
dump = dump if isinstance(dump, bytes) else dump.encode()
if b'"entries"' not in dump:  # PyTorch 2.15 and later: NCCL is the backend nccl2, and its collectives are there
    dump = recorder._dump_fr_trace_json(backend="nccl2")
with open(f"{folder}/flight/rank-{rank}.json", "wb") as file:
    file.write(dump)
dist.barrier()
dist.destroy_process_group()
