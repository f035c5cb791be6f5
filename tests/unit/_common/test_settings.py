# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The environment contract: defaults, accepted values, and every refusal with its cure."""

from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed._common.settings import Settings, ZeroCopy


def test_defaults_are_those_of_the_specification() -> None:
    settings = Settings.from_environ({})
    assert settings == Settings()
    assert settings.timeout_s == 1800
    assert settings.bucket_cap_bytes == 25 * 2**20
    assert settings.ag_scratch_bytes == 16777216
    assert settings.ag_sort_bytes == 134217728
    assert (settings.cpu_transport, settings.cuda_transport) == ("auto", "auto")
    assert settings.zero_copy is ZeroCopy.OWN
    assert not settings.deterministic
    assert settings.cpu_shim == "auto"
    assert settings.horovod == "off"


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("SMDDP_TIMEOUT_SECONDS", "2.5", "timeout_s", 2.5),
        ("SMDDP_TIMEOUT_SECONDS", " ", "timeout_s", 1800.0),
        ("SMDDP_STALL_SECONDS", "2.5", "stall_s", 2.5),
        ("SMDDP_STALL_SECONDS", "0", "stall_s", 0.0),
        ("SMDDP_MESSAGE_LIMIT_MB", "512", "message_limit_bytes", 512 << 20),
        ("SMDDP_MESSAGE_LIMIT_MB", "0", "message_limit_bytes", 0),
        ("SMDDP_SIGNAL_REPORT", "0", "signal_report", False),
        ("SMDDP_TRANSPORT", "tcp", "cpu_transport", "tcp"),
        ("SMDDP_TRANSPORT", "nccl", "cuda_transport", "nccl"),
        ("SMDDP_TRANSPORT", "shm, staged", "cpu_transport", "shm"),
        ("SMDDP_TRANSPORT", "shm, staged", "cuda_transport", "staged"),
        ("SMDDP_TRANSPORT", "auto,tcp", "cpu_transport", "tcp"),
        ("SMDDP_ALGORITHM", "auto", "algorithms", {}),
        (
            "SMDDP_ALGORITHM",
            "all_reduce=ring,broadcast=tree",
            "algorithms",
            {"all_reduce": "ring", "broadcast": "tree"},
        ),
        ("SMDDP_INTERFACE", "auto", "interfaces", ()),
        ("SMDDP_INTERFACE", "eth0, ^docker0", "interfaces", ("eth0", "^docker0")),
        ("SMDDP_TOKEN", "abc", "token", b"abc"),
        ("SMDDP_BUCKET_CAP_MB", "0.5", "bucket_cap_bytes", 2**19),
        ("SMDDP_BUCKET_CAP_MB", "1", "bucket_cap_bytes", 2**20),
        ("SMDDP_ZERO_COPY", "0", "zero_copy", ZeroCopy.OFF),
        ("SMDDP_ZERO_COPY", "no", "zero_copy", ZeroCopy.OFF),
        ("SMDDP_ZERO_COPY", "1", "zero_copy", ZeroCopy.OWN),
        ("SMDDP_ZERO_COPY", "Recurring", "zero_copy", ZeroCopy.RECURRING),
        ("SMDDP_DETERMINISTIC", "true", "deterministic", True),
        ("SMDDP_CPU_SHIM", "full", "cpu_shim", "full"),
        ("SMDDP_HOROVOD", "stand-in", "horovod", "stand-in"),
        ("SMDDP_TRACE", "runs/trace.json", "trace", "runs/trace.json"),
        ("SMDDP_TRACE", "", "trace", None),
        ("SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES", "8192", "ag_scratch_bytes", 8192),
        ("SMDDP_AG_SORT_BUFFER_SIZE_BYTES", "16384", "ag_sort_bytes", 16384),
        ("USE_SMDDP_COLLECTIVES", "1", "ignored", ("USE_SMDDP_COLLECTIVES",)),
    ],
)
def test_accepted_values(name: str, text: str, field: str, value: Any) -> None:
    assert getattr(Settings.from_environ({name: text}), field) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SMDDP_TIMEOUT_SECONDS", "0"),
        ("SMDDP_TIMEOUT_SECONDS", "-1"),
        ("SMDDP_TIMEOUT_SECONDS", "nan"),
        ("SMDDP_TIMEOUT_SECONDS", "inf"),
        ("SMDDP_TIMEOUT_SECONDS", "ten"),
        ("SMDDP_STALL_SECONDS", "-1"),
        ("SMDDP_STALL_SECONDS", "never"),
        ("SMDDP_MESSAGE_LIMIT_MB", "-1"),
        ("SMDDP_MESSAGE_LIMIT_MB", "1.5"),
        ("SMDDP_SIGNAL_REPORT", "maybe"),
        ("SMDDP_TRANSPORT", "efa"),
        ("SMDDP_TRANSPORT", "shm,tcp"),
        ("SMDDP_ALGORITHM", "ring"),
        ("SMDDP_ALGORITHM", "all_reduce="),
        ("SMDDP_ALGORITHM", "allreduce=ring"),
        ("SMDDP_ALGORITHM", "all_reduce=ring,all_reduce=tree"),
        ("SMDDP_INTERFACE", ","),
        ("SMDDP_INTERFACE", "eth0,^"),
        ("SMDDP_TRACE", "/"),
        ("SMDDP_TRACE", "runs/"),
        ("SMDDP_BUCKET_CAP_MB", "0"),
        ("SMDDP_BUCKET_CAP_MB", "-1"),
        ("SMDDP_BUCKET_CAP_MB", "True"),
        ("SMDDP_BUCKET_CAP_MB", "0.3333333"),
        ("SMDDP_BUCKET_CAP_MB", "nan"),
        ("SMDDP_ZERO_COPY", "maybe"),
        ("SMDDP_DETERMINISTIC", "2"),
        ("SMDDP_CPU_SHIM", "on"),
        ("SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES", "8191"),
        ("SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES", "0"),
        ("SMDDP_AG_SORT_BUFFER_SIZE_BYTES", "-8192"),
        ("SMDDP_AG_SORT_BUFFER_SIZE_BYTES", "many"),
    ],
)
def test_refusals_name_variable_value_and_cure(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_environ({name: text})
    assert f"{name}={text!r}" in str(caught.value)
    assert "expected" in str(caught.value)
    assert f"Correct {name}" in str(caught.value)


def test_the_token_comes_from_a_file_too_and_is_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("hush-hush\n")
    settings = Settings.from_environ({"SMDDP_TOKEN_FILE": str(path)})
    assert settings.token == b"hush-hush"
    assert "hush" not in repr(settings)


def test_a_token_file_that_is_missing_or_empty_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Settings.from_environ({"SMDDP_TOKEN_FILE": str(tmp_path / "none")})
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigurationError, match="is empty"):
        Settings.from_environ({"SMDDP_TOKEN_FILE": str(tmp_path / "empty")})


