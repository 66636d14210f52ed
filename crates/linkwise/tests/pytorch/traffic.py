"""All-to-all of PyTorch with known bytes: `traffic.py FILE`, run by torchrun. FILE has a line of JSON per call: bytes from rank (row) to rank (column).
Data are made and compared on the CPU, because the emulation skips the program's kernels."""
import json
import os
import sys

import torch
import torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(gpu)
dist.init_process_group("nccl")


def known(call, source, target, n):
    return ((torch.arange(n) * 2654435761 + call * 104729 + source * 1000003 + target * 7919) >> 7).to(torch.uint8)


wrong = 0
with open(sys.argv[1], encoding="utf-8") as file:
    calls = [json.loads(line) for line in file]
for call, sizes in enumerate(calls):
    sent = torch.cat([known(call, rank, j, sizes[rank][j]) for j in range(world)]).to(gpu)
    counts = [sizes[i][rank] for i in range(world)]
    # Memory that was not written is 0xff after this copy, so that a call without effect is wrong.
    received = torch.full((sum(counts),), 255, dtype=torch.uint8).to(gpu)
    dist.all_to_all_single(received, sent, counts, sizes[rank])
    right = torch.cat([known(call, i, rank, counts[i]) for i in range(world)])
    wrong += int((received.cpu() != right).sum())
print(f"rank {rank}: {wrong} wrong bytes in {len(calls)} calls", flush=True)
dist.barrier()
dist.destroy_process_group()
sys.exit(1 if wrong else 0)
