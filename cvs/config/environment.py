"""Environment variables, as both files write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import AfterValidator

from cvs.config.problem import Key, Problem
from cvs.config.scalars import UNSPEAKABLE, Text

_OWN = ("CVS_RUN_ID", "TORCHELASTIC_RUN_ID")
"""By these cvs knows the processes of a run."""


def _variable_name(name: str) -> str:
    if not name or "=" in name or UNSPEAKABLE.search(name):
        raise ValueError("cannot be the name of a variable")
    if name in _OWN:
        raise ValueError("is set by cvs, which finds the processes of a run by it")
    return name


VariableName = Annotated[str, AfterValidator(_variable_name)]
EnvVars = dict[VariableName, Text]


def gloo_misfits(variables: Mapping[str, str], where: Key) -> Iterator[Problem]:
    """Gloo takes the name of one interface; what NCCL adds to it (`^`, `=`, a list) it takes for a name."""
    value = variables.get("GLOO_SOCKET_IFNAME", "")
    if value.startswith(("^", "=")):
        text = f"{value} is NCCL's spelling; Gloo takes the name of one interface"
        yield Problem((*where, "GLOO_SOCKET_IFNAME"), text)
