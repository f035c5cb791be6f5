# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Which jobs are refused before anything is started; the rest runs in tests/multiprocess."""

import pytest

from smdistributed._common.discovery import Membership
from smdistributed._common.errors import ConfigurationError
from smdistributed._common.settings import Settings
from smdistributed.launch.cli import _refuse_other_hosts, main
from smdistributed.launch.options import Options

NOBODY = Membership(0, 1, 0, 1, 0, 1, "127.0.0.1", None, "none")
TWO_SM_HOSTS = Membership(0, 2, 0, 1, 0, 2, "algo-1", 7777, "sagemaker")
TWO_MPI_HOSTS = Membership(0, 4, 0, 2, 0, 2, "m", 1, "openmpi")
ONE_MPI_HOST = Membership(0, 2, 0, 2, 0, 1, "127.0.0.1", 1, "openmpi")


@pytest.mark.parametrize(
    ("hosts", "membership", "one_host", "text"),
    [
        (("192.0.2.1", "localhost"), NOBODY, False, r"host\(s\) 192.0.2.1 are not this machine"),
        ((), TWO_SM_HOSTS, False, "SM_HOSTS lists 2 hosts.*started by mpirun, srun or torchrun"),
        ((), TWO_MPI_HOSTS, True, "spans 2 hosts.*Use smddprun instead"),
    ],
)
def test_jobs_over_several_hosts_are_not_ours_to_start(
    hosts: tuple[str, ...], membership: Membership, one_host: bool, text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        _refuse_other_hosts(Options(("a",), hosts=hosts), membership, one_host=one_host)


@pytest.mark.parametrize(
    ("hosts", "membership", "one_host"),
    [
        (("localhost",), NOBODY, False),
        ((), NOBODY, True),
        ((), TWO_SM_HOSTS, True),
        (("192.0.2.1",), TWO_MPI_HOSTS, False),
        ((), ONE_MPI_HOST, True),
    ],
)
def test_what_is_on_this_host_or_already_started_goes_on(
    hosts: tuple[str, ...], membership: Membership, one_host: bool
) -> None:
    _refuse_other_hosts(Options(("a",), hosts=hosts), membership, one_host=one_host)


def test_a_value_that_cannot_work_is_refused_once_before_ranks_start(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # In the versions before, ranks were started, and each raised the error.
    monkeypatch.setenv("SMDDP_ZERO_COPY", "perhaps")
    with pytest.raises(ConfigurationError) as expected:
        Settings.from_environ()
    assert main(["-np", "2", "echo", "started"]) == 2
    out, err = capfd.readouterr()
    assert "started" not in out
    assert err.count("SMDDP_ZERO_COPY") == str(expected.value).count("SMDDP_ZERO_COPY")
    assert str(expected.value) in err
