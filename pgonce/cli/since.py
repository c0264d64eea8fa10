"""
Read a time in the past as people write it: ``3h``, ``03:00``, ``2026-11-26``, or ``2026-11-26 03:00``.

Pure. Invariant: the time has a zone, that of this machine unless the text says another, and is not in the future.
"""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGO = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_OF_THE_DAY = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
FORMS = "90s, 5m, 3h or 2d (so long ago), 03:00 (the last time it was that late here), or 2026-11-26"


def parse_since(text: str, now: datetime | None = None) -> datetime:
    """
    The time that ``text`` means.

    :param now: the present, with a zone.
    :raises ValueError: if it has none of :data:`FORMS`, or is in the future; the text of the error is a sentence.
    """
    text, now = text.strip(), (now or datetime.now().astimezone()).astimezone()
    try:
        found = _ago(text, now) or _of_the_day(text, now) or _dated(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time. Write {FORMS}.") from None
    if found > now:
        raise ValueError(f"{text!r} is in the future.")
    return found


def _ago(text: str, now: datetime) -> datetime | None:
    match = _AGO.fullmatch(text)
    return now - timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else None


def _of_the_day(text: str, now: datetime) -> datetime | None:
    match = _OF_THE_DAY.fullmatch(text)
    if match is None:
        return None
    at = time(int(match[1]), int(match[2]), int(match[3] or 0))
    # A time without a zone is one of this machine's clock, whose distance from UTC changes twice a year.
    today, yesterday = (datetime.combine(now.date() - timedelta(days=days), at).astimezone() for days in (0, 1))
    return today if today <= now else yesterday


def _dated(text: str) -> datetime:
    # Python 3.10 does not read the Z of UTC.
    return datetime.fromisoformat(re.sub(r"(?<=\d)[zZ]$", "+00:00", text)).astimezone()
