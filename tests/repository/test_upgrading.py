"""Is it so, what docs/operations.md says of upgrading, of going back, and of a ledger that is dropped?"""

from __future__ import annotations

import re

import psycopg
import pytest
from support.batches import make_planned_batch
from support.committed_batch import commit, quoted, rows_in
from support.ledger_history import publish, publish_job
from support.pages import DOCS, sections, sql_blocks
from support.recoveries import history
from support.stopped_query import entries, write_checkpoint
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.errors import LedgerError, PgonceError, RefusedBatch
from pgonce.offsets_store.ledger import migrations
from pgonce.offsets_store.ledger.migrations import MIGRATIONS, NEWEST, ensure_ledger, forget_ledger, migrate
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.options.destination import destination

SECTION = sections((DOCS / "operations.md").read_text(), 2)["Upgrading and removing"]
ORDERS = destination("public.orders", "append", (), None)
# The newest step that this code needs comes after it.
EARLIER = next(step.version for step in reversed(MIGRATIONS) if step.needed) - 1


@pytest.fixture
def admin(url):
    """A superuser's connection; the table of the query is there."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE public.orders (id bigint, name text)")
        yield connection


@pytest.fixture
def earlier_ledger(admin, url, monkeypatch):
    """The ledger of an earlier version, which a superuser has made."""
    with monkeypatch.context() as earlier:
        earlier.setattr(migrations, "MIGRATIONS", MIGRATIONS[:EARLIER])
        migrate(admin)
    forget_ledger(url)


def first_batch(query_id="a query"):
    """Batch 0 of a query; its sources do not tell whether two queries read the same."""
    return make_planned_batch(query_id=query_id, start=None, end=None)


def test_the_page_names_the_newest_version():
    """All migrations of this code can be used by every version, and the page says how many there are."""
    assert f"All migrations so far, 1 to {NEWEST}, have `least_reader_version` 1" in " ".join(SECTION.split())
    assert {step.least_reader_version for step in MIGRATIONS} == {1}


def test_the_query_for_the_versions(admin, url):
    """It runs, and tells the newest version and the oldest that can use the ledger."""
    ensure_ledger(url)
    [query] = re.findall(r"```sql\n(.*?);\n```", SECTION, re.DOTALL)
    assert query in sql_blocks(DOCS / "operations.md")
    assert admin.execute(query.encode()).fetchall() == [(NEWEST, 1)]


@pytest.mark.usefixtures("earlier_ledger")
class TestAnEarlierLedger:
    def test_who_reads_is_told_to_upgrade_it(self, url):
        """Nothing that only reads migrates it; init does, and then there is an answer."""
        with pytest.raises(LedgerError) as refused:
            OffsetsStore(url).queries()
        assert refused.value.code == "LEDGER_TOO_OLD"
        assert CliRunner().invoke(app, ["init", "--url", url]).exit_code == ExitCode.OK
        assert OffsetsStore(url).queries() == []

    def test_the_first_batch_of_its_owner_upgrades_it(self, admin, url):
        """A streaming role that owns the ledger needs no init."""
        assert commit(url, first_batch(), ORDERS) is Verdict.NEW
        assert admin.execute("SELECT max(version) FROM pgonce.schema_version").fetchone() == (NEWEST,)

    def test_a_role_that_does_not_own_it_writes_nothing(self, admin, login):
        """It is told whom to ask, before a row moves."""
        role = quoted(login.user)
        admin.execute(f"GRANT USAGE, CREATE ON SCHEMA pgonce TO {role}".encode())
        admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA pgonce TO {role}".encode())
        admin.execute(f"GRANT INSERT ON public.orders TO {role}".encode())
        with pytest.raises(LedgerError) as refused:
            commit(login.url, first_batch(), ORDERS)
        assert refused.value.code == "LEDGER_NOT_PERMITTED"
        assert rows_in(admin, "public.orders") == []
        engine_for(login.url).dispose()


class TestADroppedLedger:
    @pytest.fixture(autouse=True)
    def _dropped(self, admin, url):
        assert commit(url, first_batch(), ORDERS) is Verdict.NEW
        with pytest.raises(RefusedBatch) as refused:
            commit(url, first_batch("another"), ORDERS)
        assert refused.value.code == "FOREIGN"
        publish(url, 0, None, query_id="of another process", sink_name="function")
        publish_job(url, "2026-11-20")
        admin.execute("CREATE VIEW public.mine AS SELECT batch_id FROM pgonce.current_offsets")
        admin.execute("DROP SCHEMA pgonce CASCADE")
        forget_ledger(url)

    def test_what_is_lost(self, admin, url):
        """A query with a past is refused, a new one is not compared with it, a key counts again; the rows are there."""
        assert rows_in(admin, "public.orders") == [(1, "one"), (2, "two")]
        for query_id, code in (("a query", "LEDGER_GONE"), ("of another process", "UNKNOWN")):
            following = make_planned_batch(1, query_id=query_id, start=None, end=None)
            with pytest.raises(PgonceError) as refused:
                commit(url, following, ORDERS, sink_name=None if code == "LEDGER_GONE" else "function")
            assert refused.value.code == code
        assert commit(url, first_batch("another"), ORDERS) is Verdict.NEW
        assert OffsetsStore(url).batch_jobs() == []
        publish_job(url, "2026-11-20")
        assert [(job.batch_key, job.skips) for job in OffsetsStore(url).batch_jobs()] == [("2026-11-20", 0)]

    def test_views_of_the_ledger_go_with_it(self, admin):
        """CASCADE drops what depends on it elsewhere, too."""
        assert admin.execute("SELECT to_regclass('public.mine')").fetchone() == (None,)


@pytest.mark.parametrize(("last_done", "verdict"), [(8, "REPLAY"), (9, "NEW")])
def test_doctor_says_whether_the_next_batch_is_written(url, tmp_path, last_done, verdict):
    """Exit code 0, and for the sink the verdict: REPLAY where it is in the table, and NEW where it is not."""
    history(url, 9)
    checkpoint = write_checkpoint(tmp_path / "checkpoint", entries(*range(10)), range(last_done + 1))
    answer = CliRunner().invoke(app, ["doctor", str(checkpoint), "--url", url])
    assert answer.exit_code == ExitCode.OK
    assert f"Next start: batch {last_done + 1}" in answer.stdout
    assert f"public.orders: {verdict}" in answer.stdout
