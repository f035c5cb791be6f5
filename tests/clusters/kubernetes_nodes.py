# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Nodes of the stand-in for Kubernetes: they run pods (`kubernetes_api.py`).

A node has an address and room for one pod. A pod's container is a process on a machine of its own
(`machine.py`): its command with the variables, files and mounts of the manifest, and nothing of
this process; it is process 1 there, as in a container. Its image is this machine's disk.
"""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import datetime as dt
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.clusters.hosts import hosts_network, machines_of
from tests.clusters.kubernetes_store import (
    CONFIG_MAPS,
    INDEX,
    PODS,
    SECRETS,
    SERVICES,
    ApiError,
    Object,
    Store,
    condition,
    phase_of,
    stamp_text,
    time_text,
)
from tests.clusters.machine import Machine
from tests.multihost.hosts import Host

_LOOK_S = 0.05
_HIDDEN = (Path("/opt"), Path("/mnt"))  # below which things are mounted
# Runs a command as process 1 of processes of its own, and ends as it did; unshare of util-linux
# 2.38 does not tell a signal. CLONE_NEWPID, CLONE_NEWNS; PR_SET_PDEATHSIG; MS_REC, MS_PRIVATE.
_AS_FIRST = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x20000000 | 0x20000):
    sys.exit(os.strerror(ctypes.get_errno()))
pid = os.fork()
if pid == 0:
    libc.prctl(1, 9)
    libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
    libc.mount(b"proc", b"/proc", b"proc", 0, None)
    try:
        os.chdir(sys.argv[1])
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        print(error, flush=True)
        os._exit(128)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(code if code >= 0 else 128 - code)
"""


@dataclasses.dataclass
class _Run:
    """A pod, as its node knows it."""

    namespace: str
    name: str
    uid: str
    lines: collections.deque[tuple[int, bytes]] = dataclasses.field(
        default_factory=collections.deque
    )
    num_lost: int = 0  # lines that were rotated away
    size: int = 0
    is_over: bool = False  # no line will come
    main: int = 0  # the container's process, as this machine counts
    node: str = ""
    machine: Machine | None = None
    was_out_of_memory: bool = False
    evicted: str = ""
    kill_at: float | None = None


