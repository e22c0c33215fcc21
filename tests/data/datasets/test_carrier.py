import zipfile

import pytest

from celrec.data.datasets.dataset import Carrier
from celrec.data.download import DownloadError


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "into"
    path.mkdir()
    return path


def test_a_package_is_fetched_and_not_installed(make_wheel, folder):
    sha256 = make_wheel("tinycarrier", "1.2", {"tinycarrier/log.txt": "1\t2\t3\n"})
    wheel = Carrier("tinycarrier", "1.2", sha256).fetch(folder)
    assert wheel.parent == folder
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("tinycarrier/log.txt") == b"1\t2\t3\n"
    assert [path.name for path in folder.iterdir()] == ["tinycarrier-1.2-py3-none-any.whl"]


def test_a_package_with_another_checksum_is_refused(make_wheel, folder):
    make_wheel("tinycarrier", "1.2", {"tinycarrier/log.txt": "forged\n"})
    with pytest.raises(DownloadError, match=r"package tinycarrier 1\.2.*HASHES") as message:
        Carrier("tinycarrier", "1.2", "0" * 64).fetch(folder)
    assert "\n" not in str(message.value)
    assert list(folder.iterdir()) == []


def test_another_version_of_the_package_will_not_do(make_wheel, folder):
    sha256 = make_wheel("tinycarrier", "1.3", {"tinycarrier/log.txt": "newer\n"})
    with pytest.raises(DownloadError, match=r"package tinycarrier 1\.2.*pip cannot download"):
        Carrier("tinycarrier", "1.2", sha256).fetch(folder)


@pytest.mark.usefixtures("no_package_index")
def test_a_package_out_of_reach_is_reported(folder):
    with pytest.raises(DownloadError, match=r"package tinycarrier 1\.2.*pip cannot download"):
        Carrier("tinycarrier", "1.2", "0" * 64).fetch(folder)
