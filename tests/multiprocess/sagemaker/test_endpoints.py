# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Endpoints on this machine: what they answer, and every way in which they can end.

Source: launch specification, section 10, and the table of failures of its issue.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smdistributed._common.errors import ConfigurationError, UnsupportedError
from smdistributed.launch.agent.mounts import available_step
from smdistributed.launch.home import Home
from smdistributed.launch.serve import endpoints
from smdistributed.sagemaker.deserializers import JSONDeserializer, StringDeserializer
from smdistributed.sagemaker.exceptions import ModelError, UnexpectedStatusException
from smdistributed.sagemaker.predictor import Predictor
from smdistributed.sagemaker.pytorch import PyTorch, PyTorchModel
from smdistributed.sagemaker.serializers import JSONSerializer
from smdistributed.sagemaker.session import Session
from tests.multiprocess.sagemaker.ordinary_user import NOBODY, command_of_nobody

SOON_S = 20.0
MOST = 6 << 20

# Does as it is told.
FUNCTIONS = """
import os, signal, sys, time

def sockets():
    links = {each: f"/proc/self/fd/{each}" for each in range(3, 99)}
    return [each for each, link in links.items()
            if os.path.lexists(link) and "socket:" in os.readlink(link)]

def model_fn(model_dir):
    return open(os.path.join(model_dir, "weights")).read()

def input_fn(body, kind):
    return body if isinstance(body, str) else body.decode()

def predict_fn(told, model):
    if len(told) > 1000:
        return str(len(told))
    what, _, value = told.strip('"').partition(" ")
    if what == "say":
        return f"{model} {value}"
    if what == "pid":
        time.sleep(float(value))
        return str(os.getpid())
    if what == "die":
        os.kill(os.getpid(), int(value))
    if what == "exit":
        os._exit(int(value))
    if what == "raise":
        raise RuntimeError(value)
    if what == "print":
        print(value)
        return "printed"
    if what == "do":
        exec(value)
        return "done"
    if what == "path":
        return str(os.path.samefile("/opt/ml/model", os.environ["SM_MODEL_DIR"]))
    if what == "child":
        import subprocess
        return str(subprocess.Popen(["sleep", value]).pid)
    if what == "fork":
        child = os.fork()
        if child == 0:
            exec(value)
            return "of the child"
        return str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    raise AssertionError(told)

def output_fn(said, accept):
    return said, "text/plain"
"""


def archive(folder: Path, name: str = "model.tar.gz", **files: str) -> str:
    """The URI of an archive with these files."""
    path = folder / name
    with tarfile.open(path, "w:gz") as tar:
        for inside, content in files.items():
            file = folder / "content"
            file.write_text(content)
            tar.add(file, inside.replace("__", "/").replace("_DOT_", "."))
    return f"file://{path}"


def model(folder: Path, session: Session, code: str | None = FUNCTIONS, **changed: Any) -> Any:
    arguments: dict[str, Any] = {
        "framework_version": "2.0",
        "py_version": "py310",
        "sagemaker_session": session,
        "model_server_workers": 1,
        **changed,
    }
    if "model_data" not in changed:
        arguments["model_data"] = archive(folder, weights="the model")
    if code is not None:
        (folder / "serve.py").write_text(textwrap.dedent(code))
        arguments["entry_point"] = str(folder / "serve.py")
    return PyTorchModel(**arguments)


def deployed(made: Any, count: int = 1, **changed: Any) -> Predictor:
    text = {"serializer": JSONSerializer(), "deserializer": StringDeserializer()}
    return made.deploy(count, "ml.c5.xlarge", **{**text, **changed})


