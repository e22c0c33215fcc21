import ast
import errno
import inspect
import json
import math
import os
import pickle
import resource
import struct
import subprocess
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from celrec import CelrecError
from celrec.cel.clusterer import Clusterer
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.runtime import state_file
from celrec.runtime.state_file import load_state, save_state

DTYPES = [getattr(torch, name) for name in state_file.DTYPES]


@pytest.fixture(autouse=True, scope="module")
def in_haste():
    """Flushing guards against a loss of power, which no test here brings about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _handle: None)
        yield


def random_tensor(dtype, shape, seed=0):
    """Any bits at all, nan and denormal numbers among them."""
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype is torch.bool else 256
    size = (math.prod(shape) * dtype.itemsize,)
    flat = torch.randint(0, high, size, dtype=torch.uint8, generator=generator)
    return flat.view(dtype).reshape(shape)


def bits(tensor):
    return (
        tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).tolist()
    )


def assert_same(found, wanted):
    if isinstance(wanted, torch.Tensor):
        assert type(found) is torch.Tensor
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert bits(found) == bits(wanted)
        return
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert [*found] == [*wanted]
        assert [type(key) for key in found] == [type(key) for key in wanted]
        assert_same([*found.values()], [*wanted.values()])
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, float) and not math.isnan(wanted):
        assert struct.pack("d", found) == struct.pack("d", wanted)
    elif isinstance(wanted, float):
        assert math.isnan(found)
    else:
        assert found == wanted


def round_trip(state):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state")
        save_state(path, state)
        assert [*Path(folder).iterdir()] == [path]
        return load_state(path)


texts = st.text(st.characters(exclude_categories=()), max_size=5) | st.sampled_from(
    ["dict", "tensor", "int", "nan", "0", "-1", '{"tensor": "0"}', "\ud83d\ude00", "\udc80", "a\nb"]
)
integers = st.integers() | st.sampled_from([2**63 - 1, 2**63, -(2**63)])
tensors = st.builds(
    lambda dtype, shape, seed, turned: random_tensor(dtype, shape, seed).permute(
        [*range(len(shape))][::turned]
    ),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 9),
    st.sampled_from([1, -1]),
)
leaves = st.none() | st.booleans() | integers | st.floats() | texts | tensors


def nested(inner):
    few = {"max_size": 3}
    return (
        st.lists(inner, **few)
        | st.lists(inner, **few).map(tuple)
        | st.dictionaries(texts, inner, **few)
        | st.dictionaries(integers, inner, **few)
    )


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(texts, st.recursive(leaves, nested, max_leaves=12), max_size=4))
@example({"dict": {"tensor": "0"}, "list": [["dict", []]], "0": {0: {"0": ()}}})
@example({"floats": [math.nan, math.inf, -math.inf, -0.0, 5e-324, 0.1 + 0.2]})
@example({})
def test_what_is_loaded_is_what_was_saved(state):
    assert_same(round_trip(state), state)


def test_a_number_of_any_length_comes_back():
    state = {"a": [10**5000, -(10**5000)], "b": {10**5000: 1}}
    assert round_trip(state) == state


def test_every_dtype_in_every_shape_keeps_its_bits():
    shapes = [(2, 3), (1,), (0, 3), ()]
    state = {
        f"{dtype} {shape}": random_tensor(dtype, shape) for dtype in DTYPES for shape in shapes
    }
    assert {torch.bfloat16, torch.bool, torch.uint8, torch.int64} < set(DTYPES)
    assert_same(round_trip(state), state)


def test_views_are_saved_as_what_they_show():
    base = torch.arange(24.0).reshape(4, 6)
    numbers = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    state = {
        "whole": base,
        "again": base,
        "turned": base.T,
        "part": base[1:3, ::2],
        "repeated": base[0].expand(3, 6),
        "conjugate": numbers.conj(),
        "negative": numbers.conj().imag,
        "parameter": nn.Parameter(base),
    }
    loaded = round_trip(state)
    assert_same(loaded, {**state, "parameter": base})
    assert not loaded["parameter"].requires_grad
    loaded["whole"].zero_()
    assert torch.equal(loaded["again"], base)


def test_loaded_tensors_are_free_of_the_file(tmp_path):
    path = tmp_path / "state"
    save_state(path, {"a": torch.arange(100)})
    loaded = load_state(path)["a"]
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert torch.equal(loaded, torch.arange(100))


def test_a_mapping_comes_back_as_a_dict(tmp_path):
    save_state(str(tmp_path / "new" / "state"), OrderedDict(b=OrderedDict({1: 2}), a=1))
    assert_same(load_state(str(tmp_path / "new" / "state")), {"b": {1: 2}, "a": 1})


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.01),
    ],
)
def test_training_goes_on_as_if_it_had_never_stopped(make, tmp_path):
    def start():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))
        return model, make(model.parameters()), torch.Generator().manual_seed(1)

    def train(model, optimizer, generator):
        for _ in range(5):
            loss = model(torch.randn(8, 4, generator=generator)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    model, optimizer, generator = start()
    train(model, optimizer, generator)
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
    }
    save_state(tmp_path / "state", state)
    train(model, optimizer, generator)

    other, other_optimizer, other_generator = start()
    loaded = load_state(tmp_path / "state")
    other.load_state_dict(loaded["model"])
    other_optimizer.load_state_dict(loaded["optimizer"])
    other_generator.set_state(loaded["generator"])
    train(other, other_optimizer, other_generator)
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
    assert_same(other_optimizer.state_dict(), optimizer.state_dict())
    assert torch.equal(other_generator.get_state(), generator.get_state())


def test_a_clusterer_and_its_table_come_back():
    table = ClusteredEmbedding(8, 2, max_clusters=4)
    clusterer = Clusterer(table, None, lambda rows: table(rows).sum(-1), seed=3)
    for _ in range(12):
        clusterer.step(torch.arange(8))
    loaded = round_trip({"table": table.state_dict(), "clusterer": clusterer.state_dict()})
    assert_same(loaded["table"], dict(table.state_dict()))
    other = Clusterer(table, None, lambda rows: table(rows).sum(-1))
    other.load_state_dict(loaded["clusterer"])
    assert_same(other.state_dict(), clusterer.state_dict())


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({1}, r"state\.optimizer\.foo: cannot save a set; make it"),
        ([1, {"a": (b"x",)}], r"state\.optimizer\.foo\[1\]\.a\[0\]: cannot save a bytes"),
        ({3: {"a\nb": 1j}}, r"state\.optimizer\.foo\[3\]\['a\\nb'\]: cannot save a complex"),
        (np.float64(1), r"foo: cannot save a float64"),
        (np.zeros(2), r"foo: cannot save a ndarray"),
        (torch.Size([1]), r"foo: cannot save a Size"),
        ({(1, 2): 3}, r"foo: cannot save a key of type tuple; make it a str or an int"),
        ({True: 3}, r"foo: cannot save a key of type bool"),
        (torch.eye(2).to_sparse(), r"foo: cannot save a sparse_coo tensor of float32 on cpu"),
        (torch.empty(2, device="meta"), r"foo: cannot save a strided tensor of float32 on meta"),
        (torch.zeros(2, dtype=torch.complex128), r"foo: cannot save a strided .* complex128"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place(value, reason, tmp_path):
    save_state(tmp_path / "state", {"a": 1})
    with pytest.raises(CelrecError, match=reason) as error:
        save_state(tmp_path / "state", {"optimizer": {"foo": value}})
    assert "\n" not in str(error.value)
    assert load_state(tmp_path / "state") == {"a": 1}


def test_a_state_that_contains_itself_and_a_state_that_is_no_dict_are_refused(tmp_path):
    state = {}
    state["a"] = [state]
    with pytest.raises(CelrecError, match="contains itself"):
        save_state(tmp_path / "state", state)
    with pytest.raises(CelrecError, match="state must be a dict, not a list"):
        save_state(tmp_path / "state", [1])
    assert not any(tmp_path.iterdir())


def test_the_deepest_state_that_can_be_saved_can_be_loaded():
    state = {}
    for turn in range(state_file.MAX_DEPTH // 2):
        state = {"a": (state,)} if turn % 2 else {"a": [state]}
    assert round_trip(state) == state


def assert_unreadable(path, reason):
    with pytest.raises(CelrecError, match=reason) as error:
        load_state(path)
    message = str(error.value)
    assert message.startswith(f"{path}: cannot read a training state (")
    assert message.endswith("; remove it to start from scratch")
    assert "\n" not in message


def write_by_hand(path, skeleton, **metadata):
    tensors = {"0": torch.ones(2)}
    text = json.dumps(skeleton)
    check = state_file.state_checksum(text, tensors)
    known = {"celrec_format": "1", "celrec_state": text, "crc32": check}
    save_file(tensors, path, metadata={**known, **metadata})


def test_a_missing_file_a_folder_and_a_stranger_are_refused(tmp_path):
    assert_unreadable(tmp_path / "nothing", r"\(No such file or directory\)")
    assert_unreadable(tmp_path, r"\(Is a directory\)")
    save_file({"a": torch.ones(2)}, tmp_path / "stranger")
    assert_unreadable(tmp_path / "stranger", "is not a training state")
    (tmp_path / "text").write_text("some words\nand more")
    assert_unreadable(tmp_path / "text", "header")


@pytest.mark.parametrize(
    ("skeleton", "metadata", "reason"),
    [
        ({"dict": []}, {"celrec_format": "99"}, r"in format '99', expected '1'"),
        ({"dict": [["a", {"tensor": "7"}]]}, {}, r"there is no tensor '7' in it"),
        ({"dict": [["a", {"code": "1"}]]}, {}, r"there is no code '1' in it"),
        ({"dict": [["a", {"tensor": ["0"]}]]}, {}, r"unhashable"),
        ({"dict": [["a", {"int": "exit()"}]]}, {}, r"invalid literal"),
        ({"dict": [["a", {"str": "zz"}]]}, {}, r"non-hexadecimal"),
        ({"dict": [["a", {"int": "1", "str": "1"}]]}, {}, r"too many values"),
        ({"dict": [[["a"], 1]]}, {}, r"unhashable"),
        ({"dict": [["a"]]}, {}, r"not enough values"),
        ({"dict": 1}, {}, r"not iterable"),
        ([1], {}, r"it contains no dict"),
        ({"dict": []}, {"crc32": "00000000"}, r"the checksum differs"),
        ({"dict": []}, {"celrec_state": '{"dict": [["a", 1]]}'}, r"the checksum differs"),
    ],
)
def test_a_skeleton_that_makes_no_sense_is_refused(skeleton, metadata, reason, tmp_path):
    write_by_hand(tmp_path / "state", skeleton, **metadata)
    assert_unreadable(tmp_path / "state", reason)


def test_a_skeleton_without_end_is_refused(tmp_path):
    skeleton = []
    for _ in range(300):
        skeleton = [skeleton]
    text = json.dumps(skeleton).replace("[]", "[" * 100_000)
    check = state_file.state_checksum(text, {"0": torch.ones(2)})
    write_by_hand(tmp_path / "state", [], celrec_state=text, crc32=check)
    assert_unreadable(tmp_path / "state", "recursion")


def test_a_dtype_that_torch_lacks_is_refused(tmp_path):
    header = b'{"0":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    (tmp_path / "state").write_bytes(len(header).to_bytes(8, "little") + header + bytes(3))
    assert_unreadable(tmp_path / "state", "F6_E2M3")


def test_a_skeleton_written_by_hand_is_read(tmp_path):
    write_by_hand(tmp_path / "state", {"dict": [["a", {"tensor": "0"}]]})
    assert_same(load_state(tmp_path / "state"), {"a": torch.ones(2)})


def test_any_cut_and_any_flipped_bit_is_noticed(tmp_path):
    path = tmp_path / "state"
    save_state(path, {"a": torch.arange(3), "b": [torch.zeros(0, 2), 7, {1: "x"}]})
    whole = path.read_bytes()
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        assert_unreadable(path, "deserializing|checksum|not a training state|format")
    for position in range(len(whole)):
        for bit in (0, 1, position % 6 + 2):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            assert_unreadable(path, "deserializing|checksum|not a training state|format")
    path.write_bytes(whole + b"\0")
    assert_unreadable(path, "deserializing|checksum|not a training state|format")


KILLER = """
import os, random, signal, sys, time
import torch
from celrec.runtime.state_file import load_state, save_state

