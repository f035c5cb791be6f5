# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The environment contract: every `SMDDP_*` variable as one typed, documented field.

Variables are read once per process and checked when they are read, so that a typing error is told
at the start and not after an hour. Empty counts as unset.

Source: dataparallel specification, sections 3.1, 4.6 and 6.2.
"""

import dataclasses
import enum
import functools
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from smdistributed._common.bucket_size import ALIGNMENT_BYTES, bytes_of_mib, is_bucket_size
from smdistributed._common.discovery.variables import read_int, read_text
from smdistributed._common.errors import ConfigurationError
from smdistributed._common.log import get_logger
from smdistributed._common.variable_names import unknown_variables

__all__ = ["CPU_SHIM_MODES", "Settings", "ZeroCopy", "process_settings"]

CPU_SHIM_MODES = ("auto", "off", "full")

_CPU_TRANSPORTS = ("shm", "tcp")
_CUDA_TRANSPORTS = ("nccl", "staged")

_COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
)

# Accepted because published scripts set them; they change nothing.
_IGNORED = (
    "USE_SMDDP_COLLECTIVES",
    "SMDATAPARALLEL_LMC_ENABLE",
    "SMDATAPARALLEL_OPTIMIZE_SDP",
)

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")

_AG_BUFFER_UNIT_BYTES = 8192

_MOST_CONNECTIONS = 16  # as kMostRails of the engine


class ZeroCopy(enum.Enum):
    """Which tensors of torch may lie in memory that the ranks of a host share.

    The value is how `SMDDP_ZERO_COPY` writes it.
    """

    OFF = "0"
    """None."""
    OWN = "1"
    """What the package allocates itself, gradient buckets included. A tensor never moves."""
    RECURRING = "recurring"
    """Also tensors of the user that recur in collectives. They move there, which has dangers."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user has chosen, checked.

    Attributes:
        timeout_s: `SMDDP_TIMEOUT_SECONDS`; seconds a collective or the start of a job may stall.
        stall_s: `SMDDP_STALL_SECONDS`; a rank that waits for so many seconds writes where the
            others are; 0 for never.
        message_limit_bytes: `SMDDP_MESSAGE_LIMIT_MB`, in bytes; of messages of a pipeline that this
            rank has posted and others have not taken, or on its host still use; more is an error;
            0 for no limit.
        signal_report: `SMDDP_SIGNAL_REPORT`; SIGUSR1 prints the last operations of every group.
        cpu_transport: `SMDDP_TRANSPORT`; for CPU tensors: "auto", "shm" or "tcp".
        cuda_transport: `SMDDP_TRANSPORT`; for CUDA tensors: "auto", "nccl" or "staged".
        algorithms: `SMDDP_ALGORITHM`; collective to algorithm name, empty for "auto". The engine
            knows and checks the algorithm names.
        interfaces: `SMDDP_INTERFACE`; names or address prefixes to use, those that start with `^`
            are excluded; empty for "auto".
        token: `SMDDP_TOKEN`, or the content of `SMDDP_TOKEN_FILE`; the secret that peers prove to
            know, or `None`. Never shown.
        tls_cert, tls_key, tls_ca: `SMDDP_TLS_CERT`, `_KEY`, `_CA`; PEM files; all or none. With
            them TCP connections between ranks use TLS 1.3.
        bucket_cap_bytes: `SMDDP_BUCKET_CAP_MB`, in bytes; default fusion threshold.
        zero_copy: `SMDDP_ZERO_COPY`; which tensors of torch may lie in memory that the ranks of a
            host share.
        deterministic: `SMDDP_DETERMINISTIC`; sums over several hosts have the same bits for any
            size. On one host they do anyway.
        cpu_shim: `SMDDP_CPU_SHIM`; "auto", "off" or "full".
        horovod: `SMDDP_HOROVOD`; "stand-in" or "off". The interpreter's start reads it, before
            this class does: here it is checked.
        tf_operations: `SMDDP_TF_OPERATIONS`; how TensorFlow runs collectives: "auto", "kernels" or
            "python".
        trace: `SMDDP_TRACE`; write a timeline there, one file per rank, or `None`.
        ag_scratch_bytes: `SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES`; cap of the all-gather's own memory.
            Not used: ours needs none.
        ag_sort_bytes: `SMDDP_AG_SORT_BUFFER_SIZE_BYTES`; same rule.
        ignored: names of set variables that are accepted and have no effect.
    """

    timeout_s: float = 1800.0
    stall_s: float = 30.0
    message_limit_bytes: int = 0
    signal_report: bool = True
    cpu_transport: str = "auto"
    cuda_transport: str = "auto"
    algorithms: Mapping[str, str] = dataclasses.field(default_factory=lambda: MappingProxyType({}))
    interfaces: tuple[str, ...] = ()
    token: bytes | None = dataclasses.field(default=None, repr=False)
    tls_cert: str | None = None
    tls_key: str | None = dataclasses.field(default=None, repr=False)
    tls_ca: str | None = None
    bucket_cap_bytes: int = 25 * 1024 * 1024
    zero_copy: ZeroCopy = ZeroCopy.OWN
    deterministic: bool = False
    cpu_shim: str = "auto"
    horovod: str = "off"
    tf_operations: str = "auto"
    trace: str | None = None
    ag_scratch_bytes: int = 16 * 1024 * 1024
    ag_sort_bytes: int = 128 * 1024 * 1024
    ignored: tuple[str, ...] = ()

    @property
    def tls(self) -> tuple[str, str, str] | None:
        """Certificate, key and authority, or `None` without TLS."""
        if self.tls_cert is None or self.tls_key is None or self.tls_ca is None:
            return None
        return self.tls_cert, self.tls_key, self.tls_ca

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Reads and checks all variables.

        Args:
            environ: the environment; default: that of this process.

        Raises:
            ConfigurationError: a variable is not what it may be; the text names the variable, its
                value (secrets excepted) and what is allowed.
        """
        if environ is None:
            environ = os.environ
        _check_tcp_connections(environ)
        cpu_transport, cuda_transport = _read_transports(environ)
        cert, key, ca = _read_tls(environ)
        return cls(
            timeout_s=_read_timeout(environ),
            stall_s=_read_stall(environ),
            message_limit_bytes=_read_message_limit(environ),
            signal_report=_read_bool(environ, "SMDDP_SIGNAL_REPORT", default=True),
            cpu_transport=cpu_transport,
            cuda_transport=cuda_transport,
            algorithms=MappingProxyType(_read_algorithms(environ)),
            interfaces=_read_interfaces(environ),
            token=_read_token(environ),
            tls_cert=cert,
            tls_key=key,
            tls_ca=ca,
            bucket_cap_bytes=_read_bucket_cap(environ),
            zero_copy=_read_zero_copy(environ),
            deterministic=_read_bool(environ, "SMDDP_DETERMINISTIC", default=False),
            cpu_shim=_read_choice(environ, "SMDDP_CPU_SHIM", CPU_SHIM_MODES, default="auto"),
            horovod=_read_choice(environ, "SMDDP_HOROVOD", ("stand-in", "off"), default="off"),
            tf_operations=_read_choice(
                environ, "SMDDP_TF_OPERATIONS", ("auto", "kernels", "python"), default="auto"
            ),
            trace=_read_trace(environ),
            ag_scratch_bytes=_read_ag_buffer(
                environ, "SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES", cls.ag_scratch_bytes
            ),
            ag_sort_bytes=_read_ag_buffer(
                environ, "SMDDP_AG_SORT_BUFFER_SIZE_BYTES", cls.ag_sort_bytes
            ),
            ignored=tuple(name for name in _IGNORED if read_text(environ, name) is not None),
        )