def processes_of(text: str) -> dict[int, str]:
    """Those that have it in their command; by their number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in command:
                found[int(path.parent.name)] = command
    return found


def wait_until(holds: Any, within_s: float = SOON_S) -> None:
    until = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until, "it has not happened"
        time.sleep(0.05)


def closed(session: Session, folder: Path) -> None:
    """Deletes what is left; nothing may outlive that."""
    for name in endpoints.endpoint_names(session.home):
        session.delete_endpoint(name)
    assert endpoints.endpoint_names(session.home) == []
    wait_until(lambda: not processes_of(str(folder)), 5.0)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    session = Session(home=Home(tmp_path / "home"))
    yield session
    closed(session, tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Predictor]:
    """An endpoint of two workers, whose calls may take 2 s."""
    folder = tmp_path_factory.mktemp("endpoint")
    session = Session(home=Home(folder / "home"))
    made = model(
        folder, session, model_server_workers=2, env={"SAGEMAKER_MODEL_SERVER_TIMEOUT": "2"}
    )
    yield deployed(made, endpoint_name="shared")
    closed(session, folder)


def worker_pids(predictor: Predictor) -> set[int]:
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        return set(map(int, threads.map(lambda _: predictor.predict("pid 0.1"), range(8))))


def post(
    predictor: Predictor,
    body: Any,
    path: str = "/invocations",
    method: str = "POST",
    **headers: str,
) -> tuple[int, bytes]:
    record = predictor.sagemaker_session.endpoint(predictor.endpoint_name).poll()
    connection = http.client.HTTPConnection(record.host, record.port, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, response.read()


# --- what is answered -----------------------------------------------------------------------------


def test_it_answers_and_says_how_it_stands(shared: Predictor) -> None:
    assert shared.predict("say hello") == "the model hello"
    described = shared.sagemaker_session.describe_endpoint("shared")
    assert described["EndpointStatus"] == "InService"
    assert described["EndpointArn"].endswith(":endpoint/shared")
    assert post(shared, None, "/ping", "GET") == (200, b"")


def test_another_process_finds_it_by_its_name(shared: Predictor) -> None:
    program = (
        "from smdistributed.sagemaker.predictor import Predictor; import sys;"
        "print(Predictor('shared').predict(b'say you'))"
    )
    environ = {**os.environ, "SMD_HOME": str(shared.sagemaker_session.home.root)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "b'the model you'"


def test_what_a_function_raises_is_answered_and_it_stays_up(shared: Predictor) -> None:
    with pytest.raises(ModelError, match=r"status 500: no such digit\nTraceback") as caught:
        shared.predict("raise no such digit")
    assert caught.value.status_code == 500
    assert shared.predict("say hello") == "the model hello"


@pytest.mark.parametrize(
    ("size", "status"), [(MOST, 200), (MOST + 1, 413)], ids=["6 MB", "6 MB and a byte"]
)
def test_a_body_may_have_six_megabytes(shared: Predictor, size: int, status: int) -> None:
    body = b"x" * size
    assert post(shared, body)[0] == status
    parts = iter([body[: size // 2], body[size // 2 :]])  # of unknown length in all
    assert post(shared, parts)[0] == status
    assert shared.predict("say hello") == "the model hello"


def test_the_predictor_says_that_a_body_is_too_long(shared: Predictor) -> None:
    with pytest.raises(ModelError, match="longer than 6,291,456 bytes"):
        shared.predict("x" * MOST)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/", "GET", 404), ("/invocations", "GET", 405), ("/ping", "POST", 405)],
)
def test_other_routes_are_not_there(shared, path, method, status) -> None:
    assert post(shared, None, path, method)[0] == status


def test_a_client_that_goes_away_harms_nobody(shared: Predictor) -> None:
    record = shared.sagemaker_session.endpoint("shared").poll()
    for sent in (b"", b"POST /invo", b"POST /invocations HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc"):
        with socket.create_connection((record.host, record.port)) as connection:
            connection.sendall(sent)
    with socket.create_connection((record.host, record.port)) as connection:
        connection.sendall(b"\x00\xff nonsense\r\n\r\n")
        assert b" 400 " in connection.recv(100)
    assert shared.predict("say hello") == "the model hello"


def test_what_is_refused(shared: Predictor) -> None:
    with pytest.raises(UnsupportedError, match="target_model is 'other'"):
        shared.predict("say x", target_model="other")
    with pytest.raises(ValueError, match="target_variant is 'B'; expected 'AllTraffic'"):
        shared.predict("say x", target_variant="B")
    with pytest.raises(UnsupportedError, match=r"update_endpoint\(\)"):
        shared.update_endpoint(initial_instance_count=2)


def test_what_workers_print_is_in_the_log(shared: Predictor) -> None:
    shared.predict("print something to be found")
    log = shared.sagemaker_session.endpoint("shared").log
    assert "something to be found" in log.read_text()


def test_a_function_finds_the_model_at_opt_ml(shared: Predictor, tmp_path: Path) -> None:
    step, why = available_step(tmp_path)
    if not step.is_mount:
        pytest.skip(f"/opt/ml cannot be mounted here: {why}")
    assert shared.predict("path") == "True"


@pytest.mark.parametrize("told", ["sys.stdout.close()", "sys.stdout = None", "os.close(1)"])
def test_a_function_may_close_its_output(shared: Predictor, told: str) -> None:
    assert shared.predict(f"do {told}") == "done"
    assert shared.predict("do sys.stdout = sys.__stdout__") == "done"


@pytest.mark.parametrize(
    ("child", "status"),
    [("pass", "0"), ("sys.exit(3)", "3"), ("sys.exit()", "0"), ("raise ValueError", "1")],
)
def test_a_child_that_comes_back_answers_nobody(shared: Predictor, child, status) -> None:
    assert shared.predict(f"fork {child}") == status
    told = [f"say {each}" for each in range(6)]
    assert list(map(shared.predict, told)) == [f"the model {each}" for each in range(6)]


def test_variables_of_a_job_around_it_stay_outside(tmp_path, session, monkeypatch) -> None:
    for name in ("RANK", "MASTER_ADDR", "SM_CHANNEL_TRAINING", "SMDDP_TOKEN", "SAGEMAKER_X"):
        monkeypatch.setenv(name, "of a job")
    monkeypatch.setenv("MINE", "x")
    monkeypatch.setenv("SAGEMAKER_MODEL_SERVER_TIMEOUT", "7")
    predictor = deployed(model(tmp_path, session))
    told = "assert 'of a job' not in os.environ.values() and os.environ['MINE'] == 'x'"
    assert predictor.predict(f"do {told}") == "done"
    served = session.endpoint(predictor.endpoint_name).poll().model  # where predictors look
    assert served.environment["SAGEMAKER_MODEL_SERVER_TIMEOUT"] == "7"


# --- workers --------------------------------------------------------------------------------------


def test_all_workers_answer(shared: Predictor) -> None:
    assert len(worker_pids(shared)) == 2


def test_a_call_that_takes_too_long_is_ended(shared: Predictor) -> None:
    with pytest.raises(ModelError, match=r"status 504: .* within 2 s"):
        shared.predict("pid 60")
    wait_until(lambda: len(worker_pids(shared)) == 2)


def test_calls_that_have_waited_kill_no_worker(tmp_path: Path, session: Session) -> None:
    predictor = deployed(model(tmp_path, session, env={"SAGEMAKER_MODEL_SERVER_TIMEOUT": "3"}))
    worker = predictor.predict("pid 0")

    def status(_: int) -> int:
        try:
            predictor.predict("pid 1")
        except ModelError as error:
            return int(error.status_code)
        return 200

    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        assert set(threads.map(status, range(6))) == {200, 504}
    assert predictor.predict("pid 0") == worker


@pytest.mark.parametrize(
    ("told", "how"),
    [
        (f"die {signal.SIGKILL.value}", "was ended by SIGKILL"),
        (f"die {signal.SIGSEGV.value}", "was ended by SIGSEGV"),
        ("exit 7", "has ended with status 7"),
        ("do [os.write(each, bytes(20)) for each in sockets()]", "was ended by SIGKILL"),
    ],
)
def test_a_worker_that_dies_loses_its_own_call_alone(shared: Predictor, told, how) -> None:
    with concurrent.futures.ThreadPoolExecutor(9) as threads:
        others = [threads.submit(shared.predict, "pid 0.1") for _ in range(8)]
        with pytest.raises(ModelError, match=f"status 500: The worker that had this call {how}"):
            shared.predict(told)
        assert all(each.result() for each in others)
    wait_until(lambda: len(worker_pids(shared)) == 2)


def test_calls_wait_while_the_only_worker_is_replaced(tmp_path: Path, session: Session) -> None:
    predictor = deployed(model(tmp_path, session))
    with pytest.raises(ModelError, match="status 500"):
        predictor.predict(f"die {signal.SIGKILL.value}")
    assert predictor.predict("say hello") == "the model hello"
    assert post(predictor, None, "/ping", "GET")[0] == 200


def test_an_idle_worker_that_is_killed_is_replaced(shared: Predictor) -> None:
    before = worker_pids(shared)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in before))

    wait_until(lambda: post(shared, None, "/ping", "GET")[0] == 200)
    wait_until(lambda: len(worker_pids(shared)) == 2)


def test_what_functions_leave_behind_is_reaped(shared: Predictor) -> None:
    leave = "import subprocess; subprocess.run(['sh', '-c', 'setsid true & echo $! > left'])"
    shared.predict(f"do os.chdir({str(shared.sagemaker_session.home.root)!r}); {leave}")
    pid = (shared.sagemaker_session.home.root / "left").read_text().strip()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_many_clients_are_answered_all(shared: Predictor) -> None:
    with concurrent.futures.ThreadPoolExecutor(40) as threads:
        said = list(threads.map(lambda each: shared.predict(f"say {each}"), range(400)))
    assert said == [f"the model {each}" for each in range(400)]


def test_each_instance_has_its_workers(tmp_path: Path, session: Session) -> None:
    predictor = deployed(model(tmp_path, session), 2)
    assert len(worker_pids(predictor)) == 2


# --- before it serves -----------------------------------------------------------------------------


def test_while_the_model_is_loaded_it_says_503(tmp_path: Path, session: Session) -> None:
    gate = tmp_path / "gate"
    code = f"""
    import os, time
    def model_fn(model_dir):
        while not os.path.exists({str(gate)!r}):
            time.sleep(0.05)
    """
    predictor = deployed(model(tmp_path, session, FUNCTIONS + textwrap.dedent(code)), wait=False)
    directory = session.endpoint(predictor.endpoint_name)
    wait_until(lambda: directory.poll().port)
    assert session.describe_endpoint(predictor.endpoint_name)["EndpointStatus"] == "Creating"
    wait_until(lambda: post(predictor, None, "/ping", "GET")[0] == 503)
    with pytest.raises(ModelError, match=r"status 503: No worker has loaded the model yet"):
        predictor.predict("say x")
    gate.touch()
    session.wait_for_endpoint(predictor.endpoint_name)
    assert predictor.predict("say x") == "None x"


def test_one_that_loads_for_ever_can_be_deleted(tmp_path: Path, session: Session) -> None:
    code = "import time\ndef model_fn(model_dir):\n    time.sleep(1000)\n"
    predictor = deployed(model(tmp_path, session, code), wait=False)
    predictor.delete_endpoint()
    assert endpoints.endpoint_names(session.home) == []


def test_one_that_loads_for_too_long_has_failed(tmp_path: Path, session: Session) -> None:
    code = "import time\ndef model_fn(model_dir):\n    time.sleep(1000)\n"
    with pytest.raises(UnexpectedStatusException, match=r"not loaded within 3 s"):
        deployed(model(tmp_path, session, code), container_startup_health_check_timeout=3)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("def model_fn(model_dir): raise OSError('no weights')", "OSError: no weights"),
        ("def model_fn(): pass", r"model_fn takes 0 arguments but 1 were given\."),
        ("import no_such_module", "No module named 'no_such_module'"),
        (
            "import os; print('the last word', flush=True); os._exit(3)",
            "was to load the model has ended with status 3; its last lines: the last word",
        ),
        ("exit(4)", "SystemExit: 4"),
        (None, r"Exactly one \.pth or \.pt file is required for PyTorch models: \[\]"),
    ],
)
def test_a_model_that_cannot_be_loaded(tmp_path: Path, session: Session, code, text) -> None:
    with pytest.raises(UnexpectedStatusException, match=text) as caught:
        deployed(model(tmp_path, session, code), endpoint_name="broken")
    assert "Error hosting endpoint broken: Failed. Reason:" in str(caught.value)
    assert session.describe_endpoint("broken")["EndpointStatus"] == "Failed"
    with pytest.raises(UnexpectedStatusException, match="endpoint broken is Failed"):
        Predictor("broken", session).predict(b"")


def test_requirements_that_cannot_be_installed(tmp_path: Path, session: Session) -> None:
    data = archive(tmp_path, weights="w", code__requirements_DOT_txt="./not-there\n")
    with pytest.raises(UnexpectedStatusException, match="not-there"):
        deployed(model(tmp_path, session, model_data=data))


def test_code_may_lie_in_the_model(tmp_path: Path, session: Session) -> None:
    data = archive(tmp_path, weights="w", code__inference_DOT_py=FUNCTIONS)
    assert deployed(model(tmp_path, session, None, model_data=data)).predict("say x") == "w x"


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_an_archive_that_is_none(tmp_path: Path, session: Session, content: bytes) -> None:
    (tmp_path / "broken.tar.gz").write_bytes(content)
    data = f"file://{tmp_path}/broken.tar.gz"
    with pytest.raises(UnexpectedStatusException, match=r"broken\.tar\.gz cannot be unpacked"):
        deployed(model(tmp_path, session, model_data=data))


def test_a_folder_that_is_no_model(tmp_path: Path, session: Session) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "code").write_text("")
    made = model(tmp_path, session, None, model_data=f"file://{folder}")
    with pytest.raises(UnexpectedStatusException, match=r"code in .*made is a file; expected the"):
        deployed(made)
    (folder / "code").unlink()
    (folder / "loop").symlink_to(".")
    with pytest.raises(UnexpectedStatusException, match=r"made cannot be copied: .*levels of symb"):
        deployed(made)


def test_one_that_does_not_listen_yet_says_so(tmp_path: Path, session: Session) -> None:
    predictor = deployed(model(tmp_path, session), wait=False)
    with pytest.raises(ModelError, match="is Creating, and does not listen yet") as caught:
        predictor.predict("say x")
    assert caught.value.status_code == 503


def test_a_port_that_is_taken_is_passed_over(tmp_path: Path, session: Session) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"SAGEMAKER_BIND_TO_PORT": str(port)}
        predictor = deployed(model(tmp_path, session, env=env))
        assert session.endpoint(predictor.endpoint_name).poll().port > port
        assert predictor.predict("say x") == "the model x"


@pytest.mark.parametrize(
    ("variable", "value"), [("SAGEMAKER_BIND_TO_PORT", "web"), ("SAGEMAKER_STARTUP_TIMEOUT", "0")]
)
def test_a_variable_that_is_no_number(tmp_path, session, variable, value) -> None:
    with pytest.raises(UnexpectedStatusException, match=f"{variable} is '{value}'; expected"):
        deployed(model(tmp_path, session, env={variable: value}))


# --- what is refused before anything is made ------------------------------------------------------


def test_a_name_that_is_taken(shared: Predictor, tmp_path: Path) -> None:
    made = model(tmp_path, shared.sagemaker_session)
    with pytest.raises(ConfigurationError, match='already existing endpoint "shared"'):
        deployed(made, endpoint_name="shared")
    assert shared.predict("say hello") == "the model hello"


def test_a_deploy_that_is_refused_does_not_change_what_another_serves(tmp_path, session) -> None:
    first = deployed(model(tmp_path, session), endpoint_name="one", wait=False)
    other = model(tmp_path, session, FUNCTIONS.replace("return said", "return 'of another'"))
    with pytest.raises(ConfigurationError, match='already existing endpoint "one"'):
        deployed(other, endpoint_name="one")
    session.wait_for_endpoint("one")
    assert first.predict("say x") == "the model x"


def test_a_name_that_is_not_there(shared: Predictor) -> None:
    with pytest.raises(ValueError, match=r'Could not find endpoint "sharde".*mean shared\?'):
        Predictor("sharde", shared.sagemaker_session).predict(b"")


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"instance_type": None}, ValueError, "Must specify instance type and instance count"),
        ({"initial_instance_count": 0}, ValueError, "initial_instance_count is 0"),
        ({"endpoint_name": "a b"}, ValueError, "'a b' cannot be the name of an endpoint"),
        ({"serverless_inference_config": object()}, UnsupportedError, "serverless_inference_conf"),
        ({"accelerator_type": "ml.eia1"}, UnsupportedError, "accelerator_type is 'ml.eia1'"),
    ],
)
def test_arguments_that_cannot_work(tmp_path, session, arguments, error, text) -> None:
    given = {"initial_instance_count": 1, "instance_type": "local", **arguments}
    with pytest.raises(error, match=text):
        model(tmp_path, session).deploy(**given)
    assert endpoints.endpoint_names(session.home) == []


def test_a_model_that_is_not_there(tmp_path: Path, session: Session) -> None:
    with pytest.raises(
        ValueError, match=r"model_data is 's3://b/model\.tar\.gz', and .* not there"
    ):
        deployed(model(tmp_path, session, model_data="s3://b/model.tar.gz"))


def test_a_package_that_is_not_installed(tmp_path, session, monkeypatch) -> None:
    find = endpoints.importlib.util.find_spec
    monkeypatch.setattr(
        endpoints.importlib.util,
        "find_spec",
        lambda name: None if name == "uvicorn" else find(name),
    )
    with pytest.raises(UnsupportedError, match=r"pip install 'smdistributed-open\[serve\]'"):
        deployed(model(tmp_path, session))


def test_a_record_that_has_no_room(tmp_path, session, monkeypatch) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    made = model(tmp_path, session)
    with monkeypatch.context() as patch:
        patch.setattr(endpoints, "write_whole", full)
        with pytest.raises(ConfigurationError, match="No space left on device; expected"):
            deployed(made, endpoint_name="one")
    assert endpoints.endpoint_names(session.home) == []
    opened = (os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())
    assert not [each for each in opened if "/endpoints/one/" in each]


# --- the end --------------------------------------------------------------------------------------


def test_deleting_leaves_nothing_and_answers_what_has_come_in(tmp_path, session) -> None:
    predictor = deployed(model(tmp_path, session))
    stray = int(predictor.predict("child 1000"))
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        late = threads.submit(predictor.predict, "pid 1")
        time.sleep(0.3)
        predictor.delete_endpoint()
        assert int(late.result()) > 0
    assert not processes_of(str(tmp_path))
    assert not Path(f"/proc/{stray}").exists()
    with pytest.raises(ConfigurationError, match="Could not find endpoint"):
        predictor.predict("say x")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_process_of_an_endpoint_may_be_ended(tmp_path, session, number) -> None:
    predictor = deployed(model(tmp_path, session))
    workers = worker_pids(predictor) | {int(predictor.predict("child 1000"))}
    front = min(pid for pid, line in processes_of(str(tmp_path)).items() if "endpoint" in line)
    os.kill(front, number)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    directory = session.endpoint(predictor.endpoint_name)
    wait_until(lambda: directory.poll().status == "Failed")
    with pytest.raises(UnexpectedStatusException, match=r"is gone|told to end, by SIGTERM"):
        predictor.predict("say x")
    predictor.delete_endpoint()


READ_ONLY = """
import os, sys
from pathlib import Path
from smdistributed.launch.home import Home
from smdistributed.sagemaker.pytorch import PyTorchModel
from smdistributed.sagemaker.session import Session

