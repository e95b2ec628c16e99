"""YAML for people: texts of several lines are blocks that read back the same."""

from __future__ import annotations

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.cli.render.yaml_text import dump

ODD = st.text(alphabet=" \n\tab#:-'\"|>é\x85\u2028\ufeff\r%", max_size=12)


def test_a_script_with_blanks_at_the_end_of_a_line_and_tabs_is_a_block() -> None:
    script = "#!/bin/sh \n\techo hi\nx  \n"
    assert dump([{"spec": {"script": script}}]) == "spec:\n  script: |\n    #!/bin/sh \n    \techo hi\n    x  \n"


@settings(max_examples=100, deadline=None)
@given(ODD, ODD)
def test_any_text_reads_back_the_same(first: str, second: str) -> None:
    document = {"spec": {"script": f"{first}\n{second}", "list": [second, {"deep": first}]}, "last": second}
    assert yaml.safe_load(dump([document])) == document
