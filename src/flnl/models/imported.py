"""A network of the user's own: any ``torch.nn.Module``, by the dotted path of its class or of a factory."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator
from torch import nn

from flnl.console.suggestions import closest, did_you_mean
from flnl.core.errors import UserError, in_one_line
from flnl.core.importing import import_own
from flnl.core.ranges import NamesCode
from flnl.models.layers import Shape
from flnl.models.probe import probe

EXAMPLE = "the dotted path of a network, as in model.path=my_nets.Net"


def importable(path: str) -> Callable[..., Any]:
    """The class or factory at a dotted path.

    Raises:
        ValueError: if there is none, or it makes no ``torch.nn.Module``.
    """
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"must be {EXAMPLE}")
    found: Any
    found, rest = _module(parts)
    for number, name in enumerate(rest):
        if not hasattr(found, name):
            where = ".".join(parts[: len(parts) - len(rest) + number])
            close = closest(name, vars(found) if hasattr(found, "__dict__") else ())
            raise ValueError(f"{where} has no {name}{f'; did you mean {close}?' if close else ''}")
        found = getattr(found, name)
    if isinstance(found, type) and not issubclass(found, nn.Module):
        raise ValueError("is a class, but no torch.nn.Module")
    if not callable(found):
        raise ValueError("is no class and no function that makes a torch.nn.Module")
    if isinstance(found, nn.Module):
        raise ValueError("is a network itself; give its class, or a function that makes a new one at each call")
    factory: Callable[..., Any] = found
    return factory


def _module(parts: list[str]) -> tuple[Any, list[str]]:
    """The innermost module on a dotted path, imported, and the names that follow it."""
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        try:
            return import_own(name), parts[length:]
        except Exception as error:  # what a module does while it is imported can fail in any way
            missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
            if not missing:
                raise ValueError(f"{name} cannot be imported ({in_one_line(error)})") from error
    raise ValueError(
        f"there is no module {parts[0]}; it must lie in the folder that flnl is started in, be installed, or be on "
        "PYTHONPATH"
    )


def _is_path(path: str | None) -> str:
    if path is None:
        raise ValueError(f"must be {EXAMPLE}")
    importable(path)
    return path


ModulePath = Annotated[str | None, AfterValidator(_is_path), NamesCode()]


@dataclass(frozen=True)
class ImportedModule:
    """The network that a class or a factory makes.

    It is called with ``args``, with ``num_classes`` if it has a parameter of this name, and with ``in_channels``
    likewise. It has logits as outputs; features only if its last layer is called ``head``, or by a method ``outputs``
    (``flnl.models.outputs``).
    """

    path: ModulePath  # of the class, or of a function that makes a new module at each call
    args: Mapping[str, Any]  # keyword arguments

    def __call__(self, shape: Shape, num_classes: int) -> nn.Module:
        """The network for inputs of ``shape``.

        Raises:
            UserError: if it cannot be made of these arguments, is no module, or does not give logits [B, num_classes].
        """
        model = f"model.path={self.path}"
        try:
            factory = importable(_is_path(self.path))
        except ValueError as error:
            raise UserError(f"{model}: {error}") from error
        module = self._made(factory, {"num_classes": num_classes, "in_channels": shape[0]}, model)
        fix = f"{self.path} needs a parameter num_classes, or model.args must give it {num_classes}"
        probe(module, shape, num_classes, model, fix)
        if not any(parameter.requires_grad for parameter in module.parameters()):
            raise UserError(f"{model} has no parameters to train")
        return module

    def _made(self, factory: Callable[..., Any], offered: Mapping[str, int], model: str) -> nn.Module:
        try:
            parameters = inspect.signature(factory).parameters
        except (TypeError, ValueError):  # of some classes written in C
            parameters = None
        values = dict(self.args)
        if parameters is not None:
            named = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            values = {name: value for name, value in offered.items() if name in named} | values
            if not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
                for name in (name for name in values if name not in named):
                    there = did_you_mean(str(name), named, f"there are {', '.join(named) or 'none'}")
                    raise UserError(f"model.args.{name} is not a parameter of {self.path}; {there}")
            needed = [n for n in named if parameters[n].default is inspect.Parameter.empty and n not in values]
            if needed:
                raise UserError(f"{model} needs +model.args.{needed[0]}=...")
        try:
            made = factory(**values)
        except (Exception, SystemExit) as error:  # a constructor may raise anything
            arguments = ", ".join(f"{name}={value}" for name, value in values.items())
            raise UserError(f"{model} cannot be made of ({arguments}): {in_one_line(error)}") from error
        if not isinstance(made, nn.Module):
            raise UserError(f"{model} makes a {type(made).__name__}, which is no torch.nn.Module")
        return made
