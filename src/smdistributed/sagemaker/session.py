# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The session of a notebook: where its jobs and buckets are, and who it is.

Here it is this machine. Nothing is asked over the network, and no account is needed.

Source: launch specification, sections 1, 3 and 9.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smdistributed._common.log import get_logger
from smdistributed.launch.backends.backend import Backend
from smdistributed.launch.backends.engines import Backends, chosen
from smdistributed.launch.backends.interruption import interrupt
from smdistributed.launch.backends.request import checked
from smdistributed.launch.backends.resuming import names_after, require_resumable, resumed
from smdistributed.launch.contract.hyperparameters import encode
from smdistributed.launch.data import buckets
from smdistributed.launch.endpoints import delete as delete_endpoint
from smdistributed.launch.endpoints import poll as poll_endpoint
from smdistributed.launch.home import Home, home_directory
from smdistributed.launch.jobs.directory import JobDirectory, create_job, find_job
from smdistributed.launch.jobs.names import check_name, later_names
from smdistributed.launch.jobs.record import JobRecord
from smdistributed.launch.serve.endpoints import EndpointDirectory, find_endpoint
from smdistributed.launch.serve.record import EndpointRecord, EndpointStatus
from smdistributed.launch.storage import default_bucket
from smdistributed.sagemaker.exceptions import UnexpectedStatusException
from smdistributed.sagemaker.service_model import check_request, check_response

__all__ = ["Session", "get_execution_role"]

_log = get_logger()

ACCOUNT = "000000000000"
"""In names that have the number of an account: there is none."""

_POLL_S = 0.05


