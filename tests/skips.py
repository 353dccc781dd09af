"""Which tests may skip.

A test may skip for want of something only where that thing is not there. In continuous
integration (``CI=true``) nothing but the absence of the folder ``../shared``, beside the project's
own, or of an accelerator excuses: any other skip is a failure, and so is one of these two reasons
where the thing *is* there. pytest's own summary lists each skipped test by name.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED_ABSENT = "../shared is absent"
NO_ACCELERATOR = "no accelerator"


def shared_folder(config: pytest.Config) -> Path:
    """The folder ``shared`` beside the project's root, there or not."""
    return config.rootpath.parent / "shared"


def accelerator_present() -> bool:
    import torch

    return torch.accelerator.is_available()


def _excused(reason: str, config: pytest.Config) -> bool:
    if reason.startswith(SHARED_ABSENT):
        return not shared_folder(config).is_dir()
    if reason.startswith(NO_ACCELERATOR):
        return not accelerator_present()
    return False


def _judge(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Turn a skip that nothing excuses into a failure."""
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return
    assert isinstance(report.longrepr, tuple)  # of a skip: (file, line, "Skipped: reason")
    reason = report.longrepr[2].removeprefix("Skipped: ")
    if not _excused(reason, config):
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} skipped: {reason}\n"
            "Under CI=true a test may skip only where ../shared or an accelerator is absent, with "
            f"a reason that begins {SHARED_ABSENT!r} or {NO_ACCELERATOR!r}."
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    report = yield
    _judge(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    _judge(report, collector.config)
    return report


@pytest.fixture(scope="session")
def shared_path(pytestconfig: pytest.Config) -> Path:
    """The folder ``../shared``; a test that asks for it skips where it is absent."""
    folder = shared_folder(pytestconfig)
    if not folder.is_dir():
        pytest.skip(SHARED_ABSENT)
    return folder


@pytest.fixture(scope="session")
def accelerator() -> str:
    """The device type of the accelerator; a test that asks for it skips where there is none."""
    if not accelerator_present():
        pytest.skip(NO_ACCELERATOR)
    import torch

    device = torch.accelerator.current_accelerator()
    assert device is not None
    return device.type
