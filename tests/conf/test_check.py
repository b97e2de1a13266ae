"""Messages on classes of a person's own that are not there, or that fail while they are imported."""

import re
from pathlib import Path

import pytest

from flnl.config import compose
from flnl.config.check import check_config
from flnl.core.errors import UserError

LOSS = "+method.local.mine={_target_: %s}"
MODULES = {
    "lab_broken": "def f(:\n",
    "lab_missing": "import a_package_that_nobody_has\n",
    "lab_raising": "raise RuntimeError('no\\ncalibration')\n",
    "lab_empty": "",
}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("lab_broken.Loss", "lab_broken cannot be imported (SyntaxError: "),
        ("lab_missing.Loss", "(ModuleNotFoundError: No module named 'a_package_that_nobody_has')"),
        ("lab_raising.Loss", "(RuntimeError: no calibration)"),
        ("lab_empty.Loss", "there is no such class"),
        ("lab_empty.inner.Loss", "there is no such class"),
        ("lab_of_nobody.Loss", "there is no such class"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(
    target: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=re.escape(f"_target_={target}: ") + ".*" + re.escape(reason)):
        check_config(compose.load(["method=fedavg", LOSS % target]))
