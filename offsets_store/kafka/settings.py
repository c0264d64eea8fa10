"""
Translate Kafka's settings, as people write them for Spark, into librdkafka's.

Pure: runs where brokers are named. People write ``kafka.security.protocol`` and so on, and a JAAS text
(``sasl.jaas.config``) for user and password, as Kafka's clients in Java take it. Invariant: a setting is translated or
refused, never ignored, and no error repeats a value, which may be a password.

Source: librdkafka's CONFIGURATION.md, and "Java security settings" in Apache Kafka's documentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..errors import ConfigurationError, bad_option

PREFIX = "kafka."

# Settings that mean the same to librdkafka, under these names.
_SAME = {
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "ssl.key.password": "ssl.key.password",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "client.id": "client.id",
    "client.dns.lookup": "client.dns.lookup",
}
_OTHERWISE = (
    "sasl.jaas.config",
    "ssl.truststore.location",
    "ssl.truststore.type",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.keystore.password",
    "ssl.endpoint.identification.algorithm",
)
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# Kafka takes a store for a JKS file if nothing is said of its type. A name like these can only be meant as PEM.
_PEM_FILE = re.compile(r"\.(pem|crt|cer)$", re.IGNORECASE)
_TO_PEM = (
    "Write what is in it to a PEM file (keytool -exportcert -rfc, or openssl pkcs12 -in STORE -out FILE.pem), and give "
    "that, with {store}.type=PEM. Spark's source reads it as well."
)
_SECRETS = ("sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem")


PATIENCE_SECONDS = 15.0
"""How long brokers have to answer."""


@dataclass(frozen=True)
class Brokers:
    """
    The addresses of Kafka brokers (``host:port``, several with commas), and librdkafka's settings for them.

    Two that are equal are the same brokers, asked in the same way. No answer takes longer than ``patience_seconds``.
    """

    servers: str
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    patience_seconds: float = field(default_factory=lambda: PATIENCE_SECONDS)

    @property
    def client(self) -> dict[str, str]:
        """What a client of librdkafka is made from."""
        return {"bootstrap.servers": self.servers, **dict(self.settings)}

    def scrub(self, text: str) -> str:
        """``text`` without the passwords and keys among the settings."""
        for name, value in self.settings:
            if name in _SECRETS and value:
                text = text.replace(value, "***")
        return text


# What only consumers of Spark's have, and a question about metadata needs not.
_LOGIN = ("security.", "sasl.", "ssl.", "client.")


def of_the_login(given: Mapping[str, str]) -> dict[str, str]:
    """Those of Kafka's settings, by their names in Spark, that say how to log in."""
    return {name: value for name, value in given.items() if name.removeprefix(PREFIX).startswith(_LOGIN)}


def brokers(servers: str | None, options: Mapping[str, str] | None = None) -> Brokers | None:
    """
    The brokers that a person names; None if none are named.

    :param options: Kafka's settings by their names in Spark, which begin with ``kafka.``.
    :raises ConfigurationError: for settings without brokers, or that librdkafka cannot follow; for a login among the
        addresses, which errors would show.
    """
    given = {name.lower(): str(value) for name, value in (options or {}).items()}
    if servers is None:
        if given:
            raise bad_option(
                "CLASHING_OPTIONS",
                f"{min(given)} says how to log in to Kafka brokers, but no brokers are named.",
                "Set bootstrapServers (bootstrap_servers) as well, or leave it out.",
            )
        return None
    if "@" in servers:
        raise bad_option(
            "BAD_OPTION",
            "The addresses of Kafka's brokers have an @, as if a login stood in front of one.",
            "Write host:port, several with commas; kafka.security.protocol and kafka.sasl.* say how to log in.",
        )
    for name in given:
        if not name.startswith(PREFIX):
            raise bad_option(
                "UNKNOWN_OPTION",
                f"There is no Kafka setting {name!r}.",
                f"Write it as Spark does, with {PREFIX} in front: {PREFIX}security.protocol, for example.",
            )
    return Brokers(servers, client_settings({name.removeprefix(PREFIX): value for name, value in given.items()}))


