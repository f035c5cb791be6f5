# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Endpoints on a real Ray, beside an application of somebody else's."""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_speed import scaled

from smdistributed.launch.backends.backend import BackendError
from smdistributed.launch.backends.ray.api import RayApi
from smdistributed.launch.home import Home
from smdistributed.launch.ray_serve.jobs import outcome_of, submitted
from smdistributed.launch.ray_serve.messages import Unwanted
from smdistributed.launch.serve.endpoints import endpoint_names
from smdistributed.sagemaker.exceptions import ModelError, UnexpectedStatusException
from smdistributed.sagemaker.predictor import Predictor
from smdistributed.sagemaker.session import Session
from tests.clusters.ray import Ray, ray, why_not
from tests.multiprocess.sagemaker.test_endpoints import MOST, deployed, model, post

pytestmark = pytest.mark.slow

# Serve as somebody else has started it, and what they serve there.
THEIRS = """
from ray import serve
serve.start(proxy_location="EveryNode", http_options={{"host": "{host}", "port": 8000}})
@serve.deployment(ray_actor_options={{"num_cpus": 0}})
class Theirs:
    def __call__(self, request):
        return "theirs"
serve.run(Theirs.bind(), name="theirs", route_prefix="/theirs")
"""
SHUT_DOWN = "from ray import serve; serve.shutdown()"


def run_there(cluster: Ray, program: str) -> None:
    """A job of somebody's."""
    api = RayApi(cluster.address)
    text = base64.b64encode(program.encode()).decode()
    words = [sys.executable, "-c", f"import base64; exec(base64.b64decode('{text}'))"]
    name = f"theirs-{os.urandom(4).hex()}"
    api.submit({"entrypoint": shlex.join(words), "submission_id": name, "entrypoint_num_cpus": 0})
    until = time.monotonic() + scaled(90)
    while (found := api.job(name)) is None or found["status"] in ("PENDING", "RUNNING"):
        assert time.monotonic() < until
        time.sleep(0.2)
    assert found["status"] == "SUCCEEDED", found["message"]


def applications(cluster: Ray) -> set[str]:
    return set(RayApi(cluster.address).serve()["applications"])


