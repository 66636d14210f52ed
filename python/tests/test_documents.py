# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings are true."""

import doctest
import unittest

import linkwise
import linkwise._engine
import linkwise.torch.rendezvous


def load_tests(loader, tests, pattern):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for module in (linkwise, linkwise._engine, linkwise.torch.rendezvous):
        found = doctest.DocTestSuite(module, optionflags=flags)
        assert found.countTestCases() > 0, module
        tests.addTests(found)
    return tests


if __name__ == "__main__":
    unittest.main()
