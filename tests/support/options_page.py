"""
The table of docs/options.md, made from the table of options; ``make docs`` writes it.

Runs in: the tests, which compare, and the command.
"""

from __future__ import annotations

import re
from pathlib import Path

from pgonce.sink.options.definitions import OPTIONS
from pgonce.sink.options.option import Option, Way

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
_HEAD = "| Option | Argument | For | Default | Meaning |\n|---|---|---|---|---|\n"
_TABLE = re.compile(re.escape(_HEAD) + r"(\|.*\n)+")
_LETTERS = {
    Way.STREAM: "S",
    Way.JOB: "J",
    Way.WRITER: "W",
    Way.FUNCTION: "F",
    Way.REAL_TIME: "R",
    Way.TABLE: "T",
    Way.ENTRY: "T",
}
_IN_PYTHON = Way.WRITER | Way.FUNCTION | Way.REAL_TIME | Way.TABLE | Way.ENTRY
# Spark's users give each of Kafka's settings as an option of its own.
_NAMES = {"kafka_options": "kafka.*"}


def page() -> str:
    """The whole page, with the table as it should be."""
    first = ("url", "password_from", "executor_url", "table", "route", "tables", "unknown_routes", "mode", "keys")
    of_tables = [argument for argument, option in OPTIONS.items() if Way.ENTRY in option.ways]
    rows = "".join(_row(OPTIONS[argument]) for argument in dict.fromkeys((*first, *of_tables, *OPTIONS)))
    text, count = _TABLE.subn(lambda _: _HEAD + rows, PAGE.read_text())
    assert count == 1
    return text


def _row(option: Option) -> str:
    name = f"`{_NAMES.get(option.argument, option.name)}`" if option.ways != Way.FUNCTION else ""
    argument = f"`{option.argument}`" if option.ways & _IN_PYTHON else ""
    letters = " ".join(dict.fromkeys(letter for way, letter in _LETTERS.items() if way in option.ways))
    return f"| {name} | {argument} | {letters} | {_default(option)} | {_meaning(option)} |\n"


def _default(option: Option) -> str:
    value = option.default
    if option.shown or value in (None, ()):
        return option.shown or "none"
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value}`"


def _meaning(option: Option) -> str:
    meaning = option.meaning
    if option.modes:
        *first, last = (f"`{mode}`" for mode in option.modes)
        modes = f"{', '.join(first)} and {last}" if first else last
        # A sentence goes on behind the colon.
        begun = meaning if meaning.startswith("`") else meaning[0].lower() + meaning[1:]
        meaning = f"For {modes}: {begun}"
    if option.bounds and option.bounds != "at least 0":
        meaning += f" {option.bounds.capitalize()}."
    for need in option.needs:
        value, _, argument = need.rpartition(":")
        meaning += (f" `{option.name}={value}` needs" if value else " Needs") + f" `{OPTIONS[argument].name}`."
    if option.alike:
        when = f" with `{OPTIONS[option.alike].name}`" if option.alike != option.argument else ""
        meaning += f" The same for all `tables`{when}."
    others = [clash.partition("=") for clash in option.clashes]
    if others:
        meaning += f" Not with {' or '.join(f'`{OPTIONS[of].name}{equals}{value}`' for of, equals, value in others)}."
    return meaning


if __name__ == "__main__":
    PAGE.write_text(page())
