"""A reader who follows pages; every test that asks for one starts a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.page_reader import PageReader


@pytest.fixture
def start_reader(tmp_path: Path) -> Iterator[Callable[..., PageReader]]:
    """``start_reader(PGONCE_URL=url)``: a reader with an empty folder and a shell; ``jars`` are for ``--packages``."""
    started: list[PageReader] = []

    def start(jars: dict[str, list[Path]] | None = None, **env: str) -> PageReader:
        started.append(PageReader(tmp_path, jars or {}, env))
        return started[-1]

    yield start
    for reader in started:
        reader.close()
