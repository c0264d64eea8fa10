"""
Which user and password does a JAAS text say, as Kafka's clients in Java take it (``sasl.jaas.config``)?

Pure: runs wherever brokers are named. Invariant: an error never repeats the text, which holds a password.
"""

from __future__ import annotations

import re

from ..errors import bad_option

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