FUNCTIONS = "import os\\ndef model_fn(model_dir): os.makedirs(model_dir + '/a/b')"
FUNCTIONS += "; os.chmod(model_dir + '/a', 0o500)"
here = Path(sys.argv[1])
session = Session(home=Home(here / "home"))
(here / "serve.py").write_text(FUNCTIONS)
(here / "made" / "sub").mkdir(parents=True)
(here / "made" / "sub" / "weights").write_text("x")
(here / "made" / "sub").chmod(0o555)
(here / "made").chmod(0o555)
given = {"entry_point": str(here / "serve.py"), "sagemaker_session": session}
given |= {"framework_version": "2.0", "py_version": "py310", "model_server_workers": 1}
predictor = PyTorchModel(f"file://{here}/made", **given).deploy(1, "local")
predictor.delete_endpoint()
print(os.listdir(session.home.endpoints))
"""


def test_folders_that_are_read_only() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # that nobody may enter
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        done = subprocess.run(
            command_of_nobody(["-c", READ_ONLY, folder]), cwd="/", capture_output=True, text=True
        )
        assert done.stdout == "['.creating']\n", done.stderr
        endpoints.make_writable(Path(folder))


# --- of an estimator ------------------------------------------------------------------------------


def trained(tmp_path: Path, session: Session, script: str, **changed: Any) -> PyTorch:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text(textwrap.dedent(script))
    return PyTorch(
        entry_point="train.py",
        source_dir=str(source),
        framework_version="2.0",
        py_version="py310",
        instance_count=1,
        instance_type="local",
        sagemaker_session=session,
        **changed,
    )


TRAINS = """
import os
def model_fn(model_dir): return open(os.path.join(model_dir, "w")).read()
def input_fn(body, kind): return body
def predict_fn(body, model): return model + body
def output_fn(said, accept): return said, accept
if __name__ == "__main__":
    open(os.path.join(os.environ["SM_MODEL_DIR"], "w"), "w").write("trained ")
