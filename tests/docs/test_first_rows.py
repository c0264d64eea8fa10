"""What docs/start/first-rows.md says is typed as it stands there, and each row is there once."""

import re

import psycopg
import pytest
from support.fixtures.driver import wait_until
from support.page_reader import PageReader, blocks_of
from support.patience import PATIENCE_SECONDS

PAGE = "start/first-rows.md"
ADDRESS = "export PGONCE_URL="
START = "spark-submit first_rows.py"
COUNT = "count(DISTINCT value)"


def rows_in(observer: psycopg.Connection) -> int:
    """The rows of the table, which may not be there yet."""
    if observer.execute("SELECT to_regclass('ticks')").fetchone() == (None,):
        return 0
    (count,) = observer.execute("SELECT count(*) FROM ticks").fetchone()
    return count


def wait_for_more(reader: PageReader, observer: psycopg.Connection) -> None:
    """Wait for two seconds' worth of rows, or until the driver has ended."""
    enough = rows_in(observer) + 200
    wait_until(lambda: rows_in(observer) >= enough or not reader.type("jobs -r"), PATIENCE_SECONDS)
    assert rows_in(observer) >= enough, reader.type("cat first_rows.log")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.no_ledger
def test_a_stranger_has_rows_once(start_reader, url, observer):
    """Rows come, a killed query goes on, the page's three numbers are equal, and nothing is left."""
    reader = start_reader()
    said: dict[str, str] = {}
    for block in blocks_of(PAGE):
        # The reader's own address takes the place of the page's.
        said[block.text] = reader.type(f"{ADDRESS}'{url}'") if block.text.startswith(ADDRESS) else reader.do(block)
        if block.text.startswith(START):
            wait_for_more(reader, observer)
    (counted,) = (printed for typed, printed in said.items() if COUNT in typed)
    count, distinct, numbered = map(int, re.search(r"^ *(\d+) \| *(\d+) \| *(\d+)$", counted, re.MULTILINE).groups())
    assert count == distinct == numbered > 400
    (status,) = (printed.splitlines() for typed, printed in said.items() if typed.startswith("pgonce status"))
    (shown,) = (block.text.splitlines() for block in blocks_of(PAGE) if block.language == "text")
    assert status[0].split() == shown[0].split()
    assert status[1].split()[:3] == shown[1].split()[:3]
    left = "SELECT to_regclass('ticks'), to_regnamespace('pgonce'), to_regnamespace('pgonce_staging')"
    assert observer.execute(left).fetchone() == (None, None, None)
    assert list(reader.directory.iterdir()) == []
