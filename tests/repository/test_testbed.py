"""The proxy does what the other tests rely on: most of them would also pass if it cut no line."""

import re
import threading

import psycopg
import pytest


@pytest.fixture
def rows(url, admin):
    """A table of the test's database, and how to count what is in it."""
    admin.execute("CREATE TABLE rows (id int)")

    def count():
        with psycopg.connect(url) as connection:
            return connection.execute("SELECT count(*) FROM rows").fetchone()[0]

    return count


def insert(url, **options):
    """Insert one row and commit it; `prepare_threshold=0` sends COMMIT in the extended protocol too."""
    with psycopg.connect(url, **options) as connection:
        connection.execute("INSERT INTO rows VALUES (1)")
        connection.execute("COMMIT", [], prepare=options.get("prepare_threshold") == 0)


def insert_by_itself(url):
    """Insert one row by a statement that is a transaction of its own, as JDBC sends it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO rows VALUES (%s)", [1], prepare=True)


def copy_in(url, count):
    """Copy so many rows in."""
    with psycopg.connect(url) as connection, connection.cursor() as cursor, cursor.copy("COPY rows FROM STDIN") as copy:
        for number in range(count):
            copy.write_row([number])


class TestProxy:
    @pytest.mark.parametrize("threshold", [None, 0], ids=["simple", "prepared"])
    @pytest.mark.parametrize(("fault", "there"), [("cut_before_commit", 0), ("cut_after_commit", 1)])
    def test_a_cut_at_commit_leaves_no_row_or_the_row(self, proxy, rows, fault, there, threshold):
        """The client loses the connection in the same way, whether or not the row is there."""
        getattr(proxy, fault)()
        with pytest.raises(psycopg.OperationalError):
            insert(proxy.url, prepare_threshold=threshold)
        assert (rows(), proxy.commits, proxy.hits[fault]) == (there, there, 1)

    def test_a_cut_during_commit_lets_the_row_come_later(self, url, admin, proxy, rows):
        """The client is cut off while the server is still committing; the row comes later."""
        admin.execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(0.5); RETURN NULL; END $$"
        )
        admin.execute(
            "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON rows DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION wait()"
        )
        proxy.cut_during_commit()
        with pytest.raises(psycopg.OperationalError):
            insert(proxy.url)
        assert rows() == 0
        with psycopg.connect(url) as connection:
            connection.execute("LOCK TABLE rows IN EXCLUSIVE MODE")
        assert rows() == 1

    def test_strikes_once_and_only_where_told(self, proxy, rows):
        """A fault leaves other transactions alone, strikes one, and leaves the next alone."""
        proxy.cut_before_commit(touching="INTO rows VALUES (2)")
        insert(proxy.url)
        with pytest.raises(psycopg.OperationalError), psycopg.connect(proxy.url) as connection:
            connection.execute("INSERT INTO rows VALUES (2)")
        insert(proxy.url)
        assert (rows(), proxy.commits, proxy.connections) == (2, 2, 3)

    def test_a_cut_in_the_middle_of_copy_leaves_nothing(self, proxy, rows):
        """COPY data ends in the middle of a message, and nothing of it is there."""
        proxy.cut_in_copy(after_bytes=100_000)
        with pytest.raises(psycopg.OperationalError):
            copy_in(proxy.url, 100_000)
        assert (rows(), proxy.hits["cut_in_copy"]) == (0, 1)

    @pytest.mark.parametrize("inserts", [insert, insert_by_itself])
    @pytest.mark.parametrize(("when", "while_held", "after_cut"), [("before", 0, 0), ("after", 1, 1)])
    def test_a_client_is_held_at_its_commit_and_then_cut_off(self, proxy, rows, when, while_held, after_cut, inserts):
        """A client is held for as long as the test likes where it commits, and then loses its connection."""
        proxy.also_commits = re.compile(rb"INSERT") if inserts is insert_by_itself else None
        hold = getattr(proxy, f"hold_{when}_commit")(touching="INTO rows")
        outcome = []

        def client():
            try:
                inserts(proxy.url)
            except psycopg.OperationalError as lost:
                outcome.append(lost)

        thread = threading.Thread(target=client)
        thread.start()
        hold.wait()
        assert rows() == while_held
        hold.cut()
        thread.join(30)
        assert (rows(), len(outcome)) == (after_cut, 1)
