"""
Draw rows, seconds and lag as SVG.

Pure: runs in ``pgonce serve``. Invariant: only numbers and times are drawn, and each text in a picture is escaped;
colours are those of the stylesheet, because the page's policy allows no style in the markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from pgonce.offsets_store.status.figures import UNKNOWN, took_text
from pgonce.offsets_store.status.stored import StoredBatch

_SPARK_HEIGHT = 18
_BAR_HEIGHT = 100
_MARK_HEIGHT = 8
_GAP = 0.18


def number(count: float | None) -> str:
    """
    A whole number with separators.

    >>> number(1234567), number(None)
    ('1,234,567', '?')
    """
    return UNKNOWN if count is None else f"{count:,.0f}"


def sparkline(values: Sequence[int]) -> Markup:
    """
    The course of a number, a step for each value; one with a value but 0 is always seen.

    >>> print(sparkline([0, 0, 3]).partition("<path ")[2])
    d="M0 18h2v-18h1V18z"/></svg>
    """
    most = max(values, default=0)
    path, height, run = ["M0 18"], 0, 0
    for value in values:
        now = max(round(value / most * _SPARK_HEIGHT), 1) if value > 0 else 0
        if now != height:
            path += [f"h{run}"] * (run > 0) + [f"v{height - now}"]
            height, run = now, 0
        run += 1
    path.append(f"h{run}V{_SPARK_HEIGHT}z")
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true"><path d="{}"/></svg>'
    ).format(len(values), _SPARK_HEIGHT, "".join(path))


_COLUMN = Markup(
    '<g><title>{title}</title><rect class="column" x="{x}" y="0" width="1" height="{whole}"/>'
    '<rect class="bar" x="{left:g}" y="{top:.1f}" width="{width:g}" height="{height:.1f}"/>{mark}</g>'
)
_MARK = Markup('<rect class="mark" x="{x}" y="{y}" width="1" height="6"/>')


def bars(
    values: Sequence[float | None], titles: Sequence[str], marked: Sequence[bool] = (), *, kind: str = "rows"
) -> Markup:
    """
    One bar for each value; None leaves a gap. A mark stands below those that are ``marked``.

    :param titles: what is shown when the pointer rests on a bar.
    """
    most = max((value for value in values if value is not None), default=0) or 1
    parts = []
    for place, (value, title) in enumerate(zip(values, titles, strict=True)):
        height = 0.0 if value is None else max(value / most * _BAR_HEIGHT, 1.0 if value else 0.4)
        # The whole column takes the pointer, however low its bar is.
        parts.append(
            _COLUMN.format(
                title=title,
                x=place,
                whole=_BAR_HEIGHT + _MARK_HEIGHT,
                left=place + _GAP / 2,
                width=1 - _GAP,
                top=_BAR_HEIGHT - height,
                height=height,
                mark=_MARK.format(x=place, y=_BAR_HEIGHT + 2) if any(marked[place : place + 1]) else "",
            )
        )
    return Markup('<svg class="bars {}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img">{}</svg>').format(
        kind, max(len(values), 1), _BAR_HEIGHT + _MARK_HEIGHT, Markup("").join(parts)
    )


@dataclass(frozen=True)
class Chart:
    """A picture with its title, the greatest value, and the times below it, the oldest first."""

    title: str
    most: str
    ticks: Sequence[str | Markup]
    picture: Markup


def charts_of(newest: Sequence[StoredBatch], lag: Sequence[int | None]) -> list[Chart]:
    """
    Rows and seconds of the newest batches, and the lag of the last hour.

    :param newest: the batches, the newest first.
    :param lag: of each minute, the oldest first.
    """
    batches = list(reversed(newest))
    charts = []
    if batches:
        rows = [batch.rows for batch in batches]
        titles = [
            f"batch {batch.batch_id}: {number(batch.rows)} rows, {batch.committed_at:%Y-%m-%d %H:%M:%S} UTC"
            + (f", replayed {batch.replays} times" if batch.replays else "")
            for batch in batches
        ]
        replayed = [batch.replays > 0 for batch in batches]
        ids = f"{batches[0].batch_id} to {batches[-1].batch_id}"
        picture = bars(rows, titles, replayed)
        charts.append(Chart(f"Rows a batch, {ids}", number(max(rows)), _ticks(batches), picture))
        for title, what, took in (
            ("Seconds a commit took", "committed within", [batch.commit_seconds for batch in batches]),
            ("Seconds a batch took, as Spark says", "took", [batch.batch_seconds for batch in batches]),
        ):
            if any(took):
                charts.append(_seconds_chart(title, what, batches, took))
    known = [value for value in lag if value is not None]
    if any(known):
        titles = [f"{len(lag) - 1 - place} min ago: {number(value)} records" for place, value in enumerate(lag)]
        ticks = ("1 h ago", "45 min", "30 min", "15 min", "now")
        charts.append(Chart("Lag in records, last hour", number(max(known)), ticks, bars(lag, titles, kind="lag")))
    return charts


def _seconds_chart(title: str, what: str, batches: Sequence[StoredBatch], took: Sequence[float | None]) -> Chart:
    titles = [f"batch {batch.batch_id} {what} {took_text(each)}" for batch, each in zip(batches, took, strict=True)]
    most = max((seconds for seconds in took if seconds is not None), default=0.0)
    return Chart(title, took_text(most), _ticks(batches), bars(took, titles, kind="seconds"))


# The bars are as wide as each other, however far apart the batches were: so each of these times is that of its batch.
_TICKS = 5


def _ticks(batches: Sequence[StoredBatch]) -> list[Markup]:
    """When batches at equal distances were published; the page's script shows them in the browser's time zone."""
    count = min(_TICKS, len(batches))
    chosen = [batches[round(place * (len(batches) - 1) / max(count - 1, 1))].committed_at for place in range(count)]
    whole_days = (chosen[-1] - chosen[0]).total_seconds() > _DAY
    name, form = ("tick day", "%m-%d %H:%M") if whole_days else ("tick", "%H:%M")
    time = Markup('<time class="{}" datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>')
    return [time.format(name, when.isoformat(), when, when.strftime(form)) for when in chosen]


_DAY = 86_400
