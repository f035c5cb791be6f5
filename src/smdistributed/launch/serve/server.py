# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The routes of an endpoint: `GET /ping` and `POST /invocations`.

Source: launch specification, section 10.3.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator

import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from smdistributed.launch.serve.messages import Answer, Call
from smdistributed.launch.serve.pool import Pool

__all__ = ["Server", "invocation", "response_of"]

_END_S = 30
_REST_S = 5.0


class Server(uvicorn.Server):
    """Listens for an endpoint.

    Args:
        pool: of workers, which answer.
        listener: a bound socket.
        most_bytes: of a body.
        timeout_s: for a body to come in.
    """

    def __init__(
        self, pool: Pool, listener: socket.socket, most_bytes: int, timeout_s: float
    ) -> None:
        application = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        application.add_api_route("/ping", self._ping, methods=["GET"])
        application.add_api_route("/invocations", self._invocations, methods=["POST"])
        super().__init__(
            uvicorn.Config(
                application,
                # Named, so that none depends on what else is installed.
                http="h11",
                loop="asyncio",
                log_level="warning",
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=_END_S,
            )
        )
        self._pool = pool
        self._listener = listener
        self._most_bytes = most_bytes
        self._timeout_s = timeout_s

    async def run_until_told(self) -> None:
        """Serves until `should_exit` is set; calls that have come in are answered."""
        await self.serve(sockets=[self._listener])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the endpoint's matter."""
        yield

    async def _ping(self) -> Response:
        return Response(status_code=200 if self._pool.is_ready else 503)

    async def _invocations(self, request: Request) -> Response:
        return await invocation(request, self._pool.ask, self._most_bytes, self._timeout_s)


async def invocation(
    request: Request,
    ask: Callable[[Call], Awaitable[Answer]],
    most_bytes: int,
    timeout_s: float,
) -> Response:
    """The response to `POST /invocations`.

    Args:
        request: its body was not read yet.
        ask: has a model answer.
        most_bytes: of a body.
        timeout_s: for a body to come in.
    """
    try:
        async with asyncio.timeout(timeout_s):
            body = await _body(request, most_bytes)
    except TimeoutError:
        return response_of(Answer.problem(408, f"The body has not come within {timeout_s:g} s."))
    except ClientDisconnect:
        return Response(status_code=400)  # nobody reads it
    if body is None:
        answer = Answer.problem(
            413, f"The body is longer than {most_bytes:,} bytes (SAGEMAKER_MAX_PAYLOAD_IN_MB)."
        )
        response = response_of(answer)
        response.headers["Connection"] = "close"
        return response
    headers = dict(request.headers.items())
    call = Call(headers.get("content-type", ""), headers.get("accept", ""), headers, body)
    return response_of(await ask(call))


async def _body(request: Request, most_bytes: int) -> bytes | None:
    """The body; None if it is too long.

    What is too long is read on for a moment, and dropped: closing the connection at once could
    take the answer away from who is still sending.
    """
    given = request.headers.get("content-length", "")
    is_too_long = given.isdecimal() and int(given) > most_bytes
    parts = bytearray()
    stop = asyncio.get_running_loop().time() + _REST_S
    async for part in request.stream():
        if not is_too_long:
            parts += part
            is_too_long = len(parts) > most_bytes
        elif asyncio.get_running_loop().time() > stop:
            break
    return None if is_too_long else bytes(parts)


def response_of(answer: Answer) -> Response:
    """An answer as it is sent."""
    # No media_type: starlette would add a character set that the handler has not named.
    response = Response(answer.body, status_code=answer.status)
    if answer.content_type:
        response.headers["Content-Type"] = answer.content_type
    return response
