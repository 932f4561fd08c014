"""Whether the weights in a folder are the ones that they were, told from a sample of their bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from stages.weights.checkpoints import weight_files

PIECES: Final = 256  # of each file, evenly from its first byte to its last
PIECE_BYTES: Final = 16 * 1024


def content_fingerprint(folder: str) -> str:
    """A hash of the names, sizes and a sample of the bytes of a folder's weight files.

    Reads at most 4 MiB of a file, so that a model of many gigabytes costs milliseconds. A file of that size
    or less is read whole; in a larger one, a change that lies between the pieces goes unnoticed. Training,
    merging or converting a model changes nearly all of its bytes.

    Raises:
        UsageError: there are no weights in the folder.
    """
    digest = hashlib.blake2b(digest_size=16)
    for file in weight_files(Path(folder)):
        size = file.stat().st_size
        digest.update(f"{file.name}\0{size}\0".encode())
        with file.open("rb") as handle:
            if size <= PIECES * PIECE_BYTES:
                digest.update(handle.read())
                continue
            for piece in range(PIECES):
                handle.seek(piece * (size - PIECE_BYTES) // (PIECES - 1))
                digest.update(handle.read(PIECE_BYTES))
    return digest.hexdigest()
