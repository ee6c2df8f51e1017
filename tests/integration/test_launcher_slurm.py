"""The launcher of Slurm, on a real Slurm of one node."""

import os
import shutil
import subprocess

import pytest

from launched_sweeps import Sweeps, straight_outputs
from training_runs import ROOT, run_outputs

NEEDED = ("slurmctld", "slurmd", "munged", "srun")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(shutil.which, NEEDED)), reason="needs Slurm, which `make slurm` installs"
    ),
]


@pytest.fixture
def sweeps(tmp_path):
    script, folder = str(ROOT / "tests" / "slurm.sh"), str(tmp_path / "slurm")
    subprocess.run([script, "start", folder], check=True)
    sweeps = Sweeps(tmp_path)
    sweeps.environment["SLURM_CONF"] = f"{folder}/slurm.conf"
    yield sweeps
    sweeps.close()
    subprocess.run([script, "stop", folder], check=True)


def test_requeued_job_ends_with_the_same_bits_in_one_row(sweeps, tmp_path):
    sweeps.slow.touch()
    resources = ("hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1")
    started = sweeps.sweep("submitit_slurm", "seed=1", *resources)
    started.wait_until(lambda: sweeps.have_trained("submitit_slurm", 1))
    (run,) = sweeps.runs("submitit_slurm")
    environment = {**os.environ, **sweeps.environment}
    queue = subprocess.run(
        ["squeue", "--noheader", "--format=%i"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    subprocess.run(["scontrol", "requeue", queue.stdout.strip()], env=environment, check=True)
    started.wait_until((run / "checkpoints" / "last.pt").is_file)
    sweeps.slow.unlink()
    result = started.wait()
    assert result.code == 0, result.output
    log = (run / "log.txt").read_text()
    assert "stopped at update" in log
    assert run_outputs(run) == straight_outputs(tmp_path / "straight")[0]
    assert [job.get("run") for job in sweeps.records("submitit_slurm")] == [str(run)]
