"""Logs of libraries while a token is made."""

from __future__ import annotations

import logging
import threading

from pgonce.offsets_store.tokens.quiet_logs import quiet


def test_only_debug_lines_of_the_block_and_its_thread_are_dropped(caplog):
    """Warnings come through, and so does what the same library says at other times and elsewhere."""
    logger = logging.getLogger("zq.library")
    caplog.set_level(logging.DEBUG)
    logger.debug("before")
    with quiet("zq.library"):
        logger.debug("a token")
        logger.warning("a warning")
        logging.getLogger("zq.another").debug("another library")
        elsewhere = threading.Thread(target=logger.debug, args=("another thread",))
        elsewhere.start()
        elsewhere.join()
    logger.debug("after")
    assert caplog.messages == ["before", "a warning", "another library", "another thread", "after"]
