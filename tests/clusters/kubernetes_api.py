# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for Kubernetes: its API over HTTP, and pods as processes on machines of this one.

    with kubernetes(nodes=2) as cluster:
        kubernetes.config.load_kube_config(cluster.kubeconfig)    # the official client
        cluster.nodes.evict("default", "job-0-abcde")

It answers as the real one does to what a backend asks: discovery, create, get, list, watch, patch
and delete of a few kinds, logs of pods, and errors. What is created must fit the OpenAPI schema to
the last field, where the real one warns of unknown ones. It does not prove that a job runs on a
cluster.

`kubernetes_store.py` keeps the objects, `kubernetes_controllers.py` makes pods of jobs, and
`kubernetes_nodes.py` runs pods.

Sources: Kubernetes API reference and API concepts; Kubeflow Trainer. Traps that it has, too: a Job
that is deleted without a propagation policy leaves its pods; a watch from an old version ends with
410; a log that has grown too long begins in its middle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import importlib
import importlib.util
import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.clusters.hosts import why_not as why_no_hosts
from tests.clusters.kubernetes_controllers import Controllers
from tests.clusters.kubernetes_nodes import Nodes
from tests.clusters.kubernetes_store import (
    PODS,
    RESOURCES,
    ApiError,
    Object,
    Resource,
    Store,
    merged,
)
from tests.clusters.machine import folder_of_its_own

_TOKEN = "a-token-of-the-test"
_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)/namespaces/(?P<namespace>[^/]+)"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?"
)
_MOST_WATCH_S = 300.0


def why_not() -> str | None:
    """Why there can be no such cluster here, in words; None if there can."""
    for package in ("kubernetes", "kubeflow_trainer_api"):
        if importlib.util.find_spec(package) is None:
            return f"{package} not found; make env-clusters installs it"
    return why_no_hosts("ip", "unshare")


