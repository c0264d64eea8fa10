"""The preflight reports synchronous standbys, and fewer of them than COMMIT waits for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

import psycopg
import pytest
from support.patience import PATIENCE_SECONDS
from support.two_servers import two_servers

from pgonce.check.answers import Holds
from pgonce.check.check import check_server, demanded_standbys


@pytest.mark.parametrize(
    ("names", "demanded"),
    [
        ("", 0),
        ("two", 1),
        ("two, three", 1),
        ("*", 1),
        ('"two"', 1),
        ("2 (two, three)", 2),
        ("2(two,three)", 2),
        (" 2 ( * ) ", 2),
        ("FIRST 2 (two, three, four)", 2),
        ("first 3(two, three, four)", 3),
        ("ANY 2 (two, three, four)", 2),
        ("any\t12\n(*)", 12),
        ("2", 1),
        ("2, 3", 1),
        ('"2 (two, three)"', 1),
        ('"any 2 (x", three', 1),
        ('ANY 2 ("3 (a", "b""c")', 2),
        ("first2, any3", 1),
    ],
)
def test_the_number_is_read_as_postgres_reads_it(names, demanded):
    """It stands before the parentheses, and without them it is one; quotes and numbers among the names mean nothing."""
    assert demanded_standbys(names) == demanded


@pytest.fixture(scope="module")
def servers():
    """A primary and its standby; the standby is called two."""
    with two_servers() as both:
        yield both


@pytest.fixture
def primary(servers):
    """The primary, whose standby is asynchronous again after the test."""
    one, _ = servers
    yield one
    one.configure(synchronous_standby_names="")


def of_standbys(primary):
    """What the preflight says of the standbys."""
    return {one.name: one for one in check_server(primary.uri())}["standbys"]


class TestStandbys:
    @pytest.mark.parametrize(
        ("names", "says"),
        [
            ("2 (two, three)", "COMMIT waits for 2 synchronous standbys ('2 (two, three)'), and 1 is missing"),
            ("ANY 2 (two, three, four)", "2 synchronous standbys ('ANY 2 (two, three, four)'), and 1 is missing"),
            ("FIRST 4 (*)", "COMMIT waits for 4 synchronous standbys ('FIRST 4 (*)'), and 3 are missing"),
            ("three", "COMMIT waits for 1 synchronous standby ('three'), and 1 is missing"),
        ],
    )
    def test_fewer_than_commit_waits_for(self, names, says, primary):
        """The answer says how many are missing, and a COMMIT that is tried then is indeed not answered."""
        primary.configure(synchronous_standby_names=names)
        assert any(not is_answered(primary, within=1) for _ in range(20))  # The walsender reads its settings later.
        assert not is_answered(primary, within=1)
        found = of_standbys(primary)
        assert (found.holds, says in found.says, "without a limit" in found.says) == (Holds.NO, True, True)
        assert "When a synchronous standby is missing" in found.remedy

    @pytest.mark.parametrize("names", ["two", "*", "FIRST 1 (three, two)", "ANY 1 (two, three)", '1 ("TWO")'])
    def test_as_many_as_commit_waits_for(self, names, primary):
        """One of those that are named is there and is enough; a COMMIT is answered."""
        primary.configure(synchronous_standby_names=names)
        assert is_answered(primary)
        found = of_standbys(primary)
        says = f"1 synchronous standby is connected ({names!r}), and COMMIT waits for it"
        assert (found.holds, found.says) == (Holds.YES, says)


def is_answered(primary, within=PATIENCE_SECONDS):
    """Whether a COMMIT is answered within so many seconds; a wait for standbys is cancelled then."""
    with (
        psycopg.connect(primary.uri(), autocommit=True) as admin,
        psycopg.connect(primary.uri(), autocommit=True) as connection,
        ThreadPoolExecutor(1) as pool,
    ):
        admin.execute("SET synchronous_commit = local; CREATE TABLE IF NOT EXISTS tried (id bigint)")
        committing = pool.submit(connection.execute, "INSERT INTO tried VALUES (1)")
        wait([committing], within)
        cancelled = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        return admin.execute(cancelled, [connection.info.backend_pid]).fetchone() is None
