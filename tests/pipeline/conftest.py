"""Fixtures that several files of this room share."""

from tests.support.mlflow_records import database, experiment, uri

__all__ = ["database", "experiment", "uri"]
