"""Brokers for the tests: a Redis server of their own, and Kafka as librdkafka plays it."""

import shutil
import socket
import subprocess
import time

import pytest


class RedisServer:
    """A Redis server on this machine that keeps everything on disk, so that it can be killed."""

    def __init__(self, folder):
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self):
        import redis

        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.DEVNULL)
        self.client = redis.Redis(port=self.port, protocol=2)
        for _ in range(500):
            try:
                self.client.ping()
            except redis.exceptions.ConnectionError:
                time.sleep(0.01)
            else:
                return
        raise RuntimeError("redis-server does not answer")

    def kill(self):
        self.client.close()
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    pytest.importorskip("redis", reason="the redis package is not installed")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def redis_stream(redis_server, request):
    """The server and a stream on it of this test's own."""
    return redis_server, f"events-{abs(hash(request.node.nodeid))}"


class KafkaCluster:
    """A broker that librdkafka plays inside of a producer, with four partitions for every topic."""

    partitions = 4

    def __init__(self):
        from confluent_kafka import Producer

        self.producer = Producer(
            {"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0}
        )
        brokers = self.producer.list_topics(timeout=10).brokers.values()
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)

    def create(self, topic):
        self.producer.list_topics(topic, timeout=10)

    def send(self, topic, *values, partition=None):
        """Write to one partition, or to all of them in turn."""
        for number, value in enumerate(values):
            place = number % self.partitions if partition is None else partition
            self.producer.produce(topic, value=value, partition=place)
        assert self.producer.flush(10) == 0


@pytest.fixture(scope="session")
def kafka_cluster():
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
    return KafkaCluster()


@pytest.fixture
def kafka_topic(kafka_cluster, request):
    """The cluster and a topic on it of this test's own."""
    topic = f"events-{abs(hash(request.node.nodeid))}"
    kafka_cluster.create(topic)
    return kafka_cluster, topic
