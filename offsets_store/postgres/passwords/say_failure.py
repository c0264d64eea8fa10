"""
What may be said of a password source that failed?

Pure: runs wherever a connection is made. Invariant: no password, token or key gets through, though the text comes from
somebody else's code: too much is hidden rather than too little.
"""

from __future__ import annotations

import os
import re

from ...errors import ConfigurationError, ConnectError
from ..translate import scrub

_LONGEST = 300
_HIDDEN = "***"

_SECRET = r"(?:secret|token|passw|pwd|credential|assertion|signature|api.?key|access.?key|private.?key)"  # noqa: S105 (names of secrets, none itself)
_SECRET_NAME = re.compile(_SECRET, re.IGNORECASE)
# The name of a secret, as in JSON, URLs, headers and Python's own representations, and all that follows it: nobody
# knows where its value ends.
_NAMED = re.compile(rf"([\w.-]*{_SECRET}[\w.-]*['\"]?\s*(?:=|:|=>|\bis\b)\s*)\S.*", re.IGNORECASE | re.DOTALL)
_AFTER_SCHEME = re.compile(r"(?i)\b((?:bearer|basic|negotiate|digest)\s+)\S+")
_IN_ADDRESS = re.compile(r"(?i)(\w+://)[^/@\s]*@")
_QUERY = re.compile(r"(?i)(\w+://[^\s?'\"]*\?)[^\s'\"]*")
# Tokens look like nothing else: many characters without a space, in which digits and letters are mixed.
_WORD = re.compile(r"[A-Za-z0-9+/=_~%.-]{16,}")
_HOST = re.compile(r"[a-z0-9-]{1,24}(\.[a-z0-9-]{1,24}){2,}")
_KEY_BLOCK = re.compile(r"-----BEGIN.*?(?:-----END[^-]*-----|\Z)", re.DOTALL)

_SHORTEST_KNOWN = 6


def safe_words(text: str) -> str:
    """``text``, as one line of bounded length, without what may be a secret."""
    for secret in sorted(_secrets_of_environment(), key=len, reverse=True):
        if len(secret) >= _SHORTEST_KNOWN:
            text = text.replace(secret, _HIDDEN)
    text = scrub(_KEY_BLOCK.sub(_HIDDEN, text))
    text = _QUERY.sub(rf"\1{_HIDDEN}", _IN_ADDRESS.sub(rf"\1{_HIDDEN}@", text))
    text = _AFTER_SCHEME.sub(rf"\1{_HIDDEN}", _NAMED.sub(rf"\1{_HIDDEN}", text))
    text = " ".join(_WORD.sub(_hidden_if_mixed, text).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _hidden_if_mixed(found: re.Match[str]) -> str:
    word = found[0]
    if _HOST.fullmatch(word):
        return word
    is_path = word.startswith(("/", "./")) and all(len(part) < _SHORTEST_KNOWN * 4 for part in word.split("/"))
    has_both = any(c.isdigit() for c in word) and any(c.isalpha() for c in word)
    return _HIDDEN if has_both and not is_path else word


def _secrets_of_environment() -> list[str]:
    return [value for name, value in os.environ.items() if _SECRET_NAME.search(name) and not name.startswith("PGONCE_")]


def source_missing(what: str, remedy: str) -> ConfigurationError:
    """The error for a password source that is not there in this process."""
    return ConfigurationError("PASSWORD_SOURCE_MISSING", what, "Nothing was written.", remedy)


def source_failed(what: str, remedy: str, *, may_pass: bool) -> ConnectError:
    """The error for a password source that gave no password."""
    return ConnectError("PASSWORD_SOURCE_FAILED", what, "Nothing was written.", remedy, may_pass=may_pass)
