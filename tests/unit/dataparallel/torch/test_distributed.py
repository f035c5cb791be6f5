# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments of the legacy `init_process_group` that are refused before a group is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as torch_dist

import smdistributed.dataparallel.torch.distributed as dist

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        (("smddp",), {"backend": "gloo"}, "got backend twice, 'smddp' by position and 'gloo' by"),
        (("smddp", None), {"init_method": None}, "got init_method twice"),
        (("smddp",) * 40, {}, "got 40 positional arguments; expected at most"),
    ],
)
def test_arguments_that_python_would_refuse(
    args: tuple[Any, ...], kwargs: dict[str, Any], told: str
) -> None:
    """The first two were accepted once, and the name silently won."""
    with pytest.raises(TypeError, match=told):
        dist.init_process_group(*args, **kwargs)
    assert not torch_dist.is_initialized()
