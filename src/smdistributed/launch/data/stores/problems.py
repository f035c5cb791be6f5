# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What an error of boto3 means: which object, why, what to do, and whether it may pass.

Texts have no credentials in them. boto3 is not imported here: its classes are known by their name.

Source: launch specification, sections 5 and 6.
"""

from __future__ import annotations

from typing import Any

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.data.stores.store import Missing, Replaced, StoreError

__all__ = ["Forbidden", "Problems"]

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_REFUSED = {
    *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidClientTokenId"),
    *("UnrecognizedClientException", "AuthFailure"),
}
_ELSEWHERE = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"}
# Of OpenSSL: the connection was cut, or bytes of it are other ones.
_CUT = ("EOF", "BAD_RECORD_MAC", "BAD_DECRYPT", "DECRYPTION_FAILED")
_DAMAGED = {"BadDigest", "IncompleteBody"}
_PASSING = {"SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "TooManyRequests"}


class Forbidden(StoreError):
    """This user may not."""


class Problems:
    """Of one bucket.

    Args:
        bucket: its name.
        called: the store, in words.
        region: that was asked for; empty: as boto3 finds it.
    """

    def __init__(self, bucket: str, called: str, region: str) -> None:
        self._bucket = bucket
        self._called = called
        self._region = region

    def replaced(self, uri: str) -> Replaced:
        """An object is another one than when it was listed."""
        return Replaced(
            f"{uri} was replaced by another object after the job had listed it; expected"
            " data that stay as they are while a job reads them. Start the job again, or give it a"
            " prefix that nobody writes to."
        )

    def of(self, error: Exception, uri: str) -> StoreError:
        """What an error means. Texts of the service have no secrets in them; requests might."""
        if isinstance(error, ConfigurationError):
            return error if isinstance(error, StoreError) else StoreError(str(error))
        kind = type(error).__name__
        if isinstance(getattr(error, "response", None), dict):  # the store has answered
            return self._refusal(error, uri)
        if "Credential" in kind or kind in ("TokenRetrievalError", "UnauthorizedSSOTokenError"):
            return StoreError(
                f"{uri} cannot be reached without credentials: boto3 says {str(error)!r}; expected"
                " some that it finds. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a"
                " profile of ~/.aws/credentials by AWS_PROFILE, where the job is started."
            )
        if kind == "ProfileNotFound":
            return StoreError(
                f"{uri} cannot be reached: {error}; expected a profile of ~/.aws/config. Correct"
                " AWS_PROFILE, where the job is started."
            )
        if isinstance(error, UnicodeError):
            return StoreError(f"{uri!r} is no object of S3: {error}; expected a name in UTF-8.")
        if kind == "SSLError" and not any(each in str(error) for each in _CUT):
            return StoreError(
                f"{uri} cannot be reached: no safe connection to {self._called}:"
                f" {_inner(error)}; expected a certificate that this machine trusts. If it is your"
                " own, name the file of its authority by AWS_CA_BUNDLE."
            )
        if kind in ("ParamValidationError", "InvalidRegionError", "UnknownServiceError"):
            return StoreError(
                f"{uri} is no object of S3: {error}; expected another name, or another region."
            )
        return StoreError(
            f"{uri} cannot be reached: {self._called} does not answer ({kind}:"
            f" {_inner(error)}); expected a store that does. Look at its address in endpoint_url of"
            " [s3] in config.toml, or in S3_ENDPOINT_URL, and at the network.",
            is_passing=not isinstance(error, (ValueError, TypeError, AssertionError)),
        )

    def _refusal(self, error: Any, uri: str) -> StoreError:
        called = self._called
        response = error.response
        code = str(response.get("Error", {}).get("Code", ""))
        text = str(response.get("Error", {}).get("Message", "")) or code
        meta = response.get("ResponseMetadata", {})
        status = int(meta.get("HTTPStatusCode", 0) or 0)
        says = f"{called} says {code!r}" + (f" ({text})" if text != code else "")
        if code in _EXPIRED:
            return StoreError(
                f"the credentials for {uri} have expired: {says}; expected some that last as long"
                " as the job. Get new ones, and start the job again."
            )
        if code in _REFUSED:
            return StoreError(
                f"the credentials for {uri} are not accepted: {says}; expected those of a user of"
                " this store. Look at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_PROFILE."
            )
        if code == "RequestTimeTooSkewed":
            return StoreError(
                f"{uri} cannot be reached: {says}; expected a clock that is right. Set it."
            )
        if code in _ELSEWHERE or status in (301, 307):
            region = meta.get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
            where = f"in region {region!r}" if region else "in another region"
            return StoreError(
                f"the bucket of {uri} is {where}, and {self._region or 'the default one'}"
                f" was asked: {says}; expected its own. Set region of [s3] in config.toml, or"
                " AWS_REGION."
            )
        if status == 412 or code == "PreconditionFailed" or status == 416:
            return self.replaced(uri)
        if code in _DAMAGED:
            return StoreError(
                f"{uri} cannot be written: {says}; expected a network that brings all bytes as they"
                " are. Try again later.",
                is_passing=True,
            )
        if code in _PASSING or status == 429 or status >= 500:
            return StoreError(
                f"{uri} cannot be reached: {says}, status {status}; expected a store that is not"
                " overloaded. Try again later.",
                is_passing=True,
            )
        if code == "InvalidObjectState":
            return StoreError(
                f"{uri} is archived: {says}; expected an object that can be read at once. Have the"
                " store restore it, or copy it to a storage class that is no archive."
            )
        if status == 403:
            return Forbidden(
                f"{uri} may not be read or written with these credentials: {says}; expected a user"
                f" who may. Have the owner of the bucket {self._bucket!r} allow it, or take other"
                " credentials (AWS_PROFILE)."
            )
        if code == "NoSuchBucket":
            return Missing(
                f"{uri} is not there: {called} has no bucket {self._bucket!r}; expected one. Make"
                " it, or correct its name."
            )
        if status == 404:
            return Missing(
                f"{uri} is not there: {says}; expected an object of that key. Correct the key."
            )
        return StoreError(f"{uri} cannot be read or written: {says}, status {status}.")


def _inner(error: Exception) -> str:
    """What is wrong below, without what a request had in it."""
    inner = getattr(error, "kwargs", {}).get("error")
    return str(inner if inner is not None else error)[:300].rstrip(".")
