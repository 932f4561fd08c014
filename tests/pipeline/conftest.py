"""Fixtures that several files of this room share."""

from tests.support.mlflow_records import experiment, uri

__all__ = ["experiment", "uri"]
