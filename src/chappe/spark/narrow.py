"""Topics asked only for the columns that a query needs.

Spark tells sources in Python neither which columns a query needs nor lets them hand over fewer. But its optimizer
knows: what stands right above a relation in an optimised plan names all that is taken from it. So the plan as it was
written gets another relation in the place of each topic's, which has only these ``columns``, below a projection that
puts constants where the others were. The optimizer drops these, as it dropped the columns: what it has found out
holds for every value that a column may have, so the constant is null only where null may be.

What cannot be told for sure stays as it is: parts of a query that are used more than once, subqueries in expressions,
tables of a catalogue, and Spark Connect, where the plan is elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_Java: TypeAlias = Any  # an object in the driver's JVM
_RELATIONS: Final = frozenset({"StreamingRelationV2", "DataSourceV2Relation", "DataSourceV2ScanRelation"})
_CHOOSE: Final = frozenset({"Project", "Aggregate"})  # of what is below only that is left which their expressions name
_PASS: Final = frozenset(
    {"Filter", "EventTimeWatermark", "Sort", "GlobalLimit", "LocalLimit", "Repartition", "RepartitionByExpression"}
)
_SELECTS: Final = frozenset({"subscribe", "subscribepattern", "assign"})  # without one it is a table of a catalogue
_LEAST: Final = "offset"  # a query that counts needs none: this one costs the least


def narrowed(df: DataFrame) -> DataFrame:
    """The same rows, for which topics are asked only for the columns that ``df`` needs.

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
    needed = _needed(session._jsparkSession.sessionState().optimizer().execute(plan), _relations(plan))
    found = _Narrowing(session, needed).of(plan)
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
    """The columns of each relation in a plan, by the numbers that Spark has for them."""
    if _kind(plan) in _RELATIONS:
        return [_ids(plan.output())]
    return [found for each in _each(plan.children()) for found in _relations(each)]


def _needed(optimised: _Java, written: list[frozenset[int]]) -> set[int] | None:
    """Of all relations the columns that are used; None if their like is there that was not ``written``."""
    found: list[frozenset[int]] = []
    needed: set[int] = set()

    def look(node: _Java, wanted: frozenset[int] | None) -> None:
        kind = _kind(node)
        if kind in _RELATIONS:
            found.append(_ids(node.output()))
            needed.update(found[-1] if wanted is None else found[-1] & wanted)
            return
        if kind in _CHOOSE:
            wanted = _ids(node.references())
        elif kind not in _PASS:
            wanted = None
        elif wanted is not None:
            wanted |= _ids(node.references())
        for each in _each(node.children()):
            look(each, wanted)

    look(optimised, None)
    once = len(set(found)) == len(found) and len(set(written)) == len(written)
    return needed if once and set(found) == set(written) else None


class _Narrowing:
    def __init__(self, session: SparkSession, needed: set[int] | None) -> None:
        self._session: Any = session
        self._jvm: Any = session._jvm
        self._needed = needed

    def of(self, plan: _Java) -> _Java:
        """The plan over narrower relations; the very same where there are none."""
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
        if len(kept) == len(columns) or not columns.keys() >= set(kept):
            return relation
        options = {name: text for name, text in options.items() if name.lower() not in ("columns", "includeheaders")}
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
