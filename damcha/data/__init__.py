"""Pictures, texts and data sets → arrays of bytes, checked, with a note of each conversion."""

from damcha.data.datasets import ImageData, TextData, load_dataset
from damcha.data.folder import FolderImages
from damcha.data.images import ImageSource, Picture, fit_image, read_image
from damcha.data.pairs import PairBatch, PairData, PairExamples, load_pairs, pair_batch
from damcha.data.text import Passage, byte_label, read_text

__all__ = [
    "FolderImages",
    "ImageData",
    "ImageSource",
    "PairBatch",
    "PairData",
    "PairExamples",
    "Passage",
    "Picture",
    "TextData",
    "byte_label",
    "fit_image",
    "load_dataset",
    "load_pairs",
    "pair_batch",
    "read_image",
    "read_text",
]