def client_settings(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """
    Kafka's settings (``security.protocol`` and the like), as librdkafka has them.

    :raises ConfigurationError: for those that librdkafka cannot follow.
    """
    given = {name: value.strip() for name, value in given.items()}
    # Kafka takes it in any case.
    given |= {name: given[name].upper() for name in ("security.protocol",) if name in given}
    for name in given:
        if name not in _SAME and name not in _OTHERWISE:
            raise _refused(name)
    _refuse_other_words(given, "security.protocol", _PROTOCOLS)
    _refuse_other_words(given, "sasl.mechanism", _MECHANISMS)
    found = {_SAME[name]: value for name, value in given.items() if name in _SAME}
    for told_otherwise in (_login, _truststore, _keystore):
        found.update(told_otherwise(given))
    if (algorithm := given.get("ssl.endpoint.identification.algorithm")) is not None:
        # Kafka turns the check of host names off with an empty value.
        found["ssl.endpoint.identification.algorithm"] = algorithm.lower() or "none"
    return tuple(sorted(found.items()))


def _refuse_other_words(given: Mapping[str, str], name: str, words: tuple[str, ...]) -> None:
    value = given.get(name)
    if value is not None and value not in words:
        raise bad_option(
            "BAD_OPTION",
            f"{name} must be one of {', '.join(words)} here.",
            "Kerberos, OAuth and IAM are not supported here; without bootstrapServers, pgonce asks no brokers at all.",
        )


def _refused(name: str) -> ConfigurationError:
    if name == "bootstrap.servers":
        return bad_option(
            "UNKNOWN_OPTION", f"{name} is not a setting of the login.", "Set bootstrapServers, with its value."
        )
    if name == "ssl.truststore.password":
        return bad_option(
            "BAD_OPTION",
            f"{name} belongs to a JKS or PKCS12 file, which librdkafka cannot read.",
            _TO_PEM.format(store="ssl.truststore"),
        )
    known = ", ".join(sorted([*_SAME, *_OTHERWISE]))
    return bad_option(
        "UNKNOWN_OPTION", f"{name} is not a Kafka setting that can be used here.", f"The settings are {known}."
    )


def _login(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if (jaas := given.get("sasl.jaas.config")) is not None:
        user, password = user_and_password(jaas)
        yield "sasl.username", user
        yield "sasl.password", password


def _truststore(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    location = given.get("ssl.truststore.location")
    kind = _type_of(given, "ssl.truststore")
    if location is not None or "ssl.truststore.certificates" in given:
        if kind != "PEM":
            raise _unreadable_store("ssl.truststore", kind)
        if location is not None:
            yield "ssl.ca.location", location


def _keystore(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    location = given.get("ssl.keystore.location")
    password = given.get("ssl.keystore.password")
    kind = _type_of(given, "ssl.keystore")
    if location is not None and kind == "PKCS12":
        yield "ssl.keystore.location", location
        if password is not None:
            yield "ssl.keystore.password", password
        return
    if kind != "PEM" and (location is not None or "ssl.keystore.key" in given):
        raise _unreadable_store("ssl.keystore", kind)
    if password is not None:
        raise bad_option(
            "BAD_OPTION", "ssl.keystore.password is for a PKCS12 file.", "A PEM file has ssl.key.password."
        )
    if location is not None:
        # Kafka has key and certificates in one file, and librdkafka takes from it what each of these asks for.
        yield "ssl.certificate.location", location
        yield "ssl.key.location", location


def _type_of(given: Mapping[str, str], store: str) -> str:
    kind = given.get(f"{store}.type")
    if kind:
        return kind.upper()
    is_text = f"{store}.certificates" in given or f"{store}.key" in given
    return "PEM" if is_text or _PEM_FILE.search(given.get(f"{store}.location", "")) else "JKS"


def _unreadable_store(store: str, kind: str) -> ConfigurationError:
    return bad_option(
        "BAD_OPTION",
        f"{store} is a {kind} file, or its type is not set. librdkafka, which asks the brokers here, cannot read it.",
        _TO_PEM.format(store=store),
    )


_WHOLE = re.compile(r"\s*([\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(.*);\s*", re.IGNORECASE | re.DOTALL)
_OPTION = re.compile(r"""\s*([\w.$-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""", re.DOTALL)
# Some distributions of Spark bring Kafka's classes under other packages.
_MODULES = (".PlainLoginModule", ".ScramLoginModule")


def user_and_password(text: str) -> tuple[str, str]:
    """
    What a login by PLAIN or SCRAM needs.

    :raises ConfigurationError: BAD_OPTION, for a text that says something else.
    """
    module, options = _parsed(text)
    # With tokenauth, user and password are those of a delegation token, which librdkafka cannot use.
    if not module.endswith(_MODULES) or options.get("tokenauth", "").lower() == "true":
        raise bad_option(
            "BAD_OPTION",
            "sasl.jaas.config names a login module that cannot be used here.",
            "Use PlainLoginModule or ScramLoginModule, with username and password.",
        )
    for name in ("username", "password"):
        if name not in options:
            raise bad_option(
                "BAD_OPTION", f"sasl.jaas.config has no {name}.", f'Add {name}="...", before the semicolon.'
            )
    return options["username"], options["password"]


def _parsed(text: str) -> tuple[str, dict[str, str]]:
    whole = _WHOLE.fullmatch(text)
    options: dict[str, str] = {}
    if whole is not None:
        rest = whole[2]
        while option := _OPTION.match(rest):
            quoted = option[2] if option[2] is not None else option[3]
            options[option[1]] = option[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
            rest = rest[option.end() :]
        if not rest.strip():
            return whole[1], options
    raise bad_option(
        "BAD_OPTION",
        "sasl.jaas.config cannot be read.",
        "Write it as Kafka's documentation does: org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="..." password="...";',
    )
