"""How a person says on the command line how to log in to Kafka."""

from __future__ import annotations

import pytest

from pgonce.offsets_store.cli.kafka_terms import kafka_options, needed_brokers, parse_properties
from pgonce.offsets_store.errors import ConfigurationError

SECRET = "zq7s3cret"


def test_properties():
    """A file of settings is read as Kafka's tools read it: comments, continued lines, equals signs in values."""
    text = '# login\nsecurity.protocol = SASL_SSL\n\n! more\nsasl.jaas.config=a required \\\n  x="y=z";\n'
    expected = {"security.protocol": "SASL_SSL", "sasl.jaas.config": 'a required x="y=z";'}
    assert parse_properties(text.splitlines()) == expected
    with pytest.raises(ConfigurationError, match="Line 2") as refused:
        parse_properties(["a=b", SECRET])
    assert SECRET not in str(refused.value)


def test_a_file(tmp_path):
    """Names may have Spark's prefix or not; a file that cannot be read is an error in words."""
    path = tmp_path / "client.properties"
    path.write_text("security.protocol=SSL\nkafka.client.id=me\n")
    assert kafka_options(path) == {"kafka.security.protocol": "SSL", "kafka.client.id": "me"}
    assert needed_brokers("a:1", path).client == {
        "bootstrap.servers": "a:1",
        "security.protocol": "SSL",
        "client.id": "me",
    }
    assert kafka_options(None) == {}
    path.write_bytes(b"\xff\xfe")
    for bad in (path, tmp_path / "none"):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            kafka_options(bad)


def test_no_brokers(tmp_path):
    """A command that needs brokers says so, whether or not there is a file of settings."""
    for config in (None, tmp_path / "none"):
        with pytest.raises(ConfigurationError) as refused:
            needed_brokers(None, config)
        assert refused.value.code == "NO_BROKERS"
