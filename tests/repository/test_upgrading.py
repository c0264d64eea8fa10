"""Upgrading and going back work as docs/running.md describes them; test_ledger_gone.py has a ledger that is dropped."""

from __future__ import annotations

import re
from hashlib import sha256

import psycopg
import pytest
from support.batches import make_planned_batch
from support.committed_batch import commit, quoted, rows_in
from support.kept_ledger import kept_batch, kept_checkpoint, kept_form, restore_kept_ledger
from support.ledger_history import publish_job
from support.made_up_migration import made_up, upgrade_pgonce
from support.pages import DOCS, sections, sql_blocks

from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.errors import LedgerError, RefusedBatch
from pgonce.offsets_store.ledger.migrations import FIRST, MIGRATIONS, NEWEST, ensure_ledger, forget_ledger, migrate
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.options.destination import destination

SECTION = sections((DOCS / "running.md").read_text(), 2)["Upgrade, roll back, uninstall"]
ORDERS = destination("public.orders", "append", (), None)


@pytest.fixture
def admin(admin):
    """A superuser's connection; the table of the query is there."""
    admin.execute("CREATE TABLE public.orders (id bigint, name text)")
    return admin


@pytest.fixture
def earlier_ledger(admin, url, monkeypatch):
    """The ledger of an earlier version, which a superuser has made: this code knows one more migration."""
    migrate(admin)
    upgrade_pgonce(monkeypatch, made_up("ALTER TABLE pgonce.writers ADD COLUMN made_up text"))


def first_batch(query_id="a query"):
    """Batch 0 of a query; its sources do not tell whether two queries read the same."""
    return make_planned_batch(query_id=query_id, start=None, end=None)


def test_the_query_for_the_versions(admin, url):
    """It runs, and tells the newest version and the oldest that can use the ledger."""
    ensure_ledger(url)
    [query] = re.findall(r"```sql\n(.*?);\n```", SECTION, re.DOTALL)
    assert query in sql_blocks((DOCS / "running.md").read_text())
    assert admin.execute(query.encode()).fetchall() == [(NEWEST, FIRST)]


class TestALedgerFromBeforeTheFirstRelease:
    @pytest.fixture(autouse=True)
    def _unreleased(self, admin, url):
        """A query has published batches 0 to 2, as far as a ledger of version 109 says."""
        for number in range(3):
            assert commit(url, make_planned_batch(number), ORDERS) is Verdict.NEW
        admin.execute("UPDATE pgonce.schema_version SET version = 109, least_reader_version = 103")
        forget_ledger(url)

    def test_a_ledger_of_an_earlier_commit_is_refused_with_the_way_out(self, admin, url, pgonce):
        """Nobody reads, writes or migrates it; the error names its version and the way out."""
        for use in (
            lambda: commit(url, make_planned_batch(3), ORDERS),
            lambda: OffsetsStore(url).queries(),
            lambda: migrate(admin),
        ):
            with pytest.raises(LedgerError, match=r" 109\b.* ALTER SCHEMA pgonce RENAME") as refused:
                use()
            assert refused.value.code == "LEDGER_UNRELEASED"
        assert pgonce("init").exit_code != ExitCode.OK
        assert len(rows_in(admin, "public.orders")) == 6

    def test_after_the_rename_its_query_goes_on_by_adopt_checkpoint(self, admin, url):
        """After the rename, adoptCheckpoint takes the query on, and its last batch is not written again."""
        ((last,),) = admin.execute("SELECT last_batch_id FROM pgonce.writers").fetchall()
        admin.execute("ALTER SCHEMA pgonce RENAME TO pgonce_unreleased")
        again, following = make_planned_batch(last, "run 2"), make_planned_batch(last + 1, "run 2")
        assert commit(url, again, ORDERS, adopt_checkpoint=last + 1) is Verdict.ADOPTED
        assert commit(url, following, ORDERS, adopt_checkpoint=last + 1) is Verdict.NEW
        assert len(rows_in(admin, "public.orders")) == 8

    def test_code_from_before_the_first_release_refuses_a_released_ledger(self, admin, url):
        """It compares the greatest least reader version with its own newest one, which is 109 at most."""
        admin.execute("DROP SCHEMA pgonce CASCADE")
        ensure_ledger(url)
        ((least_reader,),) = admin.execute(
            "SELECT coalesce(max(least_reader_version), 0) FROM pgonce.schema_version"
        ).fetchall()
        assert least_reader > 109


class TestTheLedgerOfTheFirstRelease:
    """A ledger and a checkpoint that were kept when main's ledger became readable for good."""

    @pytest.fixture(autouse=True)
    def _kept(self, admin, url):
        restore_kept_ledger(admin)
        admin.execute("INSERT INTO public.orders VALUES (1, 'one')")

    def test_its_query_goes_on(self, admin, url):
        """The last batch that Spark runs again is skipped, and the next one is published."""
        assert commit(url, kept_batch(3, "run 2"), ORDERS) is Verdict.REPLAY
        assert rows_in(admin, "public.orders") == [(1, "one")]
        assert commit(url, kept_batch(4, "run 2"), ORDERS, ((5, "five"),)) is Verdict.NEW
        assert rows_in(admin, "public.orders") == [(1, "one"), (5, "five")]
        with pytest.raises(RefusedBatch, match=r"\[FENCED\]"):
            commit(url, kept_batch(5, "run 1"), ORDERS)

    def test_its_checkpoint_is_understood(self, pgonce, tmp_path):
        """Doctor finds checkpoint and ledger at one place."""
        answer = pgonce("doctor", kept_checkpoint(tmp_path))
        assert answer.exit_code == ExitCode.OK, answer.output
        assert "Next start: batch 4" in answer.stdout

    def test_its_jobs_are_known(self, url):
        """A key that was published is skipped."""
        publish_job(url, "2026-11-20")
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT batch_key FROM pgonce.batch_job_skips").fetchall() == [("2026-11-20",)]

    def test_its_form_is_what_the_migrations_make(self):
        """What has been released is not edited: a migration is added."""
        assert sha256(MIGRATIONS[0].ddl.encode()).hexdigest()[:16] == kept_form()


@pytest.mark.usefixtures("earlier_ledger")
class TestAnEarlierLedger:
    def test_who_reads_is_told_to_upgrade_it(self, url, pgonce):
        """Nothing that only reads migrates it; init does, and then there is an answer."""
        with pytest.raises(LedgerError, match=r"\[LEDGER_TOO_OLD\]"):
            OffsetsStore(url).queries()
        assert pgonce("init").exit_code == ExitCode.OK
        assert OffsetsStore(url).queries() == []

    def test_the_first_batch_of_its_owner_upgrades_it(self, admin, url):
        """A streaming role that owns the ledger needs no init."""
        assert commit(url, first_batch(), ORDERS) is Verdict.NEW
        assert admin.execute("SELECT max(version) FROM pgonce.schema_version").fetchone() == (NEWEST + 1,)

    def test_a_role_that_does_not_own_it_writes_nothing(self, admin, login):
        """It is told whom to ask, before a row moves."""
        role = quoted(login.user)
        admin.execute(f"GRANT USAGE, CREATE ON SCHEMA pgonce TO {role}".encode())
        admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA pgonce TO {role}".encode())
        admin.execute(f"GRANT INSERT ON public.orders TO {role}".encode())
        with pytest.raises(LedgerError, match=r"\[LEDGER_NOT_PERMITTED\]"):
            commit(login.url, first_batch(), ORDERS)
        assert rows_in(admin, "public.orders") == []
        engine_for(login.url).dispose()
