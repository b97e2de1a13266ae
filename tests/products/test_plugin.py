"""The package of examples: each part does what it says, and all of them run without being registered anywhere."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import trim_mean

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.core.messages import Clock
from flnl.core.payload import Payload
from flnl.data.partition import Pool
from flnl.run.train import train
from tests.products.conftest import PLUGIN
from tests.registry import TINY

ROOT = Path(__file__).resolve().parents[2]
SEARCH = "hydra.searchpath=[pkg://my_parts.conf]"
EVERYTHING = (
    "method=balanced",
    "method/aggregator=inner_mean",
    "method/sampler=in_turn",
    "dataset=stripes",
    "dataset.train_size=160",
    "dataset.test_size=40",
    "partition=in_order",
    "noise=tired",
    "model=separable",
)
NO_DIGITS = [word for word in TINY if not word.startswith(("dataset.", "model"))]


pytestmark = pytest.mark.usefixtures("plugin")


def ran(folder: Path, *words: str) -> Any:
    words = (*words, f"output={folder}", f"cache={folder.parent}")
    outcome = train(compose.load([SEARCH, *words]), list(words))
    return torch.load(folder / "model.pt", weights_only=True)["weights"], outcome.record.raw


def test_all_parts_run_together_and_resume_to_the_bit(tmp_path: Path) -> None:
    words = [*NO_DIGITS, *EVERYTHING, "rounds=3"]
    whole, record = ran(tmp_path / "whole", *words)
    ran(tmp_path / "parts", *words, "max_rounds=1")
    resumed, _ = ran(tmp_path / "parts", *words, f"resume={tmp_path / 'parts'}")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    said = str(record["stages"])
    for part in ("InTurn", "logit_adjustment(strength=1.0)", "class_prior", "InnerMean(share=0.1)"):
        assert part in said
    assert record["classes"] == ["horizontal", "vertical", "falling", "rising"]
    assert 0.1 < record["metrics"]["noise_given"] < 0.4


def test_the_loss_stacks_and_goes_with_a_method_that_mixes(tmp_path: Path) -> None:
    words = [*TINY, "method=fedcorr", "method/local=[jensen_shannon]", "method.T1=1", "method.T2=1", "method.T3=2"]
    alone, _ = ran(tmp_path / "alone", *words, "precision=64")
    stacked, _ = ran(tmp_path / "stacked", *words, "precision=64", "executor=stacked")
    for name in alone:
        torch.testing.assert_close(stacked[name], alone[name], rtol=1e-9, atol=1e-9)


def test_a_value_that_the_type_excludes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"jensen_shannon\.weight=1\.5"):
        ran(tmp_path, *TINY, "method/local=[jensen_shannon]", "method.local.jensen_shannon.weight=1.5")


def test_the_loss_is_the_divergence_also_of_mixed_targets() -> None:
    from my_parts.loss import JensenShannon

    rng = np.random.default_rng(1)
    logits = torch.from_numpy(rng.normal(size=(5, 4)))
    shares = logits.softmax(1).numpy()
    mixed = torch.from_numpy(rng.dirichlet(np.ones(4), 5))
    for targets, rows in ((torch.tensor([0, 1, 2, 3, 0]), np.eye(4)[[0, 1, 2, 3, 0]]), (mixed, mixed.numpy())):
        step: Any = SimpleNamespace(logits=logits, targets=targets)
        loss, _ = JensenShannon(weight=0.5)(step, None)
        np.testing.assert_allclose(loss, jensenshannon(rows, shares, axis=1) ** 2 / (0.5 * np.log(2)), rtol=1e-9)
    step = SimpleNamespace(logits=logits, targets=torch.zeros(5, dtype=torch.int64))
    near_cross_entropy, _ = JensenShannon(weight=1e-7)(step, None)
    np.testing.assert_allclose(near_cross_entropy, -np.log(shares[:, 0]), rtol=1e-4)


def test_the_loss_of_a_certain_prediction_has_a_finite_gradient() -> None:
    """In float32, shares below exp(-104) are 0. A wrong prediction has the largest loss, 2 ln 2 / Z; both are flat."""
    from my_parts.loss import JensenShannon

    logits = torch.tensor([[200.0, 0.0, 0.0], [200.0, 0.0, 0.0]], requires_grad=True)
    step: Any = SimpleNamespace(logits=logits, targets=torch.tensor([0, 1]))
    loss, _ = JensenShannon(weight=0.5)(step, None)
    np.testing.assert_allclose(loss.detach(), [0.0, 2.0], atol=1e-6)
    loss.sum().backward()
    torch.testing.assert_close(logits.grad, torch.zeros(2, 3))


def test_the_inner_mean_is_scipys() -> None:
    from my_parts.aggregator import InnerMean

    rng = np.random.default_rng(2)
    models = [{"w": torch.from_numpy(rng.normal(size=(2, 3))), "n": torch.tensor(k)} for k in range(7)]
    results: list[Any] = [SimpleNamespace(params=model) for model in models]
    part = InnerMean(share=0.3)
    blocks = [part.block(models[0], results[:5], Payload()), part.block(models[0], results[5:], Payload())]
    combined = part.combine(models[0], blocks, Payload()).params
    np.testing.assert_allclose(combined["w"], trim_mean(np.stack([model["w"] for model in models]), 0.3))
    assert combined["n"] == 6
    assert part.combine(models[0], [], Payload()).params is models[0]


def test_clients_come_in_turn() -> None:
    from my_parts.sampler import InTurn

    part = InTurn(fraction=0.4)
    rounds = [part(SimpleNamespace(clients=(0, 1, 2, 3, 5), clock=Clock(r, 1))) for r in range(3)]  # type: ignore[arg-type]
    assert rounds == [[0, 1], [2, 3], [5, 0]]


def test_noise_repeats_the_label_before_in_the_last_samples() -> None:
    from my_parts.noise import Tired

    labels, rng = np.array([3, 1, 2, 0, 4]), np.random.default_rng(0)
    part, dataset = Tired(noisy=0.5, share=0.4), None
    assert part(labels, 0.4, dataset, rng).tolist() == [3, 1, 2, 2, 0]  # type: ignore[arg-type]
    assert part(labels, 0.0, dataset, rng).tolist() == labels.tolist()  # type: ignore[arg-type]
    assert sorted(part(labels, 1.0, dataset, rng)) == sorted(labels)  # type: ignore[arg-type]
    assert part.rates(9, 5)[:4].tolist() == part.rates(4, 5).tolist()
    assert set(part.rates(50, 5)) == {0.0, 0.4}


def test_clients_collect_in_order() -> None:
    from my_parts.partition import InOrder

    split = InOrder(num_clients=3)(Pool(np.zeros(8, np.int64), 1), np.random.default_rng(0))
    assert split.owner.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    with pytest.raises(UserError, match="there are only 2 samples"):
        InOrder(num_clients=3)(Pool(np.zeros(2, np.int64), 1), np.random.default_rng(0))


def test_a_method_of_two_stages_corrects_labels_and_then_trains_on_small_losses(tmp_path: Path) -> None:
    words = [*TINY, "method=self_training", "method.T_wu=3", "method.T=2", "method.threshold=0.2", "precision=64"]
    alone, record = ran(tmp_path / "alone", *words)
    stacked, _ = ran(tmp_path / "stacked", *words, "executor=stacked")
    for name in alone:
        torch.testing.assert_close(stacked[name], alone[name], rtol=1e-9, atol=1e-9)
    assert record["metrics"]["changed"] > 0
    warmup, usual = record["stages"]
    assert "Adam" in str(warmup)
    assert "confident after the last round" in str(warmup)
    assert "SmallLoss(share=0.8)" in str(usual)
    assert "Adam" not in str(usual)
    ran(tmp_path / "parts", *words, "max_rounds=3")
    resumed, _ = ran(tmp_path / "parts", *words, f"resume={tmp_path / 'parts'}")
    assert all(torch.equal(alone[name], resumed[name]) for name in alone)


def test_confident_predictions_replace_labels_and_small_losses_are_kept() -> None:
    from my_parts.batch import SmallLoss
    from my_parts.corrector import Confident

    shares = torch.tensor([[0.6, 0.3, 0.1], [0.4, 0.35, 0.25], [0.1, 0.2, 0.7], [0.5, 0.3, 0.2]])
    labels = torch.tensor([1, 1, 2, 2])
    network: Any = SimpleNamespace(logits=lambda samples: shares.log(), received=lambda task: shares.log())
    task: Any = SimpleNamespace(client=3, samples=labels, labels=labels)
    found = Confident(threshold=0.5).correct(network, task, "confident")
    assert (found.client, found.labels.tolist()) == (3, [0, 1, 2, 2])  # 0.5 is not above it
    for share, kept in ((0.5, [2, 1]), (0.8, [2, 1, 0]), (0.1, [2]), (1.0, [2, 1, 0, 3])):  # losses of .3, .35, .7, .2
        (phase,) = SmallLoss(share=share).phases(network, task, 0, 1)
        assert phase.positions is not None
        assert phase.positions.tolist() == kept


def test_the_page_shows_the_files() -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    files = [path.read_text().strip() for path in (PLUGIN / "my_parts").rglob("*.*") if path.suffix in (".py", ".yaml")]
    shown = re.findall(r"```(?:python|yaml)\n(.*?)```", page, re.DOTALL)
    assert len(shown) > 8
    assert [block for block in shown if block.strip() not in files and "my-thesis" not in block] == []


def test_presets_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "extending.md").read_text()
    (preset,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "my-thesis" in block]
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "mine.yaml").write_text(preset)
    search = f"hydra.searchpath=[file://{tmp_path}]"
    cfg = compose.load([search, "local=mine", "wandb.mode=disabled"])
    assert (cfg.data_seed, cfg.wandb.project, cfg.wandb.mode) == (3, "my-thesis", "disabled")
    assert compose.load([search]).wandb.project == "flnl"
