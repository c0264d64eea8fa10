"""
Decide whether a Spark column may go into a column of the table, for each of Postgres's types.

Pure; runs on the driver. Invariant: that of :mod:`pgonce.sink.writing.table.fit`. Composite types and the types of
extensions (pgvector, hstore, PostGIS) are looked at before those that come with Postgres. Every field of a struct goes
into an attribute that takes it as a column would, or the struct is refused. Structs are encoded as JSON. Postgres makes
the composite value from it with the attributes' input functions, lengths and precisions: a text that is too long
raises, while an explicit cast of a ROW cuts it.
"""

from __future__ import annotations

from collections.abc import Iterator

from psycopg import sql
from pyspark.sql import types as t

from ...encoding.encoded_types import EncodedColumn, VariantType, encoded_column
from .catalogue import TargetColumn
from .fit import Attribute, Expression, Fit, Fitting, UserType, fit, refused, rounds_its_text


def fit_column(encoded: EncodedColumn, target: TargetColumn | Attribute) -> Fitting:
    """Say whether an encoded column may be copied straight into the target, needs a cast, or is refused."""
    found = target.user_type
    if found is None:
        return fit(encoded, target.base_type, target.full_type)
    kind = (found.element or found).kind
    if kind == "c" and encoded.postgres_type != "text":
        return _fit_composite(encoded, target.full_type, found)
    for part in _parts(found):
        if kind == "c" and rounds_its_text(part.base_type, part.full_type):
            why = f"Postgres would round or cut the text of {part.name} ({part.full_type}): make a struct in Spark"
            return refused(encoded, target.full_type, why)
    # An explicit cast to an array of domains would cut texts.
    takes_texts = found.element is not None and kind not in "cd"
    return _fit_extension(encoded, target.full_type, found) or fit(
        encoded, target.base_type, target.full_type, takes_texts=takes_texts
    )


def _parts(found: UserType) -> Iterator[Attribute]:
    """The attributes of a composite type, and of those within it."""
    for attribute in found.attributes:
        yield attribute
        if (inner := attribute.user_type) is not None:
            yield from _parts(inner.element or inner)


_NUMBERS = frozenset({"int2[]", "int4[]", "int8[]", "numeric[]"})
_TEXTS = (t.StringType, t.CharType, t.VarcharType)


def _fit_extension(encoded: EncodedColumn, full_type: str, user_type: UserType) -> Fitting | None:
    """Like :func:`~pgonce.sink.writing.table.fit.fit`; None if that decides: nothing special is known of the type."""
    if user_type.is_of("vector", "vector", "halfvec", "sparsevec"):
        return _vector(encoded, full_type, user_type)
    if user_type.is_of("hstore", "hstore") and encoded.postgres_type == "jsonb":
        return _hstore(encoded, full_type, user_type)
    if user_type.is_of("postgis", "geometry") and encoded.postgres_type in ("bytea", "text"):
        # With the modifier, because the cast raises where the assignment does, and takes the column's SRID where there
        # is none: without it, two keys would differ that the table calls equal.
        return Fitting(Fit.CAST, full_type)
    if user_type.is_of("postgis", "geography") and encoded.postgres_type in ("bytea", "text"):
        return _geography(full_type, user_type)
    return None


def _vector(encoded: EncodedColumn, full_type: str, user_type: UserType) -> Fitting | None:
    source = encoded.postgres_type
    if user_type.name == "vector" and source == "float4[]":
        return Fitting(Fit.CAST, user_type.identifier)
    if source == "float8[]" and user_type.name == "vector":
        why = "a vector keeps floats, and would round most doubles: cast to array<float> in Spark"
    elif source in _NUMBERS and user_type.name == "vector":
        why = "a vector keeps floats: cast to array<float> in Spark"
    elif source in ("float4[]", "float8[]") and user_type.name == "halfvec":
        why = (
            "a halfvec keeps 11 bits of a number and would round: alter the column to vector, or leave the rounding to "
            "Postgres and write the text form, concat('[', array_join(cast(c AS array<string>), ','), ']')"
        )
    elif source == "text":
        return None
    else:
        why = f"no conversion keeps every value: cast in Spark to string, in the text form of {user_type.name}"
    return refused(encoded, full_type, why)


