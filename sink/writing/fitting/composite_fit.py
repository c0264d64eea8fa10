"""
Decide whether a struct can go into a composite type, or an array of structs into an array of such a type.

Pure; runs in the driver. Invariant: every field goes into an attribute that takes it as a column would, or the struct
is refused. Structs are encoded as JSON. Postgres makes the composite value from it with the attributes' input
functions, lengths and precisions: a text that is too long raises, while an explicit cast of a ROW cuts it.
"""

from __future__ import annotations

from collections.abc import Callable

from psycopg import sql
from pyspark.sql import types as t

from ...encoding.encoded_types import EncodedColumn, VariantType, encoded_column
from .fit import Attribute, Expression, Fit, Fitting, UserType, refused

FitPart = Callable[[EncodedColumn, Attribute], Fitting]

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


def fit_composite(encoded: EncodedColumn, full_type: str, target: UserType, fit_part: FitPart) -> Fitting:
    """
    Say whether an encoded column can become a value of a composite type, or of an array of one.

    :param fit_part: says the same of a field and an attribute.
    """
    is_array = target.element is not None
    composite = target.element or target
    struct = encoded.data_type
    if is_array and isinstance(struct, t.ArrayType):
        struct = struct.elementType
    if not isinstance(struct, t.StructType) or isinstance(encoded.data_type, t.ArrayType) is not is_array:
        names = ", ".join(attribute.name for attribute in composite.attributes)
        what = "an array of structs" if is_array else "a struct"
        return refused(encoded, full_type, f"make {what} with the fields {names} in Spark")
    forms = _Forms(fit_part)
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

    def __init__(self, fit_part: FitPart) -> None:
        self._fit_part = fit_part
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
        fitting = self._fit_part(encoded, attribute)
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
        return "an array of binary has no place in a composite type: make it a column of its own"
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
