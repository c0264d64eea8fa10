"""Links on the page, and the names in them. (test_app.py has whole pages.)"""

from __future__ import annotations

from urllib.parse import parse_qs

from pgonce.serve.pages import query_link, view_of


def test_a_link_holds_the_whole_view():
    """Text, states and order come back from the query string."""
    view = view_of(" a&b=c ", ["refused", "stuck", "refused", "nonsense"], "-lag")
    again = parse_qs(view.link()[1:])
    assert again == {"q": ["a&b=c"], "state": ["refused", "stuck"], "sort": ["-lag"]}
    assert view.sorted_by("name") == view.link(sort="name")
    assert parse_qs(view_of("", [], "lag").sorted_by("lag")[1:]) == {"sort": ["-lag"]}
    assert view_of("", [], "").link() == "?"


def test_a_name_that_is_a_path_stays_one_part():
    """Slashes, question marks and hashes of a sink or an id are its own."""
    assert query_link("a/b?c", "d&e#f") == "/queries/a%2Fb%3Fc?sink=d%26e%23f"
