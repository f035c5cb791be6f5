# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Downloads from an S3 server of this machine, beside boto3 alone with as many threads.

many      64 objects of 8 MiB
one       one object of 256 MiB, which ours and boto3's `get_object` read over one connection

Each turn is a process of its own, which has imported boto3 and opened a connection before its clock
starts. Ours checks the checksum of each object and writes its journal; boto3 writes files, and
checks what it checks by itself. With `--md5` the objects have no other checksum than their ETag:
then `boto3+md5`, which is boto3 and the MD5 of what it has read, is what checking them costs at
least. All take turns. Memory is the most that a process had, less what it had before.

python benchmarks/s3/run.py [--rounds 7] [--threads 10] [--md5]    (after `make env-clusters`)
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MIB = 1 << 20
BUCKETS = {"many": (64, 8 * MIB), "one": (1, 256 * MIB)}
AT_ONCE = 1 << 16


def content_of(number: int, size: int) -> bytes:
    return hashlib.shake_128(str(number).encode()).digest(size)


@contextmanager
def server() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as process:  # type: ignore[call-overload]
        try:
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def client_of(url: str, **more: str | None) -> Any:
    import boto3
    from botocore.config import Config

    given = {name: value for name, value in more.items() if value is not None}
    config = Config(s3={"addressing_style": "path"}, max_pool_connections=32, **given)
    return boto3.client("s3", endpoint_url=url, region_name="us-east-1", config=config)


def memory(what: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) << 10
    raise AssertionError(what)


def turn(kind: str, url: str, bucket: str, folder: Path, threads: int) -> None:
    """In a process of its own. Prints seconds, and bytes of memory."""
    if kind == "ours":
        from smdistributed.launch.data.objects import DataObject
        from smdistributed.launch.data.stores.download import Download
        from smdistributed.launch.data.stores.s3 import S3Settings, S3Store

        store = S3Store(bucket, S3Settings(url))
        listed = list(store.objects())
        objects = [DataObject(each.key, *each) for each in listed]
        before, began = memory("VmRSS"), time.perf_counter()
        Download(store, folder / "data", folder / "state", threads).run(objects)
    else:
        client = client_of(url)
        keys = [each["Key"] for each in client.list_objects_v2(Bucket=bucket)["Contents"]]
        (folder / "data").mkdir()

        def get(key: str) -> None:
            found = client.get_object(Bucket=bucket, Key=key)
            with (folder / "data" / key).open("wb") as file:
                if kind == "boto3":
                    shutil.copyfileobj(found["Body"], file, AT_ONCE)
                    return
                digest = hashlib.md5(usedforsecurity=False)
                while content := found["Body"].read(AT_ONCE):
                    file.write(content)
                    digest.update(content)
            assert digest.hexdigest() == found["ETag"].strip('"')

        before, began = memory("VmRSS"), time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(get, keys))
    took = time.perf_counter() - began
    print(json.dumps({"seconds": took, "grown": memory("VmHWM") - before}))


def measured(kind: str, url: str, bucket: str, threads: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--turn", kind, url, bucket, folder, str(threads)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        count, size = BUCKETS[bucket]
        for number in range(count):
            found = Path(folder, "data", f"{number:02}").read_bytes()
            assert found == content_of(number, size), "it is not what was put there"
        result: dict[str, float] = json.loads(done.stdout)
        return result


def main() -> None:
    if sys.argv[1:2] == ["--turn"]:
        kind, url, bucket, folder, threads = sys.argv[2:]
        turn(kind, url, bucket, Path(folder), int(threads))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=10)
    parser.add_argument("--md5", action="store_true", help="objects have no checksum but an MD5")
    arguments = parser.parse_args()
    kinds = ("ours", "boto3", "boto3+md5") if arguments.md5 else ("ours", "boto3")
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    with server() as url:
        client = client_of(
            url, request_checksum_calculation="when_required" if arguments.md5 else None
        )
        for bucket, (count, size) in BUCKETS.items():
            client.create_bucket(Bucket=bucket)
            for number in range(count):
                client.put_object(Bucket=bucket, Key=f"{number:02}", Body=content_of(number, size))
        for bucket, (count, size) in BUCKETS.items():
            turns: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
            for number in range(arguments.rounds + 1):  # the first one is not counted
                shift = number % len(kinds)
                for kind in (*kinds[shift:], *kinds[:shift]):
                    turns[kind].append(measured(kind, url, bucket, arguments.threads))
            turns = {kind: each[1:] for kind, each in turns.items()}
            for kind, each in turns.items():
                rates = [count * size / 1e6 / one["seconds"] for one in each]
                grown = max(one["grown"] for one in each) / 1e6
                print(
                    f"{bucket:5} {kind:9} {statistics.median(rates):7.1f} MB/s"
                    f" ({min(rates):.1f} to {max(rates):.1f}), grown by {grown:.1f} MB at most"
                )
            for peer in kinds[1:]:
                pairs = [
                    theirs["seconds"] / ours["seconds"]
                    for ours, theirs in zip(turns["ours"], turns[peer], strict=True)
                ]
                print(
                    f"{bucket:5} ours / {peer}, in pairs: {statistics.median(pairs):.3f}"
                    f" ({min(pairs):.3f} to {max(pairs):.3f})"
                )


if __name__ == "__main__":
    main()
