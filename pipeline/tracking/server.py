"""MLflow's own web server over a store of records, as a process that ends with the block."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final

import httpx

from pipeline.settings.program import hint
from pipeline.tracking.mlflow_store import artifact_folder, local_database
from pipeline.tracking.mlflow_view import TAG, all_runs, of_sweep, view_page
from workflows.errors import CadreError, UsageError

FIRST_PORT: Final = 5000
PORTS_TRIED: Final = 20
START_SECONDS: Final = 90.0  # it imports for ten seconds on two busy cores
STOP_SECONDS: Final = 10.0

# What the page needs none of: jobs, which are processes of their own, and word to the makers of MLflow.
_ENVIRONMENT: Final = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


@contextmanager
def serving(
    uri: str, host: str, port: int | None, *, anyone: bool = False
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A running MLflow server for a store, and its address; it ends with the block."""
    _check_host(host, anyone)
    database = local_database(uri)
    if database is not None and not database.is_file():
        raise UsageError(
            f"there is no record at {database}; a run makes one (`{hint('run iteration')}`), "
            "--root or --uri names another"
        )
    port = _free_port(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    if (artifacts := artifact_folder(uri)) is not None:
        command += ["--no-serve-artifacts", "--default-artifact-root", artifacts]
    if anyone:
        command += ["--allowed-hosts", "*"]
    environment = {**os.environ, **{k: os.environ.get(k, v) for k, v in _ENVIRONMENT.items()}}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # so that Ctrl-C reaches us alone, and we end all of its processes
        )
        try:
            _wait_until_it_answers(process, address, log)
            yield process, address
        finally:
            _end(process)


def newest_page(address: str) -> str:
    """The part of a link after the address: the training runs of the experiment that has the newest run.

    A sweep's runs are shown by what it varies. Empty where the store has no run.
    """
    try:
        experiments = _asked(address, "experiments/search", {"max_results": 1000}).get("experiments", [])
        tags = {e["experiment_id"]: {t["key"] for t in e.get("tags", ())} for e in experiments}
        runs = _asked(
            address,
            "runs/search",
            {"experiment_ids": list(tags), "max_results": 1, "order_by": ["attributes.start_time DESC"]},
        ).get("runs", [])
    except httpx.HTTPError:
        return ""
    if not runs:
        return ""
    experiment_id = runs[0]["info"]["experiment_id"]
    run_tags = {t["key"]: t["value"] for t in runs[0]["data"].get("tags", ())}
    views = [of_sweep(run_tags["sweep"], ())] if "sweep" in run_tags else []
    keys = [v.key for v in (*views, all_runs()) if f"{TAG}{v.key}" in tags[experiment_id]]
    return view_page(experiment_id, keys[0] if keys else None)


def _asked(address: str, what: str, body: dict[str, Any]) -> dict[str, Any]:
    """What MLflow's server answers, as it answers its own page."""
    url = f"{address}/api/2.0/mlflow/{what}"
    answer = httpx.post(url, json=body, timeout=20, trust_env=False).raise_for_status()
    data: dict[str, Any] = answer.json()
    return data


def _wait_until_it_answers(process: subprocess.Popen[bytes], address: str, log: IO[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{address}/health", timeout=2, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    log.seek(0)
    words = log.read().decode("utf-8", "replace").strip()
    raise CadreError(f"the MLflow server at {address} does not start; its last words:\n{words[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _check_host(host: str, anyone: bool) -> None:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and not anyone:
        raise UsageError(
            f"--host {host}: everybody who reaches that address could read and change the record, as MLflow "
            "asks for no password; use 127.0.0.1 and an SSH tunnel, or add --anyone"
        )


def _free_port(host: str, port: int | None) -> int:
    ports = range(FIRST_PORT, FIRST_PORT + PORTS_TRIED) if port is None else [port]
    for candidate in ports:
        free = _bound(host, candidate)
        if free is not None:
            return free
    remedy = "leave --port out for one that is free" if port is not None else "name another with --port"
    raise UsageError(f"port {ports[0]} of {host} is taken; {remedy}")


def _bound(host: str, port: int) -> int | None:
    """The port, if it can be bound now; 0 gives a free one."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            return int(probe.getsockname()[1])
    except OSError:
        return None
