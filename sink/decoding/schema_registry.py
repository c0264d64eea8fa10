"""
Ask a schema registry for the schemas of records, by the numbers that stand in front of these.

Runs in tasks, and on the driver. Invariant: what a number means never changes, so a process asks for each once. A
registry that does not answer is an error, never a bad record; a number that it does not know is a bad record.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import UUID

from pgonce.offsets_store.errors import NOTHING, ConfigurationError, bad_option

from ..errors import EncodingError
from ..options.definitions import DecodeFormat
from .json_schema import JsonSchema

if TYPE_CHECKING:
    from .avro_schema import AvroSchema
    from .protobuf_schema import ProtobufSchema

    Registered = AvroSchema | JsonSchema | ProtobufSchema

_NUMBERS = ("max.retries", "retries.wait.ms", "retries.max.wait.ms", "timeout", "cache.capacity")
_OFTEN: dict[str, Any] = {"max.retries": 6, "timeout": 10}
"""About half a minute, for a registry that is being started again."""


class SchemaRegistry:
    """
    A registry that answers as Confluent's does.

    :param url: its address, with user and password, and what Confluent's client can be told as parameters:
        ``https://key:secret@registry:8081?ssl.ca.location=/etc/ca.pem``.
    :raises ConfigurationError: BAD_OPTION.
    """

    def __init__(self, url: str) -> None:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient
            from confluent_kafka.schema_registry.serde import SchemaId
        except ImportError:
            raise _not_installed() from None
        addresses, _, parameters = url.partition("?")
        settings = _OFTEN | dict(parse_qsl(parameters, keep_blank_values=True))
        settings |= {name: int(settings[name]) for name in _NUMBERS if str(settings.get(name, "")).isdigit()}
        try:
            # The client logs the addresses that it asks.
            self._shown = ",".join(_without_login(address, settings) for address in addresses.split(","))
            self._client = SchemaRegistryClient({"url": self._shown, **settings})
        except (ValueError, TypeError, OSError):
            # The client's own text may have a password.
            what = "schemaRegistryUrl is not the address of a registry, or has a setting that its client does not take."
            remedy = (
                "Write https://user:password@registry:8081, and after a question mark settings of Confluent's client, "
                "such as ssl.ca.location=/etc/ca.pem. In a password, write %2F for a slash, and %40, %23 and %3F for "
                "an at, a number sign and a question mark."
            )
            raise bad_option("BAD_OPTION", what, remedy) from None
        self._schemas: dict[int | UUID, Registered | str] = {}
        self.schema_id = SchemaId
        """What reads the number that a record begins with."""

    def schema(self, number: int | UUID) -> Registered | str:
        """
        The schema that has this number, or why its records cannot be read.

        :raises EncodingError: REGISTRY_UNREACHABLE, if the registry does not answer.
        """
        if (found := self._schemas.get(number)) is not None:
            return found
        if isinstance(number, UUID):
            schema = self._asked(self._client.get_schema_by_guid, str(number))
        else:
            schema = self._asked(self._client.get_schema, number) if number <= _MOST else None
        if schema is None:
            return f"Its schema {number} is not in the registry."
        self._schemas[number] = self._parsed(schema) or f"Its schema {number} cannot be read."
        return self._schemas[number]

    def versions(self, subject: str, form: DecodeFormat) -> list[Registered]:
        """
        All schemas of a subject, the oldest first.

        :raises EncodingError: REGISTRY_UNREACHABLE.
        :raises ConfigurationError: BAD_OPTION, if there is no such subject, or one of its schemas names no columns.
        """
        numbers = self._asked(self._client.get_versions, subject)
        if numbers is None:
            remedy = "Start the producer first, which registers it; or name other subjects in schemaSubjects."
            raise bad_option("BAD_OPTION", f"The schema registry has no subject {subject!r}.", remedy)
        versions = (self._asked(self._client.get_version, subject, number) for number in sorted(numbers))
        schemas = [self.schema(version.schema_id) for version in versions if version is not None]
        found = [schema for schema in schemas if not isinstance(schema, str) and schema.form == form]
        if len(found) < len(schemas) or not all(schema.message((0,)).fields() for schema in found):
            what = f"Subject {subject!r} of the registry has a schema without fields, or one that is none of {form}."
            raise bad_option("BAD_OPTION", what, "Create the table and its columns yourself, without schemaSubjects.")
        return found

    def _parsed(self, schema: Any) -> Registered | None:
        # Such a rule encrypts fields.
        of = schema.rule_set
        rules = [*(of.domain_rules or ()), *(of.encoding_rules or ())] if of else ()
        if any("TRANSFORM" in str(rule.kind) for rule in rules):
            return None
        references = list(self._references(schema))
        try:
            if schema.schema_type == "PROTOBUF":
                from .protobuf_schema import ProtobufSchema

                return ProtobufSchema(schema.schema_str, references)
            if schema.schema_type == "JSON":
                return JsonSchema(schema.schema_str, references)
            from .avro_schema import AvroSchema

            is_avro = schema.schema_type in (None, "AVRO")
            return AvroSchema(schema.schema_str, [text for _, text in references]) if is_avro else None
        except (ImportError, OSError):
            raise _not_installed() from None
        except Exception:  # noqa: BLE001 (both libraries raise many kinds, and none is about the registry)
            return None

    def _references(self, schema: Any) -> Iterator[tuple[str, str]]:
        """The names and texts of the schemas that this one needs, each after those that it needs itself."""
        for reference in schema.references or ():
            found = self._asked(self._client.get_version, reference.subject, reference.version)
            if found is not None:
                yield from self._references(found.schema)
                yield reference.name, found.schema.schema_str

    def _asked(self, ask: Any, *what: Any) -> Any:
        """What the registry says; None if it has no such thing."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return ask(*what)
        except SchemaRegistryError as error:
            # Registries that have no guids know none of them.
            has_none = ask == self._client.get_schema_by_guid and error.http_status_code == _NOT_FOUND
            if error.error_code in _NO_SUCH or has_none:
                return None
            why = f"answers {error.http_status_code}: {error.error_message}"
        except Exception as error:  # noqa: BLE001 (its client's library for HTTP is not the same in all versions)
            why = f"does not answer ({type(error).__name__})"
        raise EncodingError(
            "REGISTRY_UNREACHABLE",
            f"The schema registry at {self._shown} {why}.",
            NOTHING,
            "Start the query again when it answers. It is tried for about half a minute; schemaRegistryUrl may say "
            "how often, with ?max.retries=10.",
        )


_MOST = 2**31 - 1
_NOT_FOUND = 404
# A subject, a version, a schema. What is not found for another reason is not the registry's answer.
_NO_SUCH = (40401, 40402, 40403)


@lru_cache(maxsize=8)
def registry_at(url: str) -> SchemaRegistry:
    """The registry at this address, the same one each time, because it remembers schemas."""
    return SchemaRegistry(url)


def _not_installed() -> ConfigurationError:
    what = "Schemas cannot be read where records are decoded: a package or a temporary directory is missing there."
    remedy = "Run pip install 'pgonce[registry]' there, and let TMPDIR be a directory that can be written to."
    return bad_option("BAD_OPTION", what, remedy)


def _without_login(address: str, settings: dict[str, Any]) -> str:
    """The address without user and password, which become settings."""
    parts = urlsplit(address.strip())
    # A password that ends the host too early.
    if "@" in parts.path + parts.fragment:
        raise ValueError
    if parts.username is not None:
        settings["basic.auth.user.info"] = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
