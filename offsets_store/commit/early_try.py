"""
May a batch's transaction begin before all its rows are there?

Runs on the driver and in the receiver, while Spark's job runs. Invariant: an early transaction is one try. Whatever
goes wrong in it is met again, and then raised, by the commit that begins once the rows are there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from ..errors import PgonceError, without_its_words
from ..verdict.decide import Verdict
from ..verdict.facts import PlannedBatch
from .retrying import commit_batch, left_unknown
from .settings import CommitSettings
from .work import Work

_log = logging.getLogger("pgonce")

_BEGINS_AGAIN = "batch %s begins again when its rows are there: %s"


class NotNowError(Exception):
    """Raised by the work of an early transaction whose rows are missing, or are not those that were wanted."""


@dataclass
class EarlyTry:
    """
    The one try that may come before the commit.

    Call :meth:`begin` first, or not at all. Then call :meth:`commit`, unless ``verdict`` says what became of the batch.

    ``verdict`` is what became of the batch, if the try succeeded. ``outcome_unknown`` tells the commit that follows
    that the try may have been committed, although its answer was lost.
    """

    settings: CommitSettings
    verdict: Verdict | None = None
    outcome_unknown: bool = False

    def begin(self, planned: PlannedBatch, work: Work) -> None:
        """Publish or skip the batch now, or leave it to :meth:`commit`. No error gets out of this."""
        try:
            # One try only: while rows are missing, this transaction should not hold up other sessions, or end them.
            self.verdict = commit_batch(replace(self.settings, retry_timeout=0), planned, work)
        except NotNowError as why:
            _log.info(_BEGINS_AGAIN, planned.batch_id, why)
        except Exception as error:  # noqa: BLE001 (an error that lasts is met again)
            self.outcome_unknown = left_unknown(error)
            _log.warning(_BEGINS_AGAIN, planned.batch_id, _reason(error))

    def commit(self, planned: PlannedBatch, work: Work) -> Verdict:
        """Publish or skip the batch, with all the patience that the settings allow, whatever became of the try."""
        return commit_batch(self.settings, planned, work, outcome_unknown=self.outcome_unknown)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, PgonceError) else without_its_words(error)
