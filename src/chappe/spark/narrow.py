"""Reads only the columns and records of topics that a query needs.

Spark tells sources in Python neither which columns a query needs nor lets them hand over fewer, and filters that it
pushes to such a source for one use of a DataFrame bind all other uses. But its optimizer knows both: what stands right
above a relation in an optimised plan names the columns that are taken from it, and its filters. So the plan as it was
written gets another relation in the place of each topic's, which has only these ``columns`` and, in a batch, these
``filters``, below a projection that puts constants where the others were. The optimizer drops these, as it dropped the
columns: what it has found out holds for every value that a column may have, so the constant is null only where null may
be. Filters stay in the plan, so the source may ignore any of them.

What cannot be told for sure stays as it is: parts of a query that are used more than once, subqueries in expressions,
tables of a catalogue, and Spark Connect, where the plan is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chappe.spark.filters import ALL, Filters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Java: TypeAlias = Any  # an object in the driver's JVM
_RELATIONS: Final = frozenset({"StreamingRelationV2", "DataSourceV2Relation", "DataSourceV2ScanRelation"})
_CHOOSE: Final = frozenset({"Project", "Aggregate"})  # of what is below only that is left which their expressions name
_PASS: Final = frozenset(
    {"Filter", "EventTimeWatermark", "Sort", "GlobalLimit", "LocalLimit", "Repartition", "RepartitionByExpression"}
)
_FLIPPED: Final = {
    "GreaterThan": "LessThan", "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan", "LessThanOrEqual": "GreaterThanOrEqual",
}  # fmt: skip
_BOUNDED: Final = frozenset({"topic", "partition", "offset", "timestamp"})  # columns whose filters bound a read
_VALUES_MAX: Final = 1000  # of an IN to evaluate: each costs a call to Java
_SELECTS: Final = frozenset({"subscribe", "subscribepattern", "assign"})  # without one it is a table of a catalogue
_LEAST: Final = "offset"  # a query that counts needs none: this one costs the least


def narrowed(df: DataFrame) -> DataFrame:
    """Return the same rows, for which topics are asked only for the columns that ``df`` needs.

    In a batch they are also asked only for records that its filters on topic, partition, offset and timestamp leave.

    A stream is narrowed before ``writeStream``, a batch before it is written or collected: what is done with the
    result afterwards narrows no further. Pipelines are narrowed by themselves.

    Args:
        df: A batch or a stream, with any number of topics and other sources in it.

    Returns:
        Another DataFrame over the same sources, or ``df`` where nothing can be left out or told for sure. A stream
        goes on from the checkpoint of one that was not narrowed, and the other way round.
    """
    jdf = getattr(df, "_jdf", None)
    if jdf is None:  # of Spark Connect
        return df
    from pyspark.sql import DataFrame

    session: Any = df.sparkSession
    plan = jdf.queryExecution().analyzed()
    optimised = session._jsparkSession.sessionState().optimizer().execute(plan)
    needed, filters = _needed(optimised, _relations(plan))
    found = _Narrowing(session, needed, filters).of(plan)
    if found is plan:
        return df
    return DataFrame(session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, found), session)


def _each(sequence: _Java) -> Iterator[_Java]:
    iterator = sequence.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _kind(node: _Java) -> str:
    return str(node.getClass().getSimpleName())


def _ids(attributes: _Java) -> frozenset[int]:
    return frozenset(each.exprId().id() for each in _each(attributes))


def _relations(plan: _Java) -> list[frozenset[int]]:
    if _kind(plan) in _RELATIONS:
        return [_ids(plan.output())]
    return [found for each in _each(plan.children()) for found in _relations(each)]


def _needed(optimised: _Java, written: list[frozenset[int]]) -> tuple[set[int] | None, dict[frozenset[int], Filters]]:
    """Return the used columns of all relations, or None if a relation is missing or repeated in the optimised plan;
    and per relation the bounds from the filters above it."""
    found: list[frozenset[int]] = []
    needed: set[int] = set()
    filters: dict[frozenset[int], Filters] = {}

    def look(node: _Java, wanted: frozenset[int] | None, conditions: tuple[_Java, ...]) -> None:
        kind = _kind(node)
        if kind in _RELATIONS:
            found.append(_ids(node.output()))
            needed.update(found[-1] if wanted is None else found[-1] & wanted)
            filters[found[-1]] = _filters(conditions, found[-1])
            return
        if kind in _CHOOSE:
            wanted = _ids(node.references())
        elif kind not in _PASS:
            wanted = None
        elif wanted is not None:
            wanted |= _ids(node.references())
        if kind == "Filter":
            conditions = (*conditions, node.condition())
        elif kind != "Project":  # passed-through columns keep their numbers, so filters above still hold
            conditions = ()
        for each in _each(node.children()):
            look(each, wanted, conditions)

    look(optimised, None, ())
    once = len(set(found)) == len(found) and len(set(written)) == len(written)
    return (needed if once and set(found) == set(written) else None), filters


def _filters(conditions: tuple[_Java, ...], columns: frozenset[int]) -> Filters:
    """Return the bounds that conditions set on these columns; other conditions are ignored."""
    found = ALL
    waiting = list(conditions)
    while waiting:
        each = waiting.pop()
        kind = _kind(each)
        if kind == "And":
            waiting += [each.left(), each.right()]
        elif kind in ("In", "InSet"):
            found = _among(found, each, kind, columns)
        elif kind in ("EqualTo", "EqualNullSafe", "StartsWith", *_FLIPPED):
            found = _compared(found, each, kind, columns)
    return found


def _among(found: Filters, each: _Java, kind: str, columns: frozenset[int]) -> Filters:
    if kind == "In":
        column, given = _column(each.value(), columns), each.list()
        values = [_value(literal) for literal in _each(given)] if given.size() <= _VALUES_MAX else [None]
    else:
        column, given = _column(each.child(), columns), each.hset()
        values = [_plain(literal) for literal in _each(given)] if given.size() <= _VALUES_MAX else [None]
    told = [value for value in values if value is not None]
    return found if column is None or len(told) < len(values) else found.equal(column, told)


def _compared(found: Filters, each: _Java, kind: str, columns: frozenset[int]) -> Filters:
    column, value = _column(each.left(), columns), _value(each.right())
    if column is None:
        kind, column, value = _FLIPPED.get(kind, kind), _column(each.right(), columns), _value(each.left())
        if kind == "StartsWith":
            return found
    if column is None or value is None:
        return found
    if kind.startswith("Equal"):
        return found.equal(column, [value])
    if kind == "StartsWith":
        return found.starts_with(value) if column == "topic" and isinstance(value, str) else found
    if not isinstance(value, int):
        return found
    if kind.startswith("Greater"):
        return found.at_least(column, value + (kind == "GreaterThan"))
    return found.at_most(column, value - (kind == "LessThan"))


def _column(expression: _Java, columns: frozenset[int]) -> str | None:
    if _kind(expression) != "AttributeReference" or expression.exprId().id() not in columns:
        return None
    name = str(expression.name())
    return name if name in _BOUNDED else None


def _value(expression: _Java) -> str | int | None:
    return _plain(expression.value()) if _kind(expression) == "Literal" else None


def _plain(value: _Java) -> str | int | None:
    """Return a text or number of Spark, times as microseconds since 1970; None for other values."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return str(value.toString()) if hasattr(value, "getClass") and _kind(value) == "UTF8String" else None


