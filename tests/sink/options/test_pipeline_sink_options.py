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
    ],
)
def test_a_wrong_option_is_refused_with_a_hint(more, code, hint):
    """The error names the option, and says what to write instead."""
    with pytest.raises(ConfigurationError) as refused:
        pipeline_sink_options({**GOOD, **more})
    assert refused.value.code == code
    assert next(iter(more)) in str(refused.value)
    assert hint in str(refused.value)
