"""
Histories that Hypothesis draws for a state machine.

Runs in: pytest. Invariant: a history that fails is printed so that it can be run again.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def live_through(machine: type[RuleBasedStateMachine], examples: int, steps: int, **attributes: object) -> None:
    """Run so many histories of at most so many steps each, of a machine that has these attributes."""
    run_state_machine_as_test(
        type("Here", (machine,), attributes),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
