"""Modules of the benchmarks and of the demo, which are in no wheel."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).parents[2]


@contextmanager
def benchmark_module(name: str, folder: str = "benchmarks") -> Iterator[ModuleType]:
    """A module that needs no other of its folder, while the block runs."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", _ROOT / folder / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]
