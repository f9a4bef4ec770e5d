"""Warnings on the command line are one line each, without code."""

import warnings

from crumb_avalanche.cli.__init__ import short_warnings


def test_a_warning_to_the_user_is_one_line_and_others_name_their_place():
    usual = warnings.formatwarning
    with short_warnings():
        assert warnings.formatwarning("no images", UserWarning, "module.py", 3) == "warning: no images\n"
        assert "module.py:3: DeprecationWarning" in warnings.formatwarning("old", DeprecationWarning, "module.py", 3)
    assert warnings.formatwarning is usual
