"""Square roots of one machine are those of every other."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch

import flnl
from flnl.numerics.roots import square_root

OF_THE_PROCESSOR = {"sqrt", "sqrt_", "tan", "atan", "arctan", "asin", "arcsin", "acos", "arccos"}
"""Functions of tensors that MKL begins with an approximation by the processor."""
EXACT = {"math", "np", "cmath"}
"""Modules whose functions of these names are not MKL's."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_made_of_ieee_operations(dtype: torch.dtype) -> None:
    """MKL's own has another last bit in some numbers, in a sixth of those of 32 bits where MKL_CBWR=COMPATIBLE."""
    x = 3 * torch.rand(100_003, dtype=dtype, generator=torch.Generator().manual_seed(0))
    one = x.numpy().dtype.type(1)
    assert (square_root(x).numpy() == one / (one / np.sqrt(x.numpy()))).all()


def test_its_gradient_is_that_of_a_root() -> None:
    x = torch.tensor([0.25, 9.0], dtype=torch.float64, requires_grad=True)
    square_root(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([1.0, 1 / 6], dtype=torch.float64))


def called(tree: ast.AST) -> set[str]:
    """The functions of tensors in a module that depend on the processor."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {
        one.attr
        for one in calls
        if isinstance(one, ast.Attribute) and one.attr in OF_THE_PROCESSOR
        if not (isinstance(one.value, ast.Name) and one.value.id in EXACT)
    }


def test_such_a_call_is_found() -> None:
    assert called(ast.parse("torch.acos(x); x.sqrt(); np.sqrt(x); math.tan(1); torch.rsqrt(x)")) == {"acos", "sqrt"}


def test_no_tensor_function_depends_on_the_processor() -> None:
    package = Path(flnl.__file__).parent
    found = {str(file.relative_to(package)): called(ast.parse(file.read_text())) for file in package.rglob("*.py")}
    assert {file: names for file, names in found.items() if names} == {}
