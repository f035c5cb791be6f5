# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`smdistributed.dataparallel.torch.distributed`, one test for each statement about it.

Source: dataparallel specification, sections 5 and 5.1; the number in a name is the section.
"""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import run_ranks
from launchers import clean_environment
from machine_speed import scaled

import smdistributed.dataparallel.torch.distributed as dist
from smdistributed.dataparallel.exceptions import SMDDPNotInitialized
from smdistributed.dataparallel.torch.deprecation import LegacyModuleWarning
from tests.conformance.dataparallel.legacy_api_ranks import (
    adopts,
    explicit_place,
    positional_place,
    process_functions,
)

W = dist.group.WORLD

# Parameters with their defaults; `...` has none.
SIGNATURES: dict[str, dict[str, Any]] = {
    "is_available": {},
    "is_initialized": {},
    "get_world_size": {"group": W},
    "get_rank": {"group": W},
    "get_local_rank": {},
    "all_reduce": {"tensor": ..., "op": dist.ReduceOp.SUM, "group": W, "async_op": False},
    "broadcast": {"tensor": ..., "src": 0, "group": W, "async_op": False},
    "all_gather": {"tensor_list": ..., "tensor": ..., "group": W, "async_op": False},
    "all_to_all_single": {
        "output_t": ...,
        "input_t": ...,
        "output_split_sizes": None,
        "input_split_sizes": None,
        "group": W,
        "async_op": False,
    },
    "barrier": {"group": W, "async_op": False},
    "destroy_process_group": {"group": None},
}

DEPRECATION = """\
smdistributed.dataparallel.torch.dist is deprecated in the SageMaker distributed data parallel library v1.4.0+.
Please use torch.distributed and specify 'smddp' as a backend when initializing process group as follows:
torch.distributed.init_process_group(backend='smddp')
For more information, see the library's API documentation at
https://docs.aws.amazon.com/sagemaker/latest/dg/data-parallel-modify-sdp-pt.html
"""  # noqa: E501 -- the published text

NO_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@functools.cache
def found() -> list[dict[str, Any]]:
    """What two ranks found, by rank."""
    result: list[dict[str, Any]] = run_ranks(process_functions, 2, deadline_s=110)
    return result


def both(name: str) -> list[Any]:
    return [by_rank[name] for by_rank in found()]


# ---- names and signatures --------------------------------------------------------------------


def test_5_the_module_has_these_fourteen_names() -> None:
    names = {*SIGNATURES, "init_process_group", "ReduceOp", "group"}
    assert set(dist.__all__) == names
    assert len(names) == 14
    assert all(hasattr(dist, name) for name in names)


@pytest.mark.parametrize("name", SIGNATURES)
def test_5_signatures(name: str) -> None:
    parameters = inspect.signature(getattr(dist, name)).parameters
    ours = {p.name: ... if p.default is p.empty else p.default for p in parameters.values()}
    assert list(ours) == list(SIGNATURES[name])
    for parameter, default in SIGNATURES[name].items():
        assert ours[parameter] is default or ours[parameter] == default


def test_5_init_process_group_takes_any_arguments() -> None:
    kinds = [p.kind for p in inspect.signature(dist.init_process_group).parameters.values()]
    assert kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]


def test_5_reduce_op_has_the_four_documented_attributes() -> None:
    assert {name for name in vars(dist.ReduceOp) if not name.startswith("_")} == {
        "AVERAGE",
        "SUM",
        "MIN",
        "MAX",
    }


def test_5_world_is_a_sentinel_of_our_own_that_exists_before_initialisation() -> None:
    assert dist.group.WORLD is not None
    assert not isinstance(dist.group.WORLD, torch.distributed.ProcessGroup)
    for another in (
        copy.copy(dist.group.WORLD),
        copy.deepcopy(dist.group.WORLD),
        pickle.loads(pickle.dumps(dist.group.WORLD)),
    ):
        assert another is dist.group.WORLD
    assert repr(dist.group.WORLD) == "group.WORLD"


def test_5_the_class_comes_from_both_paths() -> None:
    from smdistributed.dataparallel.torch import parallel
    from smdistributed.dataparallel.torch.parallel import distributed

    assert parallel.DistributedDataParallel is distributed.DistributedDataParallel


# ---- the deprecation warning -----------------------------------------------------------------


LEGACY_CALLS = """\
import smdistributed.dataparallel.torch.distributed as dist
def main():
    dist.init_process_group()
    from smdistributed.dataparallel.torch.parallel import DistributedDataParallel
    import torch
    DistributedDataParallel(torch.nn.Linear(1, 1))
    DistributedDataParallel(torch.nn.Linear(1, 1))
    dist.destroy_process_group()
