"""What the tests of this folder share: one driver whose log can be read, and a server that can go away."""

from __future__ import annotations

import pytest
from support.remote_driver import Remote


@pytest.fixture(scope="package")
def remote(tmp_path_factory):
    """A driver for all tests of the folder: starting one takes longer than most of them."""
    driver = Remote(tmp_path_factory.mktemp("remote"))
    yield driver
    driver.close()
