"""Entry points import no package that they do not need."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

LIGHT = {  # modules -> packages that they must not load
    "data.builtin, data.sources.archive, data.sources.hub": "torch hydra wandb",
    ", ".join(
        f"tasks.translation.{name}" for name in ("corpus", "prepare", "encoding")
    ): "torch hydra wandb",
    "entmax, nn": "headwise.config hydra omegaconf sentencepiece datasets wandb triton",
    "hf": "headwise.config headwise.analysis hydra omegaconf datasets wandb transformers.trainer",
    "commands.runs": "torch pandas matplotlib",
    "runs.record": "torch pandas hydra",
    "tasks.load, commands.translate, commands.analyze": "torch._dynamo",
    "commands.outcome, track": "matplotlib pandas seaborn wandb",
}


@pytest.mark.parametrize("modules", LIGHT)
def test_heavy_packages_are_not_imported(modules):
    names = ", ".join(f"headwise.{name}" for name in modules.split(", "))
    code = f"import sys, {names}; print(sorted(set({LIGHT[modules].split()}) & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_missing_transformers_are_named():
    code = "import sys; sys.modules['transformers'] = None; import headwise.hf"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1].startswith("ImportError: headwise.hf needs")
    assert "pip install 'headwise[hf]'" in run.stderr


def test_formulas_of_flops_need_no_other_import():
    code = """from headwise.ops.flops import register_flops
register_flops()
import torch
from headwise.ops import linear
from torch.utils.flop_counter import flop_registry
ours, theirs = torch.ops.headwise, [torch.ops.mkldnn._linear_pointwise] if linear.DTYPES else []
counted = {ours.attention, ours.attention_backward, ours.attention_of_few, *theirs}
print(counted - flop_registry.keys())"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