def state(n):
    return {"n": n, "table": torch.full((100_000,), n), "list": [(n,)] * 1000}

torch.set_num_threads(1)  # threads do not survive a fork
os.fsync = lambda handle: None  # the kernel outlives the kill
path, chance = sys.argv[1], random.Random(0)
save_state(path, state(0))
for _ in range(12):
    reached = load_state(path)["n"]
    child = os.fork()
    if child == 0:
        while True:
            reached += 1
            save_state(path, state(reached))
    deadline = time.monotonic() + 10
    try:
        while load_state(path)["n"] == reached and time.monotonic() < deadline:
            pass  # what is read meanwhile is whole, too
        time.sleep(chance.uniform(0, 0.05))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    loaded = load_state(path)
    assert loaded["n"] > reached
    assert loaded["list"] == state(loaded["n"])["list"]
    assert torch.equal(loaded["table"], state(loaded["n"])["table"])
print(loaded["n"])
"""


def test_a_kill_at_any_moment_leaves_a_whole_state(tmp_path):
    path = tmp_path / "state"
    command = [sys.executable, "-c", KILLER, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert load_state(path)["n"] == int(done.stdout)


@pytest.mark.parametrize("limit", [0, 100, 10_000])
def test_a_full_disk_leaves_the_old_state(limit, tmp_path):
    path = tmp_path / "state"
    save_state(path, {"a": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(CelrecError) as error:
            save_state(path, {"a": torch.ones(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message = str(error.value)
    assert message.startswith(f"{path}: cannot write the training state (")
    assert "File too large" in message
    assert "free disk space" in message
    assert "\n" not in message
    assert load_state(path) == {"a": 1}
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), SafetensorError("No space\nleft")]
)
@pytest.mark.parametrize("where", ["celrec.runtime.state_file.save_file", "os.fsync"])
def test_a_failed_write_or_flush_leaves_the_old_state(failure, where, tmp_path, monkeypatch):
    def fail(*_args, **_options):
        raise failure

    path = tmp_path / "state"
    save_state(path, {"a": 1})
    with monkeypatch.context() as patch:
        patch.setattr(where, fail)
        with pytest.raises(CelrecError, match="No space") as error:
            save_state(path, {"a": 2})
    assert "\n" not in str(error.value)
    assert load_state(path) == {"a": 1}
    assert [*tmp_path.iterdir()] == [path]


def test_a_folder_in_the_way_is_refused(tmp_path):
    with pytest.raises(CelrecError, match="cannot write"):
        save_state(tmp_path, {"a": 1})
    (tmp_path / "file").write_text("")
    with pytest.raises(CelrecError, match="cannot write in folder"):
        save_state(tmp_path / "file" / "state", {"a": 1})


def test_there_is_no_pickle(tmp_path, monkeypatch):
    tree = ast.walk(ast.parse(inspect.getsource(state_file)))
    names = {name for node in tree for name in (getattr(node, "id", ""), getattr(node, "attr", ""))}
    assert not names & {"pickle", "eval", "exec", "marshal", "save"}

    def fail(*_args, **_options):
        raise AssertionError("pickle is used")

    for name in ("dump", "dumps", "load", "loads", "Pickler", "Unpickler"):
        monkeypatch.setattr(pickle, name, fail)
    monkeypatch.setattr(torch, "save", fail)
    monkeypatch.setattr(torch, "load", fail)
    save_state(tmp_path / "state", {"a": torch.ones(2), "b": (1, "x")})
    assert_same(load_state(tmp_path / "state"), {"a": torch.ones(2), "b": (1, "x")})


def test_a_mapped_state_is_the_same_and_outlasts_its_file(tmp_path):
    path, state = tmp_path / "state", {"a": torch.arange(5), "b": [torch.zeros(0, 2), {1: "x"}]}
    save_state(path, state)
    loaded = load_state(path, mapped=True)
    path.unlink()
    assert_same(loaded, state)
    with pytest.raises(CelrecError, match="cannot read a training state"):
        load_state(path, mapped=True)
    save_state(path, state)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CelrecError, match="the checksum differs"):
        load_state(path, mapped=True)
