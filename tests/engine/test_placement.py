"""Where a network computes, and in which precision, does not depend on who has started the process."""

from collections.abc import Mapping

import pytest
import torch

from flnl.core.errors import UserError
from flnl.engine.placement import placement_for

LAUNCHERS = {
    "slurm": {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "3", "SLURM_NODEID": "0"}
    | {"SLURM_JOB_NAME": "train"},
    "lsf": {"LSB_JOBID": "77", "LSB_DJOB_RANKFILE": "/nowhere", "JSM_NAMESPACE_LOCAL_RANK": "3"}
    | {"JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_RANK": "3"},
    "mpi": {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3", "PMI_SIZE": "4", "PMI_RANK": "3"},
    "torchrun": {"TORCHELASTIC_RUN_ID": "77", "RANK": "3", "LOCAL_RANK": "3", "GROUP_RANK": "0", "WORLD_SIZE": "4"}
    | {"LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
    "fabric run": {"LT_CLI_USED": "1", "LT_ACCELERATOR": "cuda", "LT_DEVICES": "4", "LT_NUM_NODES": "2"}
    | {"LT_STRATEGY": "ddp", "LT_PRECISION": "16-mixed"},
    "left of fabric run": {"LT_DEVICES": "4", "LT_NUM_NODES": "2", "LT_STRATEGY": "ddp", "LT_PRECISION": "16-mixed"},
    "kubeflow": {"KUBERNETES_PORT": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "3"},
    "tpu": {"TPU_WORKER_ID": "3", "XRT_TPU_CONFIG": "node1", "PJRT_DEVICE": "TPU"},
}
"""What launchers set in the environment of their processes, here of the last of four."""


@pytest.mark.parametrize("variables", LAUNCHERS.values(), ids=LAUNCHERS)
@pytest.mark.parametrize("precision", [32, 64, "bf16"])
def test_launchers_variables_change_nothing(
    precision: int | str, variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    product = {32: torch.float32, 64: torch.float32, "bf16": torch.bfloat16}[precision]  # of float32
    made = {32: torch.float32, 64: torch.float64, "bf16": torch.float32}[precision]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    placement = placement_for("cpu", precision)
    assert placement.device == torch.device("cpu")
    assert placement.precision == {32: "32-true", 64: "64-true", "bf16": "bf16-mixed"}[precision]
    with placement.autocast():
        assert (torch.ones(2, 2, dtype=torch.float32) @ torch.ones(2, 2, dtype=torch.float32)).dtype == product
        assert torch.ones(1).dtype == made
    assert torch.ones(1).dtype == torch.float32


def test_tf32_is_a_gpus():
    with pytest.raises(UserError, match=r"precision=tf32, but this run is on a CPU.*: use precision=32"):
        placement_for("cpu", "tf32")
