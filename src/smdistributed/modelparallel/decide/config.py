# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The parameters of a job, checked once.

They come from the script (`smp.init(config)`) and from the launcher (`SM_HP_MP_PARAMETERS`, one
JSON object), which wins key by key. Own checks instead of a validation library: the texts are part
of the contract with users' scripts, and the room imports nothing but the standard library.

Some keys belong to one framework only: `_ONLY_FOR`.

Source: modelparallel specification, section 1; TensorFlow modelparallel specification, section 2.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from smdistributed.modelparallel.decide.schedules import PIPELINES
from smdistributed.modelparallel.decide.schedules.interleaved import Interleaved
from smdistributed.modelparallel.decide.topology import PLACEMENT_STRATEGIES, GroupKind, Topology
from smdistributed.modelparallel.exceptions import ConfigError

__all__ = ["PARAMETERS_VARIABLE", "Config"]

PARAMETERS_VARIABLE = "SM_HP_MP_PARAMETERS"

Framework = Literal["torch", "tensorflow"]

# By framework, `memory_weight` as `optimize` says it.
_MEMORY_WEIGHTS = {
    "torch": {"memory": 0.8, "speed": 0.2},
    "tensorflow": {"memory": 1.0, "speed": 0.0},
}
# Old name of a key: its name.
_ALIASES = {"partitions": "pipeline_parallel_degree", "_prescaled_batch": "prescaled_batch"}
_NEEDS_DDP = ("ddp_port", "ddp_dist_backend")

_FRAMEWORK_NAMES: Mapping[Framework, str] = {"torch": "PyTorch", "tensorflow": "TensorFlow"}
# The key that says whether there are replicas.
_REPLICAS_KEYS: Mapping[Framework, str] = {"torch": "ddp", "tensorflow": "horovod"}

# Keys that belong to one framework; the other one takes their default values only. Not among them:
# `contiguous`, which PyTorch accepts with a notice; `deterministic_server`, as the replicas of a
# TensorFlow model follow one order anyway.
_ONLY_FOR: Mapping[Framework, Sequence[str]] = {
    "torch": (
        "ddp",
        "ddp_port",
        "ddp_dist_backend",
        "load_partition",
        "partition_file",
        "overlapping_allreduce",
        "offload_activations",
        "activation_loading_horizon",
        "tensor_parallel_degree",
        "tensor_parallel_seed",
        "prescaled_batch",
        "shard_optimizer_state",
        "skip_tracing",
        "fp16_params",
        "fp16",
        "bf16",
        "delayed_parameter_initialization",
        "sharded_data_parallel_degree",
        "sdp_reduce_bucket_size",
        "sdp_param_persistence_threshold",
        "sdp_max_live_parameters",
        "sdp_hierarchical_allgather",
        "sdp_gradient_clipping",
        "static_mode",
        "fast_mode",
        "checkpoint_attentions",
        "_match_weights",
        "_fp32_grad_accumulation",
    ),
    "tensorflow": ("horovod",),
}
_KERAS_PRECISION = 'leave it out, and call tf.keras.mixed_precision.set_global_policy("mixed_{}")'
# What the other framework's users should do about such a key; about the others: leave them out.
_INSTEAD = {
    "ddp": "set `horovod: True` instead",
    "horovod": "set `ddp: True` instead",
    "fp16": _KERAS_PRECISION.format("float16"),
    "fp16_params": _KERAS_PRECISION.format("float16"),
    "bf16": _KERAS_PRECISION.format("bfloat16"),
    "delayed_parameter_initialization": (
        "leave it out: each rank allocates the variables of its own partition only"
    ),
}


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_int(value) or isinstance(value, float)


def _positive(key: str, value: object) -> None:
    if not (_is_int(value) and value >= 1):  # type: ignore[operator]
        raise ConfigError(f"{key} is {value!r}; it must be a positive integer.")


def _positive_or_none(key: str, value: object) -> None:
    if value is not None:
        _positive(key, value)


def _integer(key: str, value: object) -> None:
    if not _is_int(value):
        raise ConfigError(f"{key} is {value!r}; it must be an integer.")


def _one_of(*allowed: object) -> Callable[[str, object], None]:
    def check(key: str, value: object) -> None:
        # True == 1, and neither may stand for the other.
        if not any(value == each and type(value) is type(each) for each in allowed):
            listed = ", ".join(map(str, allowed))
            raise ConfigError(f"{key} is {value!r}; it must be a value in: [{listed}].")

    return check


_boolean = _one_of(True, False)


def _weight(key: str, value: object) -> None:
    if value is None:
        return
    if not (_is_number(value) and 0 <= value <= 1):  # type: ignore[operator]
        raise ConfigError(f"{key} must be between 0.0 and 1.0; got {value!r}.")


