"""Training state in one safetensors file: nested `state_dict()`s, bit for bit, without pickle."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save_file

from celrec.errors import CelrecError, first_line
from celrec.runtime.atomic import atomic_file

_FORMAT = "1"
MAX_DEPTH = 64  # nesting; far below Python's recursion limit
DTYPES = [  # of safetensors, in whole bytes
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "complex64", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
]


def save_state(path: str | Path, state: Mapping[str, Any]) -> None:
    """Write `state` to one file atomically, replacing an existing file.

    A state may contain dicts with str or int keys, lists, tuples, None, bool, int, float, str
    and dense tensors, nested. Mappings are loaded as dicts and parameters as tensors. Tensors
    that share memory are saved separately. The file is in safetensors format: numbered tensors,
    with everything else as JSON in the metadata, next to a checksum of both.

    >>> import tempfile
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> adam = torch.optim.Adam([weight], lr=0.1)
    >>> weight.sum().backward(); adam.step()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "state.safetensors")
    ...     save_state(path, {"step": 1, "optimizer": adam.state_dict()})
    ...     state = load_state(path)
    >>> state["step"], state["optimizer"]["state"][0]["step"]
    (1, tensor(1.))
    """
    if not isinstance(state, Mapping):
        raise CelrecError(f"state must be a dict, not a {type(state).__name__}")
    tensors: dict[str, torch.Tensor] = {}
    skeleton = json.dumps(_encode(state, (), tensors))
    check = state_checksum(skeleton, tensors)
    metadata = {"celrec_format": _FORMAT, "celrec_state": skeleton, "crc32": check}
    try:
        with atomic_file(Path(path)) as temporary:
            save_file(tensors, temporary, metadata=metadata)
    except (OSError, SafetensorError) as error:
        raise CelrecError(
            f"{path}: cannot write the training state ({_line(error)}); an existing file is "
            "unchanged; free disk space or choose another place"
        ) from error


def load_state(path: str | Path, *, mapped: bool = False) -> dict[str, Any]:
    """Read a file written by `save_state`; tensors are copied to the CPU.

    With `mapped`, tensors are memory-mapped views of the file, to be copied from. Use it only
    for files that are not replaced in the meantime, such as those of a checkpoint.
    """
    try:
        metadata, tensors = (_mapped if mapped else _read)(Path(path))
        if "celrec_format" not in metadata:
            raise ValueError("it is not a training state")
        if metadata["celrec_format"] != _FORMAT:
            raise ValueError(f"in format {metadata['celrec_format']!r}, expected {_FORMAT!r}")
        skeleton = metadata.get("celrec_state", "")
        if metadata.get("crc32") != state_checksum(skeleton, tensors):
            raise ValueError("damaged, the checksum differs")
        state = _decode(json.loads(skeleton), tensors)
        if not isinstance(state, dict):
            raise TypeError("it contains no dict")
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise CelrecError(
            f"{path}: cannot read a training state ({_line(error)}); "
            "remove it to start from scratch"
        ) from error
    return state


def _read(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    data = path.read_bytes()  # in one read, since a writer may replace the file
    tensors = load(data)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header.get("__metadata__", {}), tensors


def _mapped(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return file.metadata() or {}, tensors


def _encode(value: Any, place: tuple[str | int, ...], tensors: dict[str, torch.Tensor]) -> Any:
    """Encode `value` as JSON; an object has one key, which is the type of its content.

    `place` is the path of keys to the value. Tensors are added to `tensors`. Types are compared
    exactly: a subclass, such as a NumPy scalar, would change its type on loading.
    """
    kind = type(value)
    if len(place) > MAX_DEPTH:
        raise CelrecError(
            f"state: nested more than {MAX_DEPTH} deep, or contains itself; flatten it"
        )
    if value is None or kind in (bool, float):
        return value
    if kind is int:  # Python does not parse decimal integers beyond 4300 digits
        return value if abs(value) < 2**63 else {"int": hex(value)}
    if kind is str:  # JSON merges surrogate pairs that Python keeps separate
        same = json.loads(json.dumps(value)) == value
        return value if same else {"str": value.encode("utf-8", "surrogatepass").hex()}
    if kind in (list, tuple):
        nodes = [_encode(inner, (*place, i), tensors) for i, inner in enumerate(value)]
        return nodes if kind is list else {"tuple": nodes}
    if isinstance(value, Mapping):
        if odd := [type(key).__name__ for key in value if type(key) not in (str, int)]:
            raise _refusal(place, f"key of type {odd[0]}", "a str or an int")
        return {
            "dict": [
                [_encode(key, place, tensors), _encode(inner, (*place, key), tensors)]
                for key, inner in value.items()
            ]
        }
    if not isinstance(value, torch.Tensor):
        raise _refusal(place, kind.__name__, "a plain value, a list, a tuple, a dict or a tensor")
    dtype, layout = (str(word).removeprefix("torch.") for word in (value.dtype, value.layout))
    if layout != "strided" or value.is_meta or dtype not in DTYPES:
        what = f"{layout} tensor of {dtype} on {value.device}"
        raise _refusal(place, what, "dense and of a common dtype")
    tensor = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # Copy only if needed: scalars may have unusual strides, and safetensors refuses shared memory.
    memory = {other.untyped_storage().data_ptr() for other in tensors.values()}
    if tensor.numel() < 2 or tensor.untyped_storage().data_ptr() in memory:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    name = str(len(tensors))
    tensors[name] = tensor
    return {"tensor": name}


def _refusal(place: tuple[str | int, ...], what: str, remedy: str) -> CelrecError:
    words = (f".{key}" if str(key).isidentifier() else f"[{key!r}]" for key in place)
    return CelrecError(f"state{''.join(words)}: cannot save a {what}; make it {remedy}")


def _decode(node: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(node, list):
        return [_decode(inner, tensors) for inner in node]
    if not isinstance(node, dict):
        return node
    [(kind, content)] = node.items()
    match kind:
        case "int":
            return int(content, 16)
        case "str":
            return bytes.fromhex(content).decode("utf-8", "surrogatepass")
        case "tuple":
            return tuple(_decode(content, tensors))
        case "dict":
            return {_decode(key, tensors): _decode(value, tensors) for key, value in content}
        case "tensor" if content in tensors:
            return tensors[content]
    raise ValueError(f"there is no {kind} {content!r} in it")


def state_checksum(skeleton: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """The CRC-32 of the JSON and of the names, dtypes, shapes and values of the tensors."""
    crc = zlib.crc32(skeleton.encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def _line(error: Exception) -> str:
    return first_line(getattr(error, "strerror", None) or error)
