"""What tests of several rooms share: isolation from the machine, a publisher and a package."""

import base64
import hashlib
import itertools
import os
import re
import shutil
import signal
import socket
import threading
import zipfile
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer

import pytest
from hypothesis import settings

# A shell lets what it starts in the background ignore interrupts, and so would what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The first example of a test may compile a loop, which says nothing about the others.
settings.register_profile("celrec", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "celrec"))

_DATA = os.environ.get("CELREC_DATA")  # before the tests are cut off from it


@pytest.fixture(scope="session")
def caches(tmp_path_factory):
    """Beside the other folders: a new name among thousands takes long to find."""
    return tmp_path_factory.mktemp("caches"), itertools.count()


@pytest.fixture(autouse=True)
def cache(monkeypatch, caches):
    """An empty cache folder for every test: the user's own is never touched."""
    home, numbers = caches
    folder = home / str(next(numbers))
    folder.mkdir()
    monkeypatch.setenv("CELREC_CACHE", str(folder))
    monkeypatch.delenv("CELREC_DATA", raising=False)
    for name in ("no_proxy", "NO_PROXY"):  # the local server is not to be reached by a proxy
        monkeypatch.setenv(name, "127.0.0.1")
    return folder


@pytest.fixture
def data_folder(cache, monkeypatch):  # noqa: ARG001  (its isolation comes first)
    """The folder of real data sets that CELREC_DATA names."""
    if not _DATA:
        pytest.skip("CELREC_DATA is not set: no real data to test with")
    folder = Path(_DATA).resolve()
    if not folder.is_dir():
        pytest.skip(f"CELREC_DATA names {_DATA!r}, which is no folder")
    monkeypatch.setenv("CELREC_DATA", str(folder))
    return folder


@dataclass
class _Publication:
    """A file on the server, and how well the server behaves."""

    content: bytes
    etag: str | None = '"first"'
    modified: str | None = None
    ranges: bool = True
    """Whether a request for a part is answered with that part."""
    length: bool = True
    """Whether the answer says how long it is."""
    failures: deque[int] = field(default_factory=deque)
    """Status codes that the next requests get."""
    drops: deque[int] = field(default_factory=deque)
    """After how many bytes the connections of the next requests break."""
    stalls_after: int | None = None
    """After how many bytes the server falls silent, until the test releases it."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server.publisher
        server.requests.append(dict(self.headers))
        file = server.files.get(self.path[1:])
        if file is None:
            return self._refuse(404)
        if file.failures:
            return self._refuse(file.failures.popleft())
        content, start = file.content, self._start(file)
        if start is None:
            self.send_response(200)
        elif start >= len(content):
            return self._refuse(416)
        else:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            content = content[start:]
        if file.etag:
            self.send_header("ETag", file.etag)
        if file.modified:
            self.send_header("Last-Modified", file.modified)
        if file.length:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if file.drops:
            content = content[: file.drops.popleft()]
        if file.stalls_after is not None:
            self.wfile.write(content[: file.stalls_after])
            content = content[file.stalls_after :]
            server.released.wait(60)
        self.wfile.write(content)
        return None

    def _start(self, file):
        """Where the part that is asked for begins, None if the whole file is due."""
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        current = self.headers.get("If-Range") in (None, file.etag or file.modified)
        return int(wanted[1]) if wanted and file.ranges and current else None

    def _refuse(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class _Server(ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, *_):
        pass  # clients that go away in the middle are what some tests are about


class _Publisher:
    """A web server on this machine."""

    def __init__(self):
        self.files = {}
        self.requests = []
        """The headers of every request."""
        self.released = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.publisher = self
        # Asked often whether to stop, it stops at once.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,))
        self._thread.start()

    def publish(self, name, content, **behaviour):
        """The address of a new file."""
        self.files[name] = _Publication(content, **behaviour)
        return self.url(name)

    def url(self, name):
        return f"http://127.0.0.1:{self._server.server_address[1]}/{name}"

    @property
    def ranges(self):
        """The Range header of every request, None where there was none."""
        return [headers.get("Range") for headers in self.requests]

    def stop(self):
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def publisher():
    server = _Publisher()
    yield server
    server.stop()


@pytest.fixture
def closed_port():
    """A port of this machine on which nobody answers."""
    with socket.socket() as bound:  # bound and not listening: nobody else can take it meanwhile
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def make_zip(tmp_path):
    """A function that makes an archive from its name and its members' contents."""

    def make(name, members):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, content in members.items():
                archive.writestr(member, content)
        return path

    return make


@pytest.fixture
def make_wheel(make_zip, no_package_index, monkeypatch):  # noqa: ARG001
    """A function that makes a wheel which pip finds, and gives the wheel's sha256."""

    def make(package, version, members):
        info = f"{package}-{version}.dist-info"
        members = {
            **members,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: celrec\n"
            "Root-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},{_record(text)}\n" for name, text in members.items())
        members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
        wheel = make_zip(f"wheels/{package}-{version}-py3-none-any.whl", members)
        monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
        return hashlib.sha256(wheel.read_bytes()).hexdigest()

    return make


def _record(text):
    content = text.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"sha256={digest},{len(content)}"


@pytest.fixture
def no_package_index(monkeypatch):
    """Keeps pip from the network and from the machine's own settings."""
    for name in os.environ:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture(scope="module")  # while it runs, no other event loop can
def browser():
    """The Chromium of the machine, without a window; nothing is downloaded."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium on the PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Inside of a container, which is what keeps it apart, its own sandbox cannot start.
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser):
    """A function that opens an address in a new window; in the end nothing may have gone wrong.

    Errors of scripts and what the console was told to complain about are failures.
    """
    contexts, complaints = [], []

    def open_it(address, **how):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **how})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console",
            lambda told: (
                complaints.append(told.text) if told.type in ("error", "warning") else None
            ),
        )
        page.goto(address)
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []
