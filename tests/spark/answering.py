"""A store reduced to a socket that answers one request after the other, and falls silent when it is to."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

import zmq
from tests.spark.silence import SILENT

from chappe.log.queries import Answer, Request, decode_request, encode_query


class Answering(ABC):
    """Answers on a thread until closed. It begins with the call of ``__init__``, which is the last one's to make."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        (SILENT.add if self.is_silent() else SILENT.discard)(self.endpoint)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @abstractmethod
    def is_silent(self) -> bool:
        """Whether everything was answered that is to be, as by a store that is killed then."""

    @abstractmethod
    def answered(self, request: Request, payload: list[bytes]) -> tuple[Answer, list[bytes]] | None:
        """The answer to a request, and its batches; None for silence."""

    def close(self) -> None:
        """Fall silent and free the port."""
        self._stopped.set()
        self._thread.join()
        SILENT.add(self.endpoint)
        self._context.destroy(linger=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while not self._stopped.is_set():
            if not self._socket.poll(20):
                continue
            client, raw_id, raw, *payload = self._socket.recv_multipart()
            answered = self.answered(decode_request(raw), payload)
            if self.is_silent():
                SILENT.add(self.endpoint)
            if answered is not None:
                answer, batches = answered
                self._socket.send_multipart([client, raw_id, encode_query(answer), *batches])
