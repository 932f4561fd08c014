"""Where files are: a folder of this machine, or any filesystem that fsspec knows, by its URL.

Run folders are written by several processes at once, so nothing here remembers a listing: what another
process has just written is seen. Credentials and endpoints come from the environment, as each
filesystem's own client reads them (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`, …).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import fsspec

from workflows.errors import CadreError, UsageError, did_you_mean

# They have no folders; making one there makes a bucket, which a misspelt URL should not.
_OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"})
# what pip installs for a protocol; the client of any other is named by fsspec's own message
_PACKAGES: Final = {
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "adlfs"),
}


def filesystem(url: str) -> tuple[Any, str]:
    """The filesystem of a path or URL, and the path within it.

    Raises:
        UsageError: no such kind of filesystem, or its package is not installed.
    """
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        protocol = url.partition("://")[0]
        if isinstance(error, ValueError):
            known = fsspec.available_protocols()
            unknown = f"{protocol!r} is not a kind of filesystem{did_you_mean(protocol, known)}"
            raise UsageError(f"{url} can't be opened: {error if protocol in known else unknown}") from None
        package = _PACKAGES.get(protocol)
        remedy = (
            f"run: {sys.executable} -m pip install {package}" if package else "install it, or use a folder"
        )
        raise UsageError(f"{url} needs a package that is not installed: {error}; {remedy}") from None
    _forget_listings(fs)
    return fs, path


@contextmanager
def reached(fs: Any, url: str) -> Iterator[None]:
    """Remote filesystems raise their clients' own errors: in this block they become one sentence. That a
    file is not there, is there already or can't be decoded stays what it is, as do all errors of a local
    disk.

    Raises:
        CadreError: the filesystem does not answer as it should.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, NotADirectoryError, ValueError, KeyError, CadreError):
        raise
    except Exception as error:
        if is_local(fs):
            raise
        cause = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise CadreError(
            f"{url} does not answer as it should: {cause}; check the URL, the network, and the credentials "
            "and endpoint in the environment"
        ) from error


def protocols(fs: Any) -> frozenset[str]:
    """The names that a filesystem goes by in URLs."""
    return frozenset({fs.protocol} if isinstance(fs.protocol, str) else fs.protocol)


def is_local(fs: Any) -> bool:
    return "file" in protocols(fs)


def is_object_store(fs: Any) -> bool:
    return bool(protocols(fs) & _OBJECT_STORES)


def make_parent(fs: Any, path: str) -> None:
    """Make the folder that a file goes into, where the filesystem has folders."""
    if not is_object_store(fs):
        fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)


def remove_files(urls: Iterable[str]) -> None:
    """Remove files, as far as they are there."""
    for url in urls:
        fs, path = filesystem(url)
        with contextlib.suppress(FileNotFoundError), reached(fs, url):
            fs.rm_file(path)


def _forget_listings(fs: Any) -> None:
    """Filesystems are made once per process and shared, so this is done on each use. The keyword of
    fsspec that does it is passed on to the client by some (sftp), which refuses it."""
    listings: Any = getattr(fs, "dircache", None)
    if getattr(listings, "use_listings_cache", False):
        listings.use_listings_cache = False
        listings.clear()
