"""A stand-in for pytest, and what calls the tests of a file: sent before a test by `testcode.py`."""

from typing import Any

# --- here it begins ---


class pytest:
    """What test files of data sets use of pytest."""

    class Skipped(BaseException):
        pass

    class raises:
        def __init__(self, kinds: Any, match: str | None = None, **_: Any) -> None:
            self.kinds, self.match, self.value = kinds, match, None
            self.type: Any = None

        def __enter__(self) -> Any:
            return self

        def __exit__(self, kind: Any, error: Any, _: Any) -> bool:
            if kind is None:
                raise AssertionError(f"did not raise {self.kinds}")
            if not issubclass(kind, self.kinds):
                return False
            if self.match is not None:
                import re

                assert re.search(self.match, str(error)), f"{error!r} does not match {self.match!r}"
            self.value, self.type = error, kind
            return True

    class approx:
        def __init__(
            self, expected: Any, rel: float | None = None, abs: float | None = None, **_: Any
        ) -> None:
            self.expected, self.rel, self.abs = expected, rel, abs

        def __eq__(self, got: Any) -> bool:
            return self._same(self.expected, got)

        __hash__ = None  # type: ignore[assignment]

        def _same(self, expected: Any, got: Any) -> bool:
            if isinstance(expected, dict):
                return (
                    isinstance(got, dict)
                    and expected.keys() == got.keys()
                    and all(self._same(expected[key], got[key]) for key in expected)
                )
            if isinstance(expected, (list, tuple)):
                return (
                    isinstance(got, (list, tuple))
                    and len(expected) == len(got)
                    and all(map(self._same, expected, got))
                )
            if isinstance(expected, (str, bytes, bool)) or expected is None:
                return bool(expected == got)
            if isinstance(got, (str, bytes)) or got is None:
                return False
            if expected == got:
                return True
            relative = (1e-6 if self.rel is None and self.abs is None else self.rel or 0.0) * abs(expected)
            return bool(abs(expected - got) <= max(relative, 1e-12 if self.abs is None else self.abs))

        def __repr__(self) -> str:
            return f"approx({self.expected!r})"

    class param:
        def __init__(self, *values: Any, **_: Any) -> None:
            self.values = values

    class _Marks:
        def __getattr__(self, name: str) -> Any:
            def mark(*args: Any, **_: Any) -> Any:
                if name == "parametrize":
                    return lambda function: _with_rows(function, *args)
                if len(args) == 1 and callable(args[0]):
                    return _marked(args[0], name)
                return lambda function: _marked(function, name)

            return mark

    mark = _Marks()

    @staticmethod
    def fail(reason: str = "", **_: Any) -> None:
        raise AssertionError(reason)

    @staticmethod
    def skip(reason: str = "", **_: Any) -> None:
        raise pytest.Skipped(reason)


def _marked(function: Any, name: str) -> Any:
    if name in ("skip", "xfail"):
        function._skipped = True
    return function


def _with_rows(function: Any, names: Any, values: Any) -> Any:
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = []
    for value in values:
        value = value.values if isinstance(value, pytest.param) else (value,) if len(names) == 1 else value
        rows.append(dict(zip(names, value, strict=True)))
    before = getattr(function, "_rows", [{}])
    function._rows = [{**old, **new} for new in rows for old in before]
    return function


def _call_test(function: Any, rows_of: Any) -> None:
    if getattr(rows_of, "_skipped", False):
        return
    for row in getattr(rows_of, "_rows", [{}]):
        try:
            function(**row)
        except pytest.Skipped:
            continue


def _run_functions(space: Any) -> None:
    for name, function in list(space.items()):
        if name.startswith("test") and callable(function) and not isinstance(function, type):
            _call_test(function, function)


def _run_classes(space: Any) -> None:
    for value in list(space.values()):
        if not isinstance(value, type) or value.__module__ != space.get("__name__"):
            continue
        names = [name for name in dir(value) if name.startswith("test")]
        if hasattr(value, "assertEqual"):
            _run_unittest(value)
        elif names and "__init__" not in vars(value):
            for name in names:
                one = value()
                for prepare in ("setup_method", "setup"):
                    if hasattr(one, prepare):
                        getattr(one, prepare)()
                        break
                _call_test(getattr(one, name), getattr(value, name))


def _run_unittest(kind: Any) -> None:
    import unittest

    class First(unittest.TestResult):
        error = None

        def addError(self, test: Any, err: Any) -> None:
            self.error = self.error or err[1]

        addFailure = addError

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                self.addError(subtest, err)

    result = First()
    unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)
    if result.error is not None:
        raise result.error
