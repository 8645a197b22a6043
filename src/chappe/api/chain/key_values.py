"""A machine that everybody can use: keys and values, with commands and answers in JSON."""

from __future__ import annotations

from chappe.data import binary
from chappe.data.json import dumps_plain, loads_plain
from chappe.data.order import same
from chappe.data.values import Value
from chappe.errors import InvalidData, UsageError
from chappe.kv.engine import Engine


class KeyValues:
    """Keys and values on the engine of data stores.

    =================================== ============================================= =================
    command                             does                                          answers
    =================================== ============================================= =================
    ``["put", KEY, VALUE]``             sets a value                                  ``null``
    ``["erase", KEY]``                  removes a key                                 whether it was there
    ``["add", KEY, NUMBER]``            adds to a number, 0 where nothing is          the sum
    ``["compare", KEY, OLD, NEW]``      sets a value if the old one is there;         whether it was so
                                        ``null`` is nothing
    query ``["get", KEY]``              --                                            the value, or ``null``
    query ``["size"]``                  --                                            how many keys there are
    =================================== ============================================= =================

    Keys are strings, values anything that JSON has but ``null``.
    """

    def __init__(self) -> None:
        self._engine = Engine(changes_max=0)

    def apply(self, command: bytes) -> bytes:
        """Do a command. Raises UsageError for what is none, and TypeClash."""
        engine = self._engine
        match _words(command):
            case ("put", str(key), value) if value is not None:
                engine.put(key, value)
                return b"null"
            case ("erase", str(key)):
                return _text(engine.erase(key) is not None)
            case ("add", str(key), int(number) | float(number)) if not isinstance(number, bool):
                stored = engine.find(key)
                if stored is None:
                    engine.put(key, number)
                else:
                    engine.add(key, number, 0)
                return _text(engine.get(key))
            case ("compare", str(key), old, new):
                return _text(self._compare(key, old, new))
        raise UsageError(f"{command[:100]!r} is no command for keys and values")

    def read(self, query: bytes) -> bytes:
        """Answer a query. Raises UsageError for what is none."""
        match _words(query):
            case ("get", str(key)):
                found = self._engine.find(key)
                return _text(None if found is None else found.value)
            case ("size",):
                return _text(len(self._engine))
        raise UsageError(f"{query[:100]!r} is no query for keys and values")

    def snapshot(self) -> bytes:
        """All keys and values, in the order in which they came to be there."""
        return binary.encode(tuple((entry.key, entry.value) for entry in self._engine.entries.values()))

    def restore(self, state: bytes) -> None:
        """Be as then."""
        pairs = binary.decode(state)
        assert isinstance(pairs, tuple)
        self._engine = Engine(changes_max=0)
        self._engine.put_all(pairs)  # type: ignore[arg-type]

    def _compare(self, key: str, old: Value, new: Value) -> bool:
        found = self._engine.find(key)
        if not (old is None if found is None else same(found.value, old)):
            return False
        if new is None:
            self._engine.erase(key)
        else:
            self._engine.put(key, new)
        return True


def _words(text: bytes) -> Value:
    try:
        return loads_plain(text)
    except InvalidData as error:
        raise UsageError(f"a command is a list in JSON: {error}") from None


def _text(value: Value) -> bytes:
    return dumps_plain(value).encode()
