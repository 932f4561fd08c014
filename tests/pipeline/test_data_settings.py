"""Settings of data: what `check` says of them, and which are refused."""

from __future__ import annotations

import pytest

from tests.support.data_files import qa_row, write


def test_check_tells_formats_rejects_and_what_was_decided(tmp_path, scripted):
    from pipeline.plan.assemble import assemble
    from pipeline.plan.overview import overview
    from pipeline.settings.reading import parse_settings
    from pipeline.views.overview import overview_lines

    rows = [qa_row(number) for number in range(1, 9)]
    rows[2]["answer"] = ["the", "A3"]
    path = {"train": [write(tmp_path / "a.jsonl", *rows), write(tmp_path / "b.jsonl", qa_row(20), "{broken")]}
    plan = assemble(parse_settings(scripted(data={"path": path, "max_bad_share": 0.2})))
    found = overview(plan)
    assert (found["data"]["formats"], found["data"]["rejected_rows"]) == (["nq_open"], 1)
    text = "\n".join(overview_lines(found))
    assert "1 × can't be decoded (row 2: not JSON" in text
    assert "1 gold answers left out" in text
    assert plan.stages[0].remarks == tuple(plan.tasks.remarks)
    assert len(plan.tasks.remarks) == 2


def test_paths_by_split_survive_the_settings_file_of_a_run():
    import tomllib

    from pipeline.settings.reading import parse_settings, settings_toml

    for path in ("facts", ["a.jsonl", "b/*.parquet"], {"train": "a.jsonl", "dev": ["b.jsonl", "c.jsonl"]}):
        settings = parse_settings({"data": {"path": path, "limit": -5, "public_tests": 2}})
        assert parse_settings(tomllib.loads(settings_toml(settings))) == settings


@pytest.mark.parametrize("data", [{"limit": 0}, {"public_tests": -1}, {"path": 3}])
def test_data_settings_that_cannot_be_are_refused(data):
    from pipeline.settings.reading import parse_settings
    from workflows.errors import UsageError

    with pytest.raises(UsageError, match=f"data.{next(iter(data))}"):
        parse_settings({"data": data})


def test_another_file_under_the_same_name_is_another_run(tmp_path, scripted):
    from pipeline.plan.assemble import assemble
    from pipeline.settings.reading import parse_settings

    path = write(tmp_path / "t.jsonl", *[qa_row(number) for number in range(8)])
    raw = scripted(data={"path": path})
    before = assemble(parse_settings(raw)).identity
    assert assemble(parse_settings(raw)).identity == before
    write(tmp_path / "t.jsonl", *[qa_row(number, id=f"x{number}") for number in range(8)])
    assert assemble(parse_settings(raw)).identity != before