@functools.cache
def process_settings() -> Settings:
    """Returns the settings of this process; its environment is read at the first call only."""
    settings = Settings.from_environ()
    for name in settings.ignored:
        get_logger().debug("%s is accepted and has no effect", name)
    _tell_of_unknown_variables()
    return settings


def _tell_of_unknown_variables() -> None:
    """Warn on the first rank of each host; on the others the same is a debug message.

    Which rank this is, a misspelt variable of a launcher can hide: then every rank warns.
    """
    is_first = read_text(os.environ, "LOCAL_RANK") in (None, "0")
    for sentence in unknown_variables(os.environ):
        (get_logger().warning if is_first else get_logger().debug)("%s", sentence)


def _read_timeout(environ: Mapping[str, str]) -> float:
    expected = "a positive number of seconds, such as 1800"
    seconds = _read_seconds(environ, "SMDDP_TIMEOUT_SECONDS", Settings.timeout_s, expected)
    if seconds == 0:
        raise _error("SMDDP_TIMEOUT_SECONDS", environ["SMDDP_TIMEOUT_SECONDS"], expected)
    return seconds


def _read_stall(environ: Mapping[str, str]) -> float:
    expected = "a number of seconds, such as 30, or 0 for never"
    return _read_seconds(environ, "SMDDP_STALL_SECONDS", Settings.stall_s, expected)


