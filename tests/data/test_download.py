import gc
import hashlib
import random
import subprocess
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celrec.data.download import DownloadError, download
from celrec.errors import CelrecError

CHUNK = 1 << 18  # what a download writes at once
CONTENT = random.Random(0).randbytes(4 * CHUNK + 1234)  # noqa: S311
OTHER = random.Random(1).randbytes(3 * CHUNK)  # noqa: S311
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()

CHILD = """
import sys
from pathlib import Path
from celrec.data.download import download
download(sys.argv[1], Path(sys.argv[2]), progress=lambda done, total: print(done, flush=True))
"""


@pytest.fixture
def destination(tmp_path):
    return tmp_path / "made/on/demand/file.bin"


@pytest.fixture
def stalled_child(publisher, destination):
    """A process that has written three chunks and waits for a server that has fallen silent."""
    url = publisher.publish("file.bin", CONTENT, stalls_after=3 * CHUNK + 100)
    command = [sys.executable, "-c", CHILD, url, str(destination)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            for line in child.stdout:
                if int(line) >= 3 * CHUNK:
                    break
            yield child
        finally:
            child.kill()


def part_of(destination):
    return destination.with_name(destination.name + ".part")


def left_beside(destination):
    return sorted(path.name for path in destination.parent.iterdir())


def leave_part(destination, content, tag):
    destination.parent.mkdir(parents=True)
    part_of(destination).write_bytes(content)
    if tag:
        part_of(destination).with_name("file.bin.part.tag").write_text(tag)


def withdraw(publisher):
    publisher.files["file.bin"].failures.append(404)


def get(url, destination, **how):
    download(url, destination, patience=0.0, **how)


@pytest.mark.parametrize("content", [CONTENT, b"x", b""])
def test_a_file_arrives_whole_and_nothing_else_is_left(publisher, destination, content):
    get(publisher.publish("file.bin", content), destination)
    assert destination.read_bytes() == content
    assert left_beside(destination) == ["file.bin"]


def test_the_right_checksum_is_accepted(publisher, destination):
    get(publisher.publish("file.bin", CONTENT), destination, checksum=SHA256)
    assert destination.read_bytes() == CONTENT


def test_other_algorithms_of_checksums_are_understood(publisher, destination):
    checksum = "md5:" + hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
    get(publisher.publish("file.bin", CONTENT), destination, checksum=checksum)
    assert destination.read_bytes() == CONTENT


def test_a_wrong_checksum_is_reported_and_leaves_nothing(publisher, destination):
    url = publisher.publish("file.bin", OTHER)
    with pytest.raises(DownloadError) as error:
        get(url, destination, checksum=SHA256)
    got = "sha256:" + hashlib.sha256(OTHER).hexdigest()
    assert url in str(error.value)
    assert f"expected {SHA256}" in str(error.value)
    assert f"got {got}" in str(error.value)
    assert left_beside(destination) == []


def test_after_a_wrong_checksum_the_next_download_starts_afresh(publisher, destination):
    with pytest.raises(DownloadError):
        get(publisher.publish("file.bin", OTHER), destination, checksum=SHA256)
    get(publisher.publish("file.bin", CONTENT), destination, checksum=SHA256)
    assert destination.read_bytes() == CONTENT


def test_a_broken_connection_is_taken_up_where_it_broke(publisher, destination):
    url = publisher.publish("file.bin", CONTENT)
    publisher.files["file.bin"].drops.extend([CHUNK + 17, 5])
    get(url, destination, checksum=SHA256)
    assert destination.read_bytes() == CONTENT
    assert publisher.ranges == [None, f"bytes={CHUNK + 17}-", f"bytes={CHUNK + 22}-"]
    assert publisher.requests[1]["If-Range"] == '"first"'


def test_a_connection_may_break_any_number_of_times_while_there_is_progress(publisher, destination):
    url = publisher.publish("file.bin", CONTENT[:100])
    publisher.files["file.bin"].drops.extend([5] * 19)
    get(url, destination)
    assert destination.read_bytes() == CONTENT[:100]


def test_a_date_of_change_serves_to_resume_where_there_is_no_tag(publisher, destination):
    moment = "Wed, 21 Oct 2015 07:28:00 GMT"
    url = publisher.publish("file.bin", CONTENT, etag=None, modified=moment)
    publisher.files["file.bin"].drops.append(CHUNK)
    get(url, destination)
    assert destination.read_bytes() == CONTENT
    assert publisher.ranges == [None, f"bytes={CHUNK}-"]
    assert publisher.requests[1]["If-Range"] == moment


@pytest.mark.parametrize("tag", ['W/"weak"', None])
def test_without_a_strong_tag_a_broken_download_starts_again(publisher, destination, tag):
    url = publisher.publish("file.bin", CONTENT, etag=tag)
    publisher.files["file.bin"].drops.append(CHUNK)
    get(url, destination)
    assert destination.read_bytes() == CONTENT
    assert publisher.ranges == [None, None]


def test_a_killed_download_is_taken_up_by_the_next_process(publisher, destination, stalled_child):
    stalled_child.kill()
    stalled_child.wait(30)
    assert not destination.exists()
    assert part_of(destination).read_bytes() == CONTENT[: 3 * CHUNK]
    publisher.released.set()
    get(publisher.url("file.bin"), destination, checksum=SHA256)
    assert destination.read_bytes() == CONTENT
    assert publisher.ranges == [None, f"bytes={3 * CHUNK}-"]
    assert left_beside(destination) == ["file.bin"]


@pytest.mark.usefixtures("stalled_child")
def test_two_processes_do_not_fetch_one_file_at_once(publisher, destination):
    with pytest.raises(CelrecError, match="another process is fetching this file") as error:
        get(publisher.url("file.bin"), destination)
    assert not isinstance(error.value, DownloadError)  # another source would be no help
    assert str(part_of(destination)) in str(error.value)
    assert part_of(destination).read_bytes() == CONTENT[: 3 * CHUNK]
    assert len(publisher.requests) == 1


def test_a_file_that_changed_on_the_server_is_fetched_from_the_start(publisher, destination):
    leave_part(destination, OTHER[: 2 * CHUNK], '"old"')
    get(publisher.publish("file.bin", CONTENT, etag='"new"'), destination, checksum=SHA256)
    assert destination.read_bytes() == CONTENT
    assert publisher.ranges == [f"bytes={2 * CHUNK}-"]


def test_a_file_that_became_shorter_is_not_left_with_an_old_tail(publisher, destination):
    leave_part(destination, OTHER, '"old"')
    get(publisher.publish("file.bin", b"short", etag='"new"'), destination)
    assert destination.read_bytes() == b"short"


def test_a_tag_is_forgotten_with_the_bytes_that_it_was_for(publisher, destination):
    leave_part(destination, OTHER[:CHUNK], '"old"')
    url = publisher.publish("file.bin", CONTENT, etag=None)
    publisher.files["file.bin"].drops.append(2 * CHUNK)
    with pytest.raises(DownloadError):
        get(url, destination, progress=lambda *_: withdraw(publisher))
    # The first file is back under its tag, which says nothing of the bytes fetched in between.
    get(publisher.publish("file.bin", OTHER, etag='"old"'), destination)
    assert destination.read_bytes() == OTHER


def test_a_part_without_a_tag_is_not_trusted(publisher, destination):
    leave_part(destination, OTHER[:CHUNK], None)
    get(publisher.publish("file.bin", CONTENT), destination)
    assert destination.read_bytes() == CONTENT
    assert publisher.ranges == [None]


def test_a_server_that_always_sends_the_whole_file_will_do(publisher, destination):
    url = publisher.publish("file.bin", CONTENT, ranges=False)
    publisher.files["file.bin"].drops.append(CHUNK)
    get(url, destination, checksum=SHA256)
    assert destination.read_bytes() == CONTENT
    assert publisher.ranges == [None, f"bytes={CHUNK}-"]


def test_a_part_as_long_as_the_file_is_fetched_again(publisher, destination):
    leave_part(destination, OTHER, '"first"')  # the server has nothing after it: 416
    get(publisher.publish("file.bin", OTHER[::-1]), destination)
    assert destination.read_bytes() == OTHER[::-1]
    assert publisher.ranges == [f"bytes={len(OTHER)}-", None]


def test_an_answer_that_does_not_say_its_length_will_do(publisher, destination):
    seen = []
    url = publisher.publish("file.bin", CONTENT, length=False)
    get(url, destination, checksum=SHA256, progress=lambda *how_far: seen.append(how_far))
    assert destination.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_refusal_is_reported_at_once(publisher, destination, status):
    url = publisher.publish("file.bin", CONTENT)
    publisher.files["file.bin"].failures.append(status)
    with pytest.raises(DownloadError, match=f"the server answers {status}") as error:
        get(url, destination)
    assert url in str(error.value)
    assert len(publisher.requests) == 1
    assert left_beside(destination) == []


@pytest.mark.parametrize("status", [404, 416, 500])
def test_a_connection_is_closed_after_an_error(publisher, destination, status):
    leave_part(destination, CONTENT[:CHUNK], '"first"')
    url = publisher.publish("file.bin", CONTENT)
    publisher.files["file.bin"].failures.append(status)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with suppress(DownloadError):
            get(url, destination)
        gc.collect()
    assert [str(warning.message) for warning in heard] == []


def test_a_server_in_trouble_is_asked_again(publisher, destination):
    url = publisher.publish("file.bin", CONTENT)
    publisher.files["file.bin"].failures.extend([500, 503, 502, 500])
    get(url, destination, checksum=SHA256)
    assert destination.read_bytes() == CONTENT
    assert len(publisher.requests) == 5


def test_a_server_that_stays_in_trouble_is_given_up(publisher, destination):
    url = publisher.publish("file.bin", CONTENT)
    publisher.files["file.bin"].failures.extend([500] * 100)
    with pytest.raises(DownloadError, match="cannot be reached") as error:
        get(url, destination)
    assert url in str(error.value)
    assert len(publisher.requests) == 5


def test_a_server_that_never_gets_further_is_given_up(publisher, destination):
    # No part of the file can be kept between tries, and every other try gets a little further
    # than the one before, so none of them is progress.
    url = publisher.publish("file.bin", CONTENT, etag=None)
    publisher.files["file.bin"].drops.extend([60, 40] * 20)
    with pytest.raises(DownloadError):
        get(url, destination)
    assert len(publisher.requests) < 10


def test_a_connection_that_is_refused_is_reported_at_once(destination, closed_port):
    url = f"http://127.0.0.1:{closed_port}/file.bin"
    with pytest.raises(DownloadError, match="refused") as error:
        # To wait this long is an OverflowError at once, so a single wait would fail the test.
        download(url, destination, patience=1e12)
    assert url in str(error.value)
    assert left_beside(destination) == []


def test_progress_only_grows_and_ends_at_the_total(publisher, destination):
    seen = []
    url = publisher.publish("file.bin", CONTENT)
    publisher.files["file.bin"].drops.extend([CHUNK + 17, CHUNK])
    get(url, destination, progress=lambda *how_far: seen.append(how_far))
    done = [so_far for so_far, _ in seen]
    assert done == sorted(set(done))
    assert {total for _, total in seen} == {len(CONTENT)}
    assert done[-1] == len(CONTENT)


def test_the_destination_does_not_exist_before_it_is_complete(publisher, destination):
    early = []
    url = publisher.publish("file.bin", CONTENT)
    publisher.files["file.bin"].drops.append(CHUNK)
    get(url, destination, progress=lambda *_: early.append(destination.exists()))
    assert len(early) > 3
    assert not any(early)
    assert destination.exists()


def test_a_failed_download_leaves_an_older_file_alone(publisher, destination):
    destination.parent.mkdir(parents=True)
    destination.write_bytes(b"older")
    with pytest.raises(DownloadError):
        get(publisher.publish("file.bin", OTHER), destination, checksum=SHA256)
    assert destination.read_bytes() == b"older"


def test_a_folder_that_cannot_be_written_to_is_reported(publisher, tmp_path):
    url = publisher.publish("file.bin", CONTENT)
    # A folder without permissions would not stop a test that runs as root; this stops anybody.
    (tmp_path / "file.txt").write_text("no folder")
    folder = tmp_path / "file.txt/sub"
    with pytest.raises(CelrecError, match="CELREC_CACHE") as error:
        get(url, folder / "file.bin")
    assert str(folder) in str(error.value)
    assert not isinstance(error.value, DownloadError)
    assert publisher.requests == []


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    size=st.integers(1, 3000),
    drops=st.lists(st.integers(0, 900), max_size=4),
    etag=st.sampled_from(['"strong"', 'W/"weak"', None]),
    ranges=st.booleans(),
)
def test_however_a_connection_breaks_the_bytes_are_right(
    publisher, tmp_path, size, drops, etag, ranges
):
    path = Path(tmp_path / "file.bin")
    path.unlink(missing_ok=True)
    url = publisher.publish("file.bin", CONTENT[:size], etag=etag, ranges=ranges)
    publisher.files["file.bin"].drops.extend(drops)
    get(url, path)
    assert path.read_bytes() == CONTENT[:size]
    assert left_beside(path) == ["file.bin"]
