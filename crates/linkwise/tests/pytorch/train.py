"""Three steps of each wrapper that trains a model in parallel, run by torchrun. The kernels of the model are skipped: only the communication is real."""
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

rank = int(os.environ["RANK"])
gpu = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(gpu)
dist.init_process_group("nccl", device_id=gpu)


def model():
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    return torch.nn.Sequential(*layers).to(gpu)


def steps(name, wrapped):
    opt = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for _ in range(3):
        opt.zero_grad()
        wrapped(torch.zeros(16, 256, device=gpu)).sum().backward()
        opt.step()
    torch.cuda.synchronize()
    if rank == 0:
        print(f"{name}: 3 steps", flush=True)


steps("ddp", DistributedDataParallel(model(), device_ids=[gpu.index]))
steps("fsdp", FullyShardedDataParallel(model(), device_id=gpu))
m = model()
for layer in m:
    fully_shard(layer)
fully_shard(m)
steps("fsdp2", m)
dist.barrier()
dist.destroy_process_group()