class _Narrowing:
    def __init__(self, session: SparkSession, needed: set[int] | None, filters: dict[frozenset[int], Filters]) -> None:
        self._session: Any = session
        self._jvm: Any = session._jvm
        self._needed = needed
        self._filters = filters

    def of(self, plan: _Java) -> _Java:
        """Return the plan over narrower relations; the very same where there are none."""
        if self._needed is None:
            return plan
        if _kind(plan) in _RELATIONS:
            return self._relation(plan)
        children = [*_each(plan.children())]
        found = [self.of(each) for each in children]
        if all(new is old for new, old in zip(found, children, strict=True)):
            return plan
        return plan.withNewChildren(self._seq(found))

    def _relation(self, relation: _Java) -> _Java:
        streaming = relation.isStreaming()
        given = relation.extraOptions() if streaming else relation.options()
        options = {str(name): str(value) for name, value in dict(given.asCaseSensitiveMap()).items()}
        if relation.table().name() != "chappe" or not _SELECTS & {name.lower() for name in options}:
            return relation
        assert self._needed is not None
        columns = {each.name(): each for each in _each(relation.output())}
        kept = [name for name, each in columns.items() if each.exprId().id() in self._needed] or [_LEAST]
        told = streaming or "filters" in map(str.lower, options)  # a batch that was narrowed before keeps its filters
        filters = ALL if told else self._filters[_ids(relation.output())]
        narrows = len(kept) < len(columns) or filters != ALL
        if not narrows or not columns.keys() >= set(kept):
            return relation
        options = {name: text for name, text in options.items() if name.lower() not in ("columns", "includeheaders")}
        if filters != ALL:
            options["filters"] = filters.as_text()
        reader = self._session.readStream if streaming else self._session.read
        fresh = reader.format("chappe").options(**options, columns=",".join(kept)).load()._jdf
        narrow = fresh.queryExecution().analyzed()
        parts = {narrow.productElementName(at): narrow.productElement(at) for at in range(narrow.productArity())}
        own = {"table", "extraOptions", "options"}  # the rest, such as the name of a source, is that of the former
        given = {relation.productElementName(at): relation.productElement(at) for at in range(len(parts))}
        given |= {name: part for name, part in parts.items() if name in own}
        given["output"] = self._seq([columns[name] for name in kept])
        shown = [each if name in kept else self._constant(each) for name, each in columns.items()]
        return self._logical().Project(self._seq(shown), narrow.copy(*given.values()))

    def _constant(self, column: _Java) -> _Java:
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        literals, kind = expressions.Literal, column.dataType()
        value = literals.create(None, kind) if column.nullable() else literals.default(kind)
        nothing = self._jvm.scala.Option.empty()
        return expressions.Alias(value, column.name(), column.exprId(), column.qualifier(), nothing, self._seq([]))

    def _logical(self) -> _Java:
        return self._jvm.org.apache.spark.sql.catalyst.plans.logical

    def _seq(self, items: list[_Java]) -> _Java:
        return self._jvm.org.apache.spark.api.python.PythonUtils.toSeq(items)