def _read_message_limit(environ: Mapping[str, str]) -> int:
    text = read_text(environ, "SMDDP_MESSAGE_LIMIT_MB")
    if text is None:
        return Settings.message_limit_bytes
    if not (text.isascii() and text.isdigit() and int(text) < 2**40):
        expected = "a whole number of MiB, such as 4096, or 0 for no limit"
        raise _error("SMDDP_MESSAGE_LIMIT_MB", text, expected)
    return int(text) << 20


def _read_seconds(environ: Mapping[str, str], name: str, default: float, expected: str) -> float:
    """Finite and not negative."""
    text = read_text(environ, name)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise _error(name, text, expected)
    return seconds


def _check_tcp_connections(environ: Mapping[str, str]) -> None:
    """The engine reads it, when it connects; a launcher can refuse it sooner, by the same text."""
    text = read_text(environ, "SMDDP_TCP_CONNECTIONS")
    if text is None or (text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST_CONNECTIONS):
        return
    raise ConfigurationError(
        f"SMDDP_TCP_CONNECTIONS={text}; expected a number from 1 to {_MOST_CONNECTIONS}: of TCP"
        " connections between two ranks over each network interface. Leave it unset for one."
    )


def _read_transports(environ: Mapping[str, str]) -> tuple[str, str]:
    text = read_text(environ, "SMDDP_TRANSPORT")
    chosen = {"cpu": "auto", "cuda": "auto"}
    kinds = dict.fromkeys(_CPU_TRANSPORTS, "cpu") | dict.fromkeys(_CUDA_TRANSPORTS, "cuda")
    for item in _split(text):
        if item == "auto":
            continue
        kind = kinds.get(item)
        if text is None or kind is None or chosen[kind] != "auto":
            raise _error(
                "SMDDP_TRANSPORT",
                str(text),
                "auto, shm or tcp for CPU tensors and auto, nccl or staged for CUDA tensors, or one"
                " of each separated by a comma, such as tcp,nccl",
            )
        chosen[kind] = item
    return chosen["cpu"], chosen["cuda"]


def _read_algorithms(environ: Mapping[str, str]) -> dict[str, str]:
    text = read_text(environ, "SMDDP_ALGORITHM")
    if text is None or text == "auto":
        return {}
    algorithms: dict[str, str] = {}
    for item in _split(text):
        collective, _, algorithm = (part.strip() for part in item.partition("="))
        if collective not in _COLLECTIVES or not algorithm or collective in algorithms:
            raise _error(
                "SMDDP_ALGORITHM",
                text,
                "auto, or collective=algorithm once per collective, separated by commas, such as "
                f"all_reduce=staged; the collectives are {', '.join(_COLLECTIVES)}",
            )
        algorithms[collective] = algorithm
    return algorithms


def _read_interfaces(environ: Mapping[str, str]) -> tuple[str, ...]:
    text = read_text(environ, "SMDDP_INTERFACE")
    if text is None or text == "auto":
        return ()
    items = _split(text)
    if not items or any(item in ("auto", "^") for item in items):
        raise _error(
            "SMDDP_INTERFACE",
            text,
            "auto, or interface names or address prefixes separated by commas, ^name to exclude, "
            "such as eth0,^docker0",
        )
    return items


