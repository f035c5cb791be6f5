# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What goes to a Ray cluster with an endpoint, what comes back, and what is known of it here."""

from __future__ import annotations

import datetime as dt
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.ray.api import RayApi
from smdistributed.launch.backends.ray.settings import RaySettings
from smdistributed.launch.endpoints import poll
from smdistributed.launch.home import Home
from smdistributed.launch.ray_serve import package as package_module
from smdistributed.launch.ray_serve.jobs import Kept, outcome_of
from smdistributed.launch.ray_serve.messages import Outcome
from smdistributed.launch.ray_serve.package import open_package, packed, with_environment
from smdistributed.launch.serve.endpoints import new_endpoint
from smdistributed.launch.serve.record import (
    EndpointRecord,
    EndpointStatus,
    Framework,
    ServedModel,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    return home


def record_of(data: str, code: str = "", **environment: str) -> EndpointRecord:
    now = dt.datetime.now(dt.UTC)
    model = ServedModel("m", Framework.PYTORCH, data, code, "serve.py", environment)
    return EndpointRecord("mine", "arn", model, 3, "x", now, now, backend="ray")


def opened(record: EndpointRecord, home: Home, shared: list[Path], folder: Path) -> EndpointRecord:
    """As the cluster has it: nothing of this machine but the package."""
    with packed(record, home, shared) as (file, size):
        assert size == len(file.read())
        with zipfile.ZipFile(file) as content:
            content.extractall(folder)
    return open_package(folder, Home(folder.parent / "there"))


def test_a_model_and_its_code_go_along(home: Home, tmp_path: Path) -> None:
    model, code = tmp_path / "model.tar.gz", tmp_path / "code.tar.gz"
    model.write_bytes(b"of the model")
    code.write_bytes(b"of the code")
    folder = tmp_path / "package"
    found = opened(record_of(f"file://{model}", f"file://{code}", A="b"), home, [], folder)
    assert Path(found.model.data.removeprefix("file://")).read_bytes() == b"of the model"
    assert Path(found.model.code.removeprefix("file://")).read_bytes() == b"of the code"
    assert found.model.data.startswith(f"file://{folder}/")
    assert (found.instance_count, found.is_here, found.model.environment) == (1, True, {"A": "b"})


def test_a_folder_goes_as_an_archive(home: Home, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("weights")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").symlink_to(tmp_path / "elsewhere")
    found = opened(record_of(f"file://{tmp_path}/model"), home, [], tmp_path / "package")
    with tarfile.open(found.model.data.removeprefix("file://")) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    assert (tmp_path / "unpacked" / "weights").read_text() == "weights"


def test_what_the_cluster_has_stays_where_it_is(home: Home, tmp_path: Path) -> None:
    home.config.write_text('[s3]\nendpoint_url = "http://store:9000"\n')
    record = record_of("s3://bucket/model.tar.gz", f"file://{tmp_path}/shared/code.tar.gz")
    found = opened(record, home, [tmp_path / "shared"], tmp_path / "package")
    assert found.model.data == "s3://bucket/model.tar.gz"
    assert found.model.code == f"file://{tmp_path}/shared/code.tar.gz"
    assert "http://store:9000" in Home(tmp_path / "there").config.read_text()


def test_a_model_that_is_too_large_is_refused(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package_module, "MOST_PACKAGE", 1000)
    (tmp_path / "model.tar.gz").write_bytes(bytes(1000))
    with (
        pytest.raises(ConfigurationError, match=r"Ray takes less than 1,000 .* S3 store"),
        packed(record_of(f"file://{tmp_path}/model.tar.gz"), home, []),
    ):
        pass


def test_variables_of_the_user_overrule_those_of_an_instance() -> None:
    found = with_environment(record_of("s3://b/m", A="mine"), A="ours", B="ours")
    assert found.model.environment == {"A": "mine", "B": "ours"}


def test_an_outcome_is_found_among_other_lines() -> None:
    said = Outcome("it was\nthus \N{SNOWMAN}", "log\n", 7)
    line = said.to_line()
    assert line.isascii()
    assert "\n" not in line
    assert Outcome.of_text(f"begin\n{Outcome().to_line()}\n{line}\nINFO of Ray\n") == said
    assert Outcome.of_text("nothing\n") is None


class _Api:
    """Of one job."""

    def __init__(self, found: dict[str, Any] | None, log: str = "") -> None:
        self._found, self._log = found, log

    def job(self, submission_id: str) -> dict[str, Any] | None:
        return self._found

    def log(self, submission_id: str, node: str, *, is_whole: bool) -> io.BytesIO:
        assert (node, is_whole) == ("n", True)
        return io.BytesIO(self._log.encode())


def outcome(found: dict[str, Any] | None, log: str = "", *, unwanted: bool = False) -> Any:
    api: Any = _Api(found, log)
    return outcome_of(api, "python9", "id", lambda: unwanted)


def test_what_a_job_says_is_its_outcome() -> None:
    assert outcome(
        {"status": "SUCCEEDED", "driver_node_id": "n"}, f"{Outcome('why').to_line()}\n"
    ) == Outcome("why")
    assert outcome({"status": "RUNNING"}, unwanted=True) is None
    with pytest.raises(BackendError, match="head was started anew"):
        outcome(None)
    with pytest.raises(BackendError, match="'python9' of the cluster cannot run it"):
        outcome({"status": "FAILED", "driver_exit_code": 127, "message": "not found"})


def test_one_in_service_on_the_cluster_needs_no_process_here(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = new_endpoint(home, record_of("s3://b/m"))
    directory.lock.release()
    assert "process of the endpoint is gone" in poll(directory).failure_reason  # still Creating
    directory.write(directory.read().moved(EndpointStatus.IN_SERVICE, port=8000, prefix="/smd/app"))
    Kept("http://head:8265", "python", "app", "app-deploy").write(directory.path)
    there: dict[str, Any] = {"app": {"status": "RUNNING"}}
    monkeypatch.setattr(RayApi, "serve", lambda self: {"applications": there})
    assert poll(directory).status is EndpointStatus.IN_SERVICE
    assert poll(directory).address == "http://127.0.0.1:8000/smd/app"
    there["app"]["status"] = "DELETING"
    assert poll(directory).status is EndpointStatus.DELETING
    del there["app"]
    assert "has no application app any more" in poll(directory).failure_reason


@pytest.mark.parametrize(
    "address", ["head:8000", "https://head", "http://head:port", "http://head/path"]
)
def test_an_address_of_serve_that_is_none(home: Home, address: str) -> None:
    home.config.write_text(f'[ray]\naddress = "http://head"\nserve_address = "{address}"\n')
    with pytest.raises(ConfigurationError, match=r"ray\.serve_address in .* is '.*'; expected"):
        RaySettings.of(home, {})