class Session:
    """Jobs and buckets of this user on this machine.

    Args:
        boto_session, sagemaker_client, sagemaker_runtime_client,
        sagemaker_featurestore_runtime_client, settings, sagemaker_metrics_client,
        sagemaker_config: accepted, and not used.
        default_bucket: the name of the bucket that is taken where none is given.
        default_bucket_prefix: comes before the keys there.
        home: where all of it lies; None: as the environment says.
        backend: where new jobs run, such as `slurm`; None: as the environment or the settings say.
    """

    def __init__(
        self,
        boto_session: Any = None,
        sagemaker_client: Any = None,
        sagemaker_runtime_client: Any = None,
        sagemaker_featurestore_runtime_client: Any = None,
        default_bucket: str | None = None,
        settings: Any = None,
        sagemaker_metrics_client: Any = None,
        sagemaker_config: Mapping[str, Any] | None = None,
        default_bucket_prefix: str | None = None,
        *,
        home: Home | None = None,
        backend: str | None = None,
    ) -> None:
        self.boto_session = boto_session
        self.sagemaker_config = dict(sagemaker_config or {})
        self.default_bucket_prefix = default_bucket_prefix
        self.backend: Backend = Backends(lambda: chosen(backend, os.environ, self.home))
        self._default_bucket = default_bucket
        self._home = home

    @property
    def home(self) -> Home:
        """Where jobs and buckets lie.

        Raises:
            ConfigurationError: the environment names no place.
        """
        if self._home is None:
            self._home = home_directory()
        return self._home

    @property
    def boto_region_name(self) -> str:
        """The region that jobs are told."""
        region = getattr(self.boto_session, "region_name", None)
        return region if isinstance(region, str) else "us-east-1"

    def default_bucket(self) -> str:
        """The name of the bucket that is taken where none is given."""
        return self._default_bucket or default_bucket(self.boto_region_name)

    def default_uri(self) -> str:
        """Where things go for which no place is given: the default bucket, below its prefix."""
        prefix = (self.default_bucket_prefix or "").strip("/")
        return f"s3://{self.default_bucket()}" + (f"/{prefix}" if prefix else "")

    def account_id(self) -> str:
        """The number in the place of an account's."""
        return ACCOUNT

    def _uri(self, bucket: str | None, key: str) -> str:
        """Of a key; in the default bucket below its prefix, if none is given."""
        base = self.default_uri() if bucket is None else f"s3://{bucket}"
        return f"{base}/{key.strip('/')}".rstrip("/")

    def upload_data(
        self,
        path: str,
        bucket: str | None = None,
        key_prefix: str = "data",
        callback: Any = None,
        extra_args: Mapping[str, Any] | None = None,
    ) -> str:
        """Copies a file, or what is in a directory, into a bucket, when all of it has been read.

        Args:
            path: of the file or directory.
            bucket: its name; None: the default one.
            key_prefix: of the keys there.
            callback, extra_args: accepted, and not used.

        Returns: the URI: of the file, or of the prefix.

        Raises:
            ValueError: there is no such file, or no room; nothing is there then.
        """
        source = Path(path)
        uri = self._uri(bucket, key_prefix)
        if not source.is_dir():
            if not source.is_file():
                raise ValueError(
                    f"upload_data got {path!r}, which is not there; expected a file or a directory."
                )
            uri = f"{uri}/{source.name}"
        buckets.put(source, uri, self.home)
        return uri

    def upload_string_as_file_body(
        self, body: str | bytes, bucket: str | None, key: str, kms_key: str | None = None
    ) -> str:
        """Makes an object of a text.

        Args:
            body: of the object; text is written in UTF-8.
            bucket: its name; None: the default one.
            key: of the object.
            kms_key: accepted, and not used.

        Returns: the URI.

        Raises:
            ValueError: the key leads out of the bucket, or there is no room.
        """
        uri = self._uri(bucket, key)
        content = body.encode("utf-8") if isinstance(body, str) else body
        buckets.put_bytes(content, uri, self.home)
        return uri

    def download_data(
        self,
        path: str,
        bucket: str,
        key_prefix: str = "",
        extra_args: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Copies objects into a folder, under their keys without the prefix.

        Args:
            path: of the folder, which is made.
            bucket: its name.
            key_prefix: of the keys; an object whose key it is keeps the last part of its key.
            extra_args: accepted, and not used.

        Returns: the files; none if no key begins so.

        Raises:
            ValueError: there is no such bucket, or two objects would be one file.
        """
        found = buckets.fetch(bucket, key_prefix.lstrip("/"), Path(path), self.home)
        return [str(each) for each in found]

    def list_s3_files(self, bucket: str, key_prefix: str) -> list[str]:
        """The keys in a bucket that begin with a prefix, sorted.

        Raises:
            ValueError: there is no such bucket.
        """
        return [each.key for each in buckets.objects_of(bucket, key_prefix, self.home)]

    def read_s3_file(self, bucket: str, key_prefix: str) -> str:
        """The text of an object, which is in UTF-8.

        Args:
            bucket: its name.
            key_prefix: the whole key.

        Raises:
            ValueError: there is no such object.
            UnicodeDecodeError: (a ValueError) it is no text.
        """
        return buckets.read(bucket, key_prefix, self.home).decode("utf-8")

    # --- jobs ------------------------------------------------------------------------------------

    def job(self, name: str) -> JobDirectory:
        """The directory of a job.

        Raises:
            ConfigurationError: (a ValueError) there is no such job.
        """
        return find_job(self.home, name)

    def describe_training_job(self, job_name: str) -> dict[str, Any]:
        """The response of `DescribeTrainingJob`.

        Raises:
            ConfigurationError: (a ValueError) there is no such job.
        """
        response = self.backend.poll(self.job(job_name)).describe(dt.datetime.now(dt.UTC))
        check_response("DescribeTrainingJob", response)
        return response

    def stop_training_job(self, job_name: str) -> None:
        """Has a job stop; returns at once. What has ended stays as it is.

        Raises:
            ConfigurationError: there is no such job, or it is another user's.
        """
        self.backend.stop(self.job(job_name), "stop() was called")

    def interrupt_training_job(self, job_name: str, reason: str = "") -> None:
        """Takes the hosts of a job on spot instances away, as Amazon may: to test its checkpoints.

        Its ranks get SIGTERM, and SIGKILL after 120 s; then it starts again. Returns at once.

        Args:
            job_name: of a job with `use_spot_instances=True`.
            reason: stands in its transitions.

        Raises:
            ConfigurationError: there is no such job, or it cannot be interrupted; says why.
        """
        job = self.job(job_name)
        interrupt(self.backend, job, reason or "interrupt_training_job() was called")

    def create_training_job(self, document: Mapping[str, Any], job_name: str | None = None) -> str:
        """Starts a job by its request, `CreateTrainingJob`; returns at once.

        Args:
            document: the request. The sources are a .tar.gz at `sagemaker_submit_directory`, the
                script in it `sagemaker_program`, both among its HyperParameters. It may have
                `Local` beside: `cpu_shim`, `emulate_gpus`, `Framework`, `BaseFramework`.
            job_name: in the place of its TrainingJobName; one is made if neither is there.

        Returns: the name of the job.

        Raises:
            ConfigurationError: (a ValueError) it is no such request; says which field.
            UnsupportedError: it asks for what this machine cannot do.
        """
        request, local = checked(document, self.home)
        now = dt.datetime.now(dt.UTC)
        given = job_name or request.get("TrainingJobName")
        names = [check_name(given)] if given else later_names("training", now)
        request.setdefault("RoleArn", f"arn:aws:iam::{ACCOUNT}:role/smdistributed")
        request["ResourceConfig"].setdefault("VolumeSizeInGB", 30)
        output = request.setdefault("OutputDataConfig", {})
        output.setdefault("S3OutputPath", f"{self.default_uri()}/")

        def record_of(name: str) -> JobRecord:
            texts = {
                **encode({"sagemaker_container_log_level": 20}),
                **request["HyperParameters"],
                **encode({"sagemaker_job_name": name}),
            }
            made = {**request, "TrainingJobName": name, "HyperParameters": texts}
            check_request("CreateTrainingJob", made)
            arn = f"arn:aws:sagemaker:{self.boto_region_name}:{ACCOUNT}:training-job/{name}"
            return JobRecord.new(made, {"Backend": self.backend.name, **local}, arn, now)

        job = create_job(self.home, names, record_of)
        self.backend.submit(job)
        return job.name

    def resume_training_job(self, job_name: str, new_name: str | None = None) -> str:
        """Has a job go on that was stopped, or whose processes were lost: as a new job.

        The new one has the same request, and so the same sources, data and `checkpoint_s3_uri`: it
        finds the checkpoints of the earlier one. Returns at once.

        Args:
            job_name: of the job that has ended.
            new_name: of the new one; None: one is made.

        Returns: the name of the new job.

        Raises:
            ConfigurationError: there is no such job, or it is none that can go on; says why.
        """
        record = self.backend.poll(self.job(job_name))
        require_resumable(record)
        kept = record.request.get("CheckpointConfig", {}).get("S3Uri")
        now = dt.datetime.now(dt.UTC)

        def record_of(name: str) -> JobRecord:
            arn = f"{record.arn.rpartition('/')[0]}/{name}"
            return resumed(record, name, arn, now)

        names = [check_name(new_name)] if new_name else names_after(job_name, now)
        job = create_job(self.home, names, record_of)
        if kept:
            _log.info("job %s goes on from the checkpoints of %s in %s", job.name, job_name, kept)
        else:
            _log.warning(
                "job %s begins from the start: %s had no checkpoint_s3_uri", job.name, job_name
            )
        self.backend.submit(job)
        return job.name

    # --- endpoints -------------------------------------------------------------------------------

    def endpoint(self, name: str) -> EndpointDirectory:
        """The directory of an endpoint.

        Raises:
            ConfigurationError: (a ValueError) there is no such endpoint.
        """
        return find_endpoint(self.home, name)

    def endpoint_record(self, name: str) -> EndpointRecord:
        """What is known of an endpoint now; of one on a cluster, the cluster is asked.

        Raises:
            BackendError: the cluster does not answer.
            ConfigurationError: (a ValueError) there is no such endpoint.
        """
        return poll_endpoint(self.endpoint(name))

    def describe_endpoint(self, endpoint_name: str) -> dict[str, Any]:
        """The response of `DescribeEndpoint`.

        Raises:
            BackendError: the cluster that serves it does not answer.
            ConfigurationError: (a ValueError) there is no such endpoint.
        """
        return self.endpoint_record(endpoint_name).describe()

    def wait_for_endpoint(self, endpoint: str, poll: float = _POLL_S) -> dict[str, Any]:
        """Waits until an endpoint serves.

        Args:
            endpoint: its name.
            poll: seconds between two looks.

        Returns: as `describe_endpoint`.

        Raises:
            UnexpectedStatusException: it never will; says why.
        """
        directory = self.endpoint(endpoint)
        while (record := directory.poll()).status is EndpointStatus.CREATING:
            time.sleep(poll)
        if record.status is not EndpointStatus.IN_SERVICE:
            raise UnexpectedStatusException(
                f"Error hosting endpoint {endpoint}: {record.status}. Reason:"
                f" {record.failure_reason or 'it was deleted.'} Its log is {directory.log}.",
                allowed_statuses=["InService"],
                actual_status=str(record.status),
            )
        return record.describe()

    def delete_endpoint(self, endpoint_name: str) -> None:
        """Ends an endpoint; returns when none of its processes is left.

        Raises:
            BackendError: the cluster that serves it does not answer; it can be deleted again.
            ConfigurationError: (a ValueError) there is no such endpoint, or it is another user's.
        """
        delete_endpoint(self.endpoint(endpoint_name))


def get_execution_role(sagemaker_session: Session | None = None, use_default: bool = False) -> str:
    """A role's name as Amazon's jobs need one; here nobody looks at it.

    Args:
        sagemaker_session, use_default: accepted, and not used.
    """
    return f"arn:aws:iam::{ACCOUNT}:role/smdistributed"