"""


def test_one_model_may_be_deployed_twice(tmp_path: Path, session: Session) -> None:
    made = model(tmp_path, session)
    for name in ("first", "second"):
        assert deployed(made, endpoint_name=name).predict("say x") == "the model x"
    with pytest.raises(ConfigurationError, match='already existing endpoint "first"'):
        deployed(made, endpoint_name="first")
    kept = list(session.home.buckets.rglob("sourcedir.tar.gz"))
    assert len(kept) == 2, "one that is refused leaves no sources"


def test_the_caller_waits_as_long_as_the_server(
    tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGEMAKER_MODEL_SERVER_TIMEOUT", "77")
    predictor = deployed(model(tmp_path, session))
    assert session.endpoint(predictor.endpoint_name).poll().timeout_s == 77


def test_the_script_that_has_trained_serves(tmp_path: Path, session: Session) -> None:
    estimator = trained(tmp_path, session, TRAINS)
    with pytest.raises(ValueError, match="Estimator is not associated with a training job"):
        estimator.deploy(1, "local")
    estimator.fit(logs=False)
    attached = PyTorch.attach(estimator.latest_training_job.name, sagemaker_session=session)
    predictor = attached.deploy(
        initial_instance_count=1,
        instance_type="ml.m5.xlarge",
        serializer=JSONSerializer(),
        deserializer=JSONDeserializer(),
        model_server_workers=1,
    )
    with pytest.raises(ValueError, match="JSONDeserializer"):
        predictor.predict("x")  # it answers with what is no JSON
    predictor.deserializer = StringDeserializer()
    assert predictor.predict([1]) == "trained [1]"
    assert predictor.endpoint_name.startswith("pytorch-training-")


def test_another_file_may_serve(tmp_path: Path, session: Session) -> None:
    estimator = trained(tmp_path, session, TRAINS)
    (tmp_path / "source" / "serve.py").write_text(TRAINS.replace("model + body", "'in the job'"))
    estimator.fit(logs=False)
    (tmp_path / "here.py").write_text(TRAINS.replace("model + body", "'from here'"))
    for entry_point, said in (("serve.py", "in the job"), (str(tmp_path / "here.py"), "from here")):
        predictor = estimator.deploy(1, "local", entry_point=entry_point, model_server_workers=1)
        assert Predictor(predictor.endpoint_name, session).predict(b"") == said.encode()
        predictor.delete_model()
        predictor.delete_endpoint()


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("raise ValueError('no data')", r"\(Failed\) has made no model: AlgorithmError.*no data"),
        ("pass", r"\(Completed\) has made no model: nothing was in SM_MODEL_DIR"),
    ],
)
def test_a_job_without_a_model(tmp_path: Path, session: Session, script: str, text: str) -> None:
    estimator = trained(tmp_path, session, script)
    with contextlib.suppress(UnexpectedStatusException):
        estimator.fit(logs=False)
    with pytest.raises(ValueError, match=f"(?s){text}"):
        estimator.deploy(1, "local")
    assert endpoints.endpoint_names(session.home) == []


def test_the_record_is_json_that_others_may_read(shared: Predictor) -> None:
    path = shared.sagemaker_session.endpoint("shared").path / "endpoint.json"
    document = json.loads(path.read_text())
    assert (document["status"], document["port"] > 0) == ("InService", True)
    assert (path.stat().st_mode & 0o077) == 0