"""

LEGACY_CLASS_ALONE = """\
import torch
import torch.distributed as dist
from smdistributed.dataparallel.torch.parallel import DistributedDataParallel
def main():
    dist.init_process_group("smddp", store=dist.HashStore(), rank=0, world_size=1)
    DistributedDataParallel(torch.nn.Linear(1, 1))
    DistributedDataParallel(torch.nn.Linear(1, 1))
    dist.destroy_process_group()
"""


def run_script(tmp_path: Path, *options: str, training: str = LEGACY_CALLS) -> str:
    """What a script writes to stderr whose module, not `__main__`, uses the legacy API twice."""
    (tmp_path / "training.py").write_text(training)
    (tmp_path / "main.py").write_text("import training\ntraining.main()\n")
    environ = clean_environment()
    environ.pop("PYTHONWARNINGS", None)
    done = subprocess.run(
        [sys.executable, *options, str(tmp_path / "main.py")],
        env=environ,
        capture_output=True,
        text=True,
        timeout=scaled(100),
        check=True,
    )
    assert not done.stdout
    return done.stderr


def test_5_the_deprecation_warning_is_shown_by_default_with_the_published_text_once(
    tmp_path: Path,
) -> None:
    stderr = run_script(tmp_path)
    assert stderr.count(DEPRECATION) == 1
    where, _, _ = stderr.partition(DEPRECATION)
    assert where.endswith("training.py:3: LegacyModuleWarning: ")


def test_5_the_deprecation_warning_is_shown_on_the_first_class_construction_if_that_is_first(
    tmp_path: Path,
) -> None:
    """Section 5: "or first class construction, whichever is first"; here torch made the group."""
    stderr = run_script(tmp_path, training=LEGACY_CLASS_ALONE)
    assert stderr.count(DEPRECATION) == 1
    where, _, _ = stderr.partition(DEPRECATION)
    assert where.endswith("training.py:6: LegacyModuleWarning: ")


def test_5_the_deprecation_warning_is_a_deprecation_warning_that_users_can_silence(
    tmp_path: Path,
) -> None:
    assert issubclass(LegacyModuleWarning, DeprecationWarning)
    assert not run_script(tmp_path, "-W", "ignore::DeprecationWarning")


# ---- before and around initialisation --------------------------------------------------------


def test_5_is_available_tells_whether_a_launcher_started_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert both("available before init") == [True, True]
    for name in NO_LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    assert not dist.is_available()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2")
    assert dist.is_available()


CALLS_THAT_NEED_THE_GROUP = {
    "get_world_size": (),
    "get_rank": (),
    "get_local_rank": (),
    "all_reduce": (torch.ones(1),),
    "broadcast": (torch.ones(1),),
    "all_gather": ([torch.ones(1)], torch.ones(1)),
    "all_to_all_single": (torch.ones(1), torch.ones(1)),
    "barrier": (),
}


@pytest.mark.parametrize("name", CALLS_THAT_NEED_THE_GROUP)
def test_5_1_other_calls_before_init_raise(name: str) -> None:
    with pytest.raises(SMDDPNotInitialized, match=r"init_process_group\(\) first") as caught:
        getattr(dist, name)(*CALLS_THAT_NEED_THE_GROUP[name])
    assert isinstance(caught.value, RuntimeError)


def test_5_destroy_before_init_is_harmless() -> None:
    dist.destroy_process_group()
    assert not dist.is_initialized()


def destroy_a_sub_group(rank: int, world_size: int) -> dict[str, Any]:
    dist.init_process_group()
    sub_group = torch.distributed.new_group([0, 1])
    other = torch.distributed.new_group([0, 1])
    dist.destroy_process_group(sub_group)
    found: dict[str, Any] = {"initialized": dist.is_initialized()}
    for name, group in {"world": dist.group.WORLD, "other": other}.items():
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        found[name] = tensor.item()
    try:
        found["destroyed"] = torch.distributed.get_backend(sub_group)
    except ValueError as error:
        found["destroyed"] = type(error).__name__
    dist.destroy_process_group()
    return found


def test_5_destroying_a_sub_group_leaves_the_others() -> None:
    """Section 5, `destroy_process_group(group=None)`: only the group that is given goes."""
    kept = {"initialized": True, "world": 2.0, "other": 2.0, "destroyed": "ValueError"}
    assert run_ranks(destroy_a_sub_group, 2) == [kept, kept]


def test_5_is_initialized() -> None:
    assert both("initialized before init") == [False, False]
    assert both("initialized") == [True, True]
    assert both("initialized after destroy") == [False, False]
    assert both("after destroy") == ["SMDDPNotInitialized"] * 2


def test_5_1_the_backend_is_smddp_whatever_was_asked_for() -> None:
    assert both("backend") == ["smddp", "smddp"]


def test_5_1_another_backend_than_the_documented_ones_is_refused() -> None:
    with pytest.raises(ValueError, match="backend='mpi' is unknown to the legacy module"):
        dist.init_process_group("mpi")


def test_5_1_the_timeout_has_effect() -> None:
    assert both("timeout") == [60.0, 60.0]


def test_5_1_rank_world_size_and_store_have_effect() -> None:
    assert run_ranks(explicit_place, 2) == [[1, 2, "smddp"], [0, 2, "smddp"]]


def test_5_1_init_method_and_positions_have_effect_and_one_process_is_a_job() -> None:
    alone = [False, 0, 1, 0, "smddp", [1.0, 1.0]]
    assert run_ranks(positional_place, 2) == [
        [0, 2, "smddp", *alone],
        [1, 2, "smddp", *alone],
    ]


def test_5_1_a_second_init_does_nothing_and_warns() -> None:
    for told in both("second init"):
        assert [category for category, _ in told] == ["RuntimeWarning"]
        assert "was called again" in told[0][1]
    assert both("same group") == [True, True]


@pytest.mark.parametrize("backend", ["smddp", "gloo"])
def test_5_1_torchs_default_group_is_adopted_without_a_warning(backend: str) -> None:
    """A group of another backend is used as it is; the log then says which."""
    assert run_ranks(adopts, 2, backend) == [(backend, [], [2.0]), (backend, [], [2.0])]


def test_5_1_it_calls_nothing_that_needs_cuda() -> None:
    assert not torch.cuda.is_initialized()
    assert both("initialized") == [True, True]


def init_without_cuda(rank: int, world_size: int) -> list[Any]:
    def refuse() -> None:
        raise AssertionError("CUDA was asked for")

    torch.cuda._lazy_init = refuse
    with pytest.raises(AssertionError, match="CUDA was asked for"):
        torch.cuda.init()  # torch's calls for CUDA do go through it
    dist.init_process_group()
    found = [dist.get_rank(), dist.get_world_size(), torch.cuda.is_initialized()]
    dist.destroy_process_group()
    return found


def test_5_1_it_succeeds_where_every_call_for_cuda_fails() -> None:
    """Section 5.1: "It calls nothing that needs CUDA"."""
    assert run_ranks(init_without_cuda, 1) == [[0, 1, False]]


LAZY_EXPORTS = """
import sys
import smdistributed.dataparallel.torch as package
from smdistributed.dataparallel.torch import get_local_rank, get_rank, get_world_size
print("torch" in sys.modules)
for function in (get_local_rank, get_rank, get_world_size):
    try:
        function()
    except RuntimeError as error:
        print(type(error).__name__)
