"""How a person says on the command line how to log in to Kafka."""

from __future__ import annotations

import sys

import pytest

from pgonce.cli.kafka import kafka_options, parse_properties
from pgonce.offsets_store.errors import ConfigurationError

SECRET = "zq7s3cret"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# login\nsasl.mechanism = PLAIN\n\n! more\nclient.id=a=b", {"sasl.mechanism": "PLAIN", "client.id": "a=b"}),
        ('sasl.jaas.config=a required \\\n  x="y=z";\n', {"sasl.jaas.config": 'a required x="y=z";'}),
        ("client.id : me\nsasl.mechanism PLAIN\n", {"client.id": "me", "sasl.mechanism": "PLAIN"}),
        ("ssl.key.password=p\\\\\nclient.id=me", {"ssl.key.password": "p\\", "client.id": "me"}),
        ("ssl.key.password=p\\\\", {"ssl.key.password": "p\\"}),
        (r'sasl.jaas.config=p\=\:\u00e4\\"', {"sasl.jaas.config": 'p=:ä\\"'}),
        ("ssl.keystore.key=-----BEGIN\\n\\\n  abc==\\n", {"ssl.keystore.key": "-----BEGIN\nabc==\n"}),
        ("ssl.endpoint.identification.algorithm=\n", {"ssl.endpoint.identification.algorithm": ""}),
    ],
    ids=["comments", "goes on", "other separators", "backslash", "backslash at the end", "escaped", "text", "empty"],
)
def test_a_file_of_settings_is_read_as_java_reads_properties(text, expected):
    """A file of settings is read as Kafka's own tools read it: as Java's properties."""
    assert parse_properties(text) == expected


@pytest.mark.parametrize("line", [SECRET, f"{SECRET}=", f'"{SECRET}";', f"{SECRET}.x y", f'password="{SECRET}";'])
def test_a_line_that_is_no_setting(line):
    """A line that may be the rest of a value, whose line should have ended with a backslash, is not repeated."""
    with pytest.raises(ConfigurationError, match="Line 4") as refused:
        parse_properties(f"client.id=\\\nme\n\n{line}\n")
    assert SECRET not in str(refused.value)


def test_names_may_have_sparks_prefix_and_an_unreadable_file_is_refused(tmp_path):
    """Names may have Spark's prefix or not; a file that cannot be read is an error of ours."""
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SSL\nkafka.client.id=me\n")
    assert kafka_options(path) == {"kafka.security.protocol": "SSL", "kafka.client.id": "me"}
    assert kafka_options(None) == {}
    for bad in (b"\xff\xfe", f"ssl.key.password=\\u00{SECRET}".encode(), None):
        path.unlink()
        if bad is not None:
            path.write_bytes(bad)
        with pytest.raises(ConfigurationError, match="BAD_OPTION") as refused:
            kafka_options(path)
        assert SECRET not in str(refused.value)


def test_without_the_reader_of_properties_the_package_is_named(tmp_path, monkeypatch):
    """Without what reads such a file, the error says what to install."""
    monkeypatch.setitem(sys.modules, "javaproperties", None)
    path = tmp_path / "client.properties"
    path.write_text("client.id=me\n")
    with pytest.raises(ConfigurationError, match="NOT_INSTALLED.*javaproperties"):
        kafka_options(path)
