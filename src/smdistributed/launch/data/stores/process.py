# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A store for another process: `python -m smdistributed.launch.data.stores.process`.

A process that must not import boto3, such as an agent, writes requests to its standard input, each
a line of JSON, one after the other, and reads answers from its standard output: lines of JSON with
a `kind`, the last of which is `done` or `error`. `bytes` is followed by as many bytes as it says.

    begin       bucket, prefix, settings: first of all
    list        prefix                             objects ... done
    find        key                                object, done
    download    objects, folder, state             progress ... done
    read        object                             bytes ... done
    put         path, key, look                    done
    delete      key                                done

It ends when its standard input does: when the other process has ended, however that was. What it
was putting there is given up then.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from smdistributed.launch.data.objects import DataObject
from smdistributed.launch.data.stores.download import Download, Resumed
from smdistributed.launch.data.stores.s3 import S3Settings, S3Store
from smdistributed.launch.data.stores.store import Changed, Corrupt, Digest

__all__ = ["PROGRESS_S", "main"]

PROGRESS_S = 0.5
"""Seconds between two answers `progress`."""

_AT_ONCE = 1 << 18
_PAGE = 1000
_LAST_S = 5.0


class _Server:
    """Answers requests, one after the other."""

    def __init__(self) -> None:
        self._store: S3Store | None = None
        self._output = sys.stdout.buffer
        self.is_writing = False

    def answer(self, request: Mapping[str, Any]) -> None:
        """Does what one asks for, and says how it has ended."""
        self.is_writing = request["op"] in ("put", "delete")
        try:
            does: Callable[[Mapping[str, Any]], None] = getattr(self, f"_{request['op']}")
            does(request)
        except Changed:
            self._say("error", error="changed", text="")
        except BrokenPipeError:
            raise
        except OSError as error:
            text, name = error.strerror or str(error), error.filename and str(error.filename)
            self._say("error", error="os", args=[error.errno or 0, text, name])
        except Exception as error:
            text = (
                str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            )
            passing = getattr(error, "is_passing", False)
            self._say("error", error=type(error).__name__, text=text, is_passing=passing)
        else:
            self._say("done")

    def give_up(self) -> None:
        """What is being put is given up."""
        if self._store is not None:
            self._store.give_up()

    def _say(self, kind: str, **values: Any) -> None:
        self._output.write(json.dumps({"kind": kind, **values}).encode() + b"\n")
        self._output.flush()

    @property
    def _open_store(self) -> S3Store:
        assert self._store is not None
        return self._store

    def _begin(self, request: Mapping[str, Any]) -> None:
        settings = S3Settings(**request["settings"])
        self._store = S3Store(request["bucket"], settings, request["prefix"])

    def _list(self, request: Mapping[str, Any]) -> None:
        page: list[Any] = []
        for each in self._open_store.objects(request["prefix"]):
            page.append(each)
            if len(page) == _PAGE:
                self._say("objects", objects=page)
                page = []
        self._say("objects", objects=page)

    def _find(self, request: Mapping[str, Any]) -> None:
        self._say("object", object=self._open_store.find(request["key"]))

    def _download(self, request: Mapping[str, Any]) -> None:
        objects = [DataObject(*each) for each in request["objects"]]
        download = Download(self._open_store, Path(request["folder"]), Path(request["state"]))
        ended = threading.Event()

        def tell() -> None:
            while not ended.wait(PROGRESS_S):
                with contextlib.suppress(OSError):
                    self._say("progress", progress=download.progress)

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            download.run(objects)
        finally:
            ended.set()
            teller.join()
        self._say("progress", progress=download.progress)

    def _read(self, request: Mapping[str, Any]) -> None:
        each = DataObject(*request["object"])
        source = Resumed(self._open_store, each, 0, threading.Event().wait)
        digest: Digest | None = None
        try:
            while content := source.read(_AT_ONCE):
                if source.checksum and digest is None:
                    digest = Digest(source.checksum_kind)
                if digest is not None:
                    digest.update(content)
                self._output.write(json.dumps({"kind": "bytes", "size": len(content)}).encode())
                self._output.write(b"\n" + content)
                self._output.flush()
        finally:
            source.close()
        if digest is not None and digest.value() != source.checksum:
            raise Corrupt(
                f"it is damaged: its {digest.kind.upper()} is {digest.value()}, and the store says"
                f" {source.checksum}; expected the bytes that were put there. Put it there again."
            )

    def _put(self, request: Mapping[str, Any]) -> None:
        look = request["look"]
        self._open_store.put(Path(request["path"]), request["key"], tuple(look) if look else None)

    def _delete(self, request: Mapping[str, Any]) -> None:
        self._open_store.delete(request["key"])


def main() -> int:
    """Serves until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: meant for who has started this
    requests: queue.Queue[bytes | None] = queue.Queue()
    server = _Server()
    is_idle = threading.Event()

    def listen() -> None:
        for line in sys.stdin.buffer:
            requests.put(line)
        requests.put(None)
        # Whoever wants the answer is gone. What is being put is whole in a moment, or given up.
        if server.is_writing:
            server.give_up()
            is_idle.wait(_LAST_S)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    try:
        while (line := requests.get()) is not None:
            server.answer(json.loads(line))
    except BrokenPipeError:
        pass
    is_idle.set()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
