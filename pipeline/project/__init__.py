"""`init FOLDER`: a small project of one's own that works: workflow, reward, data, settings, test, README.

The files are kept as they will be written, with `PACKAGE` where the package's name goes.
"""