def _hstore(encoded: EncodedColumn, full_type: str, user_type: UserType) -> Fitting:
    found = encoded.data_type
    if isinstance(found, t.StructType):
        why = "an hstore holds texts by key: make a map<string,string> of it in Spark, or alter the column to jsonb"
        return refused(encoded, full_type, why)
    if not isinstance(found, t.MapType):
        return refused(encoded, full_type, "an hstore holds texts by key: alter the column to jsonb")
    if not (isinstance(found.keyType, _TEXTS) and isinstance(found.valueType, _TEXTS)):
        why = "an hstore holds texts only: cast to map<string,string> in Spark, or alter the column to jsonb"
        return refused(encoded, full_type, why)
    # Without entries, array_agg is null, and so would be the hstore.
    make = sql.SQL(
        "CASE WHEN pg_catalog.jsonb_typeof({value}) OPERATOR(pg_catalog.=) 'object' THEN (SELECT {hstore}("
        "coalesce(pg_catalog.array_agg(entry.key), ARRAY[]::pg_catalog.text[]), "
        "coalesce(pg_catalog.array_agg(entry.value), ARRAY[]::pg_catalog.text[])) "
        "FROM pg_catalog.jsonb_each_text({value}) AS entry (key, value)) END"
    )
    hstore = sql.SQL(user_type.identifier)
    return Fitting(Fit.CAST, expression=lambda value: make.format(value=value, hstore=hstore))


def _geography(full_type: str, user_type: UserType) -> Fitting:
    # PostGIS moves what is not a longitude and a latitude onto the globe, with no more than a notice: (200, 95) becomes
    # (-160, 85). There is no function that only raises an error, so a text that is not a boolean does.
    make = sql.SQL(
        "CASE WHEN {wkb}({value}::{geometry}::{geography}) OPERATOR(pg_catalog.<>) {wkb}({value}::{geometry}) THEN "
        "CASE WHEN pg_catalog.concat({message}, pg_catalog.left({value}::pg_catalog.text, 0))::pg_catalog.bool "
        "THEN NULL::{geography} END ELSE {value}::{geometry}::{geography}::{full_type} END"
    )
    names = {name: sql.SQL(user_type.beside(name)) for name in ("geometry", "geography")}
    names |= {"full_type": sql.SQL(full_type), "wkb": sql.SQL(user_type.beside("st_asbinary"))}
    message = sql.Literal("a longitude beyond 180 or a latitude beyond 90")
    return Fitting(Fit.CAST, expression=lambda value: make.format(value=value, message=message, **names))


# Attributes are named here, so that one which was renamed since the catalogue was read is an error, and not left null.
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
        why = _not_from_json(encoded, attribute)
        if why:
            raise _UnfitPartError(refused(encoded, attribute.full_type, why))
        make = fitting.expression
        if encoded.postgres_type == "bytea":
            if make is None and not fitting.cast_type:
                return lambda value: _HEX.format(prefix=sql.Literal("\\x"), value=_BYTES.format(_TEXT.format(value)))
            cast = make or _cast_to(fitting.cast_type)
            return lambda value: _TEXT_FORM.format(cast(_BYTES.format(_TEXT.format(value))))
        if make is None:
            return None
        if encoded.postgres_type == "jsonb":
            return lambda value: _TEXT_FORM.format(make(value))
        return lambda value: _TEXT_FORM.format(make(_TEXT.format(value)))


def _cast_to(type_name: str) -> Expression:
    return lambda value: sql.SQL("{}::{}").format(value, sql.SQL(type_name))


def _not_from_json(encoded: EncodedColumn, attribute: Attribute) -> str:
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
