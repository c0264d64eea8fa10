"""Write rows by key: upserts, and changes with deletes."""

from .apply import write_by_key_in_tx
from .keys import plan_upsert, refuse_actions_between

__all__ = ["plan_upsert", "refuse_actions_between", "write_by_key_in_tx"]