@dataclasses.dataclass
class Kubernetes:
    """A cluster that is served.

    Attributes:
        url: of its API.
        kubeconfig: a file for clients.
        claims: has a folder for each claim.
        store: its objects.
        nodes: what runs pods, and what may happen to them.
        controllers: what becomes of objects.
        groups: of the API, that are served beside the core.
        forbidden: verb and plural of what clients may not do, such as `("create", "secrets")`.
        is_broken: all requests are answered by 500.
        requests: method and path of those that have come.
    """

    url: str
    kubeconfig: Path
    claims: Path
    store: Store
    nodes: Nodes
    controllers: Controllers
    groups: frozenset[str]
    forbidden: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    is_broken: bool = False
    requests: list[tuple[str, str]] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def kubernetes(
    nodes: int = 2,
    *,
    has_trainer: bool = False,
    gpus: int = 0,
    claims: Iterable[str] = (),
    images: Callable[[str], bool] = lambda image: True,
    most_log_bytes: int = 10 << 20,
) -> Iterator[Kubernetes]:
    """A cluster of its own; on leaving, nothing of it is left.

    Args:
        nodes: how many; each has room for one pod at a time.
        has_trainer: Kubeflow Trainer is served.
        gpus: of each node, as far as the scheduler knows.
        claims: names of those that are there; their files are in `Kubernetes.claims`.
        images: whether an image can be pulled; what runs is this machine's all the same.
        most_log_bytes: of a pod's log; older lines are lost, as a kubelet rotates them.
    """
    groups = {"batch"} | ({"trainer.kubeflow.org"} if has_trainer else set())
    store = Store()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(folder_of_its_own("smd-kube"))
        for each in claims:
            (folder / "claims" / each).mkdir(parents=True)
        running = stack.enter_context(
            Nodes(
                store,
                folder,
                count=nodes,
                gpus=gpus,
                claims=frozenset(claims),
                images=images,
                most_log_bytes=most_log_bytes,
            )
        )
        controllers = stack.enter_context(Controllers(store, running))
        server = _Server(("127.0.0.1", 0), _Handler)
        url = f"http://127.0.0.1:{server.server_address[1]}"
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(url)))  # YAML has JSON in it
        cluster = Kubernetes(
            url, kubeconfig, folder / "claims", store, running, controllers, frozenset(groups)
        )
        server.cluster = cluster
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield cluster
        finally:
            with store.changed:
                store.is_closed = True
                store.changed.notify_all()
            server.shutdown()
            server.server_close()
            thread.join()


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "tester", "user": {"token": _TOKEN}}],
        "contexts": [
            {"name": "here", "context": {"cluster": "here", "user": "tester"}},
        ],
        "current-context": "here",
    }


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    cluster: Kubernetes


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        self._answer("get")

    def do_POST(self) -> None:
        self._answer("create")

    def do_PATCH(self) -> None:
        self._answer("patch")

    def do_DELETE(self) -> None:
        self._answer("delete")

    # --- answers ---------------------------------------------------------------------------------

    def _answer(self, verb: str) -> None:
        self._cluster = self.server.cluster
        parts = urllib.parse.urlsplit(self.path)
        self._query = {key: value[-1] for key, value in urllib.parse.parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(length)
        self._cluster.requests.append((self.command, parts.path))
        try:
            if self._cluster.is_broken:
                raise ApiError(500, "InternalError", "Internal error occurred: etcd is gone")
            if self.headers.get("Authorization") != f"Bearer {_TOKEN}":
                raise ApiError(401, "Unauthorized", "Unauthorized")
            body = json.loads(content) if content else None
            self._route(verb, parts.path, body)
        except ApiError as error:
            self._send(error.code, error.status)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _send(self, code: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, kind: str, pieces: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for piece in pieces:
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    # --- what is asked ---------------------------------------------------------------------------

    def _route(self, verb: str, path: str, body: Any) -> None:
        found = _discovered(path, self._cluster.groups)
        if found is not None and verb == "get":
            self._send(200, found)
            return
        match = _PATH.fullmatch(path)
        resource = None if match is None else _resource(match, self._cluster.groups)
        if match is None or resource is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        namespace, name, sub = match["namespace"], match["name"], match["sub"]
        if verb == "get" and name is None:
            verb = "watch" if self._query.get("watch") in ("true", "1", "True") else "list"
        self._require_allowed(verb, resource, namespace, name, sub)
        if sub is not None and (resource, sub, verb) != (PODS, "log", "get"):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        store = self._cluster.store
        if sub == "log":
            options = {**self._query}
            self._stream("text/plain", self._cluster.nodes.log(namespace, name, options))
        elif verb == "get":
            self._send(200, store.get(resource, namespace, name))
        elif verb == "list":
            self._list(resource, namespace)
        elif verb == "watch":
            self._watch(resource, namespace)
        elif verb == "create":
            _require_valid(resource, body)
            made = store.create(resource, namespace, body)
            self._send(201, made)
        elif verb == "patch":

            def change(each: Object) -> None:
                each.update(merged(each, body))

            self._send(200, store.update(resource, namespace, name, change))
        else:
            options = {**(body or {}), **self._query}
            self._send(200, self._cluster.controllers.delete(resource, namespace, name, options))

    def _require_allowed(
        self, verb: str, resource: Resource, namespace: str, name: str | None, sub: str | None
    ) -> None:
        plural = resource.plural if sub is None else f"{resource.plural}/{sub}"
        if (verb, plural) not in self._cluster.forbidden:
            return
        what = plural if name is None else f'{plural} "{name}"'
        raise ApiError(
            403,
            "Forbidden",
            f'{what} is forbidden: User "tester" cannot {verb} resource "{plural}" in API group'
            f' "{resource.group}" in the namespace "{namespace}"',
            kind=resource.plural,
        )

    def _list(self, resource: Resource, namespace: str) -> None:
        version, items = self._cluster.store.select(resource, namespace, _selected(self._query))
        for each in items:  # the items of a list say no kind
            each.pop("kind"), each.pop("apiVersion")
        document = {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(version)},
            "items": items,
        }
        self._send(200, document)

    def _watch(self, resource: Resource, namespace: str) -> None:
        given = self._query.get("resourceVersion", "")
        version = int(given) if given not in ("", "0") else None
        limit_s = float(self._query.get("timeoutSeconds") or _MOST_WATCH_S)
        events = self._cluster.store.watch(
            resource, namespace, _selected(self._query), version, time.monotonic() + limit_s
        )
        lines = (json.dumps(each).encode() + b"\n" for each in events)
        self._stream("application/json", lines)


def _resource(match: re.Match[str], groups: frozenset[str]) -> Resource | None:
    asked = (match["group"] or "", match["version"], match["plural"])
    for each in RESOURCES:
        is_served = not each.group or each.group in groups
        if is_served and (each.group, each.version, each.plural) == asked:
            return each
    return None


def _discovered(path: str, groups: frozenset[str]) -> Object | None:
    """What the paths of discovery answer, of the kinds that are here."""
    if path == "/version":
        return {"major": "1", "minor": "34", "gitVersion": "v1.34.1", "platform": "linux/amd64"}
    if path in ("/api", "/api/"):
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    served = {each.group: each.version for each in RESOURCES if each.group in groups}
    documents = []
    for name, version in sorted(served.items()):
        one = {"groupVersion": f"{name}/{version}", "version": version}
        documents.append({"name": name, "versions": [one], "preferredVersion": one})
    if path in ("/apis", "/apis/"):
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": documents}
    for document in documents:
        if path.rstrip("/") == f"/apis/{document['name']}":
            return {"kind": "APIGroup", "apiVersion": "v1", **document}
    for group, version in {"": "v1", **served}.items():
        if path.rstrip("/") == (f"/apis/{group}/{version}" if group else "/api/v1"):
            verbs = ["create", "delete", "get", "list", "patch", "watch"]
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": f"{group}/{version}" if group else "v1",
                "resources": [
                    {
                        "name": each.plural,
                        "singularName": each.kind.lower(),
                        "namespaced": True,
                        "kind": each.kind,
                        "verbs": verbs,
                    }
                    for each in RESOURCES
                    if each.group == group
                ],
            }
    return None


