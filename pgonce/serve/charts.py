"""
Draw rows, seconds and lag as SVG.

Pure: runs in ``pgonce serve``. Invariant: only numbers are drawn, and each text in a picture is escaped; colours are
those of the stylesheet, because the page's policy allows no style in the markup.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

_SPARK_HEIGHT = 18
_BAR_HEIGHT = 100
_GAP = 0.18


def sparkline(values: Sequence[int]) -> Markup:
    """
    The course of a number, a step for each value; one with a value but 0 is always seen.

    >>> sparkline([0, 0, 3])
    Markup('<svg class="spark" viewBox="0 0 3 18" preserveAspectRatio="none" aria-hidden="true"><path d="M0 18h2v-18h1V18z"/></svg>')
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
    return Markup('<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" aria-hidden="true"><path d="{}"/></svg>').format(
        len(values), _SPARK_HEIGHT, "".join(path)
    )


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
            f'<g><title>{escape(title)}</title><rect class="column" x="{place}" y="0" width="1" height="{_BAR_HEIGHT + 8}"/>'
            f'<rect class="bar" x="{place + _GAP / 2:g}" y="{_BAR_HEIGHT - height:.1f}" width="{1 - _GAP:g}" height="{height:.1f}"/>'
            + (f'<rect class="mark" x="{place}" y="{_BAR_HEIGHT + 2}" width="1" height="6"/>' if any(marked[place : place + 1]) else "")
            + "</g>"
        )
    body = Markup("".join(parts))  # noqa: S704 (numbers, and titles that were escaped)
    return Markup('<svg class="bars {}" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img">{}</svg>').format(
        kind, max(len(values), 1), _BAR_HEIGHT + 8, body
    )
