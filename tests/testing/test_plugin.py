"""pytest finds the fixtures by itself, and they cost nothing unless they are used."""

from __future__ import annotations

import pytest

from tests.support.pages import DOCS, program

pytest_plugins = ["pytester"]

SHOP = """
    import fdbqueue

    app = fdbqueue.App()

    @app.job(queue="mail")
    def send(to: str) -> None:
        if to == "eve":
            raise OSError("no answer")
"""


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    """Return a directory with an app, and a fixture that binds it."""
    pytester.makepyfile(shop=SHOP)
    pytester.makeconftest(
        """
        import pytest, shop

        @pytest.fixture(autouse=True)
        def app(bound_app):
            return bound_app(shop.app)

        def pytest_unconfigure():
            print(shop.app)
        """
    )
    return pytester


def test_each_test_has_a_database_of_its_own(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        import pytest, shop
        from fdbqueue.testing import assert_pushed, drain, pushed

        @pytest.mark.parametrize("number", range(2))
        def test_push(app, fdbqueue_db, number):
            assert app is shop.app
            assert app.db is fdbqueue_db
            assert fdbqueue_db.in_memory
            assert not pushed(shop.send)
            shop.send.push("ada")
            assert_pushed(shop.send, to="ada")
            assert drain(app).outcomes() == ["done"]

        def test_clock(app, fdbqueue_clock):
            before = fdbqueue_clock.now()
            handle = shop.send.using(delay="1d").push("ada")
            assert drain(app, advance=fdbqueue_clock).outcomes(handle) == ["done"]
            assert (fdbqueue_clock.now() - before).days == 1
        """
    )
    done = shop.runpytest()
    done.assert_outcomes(passed=3)
    done.stdout.fnmatch_lines(["<App of 1 jobs on no database>"])


def test_a_failure_shows_the_line_of_the_test_and_what_was_pushed(shop: pytest.Pytester) -> None:
    shop.makepyfile(
        """
        import shop
        from fdbqueue.testing import assert_pushed, drain

        def test_pushed():
            shop.send.push("ada")
            assert_pushed(shop.send, to="bob")

        def test_outcome(app):
            shop.send.push("eve")
            assert drain(app).outcomes() == ["done"]
        """
    )
    done = shop.runpytest()
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(
        [
            '>       assert_pushed(shop.send, to="bob")',
            "E       AssertionError: no job shop.send(to='bob') waits; these do:",
            "E         shop.send('ada'), ready in 'mail'",
        ]
    )
    done.stdout.no_fnmatch_line("*def assert_pushed*")
    done.stdout.fnmatch_lines(["E*'failed'*", "*shop.send failed, attempt 1*OSError: no answer"])


def test_the_fixtures_load_nothing_before_they_are_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_is_loaded(request):
            assert request.config.pluginmanager.has_plugin("fdbqueue")
            assert not [name for name in sys.modules if name.partition(".")[0] == "fdbqueue"]
            assert "fdb" not in sys.modules
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
    done = pytester.runpytest_subprocess("--fixtures")
    done.stdout.fnmatch_lines(["fdbqueue_db*", "fdbqueue_clock*", "bound_app*"])


def test_the_tests_of_the_guide_pass(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(program(DOCS / "howto" / "testing.md"))
    done = pytester.runpytest("-q")
    assert done.ret == 0
    assert done.parseoutcomes()["passed"] >= 4
