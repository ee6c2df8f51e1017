"""`headwise.hf` on two processes: FSDP of both versions and tensor parallelism."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from warm_python import PROCESSES

pytestmark = pytest.mark.slow
KINDS = ("data parallel", "FSDP 1", "FSDP 2", "FSDP 2, bfloat16", "tensor parallel")
Results = dict[str, Tensor]


def sharded(kind: str, model: Any, folder: Path) -> Any:
    from transformers.distributed import DistributedConfig

    from headwise.nn import HeadAlpha

    if kind == "data parallel":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "FSDP 1":
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    if kind == "tensor parallel":
        config = DistributedConfig(tp_size=2, tp_plan="auto")
        return type(model).from_pretrained(folder, distributed_config=config).train()
    mesh = init_device_mesh("cpu", (2,))
    if kind == "FSDP 2, bfloat16":  # α stays float32, and FSDP wants one dtype at a time
        model.bfloat16()
        alphas = [module for module in model.modules() if isinstance(module, HeadAlpha)]
        fully_shard(alphas, mesh=mesh)
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
    return model


def trained(kind: str, folder: Path, rank: int) -> Results:
    """Train for 25 steps from α = 1; return α, and what was measured, on this process."""
    from headwise.hf import heads, record, sparsify
    from transformers_models import make

    model = make("llama")
    sparsify(model.train())
    if kind != "one process":
        model = sharded(kind, model, folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, eps=1e-4)
    alphas, result = [], {}
    batch = torch.randint(3, 97, (4, 24), generator=torch.Generator().manual_seed(1))
    for step in range(25):
        ids = batch.roll(step, 1)
        if kind not in ("one process", "tensor parallel"):
            ids = ids[2 * rank :][:2]
        output = model(input_ids=ids, labels=ids)
        output.loss.backward()
        if step == 0 and kind in ("one process", "tensor parallel"):
            grads = [x.grad for name, x in model.named_parameters() if "head_alpha" in name]
            result |= {"logits": output.logits.detach(), "α's gradient": torch.stack(grads)}
        optimizer.step()
        optimizer.zero_grad()
        alphas.append(torch.tensor(heads(model).alpha.to_numpy()))
    measured = record(model, {"input_ids": batch})["heads"]
    columns = torch.tensor(measured[["density", "entropy"]].to_numpy(float))
    return {**result, "α": torch.stack(alphas), "density and entropy": columns}


def on_rank(rank: int, folder: Path) -> None:
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"})
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    results = {kind: trained(kind, folder, rank) for kind in ("one process", *KINDS)}
    dist.destroy_process_group()
    torch.save(results, folder / f"{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Results]]:
    """What each of two processes returned, by kind; all kinds in one start of them."""
    from headwise.hf import sparsify
    from transformers_models import make

    folder = tmp_path_factory.mktemp("ranks")
    sparsify(make("llama")).save_pretrained(folder)
    started = [PROCESSES.Process(target=on_rank, args=(rank, folder)) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join()
        assert process.exitcode == 0
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_alpha_as_one_does(ranks: Any, kind: str) -> None:
    is_coarse = kind == "FSDP 2, bfloat16"
    for results in ranks:
        one = results["one process"]
        assert 0.05 < (one["α"] == 1).double().mean() < 0.5
        assert one["α"].amax() > 1.2
        for name, value in results[kind].items():
            atol = 0.1 if is_coarse else 1e-6 if name == "α" else 1e-5
            torch.testing.assert_close(value, one[name], atol=atol, rtol=0)