def _partition_index(key: str, value: object) -> None:
    if value is not None and not (_is_int(value) and value >= 0):  # type: ignore[operator]
        raise ConfigError(f"{key} is {value!r}; it must be the index of a partition, from 0.")


def _port(key: str, value: object) -> None:
    if value is not None and not (_is_int(value) and 0 <= value < 65536):  # type: ignore[operator]
        raise ConfigError(f"Invalid port number: {key} is {value!r}; expected 0 to 65535.")


def _text_or_none(key: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{key} is {value!r}; it must be a string.")


def _positive_number(key: str, value: object) -> None:
    if not (_is_number(value) and value > 0):  # type: ignore[operator]
        raise ConfigError(f"{key} is {value!r}; it must be a number above 0.")


def _parameter(default: Any, check: Callable[[str, object], None]) -> Any:
    return dataclasses.field(default=default, metadata={"check": check})


def _flag(default: bool = False) -> Any:
    return _parameter(default, _boolean)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All parameters with their effective values; names, meanings and defaults of the original.

    Make one with `Config.parse`. Keys that nobody knows are attributes too, as scripts look up
    their own there.

    Attributes:
        framework: whose parameters these are.
        unknown: those keys, and their values.
        notices: what the user should be told, as warnings.
    """

    pipeline_parallel_degree: int = _parameter(1, _positive)
    microbatches: int = _parameter(1, _positive)
    pipeline: str = _parameter(Interleaved.name, _one_of(*PIPELINES))
    optimize: str = _parameter("memory", _one_of("memory", "speed"))
    placement_strategy: str = _parameter("cluster", _one_of(*PLACEMENT_STRATEGIES))
    auto_partition: bool = _flag(True)
    default_partition: int | None = _parameter(None, _partition_index)
    memory_weight: float = _parameter(None, _weight)
    ddp: bool = _flag()
    ddp_port: int | None = _parameter(None, _port)
    ddp_dist_backend: str = _parameter("auto", _one_of("auto", "nccl", "gloo", "smddp"))
    active_microbatches: int = _parameter(None, _positive_or_none)
    deterministic_server: bool = _flag()
    contiguous: bool = _flag(True)
    horovod: bool = _flag()
    load_partition: bool = _flag()
    partition_file: str | None = _parameter(None, _text_or_none)
    overlapping_allreduce: bool = _flag(True)
    offload_activations: bool = _flag()
    activation_loading_horizon: int = _parameter(4, _positive)
    tensor_parallel_degree: int = _parameter(1, _positive)
    tensor_parallel_seed: int = _parameter(0, _integer)
    prescaled_batch: bool = _flag()
    shard_optimizer_state: bool = _flag()
    skip_tracing: bool = _flag()
    fp16_params: bool = _flag()
    fp16: bool = _flag()
    bf16: bool = _flag()
    delayed_parameter_initialization: bool = _flag()
    sharded_data_parallel_degree: int = _parameter(1, _positive)
    sdp_reduce_bucket_size: int = _parameter(int(5e8), _positive_number)
    sdp_param_persistence_threshold: int = _parameter(int(1e6), _positive_number)
    sdp_max_live_parameters: int = _parameter(int(1e9), _positive_number)
    sdp_hierarchical_allgather: bool = _flag(True)
    sdp_gradient_clipping: float = _parameter(1.0, _positive_number)
    static_mode: bool = _flag()
    fast_mode: bool = _flag()
    checkpoint_attentions: bool = _flag()
    _match_weights: bool = _flag()
    _fp32_grad_accumulation: bool = _flag()

    framework: Framework = "torch"
    unknown: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        parameters: Mapping[str, Any] | None,
        environ: Mapping[str, str],
        framework: Framework = "torch",
    ) -> "Config":
        """Reads and checks the parameters of a script and of its launcher.

        Args:
            parameters: of the script; `None` for none.
            environ: the environment.
            framework: whose library this is; some keys belong to one of them.

        Raises:
            ConfigError: what is given cannot work; the text names the key.
        """
        given = _given(parameters, environ)
        known = {
            field.name: field.metadata["check"]
            for field in dataclasses.fields(cls)
            if "check" in field.metadata
        }
        chosen = {key: value for key, value in given.items() if key in known}
        for key, value in chosen.items():
            known[key](key, value)
        unknown = {key: value for key, value in given.items() if key not in known}
        notices = [
            f"{key} is no parameter of this library: it is kept on smp.state.cfg, and does nothing."
            for key in unknown
        ]
        config = cls(**chosen, framework=framework, unknown=unknown)
        config = dataclasses.replace(config, **_derived(config, chosen))
        _check_together(config, chosen)
        return dataclasses.replace(config, notices=(*notices, *_notices(config, chosen)))

    def topology(self, size: int) -> Topology:
        """The mesh of `size` ranks.

        Raises:
            ConfigError: these parameters cannot work with so many ranks.
        """
        topology = Topology(
            size,
            self.pipeline_parallel_degree,
            self.tensor_parallel_degree,
            self.placement_strategy,
        )
        if size > self.pipeline_parallel_degree and not self.data_parallel:
            raise ConfigError(
                f"{size} processes are more than the {self.pipeline_parallel_degree} of one "
                "pipeline, and the others would train replicas of it. Set "
                f"`{_REPLICAS_KEYS[self.framework]}: True`, or start "
                f"{self.pipeline_parallel_degree}."
            )
        dp_size = topology.size_of(GroupKind.DP)
        if dp_size % self.sharded_data_parallel_degree != 0:
            raise ConfigError(
                f"sharded_data_parallel_degree is {self.sharded_data_parallel_degree}; it must "
                f"divide the {dp_size} ranks of a data parallel group."
            )
        return topology

    @property
    def data_parallel(self) -> bool:
        """Whether ranks may train replicas of the model: `ddp` of PyTorch, TensorFlow's `horovod`.

        There may be one replica all the same.
        """
        return self.ddp or self.horovod

    @property
    def partitions(self) -> int:
        """The old name of `pipeline_parallel_degree`."""
        return self.pipeline_parallel_degree

    @property
    def _prescaled_batch(self) -> bool:
        return self.prescaled_batch

    def describe(self) -> list[str]:
        """A `key: value` line for each parameter, unknown ones last."""
        own = [field.name for field in dataclasses.fields(self) if "check" in field.metadata]
        values = {key: getattr(self, key) for key in own} | dict(self.unknown)
        return [f"{key}: {value}" for key, value in values.items()]

    def __getattr__(self, name: str) -> Any:
        # Only asked for what is no field. Not self.unknown: copies ask before they have one.
        unknown = self.__dict__.get("unknown", {})
        if name in unknown:
            return unknown[name]
        raise AttributeError(f"the configuration has no parameter {name!r}")


def _given(parameters: Mapping[str, Any] | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """What the user says, the launcher's word first, by the names of today."""
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ConfigError(
            f"smp.init() got {type(parameters).__name__}; expected a dict of parameters, such as "
            '{"pipeline_parallel_degree": 2, "microbatches": 4}.'
        )
    return _by_names_of_today(parameters or {}) | _by_names_of_today(_of_launcher(environ))


def _by_names_of_today(said: Mapping[str, Any]) -> dict[str, Any]:
    said = dict(said)
    for old, name in _ALIASES.items():
        if old not in said:
            continue
        value = said.pop(old)
        if said.setdefault(name, value) != value:
            raise ConfigError(
                f"{old} is {value!r} and {name} is {said[name]!r}; both mean the same. Give one."
            )
    return said


def _of_launcher(environ: Mapping[str, str]) -> dict[str, Any]:
    text = environ.get(PARAMETERS_VARIABLE, "").strip()
    if not text:
        return {}
    try:
        parameters = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{PARAMETERS_VARIABLE} is no JSON ({error}); expected one object, such as "
            '{"pipeline_parallel_degree": 2}.'
        ) from None
    if not isinstance(parameters, dict):
        raise ConfigError(
            f"{PARAMETERS_VARIABLE} is {text[:100]}; expected one JSON object, such as "
            '{"pipeline_parallel_degree": 2}.'
        )
    return parameters


