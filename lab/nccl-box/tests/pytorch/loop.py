"""A training loop of all-reduces, whose steps are reported to linkwise: `loop.py STEPS BYTES`. Rank 0 prints the seconds of every step as JSON."""
import json
import os
import sys
import time

import torch
import torch.distributed as dist

import linkwise_step

steps, size = int(sys.argv[1]), int(sys.argv[2])
gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(gpu)
dist.init_process_group("nccl", device_id=gpu)
gradients = torch.empty(size // 4, dtype=torch.float32, device=gpu)
seconds = []
for _ in range(steps):
    with linkwise_step.step():
        begin = time.perf_counter()
        dist.all_reduce(gradients)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
if dist.get_rank() == 0:
    print("steps " + json.dumps(seconds), flush=True)
dist.barrier()
dist.destroy_process_group()
