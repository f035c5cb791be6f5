# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of `smd` about endpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from smdistributed._common.errors import ConfigurationError
from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.home import Home
from smdistributed.launch.serve.endpoints import endpoint_names
from smdistributed.launch.serve.record import EndpointRecord
from smdistributed.sagemaker.estimator import Framework
from smdistributed.sagemaker.exceptions import UnexpectedStatusException
from smdistributed.sagemaker.model import Model
from smdistributed.sagemaker.pytorch import PyTorch, PyTorchModel
from smdistributed.sagemaker.session import Session
from smdistributed.sagemaker.tensorflow import TensorFlow, TensorFlowModel
from smdistributed.smd.application import FAILED, JsonOption, application, console, print_json

__all__ = ["deploy", "endpoints", "undeploy"]

_ESTIMATORS: dict[str, type[Framework]] = {"pytorch": PyTorch, "tensorflow": TensorFlow}
_MODELS: dict[str, type[Model]] = {"pytorch": PyTorchModel, "tensorflow": TensorFlowModel}


@application.command()
def deploy(
    model: Annotated[
        str, typer.Argument(help="A job that has made one, or the URI or path of a model.tar.gz.")
    ],
    entry_point: Annotated[
        str | None, typer.Option(help="The file with its functions, such as model_fn.")
    ] = None,
    source_dir: Annotated[Path | None, typer.Option(help="Directory that it lies in.")] = None,
    framework: Annotated[
        str, typer.Option(help="pytorch or tensorflow; of a framework's job it is known.")
    ] = "pytorch",
    instances: Annotated[int, typer.Option(help="Each has the number of workers below.")] = 1,
    workers: Annotated[
        int | None, typer.Option(help="Processes of each; else one for each processor.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the endpoint; else one is made.")] = None,
    backend: Annotated[
        str | None,
        typer.Option(help="ray: on that cluster. Else as SMD_BACKEND or config.toml say."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Return when the model is loaded.")] = True,
    json_: JsonOption = False,
) -> int:
    """Serve a model, here or on a Ray cluster; its processes go on without this command."""
    session = Session(backend=backend)
    made = _model(session, model, framework, entry_point, source_dir)
    if workers is not None:
        made.env["SAGEMAKER_MODEL_SERVER_WORKERS"] = str(workers)
    try:
        made.deploy(instances, "local", endpoint_name=name, wait=wait)
    except UnexpectedStatusException as error:
        print(f"smd: {error}", file=sys.stderr)
        return FAILED
    assert made.endpoint_name is not None
    record = session.endpoint_record(made.endpoint_name)
    if json_:
        print_json(_described(record))
    else:
        where = f" at {record.address}" if record.port else ""
        print(f"{record.name}: {record.status}{where}")
    return 0


@application.command()
def endpoints(json_: JsonOption = False) -> None:
    """List endpoints, and where they listen."""
    home = Session().home
    records = [each for name in endpoint_names(home) if (each := _record(home, name))]
    if json_:
        print_json([_described(each) for each in records])
        return
    if not records:
        print("No endpoints. Serve a job's model: smd deploy JOB (smd deploy --help has more).")
        return
    table = Table(box=None)
    for heading in ("ENDPOINT", "STATUS", "MODEL", "ADDRESS"):
        table.add_column(heading, no_wrap=heading == "ENDPOINT")
    for each in records:
        table.add_row(each.name, str(each.status), each.model.data, each.address)
    console().print(table)


@application.command()
def undeploy(
    endpoint: Annotated[str, typer.Argument(help="Its name; see `smd endpoints`.")],
    json_: JsonOption = False,
) -> None:
    """End an endpoint: what has come in is answered, then nothing is left of it."""
    Session().delete_endpoint(endpoint)
    if json_:
        print_json({"EndpointName": endpoint, "Deleted": True})
    else:
        print(f"{endpoint}: deleted")


def _model(
    session: Session, given: str, framework: str, entry_point: str | None, source_dir: Path | None
) -> Model:
    """The model of a job, or of an archive."""
    source = str(source_dir) if source_dir is not None else None
    if "://" not in given and not given.endswith(".tar.gz"):
        kind = session.job(given).read().local.get("Framework") or framework
        estimator: type[Framework] = _known(_ESTIMATORS, kind)
        attached = estimator.attach(given, sagemaker_session=session)
        return attached.create_model(entry_point=entry_point, source_dir=source)
    uri = given if "://" in given else f"file://{Path(given).absolute()}"
    model: type[Model] = _known(_MODELS, framework)
    return model(
        model_data=uri, entry_point=entry_point, source_dir=source, sagemaker_session=session
    )


def _known(kinds: dict[str, Any], name: str) -> Any:
    if name not in kinds:
        raise ConfigurationError(
            f"the framework is {name!r}; expected pytorch or tensorflow, whose models are served."
            " Name the model's archive, and --framework."
        )
    return kinds[name]


def _record(home: Home, name: str) -> EndpointRecord | None:
    """Of an endpoint; None, with a line that says why, if it cannot be read."""
    try:
        return Session(home=home).endpoint_record(name)
    except (BackendError, ConfigurationError) as error:
        print(f"smd: {error}", file=sys.stderr)
        return None


def _described(record: EndpointRecord) -> dict[str, Any]:
    return {**record.describe(), "Address": record.address}
