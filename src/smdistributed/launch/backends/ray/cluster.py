# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster that is started on request, on machines with SSH, and ended as it was started.

What was started where is written down before it is: whoever is killed meanwhile leaves nothing that
`end` does not find. At each machine `node` does the work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from smdistributed._common.errors import ConfigurationError
from smdistributed._common.version import __version__
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.ray.api import RayApi
from smdistributed.launch.backends.ray.node import MARK, Action, Answer, Order
from smdistributed.launch.backends.ray.settings import RaySettings
from smdistributed.launch.backends.ssh_settings import SshSettings, for_a_shell, is_name
from smdistributed.launch.home import Home
from smdistributed.launch.jobs.files import Lock, write_whole

__all__ = ["RayNodes", "Record"]

_NODE = ("-P", "-m", "smdistributed.launch.backends.ray.node")
_LOOK_S = 9.0  # as of the backend of SSH: an answer within 10 s
_END_S = 45.0
_POLL_S = 0.5
_ANSWER_S = 5.0  # a machine that gives up says so before it is given up
_LAST_LINES = 5

# They are ours: the cluster could not be found, or ended, with others.
_OWN_OPTIONS = (
    *("--head", "--address", "--port", "--node-ip-address", "--temp-dir", "--block"),
    *("--dashboard-host", "--dashboard-port", "--include-dashboard"),
)


@dataclasses.dataclass(frozen=True)
class Record:
    """Of a cluster that was started from here.

    Attributes:
        id: names what was started, on all its machines.
        python: that runs Ray, as the machines call it.
        hosts: on which something may run: by name their addresses, the head first.
        address: of its Jobs API.
        is_up: all of it was alive, once.
    """

    id: str
    python: str
    hosts: Mapping[str, str]
    address: str
    is_up: bool = False


