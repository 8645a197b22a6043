"""The server of schemas: a registry behind the REST interface of Confluent's Schema Registry.

One loop answers one request at a time, so changes have one order: an id is given once, and a schema is compared with
the version before it. Within this machine everybody may come; a page of the web may not: it cannot send a body of
type JSON without asking first, nor name this machine by another name. Beyond it the server has an identity, and so
have clients: any of them may look, and those that may ``administer`` all topics may change.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from chappe.api.serving import Office, may_be_dialled
from chappe.defaults import SCHEMA_BYTES_MAX, SCHEMAS_PORT
from chappe.errors import ChappeError, MemberStopped, NotPermitted
from chappe.schemas.registry import BAD_SCHEMA, BAD_VERSION, KINDS, Registry, RegistryRefusal, Schema, SchemaVersion
from chappe.security import LogSecurity, is_loopback
from chappe.system.forking import own

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from chappe.web.connections import CERTIFIED, HandshakeLoop, PageHttp, TaskFailures, listening
except ImportError:
    raise ChappeError("a server of schemas needs further packages: pip install 'chappe[schemas]'") from None

logger = logging.getLogger(__name__)

JSON: Final = "application/vnd.schemaregistry.v1+json"
BODY_BYTES_MAX: Final = 4 * SCHEMA_BYTES_MAX  # JSON writes a quote of a schema with two characters
CLIENTS_MAX: Final = 256
STORE_FAILED: Final = 50001


class _Body(msgspec.Struct):
    """The body of a request; keys that are not here are passed over, as Confluent's clients send more of them."""

    schema: str | None = None
    schemaType: str | None = None
    references: list[Any] | None = None
    compatibility: str | None = None

    @property
    def given(self) -> tuple[str, str]:
        """The kind and text of its schema."""
        if self.references:
            raise RegistryRefusal(BAD_SCHEMA, "a schema has no references here: put what it refers to into it")
        if self.schema is None:
            raise RegistryRefusal(BAD_SCHEMA, "the request has no schema")
        return self.schemaType or "AVRO", self.schema


_Answer = Callable[[Registry, Request, _Body], Any]


def _flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() == "true"