def _read_token(environ: Mapping[str, str]) -> bytes | None:
    token = read_text(environ, "SMDDP_TOKEN")
    path = read_text(environ, "SMDDP_TOKEN_FILE")
    if token is not None:
        return token.encode("utf-8", "surrogateescape")
    if path is None:
        return None
    try:
        content = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(
            f"SMDDP_TOKEN_FILE={path!r} cannot be read ({error.strerror}); expected a file that "
            "holds the job's token. Correct the path, or set SMDDP_TOKEN."
        ) from error
    if not content:
        raise ConfigurationError(
            f"SMDDP_TOKEN_FILE={path!r} is empty; expected a file that holds the job's token. "
            "Write one random line into it, the same for every rank."
        )
    return content


def _read_tls(environ: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    names = ("SMDDP_TLS_CERT", "SMDDP_TLS_KEY", "SMDDP_TLS_CA")
    paths = [read_text(environ, name) for name in names]
    missing = [name for name, path in zip(names, paths, strict=True) if path is None]
    if 0 < len(missing) < len(names):
        raise ConfigurationError(
            f"{' and '.join(missing)} missing while the other TLS variables are set; expected all "
            f"of {', '.join(names)}, or none. Set what is missing, or unset the others."
        )
    return paths[0], paths[1], paths[2]


def _read_bucket_cap(environ: Mapping[str, str]) -> int:
    text = read_text(environ, "SMDDP_BUCKET_CAP_MB")
    if text is None:
        return Settings.bucket_cap_bytes
    try:
        size_bytes = bytes_of_mib(float(text))
    except ValueError:
        size_bytes = None
    if not is_bucket_size(size_bytes):
        raise _error(
            "SMDDP_BUCKET_CAP_MB",
            text,
            "a positive number of MiB that gives a multiple of "
            f"{ALIGNMENT_BYTES} bytes, such as 25",
        )
    return size_bytes


def _read_trace(environ: Mapping[str, str]) -> str | None:
    text = read_text(environ, "SMDDP_TRACE")
    if text is not None and (text.endswith("/") or Path(text).is_dir()):
        raise _error("SMDDP_TRACE", text, "the path of a file, such as runs/trace.json")
    return text


def _read_zero_copy(environ: Mapping[str, str]) -> ZeroCopy:
    text = read_text(environ, "SMDDP_ZERO_COPY")
    word = ZeroCopy.OWN.value if text is None else text.lower()
    if word in _TRUE:
        return ZeroCopy.OWN
    if word in _FALSE:
        return ZeroCopy.OFF
    if word == ZeroCopy.RECURRING.value:
        return ZeroCopy.RECURRING
    raise _error("SMDDP_ZERO_COPY", str(text), "0, 1 or recurring")


def _read_ag_buffer(environ: Mapping[str, str], name: str, default: int) -> int:
    size_bytes = read_int(environ, name)
    if size_bytes is None:
        return default
    if size_bytes <= 0 or size_bytes % _AG_BUFFER_UNIT_BYTES:
        raise _error(
            name,
            environ[name],
            f"a positive multiple of {_AG_BUFFER_UNIT_BYTES} bytes, such as {default}",
        )
    return size_bytes


def _read_bool(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = read_text(environ, name)
    if text is None:
        return default
    if text.lower() not in _TRUE + _FALSE:
        raise _error(name, text, "1 or 0")
    return text.lower() in _TRUE


def _read_choice(
    environ: Mapping[str, str], name: str, choices: Iterable[str], *, default: str
) -> str:
    text = read_text(environ, name)
    if text is None:
        return default
    if text not in choices:
        raise _error(name, text, f"one of {', '.join(choices)}")
    return text


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(item.strip() for item in (text or "").split(",") if item.strip())


def _error(name: str, value: str, expected: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name}={value!r} is not allowed; expected {expected}. Correct {name}, or unset it for "
        "the default."
    )
