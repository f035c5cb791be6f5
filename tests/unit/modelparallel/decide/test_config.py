# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The parameters of a job: sources, defaults, and every row of the specification, section 1.3."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest

from smdistributed.modelparallel.decide import config as config_module
from smdistributed.modelparallel.decide.config import PARAMETERS_VARIABLE, Config
from smdistributed.modelparallel.exceptions import ConfigError

DDP = {"ddp": True}


def _parse(parameters: dict[str, Any] | None = None, **launcher: Any) -> Config:
    environ = {PARAMETERS_VARIABLE: json.dumps(launcher)} if launcher else {}
    return Config.parse(parameters, environ)


# --- Sources and defaults ---


def test_without_parameters_there_is_nothing_to_be_parallel() -> None:
    config = _parse()
    assert (config.pipeline_parallel_degree, config.tensor_parallel_degree) == (1, 1)
    assert (config.microbatches, config.active_microbatches) == (1, 1)
    assert (config.pipeline, config.optimize, config.placement_strategy) == (
        "interleaved",
        "memory",
        "cluster",
    )
    assert config.auto_partition
    assert config.default_partition is None
    assert not config.ddp
    assert config.ddp_dist_backend == "auto"
    assert config.notices == ()


def test_the_launcher_wins_key_by_key() -> None:
    config = _parse({"microbatches": 4, "pipeline": "simple"}, microbatches=8)
    assert (config.microbatches, config.pipeline) == (8, "simple")
    assert _parse({"pipeline_parallel_degree": 4}, partitions=2).partitions == 2
    assert _parse({"partitions": 4}, pipeline_parallel_degree=2).partitions == 2


def test_an_empty_variable_is_none() -> None:
    assert Config.parse({"microbatches": 2}, {PARAMETERS_VARIABLE: " "}).microbatches == 2


@pytest.mark.parametrize("text", ["{", "[1]", "partitions=2"])
def test_a_launcher_that_writes_no_object_is_told_so(text: str) -> None:
    with pytest.raises(ConfigError, match=PARAMETERS_VARIABLE):
        Config.parse(None, {PARAMETERS_VARIABLE: text})


def test_partitions_is_the_old_name_of_the_degree() -> None:
    assert _parse({"partitions": 3}).pipeline_parallel_degree == 3
    assert _parse({"pipeline_parallel_degree": 3}).partitions == 3
    assert _parse({"partitions": 3, "pipeline_parallel_degree": 3}).partitions == 3
    assert _parse({"_prescaled_batch": True}).prescaled_batch
    with pytest.raises(ConfigError, match=r"partitions is 2 and pipeline_parallel_degree is 3"):
        _parse({"partitions": 2, "pipeline_parallel_degree": 3})


@pytest.mark.parametrize(
    ("parameters", "key", "value"),
    [
        ({"optimize": "speed"}, "memory_weight", 0.2),
        ({"optimize": "memory"}, "memory_weight", 0.8),
        ({"optimize": "speed", "memory_weight": 1}, "memory_weight", 1.0),
        ({"memory_weight": 0}, "memory_weight", 0.0),
        ({"partitions": 4, "microbatches": 16}, "active_microbatches", 6),
        ({"partitions": 4, "microbatches": 5}, "active_microbatches", 5),
        ({"microbatches": 4, "active_microbatches": 9}, "active_microbatches", 4),
        ({"microbatches": 4, "active_microbatches": 2}, "active_microbatches", 2),
        ({"checkpoint_attentions": True}, "checkpoint_attentions", True),
        ({"checkpoint_attentions": True, "partitions": 2}, "checkpoint_attentions", False),
    ],
)
def test_values_that_depend_on_others(parameters: dict[str, Any], key: str, value: object) -> None:
    assert getattr(_parse(parameters), key) == value


def test_a_key_that_nobody_knows_is_kept_and_told() -> None:
    config = _parse({"my_own": [1]})
    assert config.my_own == [1]
    assert "my_own" in config.notices[0]
    assert "my_own: [1]" in config.describe()
    with pytest.raises(AttributeError, match="'nothing_like_it'"):
        _ = config.nothing_like_it


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"fp16_params": True}, "deprecated"),
        ({"checkpoint_attentions": True, "partitions": 2}, "set_activation_checkpointing"),
        (
            {"deterministic_server": True, "partitions": 2},
            "deterministic_server is True, which has no effect yet",
        ),
        ({"partition_file": "f"}, "neither read nor written with pipeline_parallel_degree 1"),
        ({"tensor_parallel_degree": 2, "ddp": True}, "tensor_parallel_degree is 2, which has no"),
        ({"prescaled_batch": True}, "prescaled_batch is True, which has no effect yet"),
        ({"checkpoint_attentions": True}, "checkpoint_attentions is True, which has no effect"),
        ({"sdp_gradient_clipping": 0.5}, "model.clip_grad_norm_()"),
    ],
)
def test_what_the_user_should_know(parameters: dict[str, Any], word: str) -> None:
    assert word in "".join(_parse(parameters).notices)