def test_tls_needs_all_three_files() -> None:
    names = ["SMDDP_TLS_CERT", "SMDDP_TLS_KEY", "SMDDP_TLS_CA"]
    complete = Settings.from_environ(dict.fromkeys(names, "x.pem"))
    assert (complete.tls_cert, complete.tls_key, complete.tls_ca) == ("x.pem",) * 3
    with pytest.raises(ConfigurationError, match="SMDDP_TLS_KEY and SMDDP_TLS_CA missing"):
        Settings.from_environ({"SMDDP_TLS_CERT": "x.pem"})


@pytest.mark.parametrize("text", ["0", "17", "-1", "two", "1.5", "٣"])
def test_a_number_of_connections_is_refused_by_the_text_of_the_engine(text: str) -> None:
    with pytest.raises(ConfigurationError, match="Leave it unset for one") as caught:
        Settings.from_environ({"SMDDP_TCP_CONNECTIONS": text})
    assert f"SMDDP_TCP_CONNECTIONS={text}; expected a number from 1 to 16" in str(caught.value)


def test_as_many_connections_as_the_engine_allows() -> None:
    rails = Path(__file__).parents[3] / "native/transport/tcp/rails.h"
    assert "kMostRails = 16;" in rails.read_text()
    for text in ("", "1", "16"):
        Settings.from_environ({"SMDDP_TCP_CONNECTIONS": text})
