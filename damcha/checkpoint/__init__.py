"""Runs on disk: the folder format, version 1, and how it is read and written.

A run is a folder. Its name is the run's name; nothing in it refers to anything outside::

    fashion-damcha/
      config.json               every setting of the run
      metrics.jsonl             what was measured while training
      epoch-0000.safetensors    the weights at the end of epoch 0 …
      epoch-0049.safetensors    … and of epoch 49
      mean-metric.safetensors   the metric's mean over held-out inputs, per snapshot
      tokenizer.json            what the subwords spell, for a run on pairs that has them
      README.md                 the model card: data, licence, command, results
      samples/                  a few inputs of the run's own domain (.png, .jpg … or .txt)

Only config.json and one snapshot are needed to open a run. While it is being trained there is also
resume.pt, the trainer's own state, which is no part of the format. Whatever else lies in the folder
is ignored and listed (`Run.strays`).

config.json
    One UTF-8 JSON object, the fields of `damcha.config.RunConfig` with none left out.
    ``format_version`` is the version of this format, 1. A reader refuses unknown fields and
    versions rather than guess. Together the fields determine the model: names, shapes and
    arithmetic.

metrics.jsonl
    One JSON object per line, in the order of training, each with ``epoch`` and the numbers measured
    at its end. A line that ends early (a run that was killed) is to be skipped.

epoch-NNNN.safetensors
    **Epochs count from 0, and epoch-NNNN holds the weights at the END of epoch NNNN**: epoch-0000
    has been trained for one epoch, and a run of 50 epochs ends with epoch-0049. Digits are read as
    a number, so that order is numeric; more than four are allowed. Not every epoch need be kept.

    The file is plain safetensors, readable by that library in any language, or by hand: 8 bytes
    with the length of the header (unsigned, little endian); the header, a JSON object that maps
    each weight's name to ``dtype``, ``shape`` and ``data_offsets`` [begin, end), counted from the
    end of the header; then the numbers, row-major, little endian, without gaps. The header's
    ``__metadata__`` holds strings:

    ===============  ==============================================================
    format           ``pt``: the names are those of a PyTorch state dict
    damcha_format    ``1``
    epoch            the epoch; a file whose name disagrees was renamed, and is refused
    dtype            what floating-point weights were rounded to, e.g. ``float16``
    tied             a JSON object, name → stored name: a tensor that the model has
                     under several names is stored under the first of them only
    ===============  ==============================================================

    **Half precision on disk** (``float16``) is storage only. Training and inference run in
    float32; a weight was rounded to the nearest float16 when it was written, and is widened back
    exactly when it is read. That keeps 11 significant bits, a relative error of at most 2⁻¹¹ ≈
    0.0005 a weight (absolute 2⁻²⁵ below 6·10⁻⁵), and halves the size. Results of a loaded model
    therefore differ slightly from those logged while training; the card states by how much.
    Weights beyond ±65504 cannot be stored so, and writing refuses them. Training resumes from its
    own full-precision state, never from a snapshot.

mean-metric.safetensors
    For each snapshot one tensor, named like its file without the suffix (``epoch-0049``):
    [metrics, positions, d, d], the metric averaged over held-out inputs. One metric where the stack
    shares it, else one a layer; one position unless the context is causal. MHA runs have no such
    file.

tokenizer.json
    ``{"format_version": 1, "merges": [[left, right], …]}``: symbols 0 to 255 are the bytes, and the
    k-th merge makes symbol 256 + k of two earlier ones (byte-level BPE). The three symbols after
    the last are the marks SEPARATOR, END and PAD. Only where ``vocabulary`` is above 256.

    In an imported run of texts (``first_symbol`` is set) it has the lists of its authors'
    tokenizer (:mod:`damcha.data.pieces`). Where it is missing, a text is numbers of symbols.

Nothing in the format is a pickle, and reading a run never runs code that came with it.
"""

from damcha.checkpoint.files import atomic_write
from damcha.checkpoint.run import Example, Run, list_runs, open_run, pick_device
from damcha.checkpoint.weights import (
    Header,
    check_fit,
    clean_names,
    load_strictly,
    read_header,
    read_weights,
    write_weights,
)

__all__ = [
    "Example",
    "Header",
    "Run",
    "atomic_write",
    "check_fit",
    "clean_names",
    "list_runs",
    "load_strictly",
    "open_run",
    "pick_device",
    "read_header",
    "read_weights",
    "write_weights",
]
