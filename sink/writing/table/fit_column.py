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
    "coalesce(pg_catalog.array_ndims({array}), 0) OPERATOR(pg_catalog.<>) {depth} "
    "AND {value} OPERATOR(pg_catalog.<>) '[]'::pg_catalog.jsonb"
)


def _fit_dimensions(encoded: EncodedColumn, target: TargetColumn | Attribute, *, takes_texts: bool) -> Fitting | None:
    """How arrays of arrays become one array of several dimensions; None if they do not."""
    leaf, depth = encoded.data_type, 0
    while isinstance(leaf, t.ArrayType):
        leaf, depth = leaf.elementType, depth + 1
    if not 1 < depth <= _MOST_DIMENSIONS or isinstance(leaf, _NO_ELEMENTS) or not target.base_type.endswith("[]"):
        return None
    flat = replace(encoded_column(encoded.name, t.ArrayType(leaf)), spark_type=encoded.spark_type)
    fitting = fit(flat, target.base_type, target.full_type, takes_texts=takes_texts)

    def make(value: sql.Composable) -> sql.Composable:
        array = _read_array(value, flat.postgres_type)
        other = _OTHER_SHAPE.format(array=array, depth=depth, value=value)
        return fitting.made_of(unless(other, value, array, f"no array of {depth} dimensions", flat.postgres_type))

    return fitting if fitting.fit is Fit.REFUSED else replace(fitting, fit=Fit.CAST, expression=make)


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
_PART = sql.SQL("({} OPERATOR(pg_catalog.->) {}::pg_catalog.text)")
_TEXT = sql.SQL("({} OPERATOR(pg_catalog.#>>) ARRAY[]::pg_catalog.text[])")
_BYTES = sql.SQL("pg_catalog.decode({}, 'base64')")
# Not concat, which passes over nulls.
_HEX = sql.SQL(
    "pg_catalog.to_jsonb({prefix}::pg_catalog.text OPERATOR(pg_catalog.||) pg_catalog.encode({value}, 'hex'))"
)
_TEXT_FORM = sql.SQL("pg_catalog.to_jsonb(({})::pg_catalog.text)")
# A function takes at most 100 arguments.
_MOST_PAIRS = 50


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
    forms = _Forms()
    try:
        form = forms.of_part(encoded.name, encoded.data_type or struct, target)
    except _UnfitPartError as unfit:
        return unfit.fitting
    named = sql.SQL(" AND ").join(
        _NAMED.format(sql.SQL(of_type), sql.Identifier(name)) for of_type, name in dict.fromkeys(forms.named)
    )
    whole = sql.SQL(composite.identifier + ("[]" if is_array else ""))
    return Fitting(
        Fit.CAST,
        expression=lambda value: _MAKE.format(json=form(value) if form else value, type=whole, named=named),
    )


class _UnfitPartError(Exception):
    """A part of a struct does not fit."""

    def __init__(self, fitting: Fitting) -> None:
        super().__init__(fitting.reason)
        self.fitting = fitting


class _Forms:
    """
    How the JSON of structs becomes JSON that Postgres reads as composite values; None if it is that already.

    ``named`` collects the attributes that are meant: (the type's name, the attribute's).
    """

    def __init__(self) -> None:
        self.named: list[tuple[str, str]] = []

    def of_part(self, path: str, data_type: t.DataType, target: Attribute | UserType) -> Expression | None:
        """:raises _UnfitPartError: naming the part."""
        found = target if isinstance(target, UserType) else target.user_type
        if found is not None and isinstance(data_type, t.StructType) and found.kind == "c":
            return self._of_struct(path, data_type, found)
        element = found.element if found else None
        if (
            element is not None
            and element.kind == "c"
            and isinstance(data_type, t.ArrayType)
            and isinstance(data_type.elementType, t.StructType)
        ):
            path = f"{path}.element"
            return _of_elements(self._of_struct(path, data_type.elementType, element), f"element_{path.count('.')}")
        # A field that is always null has no type to fit.
        if isinstance(target, UserType) or isinstance(data_type, t.NullType):
            return None
        return self._of_scalar(encoded_column(path, data_type), target)

    def _of_struct(self, path: str, struct: t.StructType, composite: UserType) -> Expression | None:
        changed: list[tuple[str, str, Expression | None]] = []
        for field, attribute in _paired(path, struct, composite):
            self.named.append((composite.identifier, attribute.name))
            form = self.of_part(f"{path}.{field.name}", field.dataType, attribute)
            if form is not None or field.name != attribute.name:
                changed.append((attribute.name, field.name, form))
        return _of_changed(changed) if changed else None

    def _of_scalar(self, encoded: EncodedColumn, attribute: Attribute) -> Expression | None:
        fitting = fit_column(encoded, attribute)
        if fitting.fit is Fit.REFUSED:
            raise _UnfitPartError(fitting)
        why = _not_from_json(encoded, attribute, fitting)
        if why:
            raise _UnfitPartError(refused(encoded, attribute.full_type, why))
        if encoded.postgres_type == "bytea":
            if fitting.fit is Fit.EXACT:
                return lambda value: _HEX.format(prefix=sql.Literal("\\x"), value=_BYTES.format(_TEXT.format(value)))
            return lambda value: _TEXT_FORM.format(fitting.made_of(_BYTES.format(_TEXT.format(value))))
        if fitting.expression is None or fitting.is_json:
            return None
        came = sql.SQL("{}") if encoded.postgres_type == "jsonb" else _TEXT
        return lambda value: _TEXT_FORM.format(fitting.made_of(came.format(value)))


def _not_from_json(encoded: EncodedColumn, attribute: Attribute, fitting: Fitting) -> str:
    """Why a value that fits as a column cannot be read from JSON, or an empty text."""
    source, target = encoded.postgres_type.removesuffix("[]"), attribute.base_type.removesuffix("[]")
    if isinstance(encoded.data_type, VariantType):
        return "a variant's null could not be told from a missing one: make it a column of its own"
    if source == "text" and target in ("json", "jsonb"):
        return "within a struct, a text would become a JSON string: make it a struct or a map"
    if source == "float4" and target == "double precision":
        return "within a struct, a float has fewer digits than the double: cast to double in Spark"
    if encoded.postgres_type == "bytea[]":
        return "an array of binary cannot be part of a composite type: make it a column of its own"
    if fitting.by_value and encoded.postgres_type.endswith("[]"):
        return "within a struct, the elements of an array would be rounded: cast them in Spark, or widen the attribute"
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
        pairs = []
        for name, field, form in changed:
            part = _PART.format(value, sql.Literal(field))
            pairs.append(sql.SQL("{}, {}").format(sql.Literal(name), form(part) if form else part))
        objects = [
            sql.SQL("pg_catalog.jsonb_build_object({})").format(sql.SQL(", ").join(pairs[start : start + _MOST_PAIRS]))
            for start in range(0, len(pairs), _MOST_PAIRS)
        ]
        merged = sql.SQL(" OPERATOR(pg_catalog.||) ").join([value, *objects])
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
