# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Errors that choose the status of an answer."""


class BaseInferenceToolkitError(Exception):
    """An error with a status.

    Args:
        status_code: of HTTP.
        message: what is answered.
        phrase: comes before it.
    """

    def __init__(self, status_code: int, message: str, phrase: str) -> None:
        super().__init__(status_code, message, phrase)
        self.status_code = status_code
        self.message = message
        self.phrase = phrase


class GenericInferenceToolkitError(BaseInferenceToolkitError):
    """Any error with a status.

    Args:
        status_code: of HTTP.
        message: what is answered.
        phrase: comes before it; None: the message.
    """

    def __init__(
        self, status_code: int, message: str | None = None, phrase: str | None = None
    ) -> None:
        super().__init__(status_code, message or "Invalid Request", phrase or message or "")


class UnsupportedFormatError(Exception):
    """A content type that nothing knows; answered with status 415.

    Args:
        content_type: the type.
    """

    status_code = 415

    def __init__(self, content_type: str, **kwargs: object) -> None:
        self.message = (
            f"Content type {content_type} is not supported by this framework; expected one that an"
            " input_fn or output_fn knows."
        )
        super().__init__(self.message)