class RayNodes:
    """The cluster of a home directory; there is one at most.

    Args:
        home: has its record, and the settings.
        say: gets lines about what is done.
    """

    def __init__(self, home: Home, say: Callable[[str], None]) -> None:
        self._home = home
        self._say = say
        self._folder = home.cluster
        self._kept = self._folder / "ray.json"
        self.token = self._folder / "token"

    def record(self) -> Record | None:
        """Of what was started, and not ended yet.

        Raises:
            ConfigurationError: the file is damaged.
        """
        try:
            return Record(**json.loads(self._kept.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{self._kept} is damaged: {error}; expected what `smd cluster up` has written."
                f" Processes of the cluster have {MARK} in their environment: end them by hand, and"
                " remove the file."
            ) from None

    def start(
        self, hosts: Sequence[str], ports: tuple[int, int], options: Sequence[str], timeout_s: float
    ) -> Record:
        """Starts Ray on machines, and waits until all are alive.

        Args:
            hosts: as `ssh` knows them; the first one is the head.
            ports: of the head: of Ray itself, and of the dashboard.
            options: more ones of `ray start`, on each.
            timeout_s: for all of it. Ending what was started, if it fails, comes on top.

        Returns: its record; if it is up already, unchanged.

        Raises:
            ConfigurationError: the settings or the arguments are wrong, or another one is up.
            BackendError: it cannot be; nothing is left of it, or the text says where.
        """
        for option in options:
            if option.partition("=")[0] in _OWN_OPTIONS:
                raise ConfigurationError(
                    f"{option!r} is no option to be given here: it is set. Expected others of"
                    " `ray start`, such as --num-cpus=4; ports of the head are --port and"
                    " --dashboard-port."
                )
        for host in hosts:
            if not is_name(host):
                raise ConfigurationError(
                    f"{host!r} is no machine; expected names as ssh takes them."
                )
        if ports[0] == ports[1]:
            raise ConfigurationError(
                f"port {ports[0]} is to be that of Ray and that of its dashboard; expected two."
                " Give another --port or --dashboard-port."
            )
        if len(set(hosts)) < len(hosts):
            raise ConfigurationError(f"{', '.join(hosts)} names a machine twice; expected once.")
        settings = SshSettings.of(self._home, hosts)
        python = RaySettings.python_of(self._home)
        with self._alone():
            record = self.record()
            if record is not None:
                return self._require_up(record, hosts)
            until = time.monotonic() + timeout_s
            record = Record(
                secrets.token_hex(4), python, dict.fromkeys(hosts, ""), f"http://:{ports[1]}"
            )
            record = self._looked(settings, record, ports, until)
            try:
                self._run(settings, record, ports, options, until)
            except BaseException as error:
                problems = self._ended(settings, record)
                if isinstance(error, BackendError):
                    raise BackendError(f"{error} {_what_is_left(problems)}") from None
                raise
            record = dataclasses.replace(record, is_up=True)
            self._write(record)
            return record

    def end(self) -> Record | None:
        """Ends what was started, on all machines that can be reached.

        Returns: what it was; None: nothing.

        Raises:
            ConfigurationError: the record or the settings are wrong.
            BackendError: something is left; says where. It can be called again.
        """
        with self._alone():
            record = self.record()
            if record is None:
                return None
            problems = self._ended(SshSettings.of(self._home, list(record.hosts)), record)
            if problems:
                texts = "; ".join(f"{host}: {why}" for host, why in problems.items())
                raise BackendError(
                    f"Ray may still run on {', '.join(problems)} ({texts}). Once they answer,"
                    " smd cluster down ends it there."
                )
            return record

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self._home.make()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        lock = Lock(self._folder / "lock")
        if not lock.acquire():
            raise BackendError(
                "another `smd cluster` starts or ends the cluster now; expected one at a time."
            )
        try:
            yield
        finally:
            lock.release()

    def _write(self, record: Record) -> None:
        write_whole(self._kept, json.dumps(dataclasses.asdict(record)).encode())

    def _require_up(self, record: Record, hosts: Sequence[str]) -> Record:
        if list(record.hosts) != list(hosts):
            raise ConfigurationError(
                f"a cluster on {', '.join(record.hosts)} was started from here; expected none, or"
                " the same hosts. End it: smd cluster down"
            )
        why = "it was never complete"
        if record.is_up:
            try:
                why = self._missing(record)
            except BackendError as error:
                why = str(error)
        if not record.is_up or why:
            raise BackendError(
                f"the cluster that was started from here is no whole one: {why}. End it:"
                " smd cluster down"
            )
        return record

    # --- its parts -------------------------------------------------------------------------------

    def _looked(
        self, settings: SshSettings, record: Record, ports: tuple[int, int], until: float
    ) -> Record:
        """The record, with addresses; nothing was started yet."""
        head, *_ = record.hosts
        orders = {
            host: Order(
                Action.LOOK,
                record.id,
                settings.addresses.get(host, ""),
                ports if host == head else (),
            )
            for host in record.hosts
        }
        limit_s = min(_LOOK_S, until - time.monotonic())
        found = _asked_all(settings, record.python, orders, limit_s)
        first = found[head]
        problems = {}
        for host, answer in found.items():
            why = answer.problem
            if not why and answer.version != __version__:
                why = f"it has version {answer.version} of this package, expected {__version__}"
            elif not why and not first.problem:
                for what in ("ray", "python"):
                    here, there = getattr(first, what), getattr(answer, what)
                    if here != there:
                        why = f"its version of {what} is {there}, expected {here}, as {head} has"
                if host != head and answer.address == first.address:
                    why = f"its address is {answer.address}, and so is that of {head}; expected"
                    why += " each machine once, and addresses under [ssh.addresses] of config.toml"
            if why:
                problems[host] = why
        if problems:
            raise BackendError(_not_started(problems))
        by_name = {host: answer.address for host, answer in found.items()}
        address = f"[{first.address}]" if ":" in first.address else first.address
        return dataclasses.replace(record, hosts=by_name, address=f"http://{address}:{ports[1]}")

    def _run(
        self,
        settings: SshSettings,
        record: Record,
        ports: tuple[int, int],
        options: Sequence[str],
        until: float,
    ) -> None:
        token = secrets.token_hex(32)
        write_whole(self.token, token.encode())
        self._write(record)
        (head, head_address), *others = record.hosts.items()

        def order(address: str, *more: str) -> Order:
            return Order(
                Action.START,
                record.id,
                address,
                () if address == head_address else ports[:1],
                head_address,
                [
                    f"--node-ip-address={address}",
                    "--disable-usage-stats",
                    "--dashboard-agent-listen-port=0",  # that of another Ray is the usual one
                    *more,
                    *options,
                ],
                token,
                max(1.0, until - time.monotonic() - _ANSWER_S),
            )

        self._say(f"{head}: Ray starts, as the head")
        first = order(
            head_address,
            *("--head", f"--port={ports[0]}", "--include-dashboard=true"),
            *(f"--dashboard-host={head_address}", f"--dashboard-port={ports[1]}"),
        )
        self._require_started(settings, record, {head: first}, until)
        for host, _ in others:
            self._say(f"{host}: Ray starts")
        join = f"--address={record.address.removeprefix('http://').rpartition(':')[0]}:{ports[0]}"
        orders = {host: order(address, join) for host, address in others}
        self._require_started(settings, record, orders, until)
        api = RayApi(record.address, token)
        why = "it was not asked"
        while time.monotonic() < until:
            try:
                why = self._missing(record, api)
            except BackendError as error:
                why = str(error)
            if not why:
                return
            time.sleep(_POLL_S)
        raise BackendError(f"the cluster was not whole in time: {why}.")

    def _require_started(
        self, settings: SshSettings, record: Record, orders: Mapping[str, Order], until: float
    ) -> None:
        limit_s = max(1.0, until - time.monotonic())
        answers = _asked_all(settings, record.python, orders, limit_s, record.id)
        problems = {host: each.problem for host, each in answers.items() if each.problem}
        if problems:
            raise BackendError(_not_started(problems))

    def _missing(self, record: Record, api: RayApi | None = None) -> str:
        """Which nodes are not alive; empty: all are.

        Raises:
            BackendError: the cluster does not answer.
        """
        api = api or RayApi(record.address, self.token.read_text())
        alive = api.nodes()
        missing = [host for host, address in record.hosts.items() if address not in alive]
        return f"no node of Ray is alive on {', '.join(missing)}" if missing else ""

    def _ended(self, settings: SshSettings, record: Record) -> dict[str, str]:
        """Ends all of it, and keeps a record of the rest. Returns: by host, why not."""
        orders = {host: Order(Action.END, record.id) for host in record.hosts}
        problems = {}
        for host, answer in _asked_all(settings, record.python, orders, _END_S).items():
            if answer.problem:
                problems[host] = answer.problem
            self._say(f"{host}: {answer.problem or f'{answer.num_ended} processes ended'}")
        if problems:
            left = {host: record.hosts[host] for host in problems}
            self._write(dataclasses.replace(record, hosts=left, is_up=False))
        else:
            self.token.unlink(missing_ok=True)
            self._kept.unlink(missing_ok=True)
        return problems


def _not_started(problems: Mapping[str, str]) -> str:
    texts = "; ".join(f"{host}: {why}" for host, why in problems.items())
    return f"no cluster was started. {texts}."


def _what_is_left(problems: Mapping[str, str]) -> str:
    if not problems:
        return "What was started was ended."
    texts = "; ".join(f"{host}: {why}" for host, why in problems.items())
    return f"What was started could not be ended ({texts}). smd cluster down tries it again."


# --- over SSH -------------------------------------------------------------------------------------


def _asked_all(
    settings: SshSettings,
    python: str,
    orders: Mapping[str, Order],
    timeout_s: float,
    mark: str = "",
) -> dict[str, Answer]:
    """Has machines do what they are told, all at once; each gives an answer, or a problem."""
    program = f"{for_a_shell(python)} {shlex.join(_NODE)}"
    # With a mark it is itself found by who ends the cluster, also if its connection is lost.
    command = f"exec env {MARK}={mark} {program}" if mark else f"exec {program}"
    until = time.monotonic() + timeout_s
    calls: dict[str, _Call] = {}
    try:
        for host, order in orders.items():
            calls[host] = _Call(settings.on(host, command), order)
        answers = {}
        for host, call in calls.items():
            answer = call.answer(until)
            if isinstance(answer, str):
                trial = settings.by_hand(host, f"{for_a_shell(python)} -c 'import smdistributed'")
                answer = Answer(f"{answer}. Try by hand: {trial}")
            answers[host] = answer
        return answers
    finally:
        for call in calls.values():
            call.close()


class _Call:
    """One order to one machine."""

    def __init__(self, command: Sequence[str], order: Order) -> None:
        # A file: a client that stays in the background would keep a pipe open.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this
        self._why = ""
        try:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is for this process, which ends what was started
            )
        except OSError as error:
            self._process = None
            self._why = f"{command[0]!r} cannot be run: {error.strerror}"
            return
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, and says why
            self._process.stdin.write(order.to_json())
            self._process.stdin.flush()

    def answer(self, until: float) -> Answer | str:
        """The answer; or why there is none."""
        if self._process is None:
            return self._why
        began = time.monotonic()
        try:
            output, _ = self._process.communicate(timeout=max(0.1, until - began))
        except subprocess.TimeoutExpired:
            return "it has not answered in time"
        answer = Answer.of_text(output.decode(errors="replace"))
        if answer is not None:
            return answer
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        said = " ".join([line.strip() for line in lines if line.strip()][-_LAST_LINES:])
        return f"the connection ended with status {self._process.returncode}: {said}"

    def close(self) -> None:
        """Nothing of it is left here."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    stream and stream.close()
        self._errors.close()