def _number(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not int(text):
        raise RegistryRefusal(BAD_VERSION, f"{text[:50]!r} is not a number from 1 on, nor the word latest")
    return int(text)


def _version(request: Request) -> int | None:
    text = request.path_params["version"]
    return None if text in ("latest", "-1") else _number(text)


def _schema(found: Schema) -> dict[str, Any]:
    return {"schema": found.text} | ({} if found.kind == "AVRO" else {"schemaType": found.kind})


def _whole(found: SchemaVersion) -> dict[str, Any]:
    return {"subject": found.subject, "version": found.version, "id": found.schema.id, **_schema(found.schema)}


def _by_id(registry: Registry, request: Request) -> Schema:
    return registry.schema(_number(request.path_params["id"]))


def _found(registry: Registry, request: Request) -> SchemaVersion:
    return registry.version(request.path_params["subject"], _version(request), deleted=_flag(request, "deleted"))


def _check(registry: Registry, request: Request, body: _Body) -> dict[str, Any]:
    named = "version" in request.path_params
    subject, version = request.path_params["subject"], _version(request) if named else None
    if named and version is None:
        version = registry.version(subject, None).version
    problems = registry.check(subject, *body.given, version)
    return {"is_compatible": not problems} | ({"messages": problems} if _flag(request, "verbose") else {})


def _subjects(registry: Registry, request: Request, body: _Body) -> list[str]:
    return registry.subjects(prefix=request.query_params.get("subjectPrefix", ""), deleted=_flag(request, "deleted"))


def _delete(registry: Registry, request: Request, body: _Body) -> list[int] | int:
    named = "version" in request.path_params
    subject = request.path_params["subject"]
    version = _version(request) if named else None
    if named and version is None:
        version = registry.version(subject, None).version
    gone = registry.delete(subject, version, permanent=_flag(request, "permanent"))
    return gone[0] if named else gone


def _level(registry: Registry, request: Request, body: _Body) -> dict[str, str]:
    subject = request.path_params.get("subject", "")
    inherits = not subject or _flag(request, "defaultToGlobal")
    return {"compatibilityLevel": registry.level(subject, inherits=inherits)}


def _set_level(registry: Registry, request: Request, body: _Body) -> dict[str, str]:
    level = (body.compatibility or "").upper()
    registry.set_level(level, request.path_params.get("subject", ""))
    return {"compatibility": level}


def _unset_level(registry: Registry, request: Request, body: _Body) -> dict[str, str]:
    subject = request.path_params.get("subject", "")
    before = registry.level(subject, inherits=not subject)
    registry.set_level(None, subject)
    return {"compatibilityLevel": before}


def _uses(registry: Registry, request: Request, body: _Body) -> list[dict[str, Any]]:
    found = registry.uses(_number(request.path_params["id"]))
    return [{"subject": subject, "version": version} for subject, version in found]


def _subjects_of(registry: Registry, request: Request, body: _Body) -> list[str]:
    return list(dict(registry.uses(_number(request.path_params["id"]))))


def _versions(registry: Registry, request: Request, body: _Body) -> list[int]:
    return registry.versions(request.path_params["subject"], deleted=_flag(request, "deleted"))


def _add(registry: Registry, request: Request, body: _Body) -> dict[str, Any]:
    return _whole(registry.add(request.path_params["subject"], *body.given))


def _find(registry: Registry, request: Request, body: _Body) -> dict[str, Any]:
    return _whole(registry.find(request.path_params["subject"], *body.given))


# A subject may have slashes, as topics do, so what is longer stands first.
_SUBJECT: Final = "/subjects/{subject:path}"
_VERSIONS: Final = f"{_SUBJECT}/versions"
_VERSION: Final = f"{_VERSIONS}/{{version}}"
_ROUTES: Final[tuple[tuple[str, str, _Answer], ...]] = (
    ("GET", "/", lambda registry, request, body: {}),
    ("GET", "/schemas/types", lambda registry, request, body: list(KINDS)),
    ("GET", "/schemas/ids/{id}", lambda registry, request, body: _schema(_by_id(registry, request))),
    ("GET", "/schemas/ids/{id}/schema", lambda registry, request, body: _text(_by_id(registry, request))),
    ("GET", "/schemas/ids/{id}/subjects", _subjects_of),
    ("GET", "/schemas/ids/{id}/versions", _uses),
    ("GET", "/subjects", _subjects),
    ("POST", f"/compatibility{_VERSION}", _check),
    ("POST", f"/compatibility{_VERSIONS}", _check),
    ("GET", f"{_VERSION}/schema", lambda registry, request, body: _text(_found(registry, request).schema)),
    ("GET", _VERSION, lambda registry, request, body: _whole(_found(registry, request))),
    ("DELETE", _VERSION, _delete),
    ("GET", _VERSIONS, _versions),
    ("POST", _VERSIONS, _add),
    ("POST", _SUBJECT, _find),
    ("DELETE", _SUBJECT, _delete),
    *(
        (method, path, answer)
        for path in ("/config", "/config/{subject:path}")
        for method, answer in (("GET", _level), ("PUT", _set_level), ("DELETE", _unset_level))
    ),
)
_LOOKS: Final = (_check, _find)  # asked with a POST, and change nothing


def _text(found: Schema) -> str | msgspec.Raw:
    return found.text if found.kind == "PROTOBUF" else msgspec.Raw(found.text.encode())


class SchemaServer:
    """Serves schemas to producers, consumers and clients of Confluent's, until it is closed.

    Schemas are on disk before they are answered; ids are never given again. Close it, or use it in a ``with``.

    Args:
        directory: Where schemas are kept; one server at a time has it.
        host: Listening address; ``*`` for all interfaces.
        port: 0 takes any that is free.
        security: ``Keys("DIRECTORY/NAME")``, ``"plain"``, or None for the identity that ``CHAPPE_IDENTITY`` names.

    Attributes:
        port: The port that it listens on.

    Raises:
        StorageLocked, StorageFormat, StorageError: The directory cannot be used.
        AddressInUse: The port is taken.
        UsageError: The host is reachable from other machines, and no security was chosen.
    """

    def __init__(
        self,
        directory: str | Path,
        host: str = "127.0.0.1",
        port: int = SCHEMAS_PORT,
        *,
        security: LogSecurity = None,
    ) -> None:
        own(self)
        self._host = host
        self._office = Office.of(security, host, "the server of schemas")
        self._socket = listening(host, port)
        try:
            self._registry = Registry(directory)
        except BaseException:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        self._failed = False
        self._ended = threading.Event()
        self._server = uvicorn.Server(self._config())
        self._thread = threading.Thread(target=self._run, name="chappe-schemas", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address that clients are given."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http{'' if self._office is None else 's'}://{host}:{self.port}"

    def wait(self, timeout: float) -> None:
        """Wait. Raises MemberStopped after a defect."""
        self._ended.wait(timeout)
        if self._failed:
            raise MemberStopped("the server of schemas stopped because of a defect")

    def close(self) -> None:
        """End connections and release the directory; safe to call twice."""
        self._server.should_exit = True
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside -----------------------------------------------------------------------------------------------

    def _config(self) -> uvicorn.Config:
        tls = None if self._office is None else self._office.tls
        routes = [
            Route(path, partial(self._answer, method, path, answer), methods=[method])
            for method, path, answer in _ROUTES
        ]
        return uvicorn.Config(
            Starlette(routes=routes),
            http=partial(PageHttp, {}),  # type: ignore[arg-type]  # uvicorn calls it
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=CLIENTS_MAX,
            timeout_graceful_shutdown=1,
            ssl_context_factory=None if tls is None else lambda config, default: tls,
        )

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=HandshakeLoop) as runner:
                runner.get_loop().set_exception_handler(TaskFailures())
                runner.run(self._server.serve(sockets=[self._socket]))
        except Exception:
            self._failed = True
            logger.exception("the server of schemas stopped because of a defect")
        finally:
            self._socket.close()
            self._registry.close()
            self._ended.set()

    async def _answer(self, method: str, path: str, answer: _Answer, request: Request) -> Response:
        try:
            self._let_in(request, changes=method != "GET" and answer not in _LOOKS)
            body = await _body(request) if method in ("POST", "PUT") else _Body()
            return _response(answer(self._registry, request, body), 200)
        except RegistryRefusal as error:
            status = error.number if error.number < 1000 else error.number // 100
            return _response(_refusal(error.number, str(error), error.problems), status)
        except NotPermitted as error:
            return _response(_refusal(401, str(error)), 401)
        except ChappeError as error:  # such as a package that is missing here
            logger.warning("a request failed: %s", error)
            return _response(_refusal(STORE_FAILED, str(error)), 500)
        except Exception:
            logger.exception("a defect while %s %s was answered", method, path)
            return _response(_refusal(STORE_FAILED, "the server of schemas met a defect, which its log has"), 500)

    def _let_in(self, request: Request, *, changes: bool) -> None:
        """Raise NotPermitted for a client that may not do this."""
        headers = request.headers
        if self._office is not None:
            host = request.client.host if request.client is not None else ""
            enter = self._office.check if changes else self._office.name
            enter(host, getattr(request.state, CERTIFIED, ""), headers.getlist("authorization"))
        elif is_loopback(self._host) and not may_be_dialled(headers.getlist("host"), frozenset()):
            raise NotPermitted("this is not the name of this machine")


async def _body(request: Request) -> _Body:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RegistryRefusal(415, f"the body has the type {kind[:100]!r}: send it with Content-Type: {JSON}")
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_BYTES_MAX:
            raise RegistryRefusal(413, f"a request has {BODY_BYTES_MAX:,} bytes at most")
    try:
        return msgspec.json.decode(bytes(raw), type=_Body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RegistryRefusal(BAD_SCHEMA, f"the body is not what is asked for: {str(error)[:200]}") from None


def _refusal(number: int, text: str, problems: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"error_code": number, "message": text} | ({"problems": problems} if problems else {})


def _response(content: Any, status: int) -> Response:
    return Response(msgspec.json.encode(content), status, media_type=JSON)
