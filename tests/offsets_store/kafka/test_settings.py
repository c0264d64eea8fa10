"""
Kafka's settings in librdkafka's words, or a refusal that says why not.

Covers: offsets_store.kafka.settings.
"""

from __future__ import annotations

import pytest

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.offsets_store.kafka.settings import Brokers, brokers, client_settings

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "
SCRAM = "kafkashaded.org.apache.kafka.common.security.scram.ScramLoginModule required "


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"security.protocol": "ssl"}, {"security.protocol": "SSL"}),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.jaas.config": SCRAM + 'username="me" password="s3cret";',
            },
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "me",
                "sasl.password": "s3cret",
            },
        ),
        ({"ssl.truststore.location": "/etc/ca", "ssl.truststore.type": "pem"}, {"ssl.ca.location": "/etc/ca"}),
        ({"ssl.truststore.location": "/etc/ca.pem"}, {"ssl.ca.location": "/etc/ca.pem"}),
        ({"ssl.truststore.certificates": "-----BEGIN"}, {"ssl.ca.pem": "-----BEGIN"}),
        (
            {"ssl.keystore.location": "/me.pem", "ssl.key.password": "s3cret"},
            {"ssl.certificate.location": "/me.pem", "ssl.key.location": "/me.pem", "ssl.key.password": "s3cret"},
        ),
        (
            {"ssl.keystore.key": "key", "ssl.keystore.certificate.chain": "chain"},
            {"ssl.key.pem": "key", "ssl.certificate.pem": "chain"},
        ),
        (
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.type": "PKCS12", "ssl.keystore.password": "s3cret"},
            {"ssl.keystore.location": "/me.p12", "ssl.keystore.password": "s3cret"},
        ),
        ({"ssl.endpoint.identification.algorithm": ""}, {"ssl.endpoint.identification.algorithm": "none"}),
        ({"ssl.endpoint.identification.algorithm": "HTTPS"}, {"ssl.endpoint.identification.algorithm": "https"}),
    ],
)
def test_what_librdkafka_is_told(given, expected):
    """Each of Kafka's settings says the same in librdkafka's words."""
    assert dict(client_settings(given)) == expected


@pytest.mark.parametrize(
    ("options", "user", "password"),
    [
        ('username="me" password="p w;d=#"', "me", "p w;d=#"),
        ("username='me' password='it\\'s'", "me", "it's"),
        ('username=me   password="a\\"b\\\\c"', "me", 'a"b\\c'),
        ('\n  password="x"\n  username="me"', "me", "x"),
        ('serviceName="kafka" username="me" password=""', "me", ""),
    ],
)
def test_user_and_password_are_read_from_a_jaas_text(options, user, password):
    """User and password are read from a JAAS text, however they are quoted."""
    found = dict(client_settings({"sasl.jaas.config": f"{PLAIN}{options};"}))
    assert (found["sasl.username"], found["sasl.password"]) == (user, password)


SECRET = "zq7s3cret"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ssl.truststore.location": f"/{SECRET}.jks"}, "JKS"),
        ({"ssl.truststore.location": "/a.pem", "ssl.truststore.type": "PKCS12"}, "PKCS12"),
        ({"ssl.truststore.location": "/a.jks", "ssl.truststore.password": SECRET}, "JKS or PKCS12"),
        ({"ssl.keystore.location": "/a.jks", "ssl.keystore.password": SECRET}, "JKS"),
        ({"ssl.keystore.location": "/a.pem", "ssl.keystore.password": SECRET}, "PKCS12"),
        ({"sasl.mechanism": "GSSAPI"}, "SCRAM-SHA-512"),
        ({"ssl.truststore.password": SECRET}, r"ssl\.truststore\.type=PEM"),
        ({"sasl.mechanism": "AWS_MSK_IAM"}, "IAM"),
        ({"security.protocol": SECRET}, "SASL_SSL"),
        ({"sasl.jaas.config": f'{PLAIN}username="me" password="{SECRET}"'}, "ScramLoginModule"),
        ({"sasl.jaas.config": f'{PLAIN}username="me" password="{SECRET};'}, "ScramLoginModule"),
        ({"sasl.jaas.config": f'{PLAIN}username="{SECRET}";'}, "no password"),
        ({"sasl.jaas.config": f'a.Krb5LoginModule required keyTab="{SECRET}";'}, "PlainLoginModule"),
        ({"sasl.jaas.config": f'{SCRAM}username="me" password="{SECRET}" tokenauth="true";'}, "PlainLoginModule"),
        ({"bootstrap.servers": SECRET}, "bootstrapServers"),
        ({"ssl.cipher.suites": SECRET}, "sasl.jaas.config"),
    ],
)
def test_what_cannot_be_followed_is_refused(given, says):
    """A setting that librdkafka lacks, or that is unknown, is refused; the error never holds the value of a secret."""
    with pytest.raises(ConfigurationError, match=says) as refused:
        client_settings(given)
    assert SECRET not in str(refused.value)
    assert refused.value.code in {"BAD_OPTION", "UNKNOWN_OPTION"}


def test_brokers_take_settings_in_any_case_and_show_only_addresses():
    """Names are Spark's, in any case; nothing is shown but the addresses."""
    found = brokers("a:1,b:2", {"kafka.Security.Protocol": "SSL", "kafka.ssl.keystore.key": SECRET})
    assert found.client == {"bootstrap.servers": "a:1,b:2", "security.protocol": "SSL", "ssl.key.pem": SECRET}
    assert SECRET not in repr(found)
    assert found.scrub(f"bad key {SECRET}") == "bad key ***"
    assert found == brokers("a:1,b:2", {"kafka.ssl.keystore.key": SECRET, "kafka.security.protocol": "SSL"})
    assert brokers(None) is None
    assert brokers("a:1") == Brokers("a:1")


def test_a_login_among_the_addresses_is_refused_and_not_shown():
    """Errors name the brokers that do not answer, and librdkafka's own text repeats the addresses."""
    with pytest.raises(ConfigurationError, match=r"BAD_OPTION.*kafka\.sasl") as refused:
        brokers("broker:9092,SASL_SSL://user:s3cret@elsewhere:9093")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("servers", "options", "code", "says"),
    [
        ("a:1", {"security.protocol": "SSL"}, "UNKNOWN_OPTION", r"kafka\.security\.protocol"),
        ("a:1", {"subscribe": "orders"}, "UNKNOWN_OPTION", r"kafka\.security\.protocol"),
        (None, {"kafka.security.protocol": "SSL"}, "CLASHING_OPTIONS", "bootstrap_servers"),
    ],
)
def test_options_of_another_kind_or_of_no_brokers_are_refused(servers, options, code, says):
    """Options without the prefix are refused, with the way to write them; and so is a login to nobody."""
    with pytest.raises(ConfigurationError, match=rf"\[{code}\].*{says}"):
        brokers(servers, options)
