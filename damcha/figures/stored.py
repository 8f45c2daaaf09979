"""A figure as one file that is read back: its arrays as safetensors, all its words beside them.

Equal figures give equal bytes. Reading builds the classes of ``spec.py`` and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from damcha.errors import InputError
from damcha.figures import spec
from damcha.figures.spec import Array, Figure

FORMAT = "damcha-figure-1"
_CLASSES = {
    one.__name__: one
    for one in vars(spec).values()
    if isinstance(one, type) and dataclasses.is_dataclass(one)
}


def to_bytes(figure: Figure) -> bytes:
    """Return the figure as a safetensors file; its metadata hold the rest as JSON."""
    arrays: dict[str, Array] = {}
    words = json.dumps(_plain(figure, arrays))
    return safetensors.numpy.save(arrays, {FORMAT: words})


def from_bytes(content: bytes) -> Figure:
    """Return the figure that :func:`to_bytes` wrote.

    Raises
    ------
    InputError
        If the content is cut, damaged or something else.
    """
    try:
        arrays = safetensors.numpy.load(content)  # checks the header against the size
        length = int.from_bytes(content[:8], "little")
        words = json.loads(content[8 : 8 + length])["__metadata__"][FORMAT]
        figure = _made(json.loads(words), arrays)
        if not isinstance(figure, Figure):
            raise TypeError(f"a {type(figure).__name__}")
    except Exception as error:  # the library's own, or whatever a wrong file makes of the classes
        raise InputError(
            f"this is not a figure that damcha stored ({type(error).__name__}: {str(error)[:80]})"
        ) from None
    return figure


def _plain(value: Any, arrays: dict[str, Array]) -> Any:
    """Turn a value into what JSON has; numeric arrays go to `arrays`, by their number."""
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, "fields": _plain(fields, arrays)["map"]}
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "US":
            return {"texts": value.tolist()}
        if np.iscomplexobj(value):  # which safetensors does not have
            return {"complex": _plain(np.stack([value.real, value.imag]), arrays)}
        arrays[str(len(arrays))] = np.ascontiguousarray(value)
        return {"array": str(len(arrays) - 1)}
    if isinstance(value, Mapping):
        return {"map": {str(key): _plain(part, arrays) for key, part in value.items()}}
    if isinstance(value, list | tuple):
        return [_plain(part, arrays) for part in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)  # of settings, as the sidecar writes them


def _made(plain: Any, arrays: Mapping[str, Array]) -> Any:
    """Turn it back; sequences become tuples, as all of spec's are."""
    match plain:
        case list():
            return tuple(_made(part, arrays) for part in plain)
        case {"class": str(name), "fields": dict(fields)}:
            made = {key: _made(part, arrays) for key, part in fields.items()}
            return _CLASSES[name](**made)
        case {"array": str(name)}:
            return arrays[name]
        case {"complex": parts}:
            real, imaginary = _made(parts, arrays)
            return real + 1j * imaginary
        case {"texts": list(texts)}:
            return np.array(texts)
        case {"map": dict(parts)}:
            return {key: _made(part, arrays) for key, part in parts.items()}
        case dict():
            raise ValueError(f"unknown part {sorted(plain)[:3]}")
    return plain
