"""`headwise.hf` on two processes: FSDP of both versions and tensor parallelism."""

import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from transformers.distributed import DistributedConfig

from headwise.hf import heads, record, sparsify
from headwise.nn import HeadAlpha
from transformers_models import make

pytestmark = pytest.mark.slow
KINDS = ("FSDP 1", "FSDP 2", "FSDP 2, bfloat16", "tensor parallel")
IDS = torch.randint(3, 97, (4, 24), generator=torch.Generator().manual_seed(1))


def parallel(kind, model, folder):
    if kind == "FSDP 1":
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    if kind == "tensor parallel":
        config = DistributedConfig(tp_size=2, tp_plan="auto")
        return type(model).from_pretrained(folder, distributed_config=config).train()
    mesh = init_device_mesh("cpu", (2,))
    if kind == "FSDP 2, bfloat16":  # α stays float32, and FSDP wants one dtype at a time
        model.bfloat16()
        fully_shard([part for part in model.modules() if isinstance(part, HeadAlpha)], mesh=mesh)
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
    return model


def trained(kind, folder, rank):
    """Train for 25 steps from α = 1; return α of each step, and results of this process."""
    model = sparsify(make("llama").train())
    model = model if kind == "one process" else parallel(kind, model, folder)
    # eps is large, so that steps depend on the scale of gradients
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, eps=1e-4)
    has_all_rows = kind in ("one process", "tensor parallel")
    alphas = []
    for step in range(25):
        ids = IDS.roll(step, 1) if has_all_rows else IDS.roll(step, 1)[2 * rank :][:2]
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        alphas.append(torch.tensor(heads(model).alpha.to_numpy()))
    table = record(model, {"input_ids": IDS})["heads"][["density", "entropy"]]
    return {"α": torch.stack(alphas), "measured": torch.tensor(table.to_numpy(float))}


def compare(rank, folder):
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    one = trained("one process", folder, rank)
    assert 0.05 < (one["α"] == 1).double().mean() < 0.5  # at a bound
    for kind in KINDS:
        for name, value in trained(kind, folder, rank).items():
            atol = 0.1 if "bfloat16" in kind else 1e-6 if name == "α" else 1e-5
            error = (value - one[name]).abs().max()
            assert error < atol, f"{kind}: {name} differs by {error}"
    dist.destroy_process_group()
    os._exit(0)  # autograd's thread may still release Python objects, which aborts while unwinding


def test_two_processes_train_alpha_as_one_does(tmp_path):
    sparsify(make("llama")).save_pretrained(tmp_path)
    torch.multiprocessing.start_processes(compare, (tmp_path,), 2, start_method="forkserver")
