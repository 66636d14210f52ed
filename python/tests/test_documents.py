# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings and in docs/python.md are true."""

import doctest
import os
import re
import tempfile
import unittest

import linkwise
import linkwise._engine
import linkwise.moe
import linkwise.torch.rendezvous


#: Beside the tests, where the test of the crate `python` puts it.
PAGE = os.path.join(os.path.dirname(__file__), "python.md")


class Page(unittest.TestCase):
    def test_the_examples_of_the_page_run(self):
        with open(PAGE) as file:
            blocks = re.findall(r"(?ms)^```python\n(.*?)^```", file.read())
        self.assertTrue(blocks)
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                for block in blocks:
                    names = {}
                    exec(block, names)
                    self.assertEqual(len(names["choice"].gpus), 16)
            finally:
                os.chdir(before)


def in_new_folder(example):
    """The examples make files in the working folder."""
    example.left, example.folder = os.getcwd(), tempfile.TemporaryDirectory()
    os.chdir(example.folder.name)


def back(example):
    os.chdir(example.left)
    example.folder.cleanup()


def load_tests(loader, tests, pattern):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for module in (linkwise, linkwise._engine, linkwise.moe, linkwise.torch.rendezvous):
        found = doctest.DocTestSuite(module, optionflags=flags, setUp=in_new_folder, tearDown=back)
        assert found.countTestCases() > 0, module
        tests.addTests(found)
    return tests


if __name__ == "__main__":
    unittest.main()
