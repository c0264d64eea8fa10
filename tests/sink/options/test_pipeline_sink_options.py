"""Does a pipeline hear of a wrong option before it runs?"""

from __future__ import annotations

import pytest

from pgonce import pipeline_sink_options
from pgonce.offsets_store.errors import ConfigurationError

GOOD = {"url": "postgresql://host/db", "table": "orders", "mode": "upsert", "keys": "id"}


def test_good_options_stay_as_they_are():
    """The sink gets what was written."""
    assert pipeline_sink_options(GOOD) == GOOD


@pytest.mark.parametrize(
    ("more", "code", "hint"),
    [
        ({"tabel": "orders"}, "UNKNOWN_OPTION", "Did you mean table"),
        ({"mode": "upsrt"}, "BAD_OPTION", "Did you mean upsert"),
        ({"createTable": True}, "BAD_OPTION", "quotation marks"),
        ({"checkpointLocation": "/here"}, "CLASHING_OPTIONS", "Leave it out"),
        ({"queryname": "web"}, "CLASHING_OPTIONS", "Leave it out"),
        ({"TABLE": "others"}, "CLASHING_OPTIONS", "Keep one of them"),
    ],
)
def test_a_wrong_option_is_refused_with_a_hint(more, code, hint):
    """The error names the option, and says what to write instead."""
    with pytest.raises(ConfigurationError) as refused:
        pipeline_sink_options({**GOOD, **more})
    assert refused.value.code == code
    assert next(iter(more)) in str(refused.value)
    assert hint in str(refused.value)


@pytest.mark.parametrize("options", [None, [("table", "orders")], "table=orders", {**GOOD, 1: "one"}])
def test_what_is_not_a_dict_of_strings_is_refused(options):
    """Spark would say so of the whole sink, in the words of another library."""
    with pytest.raises(ConfigurationError) as refused:
        pipeline_sink_options(options)
    assert refused.value.code == "BAD_OPTION"


def test_a_connection_string_in_a_wrong_place_is_shown_without_its_password():
    """The output of a run is often kept where others read it."""
    login = "postgresql://u:zq7secret@host/db"
    for more in ({login: "url"}, {"mode": login}, {"lockTimeout": login}, {"tabel": login}, {"url": f"{login}?x=1"}):
        with pytest.raises(ConfigurationError) as refused:
            pipeline_sink_options({**GOOD, **more})
        assert "zq7secret" not in str(refused.value)
