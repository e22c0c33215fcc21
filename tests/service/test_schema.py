"""The schema that is published, against what is answered."""

import os
import shutil
import socket
import threading

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from celrec.service.app import make_app
from celrec.service.guard import Limits
from celrec.service.service import Service

EXAMPLES = 300 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 12
PATHS = [
    *("/events", "/score", "/recommend", "/similar", "/explain", "/search"),
    *("/clusters", "/clusters/{cluster}", "/healthz", "/metrics"),
]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def address(online_once, tmp_path_factory):
    """Of a server in a thread."""
    folder = shutil.copytree(online_once, tmp_path_factory.mktemp("schema") / "online")
    app = make_app(Service(folder), Limits())
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def api(address):
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


@pytest.mark.parametrize("path", PATHS)
def test_no_answer_is_a_5xx_or_of_a_kind_that_is_not_declared(api, path):
    for operation in api[path].values():

        @given(case=operation.as_strategy())
        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
        def check(case):
            case.call_and_validate(checks=CHECKS)

        @given(case=operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), deadline=None)
        def check_wrong(case):
            case.call_and_validate(checks=CHECKS)

        check()
        if path not in ("/healthz", "/metrics"):  # of which nothing is asked
            check_wrong()


def test_every_endpoint_declares_its_answers_and_its_refusals(api):
    paths = api.raw_schema["paths"]
    assert set(paths) == set(PATHS)
    for path, verbs in paths.items():
        for about in verbs.values():
            assert about["description"]
            for status, answer in about["responses"].items():
                if status >= "400":
                    kind = answer["content"]["application/json"]["schema"]
                    assert kind == {"$ref": "#/components/schemas/Problem"}, (path, status)
    assert paths["/events"]["post"]["security"]
