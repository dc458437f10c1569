"""The version of the installed package; "0+source" when it runs from a source tree that was never installed."""

from importlib import metadata

try:
    __version__ = metadata.version("sirtaki")
except metadata.PackageNotFoundError:
    __version__ = "0+source"
