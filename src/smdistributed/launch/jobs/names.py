# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Names of jobs, endpoints and models: what is valid, and what is made when none is given.

Source: launch specification, section 3.2.
"""

from __future__ import annotations

import datetime as dt
import re

from smdistributed._common.errors import ConfigurationError

__all__ = ["MOST_CHARACTERS", "base_name_of_image", "check_name", "later_names", "made_name"]

MOST_CHARACTERS = 63

_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_MILLISECOND = dt.timedelta(milliseconds=1)
# Of an image such as "123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/pytorch-training:2.0-gpu":
# its last folder, without tag and digest.
_REPOSITORY = re.compile(r"(?:.*/)?([^/:@]+)(?::[^/@]*)?(?:@.*)?")


def check_name(name: str, what: str = "a job") -> str:
    """The name, if it is valid.

    Args:
        name: of a job, an endpoint or a model.
        what: is called so, for the message.

    Raises:
        ConfigurationError: it is not; says what is wrong.
    """
    is_valid = _NAME.fullmatch(name) if isinstance(name, str) else None  # type: ignore[redundant-expr]
    if is_valid and len(name) <= MOST_CHARACTERS:
        return name
    raise ConfigurationError(
        f"{name!r:.200} cannot be the name of {what}; expected 1 to {MOST_CHARACTERS} letters,"
        " digits and hyphens, with a letter or a digit at both ends."
    )


def made_name(base: str, now: dt.datetime) -> str:
    """`<base>-<YYYY-mm-dd-HH-MM-SS-mmm>`, in UTC; the base is cut so that the name is valid.

    Args:
        base: what comes first. Characters that no name has become hyphens.
        now: with a time zone.
    """
    if now.tzinfo is None:
        raise ValueError(f"{now} has no time zone; expected one, as names hold the time in UTC.")
    now = now.astimezone(dt.UTC)
    stamp = f"{now:%Y-%m-%d-%H-%M-%S}-{now.microsecond // 1000:03d}"
    base = re.sub(r"[^a-zA-Z0-9-]", "-", base)[: MOST_CHARACTERS - len(stamp) - 1].strip("-")
    return check_name(f"{base or 'job'}-{stamp}")


def later_names(base: str, now: dt.datetime, count: int = 1000) -> list[str]:
    """The names of this millisecond and of those after it: two jobs may begin in the same one."""
    return [made_name(base, now + number * _MILLISECOND) for number in range(count)]


def base_name_of_image(image_uri: str) -> str:
    """The last part of an image's repository, such as `pytorch-training`.

    Raises:
        ConfigurationError: it is no name of an image.
    """
    found = _REPOSITORY.fullmatch(image_uri)
    if found is None:
        raise ConfigurationError(
            f"image_uri is {image_uri!r:.200}; expected REGISTRY/REPOSITORY:TAG."
        )
    return found[1]