print("torch" in sys.modules)
"""


def test_5_1_the_package_exports_who_am_i_lazily() -> None:
    """Sections 1 and 5.1: the names are there, and importing them leaves torch unimported."""
    done = subprocess.run(
        [sys.executable, "-c", LAZY_EXPORTS], capture_output=True, text=True, timeout=scaled(100)
    )
    expected = ["False", *["SMDDPNotInitialized"] * 3, "True"]
    assert done.stdout.split() == expected, done.stderr


# ---- who am I --------------------------------------------------------------------------------


def test_5_world_size_counts_processes_and_mixes_with_torchs_calls() -> None:
    assert both("sizes") == [[2] * 6, [2] * 6]


def test_5_rank_is_per_process() -> None:
    assert both("ranks") == [[0] * 3, [1] * 3]


def test_5_local_rank() -> None:
    assert both("local ranks") == [[0, 0], [1, 1]]
    assert "group" not in inspect.signature(dist.get_local_rank).parameters


def test_5_1_torch_process_groups_are_accepted() -> None:
    assert both("rank in a torch group") == [0, 1]
    assert both("all_reduce in a torch group") == [[2.0], [2.0]]


def test_5_1_anything_else_as_group_is_a_value_error() -> None:
    for name in ("wrong group", "wrong group in all_reduce"):
        for _, text, bases in both(name):
            assert "ValueError" in bases
            assert "process groups other than group.WORLD must be torch process groups" in text


# ---- collectives -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default", [3.0, 10.0]),
        ("None", [3.0, 10.0]),
        ("SUM", [3.0, 10.0]),
        ("AVERAGE", [1.5, 5.0]),
        ("MIN", [1.0, 0.0]),
        ("MAX", [2.0, 10.0]),
        ("torch's", [3.0, 10.0]),
    ],
)
def test_5_all_reduce(name: str, expected: list[float]) -> None:
    assert both(f"all_reduce {name}") == [(None, expected)] * 2


def test_5_all_reduce_takes_any_tensor() -> None:
    assert both("all_reduce of integers") == [[1, 6]] * 2


def test_5_all_reduce_async() -> None:
    assert both("async all_reduce") == [[2.0, 2.0]] * 2


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_5_average_of_integers_is_refused_clearly(dtype: torch.dtype) -> None:
    for name, text, _ in both(f"AVERAGE of {dtype}"):
        assert name == "SMDDPUnsupported"
        assert str(dtype) in text
        assert "ReduceOp.SUM and divide" in text


def test_5_an_unknown_op_is_refused() -> None:
    for _, text, bases in both("unknown op"):
        assert "ValueError" in bases
        assert "ReduceOp.AVERAGE, SUM, MIN or MAX" in text


def test_6_3_a_float16_average_does_not_overflow_and_nan_reaches_all() -> None:
    assert both("fp16 average") == [[60000.0] * 3] * 2
    assert both("nan") == [True, True]


def test_5_broadcast() -> None:
    assert both("broadcast result") == [None, None]
    assert both("broadcast") == [[0.0] * 5] * 2  # as many elements as one likes
    assert both("broadcast from 1") == [[1.0] * 5] * 2


def test_5_all_gather() -> None:
    assert both("all_gather result") == [None, None]
    assert both("all_gather") == [[[0.0, 0.0], [1.0, 1.0]]] * 2
    assert both("async all_gather") == [[[0.0, 0.0], [-1.0, -1.0]]] * 2


@pytest.mark.parametrize("spelling", ["documented", "torch's", "mixed", "async"])
def test_5_all_to_all_single_under_both_spellings(spelling: str) -> None:
    assert both(f"all_to_all_single {spelling}") == [[0.0, 10.0], [1.0, 11.0]]


def test_5_all_to_all_single_with_split_sizes() -> None:
    assert both("all_to_all_single uneven") == [[0.0, 100.0, 101.0], [1.0, 2.0, 102.0]]


def test_5_all_to_all_single_refuses_one_argument_under_two_names() -> None:
    assert [name for name, _, _ in both("both spellings")] == ["TypeError"] * 2


def test_5_barrier() -> None:
    assert both("barrier") == [[None, None]] * 2


@pytest.mark.parametrize("name", ["tensor", "src"])
def test_5_barrier_rejects_what_is_not_in_its_signature(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        dist.barrier(**{name: 0})
