import pytest

from celrec.data.columns import Columns
from celrec.errors import CelrecError
from celrec.streams.file_source import FileSource, FolderSource, StandardInput, open_source
from celrec.streams.kafka_source import KafkaSource
from celrec.streams.redis_source import RedisSource


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("who,item,rating\n1,a,1\n")
    return path


def test_files_folders_and_standard_input_are_reported_apart(log, tmp_path):
    roles = Columns(user="who")
    for text in (str(log), log, [str(log)], [log, log]):
        source = open_source(text, roles)
        assert isinstance(source, FileSource)
        assert next(source.batches(5)).frame.rows() == [("1", "a", 1.0)]
    assert isinstance(open_source(str(tmp_path)), FolderSource)
    assert isinstance(open_source("-"), StandardInput)
    assert isinstance(open_source(["-"]), StandardInput)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://h:7000/3/clicks", "stream 'clicks' of Redis at h:7000, database 3"),
        ("redis://h/0/a%20b/c", "stream 'a b/c' of Redis at h:6379, database 0"),
        ("redis://h/clicks", "stream 'clicks' of Redis at h:6379, database 0"),
        ("redis://tom:s3cret@h/2?stream=x", "stream 'x' of Redis at h:6379, database 2"),
        ("rediss://h?stream=x&db=4", "stream 'x' of Redis at h:6379, database 4"),
        ("unix:///run/redis.sock?stream=x", "stream 'x' of Redis at /run/redis.sock, database 0"),
    ],
)
def test_addresses_of_redis_name_the_stream(text, shown):
    pytest.importorskip("redis", reason="the redis package is not installed")
    source = open_source(text)
    assert isinstance(source, RedisSource)
    assert str(source) == shown
    source.close()


def test_addresses_of_kafka_name_the_topic():
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    source = open_source("kafka://127.0.0.1:1,127.0.0.1:2/clicks")
    assert isinstance(source, KafkaSource)
    assert str(source) == "topic 'clicks' of Kafka at 127.0.0.1:1,127.0.0.1:2"
    source.close()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("redis://tom:s3cret@h:1/0", "no stream in the address"),
        ("redis://tom:s3cret@h:1", "no stream in the address"),
        ("unix:///run/redis.sock", "no stream in the address"),
        ("redis://tom:s3cret/%@h/0/x", "not an address of Redis"),
        ("redis://[tom:s3cret/0/x", "not an address"),
        ("kafka://h:1", "no topic in the address"),
        ("kafka://tom:s3cret@h:1/x", "must not contain user and password"),
        ("amqp://tom:s3cret@h/x", "amqp:// is unknown"),
        (["redis://tom:s3cret@h/0/x", "log.csv"], "must all be files"),
        (["-", "log.csv"], "must all be files"),
        ("nothing.csv", "nothing.csv: no such file"),
        ([], "no files given"),
    ],
)
def test_what_cannot_be_opened_is_reported_without_credentials(text, problem):
    pytest.importorskip("redis", reason="the redis package is not installed")
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    with pytest.raises(CelrecError) as caught:
        open_source(text)
    assert problem in str(caught.value)
    assert "s3cret" not in str(caught.value)
