"""
Visit every state that can be reached, breadth first, so that the trace to the first broken promise is a shortest one.

Pure, and runs in the tests of ``tests/real_time``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Label = tuple[object, ...]
"""What happens in a step, as the parts of a sentence: few are ever read."""
S = TypeVar("S", bound=Hashable)


class Violation(AssertionError):
    """What must not happen."""


def explore(first: S, steps: Callable[[S], Iterable[tuple[Label, S]]]) -> set[S]:
    """
    All states that can be reached from ``first``.

    :raises Violation: of ``steps``, with the trace that leads there.
    """
    came: dict[S, tuple[S, Label] | None] = {first: None}
    frontier = [first]
    while frontier:
        found: list[S] = []
        for state in frontier:
            try:
                for label, after in steps(state):
                    if after not in came:
                        came[after] = state, label
                        found.append(after)
            except Violation as violation:
                raise Violation("\n".join([*_trace(came, state), f"=> {violation}"])) from None
        frontier = found
    return set(came)


def sentence(label: Label) -> str:
    """The words of a step."""
    return " ".join(map(str, label))


def _trace(came: dict[S, tuple[S, Label] | None], state: S) -> list[str]:
    labels: list[str] = []
    step = came[state]
    while step is not None:
        before, label = step
        labels.append(sentence(label))
        step = came[before]
    return [f"{number}. {label}" for number, label in enumerate(reversed(labels), 1)]
