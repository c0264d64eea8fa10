"""The client libraries of clouds, which are optional."""

from __future__ import annotations

import logging
import threading

import pytest

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.offsets_store.postgres.tokens import client_library, quiet


def test_a_library_that_is_not_installed_is_an_error_that_says_which_extra():
    """The error has the command that installs it."""
    with pytest.raises(ConfigurationError, match=r"PASSWORD_SOURCE_MISSING.*boto3.*pip install 'pgonce\[aws_rds\]'"):
        client_library("no_such_library_zq", "boto3", "aws_rds")


def test_only_debug_lines_of_the_block_and_its_thread_are_dropped(caplog):
    """Warnings come through, and so does what the same library says at other times and elsewhere."""
    logger, part = logging.getLogger("zq.library"), logging.getLogger("zq.library.part.of.it")
    caplog.set_level(logging.DEBUG)
    logger.debug("before")
    with quiet("zq.library", "zq.not_there"):
        logger.debug("a token")
        part.debug("the same token")
        logger.warning("a warning")
        logging.getLogger("zq.another").debug("another library")
        logging.getLogger("zq.library_of_others").debug("one with a longer name")
        elsewhere = threading.Thread(target=logger.debug, args=("another thread",))
        elsewhere.start()
        elsewhere.join()
    part.debug("after")
    assert caplog.messages == [
        "before",
        "a warning",
        "another library",
        "one with a longer name",
        "another thread",
        "after",
    ]