class Nodes:
    """Run the pods of a store. On leaving, all of their processes are gone.

    Attributes:
        why_unschedulable: no pod finds a node while it is not empty; what the scheduler says.
        count: called with the namespace of a pod that was deleted, before it goes.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        *,
        count: int,
        gpus: int,
        claims: frozenset[str],
        images: Callable[[str], bool],
        most_log_bytes: int,
    ) -> None:
        self.why_unschedulable = ""
        self.count: Callable[[str], object] = lambda namespace: None
        self._store = store
        self._folder = folder
        self._num_nodes = count
        self._gpus = gpus
        self._claims = claims
        self._images = images
        self._most_log_bytes = most_log_bytes
        self._links: dict[str, Host] = {}
        self._free: list[str] = []
        self._runs: dict[str, _Run] = {}
        self._threads: list[threading.Thread] = []
        self._is_over = threading.Event()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Nodes:
        _, links = self._stack.enter_context(hosts_network(self._num_nodes))
        self._links = {f"node-{number}": link for number, link in enumerate(links.values())}
        self._free = list(self._links)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        with self._store.changed:
            self._store.changed.notify_all()
            threads = list(self._threads)
        for thread in threads:
            thread.join()
        self._stack.close()

    def _spawn(self, run: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    # --- what may happen -------------------------------------------------------------------------

    def evict(self, namespace: str, name: str, grace_s: float = 0.0) -> None:
        """The node is short of memory: the pod is ended, and its job is told that it was that."""
        with self._store.changed:
            run = self._run_of(namespace, name)
            run.evicted = "The node was low on resource: memory."
            self._end(run, grace_s)

    def run_out_of_memory(self, namespace: str, name: str) -> None:
        """The container's process is killed, as by its cgroup."""
        with self._store.changed:
            run = self._run_of(namespace, name)
            run.was_out_of_memory = True
            _signal(run.main, signal.SIGKILL)

    def power_off(self, namespace: str, name: str) -> None:
        """The pod's node is gone, and nobody was told: the API says Running for minutes."""
        with self._store.changed:
            run = self._run_of(namespace, name)
            run.node = ""  # it has no room any more, and nobody looks after the pod
            machine = run.machine
        assert machine is not None
        machine.power_off()

    def give_up(self, namespace: str, name: str) -> None:
        """The pod's node is gone for good: its pods are taken away without it."""
        with self._store.changed:
            run = self._run_of(namespace, name)
            run.evicted = "PodGC: node no longer exists"
            self.delete(self._store.get(PODS, namespace, name), 0.0)

    def process_of(self, namespace: str, name: str) -> int:
        """The container's process, as this machine counts; 0 if it does not run."""
        with self._store.changed:
            return self._run_of(namespace, name).main

    def _run_of(self, namespace: str, name: str) -> _Run:
        return self._runs[self._store.get(PODS, namespace, name)["metadata"]["uid"]]

    def _end(self, run: _Run, grace_s: float) -> None:
        if run.kill_at is None:
            _signal(run.main, signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
        at = time.monotonic() + grace_s
        run.kill_at = at if run.kill_at is None else min(at, run.kill_at)

    # --- what is asked of them -------------------------------------------------------------------

    def start(self, pod: Object) -> None:
        """Runs a pod that was just made, once there is a node for it."""
        metadata = pod["metadata"]
        run = _Run(metadata["namespace"], metadata["name"], metadata["uid"])
        self._runs[run.uid] = run
        self._spawn(self._run_pod, run)

    def delete(self, pod: Object, grace_s: float) -> Object:
        """Ends a pod, which goes when it has ended."""
        metadata = pod["metadata"]

        def change(each: Object) -> None:
            each["metadata"].setdefault("deletionTimestamp", time_text(time.time() + grace_s))
            each["metadata"]["deletionGracePeriodSeconds"] = int(grace_s)

        changed = self._store.update(PODS, metadata["namespace"], metadata["name"], change)
        run = self._runs.get(metadata["uid"])
        if run is None or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            self._store.remove(PODS, metadata["namespace"], metadata["name"])
        else:
            self._end(run, grace_s)
        return changed

    def log(self, namespace: str, name: str, options: Mapping[str, str]) -> Iterator[bytes]:
        """Lines of a pod's container.

        Raises:
            ApiError: there is no such pod, or its container has not begun.
        """
        with self._store.changed:
            pod = self._store.get(PODS, namespace, name)
            (container,) = pod["spec"]["containers"]
            wanted = options.get("container") or container["name"]
            if wanted != container["name"]:
                raise ApiError(400, "BadRequest", f"container {wanted} is not valid for pod {name}")
            run = self._runs.get(pod["metadata"]["uid"])
            states = pod.get("status", {}).get("containerStatuses", [{}])[0].get("state", {})
            if run is None or ("running" not in states and "terminated" not in states):
                why = states.get("waiting", {}).get("reason", "")
                text = f'container "{wanted}" in pod "{name}" is waiting to start: {why}'
                raise ApiError(400, "BadRequest", text if why else f"pod {name} has no host")
        return self._lines(run, options)

    def _lines(self, run: _Run, options: Mapping[str, str]) -> Iterator[bytes]:
        since = _since(options)
        with self._store.changed:
            following = run.num_lost
            if "tailLines" in options:
                following += max(0, len(run.lines) - int(options["tailLines"]))
        while True:
            with self._store.changed:
                following = max(following, run.num_lost)
                new = [
                    run.lines[number - run.num_lost]
                    for number in range(following, run.num_lost + len(run.lines))
                ]
                is_last = run.is_over or self._is_over.is_set()
                if not new and not is_last and options.get("follow") in ("true", "True"):
                    self._store.changed.wait(0.5)
                    continue
            following += len(new)
            stamped = options.get("timestamps") in ("true", "True")
            yield b"".join(
                (stamp_text(at).encode() + b" " if stamped else b"") + line
                for at, line in new
                if at >= since
            )
            if is_last or options.get("follow") not in ("true", "True"):
                return

    def write_names(self) -> None:
        """What the cluster's DNS knows, in a file of each pod: names below headless Services."""
        lines = ["127.0.0.1 localhost"]
        for _, namespace, name in [each for each in self._store.names() if each[0] == PODS]:
            pod = self._store.get(PODS, namespace, name)
            subdomain, address = pod["spec"].get("subdomain"), pod["status"].get("podIP")
            if not subdomain or not address or phase_of(pod) not in ("Pending", "Running"):
                continue
            label = pod["metadata"]["labels"].get("jobset.sigs.k8s.io/jobset-name")
            with contextlib.suppress(ApiError):
                if label != subdomain:  # JobSet makes a Service by itself
                    self._store.get(SERVICES, namespace, subdomain)
                short = f"{pod['spec']['hostname']}.{subdomain}"
                lines.append(f"{address} {short} {short}.{namespace}.svc.cluster.local")
        text = "\n".join(lines) + "\n"
        for run in self._runs.values():
            file = self._folder / "pods" / run.uid / "hosts"
            with contextlib.suppress(FileNotFoundError):
                if file.read_text() != text:
                    file.write_text(text)  # in place: it is mounted

    # --- a pod's life ----------------------------------------------------------------------------

    def _run_pod(self, run: _Run) -> None:
        try:
            if self._find_node(run) and self._make_files(run):
                self._run_container(run)
        except Exception as error:  # a fault of this stand-in; it must not hide in a thread
            self._set(run, phase="Failed", reason="StandIn", message=f"{error!r}")
            raise
        finally:
            with self._store.changed:
                run.is_over = True
                if run.node:
                    self._free.append(run.node)
                self._store.changed.notify_all()
            self._forget(run)

    def _forget(self, run: _Run) -> None:
        """A pod that was deleted goes, once its job has counted it."""
        with self._store.changed, contextlib.suppress(ApiError):
            pod = self._store.get(PODS, run.namespace, run.name)
            if "deletionTimestamp" in pod["metadata"]:
                self.count(run.namespace)
                self._store.remove(PODS, run.namespace, run.name)

    def _is_unwanted(self, run: _Run) -> bool:
        return self._is_over.is_set() or run.kill_at is not None

    def _find_node(self, run: _Run) -> bool:
        pod = self._store.get(PODS, run.namespace, run.name)
        while not self._is_unwanted(run):
            with self._store.changed:
                why = self.why_unschedulable or self._why_no_node(pod["spec"])
                if not why:
                    run.node = self._free.pop(0)
            if not why:
                conditions = [condition("PodScheduled", "", "")]
                self._set(run, conditions=conditions, **self._waiting(pod, "ContainerCreating"))
                address = self._links[run.node].address
                self._set(run, hostIP=address, startTime=time_text())
                self._store.update(
                    PODS,
                    run.namespace,
                    run.name,
                    lambda each: each["spec"].update(nodeName=run.node),
                )
                return True
            unscheduled = condition("PodScheduled", "Unschedulable", why, status="False")
            self._set(run, conditions=[unscheduled])
            time.sleep(_LOOK_S)
        return False

    def _why_no_node(self, spec: Object) -> str:
        for volume in spec.get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim is not None and claim not in self._claims:
                return f'persistentvolumeclaim "{claim}" not found'
        limits = spec["containers"][0].get("resources", {}).get("limits", {})
        number = len(self._links)
        if int(limits.get("nvidia.com/gpu", 0)) > self._gpus:
            return f"0/{number} nodes are available: {number} Insufficient nvidia.com/gpu."
        if not self._free:
            return f"0/{number} nodes are available: {number} Insufficient cpu."
        return ""

    def _waiting(self, pod: Object, reason: str, message: str = "") -> Object:
        (container,) = pod["spec"]["containers"]
        state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        return {"containerStatuses": [_container_status(container, state)]}

    def _make_files(self, run: _Run) -> bool:
        """The image and the files of Secrets are there; those that are not are waited for."""
        folder = self._folder / "pods" / run.uid
        folder.mkdir(parents=True)
        (folder / "hosts").write_text("127.0.0.1 localhost\n")
        pod = self._store.get(PODS, run.namespace, run.name)
        while not self._is_unwanted(run):
            image = pod["spec"]["containers"][0]["image"]
            if not self._images(image):
                text = f'Back-off pulling image "{image}"'
                self._set(run, **self._waiting(pod, "ImagePullBackOff", text))
            elif all(self._fill(run.namespace, each, folder) for each in pod["spec"]["volumes"]):
                return True
            time.sleep(_LOOK_S)
        return False

    def _fill(self, namespace: str, volume: Object, folder: Path) -> bool:
        for key, resource, field in (
            ("secret", SECRETS, "secretName"),
            ("configMap", CONFIG_MAPS, "name"),
        ):
            if key not in volume:
                continue
            try:
                found = self._store.get(resource, namespace, volume[key][field])
            except ApiError:
                return False
            here = folder / volume["name"]
            here.mkdir(exist_ok=True)
            for name, content in found.get("data", {}).items():
                text = base64.b64decode(content) if key == "secret" else content.encode()
                (here / name).write_bytes(text)
                (here / name).chmod(volume[key].get("defaultMode", 0o644))
        return True

    def _run_container(self, run: _Run) -> None:
        pod = self._store.get(PODS, run.namespace, run.name)
        (container,) = pod["spec"]["containers"]
        link = self._links[run.node]
        folder = self._folder / "pods" / run.uid
        self._set(run, podIP=link.address, podIPs=[{"ip": link.address}])
        script = _script(pod, run.uid)
        with machines_of(
            {pod["spec"]["hostname"]: link},
            script,
            folder=self._folder,
            logs=folder,
            hidden=_HIDDEN,
        ) as made:
            (run.machine,) = made.values()
            command = [
                sys.executable,
                "-I",
                "-S",
                "-c",
                _AS_FIRST,
                container.get("workingDir", "/"),
            ]
            command += [*container.get("command", []), *container.get("args", [])]
            process = subprocess.Popen(
                run.machine.command(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._variables(pod, container, link),
                process_group=0,
            )
            began = time_text()
            reader = threading.Thread(target=self._read, args=(run, process), daemon=True)
            reader.start()
            run.main = _grandchild(process.pid)
            running = {"running": {"startedAt": began}}
            conditions = [condition(each, "", "") for each in ("PodScheduled", "Ready")]
            status = {"containerStatuses": [_container_status(container, running)]}
            self._set(run, phase="Running", conditions=conditions, **status)
            while process.poll() is None and not self._is_over.is_set():
                if run.kill_at is not None and time.monotonic() >= run.kill_at:
                    _signal(run.main, signal.SIGKILL)
                time.sleep(_LOOK_S)
            run.main = 0
            run.machine.power_off()
            code = process.wait()
            reader.join()
        if not run.node:  # it has lost its power, and nobody was told
            while not self._is_unwanted(run):
                time.sleep(_LOOK_S)
        ended = {"exitCode": code, "startedAt": began, "finishedAt": time_text()}
        ended["reason"] = "Error" if code else "Completed"
        if run.was_out_of_memory:
            ended["reason"] = "OOMKilled"
        conditions = [condition("PodScheduled", "", "")]
        further = {}
        if run.evicted:
            further = {"reason": "Evicted", "message": run.evicted}
            conditions.append(condition("DisruptionTarget", "TerminationByKubelet", run.evicted))
        status = {"containerStatuses": [_container_status(container, {"terminated": ended})]}
        is_well = code == 0 and not run.evicted
        with self._store.changed:
            run.is_over = True
            self._set(
                run,
                phase="Succeeded" if is_well else "Failed",
                conditions=conditions,
                **status,
                **further,
            )

    def _read(self, run: _Run, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._store.changed:
                run.lines.append((time.time_ns(), line))
                run.size += len(line)
                if run.size > self._most_log_bytes:  # a new file; the old one is not read any more
                    run.num_lost += len(run.lines) - 1
                    run.lines = collections.deque([run.lines[-1]])
                    run.size = len(line)
                self._store.changed.notify_all()

    def _variables(self, pod: Object, container: Object, link: Host) -> dict[str, str]:
        """Those of an image, and those of the manifest."""
        found = {
            "PATH": os.environ["PATH"],
            "HOME": str(Path.home()),
            "HOSTNAME": pod["spec"]["hostname"],
            "KUBERNETES_SERVICE_HOST": "10.96.0.1",
            "KUBERNETES_SERVICE_PORT": "443",
        }
        for each in container.get("env", []):
            if "value" in each:
                found[each["name"]] = each["value"]
                continue
            path = each["valueFrom"]["fieldRef"]["fieldPath"]
            known = {
                "status.podIP": link.address,
                "metadata.name": pod["metadata"]["name"],
                "metadata.namespace": pod["metadata"]["namespace"],
                f"metadata.annotations['{INDEX}']": pod["metadata"]["annotations"].get(INDEX),
            }
            found[each["name"]] = known[path]
        return found

    def _set(self, run: _Run, **status: Any) -> None:
        with contextlib.suppress(ApiError):
            self._store.update(
                PODS, run.namespace, run.name, lambda each: each["status"].update(status)
            )


def _script(pod: Object, uid: str) -> str:
    """What mounts a pod's volumes on its machine."""
    (container,) = pod["spec"]["containers"]
    volumes = {each["name"]: each for each in pod["spec"].get("volumes", [])}
    lines = [f"mount --bind /run/smd/pods/{uid}/hosts /etc/hosts"]
    for mount in container.get("volumeMounts", []):
        path, volume = shlex.quote(mount["mountPath"]), volumes[mount["name"]]
        lines.append(f"mkdir -p {path}")
        if "emptyDir" in volume:
            lines.append(f"mount -t tmpfs -o mode=0777 none {path}")
            continue
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        source = f"pods/{uid}/{mount['name']}" if claim is None else f"claims/{claim}"
        lines.append(f"mount --bind /run/smd/{source} {path}")
        if mount.get("readOnly") or claim is None:
            lines.append(f"mount -o remount,bind,ro {path}")
    return "\n".join([*lines, "umount /run/smd"])


def _container_status(container: Object, state: Object) -> Object:
    is_running = "running" in state
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": is_running,
        "started": is_running,
        "restartCount": 0,
        "state": state,
    }


def _since(options: Mapping[str, str]) -> int:
    """From when lines are wanted, in nanoseconds; the API hands a time on in whole seconds."""
    if "sinceTime" in options:
        when = dt.datetime.fromisoformat(options["sinceTime"].replace("Z", "+00:00"))
        return int(when.timestamp()) * 10**9
    if "sinceSeconds" in options:
        return time.time_ns() - int(options["sinceSeconds"]) * 10**9
    return 0


def _grandchild(pid: int) -> int:
    """The container's process: nsenter and unshare fork."""
    until = time.monotonic() + 10
    found = [pid]
    while time.monotonic() < until:
        found = [pid]
        with contextlib.suppress(OSError, IndexError):
            for _ in range(2):
                each = found[-1]
                children = Path(f"/proc/{each}/task/{each}/children").read_text().split()
                found.append(int(children[0]))
            return found[-1]
        if not Path(f"/proc/{pid}/stat").exists():
            return 0
        time.sleep(0.002)
    return 0


def _signal(pid: int, number: int) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
