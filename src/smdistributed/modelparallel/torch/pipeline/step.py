# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""`@smp.step`: a function that is called with a batch, and runs once for each microbatch.

Source: modelparallel specification, sections 3.2 to 3.5 and 4.2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from smdistributed.modelparallel.torch.pipeline.microbatches import (
    ArgumentSplitter,
    weights_of,
)
from smdistributed.modelparallel.torch.pipeline.pipeline import (
    Batch,
    Pipeline,
    current_pipeline,
)
from smdistributed.modelparallel.torch.pipeline.progress.habits import Habits
from smdistributed.modelparallel.torch.pipeline.progress.outcome import Outcome
from smdistributed.modelparallel.torch.pipeline.step_output import detach, gather_outputs

__all__ = ["StepFunction", "step"]


class StepFunction:
    """What `@smp.step` makes of a function.

    No descriptor: scripts decorate functions without `self` in a class, and call them as methods.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        non_split_inputs: Iterable[str] | None,
        input_split_axes: Mapping[str, int] | None,
        detach_outputs: bool,
        ragged: bool,
    ) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._detaches = detach_outputs
        self._is_ragged = ragged
        self._habits = Habits()
        self._splitter = ArgumentSplitter(
            function,
            non_split_inputs=non_split_inputs,
            input_split_axes=input_split_axes,
            ragged=ragged,
        )

    def __reduce__(self) -> str:
        return self._function.__qualname__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs a step; every rank of the pipeline calls it, the leader's arguments count.

        Here a reader begins. The leader cuts the batch. Before the first step all ranks agree where
        the model's parts go. Then the microbatches run by the schedule (`runner`), replicas average
        their gradients (`end_model`), and the results are put together.

        Returns: on every rank, the containers that the function returns, with a `StepOutput` for
        each tensor and a list for each other value.

        Raises:
            SMPNotInitialized: before `smp.init()`.
            ValueError: a batch does not divide.
            RuntimeError: inside another step; microbatches return different containers.
            StepAborted: another rank has failed, of this pipeline or of a replica, or another
                replica has refused its batch; says which, and how.
            Exception: what the function, or a module on any rank, raised; on the leader.
        """
        pipeline = current_pipeline("a step")
        self._refuse_inside_of(pipeline)
        batch = self._cut(pipeline, args, kwargs)
        pipeline.partition_model(batch)
        with pipeline.step_under_way(batch):
            late = pipeline.begin_model()
            outcome = pipeline.run(batch, self._habits)
            if late is not None:
                raise late
            pipeline.end_model(outcome.had_backward)
        return self._gather(outcome)

    def _refuse_inside_of(self, pipeline: Pipeline) -> None:
        if pipeline.is_in_step:
            raise RuntimeError(
                f"{self._function.__qualname__} was called inside of a step; expected steps one"
                " after the other. Call the plain function there: its __wrapped__."
            )

    def _cut(self, pipeline: Pipeline, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Batch:
        """The microbatches, on the leader; if the batch cannot be cut, all ranks are told."""
        if not pipeline.is_leader:
            return Batch()
        try:
            calls = self._splitter.split(args, kwargs, pipeline.job.config.microbatches)
            size = self._splitter.batch_size(args, kwargs) if self._is_ragged else None
        except Exception as error:
            pipeline.refuse(error)
            raise
        weights = weights_of(size, len(calls)) if size and size % len(calls) else None
        bodies = [functools.partial(self._function, *args, **kwargs) for args, kwargs in calls]
        return Batch(bodies, weights)

    def _gather(self, outcome: Outcome) -> Any:
        """What the microbatches returned, together."""
        results = outcome.results
        if self._detaches:
            results = [detach(each) for each in results]
        return gather_outputs(results, outcome.weights)


def step(
    fn: Callable[..., Any] | Iterable[str] | None = None,
    non_split_inputs: Any = None,
    input_split_axes: Mapping[str, int] | None = None,
    *,
    detach_outputs: bool = True,
    ragged: bool = False,
) -> Any:
    """Decorates a function that takes a batch: it runs once for each microbatch.

    `@smp.step`, `@smp.step()`, `@smp.step(non_split_inputs=[...], input_split_axes={...})`; the two
    may be given by position.

    Args:
        non_split_inputs: names of arguments that every microbatch gets whole.
        input_split_axes: by name of argument, the axis along which its tensors are cut.
        detach_outputs: returned tensors carry no history.
        ragged: a batch need not divide (ours; see `microbatches`).
    """
    if fn is not None and not callable(fn):
        fn, non_split_inputs, input_split_axes = None, fn, non_split_inputs

    def decorate(function: Callable[..., Any]) -> StepFunction:
        return StepFunction(function, non_split_inputs, input_split_axes, detach_outputs, ragged)

    return decorate if fn is None else decorate(fn)
