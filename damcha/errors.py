"""The errors that damcha raises on purpose.

DamchaError
├── ConfigError       a setting or a combination of settings is not possible
├── InputError        an image, a text or an array that a user gave cannot be used
├── CheckpointError   a run folder or a weights file cannot be used
└── CaptureError      a capture or an edit of the metric was asked for in an impossible way

Each message says what was wrong, with which value, and what to do. It is one line, fit to be shown
in the interface as it is.
"""


class DamchaError(Exception):
    """Base class of every error that damcha raises on purpose."""


class ConfigError(DamchaError, ValueError):
    """A setting, or a combination of settings, is not possible."""


class InputError(DamchaError, ValueError):
    """An image, a text or an array that a user gave cannot be used."""


class CheckpointError(DamchaError):
    """A run folder or a weights file cannot be used."""


class CaptureError(DamchaError):
    """A capture or an edit of the metric was asked for in an impossible way."""
