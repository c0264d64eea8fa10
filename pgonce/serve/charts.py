"""
Draw rows, seconds and lag as SVG.

Pure: runs in ``pgonce serve``. Invariant: only numbers are drawn, and each text in a picture is escaped; colours are
those of the stylesheet, because the page's policy allows no style in the markup.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

_SPARK_HEIGHT = 18
_BAR_HEIGHT = 100
_MARK_HEIGHT = 8
_GAP = 0.18


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
