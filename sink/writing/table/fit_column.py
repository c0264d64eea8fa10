"""
Decide whether a Spark column may go into a column of the table, for each of Postgres's types.

Pure; runs on the driver. Invariant: that of :mod:`pgonce.sink.writing.table.fit`, which decides about plain values and
arrays of them. What Spark nests goes into json, jsonb and texts as JSON. Postgres makes arrays of several dimensions
and composite values of JSON, with the input functions, lengths and precisions of their parts: a text that is too long
raises, while an explicit cast of a ROW cuts it. Every field of a struct goes into an attribute that takes it as a
column would, or the struct is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from psycopg import sql
from pyspark.sql import types as t

from ...encoding.encoded_types import EncodedColumn, VariantType, encoded_column
from .catalogue import TargetColumn
from .fit import Attribute, Expression, Fit, Fitting, UserType, fit, refused, rounds_its_text, unless
from .fit_extension import fit_extension


def fit_column(encoded: EncodedColumn, target: TargetColumn | Attribute) -> Fitting:
    """Say whether an encoded column may be copied straight into the target, needs a cast, or is refused."""
    found = target.user_type
    kind = (found.element or found).kind if found else ""
    if found and kind == "c" and encoded.postgres_type != "text":
        return _fit_composite(encoded, target.full_type, found)
    for part in _parts(found) if found and kind == "c" else ():
        if rounds_its_text(part.base_type, part.full_type):
            why = f"Postgres would round or cut the text of {part.name} ({part.full_type}): make a struct in Spark"
            return refused(encoded, target.full_type, why)
    if found and (special := fit_extension(encoded, target.full_type, found)):
        return special
    if target.base_type in _AS_JSON and (encoded.postgres_type == "jsonb" or encoded.postgres_type.endswith("[]")):
        return _fit_json(encoded, target)
    # An explicit cast to an array of domains would cut texts.
    takes_texts = bool(found and found.element and kind != "d")
    return _fit_dimensions(encoded, target, takes_texts=takes_texts) or fit(
        encoded, target.base_type, target.full_type, takes_texts=takes_texts
    )


def _parts(found: UserType) -> Iterator[Attribute]:
    """The attributes of a composite type, and of those within it."""
    for attribute in found.attributes:
        yield attribute
        if (inner := attribute.user_type) is not None:
            yield from _parts(inner.element or inner)


# What JSON is cast to: assigning jsonb to the others is an error.
_AS_JSON = {"jsonb": "jsonb", "json": "json", "text": "text", "character varying": "text"}


def _fit_json(encoded: EncodedColumn, target: TargetColumn | Attribute) -> Fitting:
    source, cast_type = encoded.postgres_type, _AS_JSON[target.base_type]
    if source == "jsonb":
        return Fitting(Fit.EXACT, is_json=True) if cast_type == source else Fitting(Fit.CAST, cast_type, is_json=True)
    if source in ("bytea[]", "interval[]"):
        return refused(encoded, target.full_type, "how it is written is a setting: cast to array<string> in Spark")

    def make(value: sql.Composable) -> sql.Composable:
        made = sql.SQL("pg_catalog.to_jsonb({})").format(value)
        # A setting, extra_float_digits, may leave out digits.
        is_other = sql.SQL("{} OPERATOR(pg_catalog.<>) {}").format(_read_array(made, source), value)
        return sql.SQL("({})::pg_catalog.{}").format(
            unless(is_other, value, made, "JSON would not hold this value", source), sql.SQL(cast_type)
        )

    return Fitting(Fit.CAST, cast_type, expression=make, is_json=True)


_NO_ELEMENTS = (t.StructType, t.MapType, VariantType, t.NullType, t.BinaryType)
_MOST_DIMENSIONS = 6
# Postgres refuses what is ragged. But it has no dimensions for arrays that are all empty, and one for nulls.
_OTHER_SHAPE = sql.SQL(
    "{array} IS NOT NULL AND coalesce(pg_catalog.array_ndims({array}), 0) OPERATOR(pg_catalog.<>) {depth} "
    "AND {value} OPERATOR(pg_catalog.<>) '[]'::pg_catalog.jsonb"
)


def _fit_dimensions(encoded: EncodedColumn, target: TargetColumn | Attribute, *, takes_texts: bool) -> Fitting | None:
    """How arrays of arrays become one array of several dimensions; None if they do not."""
    flat, depth = _flat(encoded)
    if not 1 < depth <= _MOST_DIMENSIONS or not target.base_type.endswith("[]"):
        return None
    fitting = fit(flat, target.base_type, target.full_type, takes_texts=takes_texts)

    def make(value: sql.Composable) -> sql.Composable:
        array = _read_array(value, flat.postgres_type)
        other = _OTHER_SHAPE.format(array=array, depth=depth, value=value)
        return fitting.made_of(unless(other, value, array, f"no array of {depth} dimensions", flat.postgres_type))

    return fitting if fitting.fit is Fit.REFUSED else replace(fitting, fit=Fit.CAST, expression=make, by_value=True)


def _flat(encoded: EncodedColumn) -> tuple[EncodedColumn, int]:
    """Of arrays of arrays of plain values, the column of arrays that have all these values, and how deep they are."""
    leaf, depth = encoded.data_type, 0
    while isinstance(leaf, t.ArrayType):
        leaf, depth = leaf.elementType, depth + 1
    if depth == 0 or isinstance(leaf, _NO_ELEMENTS):
        return encoded, 0
    return replace(encoded_column(encoded.name, t.ArrayType(leaf)), spark_type=encoded.spark_type), depth


def _read_array(json: sql.Composable, postgres_type: str) -> sql.Composable:
    return _MAKE.format(json=json, type=sql.SQL(f"pg_catalog.{postgres_type}"), named=sql.SQL("true"))


# Attributes are named, so that one which was renamed since the catalogue was read is an error, and not left null.
_MAKE = sql.SQL(
    "(SELECT made.value FROM pg_catalog.jsonb_to_record(pg_catalog.jsonb_build_object('value', {json})) "
    "AS made (value {type}) WHERE {named})"
)
_NAMED = sql.SQL("(NULL::{}).{} IS NULL")
# A struct, or an array, within another one may be null.
_WHERE_IT_IS = sql.SQL(
    "(CASE WHEN pg_catalog.jsonb_typeof({value}) OPERATOR(pg_catalog.=) {kind} THEN {form} ELSE {value} END)"
)
_OF_ELEMENTS = sql.SQL(
    "(SELECT coalesce(pg_catalog.jsonb_agg({form} ORDER BY {element}.number), '[]') "
    "FROM pg_catalog.jsonb_array_elements({value}) WITH ORDINALITY AS {element} (value, number))"
)
_MERGED = sql.SQL(
    "{value} OPERATOR(pg_catalog.||) (SELECT pg_catalog.jsonb_object_agg(pair.name, pair.part) "
    "FROM (VALUES {pairs}) AS pair (name, part))"
)
_PART = sql.SQL("({} OPERATOR(pg_catalog.->) {}::pg_catalog.text)")
_TEXT = sql.SQL("({} OPERATOR(pg_catalog.#>>) ARRAY[]::pg_catalog.text[])")
_BYTES = sql.SQL("pg_catalog.decode({}, 'base64')")
# Not concat, which passes over nulls.
_HEX = sql.SQL(
    "pg_catalog.to_jsonb({prefix}::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog.encode({value}, 'hex'))"
)
_TEXT_FORM = sql.SQL("pg_catalog.to_jsonb(({})::pg_catalog.text)")
# The value where the expression that only checks it raises no error.
_CHECKED = sql.SQL("CASE WHEN {made} IS NOT NULL THEN {value} END")


def _fit_composite(encoded: EncodedColumn, full_type: str, target: UserType) -> Fitting:
    """Say whether an encoded column can become a value of a composite type, or of an array of one."""
    is_array = target.element is not None
    composite = target.element or target
    struct = encoded.data_type
    if is_array and isinstance(struct, t.ArrayType):
        struct = struct.elementType
    if not isinstance(struct, t.StructType) or isinstance(encoded.data_type, t.ArrayType) is not is_array:
        names = ", ".join(attribute.name for attribute in composite.attributes)
        what = "an array of structs" if is_array else "a struct"
        return refused(encoded, full_type, f"make {what} with the fields {names} in Spark")
    named: dict[tuple[str, str], None] = {}
    try:
        form = _form_of_part(encoded.name, encoded.data_type or struct, target, named)
    except _UnfitPartError as unfit:
        return unfit.fitting
    are_there = sql.SQL(" AND ").join(_NAMED.format(sql.SQL(kind), sql.Identifier(name)) for kind, name in named)
    whole = sql.SQL(composite.identifier + ("[]" if is_array else ""))
    return Fitting(
        Fit.CAST,
        expression=lambda value: _MAKE.format(json=form(value) if form else value, type=whole, named=are_there),
    )


class _UnfitPartError(Exception):
    """A part of a struct does not fit."""

    def __init__(self, fitting: Fitting) -> None:
        super().__init__(fitting.reason)
        self.fitting = fitting


def _form_of_part(
    path: str, data_type: t.DataType, target: Attribute | UserType, named: dict[tuple[str, str], None]
) -> Expression | None:
    """
    How JSON becomes JSON that Postgres reads as composite values; None if it is that already.

    :param named: collects the attributes that are meant: (the type's name, the attribute's).
    :raises _UnfitPartError: naming the part.
    """
    found = target if isinstance(target, UserType) else target.user_type
    if found is not None and isinstance(data_type, t.StructType) and found.kind == "c":
        return _form_of_struct(path, data_type, found, named)
    element, of_array = found.element if found else None, getattr(data_type, "elementType", None)
    if element is not None and element.kind == "c" and isinstance(of_array, t.StructType):
        path = f"{path}.element"
        return _of_elements(_form_of_struct(path, of_array, element, named), f"element_{path.count('.')}")
    # A field that is always null has no type to fit.
    if isinstance(target, UserType) or isinstance(data_type, t.NullType):
        return None
    return _form_of_plain(encoded_column(path, data_type), target)


def _form_of_struct(
    path: str, struct: t.StructType, composite: UserType, named: dict[tuple[str, str], None]
) -> Expression | None:
    changed: list[tuple[str, str, Expression | None]] = []
    for field, attribute in _paired(path, struct, composite):
        named[composite.identifier, attribute.name] = None
        form = _form_of_part(f"{path}.{field.name}", field.dataType, attribute, named)
        if form is not None or field.name != attribute.name:
            changed.append((attribute.name, field.name, form))
    return _of_changed(changed) if changed else None


def _form_of_plain(encoded: EncodedColumn, attribute: Attribute) -> Expression | None:
    fitting, source = fit_column(encoded, attribute), encoded.postgres_type
    if fitting.fit is Fit.REFUSED:
        raise _UnfitPartError(fitting)
    if fitting.is_json and not isinstance(encoded.data_type, VariantType):
        return None
    if why := _not_from_json(encoded, attribute):
        raise _UnfitPartError(refused(encoded, attribute.full_type, why))
    if source == "bytea" and fitting.fit is Fit.EXACT:
        return lambda value: _HEX.format(prefix=sql.Literal("\\x"), value=_BYTES.format(_TEXT.format(value)))
    if not (fitting.expression or source == "bytea"):
        return None

    def form(value: sql.Composable) -> sql.Composable:
        came = value if source == "jsonb" else _read_array(value, source) if source[-1] == "]" else _TEXT.format(value)
        made = fitting.made_of(_BYTES.format(came) if source == "bytea" else came)
        # Not as a text, which may depend on a setting.
        return _CHECKED.format(made=made, value=value) if fitting.by_value else _TEXT_FORM.format(made)

    return form


def _not_from_json(encoded: EncodedColumn, attribute: Attribute) -> str:
    """Why a value that fits as a column cannot be read from JSON, or an empty text."""
    source = _flat(encoded)[0].postgres_type.removesuffix("[]")
    target = attribute.base_type.removesuffix("[]")
    if isinstance(encoded.data_type, VariantType):
        return "a variant's null could not be told from a missing one: make it a column of its own"
    if source == "text" and target in ("json", "jsonb"):
        return "within a struct, a text would become a JSON string: make it a struct or a map"
    if source == "float4" and target == "double precision":
        return "within a struct, a float has fewer digits than the double: cast to double in Spark"
    if encoded.postgres_type == "bytea[]":
        return "an array of binary cannot be part of a composite type: make it a column of its own"
    return ""


def _paired(path: str, struct: t.StructType, composite: UserType) -> list[tuple[t.StructField, Attribute]]:
    """
    Each field with its attribute; as with columns, names match exactly, or else without regard to case.

    :raises _UnfitPartError: for a field without an attribute, or two with the same.
    """
    names = [attribute.name for attribute in composite.attributes]
    pairs: list[tuple[t.StructField, Attribute]] = []
    for field in struct:
        exact = [attribute for attribute in composite.attributes if attribute.name == field.name]
        found = exact or [a for a in composite.attributes if a.name.lower() == field.name.lower()]
        if len(found) != 1 or found[0] in (attribute for _, attribute in pairs):
            encoded = EncodedColumn(path, struct.simpleString(), "jsonb", "jsonb")
            why = f"field {field.name!r} has no attribute of its own among {', '.join(names)}: rename or drop it"
            raise _UnfitPartError(refused(encoded, f"{composite.schema}.{composite.name}", why))
        pairs.append((field, found[0]))
    return pairs


def _of_changed(changed: list[tuple[str, str, Expression | None]]) -> Expression:
    """The struct's object with the changed attributes: (name, field, form)."""

    def form_object(value: sql.Composable) -> sql.Composable:
        parts = ((name, _PART.format(value, sql.Literal(field)), form) for name, field, form in changed)
        pairs = (sql.SQL("({}, {})").format(sql.Literal(name), form(part) if form else part) for name, part, form in parts)
        merged = _MERGED.format(value=value, pairs=sql.SQL(", ").join(pairs))
        return _WHERE_IT_IS.format(value=value, kind=sql.Literal("object"), form=merged)

    return form_object


def _of_elements(form: Expression | None, alias: str) -> Expression | None:
    if form is None:
        return None
    element = sql.Identifier(alias)

    def form_array(value: sql.Composable) -> sql.Composable:
        formed = _OF_ELEMENTS.format(form=form(sql.SQL("{}.value").format(element)), element=element, value=value)
        return _WHERE_IT_IS.format(value=value, kind=sql.Literal("array"), form=formed)

    return form_array
