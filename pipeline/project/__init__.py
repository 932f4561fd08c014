"""What does `init FOLDER` write? A small project of one's own that works; nothing of a run uses these files.

The files are kept as they will be written, with `PACKAGE` where the package's name goes.
"""
