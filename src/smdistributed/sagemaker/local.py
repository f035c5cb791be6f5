# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The session of the SDK's local mode: its jobs run on this machine, whatever else is set.

Source: launch specification, section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smdistributed.sagemaker.session import Session

__all__ = ["LocalSession"]


class LocalSession(Session):
    """A `Session` with the arguments of local mode.

    Args:
        boto_session, s3_endpoint_url, disable_local_code, sagemaker_config: accepted, and not used.
        default_bucket: the name of the bucket that is taken where none is given.
        default_bucket_prefix: comes before the keys there.

    Attributes:
        config: settings of local mode, which scripts set; not used.
    """

    def __init__(
        self,
        boto_session: Any = None,
        default_bucket: str | None = None,
        s3_endpoint_url: str | None = None,
        disable_local_code: bool = False,
        sagemaker_config: Mapping[str, Any] | None = None,
        default_bucket_prefix: str | None = None,
    ) -> None:
        super().__init__(
            boto_session,
            default_bucket=default_bucket,
            sagemaker_config=sagemaker_config,
            default_bucket_prefix=default_bucket_prefix,
            backend="local",
        )
        self.config: Mapping[str, Any] | None = None