def _selected(query: Mapping[str, str]) -> Callable[[Object], bool]:
    """What the selectors of a query say; of equality alone.

    Raises:
        ApiError: there is more in them.
    """
    wanted = []
    for selector, root in (("labelSelector", "labels"), ("fieldSelector", "fields")):
        for each in filter(None, query.get(selector, "").split(",")):
            key, is_equal, value = each.partition("=")
            if not is_equal or key.endswith("!") or " " in each:
                raise ApiError(400, "BadRequest", f"{selector} {each!r} is not served here")
            wanted.append((root, key, value.removeprefix("=")))

    def holds(each: Object) -> bool:
        fields = {
            "metadata.name": each["metadata"]["name"],
            "status.phase": each.get("status", {}).get("phase"),
        }
        having = {"labels": each["metadata"].get("labels", {}), "fields": fields}
        return all(having[root].get(key) == value for root, key, value in wanted)

    return holds


def _require_valid(resource: Resource, given: Any) -> None:
    """Each field is known and of its type.

    Raises:
        ApiError: one is not; as of `fieldValidation=Strict`.
    """
    if given.get("kind") != resource.kind or given.get("apiVersion") != resource.api_version:
        raise ApiError(400, "BadRequest", f"the object is no {resource.kind}: {given!r:.200}")
    model = getattr(importlib.import_module("kubeflow_trainer_api.models"), resource.model)
    try:
        known = model.from_dict(given).to_dict()
    except ValueError as error:
        raise ApiError(
            422, "Invalid", f"{resource.kind} is invalid: {error}", kind=resource.kind
        ) from None
    unknown = _not_in(given, known, "")
    if unknown:
        text = f'strict decoding error: unknown field "{unknown}"'
        raise ApiError(400, "BadRequest", f"{resource.kind} in version is invalid: {text}")


def _not_in(given: Any, known: Any, path: str) -> str:
    if isinstance(given, dict):
        for key, value in given.items():
            here = f"{path}.{key}".lstrip(".")
            if value is not None and key not in known:
                return here
            found = _not_in(value, known.get(key), here)
            if found:
                return found
    elif isinstance(given, list):
        for index, each in enumerate(given):
            found = _not_in(each, known[index], f"{path}[{index}]")
            if found:
                return found
    return ""
