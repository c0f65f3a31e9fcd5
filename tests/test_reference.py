"""docs/reference.md is what `python -m tests.reference_page` writes today."""

import re

from tests import reference_page


def test_the_page_is_that_of_the_code():
    page = reference_page.FILE.read_text("utf-8")
    assert page == reference_page.page(), "python -m tests.reference_page"
    assert page.count("\n### ") > 90 and not re.search("0x[0-9a-f]{6}| object at ", page)


def test_what_is_public_says_what_it_is():
    entries = [entry.partition("\n") for entry in re.split(r"\n### ", reference_page.page())[1:]]
    assert not [name for name, _, text in entries if not re.sub(r"^    .*$", "", text, flags=re.M).strip()]
