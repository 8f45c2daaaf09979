"""Pictures, texts and data sets → arrays of bytes, checked, with a note of each conversion."""

from damcha.data.datasets import ImageData, TextData, load_dataset

__all__ = ["ImageData", "TextData", "load_dataset"]