def asked_theirs(cluster: Ray) -> str:
    host = cluster.address.removeprefix("http://").partition(":")[0]
    with urllib.request.urlopen(f"http://{host}:8000/theirs", timeout=scaled(20)) as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Ray]:
    """One where somebody serves something already."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    if importlib.util.find_spec("watchfiles") is None:
        pytest.skip("ray[serve] not found; make env-clusters installs it")
    # How long Ray keeps what was brought there, and is not used.
    with ray(2, environ={"RAY_RUNTIME_ENV_TEMPORARY_REFERENCE_EXPIRATION_S": "5"}) as made:
        run_there(made, THEIRS.format(host="0.0.0.0"))
        yield made


@pytest.fixture
def session(cluster: Ray, tmp_path: Path) -> Iterator[Session]:
    """Each test leaves nothing on the cluster but what others have there."""
    session = session_of(cluster, tmp_path)
    yield session
    for name in endpoint_names(session.home):
        session.delete_endpoint(name)
    require_empty(cluster)
    assert applications(cluster) == {"theirs"}
    assert asked_theirs(cluster) == "theirs"


def session_of(cluster: Ray, folder: Path, **more: object) -> Session:
    home = Home(folder / "home")
    home.make()
    settings = {"address": cluster.address, "python": sys.executable, **more}
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    home.config.write_text("\n".join(["[ray]", *lines, ""]))
    return Session(home=home, backend="ray")


def processes(cluster: Ray, text: str) -> list[int]:
    return [pid for node in cluster.machines.values() for pid in node.processes(text)]


def temporary(cluster: Ray, name: str) -> Path:
    """The temporary files of a node, which nobody else sees."""
    return Path(f"/proc/{cluster.machines[name].pid}/root/tmp")


def require_empty(cluster: Ray) -> None:
    """No process, actor and folder of an endpoint is left on its nodes."""
    until = time.monotonic() + scaled(20)
    while True:
        left: list[object] = [*processes(cluster, "smdistributed")]
        with urllib.request.urlopen(f"{cluster.address}/api/v0/actors?detail=1") as answer:
            actors = json.load(answer)["data"]["result"]["result"]
        left += [
            each["name"]
            for each in actors
            if each["state"] != "DEAD"
            and "theirs" not in each["name"]
            and not each["name"].startswith(("SERVE_CONTROLLER", "SERVE_PROXY"))
        ]
        left += [
            each for name in cluster.machines for each in temporary(cluster, name).glob("smd-*")
        ]
        if not left:
            return
        assert time.monotonic() < until, left
        time.sleep(0.2)


def wait_for_answer(predictor: Predictor) -> None:
    until = time.monotonic() + scaled(60)
    while True:
        try:
            assert predictor.predict("say x") == "the model x"
        except ModelError:
            assert time.monotonic() < until
            time.sleep(0.2)
        else:
            return


def test_it_answers_as_one_of_this_machine(cluster: Ray, session: Session, tmp_path: Path) -> None:
    environment = {"SAGEMAKER_MODEL_SERVER_TIMEOUT": "3"}
    predictor = deployed(model(tmp_path, session, env=environment), 2, endpoint_name="shared")
    assert predictor.predict("say hello") == "the model hello"
    assert len(processes(cluster, "launch.serve.worker")) == 2
    assert session.describe_endpoint("shared")["EndpointStatus"] == "InService"
    assert predictor.predict("path") == "True"
    with pytest.raises(ModelError, match=r"status 500: no such digit\nTraceback"):
        predictor.predict("raise no such digit")
    record = session.endpoint("shared").read()
    route = f"{record.prefix}/invocations"
    for size, status in ((MOST, 200), (MOST + 1, 413)):
        body = b"x" * size
        assert post(predictor, body, route)[0] == status
        assert post(predictor, iter([body[: size // 2], body[size // 2 :]]), route)[0] == status
    assert post(predictor, None, f"{record.prefix}/ping", "GET") == (200, b"")
    assert post(predictor, None, f"{record.prefix}/other", "GET")[0] == 404
    assert post(predictor, None, route, "GET")[0] == 405
    told = "assert not any(name.startswith('RAY_') for name in os.environ)"
    assert predictor.predict(f"do {told}") == "done"
    another = Predictor("shared", Session(home=session.home))  # whatever its backend
    assert another.predict(b"say you") == b"the model you"
    assert asked_theirs(cluster) == "theirs"
    with pytest.raises(ModelError, match=r"status 504: .* within 3 s"):
        predictor.predict("pid 60")


def test_the_commands_know_it(cluster: Ray, session: Session, tmp_path: Path) -> None:
    model(tmp_path, session)  # writes the files
    environ = {**os.environ, "SMD_HOME": str(session.home.root)}

    def smd(*words: str) -> str:
        command = [sys.executable, "-m", "smdistributed.smd.main", *words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    words = ["--backend", "ray", "--entry-point", str(tmp_path / "serve.py"), "--workers", "1"]
    said = smd("deploy", *words, "--name", "mine", str(tmp_path / "model.tar.gz"))
    assert "mine: InService at http://" in said
    (listed,) = json.loads(smd("endpoints", "--json"))
    assert listed["EndpointStatus"] == "InService"
    assert "/smd/mine-" in listed["Address"]
    assert smd("undeploy", "mine") == "mine: deleted\n"


def test_a_model_that_does_not_load_leaves_nothing(
    cluster: Ray, session: Session, tmp_path: Path
) -> None:
    made = model(tmp_path, session, "print('begins to load', flush=True)\nimport nonesuch\n")
    with pytest.raises(UnexpectedStatusException, match="could not be loaded: ModuleNotFoundError"):
        deployed(made, 2, endpoint_name="bad")
    require_empty(cluster)
    log = session.endpoint("bad").log.read_text()
    assert "begins to load" in log
    assert "No module named 'nonesuch'" in log
    session.delete_endpoint("bad")


def test_a_model_that_kills_its_process_says_so(session: Session, tmp_path: Path) -> None:
    made = model(tmp_path, session, "import os\nprint('a word', flush=True)\nos._exit(3)\n")
    with pytest.raises(UnexpectedStatusException, match=r"status 3; its last lines: a word"):
        deployed(made, endpoint_name="bad")


@pytest.mark.parametrize("wanted", [{"cpus_per_host": 3}, {"gpus_per_host": 1}])
def test_what_the_cluster_can_never_have_is_refused(
    cluster: Ray, session: Session, tmp_path: Path, wanted: dict[str, int]
) -> None:
    session = session_of(cluster, tmp_path, **wanted)
    with pytest.raises(UnexpectedStatusException, match=r"asks for 1 instances .* has no room"):
        deployed(model(tmp_path, session), endpoint_name="big")


def test_what_dies_is_started_again(cluster: Ray, session: Session, tmp_path: Path) -> None:
    session = session_of(cluster, tmp_path, cpus_per_host=2)  # all that a node has
    predictor = deployed(model(tmp_path, session), 2, endpoint_name="dies")
    time.sleep(6)  # what has no user is gone from the cluster now
    for what in ("launch.serve.worker", "launch.ray_serve.host", "ServeReplica:dies"):
        found = processes(cluster, what)
        assert found, what
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        time.sleep(1)
        wait_for_answer(predictor)
    cluster.kill_raylet("host-1")
    brought = list(temporary(cluster, "host-1").glob("ray/session_2*/*/*/_ray_pkg_*"))
    assert brought
    for each in filter(Path.is_dir, brought):
        shutil.rmtree(each)
    again = cluster.start_node("host-1")  # it has nothing of the model any more
    assert again.wait(scaled(60)) == 0, cluster.logs()
    until = time.monotonic() + scaled(90)
    while not cluster.machines["host-1"].processes("launch.serve.worker"):
        assert time.monotonic() < until
        time.sleep(0.2)
    wait_for_answer(predictor)


def test_it_is_deleted_while_it_loads(cluster: Ray, session: Session, tmp_path: Path) -> None:
    made: Any = model(tmp_path, session, "import time\ntime.sleep(600)\n")
    deployed(made, endpoint_name="slow", wait=False)
    assert session.describe_endpoint("slow")["EndpointStatus"] == "Creating"
    until = time.monotonic() + scaled(60)
    while not processes(cluster, "launch.serve.worker"):
        assert time.monotonic() < until
        time.sleep(0.2)
    session.delete_endpoint("slow")
    require_empty(cluster)


def test_one_that_somebody_has_deleted_there_has_failed(
    cluster: Ray, session: Session, tmp_path: Path
) -> None:
    predictor = deployed(model(tmp_path, session), endpoint_name="gone")
    application = session.endpoint("gone").read().prefix.rpartition("/")[2]
    api = RayApi(cluster.address)
    submitted(api, sys.executable, f"other-{application}", Unwanted(application))
    said = outcome_of(api, sys.executable, f"other-{application}", lambda: False)
    assert said is not None
    assert not said.problem
    assert session.describe_endpoint("gone")["EndpointStatus"] == "Failed"
    with pytest.raises(UnexpectedStatusException, match="has no application"):
        predictor.predict("say x")


def test_a_serve_that_listens_to_its_own_machine_only(
    cluster: Ray, session: Session, tmp_path: Path
) -> None:
    run_there(cluster, SHUT_DOWN)
    run_there(cluster, THEIRS.format(host="127.0.0.1"))
    try:
        with pytest.raises(UnexpectedStatusException, match=r"cannot be reached .* serve_address"):
            deployed(model(tmp_path, session), endpoint_name="unheard")
        require_empty(cluster)
        assert applications(cluster) == {"theirs"}
    finally:
        run_there(cluster, SHUT_DOWN)
        run_there(cluster, THEIRS.format(host="0.0.0.0"))


def test_a_cluster_that_does_not_answer(session: Session, tmp_path: Path) -> None:
    elsewhere = Session(home=session.home, backend="ray")
    session.home.config.write_text('[ray]\naddress = "http://127.0.0.1:1"\n')
    with pytest.raises(BackendError, match="cannot be reached"):
        deployed(model(tmp_path, elsewhere), endpoint_name="nobody")
    assert endpoint_names(session.home) == []
