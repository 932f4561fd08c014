"""A folder on any filesystem, and whether it can be the place for runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from stages.tables.filesystem import filesystem, is_local, is_object_store, make_parent, protocols, reached
from stages.tables.parquet import write_bytes
from workflows.errors import CadreError, UsageError


class Folder:
    """A folder on any filesystem: the few operations that a run needs, by relative name.

    Raises:
        UsageError: there is no such kind of filesystem, or its package is missing.
        CadreError: from every operation, where a remote filesystem does not do it.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.fs, self.path = filesystem(self.url)
        self.is_local = is_local(self.fs)
        if self.is_local:
            self.path = str(Path(self.path).absolute())
            self.url = self.path

    def child(self, name: str) -> Folder:
        return Folder(f"{self.url}/{name}" if name else self.url)

    def read_text(self, name: str) -> str | None:
        try:
            with reached(self.fs, self.url):
                return str(self.fs.cat_file(f"{self.path}/{name}").decode("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write_text(self, name: str, text: str) -> None:
        write_bytes(f"{self.url}/{name}", text.encode("utf-8"))

    def create_text(self, name: str, text: str) -> bool:
        """Write a file unless there is one of that name; whether it was written. Of several that try at
        once one does, where the filesystem can say so (S3, Google and Azure can)."""
        with reached(self.fs, self.url):
            make_parent(self.fs, f"{self.path}/{name}")
            try:
                self.fs.pipe_file(f"{self.path}/{name}", text.encode("utf-8"), mode="create")
            except FileExistsError:
                return False
        return True

    def names(self) -> list[str]:
        """Names directly inside, sorted; empty where the folder does not exist."""
        try:
            with reached(self.fs, self.url):
                paths = [p.rstrip("/") for p in self.fs.ls(self.path, detail=False)]
        except FileNotFoundError:
            return []
        # object stores may list the folder itself, as an empty object
        return sorted(p.rsplit("/", 1)[-1] for p in paths if p != self.path)

    def files(self, name: str, but: str) -> list[str]:
        """Every file of this name at any depth but below the child `but`, by relative name, sorted."""
        try:
            with reached(self.fs, self.url):
                paths = self.fs.find(self.path)
        except FileNotFoundError:
            return []
        inside = [path.removeprefix(self.path).lstrip("/") for path in paths]
        return sorted(p for p in inside if p.rpartition("/")[2] == name and not p.startswith(f"{but}/"))

    def size(self) -> int:
        """Bytes of all files inside, at any depth."""
        with reached(self.fs, self.url):
            return int(self.fs.du(self.path))

    def remove(self, name: str) -> None:
        """Remove a file or folder, of a folder the manifest first: half of one must not look whole."""
        path = f"{self.path}/{name}"
        with reached(self.fs, self.url):
            if self.fs.exists(f"{path}/manifest.json"):
                self.fs.rm_file(f"{path}/manifest.json")
            if self.fs.exists(path):
                self.fs.rm(path, recursive=True)


def check_root(url: str, name: str = "") -> None:
    """Refuse a place for runs that can't be read or written, or that other processes would not see.

    Args:
        url: `run.root`.
        name: `run.name`, a folder below it.

    Raises:
        UsageError: with what to do.
    """
    folder = Folder(url)
    if folder.is_local:
        _check_writable(url, Path(folder.path) / name)
        return
    if "memory" in protocols(folder.fs):
        raise UsageError(
            f"run.root = {url!r} is the memory of one process, and a run is written by several; use a folder "
            "or a URL such as s3://bucket/runs"
        )
    try:
        bucket = folder.path.strip("/").partition("/")[0]
        if not folder.names() and is_object_store(folder.fs):
            folder.fs.ls(bucket, detail=False)
    except FileNotFoundError:
        raise UsageError(f"run.root = {url!r}: there is no bucket {bucket!r}; make it first") from None
    except CadreError as error:
        raise UsageError(f"run.root = {url!r}: {error}") from error


def _check_writable(url: str, folder: Path) -> None:
    """Refuse a local folder that is not there and can't be made, or in which nothing can be written."""
    remedy = "set run.root to a folder that you may write to"
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()  # raises where the name is too long or a link leads in a circle
        place = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
        if not place.is_dir():
            is_root = place == Path(Folder(url).path)
            what = "is a file" if is_root else f"can't hold the run: {place} is a file"
            raise UsageError(f"run.root = {url!r} {what}, expected a folder; {remedy}")
        # only an attempt tells: for the administrator every permission says yes, on a read-only disk too
        os.rmdir(tempfile.mkdtemp(prefix=".cadre-", dir=place))
    except OSError as error:
        cause = error.strerror or str(error)
        raise UsageError(f"run.root = {url!r} can't be written ({cause}); {remedy}") from None
