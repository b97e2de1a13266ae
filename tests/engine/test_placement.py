"""Where a network computes, and in which precision, does not depend on who has started the process."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import torch

from flnl.core.errors import UserError
from flnl.engine.placement import device_for, placement_for, taken, visible

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


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("two_gpus")
def test_one_of_several_gpus_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [device_for(device) for device in ("auto", "cuda", "cuda:0", "cuda:1", "cpu")]
    assert [str(device) for device in found] == ["cuda:0", "cuda:0", "cuda:0", "cuda:1", "cpu"]
    with pytest.raises(
        UserError, match=r"^device=cuda:2, but torch finds only cuda:0 to cuda:1 here: use one of these$"
    ):
        device_for("cuda:2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(
        UserError, match="device=cuda:1, but torch finds only cuda:0 here with CUDA_VISIBLE_DEVICES=3: "
    ):
        device_for("cuda:1")


@pytest.mark.usefixtures("two_gpus")
def test_gpus_are_called_as_other_processes_would_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert visible("cuda") == ["0", "1"]
    for text, names in (
        ("2,3", ["2", "3"]),
        ("GPU-8932f937, 5", ["GPU-8932f937", "5"]),
        ("3,1,-1,0", ["3", "1"]),  # CUDA ends at the first that there is not
        ("3", ["0", "1"]),  # set since torch has looked
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
        assert visible("cuda") == names, text


@pytest.mark.usefixtures("two_gpus")
def test_memory_that_others_hold_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has reserved is its own."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    held = SimpleNamespace(free=30, own=0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (held.free * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: held.own * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA X")
    assert taken(torch.device("cuda", 1)) == "other processes hold 50 of the 80 GiB of GPU 3 (NVIDIA X)"
    held.own = 20
    assert taken(torch.device("cuda", 1)) is None
    assert taken(torch.device("cpu")) is None
