"""The file of permissions: TOML that people read and change, and a last line by which the authority signs all above it.

::

    version = 3                      # grows with each signing
    issued = 2026-11-23T20:00:00Z
    expires = 2036-11-20T20:00:00Z

    [[rules]]                        # the first that fits decides; what no rule fits is denied
    allow = ["produce", "publish"]   # or deny; verbs, or "everything"
    roles = ["producer"]             # and names = ["sensor"]; names = ["*"] is everybody
    topics = ["*"]                   # "orders", or "orders/*" for all that begin so

    [identities.sensor]
    role = "producer"
    curve = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
    endpoint = "232fd6cb-865e-4ddc-b930-ea5d72e3f2e3"
    hosts = ["10.0.0.5"]
    signs = "A0b1..."                # the public key of its certificate
    expires = 2027-12-25T20:00:00Z
    revoked = 2027-01-01T00:00:00Z   # if it was

    [[sealed]]                       # topics that only a group can read; the first that fits decides
    group = "ward"
    topics = ["patients/*"]
    roles = ["doctor"]               # and names = ["monitor"]; names = ["*"] is everybody

    # signed: ecdsa-p256-sha256 MEUC...

The signature is looked at before the rest is, so whoever has no key of the authority cannot reach the parser. What is
signed begins with a text of its own, so that no certificate or other thing that the authority signs is a permission.

The permissions in force, and newer ones that others hand on. Pure; one thread at a time.

Members hand their permissions to each other, over the log and over the mesh, so that a change takes effect without
copying files. The member that hands them on needs no trust: the authority's signature counts, and versions only grow.
"""

from __future__ import annotations

import binascii
import re
import tomllib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Annotated, Final, TypeAlias
from uuid import UUID

import msgspec

from chappe.errors import ConfigError, UsageError
from chappe.permissions.rules import (
    EVERYBODY,
    EVERYTHING,
    ROLES_OF_ALL,
    VERBS,
    Group,
    Identity,
    Permissions,
    Rule,
)

FILE_BYTES_MAX: Final = 1 << 20
IDENTITIES_MAX: Final = 4_000
RULES_MAX: Final = 1_000
GROUPS_MAX: Final = 100  # for which topics are sealed
POINT_BYTES: Final = 33  # of a public key on P-256
LISTED_MAX: Final = 100  # verbs, roles, names or topics of a rule
NAME_MAX: Final = 64  # bytes; the bound of a certificate's common name
TOPIC_MAX: Final = 1_024  # characters
VERSION_MAX: Final = 2**53
SIGNATURE_MAX: Final = 256  # characters
CONTEXT: Final = b"chappe permissions 1\n"  # before what is signed
_SIGNED: Final = re.compile(rb"# signed: ecdsa-p256-sha256 ([A-Za-z0-9+/=]{1,%d})\n?\Z" % SIGNATURE_MAX)
FORMAT: Final = 1  # of a file that does not say: none does so far
_FORMAT: Final = re.compile(rb"^format\s*=\s*(\d{1,9})\s*$", re.MULTILINE)
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_VERSION: Final = re.compile(r"^(version\s*=\s*)\d+", re.MULTILINE)
_ISSUED: Final = re.compile(r"^(issued\s*=\s*)[0-9TtZz:.+ -]*[0-9Zz]", re.MULTILINE)
_HEADER: Final = re.compile(r"""^\s*\[\s*identities\s*\.\s*("[^"\n]*"|'[^'\n]*'|[\w-]+)\s*\]""")
_RULE: Final = re.compile(r"^\s*\[\[\s*rules\s*\]\]")

Check: TypeAlias = Callable[[bytes, bytes], bool]  # whether the first is the authority's signature of the second
_Names = Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=TOPIC_MAX)]],
                   msgspec.Meta(min_length=1, max_length=LISTED_MAX)]  # fmt: skip
_Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class _IdentitySection(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    role: str
    curve: str
    expires: _Moment
    signs: Annotated[bytes, msgspec.Meta(min_length=POINT_BYTES, max_length=POINT_BYTES)]
    endpoint: UUID | None = None
    revoked: _Moment | None = None
    hosts: Annotated[list[str], msgspec.Meta(max_length=LISTED_MAX)] = []


class _RuleSection(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    topics: _Names
    allow: _Names | None = None
    deny: _Names | None = None
    roles: _Names | None = None
    names: _Names | None = None


class _GroupSection(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    group: str
    topics: _Names
    roles: _Names | None = None
    names: _Names | None = None


class _PermissionsFile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    version: Annotated[int, msgspec.Meta(ge=1, le=VERSION_MAX)]
    issued: _Moment
    expires: _Moment
    identities: Annotated[dict[str, _IdentitySection], msgspec.Meta(max_length=IDENTITIES_MAX)] = {}
    rules: Annotated[list[_RuleSection], msgspec.Meta(max_length=RULES_MAX)] = []
    sealed: Annotated[list[_GroupSection], msgspec.Meta(max_length=GROUPS_MAX)] = []


def verified(raw: bytes, check: Check) -> Permissions:
    """Read a file, if the authority has signed it. Raises ConfigError: it has not, or the file is too large or
    malformed. The text lacks the file's name.
    """
    body, signature = split(raw)
    newer = _FORMAT.search(body.partition(b"[")[0])
    if newer is not None and int(newer[1]) > FORMAT:
        raise ConfigError(f"its format is {int(newer[1])}, written by a newer chappe; this one knows {FORMAT}: upgrade")
    if signature is None:
        raise ConfigError("it is not signed: `chappe permissions sign` signs it, where the authority's key is")
    if not check(signature, CONTEXT + body):
        raise ConfigError("it is not as the authority signed it: sign it again with `chappe permissions sign`")
    return parse(body)


def split(raw: bytes, bytes_max: int = FILE_BYTES_MAX) -> tuple[bytes, bytes | None]:
    """Return the signed part, and the signature; None if there is none. Raises ConfigError."""
    if len(raw) > bytes_max:
        raise ConfigError(f"it is larger than {bytes_max} bytes")
    at = raw.rfind(b"\n", 0, max(0, len(raw) - 1)) + 1
    found = _SIGNED.fullmatch(raw, at)
    if found is None:
        return raw, None
    try:
        signature = b64decode(found[1], validate=True)
    except binascii.Error:
        signature = b""
    if b64encode(signature) != found[1]:  # the bits of its last character that carry nothing are zero
        signature = b""  # which is nobody's
    return raw[:at], signature


def signed(body: bytes, sign: Callable[[bytes], bytes]) -> bytes:
    body = body.rstrip(b"\n") + b"\n\n"
    return body + b"# signed: ecdsa-p256-sha256 " + b64encode(sign(CONTEXT + body)) + b"\n"


def parse(body: bytes) -> Permissions:
    """Parse the text. Raises ConfigError, which names the line."""
    if len(body) > FILE_BYTES_MAX:
        raise ConfigError(f"it is larger than {FILE_BYTES_MAX} bytes")
    try:
        text = body.decode()
        file = msgspec.convert(tomllib.loads(text), _PermissionsFile)
    except UnicodeDecodeError as error:
        raise ConfigError(f"line {body[: error.start].count(10) + 1}: not UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"it is not TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(str(error).replace(" - at `$.", " - at `")) from None
    except (ValueError, OverflowError):  # of numbers and times beyond what Python has
        raise ConfigError("it has a number or a time that is out of bounds") from None
    found, rule_lines = _lines(text)
    identities = {name: _identity(name, each, found.get(name, 0)) for name, each in file.identities.items()}
    by_curve = {each.curve: each for each in identities.values()}
    if len(by_curve) < len(identities):
        twice = next(each for each in identities.values() if by_curve[each.curve] is not each)
        raise ConfigError(f"{_at(twice.line)}{twice.name} and {by_curve[twice.curve].name} have the same curve key")
    if len(rule_lines) != len(file.rules):
        rule_lines = [0] * len(file.rules)
    rules = tuple(_rule(each, line) for each, line in zip(file.rules, rule_lines, strict=True))
    groups = tuple(map(_group, file.sealed))
    if len({each.name for each in groups}) < len(groups):
        raise ConfigError("two groups have one name: write all topics of a group into one [[sealed]]")
    return Permissions(file.version, _utc(file.issued), _utc(file.expires), identities, rules, by_curve, groups)


def check_meant(found: Permissions) -> None:
    """Raise ConfigError for ``roles = ["*"]``: it is well formed, but names nobody and reads as everybody.

    Checked before people's texts are signed, not for permissions in force: a revocation must not wait for it.
    """
    for rule in found.rules:
        if EVERYBODY in rule.roles:
            raise ConfigError(f"{_at(rule.line)}{ROLES_OF_ALL}")
    for group in found.sealed:
        if EVERYBODY in group.roles:
            raise ConfigError(f"of the group {group.name}: {ROLES_OF_ALL}")


def check_name(name: str, what: str = "an identity") -> str:
    """Return ``name`` itself; raises UsageError."""
    if not _NAME.fullmatch(name) or name in ("authority", "permissions"):
        raise UsageError(
            f"{name[:100]!a} is no name for {what}: letters, digits, dots, dashes, not 'authority' or 'permissions'"
        )
    return name


def with_identity(text: str, identity: Identity) -> str:
    """Return the text with a further identity, at its end; all else stays as it is."""
    lines = [
        "",
        f"[identities.{quoted(identity.name)}]",
        f"role = {quoted(identity.role, bare=False)}",
        f"curve = {quoted(z85(identity.curve), bare=False)}",
        *([f'endpoint = "{identity.endpoint}"'] if identity.endpoint is not None else []),
        *([f"hosts = [{', '.join(quoted(each, bare=False) for each in identity.hosts)}]"] if identity.hosts else []),
        f'signs = "{b64encode(identity.signs).decode()}"',
        f"expires = {moment(identity.expires)}",
        "",
    ]
    return text.rstrip("\n") + "\n" + "\n".join(lines)


def with_group(text: str, group: Group) -> str:
    lines = ["", "[[sealed]]", f"group = {quoted(group.name, bare=False)}", _listed("topics", group.topics)]
    lines += [_listed(key, sorted(some)) for key, some in (("roles", group.roles), ("names", group.names)) if some]
    return text.rstrip("\n") + "\n" + "\n".join([*lines, ""])


def _listed(key: str, texts: Iterable[str]) -> str:
    return f"{key} = [{', '.join(quoted(each, bare=False) for each in texts)}]"


def with_line(text: str, name: str, key: str, value: datetime | bytes) -> str:
    """Return the text in which the identity has ``key = value``, in place of another one."""
    written = f'"{b64encode(value).decode()}"' if isinstance(value, bytes) else moment(value)
    found, _ = _lines(text)
    lines = text.split("\n")
    at = found.get(name, 0)
    if not at:
        raise ConfigError(f"there is no section [identities.{quoted(name)}]: write {key} = {written} by hand")
    end = next((n for n in range(at, len(lines)) if lines[n].lstrip().startswith("[")), len(lines))
    kept = [n for n in range(at, end) if re.match(rf"\s*{key}\s*=", lines[n])]
    for n in reversed(kept):
        del lines[n]
    lines.insert(kept[0] if kept else at, f"{key} = {written}")
    return "\n".join(lines)


def reissued(text: str, version: int, issued: datetime) -> str:
    """Return the text with this version and beginning. Raises ConfigError if it has no lines for them."""
    text, versions = _VERSION.subn(rf"\g<1>{version}", text, count=1)
    text, issues = _ISSUED.subn(rf"\g<1>{moment(issued)}", text, count=1)
    if not versions or not issues:
        raise ConfigError("it needs the lines version = NUMBER and issued = TIME")
    return text


def moment(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}".rjust(20, "0")


def quoted(text: str, bare: bool = True) -> str:
    """Quote a text for TOML; without quotes if it may stand so as a key."""
    return text if bare and re.fullmatch(r"[A-Za-z0-9_-]+", text) else msgspec.json.encode(text).decode()


def _identity(name: str, each: _IdentitySection, line: int) -> Identity:
    try:
        check_name(name)
        check_name(each.role, "a role")
    except UsageError as error:
        raise ConfigError(f"{_at(line)}{error}") from None
    try:
        curve = unz85(each.curve)
    except ValueError:
        raise ConfigError(f"{_at(line)}the curve of {name} is no public key: 40 characters of Z85") from None
    revoked = None if each.revoked is None else _utc(each.revoked)
    return Identity(
        name, each.role, curve, each.endpoint, _utc(each.expires), each.signs, revoked, tuple(each.hosts), line
    )


def _rule(each: _RuleSection, line: int) -> Rule:
    verbs = each.deny if each.allow is None else each.allow
    if verbs is None or (each.allow is not None and each.deny is not None):
        raise ConfigError(f"{_at(line)}a rule has either allow or deny")
    unknown = [verb for verb in verbs if verb not in VERBS and verb != EVERYTHING]
    if unknown:
        raise ConfigError(f"{_at(line)}there is no verb {unknown[0]!a}; there are {', '.join(VERBS)} and {EVERYTHING}")
    if each.roles is None and each.names is None:
        raise ConfigError(f"{_at(line)}a rule has roles or names; names = [{EVERYBODY!r}] is everybody")
    if any("*" in topic[:-1] for topic in each.topics):
        raise ConfigError(f"{_at(line)}a topic has its * at the end, where it stands for all that begin so")
    roles, names = frozenset(each.roles or ()), frozenset(each.names or ())
    return Rule(each.allow is not None, frozenset(verbs), roles, names, tuple(each.topics), line)


def _group(each: _GroupSection) -> Group:
    try:
        check_name(each.group, "a group")
    except UsageError as error:
        raise ConfigError(str(error)) from None
    if each.roles is None and each.names is None:
        raise ConfigError(f"the group {each.group} has roles or names; names = [{EVERYBODY!r}] is everybody")
    if any("*" in topic[:-1] for topic in each.topics):
        raise ConfigError(f"a topic of {each.group} has its * at the end, where it stands for all that begin so")
    return Group(each.group, tuple(each.topics), frozenset(each.roles or ()), frozenset(each.names or ()))


def _lines(text: str) -> tuple[dict[str, int], list[int]]:
    identities: dict[str, int] = {}
    rules = []
    for number, line in enumerate(text.split("\n"), 1):
        if found := _HEADER.match(line):
            identities.setdefault(found[1].strip("\"'"), number)
        elif _RULE.match(line):
            rules.append(number)
    return identities, rules


def _at(line: int) -> str:
    return f"line {line}: " if line else ""


def _utc(when: datetime) -> datetime:
    try:
        return when.astimezone(UTC)
    except OverflowError:
        raise ConfigError("it has a time that is out of bounds") from None


# -- Z85: how ZeroMQ writes keys (RFC 32) ----------------------------------------------------------------

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUE: Final = {digit: value for value, digit in enumerate(_DIGITS)}
KEY_BYTES: Final = 32


def z85(key: bytes) -> str:
    return "".join(_five(int.from_bytes(key[at : at + 4])) for at in range(0, len(key), 4))


def _five(number: int) -> str:
    return "".join(_DIGITS[number // 85**place % 85] for place in (4, 3, 2, 1, 0))


def unz85(text: str) -> bytes:
    if len(text) != KEY_BYTES * 5 // 4 or not all(each in _VALUE for each in text):
        raise ValueError("no key")
    key = b""
    for at in range(0, len(text), 5):
        number = 0
        for each in text[at : at + 5]:
            number = number * 85 + _VALUE[each]
        if number >= 2**32:
            raise ValueError("no key")
        key += number.to_bytes(4)
    return key


USELESS_MAX: Final = 1_000  # texts that are remembered, as they will be handed on again


class InForce:
    """The permissions that count now; ``raw`` is their file, ``changes`` rises with each file that is taken."""

    def __init__(self, raw: bytes, check: Check) -> None:
        """Raise ConfigError if the authority has not signed ``raw`` so, or it is too large or malformed."""
        self.permissions: Permissions = verified(raw, check)
        self.raw = raw
        self.changes = 0
        self._check = check
        self._useless: set[int] = set()  # hashes of what was no newer file: a signature takes a tenth of a millisecond

    def replace(self, raw: bytes) -> Permissions:
        """Replace the permissions with those of our own machine unless they are older; return the ones in force.

        Raises ConfigError if they are not signed by the authority that this program started with.
        """
        found = verified(raw, self._check)
        if found.version >= self.permissions.version:
            self._take(raw, found)
            self._useless.clear()
        return found

    def offer(self, raw: bytes) -> bool:
        """Take a file that somebody hands on, if the authority has signed it and it is newer; return True if so.

        Before the signature nothing of it is parsed.

        Raises:
            ConfigError: It is too large, not signed so, or malformed. The same again is told no more.
        """
        if raw == self.raw:
            return False
        if len(raw) > FILE_BYTES_MAX:
            raise ConfigError(f"it is larger than {FILE_BYTES_MAX} bytes")
        known = hash(raw)
        if known in self._useless:
            return False
        if len(self._useless) >= USELESS_MAX:
            self._useless.clear()
        self._useless.add(known)
        found = verified(raw, self._check)
        if found.version <= self.permissions.version:
            return False
        self._useless.discard(known)
        self._take(raw, found)
        return True

    def _take(self, raw: bytes, permissions: Permissions) -> None:
        self.raw, self.permissions = raw, permissions
        self.changes += 1
