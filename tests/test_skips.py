"""The rules about skips, tested with a pytest inside pytest."""

from __future__ import annotations

import pytest

from tests import skips

WANTS = {
    "shared": "def test_wants(shared_path): assert shared_path.name == 'shared'",
    "accelerator": "def test_wants(accelerator): assert accelerator == 'toy'",
    "library": "import pytest\ndef test_wants(): pytest.importorskip('no_such_library')",
    "mark": "import pytest\n@pytest.mark.skip(reason='tedious')\ndef test_wants(): pass",
    "false claim": (
        f"import pytest\ndef test_wants(): pytest.skip({skips.SHARED_ABSENT + ': really'!r})"
    ),
    "module": "import pytest\npytest.skip('tedious', allow_module_level=True)",
    "doctest": "def f():\n    '''\n    >>> 1  # doctest: +SKIP\n    2\n    '''",
}


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty project in a folder of its own, without ``../shared`` and without accelerator."""
    root = pytester.mkdir("project")
    (root / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    monkeypatch.chdir(root)
    monkeypatch.setattr(skips, "accelerator_present", lambda: False)
    monkeypatch.delenv("CI", raising=False)
    return pytester


def run(project: pytest.Pytester, wants: str) -> pytest.RunResult:
    (project.path / "project" / "test_it.py").write_text(WANTS[wants], encoding="utf-8")
    return project.runpytest_inprocess(
        *("-p", "tests.skips", "-rs", "--no-fold-skipped"),
        *(["--doctest-modules"] if wants == "doctest" else []),
    )


@pytest.mark.parametrize("wants", WANTS)
def test_elsewhere_any_skip_is_a_skip(project: pytest.Pytester, wants: str) -> None:
    run(project, wants).assert_outcomes(skipped=1)


def test_a_skip_is_listed_by_name_with_its_reason(project: pytest.Pytester) -> None:
    run(project, "shared").stdout.fnmatch_lines(
        ["SKIPPED test_it.py::test_wants - *../shared is absent"]
    )


def test_this_run_lists_skips_by_name(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getoption("fold_skipped") is False
    assert "s" in pytestconfig.getoption("reportchars")
    assert pytestconfig.pluginmanager.has_plugin("tests.skips")


@pytest.mark.parametrize("wants", ["shared", "accelerator"])
def test_under_ci_absence_is_an_excuse(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, wants: str
) -> None:
    monkeypatch.setenv("CI", "true")

    run(project, wants).assert_outcomes(skipped=1)


@pytest.mark.parametrize(
    ("wants", "outcome"),
    [
        ("library", {"failed": 1}),
        ("doctest", {"failed": 1}),
        ("mark", {"errors": 1}),  # it skips before the test is called
        ("module", {"errors": 1}),
    ],
)
def test_under_ci_any_other_skip_fails_and_says_why(
    project: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    wants: str,
    outcome: dict[str, int],
) -> None:
    monkeypatch.setenv("CI", "true")

    result = run(project, wants)

    assert result.parseoutcomes() == outcome
    assert result.ret != 0
    result.stdout.fnmatch_lines(["test_it.py* skipped: *", "Under CI=true a test may skip only*"])


def test_under_ci_the_excuse_must_be_true(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    project.mkdir("shared")

    run(project, "false claim").assert_outcomes(failed=1)
    run(project, "shared").assert_outcomes(passed=1)
