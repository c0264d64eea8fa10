"""Find the rows that cannot be written for their own values, and put them aside as dead letters."""

from .refused_values import note_copied
from .write_what_fits import refuse_bad_batch, write_in_turn_in_tx, write_what_fits_in_tx

__all__ = ["note_copied", "refuse_bad_batch", "write_in_turn_in_tx", "write_what_fits_in_tx"]