def _derived(config: Config, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values that depend on other parameters."""
    active = given.get("active_microbatches") or config.pipeline_parallel_degree + 2
    weight = given.get("memory_weight")
    return {
        "active_microbatches": min(active, config.microbatches),
        "memory_weight": _MEMORY_WEIGHTS[config.framework][config.optimize]
        if weight is None
        else float(weight),
        # Attention blocks of different ranks are not checkpointed.
        "checkpoint_attentions": config.checkpoint_attentions
        and config.pipeline_parallel_degree == 1,
    }


def _check_together(config: Config, given: Mapping[str, Any]) -> None:
    if config.ddp and config.horovod:
        raise ConfigError("ddp and horovod cannot be simultaneously enabled; choose one.")
    _check_framework(config.framework, given)
    if config.default_partition is None:
        if not config.auto_partition:
            raise ConfigError(
                "default_partition must be supplied if auto_partition is set to False: what no "
                "smp.partition() names goes there."
            )
    elif config.default_partition >= config.pipeline_parallel_degree:
        raise ConfigError(
            f"default_partition is {config.default_partition}; it must be less than the number of "
            f"partitions, {config.pipeline_parallel_degree}."
        )
    if config.load_partition and not config.partition_file:
        raise ConfigError(
            "load_partition is True, but partition_file is"
            f" {config.partition_file!r}; expected the file to load from. Set it, or set"
            " load_partition to False: then the partition is decided."
        )
    if config.framework == "torch" and not config.ddp:
        for key in (key for key in _NEEDS_DDP if given.get(key) is not None):
            raise ConfigError(f"{key} is {given[key]!r}, which needs `ddp` to be set to True.")
        for key in ("tensor_parallel_degree", "sharded_data_parallel_degree"):
            if getattr(config, key) > 1:
                raise ConfigError(
                    f"{key} is {getattr(config, key)}, which needs `ddp` to be set to True."
                )
    if config.sharded_data_parallel_degree > 1:
        for key, is_set in (
            ("pipeline_parallel_degree", config.pipeline_parallel_degree > 1),
            ("shard_optimizer_state", config.shard_optimizer_state),
        ):
            if is_set:
                raise ConfigError(
                    f"sharded_data_parallel_degree {config.sharded_data_parallel_degree} and "
                    f"{key} {getattr(config, key)} cannot be used together; expected one of them."
                )
    if config.fp16 and config.bf16:
        raise ConfigError("fp16 and bf16 are mutually exclusive; set one of them.")


def _check_framework(framework: Framework, given: Mapping[str, Any]) -> None:
    """Refuses what is another framework's, other than by its default value."""
    defaults = Config.__dataclass_fields__
    for owner, keys in _ONLY_FOR.items():
        if owner == framework:
            continue
        for key in keys:
            if key in given and given[key] != defaults[key].default:
                raise ConfigError(
                    f"{key} is {given[key]!r}, which is {_FRAMEWORK_NAMES[owner]} only,"
                    f" {_INSTEAD.get(key, 'leave it out')}."
                )


_OF_TENSOR_PARALLELISM = "it belongs to tensor parallelism, which is to come"
_OF_SHARDING = "it belongs to sharded data parallelism, which is to come"
_HINT = "it is a hint for the original's scheduler, and results are the same without it"
# Keys that PyTorch's library accepts, and what their users should know.
_WITHOUT_EFFECT = {
    "tensor_parallel_degree": (
        "its groups are made, but no module is divided: the ranks of a group train as replicas do"
    ),
    "tensor_parallel_seed": _OF_TENSOR_PARALLELISM,
    "prescaled_batch": _OF_TENSOR_PARALLELISM,
    "_match_weights": _OF_TENSOR_PARALLELISM,
    "sharded_data_parallel_degree": "nothing is sharded, and smp.DistributedOptimizer refuses it",
    "sdp_reduce_bucket_size": _OF_SHARDING,
    "sdp_param_persistence_threshold": _OF_SHARDING,
    "sdp_max_live_parameters": _OF_SHARDING,
    "sdp_hierarchical_allgather": _OF_SHARDING,
    "sdp_gradient_clipping": f"{_OF_SHARDING}; use model.clip_grad_norm_() after backward",
    "contiguous": "modules that follow each other may be on different partitions or not",
    "static_mode": _HINT,
    "fast_mode": _HINT,
    "_fp32_grad_accumulation": "gradients have the dtype of their parameters",
}


def _notices(config: Config, given: Mapping[str, Any]) -> list[str]:
    if config.framework == "tensorflow":  # which refuses what is without effect
        return []
    notices = [
        f"{key} is {given[key]!r}, which has no effect yet: {text}."
        for key, text in _WITHOUT_EFFECT.items()
        if key in given and given[key] != type(config).__dataclass_fields__[key].default
    ]
    if config.fp16_params:
        notices.append("fp16_params is deprecated; use fp16.")
    if config.deterministic_server and config.partitions > 1:
        notices.append(
            "deterministic_server is True, which has no effect yet: replicas of a pipeline do not"
            " follow one order of requests. From the second step on each module that runs once in a"
            " microbatch takes the microbatches in their order all the same. Of a parameter that is"
            " used more than once in a microbatch the last bits of gradients may differ from run to"
            " run; and modules that communicate with their replicas, such as SyncBatchNorm, need"
            " pipeline_parallel_degree 1."
        )
    if config.partition_file and config.pipeline_parallel_degree == 1:
        notices.append(
            "partition_file is neither read nor written with pipeline_parallel_degree 1: there is"
            " nothing to decide."
        )
    if given.get("checkpoint_attentions") and not config.checkpoint_attentions:
        notices.append(
            "checkpoint_attentions is ignored with pipeline_parallel_degree above 1; use "
            "smp.set_activation_checkpointing()."
        )
    elif config.checkpoint_attentions:
        notices.append(
            "checkpoint_attentions is True, which has no effect yet: it belongs to the attention"
            " layers of tensor parallelism. Use smp.set_activation_checkpointing()."
        )
    return notices
