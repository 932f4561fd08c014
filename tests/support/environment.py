"""What tests put into the environment: keys and addresses of servers that they start themselves."""

from __future__ import annotations

API_KEY = "sk-a+b/c=9f8e7d6c5b4a"  # what sends it to a server of the tests reads it from TEST_API_KEY


def of_s3(port: int) -> dict[str, str]:
    """What clients of the server at this port of loopback need."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def of_workers(s3_port: int) -> dict[str, str]:
    """What Ray's workers need of it, which can't be told anything later."""
    return {**of_s3(s3_port), "TEST_API_KEY": API_KEY}
