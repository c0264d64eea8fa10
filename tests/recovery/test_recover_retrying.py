"""A recovery waits for a Postgres that is away, for as long as it was told to."""

from __future__ import annotations

import threading
import time

import pyarrow.fs
import pytest
from support.recoveries import recover_at_once
from support.stopped_query import files_of

from pgonce.offsets_store.checkpoint.files import ArrowFiles
from pgonce.offsets_store.errors import ConnectError
from pgonce.recovery.recover import recover_checkpoint


class TestAway:
    """Postgres is away when a recovery begins."""

    def test_it_waits_and_goes_on(self, proxy, behind, caplog):
        """Before a start it waits as a commit does, says so once a try, and recovers when Postgres is back."""
        proxy.stop()
        threading.Timer(1.0, proxy.start).start()
        with caplog.at_level("WARNING", "pgonce"):
            assert recover_at_once(behind, proxy.url).is_done
        said = [record.getMessage() for record in caplog.records]
        assert len(said) >= 2
        assert all(line.startswith(f"recovery of {behind}: trying again in ") for line in said)
        assert all("CONNECT_FAILED" in line for line in said)

    def test_no_login_is_seen_in_the_log(self, proxy, behind, caplog, monkeypatch):
        """The URI of an object store may have one. (A folder stands for the store here.)"""
        folder = pyarrow.fs.LocalFileSystem(), str(behind)
        monkeypatch.setattr(ArrowFiles, "_store_and_base", property(lambda files: folder))
        proxy.stop()
        with caplog.at_level("WARNING", "pgonce"), pytest.raises(ConnectError):
            recover_checkpoint("s3a://AKIAKEY:zq7hunter@bucket/orders", proxy.url, retry_timeout=0.2)
        assert "recovery of s3a://bucket/orders" in caplog.text
        assert "zq7hunter" not in caplog.text

    def test_it_begins_again_where_the_line_breaks(self, proxy, behind):
        """The fence may have been set, or not: a second one does no harm."""
        proxy.cut_after_commit(touching="interventions")
        assert recover_at_once(behind, proxy.url).stands_at == 9
        assert proxy.hits["cut_after_commit"] == 1
        assert not recover_at_once(behind, proxy.url).is_needed

    def test_past_the_bound_it_fails_by_name(self, proxy, behind):
        """A Postgres that stays away is an error, and no file was touched."""
        before = files_of(behind)
        proxy.stop()
        began = time.monotonic()
        with pytest.raises(ConnectError, match="CONNECT_FAILED"):
            recover_at_once(behind, proxy.url, retry_timeout=1)
        # Pauses of 0.1, 0.2 and 0.4 s, each with a jitter of a half; a fourth one would end past the bound.
        assert time.monotonic() - began >= 0.3
        assert files_of(behind) == before

    def test_what_does_not_pass_fails_at_once(self, behind, url):
        """A database that is not there will not come while somebody waits."""
        with pytest.raises(ConnectError, match="CONNECT_REFUSED"):
            recover_at_once(behind, url.replace("/pgonce_test_", "/no_such_"))