def test_a_key_at_its_default_is_not_worth_a_word() -> None:
    given = {"tensor_parallel_degree": 1, "prescaled_batch": False, "sdp_gradient_clipping": 1.0}
    assert _parse(given).notices == ()


def test_without_a_pipeline_there_is_one_order_anyway() -> None:
    assert not _parse({"ddp": True, "deterministic_server": True}).notices


def test_every_parameter_is_listed_for_the_log() -> None:
    lines = _parse({"partitions": 2, "microbatches": 4}).describe()
    assert "pipeline_parallel_degree: 2" in lines
    assert "active_microbatches: 4" in lines
    assert "_match_weights: False" in lines
    assert not any(line.startswith(("notices", "unknown")) for line in lines)


def test_a_configuration_can_be_copied_and_pickled() -> None:
    config = _parse({"partitions": 2, "mine": "x"})
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)).mine == "x"


# --- What is refused ---


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        *(
            ({key: value}, f"{key}.*must be a positive integer")
            for key in (
                "microbatches",
                "pipeline_parallel_degree",
                "active_microbatches",
                "tensor_parallel_degree",
                "activation_loading_horizon",
            )
            for value in (0, -1, 1.5, "2", True)
        ),
        (
            {"pipeline": "gpipe"},
            r"value in: \[interleaved, simple, _only_forward\]",
        ),
        ({"optimize": "time"}, r"must be a value in: \[memory, speed\]"),
        ({"placement_strategy": "near"}, r"must be a value in: \[cluster, spread, DPT, "),
        ({"ddp": True, "ddp_dist_backend": "mpi"}, "ddp_dist_backend.*must be a value in: "),
        *(({key: 1}, f"{key}.*must be a value in: ") for key in ("ddp", "auto_partition", "fp16")),
        (
            {"auto_partition": False},
            "default_partition must be supplied if auto_partition is set to False",
        ),
        (
            {"auto_partition": False, "default_partition": 2, "partitions": 2},
            "must be less than the number of partitions",
        ),
        ({"default_partition": -1}, "index of a partition"),
        ({"memory_weight": 1.01}, "memory_weight must be between 0.0 and 1.0"),
        ({"memory_weight": "much"}, "memory_weight must be between 0.0 and 1.0"),
        ({"ddp_port": 1234}, "ddp_port.*needs `ddp` to be set"),
        ({"ddp_dist_backend": "nccl"}, "ddp_dist_backend.*needs `ddp` to be set"),
        (DDP | {"ddp_port": -1}, "Invalid port number"),
        (DDP | {"ddp_port": "1"}, "Invalid port number"),
        (DDP | {"horovod": True}, "cannot be simultaneously enabled"),
        ({"horovod": True}, "set `ddp: True`"),
        ({"tensor_parallel_degree": 2}, "tensor_parallel_degree.*needs `ddp` to be set"),
        ({"sharded_data_parallel_degree": 2}, "sharded_data_para.*needs `ddp` to be set"),
        (
            DDP | {"sharded_data_parallel_degree": 2, "partitions": 2},
            "sharded_data_parallel_degree 2 and pipeline_parallel_degree 2",
        ),
        (
            DDP | {"sharded_data_parallel_degree": 2, "shard_optimizer_state": True},
            "sharded_data_parallel_degree 2 and shard_optimizer_state True",
        ),
        ({"fp16": True, "bf16": True}, "mutually exclusive"),
        ({"tensor_parallel_seed": 0.5}, "must be an integer"),
        ({"sdp_gradient_clipping": 0}, "must be a number above 0"),
        ({"partition_file": 3}, "must be a string"),
        ({"deterministic_server": 1}, r"must be a value in: \[True, False\]"),
        ({"load_partition": 1}, r"must be a value in: \[True, False\]"),
        ({"load_partition": True}, "partition_file is None; expected the file to load from"),
        ({"load_partition": True, "partition_file": ""}, "partition_file is ''"),
    ],
)
def test_values_that_cannot_work(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        _parse(parameters)
    assert isinstance(error.value, ValueError)
    with pytest.raises(ConfigError, match=words):
        _parse(None, **parameters)


def test_parameters_that_are_no_dict() -> None:
    with pytest.raises(ConfigError, match="got list; expected a dict"):
        _parse([("partitions", 2)])  # type: ignore[arg-type]


def test_horovod_is_for_tensorflow() -> None:
    assert Config.parse({"horovod": True}, {}, "tensorflow").horovod


@pytest.mark.parametrize(
    ("parameters", "size", "words"),
    [
        ({"partitions": 2}, 3, "3 processes .*degree 2 .*degree 1"),
        (DDP | {"partitions": 2, "tensor_parallel_degree": 2}, 6, "6 proc.*degree 2 .*degree 2"),
        ({"partitions": 2}, 4, "Set `ddp: True`"),
        ({}, 2, "Set `ddp: True`"),
        (DDP | {"sharded_data_parallel_degree": 3}, 4, "must divide the 4 ranks"),
    ],
)
def test_worlds_that_cannot_work(parameters: dict[str, Any], size: int, words: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        _parse(parameters).topology(size)


@pytest.mark.parametrize(
    ("parameters", "size"),
    [
        ({}, 1),
        ({"partitions": 2}, 2),
        (DDP | {"partitions": 2}, 8),
        (DDP | {"partitions": 2, "tensor_parallel_degree": 2, "placement_strategy": "spread"}, 4),
        (DDP | {"sharded_data_parallel_degree": 2}, 4),
    ],
)
def test_worlds_that_work(parameters: dict[str, Any], size: int) -> None:
    assert _parse(parameters).topology(size).size == size


# --- TensorFlow ---

_DEFAULTS = {
    field.name: field.default for field in dataclasses.fields(Config) if "check" in field.metadata
}
# Of each key that is PyTorch only, a value that PyTorch's library takes.
_OF_TORCH = {
    key: {"ddp_port": 7777, "ddp_dist_backend": "gloo", "partition_file": "f"}.get(
        key, (not _DEFAULTS[key]) if isinstance(_DEFAULTS[key], bool) else 3
    )
    for key in config_module._ONLY_FOR["torch"]
}


def _tensorflow(parameters: dict[str, Any] | None = None, **launcher: Any) -> Config:
    environ = {PARAMETERS_VARIABLE: json.dumps(launcher)} if launcher else {}
    return Config.parse(parameters, environ, "tensorflow")


def test_the_framework_stays_on_the_configuration() -> None:
    assert _tensorflow().framework == "tensorflow"
    assert _parse().framework == "torch"


@pytest.mark.parametrize(
    ("config", "has_replicas"),
    [
        (_parse(), False),
        (_parse(DDP), True),
        (_tensorflow(), False),
        (_tensorflow({"horovod": True}), True),
    ],
)
def test_one_property_says_whether_there_are_replicas(config: Config, has_replicas: bool) -> None:
    assert config.data_parallel == has_replicas


@pytest.mark.parametrize("pipeline", ["zero_bubble", "auto", "1f1b"])
def test_with_tensorflow_schedules_are_those_of_pytorch(pipeline: str) -> None:
    with pytest.raises(ConfigError, match=r"pipeline.*in: \[interleaved, simple, _only_f"):
        _tensorflow({"pipeline": pipeline, "partitions": 2})


def test_with_tensorflow_ddp_is_called_horovod() -> None:
    with pytest.raises(ConfigError, match="PyTorch only, set `horovod: True`"):
        _tensorflow(DDP)
    with pytest.raises(ConfigError, match="TensorFlow only, set `ddp: True`"):
        _parse({"horovod": True})


@pytest.mark.parametrize(("key", "value"), _OF_TORCH.items())
def test_with_tensorflow_keys_of_pytorch_are_refused(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{key} is {value!r}, which is PyTorch only, "):
        _tensorflow({key: value})
    with pytest.raises(ConfigError, match=f"^{key} is {value!r}, which is PyTorch only, "):
        _tensorflow(None, **{key: value})


def test_keys_of_pytorch_by_their_old_names() -> None:
    with pytest.raises(ConfigError, match="prescaled_batch is True, which is PyTorch only"):
        _tensorflow({"_prescaled_batch": True})


def test_with_tensorflow_a_value_of_the_wrong_type_is_told_first() -> None:
    with pytest.raises(ConfigError, match=r"fp16 is 1; it must be a value in: \[True, False\]"):
        _tensorflow({"fp16": 1})


def test_with_tensorflow_all_keys_may_be_given_with_their_default_values() -> None:
    config = _tensorflow({key: _DEFAULTS[key] for key in _OF_TORCH} | {"contiguous": True})
    assert config.notices == ()
    assert config == _tensorflow()


def test_contiguous_has_an_effect_with_tensorflow_alone() -> None:
    assert _tensorflow({"contiguous": False}).notices == ()
    assert "contiguous is False, which has no effect" in "".join(
        _parse({"contiguous": False}).notices
    )


def test_with_tensorflow_other_notices_are_of_unknown_keys() -> None:
    parameters = {"partitions": 2, "deterministic_server": True, "mine": 1}
    (notice,) = _tensorflow(parameters).notices
    assert "mine is no parameter" in notice


@pytest.mark.parametrize(("parameters", "size"), [({}, 4), ({"partitions": 2}, 4)])
def test_replicas_of_a_tensorflow_model_need_horovod(parameters: dict[str, Any], size: int) -> None:
    with pytest.raises(ConfigError, match=r"4 processes are more .*Set `horovod: True`"):
        _tensorflow(parameters).topology(size)
    topology = _tensorflow(parameters | {"horovod": True}).topology(size)
    assert topology.reduced_data_degree == size // parameters.get("partitions", 1)
