"""
Every room that writing may need, each loaded when an option asks for it.

Handed to the core by all that users and Spark call. Invariant: importing this module loads no room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgonce.sink.data_source.offer import Receivers
    from pgonce.sink.read_rows import Decoders, Feeds
    from pgonce.sink.writing.rooms import BadRows, ByKey, NewColumns, Routing


@dataclass(frozen=True)
class EveryRoom:
    """What the core knows as :class:`~pgonce.sink.data_source.offer.DataSourceRooms`."""

    def receivers(self) -> Receivers:
        """For ``receiver``."""
        from pgonce.sink.data_source.receiver import launch

        return launch

    def feeds(self) -> Feeds:
        """For ``mode=apply``."""
        from pgonce.sink import changes

        return changes

    def decoders(self) -> Decoders:
        """For ``decode``."""
        from pgonce.sink import decoding

        return decoding

    def by_key(self) -> ByKey:
        """For ``mode=upsert`` and ``mode=apply``."""
        from pgonce.sink.writing import by_key

        return by_key

    def bad_rows(self) -> BadRows:
        """For ``deadLetters``, and for an error that may be about a row."""
        from pgonce.sink.writing import bad_rows

        return bad_rows

    def routes(self) -> Routing:
        """For ``route``."""
        from pgonce.sink.writing import routes

        return routes

    def new_columns(self) -> NewColumns:
        """For ``schemaEvolution=addColumns``."""
        from pgonce.sink.writing import new_columns

        return new_columns


EVERY_ROOM = EveryRoom()
